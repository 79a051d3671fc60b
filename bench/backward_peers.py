# SPDX-License-Identifier: Apache-2.0
"""Tandem and its peers behind one signature for the backward pass, and the check that each computes gradients."""

import contextlib
import math

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import tandem

MODES = ("free", "deterministic")
GRADIENTS = ("dq", "dk", "dv")
QUERIES_AT_ONCE = 2048
CHECKED_ROWS = 8192  # of queries, about, where heads are short: of one short head the largest of a few rounding errors is chance


@contextlib.contextmanager
def _determinism(wanted):
    """What PyTorch's own operators read; it does not fill fresh tensors meanwhile."""
    if not wanted:
        yield
        return
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _tandem_call(case, mode, q, k, v, dout):
    window = (case.window - 1, 0) if case.window else None
    options = {"causal": case.causal and not window, "window": window}
    out, lse = tandem.forward(q, k, v, return_lse=True, **options)
    gradients = {name: torch.full_like(x, float("nan")) for name, x in zip(GRADIENTS, (q, k, v))}
    return lambda: tandem.backward(q, k, v, out, lse, dout, deterministic=mode == "deterministic", **options,
                                   **gradients)


def _gradient_call(forward, mode, inputs, dout):
    """Of a recorded forward pass, backwards as often as wanted."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = forward(*inputs)

    def call():
        with _determinism(mode == "deterministic"):
            return torch.autograd.grad(out, inputs, dout, retain_graph=True)
    return call


def _sdpa_call(backend):
    def make(case, mode, q, k, v, dout):
        if case.window:
            raise RuntimeError("PyTorch's scaled_dot_product_attention has no windows without a mask tensor")

        def forward(q, k, v):
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(
                    *(x.transpose(1, 2) for x in (q, k, v)), is_causal=case.causal,
                    enable_gqa=case.hk != case.heads).transpose(1, 2)
        return _gradient_call(forward, mode, (q, k, v), dout)
    return make


def _fa3_call(case, mode, q, k, v, dout):
    """FlashAttention-3, where its module is installed."""
    from flash_attn_interface import flash_attn_func
    window = {"window_size": (case.window - 1, 0)} if case.window else {}

    def forward(q, k, v):
        out = flash_attn_func(q, k, v, causal=case.causal and not case.window, deterministic=mode == "deterministic",
                              **window)
        return out[0] if isinstance(out, tuple) else out
    return _gradient_call(forward, mode, (q, k, v), dout)


# {name: (case, mode, q, k, v, dout) -> call}; a call enqueues one backward pass and returns dq, dk and dv, b, s, h, d.
PEERS = {"tandem": _tandem_call, "cudnn": _sdpa_call(SDPBackend.CUDNN_ATTENTION),
         "fa2": _sdpa_call(SDPBackend.FLASH_ATTENTION), "fa3": _fa3_call}


def _visible(case, rows):
    """Which keys the queries `rows` see: rows, sk."""
    ahead = torch.arange(case.sk, device=rows.device)[None, :] - rows[:, None] - (case.sk - case.s)
    visible = ahead <= 0 if case.causal else torch.ones_like(ahead, dtype=torch.bool)
    return visible & (ahead > -case.window) if case.window else visible


def standard_gradients(case, q, k, v, dout, *, dtype, round_to):
    """dq, dk, dv of one key/value head and the query heads that share it (q, dout: heads, sq, d; k, v: sk, d), in dtype
    arithmetic; o, probabilities, their gradients and the results are rounded to round_to."""
    def rounded(x):
        return x.to(round_to).to(dtype)

    q, k, v, dout = (x.to(dtype) for x in (q, k, v, dout))
    scale = 1 / math.sqrt(case.d)
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for head in range(q.shape[0]):
        for begin in range(0, case.s, QUERIES_AT_ONCE):
            rows = torch.arange(begin, min(begin + QUERIES_AT_ONCE, case.s), device=q.device)
            queries, gradients = q[head, rows], dout[head, rows]
            scores = (queries @ k.T * scale).masked_fill(~_visible(case, rows), float("-inf"))
            p = torch.softmax(scores, -1)
            delta = (gradients * rounded(rounded(p) @ v)).sum(-1, keepdim=True)
            ds = rounded(p * (gradients @ v.T - delta))
            dq[head, rows] = scale * (ds @ k)
            dk += scale * (ds.T @ queries)
            dv += rounded(p).T @ gradients
    return [x.to(round_to).double() for x in (dq, dk, dv)]


def check_gradients(case, inputs, gradients, seed, rmse_factor=1.1, noise=0):
    """"" if these are the gradients for inputs q, k, v and dout: complete, and for one key/value head, or several short
    ones, within rmse_factor of the RMSE and twice the largest error of a standard implementation in the same precision,
    all against float64; noise: more. Otherwise what is wrong."""
    q, k, v, dout = inputs
    for name, x in zip(GRADIENTS, gradients):
        if not torch.isfinite(x).all():
            return f"{name} is not finite everywhere"
    group, generator = case.heads // case.hk, torch.Generator().manual_seed(seed)
    dq, dk, dv = gradients
    errors, allowances = ([[] for _ in GRADIENTS] for _ in range(2))
    count = min(case.b * case.hk, max(1, CHECKED_ROWS // (case.s * group)))
    for place in torch.randperm(case.b * case.hk, generator=generator)[:count].tolist():
        b, head = divmod(place, case.hk)
        heads = slice(head * group, (head + 1) * group)
        one = [q[b, :, heads].transpose(0, 1), k[b, :, head], v[b, :, head], dout[b, :, heads].transpose(0, 1)]
        reference = standard_gradients(case, *one, dtype=torch.float64, round_to=torch.float64)
        standard = standard_gradients(case, *one, dtype=torch.float32, round_to=q.dtype)
        results = [dq[b, :, heads].transpose(0, 1), dk[b, :, head], dv[b, :, head]]
        for i, (result, plain, exact) in enumerate(zip(results, standard, reference)):
            errors[i].append((result.double() - exact).flatten())
            allowances[i].append((plain - exact).flatten())
    for name, error, allowed in zip(GRADIENTS, map(torch.cat, errors), map(torch.cat, allowances)):
        for what, measured, limit in (("RMSE", error.square().mean().sqrt(), rmse_factor * allowed.square().mean().sqrt() + noise),
                                      ("error", error.abs().max(), 2 * allowed.abs().max() + 1e-5 + noise)):
            if not measured <= limit:
                return f"wrong: {what} of {name} {measured:.1e}; allowed {limit:.1e}"
    return ""
