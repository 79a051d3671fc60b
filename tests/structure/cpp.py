# SPDX-License-Identifier: Apache-2.0
"""Enough understanding of C++ to measure its functions."""
import dataclasses
import re

_NOT_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/"""                           # comments
    r"""|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)\""""         # raw strings
    r"""|"(?:\\.|[^"\\\n])*\""""                        # strings
    r"""|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'""",        # characters, not the separators of digits
    re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
# Parentheses that belong to these are no parameter list.
_NOT_A_NAME = {"alignas", "__attribute__", "__launch_bounds__", "requires", "decltype", "noexcept", "explicit",
               "sizeof", "if", "for", "while", "switch", "catch", "return"}
_NO_FUNCTION = re.compile(
    r"(class|struct|union|enum|namespace|using|typedef|extern\s*\"\"|friend\s+class|static_assert)\b")


@dataclasses.dataclass
class Function:
    name: str
    line: int  # the first one
    lines: int
    parameters: int


def _only_newlines(match):
    return "\n" * match.group(0).count("\n")


def blank(text):
    """The text without comments and what string literals hold; lines keep their numbers."""
    def replacement(match):
        quoted = match.group(0)[0] in "\"'R"
        return ('""' if quoted else " ") + _only_newlines(match)
    return _NOT_CODE.sub(replacement, text)


def _group_end(text, begin):
    """Index of the bracket that closes the one at `begin`; angle brackets count, arrows and comparisons do not."""
    pairs = {"(": ")", "[": "]", "{": "}", "<": ">"}
    expected = []
    for i in range(begin, len(text)):
        c = text[i]
        if c in pairs:
            expected.append(pairs[c])
        elif expected and c == expected[-1] and text[i - 1:i + 1] != "->":
            expected.pop()
            if not expected:
                return i
        elif c in ")]}" and expected:
            while expected and expected[-1] == ">":  # those were comparisons
                expected.pop()
            if expected and c == expected[-1]:
                expected.pop()
            if not expected:
                return i
    return len(text)


def _count_parameters(inside):
    if inside.strip() in ("", "void"):
        return 0
    count, i = 1, 0
    while i < len(inside):
        if inside[i] in "([{<":
            i = _group_end(inside, i)
        elif inside[i] == ",":
            count += 1
        i += 1
    return count


def _signature(head):
    """(name, number of parameters) of a declarator, or None if the text is none of a function."""
    head = head.strip()
    while match := re.match(r"(template|requires)\s*(?=[<(])|(public|private|protected)\s*:|\[\[", head):
        bracket = match.end() if match.group(1) else 0
        head = head[match.end():] if match.group(2) else head[_group_end(head, bracket) + 1:]
        head = head.lstrip("] \n\t")
    head = re.sub(r"operator\s*(\(\)|\[\]|[^\s\w(]+)", "operator_", head)
    if _NO_FUNCTION.match(head):
        return None
    for match in re.finditer(r"[\w~]+\s*(?=\()", head):
        name = match.group(0).strip()
        if "=" in head[:match.start()]:
            return None
        if name not in _NOT_A_NAME:
            end = _group_end(head, match.end())
            return name, _count_parameters(head[match.end() + 1:end])
    return None


def _measured(signature, code, begin, end):
    """The function whose declaration starts at or after `begin` and ends at `end`. Macros have no parameter list."""
    name, parameters = signature
    first = begin + len(code[begin:end]) - len(code[begin:end].lstrip())
    lines = code.count("\n", first, end) + 1
    is_macro = name.isupper() and len(name) > 3
    return Function(name, code.count("\n", 0, first) + 1, lines, 0 if is_macro else parameters)


def functions(code):
    """All functions outside of functions, declared or defined, in text that went through blank()."""
    code = _DIRECTIVE.sub(_only_newlines, code)
    found, scopes = [], []  # a scope is where its head begins, and its signature if it is a function's
    begin = depth = 0
    for i, c in enumerate(code):
        depth += (c in "([") - (c in ")]")
        if depth or c not in "{};":
            continue
        inside = any(signature for _, signature in scopes)
        if c == "{":
            scopes.append((begin, None if inside else _signature(code[begin:i])))
        elif c == "}" and scopes:
            start, signature = scopes.pop()
            if signature:
                found.append(_measured(signature, code, start, i))
        elif c == ";" and not inside and (signature := _signature(code[begin:i])):
            found.append(_measured(signature, code, begin, i))
        begin = i + 1
    return found
