#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time and memory of every attention mechanism against the length of the text.

    python3 benchmarks/attention_lengths.py [--program build/palimpsest] [--threads 2] [--longest 32768] [--out docs/figures]

One layer, 12 heads of 64, batch 1, float32, forward; causal where the mechanism can be, else as in an encoder. Medians of
three runs after one to warm up. Peak bytes are those of tensors beyond inputs and outputs. Writes attention_lengths.md (the
table) and, with gnuplot, attention_time and attention_memory as SVG and PNG. Exits 1 where window, chunk or lsh are not
linear (over 2.5 times as long for twice the text, from 8192 on) or where the registry has a mechanism that is not listed here.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

import peers

HEADS, WIDTH = 12, 64
# The text of each, and how far it goes: those that cost the square of the length end earlier.
TEXTS = {
    "dense": ("dense", 32768), "chunk": ("chunk:512", None), "window": ("window:256", None),
    "dilated": ("dilated:window=64,gap=4", None), "strided": ("strided:64", 4096),
    "global": ("global:first=16,window=256", None), "lsh": ("lsh:bucket=64,rounds=2", None),
    "linformer": ("linformer:32,max=32768", None), "compressive": ("compressive:window=128,slots=32,rate=4", None),
    "random": ("random:32", None), "cluster": ("cluster:32", None), "workspace": ("workspace:32", None),
    "exact": ("exact", 2048), "abc": ("abc:32", None),
}
LINEAR = ("window", "chunk", "lsh")


def draw(out, name, title, unit, rows, lengths, key, scale):
    """A curve a mechanism, both axes logarithmic."""
    if not shutil.which("gnuplot"):
        print(f"gnuplot is missing: no {name}", file=sys.stderr)
        return
    blocks, plots = [], []
    for index, (text, found) in enumerate(rows):
        points = [(length, found[length][key] * scale) for length in lengths if length in found]
        blocks.append("\n".join(f"{x} {max(y, 1e-4):.6g}" for x, y in points))
        plots.append(f"'-' with linespoints linewidth 2 pointtype {index % 14 + 1} title '{text.replace('_', ' ')}'")
    for format_, terminal in (("svg", "svg size 960,600 background 'white'"), ("png", "pngcairo size 960,600")):
        script = (f"set terminal {terminal}\nset output '{out / f'{name}.{format_}'}'\nset logscale xy\n"
                  f"set title '{title}'\nset xlabel 'tokens'\nset ylabel '{unit}'\nset grid\nset key outside right noenhanced\n"
                  f"set xtics ({', '.join(str(length) for length in lengths)})\n"
                  f"plot {', '.join(plots)}\n" + "\ne\n".join(blocks) + "\ne\n")
        subprocess.run(["gnuplot"], input=script, text=True, check=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default=peers.PROGRAM)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--longest", type=int, default=32768)
    parser.add_argument("--out", default=peers.ROOT / "build" / "benchmarks" / "attention", type=pathlib.Path)
    flags = parser.parse_args()
    flags.out.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run([flags.program, "bench", "mechanisms", "--json"], capture_output=True, text=True, check=True)
    kinds = [json.loads(line) for line in listed.stdout.splitlines()]
    failed = [f"{kind['name']} is not measured here" for kind in kinds if kind["name"] not in TEXTS]
    lengths = [length for length in (512, 1024, 2048, 4096, 8192, 16384, 32768) if length <= flags.longest]
    with open("/proc/cpuinfo") as info:
        machine = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "unknown")
    rows, isa = [], ""
    for kind in kinds:
        if kind["name"] not in TEXTS:
            continue
        text, most = TEXTS[kind["name"]]
        causal = "causal" in kind["uses"]
        found = {}
        for length in lengths:
            if most and length > most:
                continue
            found[length] = peers.bench(flags.program, "attention", "--attention", text, "--heads", HEADS, "--head-dim",
                                        WIDTH, "--length", length, "--threads", flags.threads, "--repeats", 3, "--warm-up",
                                        1, *(["--causal"] if causal else []))
            isa = found[length]["isa"]
        rows.append((text if causal else f"{text} (encoder)", found))
        print(f"{text:40}" + "".join(f" {1000 * found[length]['median_s']:9.1f}" for length in found), flush=True)
        if kind["name"] in LINEAR:
            for length in found:
                if length >= 8192 and 2 * length in found:
                    growth = found[2 * length]["median_s"] / found[length]["median_s"]
                    if growth > 2.5:
                        failed.append(f"{text}: {growth:.2f} times as long from {length} to {2 * length}")
    with open(flags.out / "attention_lengths.md", "w") as table:
        print(f"{machine}, {flags.threads} threads, {isa}; ms, and MB beyond inputs and outputs.\n", file=table)
        print("| | " + " | ".join(str(length) for length in lengths) + " |", file=table)
        print("| --- |" + " --- |" * len(lengths), file=table)
        for text, found in rows:
            cells = [f"{1000 * found[n]['median_s']:.3g} ms, {found[n]['peak_bytes'] / 1e6:.3g} MB" if n in found else ""
                     for n in lengths]
            print(f"| `{text}` | " + " | ".join(cells) + " |", file=table)
    draw(flags.out, "attention_time", "one layer forwards, 12 heads of 64", "ms", rows, lengths, "median_s", 1000)
    draw(flags.out, "attention_memory", "peak of tensors beyond inputs and outputs", "MB", rows, lengths, "peak_bytes", 1e-6)
    for each in failed:
        print(f"below what is asked: {each}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
