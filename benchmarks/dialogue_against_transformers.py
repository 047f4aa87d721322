#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a turn of a long conversation costs: a memory of fixed size against models that read the history again.

    python3 benchmarks/dialogue_against_transformers.py SHARED_FOLDER [--program build/palimpsest] [--turns 60] [--threads 2]
        [--memory membart:64] [--window 128] [--attention-window 1024]

Ours: `palimpsest chat` in a pipe, BART-base sizes with a memory. Theirs: transformers' LED of LED-base's sizes, which reads
up to 2048 tokens of the history at each turn, and BART-base, which reads up to 1024; sdpa where they have it, the first
token global in LED. All have random weights; the utterances are those of MSC (about 30 tokens with the speaker's name),
the answers 20 tokens, greedy. At each turn the three answer one after the other; a turn lasts from the utterance to the
whole answer. Prints seconds a turn, bytes kept between turns and in the turn, and the ratios beside the paper's 11.15 (LED to
MemBART). Exits 1 where LED / ours over the last turns is below what --asked says.
"""

import argparse
import gzip
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import peers

NEW_TOKENS = 20
PAPER = 11.15


def utterances(shared, count):
    """Turns of real conversations, one after the other."""
    found = []
    with gzip.open(shared / "data/dialogue/msc/session_2_test.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            found += [" ".join(turn["text"].split()) for turn in json.loads(line)["dialog"]]
            if len(found) >= count:
                return [text[1:] if text.startswith("/") else text for text in found[:count]]
    sys.exit("too few utterances")


def our_folder(program, base, memory, vocabulary):
    """BART-base with a memory beside it and the tokenizer of its vocabulary."""
    folder = base.parent / ("bart_base_" + memory.replace(":", "_").replace(",", "_"))
    if not (folder / "model.safetensors").exists():
        subprocess.run([program, "convert", base, "--out", folder, "--memory", memory, "--quiet"], check=True,
                       stdout=subprocess.DEVNULL)
    for name in ("vocab.json", "merges.txt"):
        if not (folder / name).exists():
            shutil.copyfile(vocabulary / name, folder / name)
    return folder


class Ours:
    """A conversation with the program; one line in, one line of JSON out."""

    def __init__(self, arguments, folder, session):
        self.session = session
        self.process = subprocess.Popen(
            [arguments.program, "chat", "--model", folder, "--session", session, "--window", str(arguments.window),
             "--max-new-tokens", str(NEW_TOKENS), "--min-new-tokens", str(NEW_TOKENS), "--threads",
             str(arguments.threads), "--json", "--quiet"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def answer(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the program ended with {self.process.wait()}")
        self.last = json.loads(line)
        if self.last["tokens"] != NEW_TOKENS:
            sys.exit(f"{self.last['tokens']} tokens were written, not {NEW_TOKENS}")

    def kept(self):
        return self.last["memory_bytes"] + 4 * self.last["context_tokens"]

    def end(self):
        self.process.stdin.close()
        self.process.wait()


class Theirs:
    """A model that reads the history, as much of it as it may, at each turn."""

    def __init__(self, torch, model, limit, marks_first):
        self.torch, self.model, self.limit, self.marks_first = torch, model.eval(), limit, marks_first
        self.history = []

    def answer(self, ids):
        self.history += ids
        row = [0] + self.history[-(self.limit - 2):] + [2]
        source = self.torch.tensor([row])
        more = {}
        if self.marks_first:
            more["global_attention_mask"] = self.torch.zeros_like(source)
            more["global_attention_mask"][:, 0] = 1
        written = self.model.generate(source, attention_mask=self.torch.ones_like(source), do_sample=False, num_beams=1,
                                      min_new_tokens=NEW_TOKENS, max_new_tokens=NEW_TOKENS, **more)
        self.read = len(row)
        self.history += written[0, -NEW_TOKENS:].tolist()

    def kept(self):
        return 4 * min(len(self.history), self.limit)

    def in_a_turn(self):
        """The encoder's rows, and their keys and values for each decoder layer."""
        config = self.model.config
        return 4 * self.read * config.d_model * (1 + 2 * config.decoder_layers)


