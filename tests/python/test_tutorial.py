# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/python.md run as they stand: each block of Python by itself; those over PyTorch where it is."""

import contextlib
import importlib.util
import io
import re
import sys
import types
import unittest
from pathlib import Path

if importlib.util.find_spec("numpy") is None:
    print("SKIPPED: the examples of docs/python.md need NumPy (Debian: python3-numpy)")
    sys.exit(77)

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
MOST_LINES = {"Attention in 10 lines": 10, "Decoding in 20": 20, "Training in 30": 30}


def examples():
    """(heading, code) of every block."""
    heading = ""
    for title, code in re.findall(r"^## ([^\n]*)$|^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        heading = title or heading
        if code:
            yield heading, code


def run(heading, code):
    """As a module that can be found by its name, as a script of a user can: torch.compile looks names up so."""
    module = types.ModuleType("tandem_tutorial_example")
    sys.modules[module.__name__] = module
    try:
        exec(compile(code, f"{PAGE.name}, {heading}", "exec"), vars(module))
    finally:
        del sys.modules[module.__name__]


class TutorialTest(unittest.TestCase):
    def test_every_example_runs(self):
        ran = 0
        for heading, code in examples():
            needed = [name for name in ("torch", "transformers") if re.search(rf"^(import|from) {name}\b", code, re.M)]
            if all(importlib.util.find_spec(name) for name in needed):
                with self.subTest(heading), contextlib.redirect_stdout(io.StringIO()) as printed:
                    run(heading, code)
                self.assertTrue(printed.getvalue(), f"{heading} prints nothing")
                ran += 1
        self.assertGreaterEqual(ran, len(MOST_LINES))

    def test_examples_are_as_short_as_their_headings_say(self):
        lines = {heading: len([line for line in code.splitlines() if line and not line.startswith("import")])
                 for heading, code in examples()}
        for heading, most in MOST_LINES.items():
            self.assertLessEqual(lines[heading], most, heading)


if __name__ == "__main__":
    unittest.main()
