#!/usr/bin/env python3
"""Each place in the simulator that reports a fault has to be reached by a fault test.

usage: every_check_is_reached.py SIM_FAULT_TEST SOURCES

Runs the fault tests, which record where the simulator noticed each fault, and compares that with the places in
SOURCES (src/hw/sim) that report.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

REPORT = re.compile(r"\b(?:fail|record)\(\s*(?:Rule::\w+|rule),")
REPORTER = "fault.cpp"  # hands reports on


def statement(source, begin):
    """Lines of the call that begins at an offset: first and last."""
    depth = 0
    for i in range(source.index("(", begin), len(source)):
        depth += {"(": 1, ")": -1}.get(source[i], 0)
        if depth == 0:
            return range(source.count("\n", 0, begin) + 1, source.count("\n", 0, i) + 2)
    raise ValueError("a call without an end")


def places(sources):
    """(file, lines) of all that reports."""
    found = []
    for path in sorted(sources.glob("*.cpp")):
        text = path.read_text()
        if path.name != REPORTER:
            found += [(path.name, statement(text, match.start())) for match in REPORT.finditer(text)]
    return found


def reached(program):
    """(file, line) of all that the fault tests made report."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        subprocess.run([program, f"--gtest_output=json:{report}"], stdout=subprocess.DEVNULL, check=True)
        suites = json.loads(report.read_text())["testsuites"]
    checks = set()
    for suite in suites:
        for test in suite["testsuite"]:
            checks |= {value for key, value in test.items() if key.startswith("check_")}
    return {(pathlib.PurePath(check).name.split(":")[0], int(check.split(":")[1])) for check in checks}


def main():
    program, sources = sys.argv[1], pathlib.Path(sys.argv[2])
    all_places, hit = places(sources), reached(program)
    missed = [f"{file}:{lines[0]}" for file, lines in all_places if not any((file, at) in hit for at in lines)]
    unknown = [f"{file}:{at}" for file, at in hit if not any(file == f and at in lines for f, lines in all_places)]
    print(f"{len(all_places) - len(missed)} of {len(all_places)} places that report are reached")
    for place in missed:
        print(f"no test reaches {place}")
    for place in sorted(unknown):
        print(f"a report came from {place}, which this script does not find")
    return 1 if missed or unknown or not all_places else 0


if __name__ == "__main__":
    sys.exit(main())
