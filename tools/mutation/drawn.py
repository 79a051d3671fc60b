# SPDX-License-Identifier: Apache-2.0
"""Drawn mutants: operators applied at places that a seed draws, over all that runs on the device or plans it."""

import dataclasses
import pathlib
import random
import re

from .source import Source, Span

# Machines, backends and boundaries are no device code; tables say what is built, and cost speed at most.
OTHER_FOLDERS = ("api", "cpu", "hw/sim", "hw/sm90", "hw/cuda")
OTHER_FILES = ("variants.h", "recipes.h", "eight_bit_recipes.h", "study.h", "table.h", "kernels.h", "hw.h", "launch.h", "chip.h", "chip_kernels.h", "status.h")
PLANS = ("append_plan.cpp", "few_queries.cpp", "plan.cpp", "split.cpp", "tensor_map.cpp")
# They compute nothing and order nothing: hints, names, and what steers a compiler.
HINTS = re.compile(r"\b(?:set_role|prefetch_\w+|compute_before_wait|release_next_grid|static_assert)\b")
ORDERING = re.compile(r"\b(?:\w*fence\w*|\w*sync\w*|\w*wait\w*|\w*release\w*|\w*arrive\w*|\w*commit\w*|acquire\w*|take|pass)(?:<[^;()]*>)?\(")
NEIGHBOURS = (("k_at", "v_at"), ("k_pipeline", "v_pipeline"), ("k_pipeline", "v_pipeline"), ("begin", "end"), ("full", "empty"), ("first", "last"),
              ("upper", "lower"), ("row", "column"), ("before", "after"), ("full_begin", "full_end"), ("q_len", "k_len"),
              ("batch", "head"), ("low", "high"), ("k", "v"), ("left", "right"))


@dataclasses.dataclass(frozen=True)
class Drawn:
    """One change of one file."""
    operator: str
    file: str  # relative to the repository
    line: int
    function: str
    edits: tuple  # (Span, text) each, not overlapping
    what: str     # in words
    lines: tuple  # the first and the last of the function

    @property
    def name(self):
        return f"{self.file}:{self.line} {self.function}: {self.operator}: {self.what}"

    def apply(self, text):
        for span, new in sorted(self.edits, key=lambda e: -e[0].begin):
            text = text[:span.begin] + new + text[span.end:]
        return text


def device_files(root):
    """Sources of kernels and of what plans them, by walking src."""
    src = root / "src"
    for path in sorted(src.rglob("*")):
        name = path.relative_to(src)
        if path.suffix == ".h" and path.name not in OTHER_FILES or path.name in PLANS:
            if not any(name.is_relative_to(folder) for folder in OTHER_FOLDERS):
                yield str(path.relative_to(root))


def short(text):
    return re.sub(r"\s+", " ", text)[:90]


def removed(source):
    for span in source.statements:
        if not HINTS.search(source.code[span.begin:span.end]):
            text = source.text[span.begin:span.end]
            yield "removed", span, ((span, ";"),), short(text)


def pairs(source):
    """Neighbouring statements of one block."""
    spans = source.statements
    for a, b in zip(spans, spans[1:]):
        if not source.code[a.end:b.begin].strip() and not HINTS.search(source.code[a.begin:b.end]):
            yield a, b


ASSIGNMENT = re.compile(r"([\w.]+)(?:\[[^]]*\])? [-+*/^|&]?= ([^=].*);", re.DOTALL)


def are_apart(first, second):
    """Whether two statements assign what the other does not name, without a verb: their order means nothing."""
    a, b = ASSIGNMENT.fullmatch(first), ASSIGNMENT.fullmatch(second)
    if not a or not b or re.search(r"\bhw::|=(?!=)|\+\+|--", a.group(2) + b.group(2)):
        return False
    return not any(re.search(rf"(?<![\w.]){re.escape(x.group(1))}\b", other) for x, other in ((a, second), (b, first)))


def swapped(source):
    for a, b in pairs(source):
        first, second = source.text[a.begin:a.end], source.text[b.begin:b.end]
        if first != second and not are_apart(first, second):
            yield "swapped", a, ((a, second), (b, first)), f"{short(first)} <-> {short(second)}"


def moved(source):
    """An ordering verb past two statements, either way."""
    spans = source.statements
    for i, span in enumerate(spans):
        if not ORDERING.search(source.code[span.begin:span.end]) or HINTS.search(source.code[span.begin:span.end]):
            continue
        for step in (-2, 2):
            if not 0 <= i + step < len(spans):
                continue
            low, high = min(i, i + step), max(i, i + step)
            between = [source.code[a.end:b.begin].strip() for a, b in zip(spans[low:high], spans[low + 1:high + 1])]
            if any(between):
                continue
            verb = source.text[span.begin:span.end]
            to = spans[i + step].begin if step < 0 else spans[i + step].end
            yield "moved", span, ((span, ";"), (Span(to, to), f" {verb} ")), f"{short(verb)} by {step} statements"


def compared(source):
    for match in re.finditer(r"(?<= )(<=|>=|<|>|==|!=)(?= )", source.code):
        old = match.group()
        new = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}[old]
        yield "comparison", Span(*match.span()), ((Span(*match.span()), new),), f"{old} -> {new}"


def off_by_one(source):
    for match in re.finditer(r"(?<![\w.])(\d+)(u?)(?![\w.])", source.code):
        for step in (-1, 1):
            value = int(match.group(1)) + step
            if value >= 0:
                span = Span(*match.span())
                yield "constant", span, ((span, f"{value}{match.group(2)}"),), f"{match.group()} -> {value}"


def negated(source):
    for span in source.conditions():
        text = source.text[span.begin:span.end]
        if not HINTS.search(text):
            yield "negated", span, ((span, f"!({text})"),), short(text)


def replaced(source):
    """A name by its neighbour, and an index by the next."""
    other = {a: b for pair in NEIGHBOURS for a, b in (pair, pair[::-1])}
    for match in re.finditer(r"(?<=[.\s(\[])(" + "|".join(other) + r")\b(?!\()", source.code):
        span = Span(*match.span(1))
        yield "replaced", span, ((span, other[match.group(1)]),), f"{match.group(1)} -> {other[match.group(1)]}"
    for match in re.finditer(r"(?<=\w)\[([\w.]*(?:slot|stage))\]", source.code):
        span = Span(*match.span(1))
        yield "replaced", span, ((span, f"{match.group(1)} ^ 1"),), f"{match.group(1)} -> its neighbour"


OPERATORS = (removed, swapped, moved, compared, off_by_one, negated, replaced)


def places(root, files):
    """{operator: [Drawn]} over the files: all that could be drawn."""
    found = {operator.__name__: [] for operator in OPERATORS}
    for file in files:
        source = Source((root / file).read_text())
        for operator in OPERATORS:
            for name, at, edits, what in operator(source):
                if (function := source.function_at(at.begin)) is not None:
                    found[operator.__name__].append(Drawn(name, file, source.line(at.begin), function.name, edits, what,
                                                             (source.line(function.head), source.line(function.body.end))))
    return found


def draw(root, files, count, seed):
    """`count` mutants: an operator with equal chances, and one of its places, none twice."""
    generator = random.Random(seed)
    left = places(root, files)
    drawn = []
    while len(drawn) < count and any(left.values()):
        operator = generator.choice([name for name, some in left.items() if some])
        drawn.append(left[operator].pop(generator.randrange(len(left[operator]))))
    return drawn
