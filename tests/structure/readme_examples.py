#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sees that the README quotes the examples that the package's tests compile and run: readme_examples.py ROOT."""
import pathlib
import re

from structure import run

EXAMPLES = ("examples/forward.cpp", "examples/forward.c")


def quotes(readme, example):
    """True if a code block of the README is the example without its licence line."""
    wanted = "".join(line for line in example.splitlines(keepends=True) if "SPDX-License-Identifier" not in line)
    return wanted in re.findall(r"^```\w*\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)


def check_readme(root):
    root = pathlib.Path(root)
    readme = (root / "README.md").read_text()
    for path in EXAMPLES:
        if not quotes(readme, (root / path).read_text()):
            yield f"README.md has no code block that is {path} without its licence line"


if __name__ == "__main__":
    run(check_readme)
