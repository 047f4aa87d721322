# SPDX-License-Identifier: Apache-2.0
"""The checks of the source tree find what they are there to find."""
import atexit
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"


class Tree:
    """A small project in a temporary folder."""

    def __init__(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, self.root)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return self

    def check(self, tool, *arguments):
        command = [sys.executable, "-B", str(TOOLS / tool), *arguments, str(self.root)]
        return subprocess.run(command, capture_output=True, text=True)

    def check_layers(self):
        return self.check("check_layers.py")

    def check_tests(self, *compiled):
        commands = [{"directory": str(self.root), "file": name} for name in compiled]
        self.write("build/compile_commands.json", json.dumps(commands))
        return self.check("check_tests.py", str(self.root / "build/compile_commands.json"))


class Layers(unittest.TestCase):
    def test_accepts_rooms_above_and_the_room_itself(self):
        tree = Tree().write("palimpsest/train/a.cpp", '#include "palimpsest/train/a.h"\n#include "palimpsest/core/b.h"\n')
        tree.write("apps/train.cpp", '#include "apps/command.h"\n#include "palimpsest/train/a.h"\n#include <vector>\n')
        self.assertEqual(tree.check_layers().returncode, 0)

    def test_refuses_a_room_below_and_says_where(self):
        result = Tree().write("palimpsest/nn/a.h", '\n#include "palimpsest/models/b.h"\n').check_layers()
        self.assertEqual(result.returncode, 1)
        self.assertIn('palimpsest/nn/a.h:2: #include "palimpsest/models/b.h"', result.stdout)
        self.assertIn("nn may include only core, text, kernels, nn; not models", result.stdout)

    def test_refuses_the_program_inside_a_room(self):
        result = Tree().write("palimpsest/serve/a.cpp", '#  include "apps/command.h"\n').check_layers()
        self.assertEqual(result.returncode, 1)
        self.assertIn("may not include apps/", result.stdout)

    def test_sees_through_angle_brackets(self):
        result = Tree().write("palimpsest/core/a.cpp", "#include <palimpsest/train/b.h>\n").check_layers()
        self.assertEqual(result.returncode, 1)

    def test_refuses_an_include_beside_the_file(self):
        result = Tree().write("palimpsest/core/a.cpp", '#include "b.h"\n').check_layers()
        self.assertEqual(result.returncode, 1)
        self.assertIn("starts at the root", result.stdout)

    def test_refuses_a_folder_that_is_no_room(self):
        result = Tree().write("palimpsest/utils/a.cpp", '#include "palimpsest/core/b.h"\n').check_layers()
        self.assertEqual(result.returncode, 1)
        self.assertIn("utils is not a room", result.stdout)

    def test_lets_the_umbrella_header_include_all_but_no_room_include_it(self):
        tree = Tree().write("palimpsest/palimpsest.h", '#include "palimpsest/serve/b.h"\n')
        self.assertEqual(tree.check_layers().returncode, 0)
        tree.write("palimpsest/core/a.cpp", '#include "palimpsest/palimpsest.h"\n')
        self.assertEqual(tree.check_layers().returncode, 1)


class TestsAndLicences(unittest.TestCase):
    def test_accepts_a_compiled_test_with_a_licence(self):
        tree = Tree().write("tests/core/a_test.cpp", LICENCE)
        self.assertEqual(tree.check_tests("tests/core/a_test.cpp").returncode, 0)

    def test_refuses_a_test_without_a_target(self):
        result = Tree().write("tests/lost/a_test.cpp", LICENCE).check_tests()
        self.assertEqual(result.returncode, 1)
        self.assertIn("tests/lost/a_test.cpp: belongs to no target", result.stdout)

    def test_refuses_a_source_without_a_licence(self):
        result = Tree().write("palimpsest/core/a.h", "#pragma once\n").check_tests()
        self.assertEqual(result.returncode, 1)
        self.assertIn("palimpsest/core/a.h:1: no licence line", result.stdout)


if __name__ == "__main__":
    unittest.main()
