#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a program in a terminal and types into it.

usage: terminal.py KEYS.json PROGRAM [ARGUMENT…]    prints what the terminal showed, exits as the program does

KEYS.json is a list of [what to wait for, what to type]. It waits until what was shown since the last typing ends so; a
"?" at the end of it stands for at least one character more.
"""
import json
import os
import pty
import select
import sys
import termios
import time

LIMIT = 120  # seconds for all of it


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        keys = json.load(file)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.argv[2], sys.argv[2:])
    end = time.monotonic() + LIMIT
    shown = b""

    def read(seconds):
        """False at the end of the program."""
        nonlocal shown
        if not select.select([terminal], [], [], seconds)[0]:
            return True
        try:
            part = os.read(terminal, 65536)
        except OSError:
            return False
        shown += part
        return bool(part)

    begin, going = 0, True
    for wait, text in keys:
        awaited = wait.rstrip("?").encode()

        def there():
            new = shown[begin:]
            if wait.endswith("?"):
                return 0 <= new.find(awaited) < len(new) - len(awaited)
            return new.endswith(awaited)

        while going and not there() and time.monotonic() < end:
            going = read(0.05)
        # The editor shows its prompt before it takes over the terminal: a key in between would be the terminal's own.
        while wait == "> " and termios.tcgetattr(terminal)[3] & termios.ICANON and time.monotonic() < end:
            time.sleep(0.01)
        begin = len(shown)
        os.write(terminal, text.encode())
    while going and time.monotonic() < end:
        going = read(0.5)
    if going:
        os.kill(pid, 9)
    sys.stdout.write(shown.decode("utf-8", "replace"))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


sys.exit(main())
