# SPDX-License-Identifier: Apache-2.0
"""tools/bootstrap.sh on made-up machines: what is missing is said or installed, and only once."""
import atexit
import pathlib
import shutil
import subprocess
import tempfile
import unittest

BOOTSTRAP = pathlib.Path(__file__).resolve().parents[2] / "tools" / "bootstrap.sh"
COMMANDS = ["awk", "bash", "cat", "comm", "df", "env", "find", "flock", "grep", "head", "mkdir", "mv", "paste", "rm", "sed",
            "sort", "stat", "touch", "tr"]
# Prints a line for every package that is asked for, save those in $ABSENT.
DPKG_QUERY = """shift 2
for name; do case " $ABSENT " in *" $name "*) ;; *) echo "$name installed" ;; esac; done"""
# As pip: writes a very small wheel into --target; $CUT leaves its library short.
PYTHON = """[ "$3" != --version ] || exit 0
echo "$@" >> "$PIP_CALLS"
case "$*" in *nvidia*) kind=nvidia_cuda-1 ;; *) kind=torch-2.13.0 ;; esac
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/torch/lib" "$2/torch/include/ATen" "$2/$kind.dist-info"
echo 1 > "$2/torch/include/ATen/ATen.h"
printf "${CUT:-12345}" > "$2/torch/lib/libtorch_cpu.so"
printf 'torch/lib/libtorch_cpu.so,sha256=x,5\\r\\n' > "$2/$kind.dist-info/RECORD\""""


class Machine:
    def __init__(self, **programs):
        self.root = pathlib.Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, self.root)
        (self.root / "bin").mkdir()
        for name in COMMANDS:
            (self.root / "bin" / name).symlink_to(shutil.which(name))
        programs = {"dpkg-query": DPKG_QUERY, "python3": PYTHON, "id": "echo 0", "clang++-19": "", **programs}
        for name, body in programs.items():
            self.program(name, body)

    def program(self, name, body):
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def run(self, **settings):
        environment = {"PATH": str(self.root / "bin"), "HOME": str(self.root), "PIP_CALLS": str(self.root / "calls"), **settings}
        return subprocess.run(["bash", str(BOOTSTRAP)], capture_output=True, text=True, env=environment)

    def pip_calls(self):
        calls = self.root / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    def torch(self):
        return self.root / ".cache/palimpsest/torch-2.13.0"


class Packages(unittest.TestCase):
    def test_are_listed_where_there_is_no_apt(self):
        result = Machine().run(ABSENT="libicu-dev ccache")
        self.assertEqual(result.returncode, 2)
        self.assertIn("no apt-get here: libicu-dev ccache", result.stderr)

    def test_are_left_to_the_user_who_is_not_root(self):
        result = Machine(**{"apt-get": "exit 1", "sudo": "exit 1", "id": "echo 1000"}).run(ABSENT="ninja-build")
        self.assertEqual(result.returncode, 2)
        self.assertIn("fix: sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends ninja-build'", result.stderr)

    def test_are_installed_by_root_and_nothing_else_is(self):
        machine = Machine(**{"apt-cache": "echo '  Candidate: 1.0'", "apt-get": 'echo "$@" >> "$HOME/apt"'})
        result = machine.run(ABSENT="ninja-build fortunes")
        self.assertEqual(result.returncode, 0, result.stderr)
        install = [line for line in (machine.root / "apt").read_text().splitlines() if " install " in line]
        self.assertEqual(len(install), 1)
        self.assertTrue(install[0].endswith("--no-install-recommends ninja-build fortunes"), install[0])

    def test_that_apt_does_not_know_are_left_out_where_they_can_be(self):
        machine = Machine(**{"apt-cache": "[ $2 = fortunes ] || echo '  Candidate: 1.0'", "apt-get": ""})
        result = machine.run(ABSENT="ninja-build fortunes")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("left out, for apt does not know them: fortunes", result.stderr)
        result = Machine(**{"apt-cache": "", "apt-get": ""}).run(ABSENT="ninja-build")
        self.assertEqual(result.returncode, 2)
        self.assertIn("apt knows no package ninja-build", result.stderr)

    def test_are_not_installed_when_that_is_forbidden(self):
        machine = Machine(**{"apt-get": 'echo "$@" >> "$HOME/apt"'})
        result = machine.run(ABSENT="ccache", PALIMPSEST_INSTALL="no")
        self.assertEqual(result.returncode, 2)
        self.assertIn("missing: ccache", result.stderr)
        self.assertFalse((machine.root / "apt").exists())


class Compiler(unittest.TestCase):
    def test_is_gxx_where_there_is_no_clang_and_that_is_said(self):
        machine = Machine(**{"g++": "echo 12"})
        (machine.root / "bin/clang++-19").unlink()
        result = machine.run()
        self.assertIn("CXX=g++ CC=gcc", result.stdout)
        self.assertIn("building with g++ 12", result.stderr)
        machine.program("g++", "echo 11.4.0")
        self.assertEqual(machine.run().returncode, 2)

    def test_is_the_one_the_user_names(self):
        self.assertIn("CXX=bash", Machine().run(CXX="bash").stdout)
        self.assertEqual(Machine().run(CXX="none++").returncode, 2)


class Torch(unittest.TestCase):
    def test_is_installed_once(self):
        machine = Machine()
        first, second = machine.run(), machine.run()
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertIn(f"PALIMPSEST_TORCH={machine.torch()}", first.stdout)
        self.assertEqual(second.stdout, first.stdout)
        self.assertEqual(second.stderr, "")
        self.assertEqual(len(machine.pip_calls()), 1)

    def test_lies_where_the_cache_folder_is(self):
        machine = Machine()
        result = machine.run(XDG_CACHE_HOME=str(machine.root / "elsewhere"))
        self.assertIn(f"{machine.root}/elsewhere/palimpsest/torch-2.13.0", result.stdout)

    def test_cut_off_is_not_taken_for_whole(self):
        machine = Machine()
        result = machine.run(CUT="123")
        self.assertEqual(result.returncode, 1)
        self.assertIn("not whole", result.stderr)
        self.assertFalse(machine.torch().exists())
        self.assertEqual(machine.run().returncode, 0)

    def test_damaged_later_is_noticed_and_replaced(self):
        machine = Machine()
        machine.run()
        library = machine.torch() / "torch/lib/libtorch_cpu.so"
        library.write_text("1")
        result = machine.run()
        self.assertEqual(result.returncode, 0)
        self.assertIn("is not whole", result.stderr)
        self.assertEqual(library.read_text(), "12345")
        (machine.torch() / ".complete").unlink()
        machine.run()
        self.assertEqual(len(machine.pip_calls()), 3)

    def test_of_the_cuda_build_gets_the_libraries_it_starts_with(self):
        machine = Machine()
        machine.program("python3", PYTHON + '\necho 1 > "$2/torch/lib/libtorch_cuda.so"')
        self.assertEqual(machine.run().returncode, 0)
        self.assertIn("nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85", machine.pip_calls()[1])
        self.assertEqual(machine.run().stderr, "")
        self.assertEqual(len(machine.pip_calls()), 2)

    def test_named_by_the_user_is_looked_at_and_nothing_is_installed(self):
        machine = Machine()
        result = machine.run(PALIMPSEST_TORCH=str(machine.root))
        self.assertEqual(result.returncode, 2)
        self.assertIn("lib/libtorch_cpu.so is missing", result.stderr)
        self.assertIn(f"at:  PALIMPSEST_TORCH={machine.root}", result.stderr)
        self.assertEqual(machine.pip_calls(), [])


if __name__ == "__main__":
    unittest.main()
