#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures benchmark_tokenizers against Hugging Face tokenizers, one thread on both sides.

    cmake --build --preset release --target benchmark_tokenizers
    python3 benchmarks/against_tokenizers.py SHARED_FOLDER [--runs 7] [--program build/release/benchmarks/benchmark_tokenizers]

Both encode the same lines in their own process: one pass to warm up, then one that is timed; ids, tokens and offsets are
produced. The two sides take turns. Prints medians and ratios (theirs / ours); exit code 1 when a ratio is below 1.
"""
import argparse
import gzip
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import venv

VERSION = "0.23.3"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def reference(kind, vocab):
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

    if kind == "bert":
        tokenizer = Tokenizer(models.WordPiece.from_file(str(vocab / "bert-base-uncased/vocab.txt"), unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.add_special_tokens(["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"])
    else:
        tokenizer = Tokenizer(models.BPE.from_file(str(vocab / "gpt2/encoder.json"), str(vocab / "gpt2/vocab.bpe")))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def run_reference(kind, vocab, file):
    """In a process of its own: prints milliseconds and the number of tokens."""
    tokenizer = reference(kind, pathlib.Path(vocab))
    lines = pathlib.Path(file).read_bytes().decode().split("\n")[:-1]
    tokenizer.encode_batch(lines, add_special_tokens=False)
    start = time.perf_counter()
    encodings = tokenizer.encode_batch(lines, add_special_tokens=False)
    spent = (time.perf_counter() - start) * 1000
    print(json.dumps({"ms": spent, "tokens": sum(len(e) for e in encodings)}))


def ensure_reference():
    """A Python that has the reference: this one, or one in a folder for environments."""
    try:
        import tokenizers  # noqa: F401

        return sys.executable
    except ImportError:
        pass
    folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "palimpsest" / "tokenizers-venv"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"tokenizers=={VERSION}"], check=True)
    return str(python)


def write_lines(shared, folder):
    """Two files of the same kinds of text: long lines (paragraphs, documents) and short ones (sentences)."""
    long_lines, short_lines = [], []
    for name in ["lm/books/Austen_Pride.txt", "lm/books/Dickens_Hard.txt", "lm/wikitext2/valid.txt"]:
        for line in (shared / "data" / name).read_bytes().decode().split("\n"):
            if len(line) >= 400:
                long_lines.append(line.strip("\r"))
    for name in ["mt/multi30k/train.en.gz", "mt/multi30k/train.de.gz"]:
        short_lines += gzip.open(shared / "data" / name).read().decode().split("\n")[:10000]
    cells = {"long lines": [l for l in long_lines if l], "short lines": [l for l in short_lines if l]}
    files = {}
    for name, lines in cells.items():
        files[name] = folder / (name.replace(" ", "_") + ".txt")
        files[name].write_bytes(("\n".join(lines) + "\n").encode())
        sizes = [len(line) for line in lines]
        print(f"{name}: {len(lines)} lines, {sum(sizes)} characters, {sum(sizes) / len(sizes):.0f} a line")
    return files


def time_ours(program, tokenizer, file):
    command = [program, f"--tokenizer={tokenizer}", f"--lines={file}", "--benchmark_format=json", "--benchmark_min_time=0.01"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **ONE_THREAD})
    entry = json.loads(result.stdout)["benchmarks"][0]
    return entry["real_time"], int(entry["tokens"])


def time_theirs(python, kind, vocab, file):
    command = [python, __file__, "--reference", kind, str(vocab), str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **ONE_THREAD})
    entry = json.loads(result.stdout)
    return entry["ms"], entry["tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--program", default="build/release/benchmarks/benchmark_tokenizers")
    options = parser.parse_args()
    python = ensure_reference()
    version = subprocess.run([python, "-c", "import tokenizers; print(tokenizers.__version__)"], capture_output=True, text=True)
    print(f"tokenizers {version.stdout.strip()}, Python {platform.python_version()}, {os.cpu_count()} cores, 1 thread on both sides")
    vocab = options.shared / "data/vocab"
    paths = {"bert": vocab / "bert-base-uncased/vocab.txt", "gpt2": vocab / "gpt2"}
    slower = False
    with tempfile.TemporaryDirectory() as folder:
        files = write_lines(options.shared, pathlib.Path(folder))
        print(f"{'cell':24}{'ours ms':>12}{'theirs ms':>12}{'ratio':>8}   (medians of {options.runs})")
        for kind, path in paths.items():
            for name, file in files.items():
                ours, theirs = [], []
                for _ in range(options.runs):
                    ours.append(time_ours(options.program, path, file))
                    theirs.append(time_theirs(python, kind, vocab, file))
                if {count for _, count in ours} != {count for _, count in theirs}:
                    sys.exit(f"error: {kind}, {name}: {ours[0][1]} tokens here, {theirs[0][1]} there")
                a, b = (statistics.median(ms for ms, _ in side) for side in (ours, theirs))
                slower = slower or b / a < 1
                print(f"{kind + ', ' + name:24}{a:12.1f}{b:12.1f}{b / a:8.2f}", flush=True)
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--reference"]:
        run_reference(*sys.argv[2:5])
    else:
        main()
