#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rule of the rooms: a file of palimpsest/ROOM includes only its own room and those before it in ROOMS.

Programs, tests, benchmarks and examples may include every room; no room includes any of them.
usage: check_layers.py [ROOT]    exit 0: all well, 1: prints FILE:LINE and the rule for each breach
"""
import pathlib
import re
import sys

ROOMS = ["core", "text", "kernels", "nn", "attention", "memory", "models", "checkpoint", "data", "generate", "train",
         "serve"]
PROGRAMS = ["apps", "tests", "benchmarks", "examples"]
SOURCES = {".cpp", ".h", ".def"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def breach(here, there):
    """Why a file at `here` may not include `there` (paths as tuples of parts), or None where it may."""
    if here[0] in PROGRAMS:
        return None if there[0] in ("palimpsest", *PROGRAMS) else "a quoted include starts at the root of the project"
    if there[0] in PROGRAMS:
        return f"palimpsest/ is a library: it may not include {there[0]}/"
    if there[0] != "palimpsest":
        return "a quoted include starts at the root of the project, with palimpsest/; others stand in <>"
    if len(here) == 2:
        return None  # palimpsest/palimpsest.h gathers what users include
    if len(there) == 2:
        return f"{'/'.join(there)} includes every room; a room may not include it"
    if here[1] not in ROOMS:
        return f"{here[1]} is not a room: add it to ROOMS in tools/check_layers.py and to DESIGN"
    if there[1] not in ROOMS:
        return f"{there[1]} is not a room"
    if ROOMS.index(there[1]) > ROOMS.index(here[1]):
        return f"{here[1]} may include only {', '.join(ROOMS[:ROOMS.index(here[1]) + 1])}; not {there[1]}"
    return None


def breaches(root):
    for folder in ["palimpsest", *PROGRAMS]:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SOURCES or not path.is_file():
                continue
            relative = path.relative_to(root)
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                found = INCLUDE.match(line)
                if not found:
                    continue
                name = tuple(found[2].split("/"))
                ours = name[0] in ("palimpsest", *PROGRAMS)
                if found[1] == "<" and not ours:
                    continue
                reason = f'write "{found[2]}", not <{found[2]}>' if found[1] == "<" else breach(relative.parts, name)
                if reason:
                    yield f"{relative}:{number}: {line.strip()}\n  rule: {reason}"


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    found = list(breaches(root))
    print("\n".join(found) if found else "every include keeps the order of the rooms: " + ", ".join(ROOMS))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
