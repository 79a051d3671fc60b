# SPDX-License-Identifier: Apache-2.0
"""Text of a page that a script writes from results, between two marks in the page."""
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_MEASURED = 77


def between(page, marks, text, name):
    """`page` with `text` between its two marks, which are lines of their own."""
    begin, end = (f"{mark}\n" for mark in marks)
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        sys.exit(f"{name} has no marks {marks[0]} and {marks[1]}")
    return before + begin + text + end + after


def update(page, marks, results, make_text, *, check):
    """Writes make_text() into the page, or only compares; returns an exit code: 1 where it differs, 77 where the file
    `results` is not there."""
    name, source = (path.relative_to(ROOT).as_posix() for path in (page, results))
    if not results.exists():
        print(f"nothing was measured: {source} is not there")
        return NOT_MEASURED
    old = page.read_text()
    new = between(old, marks, make_text(), name)
    if check and new != old:
        print(f"{name} does not say what {source} says; run {Path(sys.argv[0]).name}")
        return 1
    if not check:
        page.write_text(new)
    return 0
