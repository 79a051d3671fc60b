# SPDX-License-Identifier: Apache-2.0
"""Options that several calls share, as the C interface takes them."""

import ctypes
import operator

from ._arrays import table
from ._library import (BACKENDS, DECODE_KERNELS, DTYPES, MASK_CAUSAL, MASK_FULL, MASK_WINDOW, OVERLAPS, TURNS, UNLIMITED,
                       Mask, Rotary, Study, TandemError)


def sized(struct, **fields):
    """A struct of the C interface that begins with its size."""
    return struct(ctypes.sizeof(struct), **fields)


def pointer_to(struct):
    """As the C interface takes an optional struct; the pointer keeps the struct alive."""
    return None if struct is None else ctypes.pointer(struct)


def choice(name, value, allowed):
    """The number behind one of a few names."""
    if value not in allowed:
        raise TandemError("TANDEM_INVALID_ARGUMENT", f"{name} is {value!r}; allowed are {', '.join(allowed)}")
    return allowed[value]


def as_backend(backend):
    return choice("backend", backend, BACKENDS)


def as_int64(name, value):
    """A whole number that the C interface's int64_t holds; ctypes would take others modulo 2**64."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TandemError("TANDEM_INVALID_ARGUMENT", f"{name} is {value!r}; it has to be a whole number") from None
    if not -2**63 <= number < 2**63:
        raise TandemError("TANDEM_INVALID_ARGUMENT", f"{name} is {number}; it has to fit in 64 bits")
    return number


def as_mask(causal, window, chunk=0):
    if causal and window is not None:
        raise TandemError("TANDEM_INVALID_ARGUMENT", f"causal and window={window} contradict each other; a causal "
                          "window is window=(left, 0)")
    if window is not None:
        left, right = (UNLIMITED if limit is None else as_int64("window", limit) for limit in window)
        return sized(Mask, kind=MASK_WINDOW, window_left=left, window_right=right, chunk=as_int64("chunk", chunk))
    return sized(Mask, kind=MASK_CAUSAL if causal else MASK_FULL, chunk=as_int64("chunk", chunk))


STUDIES = {"overlap": OVERLAPS, "turn": TURNS, "kernel": DECODE_KERNELS, "block_m": None, "block_n": None}


def as_study(study):
    """tandem/study.h's struct from a dict, None from None."""
    if study is None:
        return None
    for name in study:
        if name not in STUDIES:
            raise TandemError("TANDEM_INVALID_ARGUMENT", f"study has {name!r}; allowed are {', '.join(STUDIES)}")
    return sized(Study, **{name: choice(f"study.{name}", value, STUDIES[name]) if STUDIES[name] else int(value)
                           for name, value in study.items()})


def as_scale(scale):
    """The C interface's scale, where 0 stands for the default and so can't be asked for."""
    if scale is None:
        return 0.0
    if not ctypes.c_float(scale).value > 0:
        raise TandemError("TANDEM_INVALID_ARGUMENT", f"scale is {scale}; it has to be > 0, or None for 1 / sqrt(d)")
    return scale


def as_sinks(arrays, sinks, heads, name="sinks"):
    """The address of a number for each query head, or None."""
    if sinks is None:
        return None
    address, shape, _ = table(arrays, name, sinks, ("float32",), ("q_heads",))
    if shape != (heads,):
        raise TandemError("TANDEM_INVALID_ARGUMENT", f"{name} has {shape[0]} numbers; {heads} are needed, one a head of q")
    return address


def as_slopes(arrays, slopes, batch, heads):
    """The fields of ALiBi's slopes: of each query head, or of each sequence and head; none from None."""
    if slopes is None:
        return {}
    dimensions = ("batch", "q_heads")[2 - min(max(slopes.ndim, 1), 2):]
    address, shape, strides = table(arrays, "alibi_slopes", slopes, ("float32",), dimensions)
    wanted = (batch, heads)[2 - len(shape):]
    if shape != wanted:
        raise TandemError("TANDEM_INVALID_ARGUMENT", f"alibi_slopes has shape {shape}; {wanted} is needed")
    return {"alibi_slopes": address, "alibi_stride": strides[0] if len(shape) == 2 and shape[0] > 1 else 0}


def as_tree(arrays, tree, rows):
    """The address of a word for each query, rows being q's shape without heads and columns; None from None."""
    if tree is None:
        return None
    address, shape, strides = table(arrays, "tree", tree, ("uint64", "int64"), ("batch", "sq")[2 - len(rows):])
    if shape != tuple(rows):
        raise TandemError("TANDEM_INVALID_ARGUMENT", f"tree has shape {shape}; {tuple(rows)} is needed, a word a query")
    if len(shape) == 2 and shape[0] > 1 and strides[0] != shape[1]:
        raise TandemError("TANDEM_INVALID_ARGUMENT", f"tree has strides {strides}; it has to be contiguous")
    return address


def check_together(arrays, tensors, written):
    """All of `tensors`, {name: array}, are of one kind and in one place, and those `written` may be."""
    first = next(iter(tensors))
    place = arrays.place(tensors[first])
    for name, x in tensors.items():
        if not arrays.owns(x):
            raise TypeError(f"{first} and {name} are arrays of different kinds: {type(tensors[first])}, {type(x)}")
        if arrays.place(x) != place:
            raise TandemError("TANDEM_INVALID_ARGUMENT", f"{first} is on {place}, {name} on {arrays.place(x)}")
        if arrays.needs_gradient(x):
            raise TandemError("TANDEM_UNSUPPORTED", f"{name} requires a gradient, which this call does not "
                              "record; tandem.torch has calls that do, or call within torch.no_grad()")
    for name in written:
        if not arrays.is_writeable(tensors[name]):
            raise TandemError("TANDEM_INVALID_ARGUMENT", f"{name} is read-only")


def as_rotary(arrays, rotary, interleaved):
    """The C interface's struct for a pair of tables, None from None."""
    if rotary is None:
        return None
    (cos, shape, strides), (sin, sin_shape, sin_strides) = (
        table(arrays, f"rotary[{i}]", x, DTYPES, ("positions", "dim / 2")) for i, x in enumerate(rotary))
    names = {arrays.dtype_name(x) for x in rotary}
    if shape != sin_shape or len(names) != 1 or (shape[0] > 1 and not strides[0] == sin_strides[0] == shape[1]):
        raise TandemError("TANDEM_INVALID_ARGUMENT", f"rotary is {shape} and {sin_shape}, {' and '.join(names)}; "
                          "cosines and sines have to be of one shape and dtype, and contiguous")
    return sized(Rotary, cos=cos, sin=sin, dtype=DTYPES[names.pop()], positions=shape[0], dim=2 * shape[1],
                 interleaved=int(bool(interleaved)))
