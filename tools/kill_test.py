#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills a training and a conversation at random moments and looks whether anything was lost.

    python3 tools/kill_test.py [--program build/palimpsest] [--kills 200] [--minutes 30] [--seed 0] [--only train,chat]

SIGKILL, at a random moment or while a file is being written. After each kill of a training: the newest checkpoint is not
older than before and `palimpsest inspect` accepts it, metrics.jsonl is lines of JSON, at most two temporaries lie about, and
the same command goes on from that checkpoint. At the end weights, optimiser and metrics equal those of a run that was
never killed, bit for bit. After each kill of a conversation: the session file holds every exchange whose answer was
printed and at most one more, inspect accepts it, the same command goes on from it and clears temporaries away. At the
end it equals the file of the same conversation never killed. Exit code 1 on any loss.
"""

import argparse
import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

RECIPE = """
vocab_size = 300
memory = "membart:4"
d_model = 16
heads = 2
ffn_dim = 24
encoder_layers = 1
decoder_layers = 1
dropout = 0.1
segment = 8
lanes = 4
time_horizon = 2
document = "line"
tasks = {recall = 0.5, next = 0.5}
lr_scheduler_type = "constant"
save_steps = 3
eval_steps = 0
logging_steps = 1
"""


class Lost(Exception):
    pass


def check(holds, what):
    if not holds:
        raise Lost(what)


def temporaries(folder):
    return [path for path in folder.iterdir() if ".tmp-" in path.name]


class Killer:
    """Starts a command and kills it: at a random moment, or a moment after a temporary appears."""

    def __init__(self, draw, folder):
        self.draw, self.folder = draw, folder
        self.start_up = 1.0  # seconds until the program does its work, learnt on the way
        self.while_writing = 0

    def run(self, command, out, err, begun, stdin=subprocess.DEVNULL):
        """False where the command ended by itself. `begun` tells whether it does its work yet."""
        start = time.monotonic()
        process = subprocess.Popen(command, stdin=stdin, stdout=out, stderr=err)
        kind = self.draw.random()
        early = kind < 0.15
        deadline = start + (self.draw.uniform(0, 1.2) * self.start_up if early else 60)
        known = {path.name for path in temporaries(self.folder)}
        try:
            seen = None
            while time.monotonic() < deadline and process.poll() is None:
                if not early and seen is None and begun():
                    seen = time.monotonic()
                    self.start_up = 0.7 * self.start_up + 0.3 * (seen - start)
                    if kind < 0.6:
                        deadline = seen + self.draw.uniform(0, 0.5)
                if seen is not None and kind >= 0.6:
                    # Half of the kills are aimed at a write: they wait for the temporary's name.
                    if any(path.name not in known for path in temporaries(self.folder)):
                        time.sleep(self.draw.uniform(0, 0.004))
                        self.while_writing += 1
                        break
                    time.sleep(0.0002)
                else:
                    time.sleep(0.001)
        finally:
            ended = process.poll() is not None
            if not ended:
                process.send_signal(signal.SIGKILL)
            process.wait()
        return not ended


def output_of(command, **more):
    result = subprocess.run(command, capture_output=True, text=True, **more)
    return result.returncode, result.stdout, result.stderr


def newest(run):
    steps = [int(path.name[11:]) for path in run.glob("checkpoint-*")
             if path.name[11:].isdigit() and (path / "trainer_state.json").exists()] if run.exists() else []
    return max(steps, default=0)


def metrics_of(run):
    """Steps and what follows from them, without times."""
    lines = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            raise Lost(f"metrics.jsonl holds the line {line!r}") from None
        lines.append({key: value for key, value in values.items()
                      if key not in ("tokens_per_second", "step_seconds", "resident_bytes")})
    return lines


def train_kills(arguments, draw, folder, until):
    words = lambda: " ".join("".join(draw.choice("abcdefghijkl") for _ in range(draw.randint(1, 6))) for _ in range(40))
    (folder / "text.txt").write_text("".join(words() + "\n" for _ in range(40)))
    (folder / "recipe.toml").write_text(RECIPE)
    run = folder / "killed"

    def command(output, steps, *more):
        return [arguments.program, "train", folder / "recipe.toml", "--data", folder / "text.txt", "--threads", "1",
                "--output-dir", folder / output, "--max-steps", str(steps), *more]

    # What the first run learns of the text is shared: a kill before the first checkpoint would lose it.
    code, _, said = output_of(command("first", 1))
    check(code == 0, f"the first training failed: {said}")
    shared = ["--tokenizer", folder / "first/tokenizer", "--cache-dir", folder / "cache"]
    run.mkdir()
    killer = Killer(draw, run)
    kills, resumed, before = 0, 0, 0
    while kills < arguments.kills and time.monotonic() < until:
        log = folder / "train.err"
        with open(log, "w") as err:
            killed = killer.run(command("killed", 1000000, *shared), subprocess.DEVNULL, err, lambda: newest(run) > before)
        said = log.read_text()
        check(killed, f"the training ended by itself: {said}")
        kills += 1
        after = newest(run)
        check(after >= before, f"checkpoint {before} is gone, the newest is {after}")
        if "resumed from" in said:
            resumed += 1
            check(f"(step {before})" in said, f"went on from elsewhere than step {before}: {said}")
        if after:
            code, _, said = output_of([arguments.program, "inspect", run / f"checkpoint-{after}"])
            check(code == 0, f"inspect refuses checkpoint-{after}: {said}")
        if (run / "metrics.jsonl").exists():
            metrics_of(run)
        check(len(temporaries(run)) <= 2, f"temporaries pile up: {temporaries(run)}")
        before = after
        print(f"training: {kills} kills, step {after}", end="\r", file=sys.stderr)
    steps = before + 5
    for name in ("killed", "whole"):
        code, _, said = output_of(command(name, steps, *shared))
        check(code == 0, f"the training cannot end: {said}")
    check(not temporaries(run), f"temporaries are left: {temporaries(run)}")
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, other = (folder / side / f"checkpoint-{steps}" / name for side in ("killed", "whole"))
        check(one.read_bytes() == other.read_bytes(), f"{name} is another after {kills} kills")
    check(metrics_of(run) == metrics_of(folder / "whole"), "metrics.jsonl is another")
    return {"kills": kills, "while writing": killer.while_writing, "resumed": resumed, "ends at": f"step {steps}"}


def chat_kills(arguments, draw, folder, until):
    place = folder / "chat"
    place.mkdir()
    session = place / "talk.session"
    lines = folder / "lines.txt"
    chat = [arguments.program, "chat", "--model", str(ROOT / "models/recall-small"), "--max-new-tokens", "4", "--rewinds", "2",
            "--threads", "1", "--json", "--session"]
    turns_of = lambda file: json.loads(output_of([arguments.program, "inspect", file, "--json"])[1])["session"]["turns"]
    killer = Killer(draw, place)
    kills, turns, went_on, said_so_far = 0, 0, 0, []
    while kills < arguments.kills and time.monotonic() < until:
        texts = [f"Turn {kills} {number}: {draw.choice(['And then?', 'Who said that?', 'Tell me more.'])}"
                 for number in range(20000)]
        lines.write_text("".join(text + "\n" for text in texts))
        printed, said = folder / "chat.out", folder / "chat.err"
        with open(lines) as stdin, open(printed, "w") as out, open(said, "w") as err:
            killed = killer.run([*chat, str(session)], out, err, lambda: printed.stat().st_size > 0, stdin)
        check(killed, f"the conversation ended by itself: {said.read_text()}")
        kills += 1
        answers = [json.loads(line) for line in printed.read_text().split("\n")[:-1]]
        if answers:
            went_on += 1
            check(answers[0]["turns"] == turns + 2, f"went on after {answers[0]['turns'] - 2} turns, {turns} were kept")
        told = answers[-1]["turns"] if answers else turns
        if session.exists():
            code, _, said = output_of([arguments.program, "inspect", session])
            check(code == 0, f"inspect refuses the session: {said}")
        kept = turns_of(session) if session.exists() else 0
        check(told <= kept <= told + 2, f"{told} turns were printed, the file holds {kept}")
        check(len(temporaries(place)) <= 1, f"temporaries pile up: {temporaries(place)}")
        said_so_far += texts[:(kept - turns) // 2]
        turns = kept
        print(f"conversation: {kills} kills, {turns} turns", end="\r", file=sys.stderr)
    said_so_far.append("Goodbye.")
    whole = folder / "whole.session"
    for file, texts in ((session, said_so_far[-1:]), (whole, said_so_far)):
        code, _, said = output_of([*chat, str(file)], input="".join(text + "\n" for text in texts))
        check(code == 0, f"the conversation cannot end: {said}")
    check(not temporaries(place), f"temporaries are left: {temporaries(place)}")
    check(session.read_bytes() == whole.read_bytes(), f"the session is another after {kills} kills")
    return {"kills": kills, "while writing": killer.while_writing, "resumed": went_on, "ends at": f"{turns + 2} turns"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build" / "palimpsest")
    parser.add_argument("--kills", type=int, default=200, help="of each of the two")
    parser.add_argument("--minutes", type=float, default=30, help="no kill after these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="train,chat", help="parts, comma between")
    arguments = parser.parse_args()
    arguments.program = str(arguments.program.resolve())
    draw = random.Random(arguments.seed)
    parts = [part for part in {"train": train_kills, "chat": chat_kills}.items() if part[0] in arguments.only.split(",")]
    lost = False
    print(f"{'':10} {'kills':>6} {'while writing':>14} {'resumed':>8}  ends at")
    for number, (name, part) in enumerate(parts):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="palimpsest-kill-"))
        # What is left of the time is shared out among the parts that are left.
        until = time.monotonic() + 60 * arguments.minutes / len(parts)
        try:
            row = part(arguments, draw, folder, until)
            print(f"{name:10} {row['kills']:6} {row['while writing']:14} {row['resumed']:8}  {row['ends at']}, nothing lost")
            shutil.rmtree(folder)
        except Lost as what:
            lost = True
            print(f"{name:10} LOST: {what} (in {folder})")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
