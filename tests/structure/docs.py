#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sees that the documentation stays true to the tree: docs.py ROOT.

- A relative link of any Markdown file leads to a file, and its anchor to a heading.
- A link whose text is `code` and whose target is C++ names something that stands in that file.
- A paragraph that links tests/gpu/record.json repeats none of its counts: the record is made anew, and would make them stale.
- A page docs/algorithms/N-*.md has tables with the columns "line" and "stands in". The lines of all its rows are those
  of the algorithm, without a gap. A function in "stands in" names the row's lines in comments, in its body or, if
  that names none, right above it; where the row is another algorithm's too, the cell says "as lines N of Algorithm M", and those are looked for.
"""
import pathlib
import re

from cpp import blank, functions
from structure import run

CPP = {".h", ".hpp", ".c", ".cpp", ".cu", ".cuh"}
IGNORED = {"build", ".venv", ".git", "carry"}
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[([^\]]*)\]\(([^()\s]+)\)")
NUMBERS = r"(\d+(?:\s*(?:-|–|,|and)\s*\d+)*)"
LINE_COMMENT = re.compile(r"//.*")
LINES_NAMED = re.compile(r"\b[Ll]ines?\s+" + NUMBERS)
GPU_RECORD = "tests/gpu/record.json"
COUNT_OF_TESTS = re.compile(r"\b\d[\d,]*\s+(?:(?:GPU\s+)?tests\b|passed\b|(?:were\s+)?(?:skipped|clean)\b)")
OTHER_ALGORITHM = re.compile(r"as lines?\s+" + NUMBERS + r"\s+of Algorithm")


def numbers(text):
    """'4, 7-9 and 12' as {4, 7, 8, 9, 12}."""
    found = set()
    for first, last in re.findall(r"(\d+)(?:\s*[-–]\s*(\d+))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return found


def lines_named(text):
    """The lines of an algorithm that a piece of C++ names in its comments."""
    comments = " ".join(match.group(0).lstrip("/ ") for match in LINE_COMMENT.finditer(text))
    return set().union(*(numbers(match.group(1)) for match in LINES_NAMED.finditer(comments)))


def lines_of(function, source):
    """The lines that a function's body names. One whose body names none may name them right above it."""
    begin = first = function.line - 1
    while begin > 0 and source[begin - 1].lstrip().startswith("//"):
        begin -= 1
    inside = lines_named("\n".join(source[first:first + function.lines]))
    return inside or lines_named("\n".join(source[begin:first]))


def places(text, name):
    """The lines that each function of that name names."""
    source = text.splitlines()
    return [lines_of(f, source) for f in functions(blank(text)) if f.name == name]


def anchor_of(heading):
    """As GitHub and most others spell it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(markdown):
    return {anchor_of(h) for h in re.findall(r"^#+ (.*)$", FENCE.sub("", markdown), re.MULTILINE)}


def check_link(text, target, page):
    """What is wrong with one link of the file `page`."""
    path, _, anchor = target.partition("#")
    file = page.parent / path if path else page
    if not file.exists():
        yield f"leads to {target}, which is not there"
    elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
        yield f"leads to {target}, a heading that is not there"
    elif file.suffix in CPP and (match := re.fullmatch(r"`([\w:]+)`", text)):
        name = match.group(1).rpartition("::")[2]
        if not re.search(rf"\b{name}\b", blank(file.read_text())):
            yield f"says that {name} stands in {path}, but it does not"


def check_links(page):
    prose = FENCE.sub(lambda match: "\n" * match.group(0).count("\n"), page.read_text())
    for number, line in enumerate(prose.splitlines(), 1):
        for text, target in LINK.findall(line):
            if not re.match(r"\w+:", target):
                for complaint in check_link(text, target, page):
                    yield number, complaint


def check_counts(page):
    """Counts of the GPU record's tests that are written out beside a link to it."""
    number = 1
    for paragraph in re.split(r"(\n\s*\n)", page.read_text()):
        links = any(target.partition("#")[0].endswith(GPU_RECORD) for _, target in LINK.findall(paragraph))
        if links and (match := COUNT_OF_TESTS.search(paragraph)):
            yield number, f"says '{match.group(0)}' beside {GPU_RECORD}, which is made anew; leave the count to the record"
        number += paragraph.count("\n")


def table_rows(markdown):
    """(line number, {column: cell}) of every row of every table with the columns "line" and "stands in"."""
    head = None
    for number, line in enumerate(markdown.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else None
        if cells is None:
            head = None
        elif head is None:
            head = cells
        elif {"line", "stands in"} <= set(head) and not set(cells[0]) <= set("-: "):
            yield number, dict(zip(head, cells))


def check_row(row, page):
    other = OTHER_ALGORITHM.search(row["stands in"])
    wanted = numbers(other.group(1)) if other else numbers(row["line"])
    named = set()
    for text, target in LINK.findall(row["stands in"]):
        found = places((page.parent / target).read_text(), text.strip("`"))
        if not found:
            yield f"{text} is no function of {target}"
        elif not (here := set().union(*found)) & wanted:
            yield f"{text} in {target} has no comment that names line {min(wanted)}"
        else:
            named |= here
    if named and wanted - named:
        yield f"no comment names line {min(wanted - named)} of {row['stands in']}"


def check_algorithm(page):
    markdown, covered = page.read_text(), set()
    for number, row in table_rows(markdown):
        covered |= numbers(row["line"])
        for complaint in check_row(row, page):
            yield number, complaint
    for gap in sorted(set(range(1, max(covered, default=1) + 1)) - covered):
        yield 1, f"has no row for line {gap}"


def check_tree(root):
    """All complaints, as 'path:line: complaint'."""
    root = pathlib.Path(root)
    for page in sorted(root.rglob("*.md")):
        path = page.relative_to(root)
        if IGNORED & set(path.parts):
            continue
        complaints = list(check_links(page)) + list(check_counts(page))
        if not complaints and re.fullmatch(r"docs/algorithms/\d.*\.md", path.as_posix()):
            complaints = list(check_algorithm(page))
        for line, complaint in complaints:
            yield f"{path.as_posix()}:{line}: {complaint}"


if __name__ == "__main__":
    run(check_tree)
