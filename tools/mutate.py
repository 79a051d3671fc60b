#!/usr/bin/env python3
"""Breaks the kernels on purpose, one way at a time, and counts what the software Hopper catches.

Each mutant of the list (tools/mutants) is one change of a copy of the sources; the copy is built and the tests of the
mutant's kernels run in the simulator. A mutant is caught if a test fails or never ends. Writes a
CSV row per mutant and prints the score. With --draw N --seed S the mutants are drawn instead, over all code of the device
and all that plans it (tools/mutation/drawn.py), and built and tested in small (tools/mutation/workshop.py); with --quick
the list is too: what passes then has passed a sample of the tests only.
tools/mutate_gpu.py does the same on a GPU, and tools/mutate_table.py puts the two side by side.
"""

import argparse
import collections
import concurrent.futures
import csv
import difflib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from mutants import MUTANTS
from mutation import drawn, located
from mutation.workshop import Workshop

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPIED = ("CMakeLists.txt", "cmake", "include", "src", "apps", "tests", "bench", "tools", "examples", "python", "LICENSE")
HEAD_DIMS = (64, 96, 128, 192, 256)
OTHER_GROUPS = {"Group<512>": "Group<512>", "LatentGroup<576>": "LatentGroup<latent_dim>",
                "TwoPartGroup<576>": "TwoPartGroup<latent_dim>",
                "PairedLatentGroup<576>": "PairedLatentGroup<latent_dim>"}  # of decode, with head dims of their own
LATENT_DIM, LATENT_GROUP = 576, "PairedLatentGroup<576>"
WIDE_DIM = 512  # of the forward
ALL_DIMS = 0
TESTS_OF = {"plans": "*", "mixed": "*-MixedDraws.*", "prefix": "*",  # which to run of a kernel's program; else those of variants
            "varlen": "Variants/*:TileListTest.*:AppendOnSim.*:VarlenOnSim*:*ListedVarlenTails*d{head_dim}"}
FAMILIES = {  # what to draw in, and the programs that test it
    "forward": (("src/forward", "src/tile"), ("sim_forward_test", "sim_varlen_test", "sim_mixed_test")),
    "decode": (("src/decode", "src/core/stream_k.h"), ("sim_decode_test", "sim_mixed_test", "sim_prefix_test")),
    "backward": (("src/backward",), ("sim_backward_test",)),
    "small": (("src/merge", "src/quantize"), ("sim_merge_test", "sim_quantize_test")),
}


def replace_once(file, old, new):
    """Changes a file's text where `old` stands, exactly once; the text that it had."""
    text = file.read_text()
    if text.count(old) != 1:
        sys.exit(f"{file} has not exactly one {old!r}")
    file.write_text(text.replace(old, new))
    return text


def leave_out(source, head_dim, kept=()):
    """Takes the kernels of a head dim out of a copy, and the other groups but those kept; the tests run what there is."""
    replace_once(source / "src/forward/table.h", f"  all.template operator()<{head_dim}>();\n", "")
    forward = source / "src/forward/groups.cmake"
    forward.write_text(re.sub(rf" {head_dim}\b", "", forward.read_text()))
    decode = source / "src/decode/groups.cmake"
    if f"Group<{head_dim}>" in decode.read_text():
        decode.write_text(re.sub(rf" (Study|Listed|Sharing|Paired|EightBit|Hadamard|Int8)?Group<{head_dim}>", "", decode.read_text()))
        replace_once(source / "src/decode/table.h", f"  all.template operator()<{head_dim}>();\n", "")
    for group, name in OTHER_GROUPS.items():
        if group not in kept and f" {group}" in decode.read_text():
            decode.write_text(decode.read_text().replace(f" {group}", ""))
            replace_once(source / "src/decode/table.h", f"  visit.template operator()<{name}>();\n", "")


def leave_out_wide(source):
    """Takes the forward's kernels of WIDE_DIM out of a copy."""
    replace_once(source / "src/forward/table.h", "  visit.template operator()<wide_head_dim, Purpose::best>();\n", "")
    replace_once(source / "src/forward/groups.cmake", f'list(APPEND groups "Group<{WIDE_DIM}, Purpose::best>")\n', "")


def copy_for(mutant):
    """Which copy of the sources it takes: that of its head dim, or of plans, which are tested over all, ALL_DIMS."""
    return ALL_DIMS if mutant.kernel == "plans" else mutant.head_dim


def copy_sources(head_dim, work):
    """A copy of the sources with the kernels of one head dim only, or all, configured. Those of LATENT_DIM and WIDE_DIM
    have d64 beside them."""
    source, build = work / f"d{head_dim}" / "source", work / f"d{head_dim}" / "build"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, copy_function=shutil.copy)  # new times: all is rebuilt
        else:
            shutil.copy(ROOT / name, source / name)
    for other in HEAD_DIMS if head_dim != ALL_DIMS else ():
        if other != (64 if head_dim in (LATENT_DIM, WIDE_DIM) else head_dim):
            leave_out(source, other, [LATENT_GROUP] if head_dim == LATENT_DIM else [])
    if head_dim not in (WIDE_DIM, ALL_DIMS):
        leave_out_wide(source)
    options = ["-G", "Ninja", "-DTANDEM_HOPPER=OFF"]
    subprocess.run(["cmake", "-S", source, "-B", build, *options], check=True, stdout=subprocess.DEVNULL)
    return source, build


