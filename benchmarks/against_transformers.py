#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Palimpsest against transformers, in one run on one machine.

    python3 benchmarks/against_transformers.py [--program build/palimpsest] [--rounds 7] [--threads 2] [--only load,generate]

BART-base sizes with random weights, float32, the same number of threads on both sides. Each round measures both sides
one after the other; the table gives medians, their ratio (theirs / ours) and what limits us. Exits 1 where a ratio is
below what is asked: 5 for loading, 3 for the first logits, 0.97 for generation and forward, 2 for int8 against float32.
Missing packages are installed into a virtual environment under build/.
"""

import argparse
import sys
import time

import peers


def main():
    parser = argparse.ArgumentParser()
    peers.common_arguments(parser)
    parser.add_argument("--only", default="", help="parts, comma between: load, forward, generate, int8")
    arguments = parser.parse_args()
    peers.set_threads(arguments.threads)
    transformers = peers.with_packages()
    import torch
    from transformers import BartForConditionalGeneration

    torch.set_grad_enabled(False)
    folder = peers.bart_base()

    def ours(what, *flags):
        return peers.bench(arguments.program, what, "--model", folder, "--threads", arguments.threads, *flags)

    model = BartForConditionalGeneration.from_pretrained(folder).eval()
    eight = torch.tensor([[0, 713, 16, 10, 1296, 6, 98, 2]])

    def load():
        start = time.perf_counter()
        fresh = BartForConditionalGeneration.from_pretrained(folder).eval()
        loaded = time.perf_counter() - start
        fresh(input_ids=eight, decoder_input_ids=eight)
        return loaded, time.perf_counter() - start

    def forward(batch, length):
        ids = torch.randint(4, 50000, (batch, length))
        return peers.timed(lambda: model(input_ids=ids, decoder_input_ids=ids, use_cache=False))

    def generate(length, beams):
        ids = torch.randint(4, 50000, (1, length))
        return peers.timed(lambda: model.generate(ids, attention_mask=torch.ones_like(ids), num_beams=beams,
                                                  do_sample=False, min_new_tokens=20, max_new_tokens=20))

    cells = peers.Comparison()
    wanted = set(filter(None, arguments.only.split(",")))
    on = lambda part: not wanted or part in wanted
    # Bytes of weights that one step reads: the decoder without the source's keys and values, and the embedding.
    step_bytes = 4 * (6 * (4 * 768 * 768 + 2 * 768 * 768 + 2 * 768 * 3072) + 768 * 50265)
    if on("forward") or on("generate"):  # warm up
        forward(1, 64)
        generate(64, 1)
    for round_number in range(arguments.rounds):
        print(f"round {round_number + 1} of {arguments.rounds}", file=sys.stderr)
        if on("load"):
            loaded, answered = load()
            mine = ours("load")
            cells.add("load, 558 MB", 5, loaded, mine["median_s"], "page table")
            cells.add("to the first logits, 8 tokens", 3, answered, mine["first_logits_s"], "reading every weight once")
        if on("forward"):
            for batch, length in ((4, 128), (2, 512)):
                theirs = forward(batch, length)
                mine = ours("forward", "--batch", batch, "--length", length)["median_s"]
                flop = peers.encoder_flop(batch * length, length) + peers.decoder_flop(batch * length, length)
                cells.add(f"forward {batch} x {length}", 0.97, theirs, mine, f"{flop / mine * 1e-9:.0f} GFLOP/s in sgemm")
        if on("generate") or on("int8"):
            for length in (64, 1024):
                for beams in (1, 4):
                    name = "greedy" if beams == 1 else f"beam {beams}"
                    flags = ("--length", length, "--num-beams", beams)
                    mine = ours("generate", *flags)
                    # A step of beams has one row a beam, the weights are read once for all of them.
                    limit = f"weights at {step_bytes / mine['seconds_per_token'] * 1e-9:.1f} GB/s a step"
                    if on("generate"):
                        cells.add(f"{name}, source {length}, 20 tokens", 0.97, generate(length, beams), mine["median_s"],
                                  limit)
                    if on("int8") and length == 64:
                        small = ours("generate", *flags, "--dtype", "int8")
                        cells.add(f"a step, {name}: float32 / int8", 2, mine["seconds_per_token"],
                                  small["seconds_per_token"],
                                  f"weights at {step_bytes / 4 / small['seconds_per_token'] * 1e-9:.1f} GB/s a step")
    isa = ours("generate", "--max-new-tokens", 2)["isa"]
    peers.heading(transformers, arguments.program, arguments, f", {isa}")
    return cells.report(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
