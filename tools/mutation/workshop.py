# SPDX-License-Identifier: Apache-2.0
"""Builds and tests drawn mutants upon a build that is there.

Kernels are compiled here, in few variants and quickly, with their launchers and plans; of a mutant, only what comes from
the changed file. So are the tests of src/core. The other tests and the oracle stay as they are, and are linked from the
build. Of the tests those are run that come to the place of the mutant (coverage.py): a few seconds of them, then more, then
more draws of them and the widest head dim, and it ends at the first failure.
"""

import concurrent.futures
import dataclasses
import filecmp
import functools
import os
import pathlib
import queue
import re
import resource
import shlex
import shutil
import subprocess
import threading
from .coverage import Coverage, in_turn, within

# Of each table: of the narrowest head dim, all variants of its first operand type and one of the next; of the widest,
# where registers are scarcest and other choices hold, four of all; of the others one, which is not tested. Of small kernels,
# whose tables have all head dims, all.
CHOICE = """#pragma once
#include <cstddef>
#include <utility>
namespace tandem::mutation {
template <std::size_t size, std::size_t picks>
consteval auto spread() {
  return []<std::size_t... i>(std::index_sequence<i...>) {
    return std::index_sequence<(picks > size / 2 ? i : i * size / picks)...>{};
  }(std::make_index_sequence<(picks < size ? picks : size)>{});
}
template <auto table>
consteval std::size_t picks() {
  if constexpr (requires { table[0].head_dim; }) {
    if (table[0].head_dim != table[table.size() - 1].head_dim) return table.size();
    return table[0].head_dim == 64 ? table.size() / 2 + 1 : table[0].head_dim == 256 ? 4 : 1;
  }
  return table.size();
}
template <auto table>
using Chosen = decltype(spread<table.size(), picks<table>()>());
}  // namespace tandem::mutation
"""
SEQUENCE = re.compile(r"std::make_index_sequence<((?:[\w:]|<[\w:, ]*>|\(\))+)\.size\(\)>")
OTHER_HEAD_DIM = re.compile(r"(?:^|_d?)(96|128|192)(?:_|\.|$)")
WIDE = re.compile(r"(?:^|_d?)256(?:_|\.|$)")
OWN = re.compile(r"apps/sim/|tests/core/|tests/sim/.*tandem_plans")  # objects that are compiled here
NARROW_AND_WIDE = "-*d96_*:*d128_*:*d192_*"  # names of tests
TEST = re.compile(r"bin/(core_test|sim_\w+_test)$")
FAULT = re.compile(r"^([a-z]+-[a-z-]+|deadlock|divergence|unfinished): .*$", re.MULTILINE)


def reduce_tables(text):
    """A header whose tables of kernels are made of the chosen variants."""
    return SEQUENCE.sub(r"tandem::mutation::Chosen<\1>", text).replace("#pragma once", '#pragma once\n#include "core/mutation_choice.h"')


def output_of(command, folder):
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


OPTIMISED = ("-O2", "-g0", "-fno-sanitize=thread,bounds,bounds-strict")
MEMORY = 48 << 30  # address space of a test: those of far offsets map much and use little


FIRST_RUNS = 3  # of tests that draw: one under each policy
TASTE = 3  # seconds of a program's tests that come first
QUICK = ("-O1", "-g0")
COVERED = ("-O1", "-g1", "-fsanitize-coverage=trace-pc")


