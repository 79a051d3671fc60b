# SPDX-License-Identifier: Apache-2.0
"""Tandem and its peers behind one signature, and the check that each computes attention."""

import importlib.util

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import tandem

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
CHECKED_QUERIES = 64


def make_inputs(case, seed):
    """q, k, v ~ N(0, 1), each b, s, h, d."""
    generator = torch.Generator("cuda").manual_seed(seed)
    shapes = [(case.b, case.s, case.heads, case.d), (case.b, case.sk, case.hk, case.d), (case.b, case.sk, case.hk, case.dv)]
    return [torch.randn(shape, generator=generator, device="cuda", dtype=DTYPES[case.dtype]) for shape in shapes]


def tandem_variant(**study):
    """A peer: Tandem with what is asked for of its kernel."""
    def make(case, q, k, v):
        out = q.new_full((*q.shape[:-1], v.shape[-1]), float("nan"))
        window = (case.window - 1, 0) if case.window else None
        return lambda: tandem.forward(q, k, v, causal=case.causal and not window, window=window, out=out,
                                      study=study)
    return make


def _sdpa_call(backend):
    def make(case, q, k, v):
        if case.window:
            raise RuntimeError("PyTorch's scaled_dot_product_attention has no windows without a mask tensor")
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        grouped = case.hk != case.heads

        def call():
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(q, k, v, is_causal=case.causal,
                                                               enable_gqa=grouped).transpose(1, 2)
        return call
    return make


def _fa2_call(case, q, k, v):
    """FlashAttention-2 as PyTorch carries it; the windows of its own operator, which the public function hides."""
    if not case.window:
        return _sdpa_call(SDPBackend.FLASH_ATTENTION)(case, q, k, v)
    forward = torch.ops.aten._flash_attention_forward
    return lambda: forward(q, k, v, None, None, case.s, case.sk, 0.0, False, False, window_size_left=case.window - 1,
                           window_size_right=0)[0]


def _fa3_call(case, q, k, v):
    """FlashAttention-3, where its module is installed."""
    from flash_attn_interface import flash_attn_func
    window = {"window_size": (case.window - 1, 0)} if case.window else {}

    def call():
        out = flash_attn_func(q, k, v, causal=case.causal and not case.window, **window)
        return out[0] if isinstance(out, tuple) else out
    return call


# {name: (case, q, k, v) -> call}; a call enqueues one forward pass and returns o, b, s, h, d.
PEERS = {"tandem": tandem_variant(), "cudnn": _sdpa_call(SDPBackend.CUDNN_ATTENTION), "fa2": _fa2_call,
         "fa3": _fa3_call, "efficient": _sdpa_call(SDPBackend.EFFICIENT_ATTENTION)}
ON_REQUEST = ["efficient"]  # by default those run that are fast
INSTALLED = [peer for peer in PEERS if peer not in ON_REQUEST and (peer != "fa3" or importlib.util.find_spec("flash_attn_interface"))]


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
    ahead = torch.arange(case.sk, device="cuda")[None, :] - rows[:, None]
    visible = ahead <= (0 if case.causal else case.sk)
    if case.window:
        visible &= ahead > -case.window
    group = case.heads // case.hk
    queries = q[b, rows].transpose(0, 1)
    keys, values = (x[b].transpose(0, 1).repeat_interleave(group, 0) for x in (k, v))
    scale = case.d ** -0.5
    reference = standard_attention(queries, keys, values, visible, scale, dtype=torch.float64, round_to=torch.float64)
    standard = standard_attention(queries, keys, values, visible, scale, dtype=torch.float32, round_to=q.dtype)
    allowed = 2 * (standard - reference).abs().max().item() + 1e-5
    error = (out[b, rows].transpose(0, 1).double() - reference).abs().max().item()
    return "" if error <= allowed else f"wrong: error {error:.1e}; allowed {allowed:.1e}"
