#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a call from Python keeps its thread: Tandem's functions, PyTorch's own, and the stages of one call.

    bench/host.py [--library LIB] [--json FILE]

Microseconds, the best and the median of some rounds of 100 calls. With a Hopper GPU the calls are enqueued there, short
ones, and the device is waited for between rounds. Without one they are of a batch of no sequences, which is checked like
any other and computes nothing. Needs PyTorch, and tandem on the path.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import time
from pathlib import Path

import torch

ROUNDS, CALLS = 40, 100
LIBRARY = torch.library.Library("tandem_host", "DEF")  # operators to compare with


def measure(call, device):
    """(best, median) of the microseconds that `call` takes."""
    times = []
    for _ in range(ROUNDS):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append(1e6 * (time.perf_counter() - start) / CALLS)
    return round(min(times), 2), round(statistics.median(times), 2)


def tensors(device):
    dtype, batch = (torch.bfloat16, 2) if device == "cuda" else (torch.float32, 0)
    return [torch.randn(batch, 128, heads, 64, device=device, dtype=dtype) for heads in (8, 2, 2)]


def whole_calls(q, k, v):
    from tandem.flash_attn_interface import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
    from tandem.torch import attention, attention_varlen, decode
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    starts = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device) * q.shape[1]
    lengths = torch.full((len(q),), 100, dtype=torch.int32, device=q.device)
    step = q[:, :1].contiguous()
    sdpa = torch.nn.functional.scaled_dot_product_attention
    rotated = [x.transpose(1, 2) for x in (q, k.repeat_interleave(4, 2), v.repeat_interleave(4, 2))]
    return {"attention": lambda: attention(q, k, v, causal=True),
            "attention with log-sum-exp": lambda: attention(q, k, v, causal=True, return_lse=True),
            "flash_attn_func": lambda: flash_attn_func(q, k, v, causal=True),
            "torch.ops.tandem.forward": lambda: torch.ops.tandem.forward(q, k, v, -1, 0, 0.0, 0.0, False),
            "attention_varlen": lambda: attention_varlen(*packed, cu_seqlens_q=starts, cu_seqlens_k=starts, causal=True),
            "flash_attn_varlen_func": lambda: flash_attn_varlen_func(*packed, starts, starts, 128, 128, causal=True),
            "decode": lambda: decode(step, k, v, lengths),
            "torch.ops.tandem.decode": lambda: torch.ops.tandem.decode(step, k, v, lengths, None, None, None, None, False, -1,
                                                                      -1, 0.0, 0.0, 0),
            "flash_attn_with_kvcache": lambda: flash_attn_with_kvcache(step, k, v, cache_seqlens=lengths, causal=True),
            "scaled_dot_product_attention": lambda: sdpa(*rotated, is_causal=True),
            "torch.neg, the least that an eager operator takes": q.neg}


def least_operators(q, k, v):
    """Operators of forward's schema with a kernel in Python that makes the results and leaves them empty; the second has a
    formula for gradients, registered as PyTorch does it. What they take is the floor of torch.ops.tandem.forward."""
    from tandem.torch import _native
    schema = str(torch.ops.tandem.forward.default._schema).removeprefix("tandem::forward")

    def kernel(q, *_):
        return torch.empty_like(q), _native.empty_lse(q)
    for name in ("least", "least_with_gradients"):
        LIBRARY.define(name + schema)
        LIBRARY.impl(name, kernel, "CUDA" if q.is_cuda else "CPU")
    torch.library.register_autograd("tandem_host::least_with_gradients", lambda ctx, *_: None, lib=LIBRARY)
    options = -1, 0, 0.0, 0.0, False
    return {
        "an operator in Python with empty results": lambda: torch.ops.tandem_host.least(q, k, v, *options),
        "the same with a formula for gradients": lambda: torch.ops.tandem_host.least_with_gradients(q, k, v, *options)}


def training_calls(q, k, v):
    """With the graph that autograd keeps; and with the gradients, which it computes in a thread of its own on a GPU."""
    from tandem.torch import attention
    sdpa = torch.nn.functional.scaled_dot_product_attention
    own = [x.detach().requires_grad_() for x in (q, k, v)]
    turned = [x.transpose(1, 2).detach().requires_grad_() for x in (q, *(x.repeat_interleave(4, 2) for x in (k, v)))]
    dout, turned_dout = torch.ones_like(q), torch.ones_like(q).transpose(1, 2)
    recorded = {"attention, recorded by autograd": lambda: attention(*own, causal=True),
                "scaled_dot_product_attention, recorded by autograd": lambda: sdpa(*turned, is_causal=True)}
    return recorded | {"attention and its gradients": lambda: torch.autograd.grad(attention(*own, causal=True), own, dout),
                       "scaled_dot_product_attention and its gradients":
                           lambda: torch.autograd.grad(sdpa(*turned, is_causal=True), turned, turned_dout)}


def stages(q, k, v):
    """Of one call without log-sum-exp."""
    import tandem.torch
    from tandem.torch import _call, _native
    _call._prepared.clear()
    _call.forward(q, k, v, (-1, 0), 0.0, 0.0, with_lse=False)
    (prepared,) = _call._prepared.values()
    out, stream = torch.empty_like(q), _call.raw_stream(q.device.index) if q.is_cuda else None
    for word, x in zip((_call._F_Q, _call._F_K, _call._F_V, _call._F_O), (q, k, v, out)):
        prepared.words[word] = x.data_ptr()
    size = prepared.workspace_bytes
    memory = torch.empty(size + 255, dtype=torch.uint8, device=q.device)
    address = -(-memory.data_ptr() // 256) * 256 if size else None
    numbers = -1, 0, 0.0, 0.0
    # More outputs than the library remembers calls: each is a call that was not made before.
    others = itertools.cycle([torch.empty_like(q) for _ in range(1500 if q.is_cuda else 10)])
    fast = {} if _native.forward is None else {
        "stage: libtandem_python's call": lambda: _native.forward(q, k, v, out, None, *numbers, None),
        "stage: the same with other addresses": lambda: _native.forward(q, k, v, next(others), None, *numbers, None),
        "stage: of these, tensors read through DLPack": lambda: _native.forward(q, k, v, out, None, *numbers)}
    return {"stage: may it go past the dispatcher": lambda: tandem.torch._is_plain(q, k, v),
            "stage: shapes and strides": lambda: [(x.dtype, x.device, x.shape, x.stride()) for x in (q, k, v)],
            "stage: the output": lambda: torch.empty_like(q),
            "stage: addresses": lambda: (q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()),
            "stage: the library's call": lambda: prepared.call(prepared.address, address, size, stream),
            "stage: ctypes alone": lambda: prepared.call(None, None, 0, None)} | fast


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--library", type=Path, help="the libtandem.so to measure")
    parser.add_argument("--json", type=Path, help="where to write the best times")
    arguments = parser.parse_args()
    if arguments.library:
        os.environ["TANDEM_LIBRARY"] = str(arguments.library.resolve())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v = tensors(device)
    print(f"{platform.processor() or platform.machine()}, PyTorch {torch.__version__}, "
          f"{torch.cuda.get_device_name() if device == 'cuda' else 'no GPU'}; microseconds: best, median")
    best = {}
    for calls, recording in ((whole_calls, False), (least_operators, False), (training_calls, True), (stages, False)):
        with torch.set_grad_enabled(recording):
            for name, call in calls(q, k, v).items():
                call()
                best[name], median = measure(call, device)
                print(f"{best[name]:8.2f} {median:8.2f}  {name}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(best, indent=1) + "\n")


if __name__ == "__main__":
    main()
