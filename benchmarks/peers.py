# SPDX-License-Identifier: Apache-2.0
"""What the comparisons with other programs share: their packages, a BART-base, our program, tables of ratios."""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "palimpsest"
PACKAGES = ["torch==2.13.0", "transformers==5.24.0", "safetensors", "numpy"]


def set_threads(count):
    """Both sides work with as many threads, which wait alike: a long spin costs more than it gives where other work runs.
    To be called before torch is imported."""
    os.environ["OMP_NUM_THREADS"] = str(count)
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def with_packages():
    """Starts the script again in an environment that has transformers, where this one has not; returns it, quiet."""
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError:
        place = ROOT / "build" / "peers"
        python = place / "bin" / "python"
        if os.environ.get("PALIMPSEST_PEERS"):
            sys.exit("transformers cannot be imported even where it was installed")
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", place], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        os.execve(python, [str(python), *sys.argv], dict(os.environ, PALIMPSEST_PEERS="1"))
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def bart_base():
    """A folder of BART-base's sizes with random weights, made once."""
    from torch import manual_seed
    from transformers import BartConfig, BartForConditionalGeneration

    folder = ROOT / "build" / "benchmarks" / "bart_base"
    if not (folder / "model.safetensors").exists():
        manual_seed(0)
        BartForConditionalGeneration(BartConfig(
            encoder_layers=6, decoder_layers=6, d_model=768, encoder_attention_heads=12, decoder_attention_heads=12,
            encoder_ffn_dim=3072, decoder_ffn_dim=3072)).save_pretrained(folder)
    return folder


def bench(program, what, *flags, launcher=()):
    """`palimpsest bench WHAT`: one run after one to warm up, where the flags do not say otherwise."""
    counts = [] if "--repeats" in flags else ["--repeats", "1", "--warm-up", "1"]
    command = [*launcher, program, "bench", what, *counts, "--quiet", "--json", *map(str, flags)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {result.stderr}")
    return json.loads(result.stdout)


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def encoder_flop(rows, length):
    """Of BART-base's encoder reading `rows` tokens in sequences of `length`."""
    return 2 * rows * 6 * (4 * 768 * 768 + 2 * 768 * 3072) + 4 * rows * length * 768 * 6


def decoder_flop(rows, length):
    """Of its decoder, with as many source tokens, and of the logits."""
    return 2 * rows * (6 * (8 * 768 * 768 + 2 * 768 * 3072) + 768 * 50265) + 8 * rows * length * 768 * 6


class Comparison:
    """Named pairs of measurements, taken in turns; what is asked of the ratio of their medians (theirs / ours)."""

    def __init__(self):
        self.cells = {}

    def add(self, name, asked, theirs, ours, note=""):
        cell = self.cells.setdefault(name, {"asked": asked, "theirs": [], "ours": []})
        cell["theirs"].append(theirs)
        cell["ours"].append(ours)
        cell["note"] = note

    def results(self):
        for name, cell in self.cells.items():
            theirs, ours = statistics.median(cell["theirs"]), statistics.median(cell["ours"])
            yield {"name": name, "theirs_s": theirs, "ours_s": ours, "ratio": theirs / ours, "asked": cell["asked"],
                   "note": cell["note"]}

    def report(self, as_json, notes="what limits us"):
        """Prints the table; 1 where a ratio is below what is asked."""
        results = list(self.results())
        print(f"{'':40} {'theirs':>11} {'ours':>11} {'ratio':>7} {'asked':>6}  {notes}")
        for r in results:
            print(f"{r['name']:40} {1000 * r['theirs_s']:9.1f}ms {1000 * r['ours_s']:9.1f}ms {r['ratio']:7.2f} "
                  f"{r['asked']:6}  {r['note']}")
        if as_json:
            print(json.dumps(results))
        failed = [r["name"] for r in results if r["ratio"] < r["asked"]]
        for name in failed:
            print(f"below what is asked: {name}", file=sys.stderr)
        return 1 if failed else 0


def heading(transformers, program, arguments, more=""):
    from torch import __version__ as torch_version

    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split("\n")[0]
    print(f"transformers {transformers.__version__}, torch {torch_version}; {version}; {arguments.threads} threads, "
          f"float32, medians of {arguments.rounds} alternating runs{more}")


def common_arguments(parser):
    parser.add_argument("--program", default=str(PROGRAM))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", action="store_true")