def kib(count):
    return f"{count / 1024:.1f} KiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared", type=pathlib.Path)
    peers.common_arguments(parser)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--memory", default="membart:64")
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--attention-window", type=int, default=1024, help="of LED")
    parser.add_argument("--asked", type=float, default=PAPER, help="LED / ours over the last turns")
    arguments = parser.parse_args()
    peers.set_threads(arguments.threads)
    transformers = peers.with_packages()
    import torch

    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    base = peers.bart_base()
    folder = our_folder(arguments.program, base, arguments.memory, arguments.shared / "data/vocab/roberta-base")
    led = transformers.LEDForConditionalGeneration(transformers.LEDConfig(
        encoder_layers=6, decoder_layers=6, d_model=768, encoder_attention_heads=12, decoder_attention_heads=12,
        encoder_ffn_dim=3072, decoder_ffn_dim=3072, max_encoder_position_embeddings=16384,
        attention_window=arguments.attention_window))
    texts = utterances(arguments.shared, arguments.turns)
    said = subprocess.run([arguments.program, "tokenize", "--tokenizer", folder, "--json-lines"], check=True, text=True,
                          capture_output=True, input="".join(json.dumps(f"A: {text}\n\n") + "\n" for text in texts))
    ids = [json.loads(line)["ids"] for line in said.stdout.splitlines()]
    with tempfile.TemporaryDirectory() as place:
        ours = Ours(arguments, folder, pathlib.Path(place) / "session")
        sides = {"ours": ours, "LED": Theirs(torch, led, 2048, True),
                 "BART": Theirs(torch, transformers.BartForConditionalGeneration.from_pretrained(base), 1024, False)}
        times = {name: [] for name in sides}
        for turn, (text, row) in enumerate(zip(texts, ids)):
            print(f"turn {turn + 1} of {arguments.turns}", end="\r", file=sys.stderr)
            for name, side in sides.items():
                times[name].append(peers.timed(lambda: side.answer(text if name == "ours" else row)))
        ours.end()
        file_bytes = ours.session.stat().st_size

    version = subprocess.run([arguments.program, "--version"], capture_output=True, text=True).stdout.split("\n")[0]
    print(f"transformers {transformers.__version__}, torch {torch.__version__}; {version}; {arguments.threads} threads, "
          f"float32; {arguments.memory}, window {arguments.window}; LED's attention window {arguments.attention_window}; "
          f"{statistics.mean(map(len, ids)):.0f} tokens an utterance, {NEW_TOKENS} an answer")
    print(f"{'a turn in ms':28} {'ours':>9} {'LED':>9} {'BART':>9} {'LED/ours':>9} {'BART/ours':>10}")

    def row(name, pick):
        a, b, c = (pick(times[side]) for side in ("ours", "LED", "BART"))
        print(f"{name:28} {1000 * a:9.0f} {1000 * b:9.0f} {1000 * c:9.0f} {b / a:9.2f} {c / a:10.2f}")
        return b / a

    for turn in (1, 10, 30, 60):
        if turn <= arguments.turns:
            row(f"turn {turn}", lambda values: values[turn - 1])
    first = max(1, arguments.turns - 10)
    ratio = row(f"median of turns {first}-{arguments.turns}", lambda values: statistics.median(values[first - 1:]))
    row(f"all {arguments.turns} turns", sum)
    print(f"the paper's LED / MemBART: {PAPER}")
    print(f"kept between turns: ours {kib(ours.kept())} (memory and last {ours.last['context_tokens']} tokens; the session "
          f"file with its rewinds {kib(file_bytes)}); token ids of the history: LED {kib(sides['LED'].kept())}, BART "
          f"{kib(sides['BART'].kept())}")
    print(f"encoder rows, keys and values that the last turn made from the history: LED {kib(sides['LED'].in_a_turn())} "
          f"of {sides['LED'].read} tokens, BART {kib(sides['BART'].in_a_turn())} of {sides['BART'].read}")
    if arguments.json:
        print(json.dumps({"seconds": times, "ratio": ratio}))
    if ratio < arguments.asked:
        print(f"below what is asked: {ratio:.2f} of {arguments.asked}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
