#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A step of training here and in transformers, in one run on one machine; then what the memory adds.

    python3 benchmarks/training_against_transformers.py [--program build/palimpsest] [--rounds 7] [--threads 2]
        [--only step,slots,replay,processes] [--sizes 4x128,2x512] [--dropout 0.1]

A step: forward, loss, backward, clipping to norm 1, AdamW. BART-base sizes with random weights and tied embeddings,
float32, random ids, the same dropout on both sides. Theirs: BartForConditionalGeneration with sdpa, torch.optim.AdamW
fused or foreach, whichever took less time for one update here. Ours: `palimpsest bench train`, without a memory.
Both sides take turns; tokens are those of the source. Exits 1 where we have less than 0.97 of their tokens a second.

`slots`: what a memory of 64 slots adds to a step. `replay`: peak resident bytes and time with and without memory replay.
`processes`: mpirun -n 2 with one thread each against one process with one and with two. Missing packages are installed
into a virtual environment under build/.
"""

import argparse
import os
import shutil
import statistics
import sys

import peers


def their_step(torch, folder, batch, length, dropout):
    """A function that makes one step, and the name of the update that is used."""
    from transformers import BartForConditionalGeneration

    model = BartForConditionalGeneration.from_pretrained(
        folder, attn_implementation="sdpa", dropout=dropout, attention_dropout=0.0, activation_dropout=0.0).train()
    weights = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    source = torch.randint(4, 50000, (batch, length))
    labels = torch.randint(4, 50000, (batch, length))
    optimizers = {}
    for kind in ("fused", "foreach"):
        optimizers[kind] = torch.optim.AdamW([{"params": weights, "weight_decay": 0.01},
                                              {"params": others, "weight_decay": 0.0}],
                                             lr=1e-5, betas=(0.9, 0.98), eps=1e-8, **{kind: True})

    def gradients():
        model.zero_grad(set_to_none=True)
        model(input_ids=source, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    gradients()
    spent = {}
    for kind in list(optimizers):
        optimizers[kind].step()  # allocates its state
        spent[kind] = min(peers.timed(optimizers[kind].step) for _ in range(3))
    chosen = min(spent, key=spent.get)
    for kind in spent:
        if kind != chosen:
            del optimizers[kind]

    def step():
        gradients()
        optimizers[chosen].step()

    return step, chosen


def mib(count):
    return f"{count / 2**20:.0f} MiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers.common_arguments(parser)
    parser.add_argument("--only", default="", help="parts, comma between: step, slots, replay, processes")
    parser.add_argument("--sizes", default="4x128,2x512", help="batch x length, comma between")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--horizons", default="4,8", help="of replay")
    arguments = parser.parse_args()
    peers.set_threads(arguments.threads)
    wanted = set(filter(None, arguments.only.split(",")))
    on = lambda part: not wanted or part in wanted
    sizes = [tuple(map(int, size.split("x"))) for size in arguments.sizes.split(",")]

    def ours(batch, length, *flags, threads=arguments.threads, launcher=()):
        return peers.bench(arguments.program, "train", "--batch", batch, "--length", length, "--dropout",
                           arguments.dropout, "--threads", threads, *flags, launcher=launcher)

    code = 0
    if on("step"):
        transformers = peers.with_packages()
        import torch

        folder = peers.bart_base()
        cells = peers.Comparison()
        updates = set()
        for batch, length in sizes:
            step, update = their_step(torch, folder, batch, length, arguments.dropout)
            updates.add(update)
            # A backward pass multiplies twice what a forward pass does: a product for each of its two factors.
            flop = 3 * (peers.encoder_flop(batch * length, length) + peers.decoder_flop(batch * length, length))
            for round_number in range(arguments.rounds):
                print(f"{batch} x {length}: round {round_number + 1} of {arguments.rounds}", file=sys.stderr)
                theirs = peers.timed(step)
                mine = ours(batch, length)["median_s"]
                cells.add(f"step {batch} x {length}", 0.97, theirs, mine)
            best = statistics.median(cells.cells[f"step {batch} x {length}"]["ours"])
            cells.cells[f"step {batch} x {length}"]["note"] = (
                f"{batch * length / best:.0f} tokens/s, {flop / best * 1e-9:.0f} GFLOP/s; sgemm alone "
                f"{sgemm(torch, batch * length) * 1e-9:.0f}")
            del step
        peers.heading(transformers, arguments.program, arguments,
                      f"; dropout {arguments.dropout} on both sides, their AdamW: {', '.join(sorted(updates))}")
        code = cells.report(arguments.json, "tokens a second, and operations of all of the step")

    if on("slots"):
        print(f"\n{'64 slots, horizon 1':28} {'without':>10} {'with':>10} {'more':>8}")
        for batch, length in sizes:
            plain, slots = [], []
            for _ in range(arguments.rounds):
                plain.append(ours(batch, length)["median_s"])
                slots.append(ours(batch, length, "--memory", "membart:64")["median_s"])
            a, b = statistics.median(plain), statistics.median(slots)
            print(f"{f'step {batch} x {length}':28} {1000 * a:8.0f}ms {1000 * b:8.0f}ms {100 * (b / a - 1):6.0f} %")

    if on("replay"):
        batch, length = sizes[0]
        print(f"\n{f'64 slots, {batch} x {length} a segment':28} {'peak':>10} {'replayed':>10} {'step':>10} {'replayed':>10}")
        flags = ("--memory", "membart:64", "--repeats", 3, "--warm-up", 1)
        for horizon in map(int, arguments.horizons.split(",")):
            plain = ours(batch, length, *flags, "--time-horizon", horizon)
            replayed = ours(batch, length, *flags, "--time-horizon", horizon, "--replay")
            print(f"{f'horizon {horizon}':28} {mib(plain['peak_bytes']):>10} {mib(replayed['peak_bytes']):>10} "
                  f"{1000 * plain['median_s']:8.0f}ms {1000 * replayed['median_s']:8.0f}ms")

    if on("processes"):
        if not shutil.which("mpirun"):
            print("\nno mpirun here (Debian: openmpi-bin)", file=sys.stderr)
            return code
        batch, length = sizes[0]
        os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        cells = {"1 process, 1 thread": (1, ()), "1 process, 2 threads": (2, ()),
                 "2 processes, 1 thread each": (1, ("mpirun", "-n", "2", "--oversubscribe"))}
        times = {name: [] for name in cells}
        for _ in range(arguments.rounds):
            for name, (threads, launcher) in cells.items():
                times[name].append(ours(batch, length, "--memory", "membart:64", threads=threads, launcher=launcher)
                                   ["median_s"])
        first = statistics.median(times["1 process, 1 thread"])
        print(f"\n{f'64 slots, {batch} x {length}':28} {'step':>10} {'tokens/s':>10} {'speed-up':>9}")
        for name, values in times.items():
            middle = statistics.median(values)
            print(f"{name:28} {1000 * middle:8.0f}ms {batch * length / middle:10.0f} {first / middle:9.2f}")
    return code


def sgemm(torch, rows):
    """Operations a second of one large product of the model's own sizes."""
    x, w = torch.randn(rows, 768), torch.randn(3072, 768)
    with torch.no_grad():
        spent = min(peers.timed(lambda: x @ w.t()) for _ in range(7))
    return 2 * rows * 768 * 3072 / spent


if __name__ == "__main__":
    sys.exit(main())
