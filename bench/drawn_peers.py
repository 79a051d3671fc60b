# SPDX-License-Identifier: Apache-2.0
"""Tandem and its peers on drawn shapes: inputs, calls that compute the same, and the check that they do."""

import importlib.util
import math

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import tandem
from decode_peers import MAX_COPIES, ROTATED_BYTES
from peers import DTYPES, standard_attention

CHECKED_ROWS, CHECKED_HEADS = 8, 2
GRAPH_MS = 0.4  # of calls in one graph, about
LEAST_CALL_MS, TFLOP_PER_MS, BYTES_PER_MS = 5e-3, 0.6, 4e9  # for the guess how many that are


class Inputs:
    """q, k, v ~ N(0, 1). Caches come in copies that together are several times L2, which steps take in turns; keys
    beyond a sequence's length are finite, since not every peer leaves them alone."""

    def __init__(self, case, seed):
        self.case = case
        generator = torch.Generator("cuda").manual_seed(seed)
        options = {"device": "cuda", "dtype": DTYPES[case.dtype]}
        shapes = (case.b, case.sq, case.hq, case.d), (case.b, case.sk, case.hk, case.d)
        self.q = torch.empty(shapes[0], **options).normal_(generator=generator)
        copies = min(max(math.ceil(ROTATED_BYTES / case.bytes), 1), MAX_COPIES) if case.cached else 1
        self.caches = [[torch.empty(shapes[1], **options).normal_(generator=generator) for _ in "kv"]
                       for _ in range(copies)]
        self.lengths = torch.tensor(case.sequence_lengths, dtype=torch.int32, device="cuda")


def _tandem(inputs):
    case, q = inputs.case, inputs.q
    out = torch.full_like(q, float("nan"))
    if case.cached:
        workspace = tandem.DecodeWorkspace()
        return lambda k, v: tandem.decode(q, k, v, inputs.lengths, causal=case.causal, out=out, workspace=workspace)
    window = (case.window - 1, 0) if case.window else None
    return lambda k, v: tandem.forward(q, k, v, causal=case.causal and not window, window=window, out=out)


def _cudnn(inputs):
    case = inputs.case
    if case.lengths or case.window or (case.causal and case.sq != case.sk):
        raise RuntimeError("PyTorch's scaled_dot_product_attention has no such mask")
    q, grouped = inputs.q.transpose(1, 2), case.hq != case.hk

    def call(k, v):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return functional.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2), is_causal=case.causal,
                                                           enable_gqa=grouped).transpose(1, 2)
    return call


def _cudnn_packed(inputs):
    """The queries that share a key head as so many queries of one head: the same where no mask tells them apart."""
    case = inputs.case
    if case.lengths or case.causal or case.hq == case.hk or case.sq > 8:
        raise RuntimeError("not packed")
    group = case.hq // case.hk
    q = inputs.q.view(case.b, case.sq, case.hk, group, case.d).permute(0, 2, 1, 3, 4).reshape(
        case.b, case.hk, case.sq * group, case.d)

    def call(k, v):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = functional.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2))
        return out.view(case.b, case.hk, case.sq, group, case.d).permute(0, 2, 1, 3, 4).flatten(2, 3)
    return call


def _fa2(inputs):
    """PyTorch's own FlashAttention-2, with windows and bottom-right masks, which the public function hides. Ragged
    sequences one behind another."""
    case, q = inputs.case, inputs.q
    forward = torch.ops.aten._flash_attention_forward
    mask = {"window_size_left": case.window - 1, "window_size_right": 0} if case.window else {}
    if not case.lengths:
        return lambda k, v: forward(q, k, v, None, None, case.sq, case.sk, 0.0, case.causal and not case.window, False,
                                    **mask)[0]
    ends = torch.cat([torch.zeros(1, dtype=torch.int32, device="cuda"), inputs.lengths.cumsum(0).to(torch.int32)])
    starts = torch.arange(case.b + 1, dtype=torch.int32, device="cuda") * case.sq
    packed = {caches[0].data_ptr(): [torch.cat([x[b, :n] for b, n in enumerate(case.lengths)]) for x in caches]
              for caches in inputs.caches}

    def call(k, v):
        out = forward(q.flatten(0, 1), *packed[k.data_ptr()], starts, ends, case.sq, case.sk, 0.0, case.causal, False)[0]
        return out.view_as(q)
    return call


