#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sees that the README quotes the examples that the package's tests compile and run: readme_examples.py ROOT."""
import pathlib
import re
import sys

EXAMPLES = ("examples/forward.cpp", "examples/forward.c")
SKIPPED = 77  # CTest's SKIP_RETURN_CODE here


def quotes(readme, example):
    """True if a code block of the README is the example without its licence line."""
    wanted = "".join(line for line in example.splitlines(keepends=True) if "SPDX-License-Identifier" not in line)
    return wanted in re.findall(r"^```\w*\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: readme_examples.py ROOT")
    root = pathlib.Path(sys.argv[1])
    if not (root / "README.md").exists():
        print("there is no README.md")
        sys.exit(SKIPPED)
    readme = (root / "README.md").read_text()
    missing = [path for path in EXAMPLES if not quotes(readme, (root / path).read_text())]
    for path in missing:
        print(f"README.md has no code block that is {path} without its licence line")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
