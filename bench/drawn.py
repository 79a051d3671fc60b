#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times Tandem on shapes that are drawn from a seed, beside every peer that can compute them, on a Hopper GPU.

Shapes are drawn log-uniformly (drawn_cases.py): forward passes, a few queries on long keys, decoding steps of one to
eight queries, and ragged ones. All peers of a shape take turns in one process, each replayed from a CUDA graph; decoding
finds nothing of its cache in L2. Sampled rows of each peer's output are checked against float64. Rows are written as
they come. The run ends in what share of the shapes is behind the best peer, the geometric mean, and the worst.

Needs PyTorch with CUDA, libtandem (TANDEM_LIBRARY) and this repository's python/ on PYTHONPATH; FlashAttention-3 takes
part where its module is installed. --summary reads a file of rows instead, and needs none of these.
"""

import argparse
import csv
import math
import statistics
import sys
import time
from pathlib import Path

from drawn_cases import DRAWN_COLUMNS, DRAWN_RESULTS, KINDS, draw

LEVEL = 0.99  # of the best peer's speed: below it a shape counts as behind
RECORDED = Path(__file__).resolve().parent / "results"


def run_case(case, arguments, telemetry, results):
    from drawn_peers import DRAWN_PEERS, Inputs, Replayed, right_calls
    from results import measure
    peers = [name for name in DRAWN_PEERS if name.split("_")[0] in arguments.peers]
    graphs, reasons = right_calls(Inputs(case, case.seed), peers, Replayed)
    for peer, reason in reasons.items():
        results.add({**case.columns(), "peer": peer, "note": reason})
    if not graphs:
        return
    times, meanwhile = measure(graphs, arguments.seconds_per_case, telemetry)
    for peer, graph in graphs.items():
        per_call = [1e3 * milliseconds / graph.calls for milliseconds in times[peer]]
        results.add({**case.columns(), "peer": peer, "us": f"{statistics.median(per_call):.2f}",
                     "us_min": f"{min(per_call):.2f}", **meanwhile})


def shapes(rows):
    """[(row of Tandem, {peer: us}, best peer, Tandem's speed against it)] of the shapes that have both."""
    grouped = {}
    for row in rows:
        key = tuple(str(row[name]) for name in DRAWN_COLUMNS[:DRAWN_COLUMNS.index("peer")])
        grouped.setdefault(key, []).append(row)
    found = []
    for of_shape in grouped.values():
        us = {row["peer"]: float(row["us"]) for row in of_shape if row["us"]}
        others = {peer: time for peer, time in us.items() if peer != "tandem"}
        if "tandem" in us and others:
            best = min(others, key=others.get)
            found.append((of_shape[0], us, best, others[best] / us["tandem"]))
    return found


def described(row):
    heads = row["hq"] if str(row["hq"]) == str(row["hk"]) else f"{row['hq']}/{row['hk']}"
    window = f" window {row['window']}" if row["window"] else ""
    return f"{row['kind']} {row['dtype']} d{row['d']} {row['mask']} b{row['b']} h{heads} {row['sq']}x{row['sk']}{window}"


def summary(rows, listed):
    """A line for each kind, and the shapes behind, worst first."""
    found = shapes(rows)
    lines = [f"{'kind':10} {'shapes':>6} {'behind':>7} {'<0.95':>6} {'mean':>6} {'worst':>6}"]
    for kind in (*KINDS, "all"):
        ratios = [ratio for row, _, _, ratio in found if kind in (row["kind"], "all")]
        if ratios:
            mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
            behind, far = (sum(ratio < level for ratio in ratios) / len(ratios) for level in (LEVEL, 0.95))
            lines.append(f"{kind:10} {len(ratios):6} {behind:7.1%} {far:6.1%} {mean:6.3f} {min(ratios):6.3f}")
    behind = sorted((entry for entry in found if entry[3] < LEVEL), key=lambda entry: entry[3])
    for row, us, best, ratio in behind[:listed]:
        times = "  ".join(f"{peer} {time:.1f}" for peer, time in us.items())
        lines.append(f"{ratio:.3f} {best:12} {described(row):64} {times}")
    return "\n".join(lines)


def drawn_before(seeds, output, of_backward=False):
    """[(seed, file)] of those seeds that recorded rows of the same kind of benchmark have: their shapes are not fresh."""
    found = []
    for path in sorted(RECORDED.rglob("drawn*.csv")):
        if ("backward" in path.name) != of_backward or (output and path.resolve() == output.resolve()):
            continue
        with path.open(newline="") as file:
            known = {row.get("seed") for row in csv.DictReader(file)}
        found += [(seed, path.relative_to(RECORDED.parent)) for seed in seeds if str(seed) in known]
    return found


def parser_of(description, seconds, budget, listed, recorded=None):
    """The options of a benchmark of drawn shapes. recorded: the rows that --summary reads where no file is named."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="CSV file to write")
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help="one or several (default: 1)")
    parser.add_argument("--count", type=int, default=100, help="shapes of each seed (default: 100)")
    parser.add_argument("--peers", nargs="+", default=["tandem", "cudnn", "fa2", "fa3"])
    parser.add_argument("--seconds-per-case", type=float, default=seconds, help=f"GPU time of a shape (default: {seconds})")
    parser.add_argument("--budget-seconds", type=float, default=budget,
                        help=f"start no further shape after this long (default: {budget})")
    parser.add_argument("--list", type=int, default=listed, help=f"shapes behind to list (default: {listed})")
    parser.add_argument("--summary", type=Path, help="of a file's rows; measure nothing",
                        **({"nargs": "?", "const": recorded} if recorded else {}))
    return parser


def print_notes(seeds, output, of_backward):
    for seed, path in drawn_before(seeds, output, of_backward):
        print(f"NOTE: seed {seed} was drawn before, in {path}: its shapes are not fresh")


def run(arguments, draw_of_seed, run_one, of_backward=False):
    """The benchmark: of the shapes draw_of_seed(seed), each by run_one(case, arguments, telemetry, results). Its exit
    code."""
    if arguments.summary:
        with arguments.summary.open(newline="") as file:
            rows = list(csv.DictReader(file))
        print(summary(rows, arguments.list))
        print_notes(sorted({int(row["seed"]) for row in rows}), arguments.summary, of_backward)
        return 0
    if not arguments.output:
        sys.exit("-o is needed: the file to write rows to")
    print_notes(arguments.seed, arguments.output, of_backward)
    import torch
    from results import Results
    from timing import Telemetry
    begin = time.monotonic()
    telemetry, results = Telemetry(), Results(arguments.output, DRAWN_COLUMNS)
    drawn = [draw_of_seed(seed) for seed in arguments.seed]
    cases = [case for of_turn in zip(*drawn) for case in of_turn]  # seeds in turns: a spent budget cuts all alike
    done = 0
    for case in cases:
        if time.monotonic() - begin > arguments.budget_seconds:
            break
        run_one(case, arguments, telemetry, results)
        torch.cuda.empty_cache()
        done += 1
    telemetry.close()
    print(summary(results.rows, arguments.list))
    print(f"{done} of {len(cases)} shapes in {time.monotonic() - begin:.0f} s")
    wrong = [row for row in results.rows if row["peer"] == "tandem" and not row["us"]]
    for row in wrong:
        print(f"NOT COMPUTED {described(row)}: {row['note']}")
    return 1 if wrong else 0


def main():
    parser = parser_of(__doc__, seconds=0.15, budget=240, listed=60, recorded=DRAWN_RESULTS)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="default: all")
    arguments = parser.parse_args()
    return run(arguments, lambda seed: draw(seed, arguments.count, tuple(arguments.kinds)), run_case)


if __name__ == "__main__":
    sys.exit(main())
