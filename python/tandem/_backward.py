# SPDX-License-Identifier: Apache-2.0
"""The gradients of a forward call."""

import ctypes

from ._arrays import arrays_of, check_kinds, check_ranks, describe
from ._library import FLOATS, BackwardArgs, check, invalid, library
from ._options import as_backend, as_mask, as_scale, as_sinks, as_softcap, check_together, pointer_to, sized
from ._varlen import as_varlen, packed


def backward(q, k, v, out, lse, dout, *, dlse=None, causal=False, window=None, scale=None, softcap=0.0,
             deterministic=False, dq=None, dk=None, dv=None, backend="auto", sinks=None, dsinks=None):
    """The gradients of q, k and v for one call out, lse = tandem.forward(q, k, v, ..., return_lse=True).

    dout: the gradient of out; dlse: that of lse, None for none. Shapes and dtypes are those of the call, lse and dlse
    are float32, b, sq, q_heads. All NumPy arrays, or all PyTorch tensors of one device, where the call is enqueued on
    the current stream. causal, window, scale and softcap have to be those of the call.

    deterministic: the same bits in every run, which all backends give anyway. dq, dk, dv, dsinks: where to write (default:
    new arrays). sinks (float32, q_heads): those of the call, where their gradients are wanted; the others need them only in
    lse. backend: as in forward.

    Returns dq, dk, dv; with sinks also dsinks, float32, q_heads. A query that sees no key has dq 0, a key that no query sees
    dk and dv 0. out and lse may be those of a call over more keys than k and v: then dk and dv are these keys' gradients, and
    dq is their share of a sum. Raises TandemError with the library's message.
    """
    arrays = arrays_of(q)
    check_kinds(arrays, {"q": q, "k": k, "v": v})
    check_ranks({"q": q, "k": k, "v": v})
    gradients = {name: arrays.empty(like.shape) if x is None else x
                 for name, x, like in (("dq", dq, q), ("dk", dk, k), ("dv", dv, v))}
    read = {"q": q, "k": k, "v": v, "out": out, "dout": dout, "lse": lse}
    options = sized(BackwardArgs, backend=as_backend(backend), deterministic=int(bool(deterministic)),
                    mask=pointer_to(as_mask(causal, window)), scale=as_scale(scale),
                    softcap=as_softcap(softcap))
    return _differentiate(arrays, read, gradients, {"dlse": dlse, "sinks": sinks, "dsinks": dsinks}, options)


def backward_varlen(q, k, v, out, lse, dout, *, dlse=None, cu_seqlens_q=None, cu_seqlens_k=None, seqused_k=None,
                    max_seqlen_q=0, max_seqlen_k=0, causal=False, window=None, scale=None, softcap=0.0,
                    deterministic=False, dq=None, dk=None, dv=None, backend="auto", sinks=None, dsinks=None):
    """The gradients of q, k and v for one call out, lse = tandem.forward_varlen(q, k, v, ..., return_lse=True), whose keys
    are packed or in entries; in one call too, that reads no length on the host.

    q, out and dout are of the call's rows of queries, k and v of its keys, lse and dlse (float32) shaped like q without its
    last dimension. cu_seqlens_q, cu_seqlens_k, seqused_k, max_seqlen_q and max_seqlen_k have to be those of the call, and
    so have causal, window, scale and softcap. Each sequence's gradients are those of the sequence alone. The rest is as in
    backward: dsinks are sums over all sequences.

    Rows that belong to no sequence, and keys that are not in use, are neither read nor written: they are 0 in new arrays, and
    as they were in dq, dk and dv where these are given.
    """
    arrays = arrays_of(q)
    check_kinds(arrays, {"q": q, "k": k, "v": v})
    check_ranks({"q": q, "k": k, "v": v}, (3, 4), "rows, h, d or b, s, h, d")
    gradients = {name: arrays.zeros(like.shape) if x is None else x
                 for name, x, like in (("dq", dq, q), ("dk", dk, k), ("dv", dv, v))}
    read = {"q": q, "k": k, "v": v, "out": out, "dout": dout, "lse": lse}
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "seqused_k": seqused_k}
    check_together(arrays, read | {name: x for name, x in lengths.items() if x is not None}, written=[])
    varlen = as_varlen(arrays, q, lengths, {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k})
    options = sized(BackwardArgs, backend=as_backend(backend), deterministic=int(bool(deterministic)),
                    mask=pointer_to(as_mask(causal, window)), scale=as_scale(scale),
                    softcap=as_softcap(softcap), varlen=pointer_to(varlen))
    return _differentiate(arrays, read, gradients, {"dlse": dlse, "sinks": sinks, "dsinks": dsinks}, options)


def _differentiate(arrays, read, gradients, extras, args):
    """gradients, filled, and those of sinks. extras: dlse, sinks and dsinks, each maybe None. args: the rest of the call."""
    dlse, sinks, dsinks = extras["dlse"], extras["sinks"], extras["dsinks"]
    results, heads = dict(gradients), read["q"].shape[-2]
    if dlse is not None:
        read["dlse"] = dlse
    if dsinks is not None and sinks is None:
        raise invalid("dsinks is given, but sinks is None; pass the sinks of the call")
    if sinks is not None:
        read["sinks"] = sinks
        results["dsinks"] = arrays.empty_float((heads,)) if dsinks is None else dsinks
    check_together(arrays, read | results, written=list(results))
    args.sinks = as_sinks(arrays, sinks, heads)
    args.dsinks = as_sinks(arrays, results.get("dsinks"), heads, "dsinks")
    fields = {"out": "o"}
    for name, x in (read | results).items():
        if name not in ("sinks", "dsinks"):
            setattr(args, fields.get(name, name), _described(arrays, name, x, may_be_packed=bool(args.varlen)))

    lib = library()
    with arrays.stream() as stream:
        size = ctypes.c_size_t()
        check(lib.tandem_backward_workspace(ctypes.byref(args), ctypes.byref(size)))
        workspace = arrays.workspace(size.value, zeroed=False) if size.value else None
        check(lib.tandem_backward(ctypes.byref(args), None if workspace is None else arrays.pointer(workspace),
                                  size.value, stream))
    return tuple(results.values())


def _described(arrays, name, x, may_be_packed):
    """x as the C interface has it; lse and dlse, a number for each row and head, with a last dimension of 1."""
    of_rows = name in ("lse", "dlse")
    if of_rows:
        if may_be_packed:
            check_ranks({name: x}, (2, 3), "rows, h or b, sq, h")
        else:
            check_ranks({name: x}, (3,), "b, sq, h")
        x = x[..., None]
    return describe(arrays, name, packed(x) if may_be_packed else x, dtypes=("float32",) if of_rows else FLOATS)
