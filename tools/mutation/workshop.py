# SPDX-License-Identifier: Apache-2.0
"""Builds and tests drawn mutants upon a build that is there.

Kernels are compiled here, in few variants and quickly, with their launchers and plans; of a mutant, only what comes from
the changed file. So are the tests of src/core. The other tests and the oracle stay as they are, and are linked from the
build.
"""

import concurrent.futures
import filecmp
import os
import re
import resource
import shlex
import shutil
import subprocess

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
OWN = re.compile(r"apps/sim/|tests/core/")  # objects that are compiled here
TEST = re.compile(r"bin/(core_test|sim_\w+_test)$")
FAULT = re.compile(r"^([a-z]+-[a-z-]+|deadlock|divergence|unfinished): .*$", re.MULTILINE)


def output_of(command, folder):
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


class Workshop:
    """A build that is ready for mutants."""

    def __init__(self, root, build, work, limit, runs):
        self.root, self.build, self.work = root, build.resolve(), work.resolve()
        self.limit = limit  # seconds of CPU for a test
        self.environment = dict(os.environ, TANDEM_SIM_RUNS=str(runs), OMP_NUM_THREADS="1")
        self._reduce_tables()
        inputs = {t: self._inputs(t) for t in self._tests()}
        self.objects = {t: [i for i in made if OWN.match(i) and i.endswith(".o")] for t, made in inputs.items()}
        self.tests = [t for t in inputs if self.objects[t]]
        linked = {i for t in self.tests for i in inputs[t] if not OWN.match(i)}
        subprocess.run(["ninja", "-C", self.build, *sorted(linked)], check=True, stdout=subprocess.DEVNULL)
        self._compile_unmutated()
        self.dependencies = {o: self._dependencies(o) for t in self.tests for o in self.objects[t]}
        self.left_out = {}

    def _reduce_tables(self):
        """Headers that come before the repository's, in which tables of kernels are made of chosen variants."""
        self.headers = self.work / "headers"
        made = {self.headers / "src/core/mutation_choice.h": CHOICE}
        for folder in ("apps/sim", "src/launch"):
            for header in (self.root / folder).glob("*.h"):
                changed, count = SEQUENCE.subn(r"tandem::mutation::Chosen<\1>", header.read_text())
                if count:
                    made[self.headers / folder / header.name] = changed.replace(
                        "#pragma once", '#pragma once\n#include "core/mutation_choice.h"')
        for header, text in made.items():
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
        return {os.path.relpath(os.path.join(self.build, word), self.root) for word in words if word[-1] not in "\\:"}

    def _is_new(self, target):
        """Whether an earlier draw has left the unmutated object, and nothing has changed since."""
        made = self.work / "unmutated" / target
        return made.exists() and all((self.root / file).stat().st_mtime < made.stat().st_mtime for file in self._dependencies(target))

    def _compile_unmutated(self):
        """What is linked where a mutant has changed nothing."""
        objects = {o for t in self.tests for o in self.objects[t]}
        failures = self._compile_all({o for o in objects if not self._is_new(o)}, self.work / "unmutated")
        if failures:
            raise RuntimeError(f"the unmutated kernels do not build: {failures[0]}")

    def _failing(self, test):
        """Tests that fail on the unmutated kernels: those that need variants which are not chosen."""
        if test in self.left_out:
            return self.left_out[test]
        program = self._link(test, set())
        done = self._run(program, [], fail_fast=False)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{test} of the unmutated kernels: {done.returncode}\n{done.stdout[-2000:]}")
        self.left_out[test] = re.findall(r"^\[  FAILED  \] ([\w/.]+)(?:,.*)?$", done.stdout, re.MULTILINE)
        return self.left_out[test]

    def _run(self, program, left_out, fail_fast=True):
        names = "-" + ":".join(["*d96_*", "*d128_*", "*d192_*", *left_out])
        environment = dict(self.environment, GTEST_FILTER=names, GTEST_FAIL_FAST="1" if fail_fast else "0")
        seconds = self.limit if fail_fast else 20 * self.limit

        def limited():
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        return subprocess.run([program], capture_output=True, text=True, errors="replace", env=environment, preexec_fn=limited)

    def _changed(self, test, file):
        """What a mutant of the file is compiled to, of the chosen head dims."""
        return [o for o in self.objects[test] if file in self.dependencies[o] and not OTHER_HEAD_DIM.search(o.rsplit("/", 1)[-1])]

    def reaches(self, file):
        """Whether any test's kernels or plans are compiled from the file."""
        return any(self._changed(test, file) for test in self.tests)

    def outcome(self, mutant):
        """('caught', 'passed', 'unchanged' or 'did not build', by what)."""
        mutated = self.work / "mutated"
        shutil.rmtree(mutated, ignore_errors=True)
        changed = mutated / mutant.file
        changed.parent.mkdir(parents=True)
        changed.write_text(mutant.apply((self.root / mutant.file).read_text()))
        again = {o for test in self.tests for o in self._changed(test, mutant.file)}
        failures = self._compile_all(again, mutated, mutant.file)
        if failures:
            return "did not build", next((line for line in failures[0].splitlines() if "error" in line), "")
        again = {o for o in again if not filecmp.cmp(mutated / o, self.work / "unmutated" / o, shallow=False)}
        if not again:
            return "unchanged", "the same machine code"
        for test in self.tests:
            if again & set(self.objects[test]):
                left_out = self._failing(test)
                done = self._run(self._link(test, again), left_out)
                if done.returncode != 0:
                    return "caught", self._reason(test, done)
        return "passed", ""

    def _compile_all(self, objects, folder, file=None):
        """What went wrong, if anything."""
        with concurrent.futures.ThreadPoolExecutor(2) as executor:
            return [f for f in executor.map(lambda o: self._compile(o, folder, file), sorted(objects)) if f]

    def _reason(self, test, done):
        fault = FAULT.search(done.stdout)
        if fault:
            return fault.group(1)
        if done.returncode == 1:
            return "wrong result" if test != "bin/core_test" else "core test"
        return "no end" if done.returncode in (-24, -9) else "crash"

    def _command(self, target):
        """The last command that makes a target, from the compiler on."""
        line = output_of(["ninja", "-t", "commands", target], self.build).splitlines()[-1]
        parts = [p.strip() for p in line.split("&&")]
        return shlex.split(next(p for p in parts if re.match(r"(\S*ccache )?\S*(c\+\+|g\+\+|clang\+\+)\S* ", p)))

    def _compile(self, target, folder, file):
        words = [w for w in self._command(target) if not w.endswith("ccache")]
        made = folder / target
        made.parent.mkdir(parents=True, exist_ok=True)
        words = [str(made) if w == target else f"{made}.d" if w == f"{target}.d" else w for w in words]
        if file is not None:
            words = [str(folder / file) if os.path.normpath(self.build / w) == str(self.root / file) else w for w in words]
        first = [f"-I{place}" for place in (folder / "src", self.headers, self.headers / "src")]
        done = subprocess.run([words[0], *first, *words[1:], "-O1", "-g0", "-w"], cwd=self.build, capture_output=True, text=True)
        return done.stderr if done.returncode else ""

    def _link(self, test, again):
        """The test with these objects in place of the build's, and of the archives that hold those."""
        words = [w for w in self._command(test) if not (OWN.match(w) and w.endswith(".a"))]
        for o in self.objects[test]:
            made = str(self.work / ("mutated" if o in again else "unmutated") / o)
            if o in words:
                words[words.index(o)] = made
            else:
                words.insert(words.index("-o"), made)
        program = self.work / "program"
        words[words.index("-o") + 1] = str(program)
        subprocess.run(words, cwd=self.build, check=True, capture_output=True)
        return program
