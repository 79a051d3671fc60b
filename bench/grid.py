# SPDX-License-Identifier: Apache-2.0
"""What the benches of the paper's grid have in common: their options, and how cases run within a budget of time."""

import sys
import time

from cases import HEAD_DIMS, SEQLENS
from peers import DTYPES, INSTALLED


def add_grid_options(parser):
    """What the benches of the paper's grid take."""
    parser.add_argument("--grid", choices=["paper", "beyond"], default="paper", help="default: paper")
    parser.add_argument("--d", nargs="+", type=int, default=list(HEAD_DIMS), help="head dims of the paper's grid")
    parser.add_argument("--seqlens", nargs="+", type=int, default=list(SEQLENS), help="its sequence lengths")
    parser.add_argument("--masks", nargs="+", choices=["full", "causal"], default=["full", "causal"], help="its masks")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=["bf16"])
    parser.add_argument("--peers", nargs="+", choices=INSTALLED, default=INSTALLED,
                        help="default: those that are installed")
    parser.add_argument("--seconds-per-case", type=float, default=1.5, help="GPU time of a case (default: 1.5)")
    parser.add_argument("--budget-seconds", type=float, default=240,
                        help="start no further case after this long (default: 240)")


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
