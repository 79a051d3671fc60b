# SPDX-License-Identifier: Apache-2.0
"""Tandem for Python: exact attention over NumPy arrays and PyTorch tensors, through libtandem's C interface."""

import ctypes

from ._arrays import arrays_of, describe
from ._library import (BACKENDS, MASK_CAUSAL, MASK_FULL, MASK_WINDOW, UNLIMITED, ForwardArgs, Info, Mask, TandemError,
                       check, library)

__all__ = ["TandemError", "forward", "info", "version"]


def _mask(causal, window):
    if causal and window is not None:
        raise TandemError("TANDEM_INVALID_ARGUMENT", f"causal and window={window} contradict each other; a causal "
                          "window is window=(left, 0)")
    if window is not None:
        left, right = (UNLIMITED if limit is None else limit for limit in window)
        return Mask(MASK_WINDOW, left, right)
    return Mask(MASK_CAUSAL if causal else MASK_FULL, 0, 0)


def _scale(scale):
    """The C interface's scale, where 0 stands for the default and so can't be asked for."""
    if scale is None:
        return 0.0
    if not ctypes.c_float(scale).value > 0:
        raise TandemError("TANDEM_INVALID_ARGUMENT", f"scale is {scale}; it has to be > 0, or None for 1 / sqrt(d)")
    return scale


def _check_together(arrays, tensors):
    place = arrays.place(tensors["q"])
    for name, x in tensors.items():
        if not arrays.owns(x):
            raise TypeError(f"q and {name} are arrays of different kinds: {type(tensors['q'])}, {type(x)}")
        if arrays.place(x) != place:
            raise TandemError("TANDEM_INVALID_ARGUMENT", f"q is on {place}, {name} on {arrays.place(x)}")
        if arrays.needs_gradient(x):
            raise TandemError("TANDEM_UNSUPPORTED", f"{name} requires a gradient, and Tandem has no backward pass "
                              "yet; call within torch.no_grad()")
    if not arrays.is_writeable(tensors["out"]):
        raise TandemError("TANDEM_INVALID_ARGUMENT", "out is read-only")


def forward(q, k, v, *, causal=False, window=None, scale=None, softcap=0.0, return_lse=False, out=None,
            backend="auto"):
    """softmax(scale * q k^T + mask) v, with any strides whose last one is 1.

    q: b, sq, q_heads, d; k, v: b, sk, kv_heads, d; q_heads a multiple of kv_heads, d a multiple of 8 up to 256.
    All NumPy arrays, or all PyTorch tensors of one device, where the call is enqueued on the current stream.
    bfloat16 and float16; float32 too in host memory.

    causal: the last query sees every key (bottom-right aligned). window: (left, right), the number of keys seen on
    either side of the query's own position, None for no limit. scale: default 1 / sqrt(d). softcap: > 0 turns scores
    s into softcap * tanh(s / softcap). out: where to write, shape and dtype of q (default: a new array).
    backend: "auto", "cpu", "hopper" or "reference".

    Returns out; with return_lse a pair of out and the natural log-sum-exp, float32, b, sq, q_heads. A query that sees
    no key has output 0 and log-sum-exp -inf. Raises TandemError with the library's message.
    """
    if backend not in BACKENDS:
        raise TandemError("TANDEM_INVALID_ARGUMENT", f"backend is {backend!r}; allowed are {', '.join(BACKENDS)}")
    arrays = arrays_of(q)
    out = arrays.empty(q.shape) if out is None else out
    tensors = {"q": q, "k": k, "v": v, "out": out}
    _check_together(arrays, tensors)
    lse = arrays.empty_float((*q.shape[:3], 1)) if return_lse else None

    args = ForwardArgs(struct_size=ctypes.sizeof(ForwardArgs), backend=BACKENDS[backend], mask=_mask(causal, window),
                       scale=_scale(scale), softcap=softcap)
    args.q, args.k, args.v, args.o = (describe(arrays, name, x) for name, x in tensors.items())
    if return_lse:
        args.lse = describe(arrays, "lse", lse)

    lib = library()
    with arrays.stream() as stream:
        size = ctypes.c_size_t()
        check(lib.tandem_forward_workspace(ctypes.byref(args), ctypes.byref(size)))
        workspace = arrays.empty_workspace(size.value) if size.value else None
        check(lib.tandem_forward(ctypes.byref(args), None if workspace is None else arrays.pointer(workspace),
                                 size.value, stream))
    return (out, lse[..., 0]) if return_lse else out


def info():
    """What is built and what is here: the fields of tandem_info as a dict."""
    answer = Info(struct_size=ctypes.sizeof(Info))
    check(library().tandem_get_info(ctypes.byref(answer)))
    fields = {name: getattr(answer, name) for name, _ in Info._fields_ if name != "struct_size"}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in fields.items()}


def version():
    """The version of the library that is loaded, as "major.minor.patch"."""
    return library().tandem_version().decode()
