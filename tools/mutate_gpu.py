#!/usr/bin/env python3
"""Breaks the kernels on purpose, one way at a time, and counts what a Hopper GPU and compute-sanitizer show of it.

The mutants are those of tools/mutate.py, of the forward kernels only. For each, a small program (tests/mutants) is compiled whose kernels come from
the mutated source, in the variants that meet it; it compares its results with the float64 oracle. The program runs
plainly, and once under each of compute-sanitizer's memcheck, racecheck and synccheck. Before them, the same programs
run unmutated: what is not right, or not clean, there tells nothing, and its column says "unusable" for these kernels.

Needs the CUDA toolkit, g++ and a GPU; nothing else. Rows of mutants that --out has already are kept, so
a run that ended at its limit is continued by the same command. Exit codes: 0 all mutants have a row; 1 the limit came
first, or some did not compile; 2 no run was possible.
"""

import argparse
import collections
import concurrent.futures
import csv
import dataclasses
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import mutants
from mutate import ROOT, check_table

TOOLS = ("memcheck", "racecheck", "synccheck")
FIELDS = ("mutant", "kind", "file", "head_dim", "plain", *TOOLS, "seconds")
UNMUTATED = "unmutated"  # the kind of the rows of whole kernels
KERNEL = "forward"  # whose mutants the program of tests/mutants shows

INCLUDES = [f"-I{ROOT / folder}" for folder in ("src", "include", ".")]
CUDA_FLAGS = ("-std=c++20", "-O3", "--generate-code=arch=compute_90a,code=[sm_90a]", "--expt-relaxed-constexpr",
              "-lineinfo")
HOST_FLAGS = ("-std=c++20", "-O2", "-Xcompiler", "-pthread,-ffunction-sections")
# device.cpp also asks the C interface, which is not here: nobody calls that part, and the linker leaves it out.
LINK_FLAGS = ("-Xcompiler", "-pthread", "-Xlinker", "--gc-sections")
HOST_SOURCES = ("tests/mutants/probe.cpp", "src/forward/cost.cpp", "src/forward/plan.cpp", "src/hw/tensor_map.cpp",
                "src/cpu/parallel.cpp", "src/cpu/reference.cpp", "tests/support/block_list_case.cpp", "tests/support/compare.cpp",
                "tests/support/forward_case.cpp", "tests/support/gather.cpp", "tests/support/host_tensor.cpp",
                "tests/support/standard.cpp", "tests/gpu/device.cpp")
KERNELS = """#include "tests/mutants/probe_kernels.cuh"

namespace tandem::test {{
struct List {{
  static constexpr std::array variants{{
      {}}};
}};
std::span<const ProbeKernel> probe_kernels() {{ return make_probe_kernels<List>(); }}
}}  // namespace tandem::test
"""

PLAIN_REPEATS, PLAIN_PATIENCE = 20, 5  # launches of each problem; seconds for one launch
TOOL_REPEATS, TOOL_PATIENCE = 1, 8
START_SECONDS = 25  # what a program may take beside one launch that hangs, before it is killed
FIRST_PORT, PORTS = 20000, 20  # each runner's own, where compute-sanitizer and the program meet
EXIT_CODES = {0: "right", 1: "wrong result", 2: "CUDA error", 3: "hang"}  # of the program

SUMMARY = re.compile(r"^========= (?:ERROR|RACECHECK) SUMMARY: (\d+)", re.MULTILINE)
LINE = re.compile(r"^========= (\S.*)$", re.MULTILINE)
NO_REPORT = re.compile(r"COMPUTE-SANITIZER|\w+ SUMMARY|Target application|Internal Sanitizer Error"
                       r"|(Error|Warning): (?!Race)")