class Workshop:
    """A build that is ready for mutants, of which `jobs` are made and tested side by side."""

    def __init__(self, root, options):
        """`options`: of tools/mutate.py's command line."""
        self.root, self.build, self.work = root, options.build.resolve(), options.work.resolve()
        self.limit, self.jobs = options.limit, options.jobs  # seconds of CPU for a test program
        self.budget, self.more_runs = options.budget, FIRST_RUNS * max(1, options.runs - 1)
        self.places = queue.SimpleQueue()  # folders of mutants that are made at the same time
        for number in range(self.jobs):
            self.places.put(self.work / f"mutant{number}")
        self._reduce_tables()
        inputs = {t: self._inputs(t) for t in self._tests() if not options.tests or t.removeprefix("bin/") in options.tests}
        self.objects = {t: [i for i in made if OWN.match(i) and i.endswith(".o")] for t, made in inputs.items()}
        self.tests = [t for t in inputs if self.objects[t]]
        linked = {i for t in self.tests for i in inputs[t] if not OWN.match(i)}
        subprocess.run(["ninja", "-C", self.build, f"-j{self.jobs}", *sorted(linked)], check=True, stdout=subprocess.DEVNULL)
        self._compile_unmutated()
        self.dependencies = {o: self._dependencies(o) for t in self.tests for o in self.objects[t]}
        self._lock, self._coverages = threading.Lock(), {}

    def _reduce_tables(self):
        """Headers that come before the repository's, in which tables of kernels are made of chosen variants."""
        self.headers = self.work / "headers"
        self.reduced = {}  # by their names in the repository
        for folder in ("apps/sim", "src/launch"):
            for header in (self.root / folder).glob("*.h"):
                if SEQUENCE.search(header.read_text()):
                    self.reduced[f"{folder}/{header.name}"] = reduce_tables(header.read_text())
        for name, text in (self.reduced | {"src/core/mutation_choice.h": CHOICE}).items():
            header = self.headers / name
            if not header.exists() or header.read_text() != text:
                header.parent.mkdir(parents=True, exist_ok=True)
                header.write_text(text)

    def _tests(self):
        """Programs that run kernels or test what plans them; not those that test the simulator itself."""
        targets = output_of(["ninja", "-t", "targets", "all"], self.build)
        found = {line.split(":")[0] for line in targets.splitlines()}
        return sorted(t for t in found if TEST.match(t) and not re.search("verbs|fault|conformance|far", t))

    def _inputs(self, test):
        """Objects and libraries that the build makes for a test."""
        inputs = output_of(["ninja", "-t", "inputs", test], self.build).split()
        return [i for i in inputs if i.endswith((".o", ".a", ".so")) and not os.path.isabs(i)]

    def _dependencies(self, target):
        """Files of the repository that an object is compiled from."""
        words = (self.work / "unmutated" / f"{target}.d").read_text().split()
        files = {pathlib.Path(os.path.normpath(self.build / word)) for word in words if word[-1] not in "\\:"}
        return {str(f.relative_to(place)) for f in files for place in (self.headers, self.root) if f.is_relative_to(place)}

    def _is_new(self, target, folder="unmutated"):
        """Whether an earlier draw has left what is made of the unmutated sources, and nothing has changed since."""
        made = self.work / folder / target
        if not made.exists():
            return False
        files = [self.headers / f if (self.headers / f).exists() else self.root / f for f in self._dependencies(target)]
        return all(file.exists() and file.stat().st_mtime < made.stat().st_mtime for file in files)

    def _compile_unmutated(self):
        """What is linked where a mutant has changed nothing."""
        objects = {o for t in self.tests for o in self.objects[t]}
        failures = self._compile_all({o for o in objects if not self._is_new(o)}, self.work / "unmutated")
        if failures:
            raise RuntimeError(f"the unmutated kernels do not build: {failures[0]}")

    def prepare(self):
        """Finds out which tests execute what."""
        for test in self.tests:
            self._coverage(test)

    def _coverage(self, test):
        with self._lock:
            if test not in self._coverages:
                self._coverages[test] = self._find_coverage(test)
            return self._coverages[test]

    def _find_coverage(self, test):
        """Runs a test's first draws, in as many parts as there are jobs. Those fail that need variants that are not chosen."""
        folder = self.work / "coverage"
        program, report = folder / f"{test}.program", folder / f"{test}.report"
        again = {o for o in self.objects[test] if not OTHER_HEAD_DIM.search(o.rsplit("/", 1)[-1])}
        stale = {o for o in again if not self._is_new(o, "coverage")}
        if stale or not report.exists():
            report.unlink(missing_ok=True)  # an older one's is of another program
            if failures := self._compile_all(stale, folder, COVERED):
                raise RuntimeError(f"the unmutated kernels do not build: {failures[0]}")
            program.parent.mkdir(parents=True, exist_ok=True)
            self._link(test, again, folder, program, [str(self.root / "tools/mutation/coverage.cpp"), "-std=c++20"])

            def part(number):
                shard = {"GTEST_TOTAL_SHARDS": str(self.jobs), "GTEST_SHARD_INDEX": str(number), "TANDEM_SIM_RUNS": str(FIRST_RUNS),
                         "TANDEM_COVERAGE": f"{report}{number}"}
                pathlib.Path(f"{report}{number}").write_text("")
                done = self._run(program, NARROW_AND_WIDE, 20 * self.limit, shard)
                if done.returncode not in (0, 1) or FAULT.search(done.stdout):
                    raise RuntimeError(f"{test} of the unmutated kernels: {done.returncode}\n{done.stdout[-2000:]}")

            with concurrent.futures.ThreadPoolExecutor(self.jobs) as executor:
                list(executor.map(part, range(self.jobs)))
            report.write_text("".join(pathlib.Path(f"{report}{number}").read_text() for number in range(self.jobs)))
        return Coverage(program, report, (self.headers, self.root))

    def _run(self, program, names, seconds, environment):
        environment = dict(os.environ, GTEST_FILTER=names, OMP_NUM_THREADS="1", **environment)

        def limited():
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

        try:  # what sleeps for ever uses no CPU
            return subprocess.run([program], capture_output=True, text=True, errors="replace", env=environment,
                                  preexec_fn=limited, timeout=4 * seconds)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(program, -9, "", "")

    def _changed(self, test, file):
        """What a mutant of the file is compiled to, of the chosen head dims."""
        return [o for o in self.objects[test] if file in self.dependencies[o] and not OTHER_HEAD_DIM.search(o.rsplit("/", 1)[-1])]

    def reaches(self, file):
        """Whether any test's kernels or plans are compiled from the file."""
        return any(self._changed(test, file) for test in self.tests)

    def _tests_of(self, file):
        """Tests that a mutant of the file may fail: those of its own folder first, then the quickest to build."""
        tests = [t for t in self.tests if self._changed(t, file)]
        return sorted(tests, key=lambda t: (pathlib.Path(file).parent.name not in t, len(self._changed(t, file))))

    def outcome(self, mutant):
        """('caught', 'passed', 'unchanged' or 'did not build', by what)."""
        place = self.places.get()
        try:
            return self._outcome(mutant, place)
        finally:
            self.places.put(place)

    def _outcome(self, mutant, place):
        shutil.rmtree(place, ignore_errors=True)
        changed = place / mutant.file
        changed.parent.mkdir(parents=True)
        text = mutant.apply((self.root / mutant.file).read_text())
        changed.write_text(reduce_tables(text) if mutant.file in self.reduced else text)
        again = {}  # objects that were compiled: whether they are others now
        programs = self._tests_of(mutant.file)
        more = {}  # tests of the narrowest kernels that have not been run
        for test in programs:
            narrow = [o for o in self._changed(test, mutant.file) if not WIDE.search(o.rsplit("/", 1)[-1])]
            if failure := self._compile_changed(narrow, mutant.file, place, again):
                return "did not build", failure
            first, more[test] = within(self._tests_at(test, mutant, wide=False), TASTE)
            if reason := self._reason(test, again, place, first):
                return "caught", reason
        if reason := self._is_unchanged(mutant, place, again):
            return reason
        for test in programs:
            some, _ = within(more[test], self.budget / len(programs))
            if reason := self._reason(test, again, place, some):
                return "caught", reason
        for test in programs:
            drawn = [t for t in self._tests_at(test, mutant, wide=True) if t.draws or WIDE.search(t.name)]
            some, _ = within(drawn, self.budget / len(programs), self.more_runs / FIRST_RUNS)
            if reason := self._reason(test, again, place, some, {"TANDEM_SIM_FIRST": str(FIRST_RUNS + 1), "TANDEM_SIM_RUNS": str(self.more_runs)}):
                return "caught", reason
        return "passed", ""

    def _tests_at(self, test, mutant, wide):
        """Tests of a program that come to the mutant's place, in the order in which they are run; of the widest head dim too."""
        tests = self._coverage(test).tests_of(mutant.file, mutant.line, mutant.lines)
        return in_turn([(far, t) for far, t in tests if wide or not WIDE.search(t.name)])

    def _is_unchanged(self, mutant, place, again):
        """Compiles the widest head dim too. What to say of a mutant that did not build, or that means nothing; else None. Before
        the tests that take long: most of what has passed so far means nothing."""
        tests = self._tests_of(mutant.file)
        if failure := self._compile_changed({o for t in tests for o in self._changed(t, mutant.file)}, mutant.file, place, again):
            return "did not build", failure
        if not any(again.values()):
            return "unchanged", "the same machine code"
        if all(self._is_same_optimised(target, place, mutant.file) for target, is_other in again.items() if is_other):
            return "unchanged", "the same machine code where it is optimised"
        return None

    def _compile_changed(self, targets, file, place, again):
        """Compiles those that have not been; the error, if any."""
        for target in sorted(set(targets) - again.keys()):
            if failure := self._compile(target, place, file):
                return next((line for line in failure.splitlines() if "error" in line), failure[:200])
            again[target] = not filecmp.cmp(place / target, self.work / "unmutated" / target, shallow=False)
        return ""

    def _is_same_optimised(self, target, place, file):
        """Whether the optimiser makes the same of both: then the change means nothing, as where two values are computed
        in the other order."""
        known = self.work / "optimised"
        with self._lock:
            failed = not (known / target).exists() and self._compile(target, known, None, OPTIMISED)
        folder = place / "optimised"
        shutil.copytree(place / pathlib.Path(file).parts[0], folder / pathlib.Path(file).parts[0], dirs_exist_ok=True)
        failed = failed or self._compile(target, folder, file, OPTIMISED)
        return not failed and filecmp.cmp(folder / target, known / target, shallow=False)

    def _reason(self, test, again, place, some, environment=None):
        """What some tests of a program see of a mutant, if anything."""
        others = {target for target, is_other in again.items() if is_other}
        if not some or not others & set(self.objects[test]):
            return ""
        environment = {"GTEST_FAIL_FAST": "1", **(environment or {"TANDEM_SIM_RUNS": str(FIRST_RUNS)})}
        runs = int(environment["TANDEM_SIM_RUNS"]) / FIRST_RUNS
        limit = min(self.limit, int(10 + 3 * runs * sum(t.seconds for t in some)))  # what has no end is found early
        done = self._run(self._link(test, others, place, place / "program"), ":".join(t.name for t in some), limit, environment)
        name = test.removeprefix("bin/")
        fault = FAULT.search(done.stdout)
        if fault:
            return f"{fault.group(1)} ({name})"
        if done.returncode == 1:
            return f"wrong result ({name})"
        return "" if done.returncode == 0 else f"no end ({name})" if done.returncode in (-24, -9) else f"crash ({name})"

    def _compile_all(self, objects, folder, options=QUICK):
        """What went wrong, if anything."""
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as executor:
            return [f for f in executor.map(lambda o: self._compile(o, folder, None, options), sorted(objects)) if f]

    @functools.cache
    def _command(self, target):
        """The last command that makes a target, from the compiler on."""
        line = output_of(["ninja", "-t", "commands", target], self.build).splitlines()[-1]
        parts = [p.strip() for p in line.split("&&")]
        return tuple(shlex.split(next(p for p in parts if re.match(r"(\S*ccache )?\S*(c\+\+|g\+\+|clang\+\+)\S* ", p))))

    def _compile(self, target, folder, file=None, options=QUICK):
        """The compiler's words, if it failed. `file`: that of the mutant, which lies in the folder."""
        words = [w for w in self._command(target) if not w.endswith("ccache")]
        made = folder / target
        made.parent.mkdir(parents=True, exist_ok=True)
        words = [str(made) if w == target else f"{made}.d" if w == f"{target}.d" else w for w in words]
        if file is not None:
            words = [str(folder / file) if os.path.normpath(self.build / w) == str(self.root / file) else w for w in words]
        first = [f"-I{place}" for place in (folder, folder / "src", self.headers, self.headers / "src")]
        done = subprocess.run([words[0], *first, *words[1:], *options, "-w"], cwd=self.build, capture_output=True, text=True)
        return (done.stderr or "no reason") if done.returncode else ""

    def _link(self, test, again, folder, program, others=()):
        """The test, with these objects of the folder in place of the build's, and of the archives that hold those."""
        words = [w for w in self._command(test) if not (OWN.match(w) and w.endswith((".a", ".o")))]
        # First, so that of a function that other objects have too, the linker takes the mutant's.
        objects = sorted(self.objects[test], key=lambda o: o not in again)
        words[1:1] = [str((folder if o in again else self.work / "unmutated") / o) for o in objects]
        words[words.index("-o") + 1] = str(program)
        subprocess.run([*words, "-Wl,--allow-multiple-definition", *others], cwd=self.build, check=True, capture_output=True)
        return program
