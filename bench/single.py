#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times single calls behind what a model runs before them, on a Hopper GPU.

Other benchmarks replay many calls of one kind one behind another: all but the first find their instructions in the
multiprocessors' caches, and overlap with the call before. In a model each call comes behind other kernels. Here a call's
graph is replayed alone, behind nothing, behind one large product, behind products of a vector and 268 MB of weights, and
behind twenty other kernels and a copy of 128 MB, after which neither a multiprocessor nor L2 has any of its
instructions. Times are those between two events, of which a few microseconds are the events', the same for all peers.
Decoding finds nothing of its cache in L2.

Needs PyTorch with CUDA, libtandem (TANDEM_LIBRARY) and this repository's python/ on PYTHONPATH.
"""

import argparse
import statistics
import sys
from pathlib import Path

from drawn_cases import DrawnCase

COLUMNS = ["kind", "dtype", "d", "mask", "b", "hq", "hk", "sq", "sk", "peer", "behind", "us", "us_min", "note", "commit"]
SAMPLES, WARM_UP, IN_A_ROW = 80, 16, 4  # in a row: behind one pause, in which the host enqueues them
PAUSE_CYCLES = 3_000_000


def _case(kind, shape, mask="full"):
    *sizes, d = shape
    return DrawnCase(1, kind, "bf16", d, mask, *sizes)


# Batch, query and key/value heads, queries, keys, head dim.
CASES = [_case("decode", shape) for shape in (
    (1, 32, 8, 1, 1024, 128), (1, 32, 8, 1, 4096, 128), (1, 32, 8, 1, 32768, 128), (1, 64, 8, 1, 8192, 128),
    (4, 32, 8, 1, 2048, 128), (16, 32, 8, 1, 1024, 128), (64, 32, 8, 1, 512, 128), (1, 64, 8, 1, 4096, 64),
    (16, 64, 8, 1, 1024, 64), (33, 64, 8, 1, 256, 64), (1, 16, 8, 1, 4096, 256), (16, 16, 8, 1, 1024, 256),
    (1, 8, 1, 1, 8192, 128), (1, 32, 32, 1, 2048, 128))] + [
        _case("forward", shape) for shape in (
            (1, 16, 16, 512, 512, 128), (4, 16, 16, 512, 512, 64), (1, 8, 8, 1024, 1024, 256), (2, 32, 8, 128, 128, 128))] + [
                _case("forward", shape, "causal") for shape in (
                    (1, 32, 8, 512, 512, 128), (1, 16, 16, 2048, 2048, 128), (1, 32, 8, 512, 512, 80))]


def kernels_before():
    """{what: its replay}."""
    import torch
    from timing import replayed
    options = {"device": "cuda", "dtype": torch.bfloat16}
    few, square, row = (torch.randn(*shape, **options) for shape in ((1024,), (4096, 4096), (1, 4096)))
    weights = torch.randn(8, 4096, 4096, **options)
    source = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    copy, numbers = torch.empty_like(source), few.float()
    functions = [torch.sin, torch.cos, torch.exp, torch.tanh, torch.sigmoid, torch.erf, torch.log, torch.sqrt, torch.floor,
                 torch.neg, torch.abs, torch.lgamma, torch.digamma, torch.sinh, torch.asin, torch.erfinv, torch.i0,
                 lambda x: torch.cumsum(x, 0), torch.sort, lambda x: torch.softmax(x, 0)]

    def others():
        for function in functions:
            function(numbers)
        copy.copy_(source)

    kernels = {"product": lambda: torch.mm(square, square), "weights": lambda: [torch.mm(row, matrix) for matrix in weights],
               "others": others}
    for call in kernels.values():
        call()
    return {"nothing": lambda: None, **{name: replayed(call) for name, call in kernels.items()}}


def timed(replays, before):
    """Microseconds of one of the replays, which take turns."""
    import torch
    pairs = []
    for sample in range(SAMPLES):
        if sample % IN_A_ROW == 0:
            torch.cuda.synchronize()
            torch.cuda._sleep(PAUSE_CYCLES)
        before()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replays[sample % len(replays)]()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return [1e3 * start.elapsed_time(end) for start, end in pairs[WARM_UP:]]


def run_case(case, peers, before, results):
    from drawn_peers import Inputs, right_calls
    from timing import replayed
    columns = {name: text for name, text in case.columns().items() if name in COLUMNS}
    replays, reasons = right_calls(
        Inputs(case, case.seed), peers, lambda call, inputs: [replayed(lambda kv=kv: call(*kv)) for kv in inputs.caches])
    for peer, reason in reasons.items():
        results.add({**columns, "peer": peer, "note": reason})
    shape = f"{case.kind} d{case.d} {case.mask} {case.b} x {case.hq}/{case.hk}, {case.sq} x {case.sk}"
    for behind, call in before.items():
        line = f"{shape:44} behind {behind:8}"
        for peer, own in replays.items():
            us = timed(own, call)
            results.add({**columns, "peer": peer, "behind": behind, "us": f"{statistics.median(us):.2f}",
                         "us_min": f"{min(us):.2f}"})
            line += f"  {peer} {statistics.median(us):6.1f}"
        print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--peers", nargs="+", default=["tandem", "cudnn", "fa2"])
    parser.add_argument("--kinds", nargs="+", default=["decode", "forward"], choices=["decode", "forward"])
    arguments = parser.parse_args()
    import torch
    from results import Results
    results, before = Results(arguments.output, COLUMNS), kernels_before()
    for case in CASES:
        if case.kind in arguments.kinds:
            run_case(case, arguments.peers, before, results)
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
