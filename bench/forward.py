#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times Tandem's forward pass beside cuDNN, FlashAttention-2 and, where its module flash_attn_interface is installed,
FlashAttention-3 on a Hopper GPU, all taking turns in one process.

Runs the grid of the FlashAttention-3 paper (hidden dimension 2048, 16k tokens, s 512 to 16k, d 64, 128 and 256, full
and causal), its ablation (every overlap with and without pingpong beside cuDNN, b4 h16 s8448 d128), and a GEMM as the
ceiling. --grid beyond: what that grid leaves out, and the grid itself in fp16. --grid narrow-values: values narrower than
keys (192 and 128), each of Tandem's kernels for them and those that pad. --d 512 --peers tandem cudnn efficient: head
dim 512 beside PyTorch's memory-efficient attention, which takes every head dim. Inputs are random normal numbers. Each peer's
output is checked once per case against float64. Rows are written as they come; the run ends in a table.

Needs PyTorch with CUDA, libtandem (TANDEM_LIBRARY; for the ablation libtandem_study) and this repository's python/ on
PYTHONPATH. The commit that is written beside the results is $TANDEM_COMMIT.
"""

import argparse
import dataclasses
import sys
import time
from pathlib import Path

import torch

from cases import (ABLATION, COLUMNS, NARROW_VALUE_BLOCKS, RECORDED_PEERS, ablation_case, beyond_grid, case_name,
                   narrow_value_grid, paper_grid, read_rows, row_key)
from grid import add_grid_options, run_within_budget
from peers import ON_REQUEST, PEERS, check_output, make_inputs, tandem_variant
from results import Results, measure, timed_columns
from timing import Telemetry

SEED = 20261121
GEMM_SIZE = 8192


def run_ceiling(arguments, telemetry, results):
    """A bf16 matrix product: what the chip gives to anybody today."""
    a, b = (torch.randn(GEMM_SIZE, GEMM_SIZE, device="cuda", dtype=torch.bfloat16) for _ in "ab")
    out = torch.empty_like(a)
    times, meanwhile = measure({"gemm": lambda: torch.mm(a, b, out=out)}, arguments.seconds_per_case, telemetry)
    results.add({"kind": "ceiling", "dtype": "bf16", "d": 0, "causal": 0, "b": 0, "hq": 0, "hk": 0, "sq": GEMM_SIZE,
                 "sk": GEMM_SIZE, "peer": "gemm", **meanwhile,
                 **timed_columns(times["gemm"], lambda ms: 2 * GEMM_SIZE**3 / ms * 1e-9)})


def usable_calls(case, peers):
    """{peer: call} of the peers, {name: what makes a call}, that compute this case rightly, and {peer: reason} of the
    others."""
    inputs = make_inputs(case, SEED)
    calls, reasons = {}, {}
    for peer in peers:
        try:
            call = peers[peer](case, *inputs)
            reason = check_output(case, *inputs, call(), SEED)
        except RuntimeError as error:  # TandemError is one, and so are PyTorch's "no available kernel" and CUDA errors
            reason = " ".join(str(error).split())
        if reason:
            reasons[peer] = reason
        else:
            calls[peer] = call
    return calls, reasons


def peers_of(case, arguments):
    """{name: what makes a call} of those that take turns in this case."""
    if case.kind == "narrow":
        variants = {f"tandem {name}": tandem_variant(block_m=128, block_n=keys) for name, keys in NARROW_VALUE_BLOCKS.items()}
        return {name: PEERS[name] for name in arguments.peers} | (variants if "tandem" in arguments.peers else {})
    if case.kind != "ablation":
        return {name: PEERS[name] for name in arguments.peers}
    variants = {f"tandem {overlap} {turn}": tandem_variant(overlap=overlap, turn=turn) for overlap, turn in ABLATION}
    return variants | {name: PEERS[name] for name in arguments.peers if name in ("tandem", "cudnn", "fa3")}


def run_case(case, arguments, telemetry, results):
    calls, reasons = usable_calls(case, peers_of(case, arguments))
    for peer, reason in reasons.items():
        print(f"{case}: {peer}: {reason}", file=sys.stderr)
        results.add({**case.columns(), "peer": peer, "note": reason[:200]})
    if not calls:
        return
    times, meanwhile = measure(calls, arguments.seconds_per_case, telemetry)
    for peer in calls:
        results.add({**case.columns(), "peer": peer, **timed_columns(times[peer], case.tera_rate), **meanwhile})


def table(rows, recorded):
    """A line per case: TFLOP/s of each peer, Tandem's speed against the best of this run, and against FA3, as recorded
    where it did not run."""
    nan = float("nan")
    cells = {}
    for row in [row for row in rows if row["kind"] in ("fwd", "beyond", "narrow")]:
        cells.setdefault(row_key(row), {})[row["peer"]] = (float(row["rate"] or nan), float(row["ms"] or nan))
    names = {row_key(row): case_name({name: str(value) for name, value in row.items()}) for row in rows}
    fa3 = {row_key(row): (float(row["rate"]), float(row["ms"])) for row in recorded if row["peer"] == "fa3"}

    lines = [f"{'case':44} {'tandem':>7} {'cudnn':>7} {'fa2':>7} {'/best':>6} {'fa3':>7}  {'/fa3':>6}"]
    for key, peers in cells.items():
        best = min((ms for peer, (_, ms) in peers.items() if not peer.startswith("tandem") and ms == ms), default=nan)
        mark = " " if "fa3" in peers else "*"
        peers = {**dict.fromkeys(PEERS, (nan, nan)), "fa3": fa3.get(key, (nan, nan)), **peers}
        rate, ms = peers["tandem"]
        lines.append(f"{names[key]:44} {rate:7.1f} {peers['cudnn'][0]:7.1f} {peers['fa2'][0]:7.1f} {best / ms:6.3f} "
                     f"{peers['fa3'][0]:7.1f}{mark} {peers['fa3'][1] / ms:6.3f}")
    lines += [f"{row['kind']}: {case_name({n: str(v) for n, v in row.items()}):32} {row['peer']:28} {row['rate'] or row['note']}"
              for row in rows if row["kind"] == "ablation" or row["peer"].startswith("tandem ")]
    lines += [f"ceiling: GEMM {row['sq']}^3 bf16 {row['rate']} TFLOP/s" for row in rows if row["kind"] == "ceiling"]
    return "\n".join([*lines, "TFLOP/s; *: as recorded on another day, everything else is of this run"])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file to write")
    add_grid_options(parser, ("paper", "beyond", "narrow-values"), on_request=ON_REQUEST)
    parser.add_argument("--parts", nargs="+", choices=["ceiling", "ablation", "grid"],
                        default=["ceiling", "ablation", "grid"], help="default: all")
    parser.add_argument("--ablation", dest="parts", action="store_const", const=["ablation"],
                        help="the ablation alone: --parts ablation")
    return parser.parse_args()


def chosen_cases(arguments):
    masks = [name == "causal" for name in arguments.masks]

    def paper(dtype):
        return paper_grid(dtype, arguments.d, arguments.seqlens, masks)

    grids = {"paper": paper, "beyond": beyond_grid,
             "narrow-values": lambda dtype: narrow_value_grid(dtype, arguments.seqlens, masks)}
    cases = []
    for dtype in arguments.dtypes:
        if "ablation" in arguments.parts:
            cases += [ablation_case(dtype), dataclasses.replace(ablation_case(dtype), kind="ablation")]
        if "grid" in arguments.parts:
            cases += grids[arguments.grid](dtype)
    if "grid" in arguments.parts and arguments.grid == "beyond" and "fp16" not in arguments.dtypes:
        cases += paper("fp16")
    return cases


def main():
    arguments = parse_arguments()
    begin = time.monotonic()
    telemetry, results = Telemetry(), Results(arguments.output, COLUMNS)
    if "ceiling" in arguments.parts:
        run_ceiling(arguments, telemetry, results)
    cases = chosen_cases(arguments)
    left_out = run_within_budget(cases, lambda case: run_case(case, arguments, telemetry, results), begin,
                                 arguments.budget_seconds)
    telemetry.close()
    print(table(results.rows, read_rows(RECORDED_PEERS)))
    print(left_out, end="")
    return 1 if any(row["peer"].startswith("tandem") and not row["ms"] for row in results.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
