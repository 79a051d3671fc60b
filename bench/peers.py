# SPDX-License-Identifier: Apache-2.0
"""Tandem and its peers behind one signature, and the check that each computes attention."""

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import tandem

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
CHECKED_QUERIES = 64


def make_inputs(case, seed):
    """q, k, v ~ N(0, 1), each b, s, h, d."""
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = (case.b, case.s, case.heads, case.d)
    return [torch.randn(shape, generator=generator, device="cuda", dtype=DTYPES[case.dtype]) for _ in "qkv"]


def _tandem_call(case, q, k, v):
    out = torch.full_like(q, float("nan"))
    return lambda: tandem.forward(q, k, v, causal=case.causal, out=out)


def _sdpa_call(backend):
    def make(case, q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))

        def call():
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(q, k, v, is_causal=case.causal).transpose(1, 2)
        return call
    return make


# {name: (case, q, k, v) -> call}; a call enqueues one forward pass and returns o, b, s, h, d.
PEERS = {"tandem": _tandem_call, "cudnn": _sdpa_call(SDPBackend.CUDNN_ATTENTION),
         "fa2": _sdpa_call(SDPBackend.FLASH_ATTENTION)}


def standard_attention(q, k, v, visible, scale, *, dtype, round_to):
    """Standard attention of h, r, d queries in dtype arithmetic, probabilities and result rounded to round_to."""
    q, k, v = (x.to(dtype) for x in (q, k, v))
    scores = (q @ k.transpose(1, 2) * scale).masked_fill(~visible, float("-inf"))
    return (torch.softmax(scores, -1).to(round_to).to(dtype) @ v).to(round_to).double()


def check_output(case, q, k, v, out, seed):
    """"" if out is attention: complete, and for sampled queries within twice the error of a standard implementation
    in the same precision, both against float64. Otherwise what is wrong."""
    if not torch.isfinite(out).all():
        return "the output is not finite everywhere"
    generator = torch.Generator().manual_seed(seed)
    b = int(torch.randint(case.b, (1,), generator=generator))
    rows = torch.randint(case.s, (CHECKED_QUERIES,), generator=generator)
    rows[:2] = torch.tensor([0, case.s - 1])
    rows = rows.cuda()
    visible = torch.arange(case.s, device="cuda")[None, :] <= rows[:, None] if case.causal else torch.ones(
        1, 1, dtype=torch.bool, device="cuda")
    queries, keys, values = (x.transpose(0, 1) for x in (q[b, rows], k[b], v[b]))
    scale = case.d ** -0.5
    reference = standard_attention(queries, keys, values, visible, scale, dtype=torch.float64, round_to=torch.float64)
    standard = standard_attention(queries, keys, values, visible, scale, dtype=torch.float32, round_to=q.dtype)
    allowed = 2 * (standard - reference).abs().max().item() + 1e-5
    error = (out[b, rows].transpose(0, 1).double() - reference).abs().max().item()
    return "" if error <= allowed else f"wrong: error {error:.1e}; allowed {allowed:.1e}"
