# SPDX-License-Identifier: Apache-2.0
"""Calls of libtandem that keep the caller's thread for a microsecond beside the library's own: libtandem_python, which
reads tensors through DLPack's C interface and is called as Python's own functions are. It is built against neither Python
nor PyTorch, so one serves all of them; without it, or where PyTorch has no such interface (before 2.10), its functions are None
here and calls go by ctypes.
"""

import ctypes
import functools
import os
import sys
from pathlib import Path

import torch

from .._arrays import check_ranks
from .._library import check, library

NAME = "libtandem_python.so"
METH_FASTCALL = 0x80
ARGUMENTS = 3  # the version of what the functions take, as python/native/arguments.h has it
NOT_HERE = -1  # a call that has to go the other way, which says why

_PYTHON = ("PyLong_FromLong", "PyLong_AsLongLong", "PyFloat_AsDouble", "PyErr_Occurred", "PyErr_Clear",
           "PyEval_SaveThread", "PyEval_RestoreThread")
_TANDEM = ("tandem_forward_workspace", "tandem_forward", "tandem_decode_workspace", "tandem_decode",
           "tandem_backward_workspace", "tandem_backward")


class _Table(ctypes.Structure):
    """As python/native/call.cpp has it."""
    _fields_ = [("version", ctypes.c_size_t), ("none", ctypes.c_void_p),
                *((name, ctypes.c_void_p) for name in (*_PYTHON, *_TANDEM)), ("exchange", ctypes.c_void_p)]


class _Method(ctypes.Structure):
    """CPython's PyMethodDef, a part of its stable interface."""
    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p)]


def _address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


class _Place(ctypes.Structure):
    """The system's Dl_info."""
    _fields_ = [("path", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def _path_of(function):
    """The path of the library that a function is from, as it was loaded: its name alone may be of the system's path."""
    place = _Place()
    ctypes.CDLL(None).dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(place))
    return os.fsdecode(place.path)


def _find():
    """The path of libtandem_python: $TANDEM_PYTHON_LIBRARY, beside the package or beside libtandem; None."""
    chosen = os.environ.get("TANDEM_PYTHON_LIBRARY")
    if chosen is not None:
        return chosen or None
    places = (Path(__file__).resolve().parents[1], Path(_path_of(library().tandem_version)).resolve().parent)
    return next((str(place / NAME) for place in places if (place / NAME).exists()), None)


def _exchange():
    """The address of PyTorch's table of DLPack's functions, of version 1; None."""
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None or sys.implementation.name != "cpython":
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = pointer(capsule, b"dlpack_exchange_api")
    return address if ctypes.c_uint32.from_address(address).value == 1 else None


_kept = []  # what Python's functions point to


def _as_python_function(function):
    """A function of the convention METH_FASTCALL as a built-in one."""
    method = _Method(function.__name__.encode(), _address(function), METH_FASTCALL, None)
    _kept.append(method)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.POINTER(_Method), ctypes.c_void_p, ctypes.c_void_p]
    return make(ctypes.byref(method), None, None)


def _load():
    """forward, forward_varlen, decode, backward, backward_varlen and lend of python/native/call.cpp, or Nones."""
    path, exchange = _find(), _exchange()
    if path is None or exchange is None:
        return (None,) * 6
    native, tandem = ctypes.CDLL(path), library()
    addresses = [_address(getattr(ctypes.pythonapi, name)) for name in _PYTHON]
    addresses += [_address(getattr(tandem, name)) for name in _TANDEM]
    native.tandem_python_use.argtypes = [ctypes.POINTER(_Table), ctypes.c_size_t]
    if not native.tandem_python_use(_Table(ARGUMENTS, id(None), *addresses, exchange), ctypes.sizeof(_Table)):
        raise ImportError(f"{path} is of another version than this package")
    native.tandem_python_lend.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    native.tandem_python_lend.restype = None
    functions = [getattr(native, f"tandem_python_{name}")
                 for name in ("forward", "forward_varlen", "decode", "backward", "backward_varlen")]
    return *(_as_python_function(function) for function in functions), native.tandem_python_lend


forward, forward_varlen, decode, backward, backward_varlen, lend = _load()


# ---- Whole calls: the result and its log-sum-exp, or a pair of Nones where these functions don't serve

_NOTHING = None, None
NO_EXTRAS = ()  # what few calls have is left out where there is nothing of it: to say so takes time too
MOST_SHAPES = 4096  # of more, few are repeated

_empty_like, _zeros_like, _contiguous = torch.empty_like, torch.zeros_like, torch.contiguous_format
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)
_transforms = torch._C._functorch.maybe_current_level
_like_rows = {}  # what log-sum-exps were like


@functools.cache
def _one_device():
    return torch.cuda.device_count() <= 1


def _is_here(q):
    """On the CPU or the current device."""
    return (_one_device() or q.get_device() == torch.cuda.current_device()) if q.is_cuda else q.is_cpu


def empty_lse(q):
    """b, sq, q_heads in float32; the queries of a head are neighbours in memory, as a tile writes them."""
    b, s, h, _ = q.shape
    return torch.empty_strided((b, s, h), (h * s, 1, s), dtype=torch.float32, device=q.device)


def empty_rows(q):
    """b, s, q_heads in float32, or those of packed rows; contiguous."""
    return torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)


