#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Causal attention over slots (abc) against at::scaled_dot_product_attention, in one run on one machine.

    python3 benchmarks/causal_abc.py [--program build/palimpsest] [--rounds 7] [--threads 2] [--length 8192]

12 heads of 64, 32 slots, batch 1, float32. Both sides take turns; medians of the rounds. The control is given, as queries
are: what its projection costs stands beside it. Then: time a token at 65536 tokens, a decoding step after 100,000 tokens
and after 100, and a decoder's look at sources of 64 to 16384 tokens through 32 slots and through all keys.

Exits 1 where abc is not at least 8 times as fast forwards and 6 times with gradients, where a token at 65536 costs over 10 %
more than at the shorter length, where a step after 100,000 tokens costs over 10 % more than after 100, or where reading a
source through slots grows with the source by more than a tenth.
"""

import argparse
import os
import statistics
import sys

import peers

HEADS, WIDTH, SLOTS = 12, 64, 32
ASKED = {"forward": 8, "with gradients": 6}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default=peers.PROGRAM)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--length", type=int, default=8192)
    flags = parser.parse_args()
    failed = []

    def run(attention, *more):
        return peers.bench(flags.program, "attention", "--attention", attention, "--heads", HEADS, "--head-dim", WIDTH,
                           "--threads", flags.threads, *more)

    def alternate(kinds, *more):
        """Medians of all figures, each kind in turn in every round."""
        found = {kind: [] for kind in kinds}
        for _ in range(flags.rounds):
            for kind in kinds:
                found[kind].append(run(kind, *more))
        return {kind: {key: statistics.median(r[key] for r in runs) for key in runs[0]
                       if isinstance(runs[0][key], (int, float))} | {"isa": runs[0]["isa"]}
                for kind, runs in found.items()}

    abc = f"abc:{SLOTS}"
    kinds = ["sdpa", abc, f"{abc},normalizer=frozen"]
    with open("/proc/cpuinfo") as info:
        machine = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "unknown")
    print(f"{machine}, {flags.threads} threads; {HEADS} heads of {WIDTH}, {SLOTS} slots, length {flags.length}, "
          f"medians of {flags.rounds} alternating runs")
    for what, more in (("forward", []), ("with gradients", ["--backward"])):
        found = alternate(kinds, "--causal", "--length", flags.length, *more)
        for kind in kinds:
            seconds = found[kind]["median_s"]
            ratio = found["sdpa"]["median_s"] / seconds
            line = f"{what:15} {kind:24} {1000 * seconds:9.1f} ms"
            if kind != "sdpa":
                # Moving and reading a number of a slot: 2 + 1 operations, a multiply-add counted as two, keys and values.
                line += (f"  {ratio:5.1f} times sdpa, control {1000 * found[kind]['control_s']:.1f} ms, "
                         f"peak {found[kind]['peak_bytes'] / 1e6:.1f} MB, {found[kind]['isa']}")
                if not more:
                    flop = 2 * 5 * flags.length * HEADS * SLOTS * WIDTH
                    line += f", {flop / seconds / 1e9:.0f} GFLOP/s"
                if ratio < ASKED[what]:
                    failed.append(f"{kind}, {what}: {ratio:.1f} times, {ASKED[what]} asked")
                if not more and found[kind]["peak_bytes"] > 64e6:
                    failed.append(f"{kind}: {found[kind]['peak_bytes'] / 1e6:.0f} MB beyond inputs and outputs")
            print(line, flush=True)

    long = 65536
    short_s, long_s = [], []
    for _ in range(flags.rounds):
        short_s.append(run(abc, "--causal", "--length", flags.length)["median_s"] / flags.length)
        long_s.append(run(abc, "--causal", "--length", long)["median_s"] / long)
    growth = statistics.median(long_s) / statistics.median(short_s)
    print(f"a token at {long}: {1e6 * statistics.median(long_s):.3f} us, at {flags.length}: "
          f"{1e6 * statistics.median(short_s):.3f} us ({growth:.2f})", flush=True)
    if growth > 1.1:
        failed.append(f"a token at {long} costs {growth:.2f} times one at {flags.length}")

    steps = {100: [], 100000: []}
    for _ in range(flags.rounds):
        for after, seconds in steps.items():
            seconds.append(run(abc, "--causal", "--length", 1000, "--after", after)["seconds_per_step"])
    early, late = (statistics.median(steps[after]) for after in (100, 100000))
    print(f"a step after 100 tokens: {1e6 * early:.1f} us, after 100,000: {1e6 * late:.1f} us ({late / early:.2f})",
          flush=True)
    if late / early > 1.1:
        failed.append(f"a step after 100,000 tokens costs {late / early:.2f} times one after 100")

    print("a decoder's look at its source, one query, us:")
    through_slots = []
    for source in (64, 256, 1024, 4096, 16384):
        found = alternate([abc, "dense"], "--length", 1, "--source-length", source, "--repeats", 200, "--warm-up", 20)
        through_slots.append(found[abc]["median_s"])
        print(f"  source {source:6} {abc} {1e6 * found[abc]['median_s']:8.1f}   dense "
              f"{1e6 * found['dense']['median_s']:8.1f}", flush=True)
    if max(through_slots) > 1.1 * min(through_slots):
        failed.append(f"through slots a look costs {max(through_slots) / min(through_slots):.2f} times more at worst")
    for each in failed:
        print(f"below what is asked: {each}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
