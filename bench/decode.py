#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times Tandem's decoding steps beside cuDNN and FlashAttention-2 on a Hopper GPU, all taking turns in one process.

Every step is replayed from a CUDA graph, and finds nothing of its cache in L2: steps take turns with copies of it.
Parts: the grid of batches, caches and query heads; other head dims; the same steps over pages; ragged batches beside
the same tokens spread evenly; every kernel for every group; latent attention, with its queries in two parts too (qv), beside
FlashAttention-3 where it is installed; and caches of 8 bits beside those of 16 (--parts fp8_beside fp8 fp8_tokens int8 int8_tokens int8_hadamard).
The most telling cells come first, so that --limit and --budget-seconds leave out the least. Each peer's output is checked once per case against float64. Rows are written as
they come; the run ends in a table.

Needs PyTorch with CUDA, libtandem (TANDEM_LIBRARY) and this repository's python/ on PYTHONPATH. The commit that is
written beside the results is $TANDEM_COMMIT.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

from decode_cases import DECODE_COLUMNS, PARTS, chosen
from decode_peers import DECODE_PEERS, Inputs, Replayed, check_step
from peers import DTYPES
from results import Results, measure
from timing import Telemetry

SEED = 20261121
MEMORY_SHARE = 0.85  # of what is free may go to a case's cache


def peer_columns(peer):
    """tandem_shared_p is Tandem's kernel of that name, and is not what dispatch takes."""
    kernel = peer.removeprefix("tandem_") if peer.startswith("tandem_") else "auto"
    if kernel in ("auto", "planned") or not peer.startswith("tandem"):
        return {"peer": peer, "kernel": "auto" if peer.startswith("tandem") else ""}
    return {"peer": "tandem", "kernel": kernel}


def usable_steps(case, inputs, peers):
    """{peer: graph of steps} of the peers that compute this case rightly, and {peer: reason} of the others."""
    graphs, reasons = {}, {}
    for name, make in DECODE_PEERS[case.part].items():
        if name.split("_")[0] not in peers:
            continue
        try:
            call = make(inputs)
            reason = check_step(inputs, call(*inputs.caches[0]), SEED)
            if not reason:
                graphs[name] = Replayed(call, inputs.caches)
        except RuntimeError as error:  # TandemError is one, and so are PyTorch's "no available kernel" and CUDA errors
            reason = " ".join(str(error).split())
        if reason:
            reasons[name] = reason
    return graphs, reasons


def run_case(case, arguments, telemetry, results):
    inputs = Inputs(case, SEED)
    graphs, reasons = usable_steps(case, inputs, arguments.peers)
    for peer, reason in reasons.items():
        print(f"{case}: {peer}: {reason}", file=sys.stderr)
        results.add({**case.columns(), **peer_columns(peer), "note": reason[:200]})
    if not graphs:
        return
    times, meanwhile = measure(graphs, arguments.seconds_per_case, telemetry)
    for peer, graph in graphs.items():
        per_step = [milliseconds / graph.steps for milliseconds in times[peer]]
        median = statistics.median(per_step)
        results.add({**case.columns(), **peer_columns(peer), "us": f"{median * 1e3:.2f}",
                     "us_min": f"{min(per_step) * 1e3:.2f}", "rate": f"{case.gigabytes(median):.0f}", **meanwhile})


def fits(case):
    torch.cuda.empty_cache()
    return case.allocated_bytes < MEMORY_SHARE * torch.cuda.mem_get_info()[0]


def table(rows):
    """A line per case: microseconds of every peer that ran, and Tandem's GB/s and speed against the best other."""
    cases = {}
    for row in rows:
        if row["us"]:
            key = " ".join(str(row[name]) for name in ("kind", "dtype", "d", "b", "hq", "sk", "lengths", "page"))
            name = row["peer"] if row["kernel"] in ("auto", "") else row["kernel"]
            cases.setdefault(key, {})[name] = (float(row["us"]), row["rate"])
    lines = [f"{'kind dtype d b hq sk lengths page':40} {'us':>9} {'GB/s':>6} {'/best':>6}  others, us"]
    for key, peers in cases.items():
        us, rate = peers.get("tandem", (float("nan"), ""))
        others = {name: time for name, (time, _) in peers.items() if name != "tandem"}
        best = min(others.values(), default=float("nan"))
        words = "  ".join(f"{name} {time:.1f}" for name, time in others.items())
        lines.append(f"{key:40} {us:9.2f} {rate:>6} {best / us:6.3f}  {words}")
    return "\n".join(lines)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="default: all")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=["bf16", "fp16"])
    peers = ["tandem", "cudnn", "fa2", "fa3"]
    parser.add_argument("--peers", nargs="+", choices=peers, default=peers)
    parser.add_argument("--limit", type=int, help="run so many cases, the most telling ones (default: all)")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many of the first cases, to go on with a run")
    parser.add_argument("--seconds-per-case", type=float, default=0.4, help="GPU time of a case (default: 0.4)")
    parser.add_argument("--budget-seconds", type=float, default=240,
                        help="start no further case after this long (default: 240)")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    begin = time.monotonic()
    telemetry, results, left_out = Telemetry(), Results(arguments.output, DECODE_COLUMNS), 0
    cases = chosen(arguments.parts, arguments.dtypes)[arguments.skip:][:arguments.limit]
    for i, case in enumerate(cases, start=1):
        elapsed = time.monotonic() - begin
        if elapsed > arguments.budget_seconds:
            left_out = len(cases) - i + 1
            break
        if not fits(case):
            print(f"{case}: {case.allocated_bytes / 1e9:.0f} GB of cache do not fit", file=sys.stderr)
            continue
        print(f"[{i}/{len(cases)}, {elapsed:.0f} s] {case}", file=sys.stderr, flush=True)
        run_case(case, arguments, telemetry, results)
    telemetry.close()
    print(table(results.rows))
    if left_out:
        print(f"{left_out} of {len(cases)} cases were left out: {arguments.budget_seconds:.0f} s were spent; "
              f"go on with --skip {arguments.skip + len(cases) - left_out}")
    return 1 if any(row["peer"] == "tandem" and not row["us"] for row in results.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
