# SPDX-License-Identifier: Apache-2.0
"""Changes that are told by construct: in a function, the nth call of a verb, or the nth place of a few tokens.

Where the function stands, in which file and among which lines, and how it is laid out, does not matter.
"""

import dataclasses
import functools
import pathlib
import re

from .source import Source, Span

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SOURCES = ("core", "tile", "hw", "launch", "forward", "decode", "merge", "backward", "quantize")
TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|::|->|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%^&|]=|\+\+|--|\S")


class Stale(Exception):
    """A place that the sources no longer have, or have more than once."""


@functools.cache
def sources():
    """{file: Source} of all in which a place may be."""
    files = [f for folder in SOURCES for f in sorted((ROOT / "src" / folder).glob("*"))]
    return {str(f.relative_to(ROOT)): Source(f.read_text()) for f in files if f.suffix in (".h", ".cpp", ".cuh", ".cu")}


@functools.cache
def regions(file):
    """{name: [Span]} of a file: bodies of functions and structs; of other names, the declarations of variables."""
    source, found, variables = sources()[file], {}, {}
    for function in source.functions:
        found.setdefault(function.name, []).append(function.body)
    for match in re.finditer(r"\b(?:struct|class) (\w+)\b[^;{(]*\{", source.code):
        found.setdefault(match.group(1), []).append(Span(match.end(), source.matching(match.end() - 1)))
    for match in re.finditer(r"\b(\w+) = [^;]*;", source.code):
        variables.setdefault(match.group(1), []).append(Span(match.start(), match.end()))
    return variables | found


@dataclasses.dataclass(frozen=True)
class At:
    """A function, struct or variable: "consumer_wait"; with the stem or folder of its file, or with the struct around it,
    where its name alone is not enough: "epilogue/store_tile", "Pipeline::init"."""
    where: str

    @functools.cache
    def find(self):
        """(file, span), or Stale."""
        prefix, _, name = self.where.rpartition("/")
        outer, _, name = name.rpartition("::")
        found = []
        for file in sources():
            if prefix and prefix not in (pathlib.Path(file).stem, pathlib.Path(file).parent.name, file[4:].rpartition(".")[0]):
                continue
            around = regions(file).get(outer, []) if outer else None
            for span in regions(file).get(name, []):
                if around is None or any(a.begin <= span.begin < a.end for a in around):
                    found.append((file, span))
        if len(found) != 1:
            raise Stale(f"{self.where} is {len(found)} places: {', '.join(file for file, _ in found)}")
        return found[0]


def tokens(code, span):
    return [(m.group(), Span(*m.span())) for m in TOKEN.finditer(code, span.begin, span.end)]


def statement_with(source, span, call, nth):
    """The statement with the nth call, in a span."""
    calls = source.calls(call, span)
    if len(calls) < nth:
        raise Stale(f"{call} is called {len(calls)} times, not {nth}")
    place = calls[nth - 1]
    around = [s for s in source.statements if s.begin <= place < s.end]
    if not around:
        raise Stale(f"call {nth} of {call} is no statement")
    return min(around, key=lambda s: s.end - s.begin)


@dataclasses.dataclass(frozen=True)
class Remove:
    """The statement with the nth call of a function or verb."""
    call: str
    nth: int = 1

    def edits(self, source, span):
        return [(statement_with(source, span, self.call, self.nth), ";")]


@dataclasses.dataclass(frozen=True)
class Swap:
    """Two statements by their calls; what stands between them stays."""
    first: tuple
    second: tuple

    def edits(self, source, span):
        a, b = (statement_with(source, span, *which) for which in (self.first, self.second))
        return [(a, source.text[b.begin:b.end]), (b, source.text[a.begin:a.end])]


@dataclasses.dataclass(frozen=True)
class Before:
    """New code before the statement with the nth call."""
    call: str
    nth: int
    code: str

    def edits(self, source, span):
        at = statement_with(source, span, self.call, self.nth).begin
        return [(Span(at, at), self.code + " ")]


@dataclasses.dataclass(frozen=True)
class Edit:
    """Tokens, at their nth place, by others."""
    old: str
    new: str
    nth: int = 1

    def edits(self, source, span):
        wanted = TOKEN.findall(self.old)
        found = tokens(source.code, span)
        starts = [i for i in range(len(found)) if [t for t, _ in found[i:i + len(wanted)]] == wanted]
        if len(starts) < self.nth:
            raise Stale(f"{self.old!r} stands {len(starts)} times, not {self.nth}")
        first = starts[self.nth - 1]
        return [(Span(found[first][1].begin, found[first + len(wanted) - 1][1].end), self.new)]


def edits(where, what):
    """(file, span, edits: (Span, text) each), or Stale with the place."""
    file, span = At(where).find()
    try:
        return file, span, what.edits(sources()[file], span)
    except Stale as stale:
        raise Stale(f"{where} in {file}: {stale}") from None


def change(where, what):
    """(file, its text changed), or Stale with the place."""
    file, _, found = edits(where, what)
    text = sources()[file].text
    for at, new in sorted(found, key=lambda e: -e[0].begin):
        text = text[:at.begin] + new + text[at.end:]
    return file, text
