# SPDX-License-Identifier: Apache-2.0
"""Merging results of attention over parts of the keys."""

import ctypes

from ._arrays import arrays_of, check_kinds, check_ranks, chosen_dtype, describe
from ._library import FLOATS, MergeArgs, check, invalid, library
from ._options import as_backend, check_together, sized


_DIMENSIONS = {"o_parts": ("parts", "b", "s", "heads", "d"), "lse_parts": ("parts", "b", "s", "heads")}


def _first(arrays, name, x, dtypes, like):
    """x's first part as the C interface's tensor, shaped like `like` where x has none, and the elements from part to
    part."""
    first = x[0] if len(x) else like
    return describe(arrays, name, first if first.ndim == 4 else first[..., None], dtypes=dtypes), arrays.strides(x)[0]


def merge(o_parts, lse_parts, *, dtype=None, out=None, backend="auto"):
    """The result of attention over all keys, from its results over parts of them.

    o_parts: parts, b, s, heads, d, float32, bfloat16 or float16, d a multiple of 8. lse_parts: parts, b, s, heads,
    float32: the natural log-sum-exp of each, as forward and decode return it. Both NumPy arrays, or both PyTorch
    tensors of one device, where the call is enqueued on the current stream. A part whose log-sum-exp is -inf has seen
    no key: its row of o_parts may hold anything.

    dtype: of the output, one of these by name or as NumPy's or PyTorch's dtype (default: that of o_parts). out: where to
    write instead, b, s, heads, d. backend as in forward.

    Returns out, b, s, heads, d, and its natural log-sum-exp, float32, b, s, heads: 0 and -inf where no part has seen a
    key. Raises TandemError with the library's message.
    """
    arrays = arrays_of(o_parts, "o_parts")
    parts = {"o_parts": o_parts, "lse_parts": lse_parts}
    check_kinds(arrays, parts)
    for name, x in parts.items():
        check_ranks({name: x}, (len(_DIMENSIONS[name]),), ", ".join(_DIMENSIONS[name]))
    dtype = None if dtype is None else arrays.dtype(chosen_dtype(arrays.name_of_dtype, dtype, FLOATS))
    out = arrays.empty(o_parts.shape[1:], dtype) if out is None else out
    check_together(arrays, parts | {"out": out}, written=["out"])
    check_ranks({"out": out}, dimensions="b, s, heads, d")
    lse = arrays.empty_float((*out.shape[:3], 1))
    args = sized(MergeArgs, backend=as_backend(backend), parts=len(o_parts))
    args.o_parts, args.o_part_stride = _first(arrays, "o_parts", o_parts, FLOATS, out)
    args.lse_parts, args.lse_part_stride = _first(arrays, "lse_parts", lse_parts, ("float32",), lse)
    if len(lse_parts) != len(o_parts):
        raise invalid(f"o_parts has {len(o_parts)} parts, lse_parts {len(lse_parts)}")
    args.o, args.lse = describe(arrays, "out", out, dtypes=FLOATS), describe(arrays, "lse", lse)
    with arrays.stream() as stream:
        check(library().tandem_merge(ctypes.byref(args), stream))
    return out, lse[..., 0]
