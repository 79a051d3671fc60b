#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times Tandem's backward pass, its sums in any order and deterministic, beside cuDNN, FlashAttention-2 and, where its
module flash_attn_interface is installed, FlashAttention-3 on a Hopper GPU, all taking turns in one process.

Runs the grid of the FlashAttention-3 paper (hidden dimension 2048, 16k tokens, s 512 to 16k, d 64, 128 and 256, full and
causal); --grid beyond: ragged lengths, grouped heads, windows, other head dims. Inputs are random normal numbers. Each
peer's gradients are checked once per case against float64, with outputs that held NaN before. Rows are written as they
come; the run ends in a table.

Needs PyTorch with CUDA, libtandem (TANDEM_LIBRARY) and this repository's python/ on PYTHONPATH. The commit that is
written beside the results is $TANDEM_COMMIT.
"""

import argparse
import sys
import time
from pathlib import Path

import torch

from backward_peers import MODES, PEERS, check_gradients
from cases import BACKWARD_COLUMNS, RECORDED_PEERS, backward_cases, case_name, read_rows, row_key
from grid import add_grid_options, run_within_budget
from peers import make_inputs
from results import Results, measure, timed_columns
from timing import Telemetry

SEED = 20261122


def contestants(arguments):
    """(peer, mode) of those that take turns: peers sum in any order, unless their deterministic mode is asked for."""
    return [(peer, mode) for peer in arguments.peers for mode in arguments.modes
            if mode == "free" or peer == "tandem" or arguments.deterministic_peers]


def usable_calls(case, arguments):
    """{(peer, mode): call} of those that compute this case rightly, and {(peer, mode): reason} of the others."""
    inputs = make_inputs(case, SEED)
    generator = torch.Generator("cuda").manual_seed(SEED + 1)
    inputs.append(torch.randn(inputs[0].shape, generator=generator, device="cuda", dtype=inputs[0].dtype))
    calls, reasons = {}, {}
    for peer, mode in contestants(arguments):
        try:
            call = PEERS[peer](case, mode, *inputs)
            reason = check_gradients(case, inputs, call(), SEED, rmse_factor=1.1 if peer == "tandem" else 2)
        except RuntimeError as error:  # TandemError is one, and so are PyTorch's refusals and CUDA errors
            reason = " ".join(str(error).split())
        if reason:
            reasons[peer, mode] = reason
        else:
            calls[peer, mode] = call
    return calls, reasons


def run_case(case, arguments, telemetry, results):
    calls, reasons = usable_calls(case, arguments)
    for (peer, mode), reason in reasons.items():
        print(f"{case}: {peer} {mode}: {reason}", file=sys.stderr)
        results.add({**case.columns(), "peer": peer, "mode": mode, "note": reason[:200]})
    if not calls:
        return
    times, meanwhile = measure(calls, arguments.seconds_per_case, telemetry)
    for (peer, mode), samples in times.items():
        results.add({**case.columns(), "peer": peer, "mode": mode, **timed_columns(samples, case.tera_rate), **meanwhile})


def table(rows, recorded):
    """A line per case: TFLOP/s of each, Tandem's speed against the best other of this run, and that of its deterministic
    mode against its free one."""
    nan = float("nan")
    cells, names = {}, {}
    for row in rows:
        cells.setdefault(row_key(row), {})[row["peer"], row["mode"]] = float(row["rate"] or nan)
        names[row_key(row)] = case_name({name: str(value) for name, value in row.items()})
    fa3 = {row_key(row): float(row["rate"]) for row in recorded if row["peer"] == "fa3" and row["kind"] == "bwd"}
    lines = [f"{'case':44} {'tandem':>7} {'determ.':>7} {'/free':>6} {'cudnn':>7} {'fa2':>7} {'fa3':>7}  {'/best':>6}"]
    for key, rates in cells.items():
        free, fixed = rates.get(("tandem", "free"), nan), rates.get(("tandem", "deterministic"), nan)
        others = {peer: rates.get((peer, "free"), nan) for peer in ("cudnn", "fa2", "fa3")}
        mark = " "
        if others["fa3"] != others["fa3"] and key in fa3:
            others["fa3"], mark = fa3[key], "*"
        best = max((rate for rate in others.values() if rate == rate), default=nan)
        lines.append(f"{names[key]:44} {free:7.1f} {fixed:7.1f} {fixed / free:6.3f} {others['cudnn']:7.1f} "
                     f"{others['fa2']:7.1f} {others['fa3']:7.1f}{mark} {free / best:6.3f}")
    return "\n".join([*lines, "TFLOP/s, 2.5 times the forward's FLOPs; *: as recorded on another day"])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file to write")
    add_grid_options(parser)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="default: both")
    parser.add_argument("--deterministic-peers", action="store_true", help="the peers in their deterministic mode too")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    begin = time.monotonic()
    telemetry, results = Telemetry(), Results(arguments.output, BACKWARD_COLUMNS)
    masks = [name == "causal" for name in arguments.masks]
    cases = [case for dtype in arguments.dtypes
             for case in backward_cases(arguments.grid, dtype, arguments.d, arguments.seqlens, masks)]
    left_out = run_within_budget(cases, lambda case: run_case(case, arguments, telemetry, results), begin,
                                 arguments.budget_seconds)
    telemetry.close()
    print(table(results.rows, read_rows(RECORDED_PEERS)))
    print(left_out, end="")
    return 1 if any(row["peer"] == "tandem" and not row["ms"] for row in results.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
