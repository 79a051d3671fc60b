# SPDX-License-Identifier: Apache-2.0
"""Builds and tests drawn mutants upon a build that is there.

Kernels are compiled here, in few variants and quickly, with their launchers and plans; of a mutant, only what comes from
the changed file. So are the tests of src/core. The other tests and the oracle stay as they are, and are linked from the
build.
"""

import collections
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
import time

# Of each table: of the narrowest head dim, all variants of its first operand type and one of the next; of the widest,
# where registers are scarcest and other choices hold, four of all; of the others one, which is not tested.
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
  if constexpr (requires { table[0].head_dim; }) return table[0].head_dim == 64 ? table.size() / 2 + 1 : table[0].head_dim == 256 ? 4 : 1;
  return table.size();
}
template <auto table>
using Chosen = decltype(spread<table.size(), picks<table>()>());
}  // namespace tandem::mutation
"""
SEQUENCE = re.compile(r"std::make_index_sequence<((?:[\w:]|<[\w:, ]*>|\(\))+)\.size\(\)>")
OTHER_HEAD_DIM = re.compile(r"(?:^|_d?)(96|128|192)(?:_|\.|$)")
WIDE = re.compile(r"(?:^|_d?)256(?:_|\.|$)")
OWN = re.compile(r"apps/sim/|tests/core/")  # objects that are compiled here
TEST = re.compile(r"bin/(core_test|sim_\w+_test)$")
FAULT = re.compile(r"^([a-z]+-[a-z-]+|deadlock|divergence|unfinished): .*$", re.MULTILINE)


def reduce_tables(text):
    """A header whose tables of kernels are made of the chosen variants."""
    return SEQUENCE.sub(r"tandem::mutation::Chosen<\1>", text).replace("#pragma once", '#pragma once\n#include "core/mutation_choice.h"')


def output_of(command, folder):
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


OPTIMISED = ("-O2", "-fno-sanitize=thread,bounds")
MEMORY = 48 << 30  # address space of a test: those of far offsets map much and use little


@dataclasses.dataclass(frozen=True, eq=False)
class Round:
    """Kernels and draws that a mutant is tested with."""
    without: re.Pattern | None  # the objects that are left as they are
    environment: dict

    def has(self, target):
        return self.without is None or not self.without.search(target.rsplit("/", 1)[-1])

    @property
    def left_out(self):
        return [] if self.without is None else ["*d256_*"]


class Workshop:
    """A build that is ready for mutants, of which `jobs` are made and tested side by side."""

    def __init__(self, root, options):
        """`options`: of tools/mutate.py's command line."""
        self.root, self.build, self.work = root, options.build.resolve(), options.work.resolve()
        self.limit, self.jobs = options.limit, options.jobs  # seconds of CPU for a test
        # The first draws of the narrowest kernels catch most; the others come where all these tests have passed.
        self.rounds = (Round(WIDE, {"TANDEM_SIM_RUNS": "1"}),
                       Round(None, {"TANDEM_SIM_FIRST": "2", "TANDEM_SIM_RUNS": str(max(1, options.runs - 1))}))
        self.places = queue.SimpleQueue()  # folders of mutants that are made at the same time
        for number in range(self.jobs):
            self.places.put(self.work / f"mutant{number}")
        self._reduce_tables()
        inputs = {t: self._inputs(t) for t in self._tests() if not options.tests or t.removeprefix("bin/") in options.tests}
        self.objects = {t: [i for i in made if OWN.match(i) and i.endswith(".o")] for t, made in inputs.items()}
        self.tests = [t for t in inputs if self.objects[t]]
        linked = {i for t in self.tests for i in inputs[t] if not OWN.match(i)}
        subprocess.run(["ninja", "-C", self.build, f"-j{max(2, self.jobs)}", *sorted(linked)], check=True, stdout=subprocess.DEVNULL)
        self._compile_unmutated()
        self.dependencies = {o: self._dependencies(o) for t in self.tests for o in self.objects[t]}
        self._left_out, self._lock = {}, threading.Lock()
        self.seconds = collections.Counter()  # that a test takes in a round, unmutated

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

    def _is_new(self, target):
        """Whether an earlier draw has left the unmutated object, and nothing has changed since."""
        made = self.work / "unmutated" / target
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
        """Finds the tests that fail on the unmutated kernels, which need variants that are not chosen."""
        for test in self.tests:
            self._failing(test)

    def _failing(self, test):
        with self._lock:
            if test not in self._left_out:
                self._left_out[test] = self._find_failing(test)
            return self._left_out[test]

    def _find_failing(self, test):
        """In as many parts as there are jobs."""
        program = self._link(test, set(), self.work / "unmutated")
        took = threading.Lock()

        def part(number, some):
            shard = {"GTEST_TOTAL_SHARDS": str(self.jobs), "GTEST_SHARD_INDEX": str(number), **some.environment}
            began = time.monotonic()
            done = self._run(program, some.left_out, 20 * self.limit, shard)
            with took:
                self.seconds[test, some] += time.monotonic() - began
            if done.returncode not in (0, 1):
                raise RuntimeError(f"{test} of the unmutated kernels: {done.returncode}\n{done.stdout[-2000:]}")
            return re.findall(r"^\[  FAILED  \] ([\w/.]+)(?:,.*)?$", done.stdout, re.MULTILINE)

        parts = [(number, some) for number in range(self.jobs) for some in self.rounds]
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as executor:
            return sorted({name for some in executor.map(lambda p: part(*p), parts) for name in some})

    def _run(self, program, left_out, seconds, environment):
        names = "-" + ":".join(["*d96_*", "*d128_*", "*d192_*", *left_out])
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
        for some in self.rounds:
            tests = self._tests_of(mutant.file)
            if some.without is None:
                # Before the tests that take long: most of what has passed so far means nothing.
                if failure := self._compile_changed({o for t in tests for o in self._changed(t, mutant.file)}, mutant.file, place, again):
                    return "did not build", failure
                if not any(again.values()):
                    return "unchanged", "the same machine code"
                if all(self._is_same_optimised(target, place, mutant.file) for target, is_other in again.items() if is_other):
                    return "unchanged", "the same machine code where it is optimised"
            for test in tests:
                if failure := self._compile_changed(filter(some.has, self._changed(test, mutant.file)), mutant.file, place, again):
                    return "did not build", failure
                others = {target for target, is_other in again.items() if is_other}
                if others & set(self.objects[test]):
                    if reason := self._reason(test, others, place, some):
                        return "caught", reason
        return "passed", ""

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

    def _reason(self, test, again, place, some):
        """What a test sees of a mutant, if anything."""
        program = self._link(test, again, place)
        left_out = [*self._failing(test), *some.left_out]
        limit = min(self.limit, int(20 + 3 * self.seconds[test, some]))  # what has no end is found early
        done = self._run(program, left_out, limit, {"GTEST_FAIL_FAST": "1", **some.environment})
        name = test.removeprefix("bin/")
        fault = FAULT.search(done.stdout)
        if fault:
            return f"{fault.group(1)} ({name})"
        if done.returncode == 1:
            return f"wrong result ({name})"
        return "" if done.returncode == 0 else f"no end ({name})" if done.returncode in (-24, -9) else f"crash ({name})"

    def _compile_all(self, objects, folder):
        """What went wrong, if anything."""
        with concurrent.futures.ThreadPoolExecutor(max(2, self.jobs)) as executor:
            return [f for f in executor.map(lambda o: self._compile(o, folder), sorted(objects)) if f]

    @functools.cache
    def _command(self, target):
        """The last command that makes a target, from the compiler on."""
        line = output_of(["ninja", "-t", "commands", target], self.build).splitlines()[-1]
        parts = [p.strip() for p in line.split("&&")]
        return tuple(shlex.split(next(p for p in parts if re.match(r"(\S*ccache )?\S*(c\+\+|g\+\+|clang\+\+)\S* ", p))))

    def _compile(self, target, folder, file=None, options=("-O1",)):
        """The compiler's words, if it failed. `file`: that of the mutant, which lies in the folder."""
        words = [w for w in self._command(target) if not w.endswith("ccache")]
        made = folder / target
        made.parent.mkdir(parents=True, exist_ok=True)
        words = [str(made) if w == target else f"{made}.d" if w == f"{target}.d" else w for w in words]
        if file is not None:
            words = [str(folder / file) if os.path.normpath(self.build / w) == str(self.root / file) else w for w in words]
        first = [f"-I{place}" for place in (folder, folder / "src", self.headers, self.headers / "src")]
        done = subprocess.run([words[0], *first, *words[1:], *options, "-g0", "-w"], cwd=self.build, capture_output=True, text=True)
        return (done.stderr or "no reason") if done.returncode else ""

    def _link(self, test, again, folder):
        """The test, made in the folder, with these objects of it in place of the build's, and of the archives that hold those."""
        words = [w for w in self._command(test) if not (OWN.match(w) and w.endswith(".a"))]
        for o in self.objects[test]:
            made = str((folder if o in again else self.work / "unmutated") / o)
            if o in words:
                words[words.index(o)] = made
            else:
                words.insert(words.index("-o"), made)
        program = folder / "program"
        words[words.index("-o") + 1] = str(program)
        subprocess.run(words, cwd=self.build, check=True, capture_output=True)
        return program
