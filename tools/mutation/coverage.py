# SPDX-License-Identifier: Apache-2.0
"""Which tests execute what, so that a mutant is tested by those that come to its place, the quickest first."""

import collections
import dataclasses
import os
import pathlib
import re
import subprocess


@dataclasses.dataclass
class Test:
    """A test of a program, and what it did on the unmutated kernels."""
    name: str
    seconds: float
    passed: bool
    places: set  # numbers of `Coverage.lines`

    @property
    def kind(self):
        """The test without the variant."""
        return self.name.rpartition("/")[0] if self.name.count("/") > 1 else self.name

    @property
    def variant(self):
        return self.name.rpartition("/")[2]

    @property
    def draws(self):
        """Whether it draws problems by seeds ($TANDEM_SIM_RUNS)."""
        return self.name.split("/")[-2 if "/" in self.name else -1].endswith("UnderEveryPolicy")


class Coverage:
    """Of one test program."""

    def __init__(self, program, report, folders):
        """`report`: what coverage.cpp wrote. `folders`: the repository, and what stands in for it."""
        rows = [line.split() for line in pathlib.Path(report).read_text().splitlines()]
        self.tests = [Test(name, int(ms) / 1000, passed == "1", {int(p, 16) for p in places}) for name, ms, passed, *places in rows]
        self.lines = collections.defaultdict(set)  # by file: (line, place)
        places = sorted(set().union(*(t.places for t in self.tests)))
        for place, file, line in frames(program, places):
            for folder in folders:
                if file.is_relative_to(folder):
                    self.lines[str(file.relative_to(folder))].add((line, place))

    def tests_of(self, file, line, function):
        """(how far it is, test) of tests that passed and come to the lines of a function, the first and the last; all tests
        where none does, since the compiler may have evaluated it. 0 are those that come as near to the line as any."""
        lines = [(at, place) for at, place in self.lines.get(file, ()) if function[0] <= at <= function[1]]
        passed = [test for test in self.tests if test.passed]
        anywhere = {place for _, place in lines}
        come = [test for test in passed if test.places & anywhere]
        nearest = max((at for at, _ in lines if at <= line), default=None)
        here = {place for at, place in lines if at == nearest}
        return [(0 if test.places & here else 1, test) for test in come] or [(0, test) for test in passed]


def frames(program, places):
    """(place, file, line) of each place, and of the functions that it is inlined in."""
    words = "\n".join(hex(place - 1) for place in places)  # within the call
    done = subprocess.run(["addr2line", "-a", "-i", "-e", program], input=words, capture_output=True, text=True, check=True)
    place = None
    for text in done.stdout.splitlines():
        if text.startswith("0x"):
            place = int(text, 16) + 1
        elif match := re.match(r"(/.*):(\d+)", text):
            yield place, pathlib.Path(os.path.normpath(match.group(1))), int(match.group(2))


def in_turn(tests):
    """Tests of [(how far, test)] in the order in which they tell most: of each kind the nearest, in a variant that no other has
    been run in, the quickest; then of each kind the next."""
    kinds = collections.defaultdict(list)
    for far, test in tests:
        kinds[test.kind].append((far, test))
    used, order = collections.Counter(), []
    while kinds:
        for kind in sorted(kinds, key=lambda k: min((far, t.seconds) for far, t in kinds[k])):
            best = min(kinds[kind], key=lambda x: (x[0], used[x[1].variant], x[1].seconds))
            kinds[kind].remove(best)
            used[best[1].variant] += 1
            order.append(best[1])
            if not kinds[kind]:
                del kinds[kind]
    return order


def within(tests, seconds, times=1):
    """So many tests from the front as have time, one at least; and the others."""
    count, left = 0, seconds
    while count < len(tests) and (left > 0 or count == 0):
        left -= times * tests[count].seconds
        count += 1
    return tests[:count], tests[count:]
