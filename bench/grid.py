# SPDX-License-Identifier: Apache-2.0
"""What the benches of the paper's grid have in common: their options, and how cases run within a budget of time."""

import sys
import time
from pathlib import Path

from cases import HEAD_DIMS, SEQLENS
from peers import DTYPES, INSTALLED
from results import Results
from timing import Telemetry


def add_grid_options(parser, grids=("paper", "beyond"), on_request=()):
    """What the benches of the paper's grid take. on_request: peers that do not run by default."""
    parser.add_argument("--grid", choices=grids, default="paper", help="default: paper")
    parser.add_argument("--d", nargs="+", type=int, default=list(HEAD_DIMS), help="head dims of the paper's grid")
    parser.add_argument("--seqlens", nargs="+", type=int, default=list(SEQLENS), help="its sequence lengths")
    parser.add_argument("--masks", nargs="+", choices=["full", "causal"], default=["full", "causal"], help="its masks")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=["bf16"])
    parser.add_argument("--peers", nargs="+", choices=[*INSTALLED, *on_request], default=INSTALLED,
                        help="default: those that are installed")
    add_time_options(parser, 1.5, 240)


def add_time_options(parser, seconds_per_case, budget_seconds):
    """How long a bench takes."""
    parser.add_argument("--seconds-per-case", type=float, default=seconds_per_case,
                        help=f"GPU time of a case (default: {seconds_per_case})")
    parser.add_argument("--budget-seconds", type=float, default=budget_seconds,
                        help=f"start no further case after this long (default: {budget_seconds})")


def add_peer_options(parser, peers, head_dims, budget_seconds):
    """What the benches take whose cases are their own."""
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--d", nargs="+", type=int, default=list(head_dims), help="head dims")
    parser.add_argument("--peers", nargs="+", choices=list(peers), default=list(peers))
    add_time_options(parser, 0.5, budget_seconds)


def time_cases(cases, run, arguments, columns, table):
    """run(case, telemetry, results) for each case; prints the table that table(rows) makes, and what was left out. The
    process' exit code: whether Tandem served all cases."""
    telemetry, results = Telemetry(), Results(arguments.output, columns)
    left_out = run_within_budget(cases, lambda case: run(case, telemetry, results), time.monotonic(), arguments.budget_seconds)
    telemetry.close()
    print(table(results.rows))
    print(left_out, end="")
    return 1 if any(row["peer"] == "tandem" and not row["ms"] for row in results.rows) else 0


def run_within_budget(cases, run, begin, budget):
    """run(case) for a case after another until `budget` seconds after `begin`; a line that says what was left out, or ""."""
    left_out = 0
    for i, case in enumerate(cases, start=1):
        elapsed = time.monotonic() - begin
        if elapsed > budget:
            left_out += 1
            continue
        print(f"[{i}/{len(cases)}, {elapsed:.0f} s] {case}", file=sys.stderr, flush=True)
        run(case)
    return f"{left_out} of {len(cases)} cases were left out: the budget of {budget:.0f} s was spent\n" if left_out else ""