SAID = re.compile(r"^probe: (right|wrong|CUDA error|hang)\b", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Variant:
    """What distinguishes the variants of a probe (probe_variant in tests/mutants/probe_kernels.cuh)."""
    head_dim: int
    overlap: str
    turn: str
    block_m: int = 128

    def __str__(self):
        return f"d{self.head_dim} {self.overlap} {self.turn} {self.block_m}"

    def source(self):
        return (f"probe_variant({self.head_dim}, forward::Overlap::{self.overlap}, "
                f"forward::TurnPolicy::{self.turn}, {self.block_m})")


@dataclasses.dataclass(frozen=True)
class Probe:
    """One program: kernels of some variants, from mutated sources or (mutant None) as they are."""
    name: str
    variants: tuple
    mutant: object = None


def variants_of(mutant):
    """Two variants that meet the changed line, or the one that does."""
    pairs = {"overlap_serial": (("serial", "pingpong"), ("serial", "free")),
             "overlap_two_stage": (("two_stage", "free"), ("two_stage", "pingpong")),
             "overlap_three_stage": (("three_stage", "free"), ("three_stage", "pingpong")),
             "pingpong": (("serial", "pingpong", 192), ("two_stage", "pingpong")),  # of three consumers, and of two
             "variant": (("serial", "pingpong", 192),)}  # the registers of three consumers
    chosen = pairs.get(pathlib.Path(mutant.file).stem, (("serial", "pingpong"), ("two_stage", "free")))
    return tuple(Variant(mutant.head_dim, *pair) for pair in chosen)


def run_limited(command, limit, log):
    """The exit code and output of a command; None if it did not end in time. It and its children are killed then."""
    environment = dict(os.environ, OMP_NUM_THREADS="2")
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   env=environment, start_new_session=True)
    try:
        code = process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        code = None
        os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            print(f"{command}: can't be killed; see {log}", file=sys.stderr)
    return code, log.read_text(errors="replace")


def plain_outcome(code, output):
    if code is None:
        return "hang"
    if code in EXIT_CODES:
        return EXIT_CODES[code]
    return f"failed: exit code {code} {last_line(output)}".strip()


def tool_outcome(code, output):
    """'clean', 'reports: LINE', 'hang', 'CUDA error' (of which the tool says nothing) or 'failed: LINE'."""
    summary = SUMMARY.search(output)
    lines = [line.strip() for line in LINE.findall(output) if not NO_REPORT.match(line)]
    if int(summary.group(1)) > 0 if summary else lines:
        return "reports: " + (lines[0] if lines else summary.group(0).removeprefix("========= "))
    said = SAID.findall(output)
    if code is None or "hang" in said:
        return "hang"
    if "CUDA error" in said:
        return "CUDA error"
    if summary and said:
        return "clean"
    return f"failed: {last_line(output)}"


def last_line(output):
    lines = output.split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "no output")


def doubtful(row):
    """Columns that another column contradicts: a hang or an error that may be the machine's load, not the mutant."""
    bad = ("hang", "CUDA error", "failed")
    if not row["plain"].startswith(bad):
        return [tool for tool in TOOLS if row[tool].startswith(bad)]
    return ["plain"] if any(row[tool] == "clean" for tool in TOOLS) else []


class Builder:
    """Compiles probes below `work`."""

    def __init__(self, work):
        self.work, self.host, self.logs = work, work / "host", work / "logs"
        shutil.rmtree(work, ignore_errors=True)
        self.host.mkdir(parents=True)
        self.logs.mkdir()

    def object_of(self, source):
        return self.host / (source.replace("/", "-") + ".o")

    def build_host(self, executor):
        """The host side, once for all; returns what went wrong."""
        commands = [["nvcc", *HOST_FLAGS, *INCLUDES, "-c", ROOT / source, "-o", self.object_of(source)]
                    for source in HOST_SOURCES]
        return "".join(executor.map(self.failure_of, commands))

    def build(self, probe):
        """The program of a probe, or None and what went wrong."""
        folder = self.work / slug(probe.name)
        folder.mkdir()
        source, made, program, depends = (folder / name for name in ("kernels.cu", "kernels.o", "probe", "kernels.d"))
        lines = ",\n      ".join(variant.source() for variant in probe.variants)
        source.write_text(KERNELS.format(lines))
        includes = list(INCLUDES)
        if probe.mutant:  # every include of a header in src is written from src, so the first folder that has it wins
            changed = folder / probe.mutant.file
            changed.parent.mkdir(parents=True)
            changed.write_text(probe.mutant.text())
            includes.insert(0, f"-I{folder / 'src'}")
        failure = self.failure_of(["nvcc", *CUDA_FLAGS, *includes, "-MD", "-MF", depends, "-c", source, "-o", made])
        if not failure and probe.mutant and str(changed) not in depends.read_text():
            failure = f"{probe.mutant.file} is not a part of the program\n"
        objects = [self.object_of(name) for name in HOST_SOURCES]
        failure = failure or self.failure_of(["nvcc", *CUDA_FLAGS, *LINK_FLAGS, made, *objects, "-o", program])
        return (None, failure) if failure else (program, "")

    @staticmethod
    def failure_of(command):
        done = subprocess.run(command, capture_output=True, text=True)
        return "" if done.returncode == 0 else f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"


