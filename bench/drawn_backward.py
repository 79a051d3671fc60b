#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times Tandem's backward pass on shapes that nobody listed, beside cuDNN, FlashAttention-2 and, where its module
flash_attn_interface is installed, FlashAttention-3 on a Hopper GPU, all taking turns in one process.

Shapes are drawn log-uniformly, the same ones from the same seed. Calls are enqueued behind a pause of the GPU, so that the
host's time does not count. Each peer's gradients have to be finite, and Tandem's are checked against float64. Ends in the
share of shapes behind the best peer, and those shapes. --summary reads a file of rows instead.
"""

import random
import statistics
import sys
import time

from cases import BackwardCase
from drawn import parser_of, run
from drawn_cases import FORWARD_DIMS, HEADS, MOST_BYTES, MOST_TFLOP, DrawnCase, draw_length, log_uniform

# Of one head of few rows, by chance; and of gradients that are 0 but for rounding in fp32.
RMSE_FACTOR, NOISE = 1.5, 1e-6


def draw(seed, count):
    """`count` cases. Queries and keys are as many, but in a fifth of those without a mask."""
    r, cases = random.Random(seed), []
    while len(cases) < count:
        mask = r.choice(("full", "full", "causal", "causal", "causal", "window"))
        sq = draw_length(r, 16, 32768)
        sk = draw_length(r, 16, 32768) if mask == "full" and r.random() < 0.2 else sq
        window = log_uniform(r, 16, max(17, sk)) if mask == "window" else 0
        hq, hk = r.choice(HEADS)
        case = DrawnCase(seed, "backward", r.choice(("bf16", "bf16", "fp16")), r.choice(FORWARD_DIMS), mask,
                         log_uniform(r, 1, 64), hq, hk, sq, sk, min(window, sk))
        if 2.5 * case.tflop < MOST_TFLOP and 2 * case.bytes < MOST_BYTES:
            cases.append(case)
    return cases


def as_backward_case(case):
    return BackwardCase(case.dtype, case.d, case.causal, case.b, case.hq, case.sq, case.hk, case.sk, case.window)


def usable_calls(case, inputs, peers):
    """{peer: call} of those that compute this case, and {peer: reason} of the others."""
    import torch
    from backward_peers import PEERS, check_gradients
    own, calls, reasons = as_backward_case(case), {}, {}
    for peer in peers:
        if peer in ("cudnn", "fa2") and case.causal and case.sq != case.sk:
            continue  # PyTorch's causal masks begin at the first key
        try:
            call = PEERS[peer](own, "free", *inputs)
            gradients = call()
            if peer == "tandem":
                reason = check_gradients(own, inputs, gradients, case.seed, rmse_factor=RMSE_FACTOR, noise=NOISE)
            else:
                reason = "" if all(torch.isfinite(x).all() for x in gradients) else "not finite"
        except (RuntimeError, ImportError) as error:
            reason = " ".join(str(error).split())[:160]
        if reason:
            reasons[peer] = reason
        else:
            calls[peer] = call
    return calls, reasons


def run_case(case, arguments, telemetry, results):
    from peers import make_inputs
    from timing import interleave
    import torch
    inputs = make_inputs(as_backward_case(case), case.seed)
    generator = torch.Generator("cuda").manual_seed(case.seed + 1_000_000)  # not the numbers of q
    inputs.append(torch.randn(inputs[0].shape, device="cuda", dtype=inputs[0].dtype, generator=generator))
    calls, reasons = usable_calls(case, inputs, arguments.peers)
    begin = time.monotonic()
    times = interleave(calls, arguments.seconds_per_case, pause_each=True) if calls else {}
    known = {**case.columns(), "tflop": f"{2.5 * case.tflop:.5f}", **telemetry.between(begin, time.monotonic())}
    for peer, of_peer in times.items():
        results.add({**known, "peer": peer, "us": f"{1e3 * statistics.median(of_peer):.2f}",
                     "us_min": f"{1e3 * min(of_peer):.2f}"})
    for peer, reason in reasons.items():
        results.add({**known, "peer": peer, "note": reason})


def main():
    arguments = parser_of(__doc__, seconds=0.1, budget=120, listed=40).parse_args()
    return run(arguments, lambda seed: draw(seed, arguments.count), run_case, of_backward=True)


if __name__ == "__main__":
    sys.exit(main())
