# SPDX-License-Identifier: Apache-2.0
"""The gradients of a forward call."""

import ctypes

from ._arrays import arrays_of, check_kinds, check_ranks, describe
from ._library import FLOATS, BackwardArgs, check, invalid, library
from ._options import as_backend, as_mask, as_number, as_scale, as_sinks, check_together, pointer_to, sized


def backward(q, k, v, out, lse, dout, *, dlse=None, causal=False, window=None, scale=None, softcap=0.0,
             deterministic=False, dq=None, dk=None, dv=None, backend="auto", sinks=None, dsinks=None):
    """The gradients of q, k and v for one call out, lse = tandem.forward(q, k, v, ..., return_lse=True).

    dout: the gradient of out; dlse: that of lse, None for none. Shapes and dtypes are those of the call, lse and dlse
    are float32, b, sq, q_heads. All NumPy arrays, or all PyTorch tensors of one device, where the call is enqueued on
    the current stream. causal, window, scale and softcap have to be those of the call.

    deterministic: the same bits in every run, which all backends give anyway. dq, dk, dv, dsinks: where to write (default: new arrays). sinks: those of
    the call, where their gradients are wanted; the others need them only in lse. backend: as in forward.

    Returns dq, dk, dv; with sinks also dsinks, float32, q_heads. A query that sees no key has dq 0, a key that no query sees dk and dv 0. out and lse may be those
    of a call over more keys than k and v: then dk and dv are these keys' gradients, and dq is their share of a sum.
    Raises TandemError with the library's message.
    """
    arrays = arrays_of(q)
    check_kinds(arrays, {"q": q, "k": k, "v": v})
    given = {"dq": (dq, q), "dk": (dk, k), "dv": (dv, v)}
    results = {name: arrays.empty(like.shape) if x is None else x for name, (x, like) in given.items()}
    read = {"q": q, "k": k, "v": v, "out": out, "dout": dout, "lse": lse}
    if dlse is not None:
        read["dlse"] = dlse
    heads = q.shape[2] if q.ndim == 4 else 0
    if dsinks is not None and sinks is None:
        raise invalid("dsinks is given, but sinks is None; pass the sinks of the call")
    if sinks is not None:
        read["sinks"] = sinks
        results["dsinks"] = arrays.empty_float((heads,)) if dsinks is None else dsinks
    check_together(arrays, read | results, written=list(results))

    args = sized(BackwardArgs, backend=as_backend(backend), deterministic=int(bool(deterministic)),
                 mask=pointer_to(as_mask(causal, window)), scale=as_scale(scale), softcap=as_number("softcap", softcap),
                 sinks=as_sinks(arrays, sinks, heads), dsinks=as_sinks(arrays, results.get("dsinks"), heads, "dsinks"))
    fields = {"out": "o"}
    for name, x in (read | results).items():
        if name in ("sinks", "dsinks"):
            continue
        of_rows = name in ("lse", "dlse")
        if of_rows:
            check_ranks({name: x}, (3,), "b, sq, h")
        setattr(args, fields.get(name, name), describe(arrays, name, x[..., None] if of_rows else x,
                                                       dtypes=("float32",) if of_rows else FLOATS))

    lib = library()
    with arrays.stream() as stream:
        size = ctypes.c_size_t()
        check(lib.tandem_backward_workspace(ctypes.byref(args), ctypes.byref(size)))
        workspace = arrays.workspace(size.value, zeroed=False) if size.value else None
        check(lib.tandem_backward(ctypes.byref(args), None if workspace is None else arrays.pointer(workspace),
                                  size.value, stream))
    return tuple(results.values())
