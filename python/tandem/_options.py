# SPDX-License-Identifier: Apache-2.0
"""Options that several calls share, as the C interface takes them."""

import ctypes
import operator

from ._arrays import are_contiguous, check_kinds, shown, table
from ._library import (BACKENDS, DECODE_KERNELS, DTYPES, EIGHT_BITS, FLOATS, MASK_CAUSAL, MASK_FULL, MASK_WINDOW, OVERLAPS,
                       TURNS, UNLIMITED, Mask, Rotary, Study, TandemError, TandemTypeError, invalid)

# Half the least positive float32: what is not above it becomes 0 there.
_HALF_THE_LEAST = 2.0 ** -150


def sized(struct, **fields):
    """A struct of the C interface that begins with its size."""
    return struct(ctypes.sizeof(struct), **fields)


def pointer_to(struct):
    """As the C interface takes an optional struct; the pointer keeps the struct alive."""
    return None if struct is None else ctypes.pointer(struct)


def choice(name, value, allowed):
    """The number behind one of a few names."""
    if not isinstance(value, str) or value not in allowed:
        raise invalid(f"{name} is {shown(value)}; allowed are {', '.join(allowed)}")
    return allowed[value]


def as_backend(backend):
    return choice("backend", backend, BACKENDS)


# What follows up to as_mask torch.compile has to read too.


def as_int64(name, value, bits=64):
    """A whole number that the C interface's int64_t holds; ctypes would take others modulo 2**64. bits: of a smaller one."""
    try:
        number = value if isinstance(value, int) else operator.index(value)
    except TypeError:
        raise TandemTypeError(f"{name} is {shown(value)}; it has to be a whole number") from None
    if not -2**(bits - 1) <= number < 2**(bits - 1):
        raise invalid(f"{name} is {number}; it has to fit in {bits} bits")
    return number


def as_number(name, value, otherwise=""):
    """A float. otherwise: what else is allowed, in words."""
    if not isinstance(value, (str, bytes)):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    raise TandemTypeError(f"{name} is {shown(value)}; it has to be a number{otherwise}")


def as_scale(scale):
    """The C interface's scale, where 0 stands for the default and so can't be asked for."""
    if scale is None:
        return 0.0
    number = as_number("scale", scale, ", or None for 1 / sqrt(d)")
    if not number > _HALF_THE_LEAST:
        raise invalid(f"scale is {scale}; it has to be > 0, or None for 1 / sqrt(d)")
    return number


def as_softcap(softcap):
    """The C interface's softcap, where 0 stands for none and so is not what a smaller number becomes."""
    number = as_number("softcap", softcap)
    if 0 < abs(number) <= _HALF_THE_LEAST:
        raise invalid(f"softcap is {softcap}, which is 0 in float32; it has to be > 0 there, or 0 for none")
    return number


def as_pair(name, value, parts):
    """The two of an option that has two parts; what these are in words."""
    try:
        first, second = value
    except (TypeError, ValueError):
        own = f"has {len(value)} parts" if isinstance(value, (tuple, list)) else f"is {shown(value)}"
        raise TandemTypeError(f"{name} {own}; it has to be {parts}") from None
    return first, second


def as_sides(causal, window):
    """The mask as keys to the left and to the right of a query's own position, UNLIMITED for no limit."""
    if window is None:
        return UNLIMITED, 0 if causal else UNLIMITED
    if causal:
        raise invalid(f"causal and window={window} contradict each other; a causal window is window=(left, 0)")
    first, second = as_pair("window", window, "(left, right)")
    left = UNLIMITED if first is None else as_int64("window", first)
    right = UNLIMITED if second is None else as_int64("window", second)
    if left < UNLIMITED or right < UNLIMITED:
        raise invalid(f"window is {window}; its sides have to be 0 or more keys, or None")
    return left, right


def both_or_neither(names, first, second, why):
    """Refuses one of two arguments that belong together, without the other."""
    if (first is None) != (second is None):
        given, missing = names if second is None else reversed(names)
        raise invalid(f"{given} is given, but {missing} is not; {why}")


def check_new(k_new, v_new, names=("k_new", "v_new"), starts=None):
    """starts: cu_seqlens_k_new, where a call has it."""
    both_or_neither(names, k_new, v_new, "append both keys and values, or neither")
    if k_new is None and starts is not None:
        raise invalid("cu_seqlens_k_new is given, but k_new is not; it says where k_new's sequences begin")


def as_tables(rotary):
    """The cosines and sines of a rotary embedding, None and None of none."""
    if rotary is None:
        return None, None
    cos, sin = as_pair("rotary", rotary, "(cos, sin)")
    if cos is None or sin is None:
        raise invalid(f"rotary is ({'None' if cos is None else 'cos'}, {'None' if sin is None else 'sin'}); it has to be "
                      "(cos, sin), or None for no embedding")
    return cos, sin


