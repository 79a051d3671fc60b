# SPDX-License-Identifier: Apache-2.0
"""Merging results of attention over parts of the keys."""

import ctypes

from ._arrays import arrays_of, describe
from ._library import MergeArgs, TandemError, check, library
from ._options import as_backend, check_together, sized


def _first(arrays, name, x, dimensions, like):
    """x's first part as the C interface's tensor, shaped like `like` where x has none, and the elements from part to
    part."""
    if x.ndim != len(dimensions):
        raise TandemError("TANDEM_INVALID_ARGUMENT", f"{name} has {x.ndim} dimensions; {len(dimensions)} are needed "
                          f"({', '.join(dimensions)})")
    first = x[0] if len(x) else like
    return describe(arrays, name, first if first.ndim == 4 else first[..., None]), arrays.strides(x)[0]


def merge(o_parts, lse_parts, *, dtype=None, out=None, backend="auto"):
    """The result of attention over all keys, from its results over parts of them.

    o_parts: parts, b, s, heads, d, float32, bfloat16 or float16, d a multiple of 8. lse_parts: parts, b, s, heads,
    float32: the natural log-sum-exp of each, as forward and decode return it. Both NumPy arrays, or both PyTorch
    tensors of one device, where the call is enqueued on the current stream. A part whose log-sum-exp is -inf has seen
    no key: its row of o_parts may hold anything.

    dtype: of the output, as NumPy or PyTorch name it (default: that of o_parts). out: where to write instead, b, s,
    heads, d. backend as in forward.

    Returns out, b, s, heads, d, and its natural log-sum-exp, float32, b, s, heads: 0 and -inf where no part has seen a
    key. Raises TandemError with the library's message.
    """
    arrays = arrays_of(o_parts, "o_parts")
    out = arrays.empty(o_parts.shape[1:], dtype) if out is None else out
    check_together(arrays, {"o_parts": o_parts, "lse_parts": lse_parts, "out": out}, written=["out"])
    lse = arrays.empty_float((*out.shape[:3], 1))
    args = sized(MergeArgs, backend=as_backend(backend), parts=len(o_parts))
    args.o_parts, args.o_part_stride = _first(arrays, "o_parts", o_parts, ("parts", "b", "s", "heads", "d"), out)
    args.lse_parts, args.lse_part_stride = _first(arrays, "lse_parts", lse_parts, ("parts", "b", "s", "heads"), lse)
    if len(lse_parts) != len(o_parts):
        raise TandemError("TANDEM_INVALID_ARGUMENT", f"o_parts has {len(o_parts)} parts, lse_parts {len(lse_parts)}")
    args.o, args.lse = describe(arrays, "out", out), describe(arrays, "lse", lse)
    with arrays.stream() as stream:
        check(library().tandem_merge(ctypes.byref(args), stream))
    return out, lse[..., 0]