def _fa3(inputs):
    from flash_attn_interface import flash_attn_func, flash_attn_with_kvcache
    case, q = inputs.case, inputs.q
    window = {"window_size": (case.window - 1, 0)} if case.window else {}
    if case.cached:
        return lambda k, v: flash_attn_with_kvcache(q, k, v, cache_seqlens=inputs.lengths, causal=case.causal)

    def call(k, v):
        out = flash_attn_func(q, k, v, causal=case.causal and not case.window, **window)
        return out[0] if isinstance(out, tuple) else out
    return call


# {name: inputs -> call}; a call of (k, v) enqueues one pass and returns o, b, sq, hq, d.
DRAWN_PEERS = {"tandem": _tandem, "cudnn": _cudnn, "cudnn_packed": _cudnn_packed, "fa2": _fa2}
if importlib.util.find_spec("flash_attn_interface"):
    DRAWN_PEERS["fa3"] = _fa3


def check(inputs, out, seed):
    """"" if sampled rows are attention within twice the error of a standard implementation in the same precision, both
    against float64. Otherwise what is wrong."""
    case = inputs.case
    if not torch.isfinite(out).all():
        return "the output is not finite everywhere"
    generator = torch.Generator().manual_seed(seed)
    b = int(torch.randint(case.b, (1,), generator=generator))
    rows = torch.randint(case.sq, (CHECKED_ROWS,), generator=generator)
    rows[0] = case.sq - 1
    rows = rows.cuda()
    heads = torch.randint(case.hq, (CHECKED_HEADS,), generator=generator).cuda()
    length = case.sequence_lengths[b]
    last = rows[:, None] + (length - case.sq) if case.causal else torch.full((1, 1), length, device="cuda")
    keys = torch.arange(length, device="cuda")[None, :]
    visible = keys <= last
    if case.window:
        visible &= keys > last - case.window
    seen = visible.any(1) if case.causal else torch.ones(len(rows), dtype=torch.bool, device="cuda")
    queries = inputs.q[b, rows][:, heads].transpose(0, 1)
    k, v = (x[b, :length][:, heads // (case.hq // case.hk)].transpose(0, 1) for x in inputs.caches[0])
    scale = case.d ** -0.5
    reference = standard_attention(queries, k, v, visible, scale, dtype=torch.float64, round_to=torch.float64)
    standard = standard_attention(queries, k, v, visible, scale, dtype=torch.float32, round_to=inputs.q.dtype)
    allowed = 2 * (standard - reference)[:, seen].abs().max().item() + 2e-5
    error = (out[b, rows][:, heads].transpose(0, 1).double() - reference)[:, seen].abs().max().item()
    return "" if error <= allowed else f"wrong: error {error:.1e}; allowed {allowed:.1e}"


class Replayed:
    """Calls over all copies of the keys in turn, recorded once as a CUDA graph."""

    def __init__(self, call, inputs):
        case = inputs.case
        guess = max(LEAST_CALL_MS, case.tflop / TFLOP_PER_MS, case.bytes / BYTES_PER_MS)
        copies = len(inputs.caches)
        self.calls = copies * max(1, round(GRAPH_MS / guess / copies))
        self._call = call  # and all that the graph's kernels point to: outputs, workspace
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for i in range(self.calls):
                call(*inputs.caches[i % copies])

    def __call__(self):
        self._graph.replay()


def right_calls(inputs, peers, recorded):
    """({peer: recorded(call, inputs)} of those that compute the case rightly, {peer: reason} of the others)."""
    found, reasons = {}, {}
    for name in peers:
        try:
            call = DRAWN_PEERS[name](inputs)
            reason = check(inputs, call(*inputs.caches[0]), inputs.case.seed)
            if not reason:
                found[name] = recorded(call, inputs)
        except (RuntimeError, ValueError, TypeError) as error:  # TandemError is one, and "no available kernel"
            reason = " ".join(str(error).split())
        if reason:
            reasons[name] = reason[:160]
    return found, reasons
