# SPDX-License-Identifier: Apache-2.0
"""Text that a tool writes into a page, between two marks."""

import sys


def between(text, marks, body):
    """`text` with `body` between its two marks."""
    before, begin, rest = text.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not begin or not end:
        sys.exit(f"there are no marks {marks[0].strip()} and {marks[1].strip()}")
    return before + begin + body + end + after


def update(page, marks, body, check):
    """Writes `body` into the page; with `check` only sees whether it stands there. Returns the exit code."""
    old = page.read_text()
    new = between(old, marks, body)
    if check and new != old:
        print(f"{page.name} does not say what was measured; run {sys.argv[0]}")
        return 1
    if not check:
        page.write_text(new)
    return 0
