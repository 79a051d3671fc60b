#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times Tandem's backward pass over packed sequences of different lengths, beside its call for one length,
FlashAttention-2 and, where its module flash_attn_interface is installed, FlashAttention-3 on a Hopper GPU, all taking turns
in one process.

Batches of equal lengths (32k tokens, 512 to 16k each) say what variable lengths cost; mixes are drawn by --seeds. Causal,
bf16, hidden dimension 2048, random normal inputs. Calls are enqueued behind a pause of the GPU, so that the host's time
does not count. Every peer's gradients have to be finite, and Tandem's are checked once, of sampled sequences, against
float64. Rows are written as they come; the run ends in a table.

Needs PyTorch with CUDA, libtandem (TANDEM_LIBRARY) and this repository's python/ on PYTHONPATH. The commit that is
written beside the results is $TANDEM_COMMIT.
"""

import argparse
import importlib.util
import random
import sys
import time

import torch

import tandem
from backward_peers import GRADIENTS, check_gradients
from cases import HEAD_DIMS, BackwardCase
from grid import add_peer_options, time_cases
from results import timed_columns
from timing import interleave
from varlen import SEED, SEQLENS, Inputs, table, usable_calls
from varlen_cases import VARLEN_COLUMNS, equal_cases, mixed_cases

MOST_CHECKED = 4096  # tokens of a sequence that is checked, which float64 takes long for
RMSE_FACTOR = 1.5  # of one head of few rows, by chance


class Recorded(Inputs):
    """And a forward pass of Tandem's, and dout ~ N(0, 1)."""

    def __init__(self, case):
        super().__init__(case)
        self.dout = self._normal(sum(case.lengths), case.hq)
        self.out, self.lse = tandem.forward_varlen(self.q, self.k, self.v, return_lse=True, **self.lengths_of_call())

    def lengths_of_call(self):
        return {"cu_seqlens_q": self.cu_seqlens, "cu_seqlens_k": self.cu_seqlens, "max_seqlen_q": self.longest,
                "max_seqlen_k": self.longest, "causal": self.case.causal}

    def gradients(self):
        """Of NaN, to be written."""
        return {name: torch.full_like(x, float("nan")) for name, x in zip(GRADIENTS, (self.q, self.k, self.v))}


def tandem_packed(inputs):
    arguments = inputs.q, inputs.k, inputs.v, inputs.out, inputs.lse, inputs.dout
    gradients = inputs.gradients()
    return lambda: tandem.backward_varlen(*arguments, **gradients, **inputs.lengths_of_call())


def tandem_fixed(inputs):
    """Tandem's call for sequences of one length."""
    case, count = inputs.case, len(inputs.case.lengths)
    arguments = [x.view(count, -1, *x.shape[1:])
                 for x in (inputs.q, inputs.k, inputs.v, inputs.out, inputs.lse, inputs.dout)]
    gradients = {name: x.view(count, -1, *x.shape[1:]) for name, x in inputs.gradients().items()}
    return lambda: [x.flatten(0, 1) for x in tandem.backward(*arguments, causal=case.causal, **gradients)]


def fa2(inputs):
    case, cu, longest = inputs.case, inputs.cu_seqlens, inputs.longest
    out, lse, seed, offset, _ = torch.ops.aten._flash_attention_forward(
        inputs.q, inputs.k, inputs.v, cu, cu, longest, longest, 0.0, case.causal, False)
    return lambda: torch.ops.aten._flash_attention_backward(
        inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, cu, cu, longest, longest, 0.0, case.causal, seed, offset)


def fa3(inputs):
    from flash_attn_interface import _flash_attn_backward
    gradients, lse = inputs.gradients(), inputs.lse.T.contiguous()
    lengths = {"cu_seqlens_q": inputs.cu_seqlens, "cu_seqlens_k": inputs.cu_seqlens, "max_seqlen_q": inputs.longest,
               "max_seqlen_k": inputs.longest}

    def call():
        _flash_attn_backward(inputs.dout, inputs.q, inputs.k, inputs.v, inputs.out, lse, is_causal=inputs.case.causal,
                             softmax_scale=inputs.case.d ** -0.5, **lengths, **gradients)
        return list(gradients.values())
    return call


PEERS = {"tandem": tandem_packed, "fixed": tandem_fixed, "fa2": fa2}
if importlib.util.find_spec("flash_attn_interface"):
    PEERS["fa3"] = fa3


def check(inputs, gradients):
    """"" if the gradients of two sequences are right."""
    case = inputs.case
    short = [i for i, n in enumerate(case.lengths) if n <= MOST_CHECKED] or [0]
    for i in random.Random(SEED).sample(short, min(2, len(short))):
        rows = slice(inputs.ends[i], inputs.ends[i + 1])
        own = BackwardCase(case.dtype, case.d, case.causal, 1, case.hq, case.lengths[i], case.hk, case.lengths[i], 0)
        reason = check_gradients(own, [x[rows][None] for x in (inputs.q, inputs.k, inputs.v, inputs.dout)],
                                 [x[rows][None] for x in gradients], SEED, rmse_factor=RMSE_FACTOR)
        if reason:
            return f"sequence {i}: {reason}"
    return ""


def run_case(case, arguments, telemetry, results):
    inputs = Recorded(case)

    def reason_of(name, gradients):
        if not all(torch.isfinite(x).all() for x in gradients):
            return "not finite everywhere"
        return check(inputs, gradients) if name in ("tandem", "fixed") else ""
    calls = usable_calls(inputs, {name: PEERS[name] for name in arguments.peers}, reason_of, results)
    begin = time.monotonic()
    times = interleave(calls, arguments.seconds_per_case, pause_each=True)
    meanwhile = telemetry.between(begin, time.monotonic())
    for name, samples in times.items():
        columns = timed_columns(samples, lambda ms: 2.5 * case.tera_rate(ms))
        results.add({**case.columns(), "peer": name, **columns, **meanwhile})


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_peer_options(parser, PEERS, HEAD_DIMS, 240)
    parser.add_argument("--seqlens", nargs="*", type=int, default=list(SEQLENS), help="of batches of equal lengths")
    parser.add_argument("--seeds", nargs="*", type=int, default=list(range(8)), help="of drawn mixes (default: 0 to 7)")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    cases = equal_cases(arguments.d, arguments.seqlens) + mixed_cases(arguments.d, arguments.seeds)
    return time_cases(cases, lambda *rest: run_case(rest[0], arguments, *rest[1:]), arguments, VARLEN_COLUMNS, table)


if __name__ == "__main__":
    sys.exit(main())
