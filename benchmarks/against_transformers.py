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
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ["torch==2.13.0", "transformers==5.24.0", "safetensors", "numpy"]


def with_packages():
    """Starts itself again in an environment that has transformers, where this one has not."""
    try:
        import transformers  # noqa: F401
        import torch  # noqa: F401
    except ImportError:
        place = ROOT / "build" / "peers"
        python = place / "bin" / "python"
        if os.environ.get("PALIMPSEST_PEERS"):
            sys.exit("transformers cannot be imported even where it was installed")
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", place], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        os.execve(python, [str(python), *sys.argv], dict(os.environ, PALIMPSEST_PEERS="1"))


def median(values):
    return statistics.median(values)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default=str(ROOT / "build" / "palimpsest"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="parts, comma between: load, forward, generate, int8")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    with_packages()
    import torch
    import transformers
    from transformers import BartConfig, BartForConditionalGeneration

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    folder = ROOT / "build" / "benchmarks" / "bart_base"
    if not (folder / "model.safetensors").exists():
        torch.manual_seed(0)
        BartForConditionalGeneration(BartConfig(
            encoder_layers=6, decoder_layers=6, d_model=768, encoder_attention_heads=12, decoder_attention_heads=12,
            encoder_ffn_dim=3072, decoder_ffn_dim=3072)).save_pretrained(folder)

    def ours(what, *flags):
        command = [arguments.program, "bench", what, "--model", str(folder), "--repeats", "1", "--warm-up", "1",
                   "--threads", str(arguments.threads), "--quiet", "--json", *map(str, flags)]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    model = BartForConditionalGeneration.from_pretrained(folder).eval()
    eight = torch.tensor([[0, 713, 16, 10, 1296, 6, 98, 2]])

    def timed(work):
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def load():
        start = time.perf_counter()
        fresh = BartForConditionalGeneration.from_pretrained(folder).eval()
        loaded = time.perf_counter() - start
        fresh(input_ids=eight, decoder_input_ids=eight)
        return loaded, time.perf_counter() - start

    def forward(batch, length):
        ids = torch.randint(4, 50000, (batch, length))
        return timed(lambda: model(input_ids=ids, decoder_input_ids=ids, use_cache=False))

    def generate(length, beams):
        ids = torch.randint(4, 50000, (1, length))
        return timed(lambda: model.generate(ids, attention_mask=torch.ones_like(ids), num_beams=beams, do_sample=False,
                                            min_new_tokens=20, max_new_tokens=20))

    # name -> (what is asked, their seconds, our seconds, what limits us)
    cells = {}

    def add(name, asked, theirs, mine, limit):
        cell = cells.setdefault(name, {"asked": asked, "theirs": [], "ours": []})
        cell["theirs"].append(theirs)
        cell["ours"].append(mine)
        cell.setdefault("limits", []).append(limit)

    wanted = set(filter(None, arguments.only.split(",")))
    on = lambda part: not wanted or part in wanted
    # Bytes of weights that one step reads: the decoder without the source's keys and values, and the embedding.
    step_bytes = 4 * (6 * (4 * 768 * 768 + 2 * 768 * 768 + 2 * 768 * 3072) + 768 * 50265)
    encoder_flop = lambda rows, length: 2 * rows * 6 * (4 * 768 * 768 + 2 * 768 * 3072) + 4 * rows * length * 768 * 6
    decoder_flop = lambda rows, length: (2 * rows * (6 * (8 * 768 * 768 + 2 * 768 * 3072) + 768 * 50265)
                                         + 8 * rows * length * 768 * 6)
    if on("forward") or on("generate"):  # warm up
        forward(1, 64)
        generate(64, 1)
    for round_number in range(arguments.rounds):
        print(f"round {round_number + 1} of {arguments.rounds}", file=sys.stderr)
        if on("load"):
            loaded, answered = load()
            mine = ours("load")
            add("load, 558 MB", 5, loaded, mine["median_s"], "page table")
            add("to the first logits, 8 tokens", 3, answered, mine["first_logits_s"], "reading every weight once")
        if on("forward"):
            for batch, length in ((4, 128), (2, 512)):
                theirs = forward(batch, length)
                mine = ours("forward", "--batch", batch, "--length", length)["median_s"]
                flop = encoder_flop(batch * length, length) + decoder_flop(batch * length, length)
                add(f"forward {batch} x {length}", 0.97, theirs, mine, f"{flop / mine * 1e-9:.0f} GFLOP/s in sgemm")
        if on("generate") or on("int8"):
            for length in (64, 1024):
                for beams in (1, 4):
                    name = "greedy" if beams == 1 else f"beam {beams}"
                    flags = ("--length", length, "--num-beams", beams)
                    mine = ours("generate", *flags)
                    # A step of beams has one row a beam, the weights are read once for all of them.
                    limit = f"weights at {step_bytes / mine['seconds_per_token'] * 1e-9:.1f} GB/s a step"
                    if on("generate"):
                        add(f"{name}, source {length}, 20 tokens", 0.97, generate(length, beams), mine["median_s"], limit)
                    if on("int8") and length == 64:
                        small = ours("generate", *flags, "--dtype", "int8")
                        add(f"a step, {name}: float32 / int8", 2, mine["seconds_per_token"], small["seconds_per_token"],
                            f"weights at {step_bytes / 4 / small['seconds_per_token'] * 1e-9:.1f} GB/s a step")

    isa = ours("generate", "--max-new-tokens", 2)["isa"]
    version = subprocess.run([arguments.program, "--version"], capture_output=True, text=True).stdout.split("\n")[0]
    failed = []
    print(f"transformers {transformers.__version__}, torch {torch.__version__}; {version}; {arguments.threads} threads, "
          f"{isa}, float32, medians of {arguments.rounds} alternating runs")
    print(f"{'':40} {'theirs':>10} {'ours':>10} {'ratio':>7} {'asked':>6}  what limits us")
    results = []
    for name, cell in cells.items():
        theirs, mine = median(cell["theirs"]), median(cell["ours"])
        ratio = theirs / mine
        if ratio < cell["asked"]:
            failed.append(name)
        print(f"{name:40} {1000 * theirs:8.1f}ms {1000 * mine:8.1f}ms {ratio:7.2f} {cell['asked']:6}  {cell['limits'][-1]}")
        results.append({"name": name, "theirs_s": theirs, "ours_s": mine, "ratio": ratio, "asked": cell["asked"]})
    if arguments.json:
        print(json.dumps(results))
    for name in failed:
        print(f"below what is asked: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
