# SPDX-License-Identifier: Apache-2.0
"""8 bits: quantising, and the scales of a forward call and of a cache."""

import ctypes
import math

from ._arrays import arrays_of, check_ranks, chosen_dtype, describe, table
from ._library import (EIGHT_BITS, FLOATS, VALUES_BY_COLUMN, VALUES_BY_KEY, CacheScales, QuantizeArgs, Scales, check, invalid,
                       library)
from ._options import as_backend, as_int64, as_number, as_rotary, as_tables, check_together, pointer_to, sized

KEY_GROUP = 16  # values by column have rows of a multiple of so many keys


def quantize(x, *, by_column=False, block=128, scale=None, hadamard=None, out=None, backend="auto",
             dtype="float8_e4m3fn", terms=1, rotary=None, rotary_interleaved=False, first_positions=None, amplitude=0.0,
             shift=None, k_shift=None, best_scale=False):
    """x in 8 bits, and the scales that they have to be multiplied by. One pass, for forward.

    x: b, s, heads, d: q, k or v; d a multiple of 8 up to 256, on Hopper 64, 128 or 256. A NumPy array (float8_e4m3fn is
    a dtype that the package ml_dtypes adds) or a PyTorch tensor, where the call is enqueued on the current stream.

    by_column: for v: the result is b, d, heads, n, n = s rounded up to a multiple of 16, as forward takes it with
    values_by_column, which is faster than v as it is. block: so many tokens share a scale; 0: all. On Hopper 128. scale:
    float32, b, blocks, heads, each also 1: known scales; without, each is the least power of two that brings the largest
    magnitude of its block to 448 or less. hadamard: a seed: every row is multiplied by a Hadamard matrix with signs from
    it, which spreads outliers over all columns; for q and k with the same seed, and d a power of two. out: where to
    write.

    dtype: "float8_e4m3fn", or "int8" for q and k, whose scales are the largest magnitude / 127; also as NumPy's or
    PyTorch's dtype. terms: 2 for v by column: the result is b, 2 * d, heads, n, and its second half what rounding left.
    rotary: (cos, sin), each positions x dim / 2, float32 or x's dtype: rows, not by column, are turned first, by positions first_positions (int32, b, on x's device;
    default 0) and on; rotary_interleaved: pairs are columns 2i and 2i + 1, not i and i + dim / 2. amplitude: of
    float8_e4m3fn, what a scale that is found brings the largest magnitude to, or up to half of it, 0 for 448. For q and k
    that of score_amplitude makes forward faster, which has to be told by qk_amplitude.

    shift: float32, b, heads, d; b may be 1, heads a divisor of x's: a vector that is taken off every row, behind rotary and
    ahead of hadamard, such as the mean of k or v. forward adds that of v, as v_shift, to its output again. k_shift: of
    x = q: the shift of k, b, kv_heads, d; the third result is then q_dot_k_shift, float32, b, s, heads, which forward
    takes for its log-sum-exp. best_scale: of float8_e4m3fn not by column, each scale that is found is the one of
    2^(i/4), i = 0 ... 3, times the least power of two that has the least squared error: for q, with block=1, which is the
    only one on Hopper then.

    Returns out and scale, b, blocks, heads; with k_shift also q_dot_k_shift. Raises TandemError with the library's message.
    """
    arrays = arrays_of(x, "x")
    block = as_int64("block", block)
    check_ranks({"x": x})
    dtype = chosen_dtype(arrays.name_of_dtype, dtype, EIGHT_BITS)
    b, s, heads, d = x.shape
    if out is None:
        shape = (b, (2 if terms == 2 else 1) * d, heads, -(-s // KEY_GROUP) * KEY_GROUP) if by_column else x.shape
        out = arrays.empty(shape, arrays.dtype(dtype))
    given = scale is not None
    if not given:
        scale = arrays.empty_float((b, -(-s // block) if block > 0 else 1, heads))
    tensors = {"x": x, "out": out, "scale": scale}
    shifts = {name: x for name, x in (("shift", shift), ("k_shift", k_shift)) if x is not None}
    if k_shift is not None:
        shifts["q_dot_k_shift"] = arrays.empty_float((b, s, heads))
    tensors.update(shifts)
    if rotary is not None:
        tensors["rotary[0]"], tensors["rotary[1]"] = as_tables(rotary)
    if first_positions is not None:
        tensors["first_positions"] = first_positions
    check_together(arrays, tensors, written=["out"])
    args = sized(QuantizeArgs, backend=as_backend(backend), layout=VALUES_BY_COLUMN if by_column else VALUES_BY_KEY,
                 block=block, scale_given=given, hadamard=hadamard is not None,
                 seed=0 if hadamard is None else as_int64("hadamard", hadamard), terms=as_int64("terms", terms, bits=32),
                 rotary=pointer_to(as_rotary(arrays, rotary, rotary_interleaved)),
                 first_positions=_as_positions(arrays, first_positions, b), amplitude=as_number("amplitude", amplitude),
                 best_scale=bool(best_scale))
    args.x, args.out = describe(arrays, "x", x, dtypes=FLOATS), describe(arrays, "out", out, dtypes=EIGHT_BITS)
    args.scale = describe(arrays, "scale", _with_blocks("scale", scale), dtypes=("float32",))
    for name, own in shifts.items():
        setattr(args, name, _as_dots(arrays, name, own) if name == "q_dot_k_shift" else as_shift(arrays, name, own))
    with arrays.stream() as stream:
        check(library().tandem_quantize(ctypes.byref(args), stream))
    return (out, scale) if k_shift is None else (out, scale, shifts["q_dot_k_shift"])


def score_amplitude(head_dim):
    """The largest number of float8_e4m3fn that q and k of a head dim may have so that fp16 holds every score: as amplitude
    for quantize, and as qk_amplitude for forward."""
    head_dim = as_int64("head_dim", head_dim)
    if head_dim < 1:
        raise invalid(f"head_dim is {head_dim}; it has to be 1 or more")
    most = min(448, math.isqrt(65504 // head_dim))
    step = 2 ** max(0, most.bit_length() - 4)  # between float8_e4m3fn numbers, which have four bits
    return float(most // step * step)


def _as_positions(arrays, positions, batch):
    """The address of an int32 array of `batch` numbers, None from None."""
    if positions is None:
        return None
    address, shape, _ = table(arrays, "first_positions", positions, ("int32",), ("b",))
    if shape != (batch,):
        raise invalid(f"first_positions has shape {shape}; it has to be ({batch},)")
    return address


def _with_blocks(name, scale):
    """b, heads or b, blocks, heads as b, blocks, heads, 1."""
    check_ranks({name: scale}, (2, 3), "b, heads or b, blocks, heads")
    return scale[:, None, :, None] if scale.ndim == 2 else scale[..., None]


def as_shift(arrays, name, shift):
    """The C interface's tensor of a shift, b, heads, d."""
    check_ranks({name: shift}, (3,), "b, heads, d")
    return describe(arrays, name, shift[:, None], dtypes=("float32",))


def _as_dots(arrays, name, dots):
    """The same of b, s, heads."""
    check_ranks({name: dots}, (3,), "b, s, heads")
    return describe(arrays, name, dots[..., None], dtypes=("float32",))


def blocks_of_scales(descales, block, q):
    """How many tokens share a scale: of q one where there are as many scales as tokens, else as of the others."""
    block, of_q = as_int64("descale_block", block), descales["q"]
    per_token = of_q is not None and of_q.ndim == 3 and of_q.shape[1] == q.shape[1]
    return {"q": 1 if per_token else block, "k": block, "v": block}


def as_scales(arrays, descales, blocks, values_by_column, v_terms=1, qk_amplitude=0.0):
    """The C interface's scales from {"q": array or None, ..., "v_shift": array or None, ...} and blocks_of_scales; None
    where nothing is given."""
    if not values_by_column and not qk_amplitude and all(x is None for x in descales.values()):
        return None
    scales = sized(Scales, v_layout=VALUES_BY_COLUMN if values_by_column else VALUES_BY_KEY, v_terms=v_terms,
                   qk_amplitude=qk_amplitude)
    for name, x in descales.items():
        if x is None:
            continue
        if name in ("v_shift", "q_dot_k_shift"):
            setattr(scales, name, as_shift(arrays, name, x) if name == "v_shift" else _as_dots(arrays, name, x))
            continue
        setattr(scales, name, describe(arrays, f"{name}_descale", _with_blocks(f"{name}_descale", x), dtypes=("float32",)))
        if x.ndim == 3:
            setattr(scales, f"{name}_block", blocks[name])
    return scales


def as_cache_scales(arrays, descales, hadamard):
    """The C interface's scales of a cache from {"k_descale": array, ...}: b, heads, or as the cache entries or pages,
    tokens, heads; and from the seed of a Hadamard matrix or None. None where nothing is given."""
    if not descales and hadamard is None:
        return None
    if len({x.ndim for x in descales.values()}) > 1:
        raise invalid("k_descale and v_descale have different numbers of dimensions")
    per_token = any(x.ndim == 3 for x in descales.values())
    scales = sized(CacheScales, per_token=int(per_token), hadamard=int(hadamard is not None),
                   seed=0 if hadamard is None else as_int64("hadamard", hadamard))
    for name, x in descales.items():
        setattr(scales, name[0], describe(arrays, name, _with_blocks(name, x), dtypes=("float32",)))
    return scales