def build_and_test(build, kernel, head_dim, runs, limit):
    """What came of it: 'passed', 'did not build' or 'caught', and the first fault or failure."""
    test = f"sim_{kernel}_test"
    done = subprocess.run(["ninja", "-C", build, test], capture_output=True, text=True)
    if done.returncode != 0:
        return "did not build", done.stdout[-2000:]
    environment = dict(os.environ, TANDEM_SIM_RUNS=str(3 * runs), GTEST_FAIL_FAST="1",
                       GTEST_FILTER=tests_of(kernel, head_dim))
    try:
        done = subprocess.run([build / "bin" / test], capture_output=True, text=True, timeout=limit, env=environment)
    except subprocess.TimeoutExpired:
        return "caught", "no end"
    if done.returncode == 0:
        return "passed", ""
    fault = re.search(r"^([a-z]+-[a-z-]+|deadlock|divergence|unfinished): .*$", done.stdout, re.MULTILINE)
    return "caught", fault.group(1) if fault else "wrong result" if done.returncode == 1 else "crash"


def tests_of(kernel, head_dim):
    """A filter for those of a program that need no kernels of other head dims."""
    of_variants = "Variants/*d{head_dim}*" if head_dim == LATENT_DIM else "Variants/*"
    return TESTS_OF.get(kernel, of_variants).format(head_dim=head_dim)


def seed_of(text):
    """A number, or that of the day, so that what runs every day draws something else."""
    return int(time.strftime("%Y%m%d")) if text == "today" else int(text)


