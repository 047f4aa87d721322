#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two rules: every *_test.cpp is compiled into a test program, and every source file names its licence.

usage: check_tests.py COMPILE_COMMANDS_JSON [ROOT]    exit 0: all well, 1: prints each file and the rule
"""
import json
import pathlib
import sys

LICENCE = "SPDX-License-Identifier: Apache-2.0"
FOLDERS = ["palimpsest", "apps", "tests", "benchmarks", "examples", "tools", "cmake", ".ci"]
LICENSED = {".cpp", ".h", ".py", ".sh", ".cmake"}
LICENSED_NAMES = {"CMakeLists.txt", "Makefile", "run"}


def files(root):
    yield from (path for path in sorted(root.glob("*")) if path.is_file())
    for folder in FOLDERS:
        yield from (path for path in sorted((root / folder).rglob("*")) if path.is_file())


def compiled(commands):
    return {(pathlib.Path(entry["directory"]) / entry["file"]).resolve() for entry in json.loads(commands.read_text())}


def faults(root, built):
    for path in files(root):
        name = path.relative_to(root)
        if path.name.endswith("_test.cpp") and path.resolve() not in built:
            yield f"{name}: belongs to no target\n  rule: a test lies in a folder that tests/CMakeLists.txt names"
        if path.suffix in LICENSED or path.name in LICENSED_NAMES:
            with path.open(encoding="utf-8") as text:
                if not any(LICENCE in line for _, line in zip(range(3), text)):
                    yield f"{name}:1: no licence line\n  rule: one of the first three lines holds {LICENCE}"


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    root = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).resolve().parent.parent
    found = list(faults(root, compiled(pathlib.Path(sys.argv[1]))))
    print("\n".join(found) if found else "every test has its target, every source file its licence line")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