def check_eight_bit(name, dtype, given, what):
    """`given`, arguments by their names, are such as only 8 bits have; None where they are not given."""
    wrong = [option for option, value in given.items() if value is not None]
    if wrong and dtype not in EIGHT_BITS:
        raise invalid(f"{wrong[0]} is given, but {name} is {dtype}; it is for {what} of 8 bits, {' or '.join(EIGHT_BITS)}")


def as_mask(causal, window, chunk=0):
    left, right = as_sides(causal, window)
    kind = MASK_WINDOW if window is not None else MASK_CAUSAL if causal else MASK_FULL
    sides = {} if window is None else {"window_left": left, "window_right": right}
    return sized(Mask, kind=kind, chunk=as_int64("chunk", chunk), **sides)


STUDIES = {"overlap": OVERLAPS, "turn": TURNS, "kernel": DECODE_KERNELS, "block_m": None, "block_n": None}


def as_study(study):
    """tandem/study.h's struct from a dict, None from None."""
    if study is None:
        return None
    if not isinstance(study, dict):
        raise TandemTypeError(f"study is {shown(study)}; it has to be a dict of {', '.join(STUDIES)}")
    for name in study:
        if name not in STUDIES:
            raise invalid(f"study has {name!r}; allowed are {', '.join(STUDIES)}")
    return sized(Study, **{name: choice(f"study.{name}", value, STUDIES[name]) if STUDIES[name] else
                           as_int64(f"study.{name}", value, bits=32) for name, value in study.items()})


def as_sinks(arrays, sinks, heads, name="sinks"):
    """The address of a number for each query head, or None."""
    if sinks is None:
        return None
    address, shape, _ = table(arrays, name, sinks, ("float32",), ("q_heads",))
    if shape != (heads,):
        raise invalid(f"{name} has {shape[0]} numbers; {heads} are needed, one a head of q")
    return address


def as_slopes(arrays, slopes, batch, heads):
    """The fields of ALiBi's slopes: of each query head, or of each sequence and head; none from None."""
    if slopes is None:
        return {}
    dimensions = ("batch", "q_heads")[2 - min(max(slopes.ndim, 1), 2):]
    address, shape, strides = table(arrays, "alibi_slopes", slopes, ("float32",), dimensions)
    wanted = (batch, heads)[2 - len(shape):]
    if shape != wanted:
        raise invalid(f"alibi_slopes has shape {shape}; {wanted} is needed")
    return {"alibi_slopes": address, "alibi_stride": strides[0] if len(shape) == 2 and shape[0] > 1 else 0}


def as_tree(arrays, tree, rows):
    """The address of a word for each query, rows being q's shape without heads and columns; None from None."""
    if tree is None:
        return None
    address, shape, strides = table(arrays, "tree", tree, ("uint64", "int64"), ("batch", "sq")[2 - len(rows):])
    if shape != tuple(rows):
        raise invalid(f"tree has shape {shape}; {tuple(rows)} is needed, a word a query")
    if not are_contiguous(shape, strides):
        raise invalid(f"tree has strides {strides}; it has to be contiguous")
    return address


def check_together(arrays, tensors, written):
    """All of `tensors`, {name: array}, are of one kind and in one place, and those `written` may be."""
    check_kinds(arrays, tensors)
    first = next(iter(tensors))
    place = arrays.place(tensors[first])
    for name, x in tensors.items():
        if arrays.place(x) != place:
            raise invalid(f"{first} is on {place}, {name} on {arrays.place(x)}")
        if arrays.needs_gradient(x):
            raise TandemError("TANDEM_UNSUPPORTED", f"{name} requires a gradient, which this call does not "
                              "record; tandem.torch has calls that do, or call within torch.no_grad()")
    for name in written:
        if not arrays.is_writeable(tensors[name]):
            raise invalid(f"{name} is read-only")


def as_rotary(arrays, rotary, interleaved):
    """The C interface's struct for a pair of tables, None from None."""
    if rotary is None:
        return None
    (cos, shape, strides), (sin, sin_shape, sin_strides) = (
        table(arrays, f"rotary[{i}]", x, FLOATS, ("positions", "dim / 2")) for i, x in enumerate(as_tables(rotary)))
    names = {arrays.dtype_name(x) for x in rotary}
    if shape != sin_shape or len(names) != 1 or not (are_contiguous(shape, strides) and are_contiguous(shape, sin_strides)):
        raise invalid(f"rotary is {shape} and {sin_shape}, {' and '.join(names)}; "
                      "cosines and sines have to be of one shape and dtype, and contiguous")
    return sized(Rotary, cos=cos, sin=sin, dtype=DTYPES[names.pop()], positions=shape[0], dim=2 * shape[1],
                 interleaved=int(bool(interleaved)))