def family_of(text):
    """A family's name, or that of the day: each in turn."""
    return list(FAMILIES)[int(time.time() // 86400) % len(FAMILIES)] if text == "today" else text


def check_table():
    """Whether the sources have the place of every mutant; says of which not."""
    stale = 0
    for mutant in MUTANTS:
        try:
            mutant.text()
        except located.Stale as why:
            stale += 1
            print(f"stale: {mutant.name}: {why}", file=sys.stderr)
    return stale == 0


def row_of(mutant, outcome, by, began):
    return {"mutant": mutant.name, "kind": mutant.kind, "file": mutant.file, "head_dim": mutant.head_dim,
            "outcome": outcome, "by": by.splitlines()[0] if by else "", "seconds": f"{time.monotonic() - began:.0f}"}


def run_mutant(mutant, copies, arguments):
    source, build = copies[copy_for(mutant)]
    file = source / mutant.file
    original = file.read_text()
    file.write_text(mutant.text())
    began = time.monotonic()
    try:
        outcome, by = build_and_test(build, mutant.kernel, mutant.head_dim, arguments.runs, arguments.limit)
    finally:
        file.write_text(original)
    return row_of(mutant, outcome, by, began)


def run_in_full(chosen, arguments):
    """A row for each mutant, or None where the tests of the unmutated kernels do not pass."""
    copies = {d: copy_sources(d, arguments.work) for d in sorted({copy_for(m) for m in chosen})}
    for kernel, head_dim in dict.fromkeys((m.kernel, copy_for(m)) for m in chosen):
        outcome, by = build_and_test(copies[head_dim][1], kernel, head_dim, arguments.runs, arguments.limit)
        if outcome != "passed":
            print(f"the unmutated {kernel} kernels of head dim {head_dim}: {outcome} {by}", file=sys.stderr)
            return None
    return (run_mutant(mutant, copies, arguments) for mutant in chosen)


def as_drawn(mutant):
    """A mutant of the list as one that the workshop takes."""
    file, span, edits = located.edits(mutant.where, mutant.change)
    line = located.sources()[file].line
    return drawn.Drawn(mutant.kind, file, line(edits[0][0].begin), mutant.where, tuple(edits), mutant.name,
                       (line(span.begin), line(span.end)))


def run_quickly(chosen, arguments):
    workshop = Workshop(ROOT, arguments)
    workshop.prepare()

    def row(mutant):
        began = time.monotonic()
        outcome, by = workshop.outcome(as_drawn(mutant))
        return row_of(mutant, outcome, by.rpartition(" (")[0] or by, began)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as executor:
        yield from executor.map(row, chosen)


def write_rows(rows, path):
    """Writes each as it comes; all of them."""
    written = []
    with open(path, "w", newline="") as out:
        for row in rows:
            if not written:
                table = csv.DictWriter(out, fieldnames=row.keys(), lineterminator="\n")
                table.writeheader()
            table.writerow(row)
            out.flush()
            print(", ".join(map(str, row.values())), flush=True)
            written.append(row)
    return written


def say(line):
    """A line at once: others are written at the same time."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def patch_of(mutant):
    """What a mutant changes, as diff shows it."""
    text = (ROOT / mutant.file).read_text()
    lines = difflib.unified_diff(text.splitlines(True), mutant.apply(text).splitlines(True), mutant.file, mutant.file, n=4)
    return f"## {mutant.name}\n{''.join(lines)}\n"


def drawn_in_turn(arguments, files):
    """(seed, mutant): one of each seed, then the next, so that seeds are even where time runs out."""
    draws = [drawn.draw(ROOT, files, arguments.draw, seed) for seed in arguments.seed]
    return [(seed, mutant) for some in zip(*draws) for seed, mutant in zip(arguments.seed, some)]


def is_chosen(name, arguments):
    return any(part in name for part in arguments.only)


def run_drawn(arguments):
    """Draws mutants, tests them side by side, and writes a row for each; prints those that nothing caught."""
    began = time.monotonic()
    workshop = Workshop(ROOT, arguments)
    workshop.prepare()
    print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
    began = time.monotonic()
    files = [file for file in drawn.device_files(ROOT) if is_chosen(file, arguments) and workshop.reaches(file)]
    counts = collections.Counter()

    def outcome(some):
        at = time.monotonic()
        if at - began > arguments.time:
            return None
        say(f"begun: {some[1].name}")
        return (*some, *workshop.outcome(some[1]), time.monotonic() - at)

    with open(arguments.out, "w", newline="") as out, open(arguments.out.with_suffix(".diff"), "w") as patches:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(("seed", "operator", "file", "line", "function", "what", "outcome", "by", "seconds"))
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as executor:
            done = [executor.submit(outcome, some) for some in drawn_in_turn(arguments, files)]
            for row in filter(None, (future.result() for future in concurrent.futures.as_completed(done))):
                seed, mutant, result, by, seconds = row
                table.writerow((seed, mutant.operator, mutant.file, mutant.line, mutant.function, mutant.what, result, by, f"{seconds:.0f}"))
                out.flush()
                if result == "passed":
                    patches.write(patch_of(mutant))
                    patches.flush()
                say(f"{result}: {mutant.name} ({by})" if by else f"{result}: {mutant.name}")
                counts[result] += 1
    built = counts["caught"] + counts["passed"]
    print(f"seed {' '.join(map(str, arguments.seed))}: caught {counts['caught']} of {built}; "
          f"{counts.total() - built} did not build or change no machine code; {len(done) - counts.total()} had no time")
    return counts["caught"], built


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for the copies and their builds")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="CSV file for the table")
    parser.add_argument("--only", nargs="+", default=[""], help="run mutants whose name contains one of these; draw in files whose path does")
    parser.add_argument("--draw", type=int, default=0, help="draw so many mutants of each seed instead")
    parser.add_argument("--quick", action="store_true", help="run the list as drawn mutants are run")
    parser.add_argument("--seed", type=seed_of, nargs="+", default=[1], help="of the draw, or 'today' (default 1)")
    parser.add_argument("--jobs", type=int, default=1, help="of a draw or --quick: mutants that are built and tested side by side (default 1)")
    parser.add_argument("--time", type=float, default=float("inf"), help="of a draw: begin none so many seconds after all is ready")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cpu", help="of a draw: the build to draw upon")
    parser.add_argument("--tests", nargs="+", default=[], help="of a draw: test programs to run (default: all of kernels and plans)")
    parser.add_argument("--budget", type=float, default=15,
                        help="of a draw: seconds of tests for a mutant that the first ones miss, and of more draws (default 15)")
    parser.add_argument("--at-least", type=float, default=0, help="of a draw: fail where a smaller part is caught")
    parser.add_argument("--family", choices=[*FAMILIES, "today"],
                        help="of a draw: in place of --only and --tests, those of these kernels, or of the day's")
    parser.add_argument("--runs", type=int, default=3, help="problems per variant and policy (default 3)")
    parser.add_argument("--limit", type=int, default=300, help="seconds for one mutant's tests (default 300)")
    arguments = parser.parse_args()
    if arguments.family is not None:
        arguments.only, arguments.tests = FAMILIES[family_of(arguments.family)]
    if not check_table():
        return 2
    if arguments.draw:
        caught, built = run_drawn(arguments)
        return 0 if caught >= arguments.at_least * built else 1
    chosen = [m for m in MUTANTS if is_chosen(m.name, arguments)]
    rows = (run_quickly if arguments.quick else run_in_full)(chosen, arguments)
    if rows is None:
        return 2
    rows = write_rows(rows, arguments.out)
    caught = sum(row["outcome"] == "caught" for row in rows)
    built = sum(row["outcome"] != "did not build" for row in rows)
    print(f"caught {caught} of {built}; {len(rows) - built} did not build")
    return 0


if __name__ == "__main__":
    sys.exit(main())