def _rows_of(q, make):
    """make(q), sooner where it was made before for queries of that shape: PyTorch takes half as long for a tensor like
    another as for one of given sizes. What it is like keeps no memory."""
    key = q.get_device(), q.shape, make
    like = _like_rows.get(key)
    if like is None:
        rows = make(q)
        if _transforms() is None:  # else its memory does not show
            if len(_like_rows) >= MOST_SHAPES:
                _like_rows.clear()
            like = _like_rows[key] = _empty_like(rows)
            like.untyped_storage().resize_(0)
        return rows
    return _empty_like(like)


def empty_out(q, v):
    """Of q's shape with v's last dimension."""
    check_ranks({"v": v}, (3, 4), "rows, h, d or b, s, h, d")
    if q.shape[-1] == v.shape[-1]:
        return _empty_like(q)
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def run_forward(q, k, v, options, with_lse):
    """options: keys to the left and to the right, scale, softcap, sinks or None."""
    if forward is None or not _is_here(q) or (with_lse and q.dim() != 4):
        return _NOTHING
    out, lse = _empty_like(q), _rows_of(q, empty_lse) if with_lse else None
    status = forward(q, k, v, out, lse, *options)
    if status == NOT_HERE and q.shape[-1:] != v.shape[-1:]:
        out = empty_out(q, v)
        status = forward(q, k, v, out, lse, *options)
    return (out, lse) if status == 0 else _refused(status)


def run_forward_varlen(q, k, v, options, extras, with_lse):
    """options: cu_seqlens_q, cu_seqlens_k, seqused_k, page_table, max_seqlen_q, max_seqlen_k, keys to the left and to the
    right, scale, softcap. extras: NO_EXTRAS, or k_new, v_new, cu_seqlens_k_new, leftpad_k, batch_index, cos, sin,
    interleaved, chunk, sinks, alibi_slopes, tree, split_size."""
    if forward_varlen is None or not _is_here(q):
        return _NOTHING
    out = _empty_like(q) if q.is_contiguous() else _empty_like(q, memory_format=_contiguous)
    lse = _rows_of(q, empty_rows) if with_lse else None
    status = forward_varlen(q, k, v, out, lse, *options, *extras)
    if status == NOT_HERE and q.shape[-1:] != v.shape[-1:]:
        out = empty_out(q, v)
        status = forward_varlen(q, k, v, out, lse, *options, *extras)
    if status != 0:
        return _refused(status)
    if extras and extras[0] is not None:
        torch.autograd.graph.increment_version((k, v))
    return out, lse


def written_by_a_step(k_cache, v_cache, k_descale, v_descale):
    """What appending writes to: the caches, and scales of each token."""
    return [k_cache, v_cache, *(x for x in (k_descale, v_descale) if x is not None and x.dim() == 3)]


def run_decode(q, k_cache, v_cache, options, extras, with_lse):
    """options: lengths, page_table, keys to the left and to the right, scale, softcap. extras: NO_EXTRAS, or k_new, v_new,
    batch_index, cos, sin, interleaved, split_size, sinks, k_descale, v_descale, chunk, alibi_slopes, tree, whether there is a
    Hadamard matrix, its seed, qv. A step that a CUDA graph captures has scratch memory of its own, and goes the other way."""
    if decode is None or not _is_here(q) or (q.is_cuda and _is_capturing()):
        return _NOTHING
    out = _empty_like(q) if q.is_contiguous() else _empty_like(q, memory_format=_contiguous)
    lse = _rows_of(q, empty_rows) if with_lse else None
    status = decode(q, k_cache, v_cache, out, lse, *options, *extras)
    if status == NOT_HERE and q.shape[-1:] != v_cache.shape[-1:]:
        check_ranks({"v_cache": v_cache})
        out = q.new_empty((*q.shape[:-1], v_cache.shape[-1]))
        status = decode(q, k_cache, v_cache, out, lse, *options, *extras)
    if status != 0:
        return _refused(status)
    if extras and extras[0] is not None:
        torch.autograd.graph.increment_version(written_by_a_step(k_cache, v_cache, *extras[8:10]))
    return out, lse


def run_backward(tensors, rows, options, sinks=None):
    """dq, dk and dv, and with sinks dsinks; None where this does not serve. tensors: q, k, v, out, dout; rows: lse, dlse;
    options: keys to the left and to the right, scale, softcap, deterministic."""
    q, k, v, *_ = tensors
    if backward is None or not _is_here(q):
        return None
    gradients = _empty_like(q), _empty_like(k), _empty_like(v)
    dsinks = None if sinks is None else _empty_like(sinks)
    return _gradients(backward(*tensors, *gradients, *rows, *options, sinks, dsinks), gradients, dsinks)


def run_backward_varlen(tensors, rows, lengths, options, sinks=None):
    """The same of variable lengths; rows of no sequence, and keys not in use, have gradients of 0. lengths: cu_seqlens_q,
    cu_seqlens_k and seqused_k, each or None, max_seqlen_q, max_seqlen_k."""
    q, k, v, *_ = tensors
    if backward_varlen is None or not _is_here(q):
        return None
    gradients = _zeros_like(q), _zeros_like(k), _zeros_like(v)
    dsinks = None if sinks is None else _empty_like(sinks)
    status = backward_varlen(*tensors, *gradients, *rows, *lengths, *options, sinks, dsinks)
    return _gradients(status, gradients, dsinks)


def _gradients(status, gradients, dsinks):
    if status == 0:
        return gradients if dsinks is None else (*gradients, dsinks)
    return _refused(status)[0]


def _refused(status):
    if status != NOT_HERE:
        check(status)
    return _NOTHING
