# SPDX-License-Identifier: Apache-2.0
"""C++ source as mutations see it: functions, statements and conditions, by their places in the text.

No parser: clang-format's layout makes binary operators stand between spaces and statements end their lines, so a few
patterns find them. What they find wrongly does not build, and is not counted.
"""

import bisect
import dataclasses
import functools
import re

CLOSING = {"(": ")", "[": "]", "{": "}"}
# Comments, strings, characters and preprocessor lines hold no code that is mutated.
OPAQUE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<![\w])\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#[^\n]*(?:\\\n[^\n]*)*',
                    re.DOTALL | re.MULTILINE)
HEAD = re.compile(r"\b([A-Za-z_]\w*|operator\S{1,3})\s*\(")
CONTROL = ("if", "for", "while", "switch", "return", "sizeof", "static_assert", "decltype", "alignas", "catch", "constexpr")
DECLARATION = re.compile(r"(?:const|constexpr|static|using|return|static_assert|auto|struct|template|typename|friend|break|continue|"
                         r"case|default|goto|public|private|else|do|if|for|while|switch)\b"
                         r"|[A-Za-z_][\w:]*(?:<[^;=()]*>)?[&*]*\s+[&*]*[A-Za-z_]\w*\s*(?:[=;({\[,]|$)")


@dataclasses.dataclass(frozen=True)
class Span:
    begin: int
    end: int


@dataclasses.dataclass(frozen=True)
class Function:
    name: str
    head: int   # where its name stands
    body: Span  # between its braces


class Source:
    """A file's text, and what is where. `code` is the text with all that is no code blanked, place by place."""

    def __init__(self, text):
        self.text = text
        self.code = OPAQUE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
        self._line_begins = [0, *(m.end() for m in re.finditer("\n", text))]

    def line(self, place):
        return bisect.bisect_right(self._line_begins, place)

    @functools.cached_property
    def functions(self):
        return list(self._functions())

    def function_at(self, place):
        """The innermost function around a place, or None."""
        around = [f for f in self.functions if f.body.begin <= place < f.body.end]
        return max(around, key=lambda f: f.body.begin, default=None)

    def matching(self, opening):
        """The place of the bracket that closes the one at `opening`, or None."""
        return self._brackets.get(opening)

    @functools.cached_property
    def _brackets(self):
        """{place of an opening bracket: of the one that closes it}."""
        closed_by, pending = {}, []
        for match in re.finditer(r"[][(){}]", self.code):
            if match.group() in CLOSING:
                pending.append(match)
            elif pending and CLOSING[pending[-1].group()] == match.group():
                closed_by[pending.pop().start()] = match.start()
        return closed_by

    def _in_parentheses(self, place):
        """Whether the innermost bracket around a place is round: the header of a for."""
        around = [(opening, closing) for opening, closing in self._brackets.items() if opening < place <= closing]
        return bool(around) and self.code[max(around)[0]] == "("

    def _functions(self):
        """Named functions with a body; lambdas belong to the function around them."""
        for match in HEAD.finditer(self.code):
            if match.group(1) in CONTROL:
                continue
            close = self.matching(match.end() - 1)
            if close is None:
                continue
            tail = re.compile(r"\s*(?:const\b|noexcept\b|override\b|\s)*(?::\s*[^;{}]*(?:\{[^{};]*\}[^;{}]*)*)?\{").match(self.code, close + 1)
            if not tail or re.match(r"\s*\)", self.code[close + 1:close + 20]):
                continue
            opening = tail.end() - 1
            end = self.matching(opening)
            if end is not None and not re.search(r"[=,(]\s*$", self.code[:match.start()][-20:]):
                yield Function(match.group(1), match.start(), Span(opening + 1, end))

    @functools.cached_property
    def statements(self):
        """[Span] of expression statements within functions, ';' included, in order."""
        found = []
        for match in re.finditer(r"(?<=[;{}])\s*(?=[^\s;{}])", self.code):
            begin = match.end()
            while macro := re.compile(r"TANDEM_\w+\s*").match(self.code, begin):
                begin = macro.end()
            end = self._statement_end(begin)
            if end is None or self.function_at(begin) is None or DECLARATION.match(self.code, begin):
                continue
            if self._in_parentheses(begin):
                continue
            found.append(Span(begin, end))
        found += self._single_bodies()
        return sorted(set(found), key=lambda s: s.begin)

    def _single_bodies(self):
        """Bodies without braces, of if and for."""
        for match in re.finditer(r"\b(?:if(?: constexpr)?|for) \(", self.code):
            close = self.matching(match.end() - 1)
            begin = None if close is None else re.compile(r"\s*").match(self.code, close + 1).end()
            if begin is None or self.code[begin] == "{" or DECLARATION.match(self.code, begin):
                continue
            end = self._statement_end(begin)
            if end is not None and self.function_at(begin):
                yield Span(begin, end)

    def _statement_end(self, begin):
        at = begin
        while at < len(self.code):
            c = self.code[at]
            if c == ";":
                return at + 1
            if c in "})]":
                return None
            if c in CLOSING:
                close = self.matching(at)
                if close is None:
                    return None
                # A block at the statement's own level ends it: a definition or a control structure.
                if c == "{" and not re.match(r"\s*[;,.)(]", self.code[close + 1:]):
                    return None
                at = close
            at += 1
        return None

    def conditions(self):
        """[Span] of what stands in the parentheses of if and while."""
        for match in re.finditer(r"\b(?:if(?: constexpr)?|while) \(", self.code):
            close = self.matching(match.end() - 1)
            if close is not None and self.function_at(match.start()) and ";" not in self.code[match.end():close]:
                yield Span(match.end(), close)

    def calls(self, name, within):
        """Places of calls of a function or verb within a span, however qualified."""
        pattern = re.compile(rf"(?<![\w])(?:\w+(?:::|\.|->))*(?:template )?{re.escape(name)}(?:<[^;()]*?>)?\(")
        return [m.start() for m in pattern.finditer(self.code, within.begin, within.end)]