class Runner:
    """Runs programs on the GPU, a few at a time."""

    def __init__(self, logs, lanes):
        self.logs, self.lanes = logs, queue.Queue()
        for lane in range(lanes):
            self.lanes.put(lane)
        text = subprocess.run(["compute-sanitizer", "--help"], capture_output=True, text=True).stdout
        self.has_port = "--port" in text

    def run(self, program, name, how, *, patience=1):
        """What comes of a program, 'plain' or under a tool; `patience` multiplies the time it gets."""
        log = self.logs / f"{slug(name)}.{how}.log"
        lane = self.lanes.get()
        try:
            if how == "plain":
                seconds = PLAIN_PATIENCE * patience
                command = [program, str(PLAIN_REPEATS), str(seconds)]
                return plain_outcome(*run_limited(command, seconds + START_SECONDS, log))
            port = ["--port", str(FIRST_PORT + PORTS * lane)] if self.has_port else []
            seconds = TOOL_PATIENCE * patience
            command = ["compute-sanitizer", "--tool", how, *port, program, str(TOOL_REPEATS), str(seconds)]
            return tool_outcome(*run_limited(command, seconds + START_SECONDS, log))
        finally:
            self.lanes.put(lane)


def slug(name):
    return re.sub(r"\W+", "-", name).strip("-").lower()


class Table:
    """The CSV file, complete after every change."""

    def __init__(self, path):
        self.path, self.rows, self.lock = path, {}, threading.Lock()
        if path.exists():
            with open(path, newline="") as file:
                self.rows = {row["mutant"]: row for row in csv.DictReader(file)}

    def put(self, row):
        with self.lock:
            self.rows[row["mutant"]] = row
            with open(self.path, "w", newline="") as file:
                table = csv.DictWriter(file, fieldnames=FIELDS)
                table.writeheader()
                table.writerows(self.rows.values())
            print(", ".join(str(row[field]) for field in FIELDS), flush=True)


class Session:
    def __init__(self, arguments):
        self.deadline = time.monotonic() + arguments.limit
        self.builder = Builder(arguments.work / "gpu")
        self.runner = Runner(self.builder.logs, arguments.lanes)
        self.table = Table(arguments.out)
        self.unusable = set()  # (variants, "plain" or tool) that are not right or clean on the unmutated kernels

    def late(self):
        return time.monotonic() > self.deadline

    def row_of(self, probe, outcomes, seconds):
        mutant = probe.mutant
        own = (mutant.kind, mutant.file, mutant.head_dim) if mutant else (UNMUTATED, "", probe.variants[0].head_dim)
        return dict(zip(FIELDS, (probe.name, *own, *outcomes, f"{seconds:.0f}")))

    def run_probe(self, probe, build):
        """Puts the row of a probe; the row, or None if the limit came first."""
        program, failure = build.result()
        began = time.monotonic()
        if failure:
            (self.runner.logs / f"{slug(probe.name)}.build.log").write_text(failure)
            row = self.row_of(probe, ["did not build", "", "", ""], 0)
            self.table.put(row)
            return row
        outcomes = []
        for how in ("plain", *TOOLS):
            if self.late():
                return None
            usable = self.unusable.isdisjoint({(probe.variants, how), (probe.variants, "plain")})
            outcomes.append(self.runner.run(program, probe.name, how) if usable else "unusable")
        row = self.row_of(probe, outcomes, time.monotonic() - began)
        self.table.put(row)
        return row

    def recheck(self, row, program):
        """What another column contradicts is run again, alone and with more patience."""
        for how in doubtful(row) if program else ():
            if not self.late():
                row = {**row, how: self.runner.run(program, row["mutant"] + " again", how, patience=2)}
                self.table.put(row)
        return row

    def settle_baseline(self, probe, row, program):
        """Notes what the unmutated kernels make unusable; whether any tool is left."""
        for how in ("plain", *TOOLS):
            good = "right" if how == "plain" else "clean"
            if row[how] != good:
                row[how] = self.runner.run(program, probe.name + " again", how, patience=4)
            if row[how] != good:
                self.unusable.add((probe.variants, how))
                print(f"WARNING: {probe.name}: {how}: {row[how]}; see {self.runner.logs}", file=sys.stderr)
        self.table.put(row)
        return row["plain"] == "right" and any(row[tool] == "clean" for tool in TOOLS)

    def run_baselines(self, probes, builds, runners):
        """Whether anything can be told of any mutant."""
        usable = 0
        for probe, row in zip(probes, runners.map(lambda p: self.run_probe(p, builds[p]), probes)):
            program, failure = builds[probe].result()
            if failure:
                self.unusable.add((probe.variants, "plain"))
                print(f"{probe.name} did not build:\n{failure}", file=sys.stderr)
            elif row:
                usable += self.settle_baseline(probe, row, program)
        return usable > 0

    def run_mutants(self, probes, builds, runners):
        """The rows of the mutants that were run before the limit."""
        alone = [p for p in probes if p.mutant.kind == "registers"]  # their warps may never leave the multiprocessor
        together = [p for p in probes if p not in alone]
        rows = list(runners.map(lambda p: self.run_probe(p, builds[p]), together))
        rows += [self.run_probe(p, builds[p]) for p in alone]
        return [self.recheck(row, builds[p].result()[0]) for p, row in zip(together + alone, rows) if row]

    def run(self, chosen, jobs, lanes):
        """Baselines, mutants, and what has to be looked at again. The exit code."""
        probes = [Probe(m.name, variants_of(m), m) for m in chosen if m.name not in self.table.rows]
        whole = [Probe(f"{UNMUTATED}: {', '.join(map(str, v))}", v) for v in dict.fromkeys(p.variants for p in probes)]
        with concurrent.futures.ThreadPoolExecutor(jobs) as compilers, \
                concurrent.futures.ThreadPoolExecutor(lanes) as runners:
            if failure := self.builder.build_host(compilers):
                print(failure, file=sys.stderr)
                return 2
            builds = {probe: compilers.submit(self.builder.build, probe) for probe in whole + probes}
            try:
                if whole and not self.run_baselines(whole, builds, runners):
                    print("the unmutated kernels don't pass: nothing can be told", file=sys.stderr)
                    return 2
                rows = self.run_mutants(probes, builds, runners)
            finally:
                compilers.shutdown(cancel_futures=True)
        return 0 if len(rows) == len(probes) and all(row["plain"] != "did not build" for row in rows) else 1


