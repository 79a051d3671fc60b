#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times Tandem's forward pass beside cuDNN and FlashAttention-2 on a Hopper GPU, all taking turns in one process.

Runs the grid of the FlashAttention-3 paper (hidden dimension 2048, 16k tokens, s 512 to 16k, d 64, 128 and 256, full
and causal), the shape of its ablation, and a GEMM as the ceiling. Inputs are random normal numbers. Each peer's output
is checked once per case against float64. Rows are written as they come; the run ends in a table.

Needs PyTorch with CUDA, libtandem (TANDEM_LIBRARY) and this repository's python/ on PYTHONPATH. The commit that is
written beside the results is $TANDEM_COMMIT.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

from cases import (COLUMNS, HEAD_DIMS, RECORDED_PEERS, SEQLENS, ablation_case, paper_grid, read_rows, row_key)
from peers import DTYPES, PEERS, check_output, make_inputs
from results import Results, measure
from timing import Telemetry

SEED = 20261121
GEMM_SIZE = 8192


def timed_columns(times, rate):
    """times: milliseconds of one call; rate: milliseconds -> TFLOP/s."""
    median = statistics.median(times)
    return {"ms": f"{median:.4f}", "ms_min": f"{min(times):.4f}", "rate": f"{rate(median):.1f}"}


def run_ceiling(arguments, telemetry, results):
    """A bf16 matrix product: what the chip gives to anybody today."""
    a, b = (torch.randn(GEMM_SIZE, GEMM_SIZE, device="cuda", dtype=torch.bfloat16) for _ in "ab")
    out = torch.empty_like(a)
    times, meanwhile = measure({"gemm": lambda: torch.mm(a, b, out=out)}, arguments.seconds_per_case, telemetry)
    results.add({"kind": "ceiling", "dtype": "bf16", "d": 0, "causal": 0, "b": 0, "hq": 0, "hk": 0, "sq": GEMM_SIZE,
                 "sk": GEMM_SIZE, "peer": "gemm", **meanwhile,
                 **timed_columns(times["gemm"], lambda ms: 2 * GEMM_SIZE**3 / ms * 1e-9)})


def usable_calls(case, peers):
    """{peer: call} of the peers that compute this case rightly, and {peer: reason} of the others."""
    inputs = make_inputs(case, SEED)
    calls, reasons = {}, {}
    for peer in peers:
        try:
            call = PEERS[peer](case, *inputs)
            reason = check_output(case, *inputs, call(), SEED)
        except RuntimeError as error:  # TandemError is one, and so are PyTorch's "no available kernel" and CUDA errors
            reason = " ".join(str(error).split())
        if reason:
            reasons[peer] = reason
        else:
            calls[peer] = call
    return calls, reasons


def run_case(case, arguments, telemetry, results):
    calls, reasons = usable_calls(case, arguments.peers)
    for peer, reason in reasons.items():
        print(f"{case}: {peer}: {reason}", file=sys.stderr)
        results.add({**case.columns(), "peer": peer, "note": reason[:200]})
    if not calls:
        return
    times, meanwhile = measure(calls, arguments.seconds_per_case, telemetry)
    for peer in calls:
        results.add({**case.columns(), "peer": peer, **timed_columns(times[peer], case.tera_rate), **meanwhile})


def table(rows, recorded):
    """A line per case: TFLOP/s of each peer, Tandem's speed against the best of this run, and against recorded FA3."""
    nan = float("nan")
    cells = {}
    for row in [row for row in rows if row["kind"] == "fwd"]:
        cells.setdefault(row_key(row), {})[row["peer"]] = (float(row["rate"] or nan), float(row["ms"] or nan))
    fa3 = {row_key(row): (float(row["rate"]), float(row["ms"])) for row in recorded if row["peer"] == "fa3"}

    lines = [f"{'case':32} {'tandem':>7} {'cudnn':>7} {'fa2':>7} {'/best':>6} {'fa3*':>7} {'/fa3*':>6}"]
    for key, peers in cells.items():
        _, dtype, d, causal, b, heads, _, s, _ = key
        name = f"{dtype} d{d} {'causal' if causal == '1' else 'full'} b{b} h{heads} s{s}"
        peers = {**dict.fromkeys(PEERS, (nan, nan)), "fa3": fa3.get(key, (nan, nan)), **peers}
        best = min((ms for peer, (_, ms) in peers.items() if peer in PEERS and peer != "tandem" and ms == ms),
                   default=nan)
        rate, ms = peers["tandem"]
        lines.append(f"{name:32} {rate:7.1f} {peers['cudnn'][0]:7.1f} {peers['fa2'][0]:7.1f} {best / ms:6.3f} "
                     f"{peers['fa3'][0]:7.1f} {peers['fa3'][1] / ms:6.3f}")
    lines += [f"ceiling: GEMM {row['sq']}^3 bf16 {row['rate']} TFLOP/s" for row in rows if row["kind"] == "ceiling"]
    return "\n".join([*lines, "* FA3 as recorded on another day; everything else is of this run (TFLOP/s)"])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--parts", nargs="+", choices=["ceiling", "ablation", "grid"],
                        default=["ceiling", "ablation", "grid"], help="default: all")
    parser.add_argument("--d", nargs="+", type=int, default=list(HEAD_DIMS), help="head dims of the grid")
    parser.add_argument("--seqlens", nargs="+", type=int, default=list(SEQLENS), help="sequence lengths of the grid")
    parser.add_argument("--masks", nargs="+", choices=["full", "causal"], default=["full", "causal"])
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=["bf16"])
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--seconds-per-case", type=float, default=1.5, help="GPU time of a case (default: 1.5)")
    parser.add_argument("--budget-seconds", type=float, default=240,
                        help="start no further case after this long (default: 240)")
    return parser.parse_args()


def chosen_cases(arguments):
    masks = [name == "causal" for name in arguments.masks]
    cases = []
    for dtype in arguments.dtypes:
        cases += [ablation_case(dtype)] if "ablation" in arguments.parts else []
        cases += paper_grid(dtype, arguments.d, arguments.seqlens, masks) if "grid" in arguments.parts else []
    return cases


def main():
    arguments = parse_arguments()
    begin = time.monotonic()
    telemetry, results, left_out = Telemetry(), Results(arguments.output, COLUMNS), 0
    if "ceiling" in arguments.parts:
        run_ceiling(arguments, telemetry, results)
    cases = chosen_cases(arguments)
    for i, case in enumerate(cases, start=1):
        elapsed = time.monotonic() - begin
        if elapsed > arguments.budget_seconds:
            left_out += 1
            continue
        print(f"[{i}/{len(cases)}, {elapsed:.0f} s] {case}", file=sys.stderr, flush=True)
        run_case(case, arguments, telemetry, results)
    telemetry.close()
    print(table(results.rows, read_rows(RECORDED_PEERS)))
    if left_out:
        print(f"{left_out} of {len(cases)} cases were left out: the budget of {arguments.budget_seconds:.0f} s was spent")
    return 1 if any(row["peer"] == "tandem" and not row["ms"] for row in results.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