def missing_programs():
    return [name for name in ("nvcc", "g++", "compute-sanitizer", "nvidia-smi") if not shutil.which(name)]


def print_score(rows):
    rows = [row for row in rows if row["kind"] != UNMUTATED]
    for how in ("plain", *TOOLS):
        counts = collections.Counter(row[how].partition(":")[0] for row in rows)
        print(f"{how}: " + ", ".join(f"{name} {count}" for name, count in counts.most_common()))
    caught = sum(any(row[tool].startswith("reports") for tool in TOOLS) for row in rows)
    print(f"{len(rows)} mutants; compute-sanitizer reports {caught}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for the programs and logs, in gpu/")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="CSV file for the table")
    parser.add_argument("--only", default="", help="run mutants whose name contains this")
    parser.add_argument("--limit", type=int, default=540, help="seconds after which nothing new is run (default 540)")
    parser.add_argument("--jobs", type=int, default=max(1, os.cpu_count() * 3 // 4),
                        help="compilers at a time (default: three quarters of the cores)")
    parser.add_argument("--lanes", type=int, default=8, help="programs on the GPU at a time (default 8)")
    arguments = parser.parse_args()
    os.environ["PATH"] += os.pathsep + os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")
    if missing := missing_programs():
        print(f"not found: {', '.join(missing)}", file=sys.stderr)
        return 2
    if not check_table():
        return 2
    named = [m for m in mutants.MUTANTS if arguments.only in m.name]
    chosen = [m for m in named if m.kernel == KERNEL]
    if len(chosen) < len(named):
        print(f"left out: {len(named) - len(chosen)} mutants of other kernels than the {KERNEL}'s", file=sys.stderr)
    if not chosen:
        print(f"no mutant of the {KERNEL} kernels is called {arguments.only!r}", file=sys.stderr)
        return 2
    for command in (["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                    ["compute-sanitizer", "--version"]):
        print(subprocess.run(command, capture_output=True, text=True).stdout.strip(), flush=True)
    arguments.work, arguments.out = arguments.work.resolve(), arguments.out.resolve()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    session = Session(arguments)
    code = session.run(chosen, arguments.jobs, arguments.lanes)
    print_score(session.table.rows.values())
    return code


if __name__ == "__main__":
    sys.exit(main())
