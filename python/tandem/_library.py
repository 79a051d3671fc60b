# SPDX-License-Identifier: Apache-2.0
"""libtandem and its C interface, as ctypes sees them. Mirrors include/tandem/tandem.h, types.h and study.h field by field."""

import copyreg
import ctypes
import ctypes.util
import functools
import os
import re
from pathlib import Path

DTYPES = {"bfloat16": 1, "float16": 2, "float32": 3, "float8_e4m3fn": 4, "int8": 5}
EIGHT_BITS = ("float8_e4m3fn", "int8")
FLOATS = ("bfloat16", "float16", "float32")  # what all calls take
VALUES_BY_KEY, VALUES_BY_COLUMN = 0, 1
OVERLAPS = {"auto": 0, "serial": 1, "two-stage": 2, "three-stage": 3}
TURNS = {"auto": 0, "free": 1, "pingpong": 2}
BACKENDS = {"auto": 0, "cpu": 1, "hopper": 2, "reference": 3}
DECODE_KERNELS = {"auto": 0, "plain": 1, "shared_p": 2, "register_p": 3}
MASK_FULL, MASK_CAUSAL, MASK_WINDOW = 0, 1, 2
UNLIMITED = -1


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int),
                ("shape", ctypes.c_int64 * 4), ("stride", ctypes.c_int64 * 4)]


class Mask(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("kind", ctypes.c_int), ("window_left", ctypes.c_int64),
                ("window_right", ctypes.c_int64), ("chunk", ctypes.c_int64)]


class Study(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("overlap", ctypes.c_int), ("turn", ctypes.c_int),
                ("kernel", ctypes.c_int), ("block_m", ctypes.c_int), ("block_n", ctypes.c_int)]


class Rotary(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("cos", ctypes.c_void_p), ("sin", ctypes.c_void_p),
                ("dtype", ctypes.c_int), ("positions", ctypes.c_int64), ("dim", ctypes.c_int64),
                ("interleaved", ctypes.c_int32)]


class Varlen(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("batch", ctypes.c_int64), ("cu_seqlens_q", ctypes.c_void_p),
                ("cu_seqlens_k", ctypes.c_void_p), ("seqused_k", ctypes.c_void_p), ("page_table", ctypes.c_void_p),
                ("page_table_stride", ctypes.c_int64), ("pages_per_sequence", ctypes.c_int64),
                ("max_seqlen_q", ctypes.c_int64), ("max_seqlen_k", ctypes.c_int64),
                ("k_new", Tensor), ("v_new", Tensor), ("cu_seqlens_k_new", ctypes.c_void_p),
                ("rotary", ctypes.POINTER(Rotary)), ("leftpad_k", ctypes.c_void_p), ("batch_index", ctypes.c_void_p),
                ("split_size", ctypes.c_int64)]


class Scales(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("q", Tensor), ("k", Tensor), ("v", Tensor),
                ("q_block", ctypes.c_int64), ("k_block", ctypes.c_int64), ("v_block", ctypes.c_int64),
                ("v_layout", ctypes.c_int), ("v_terms", ctypes.c_int32), ("qk_amplitude", ctypes.c_float),
                ("v_shift", Tensor), ("q_dot_k_shift", Tensor)]


class BlockListStruct(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("q_block", ctypes.c_int64), ("k_block", ctypes.c_int64),
                ("counts", ctypes.c_void_p), ("blocks", ctypes.c_void_p), ("slots", ctypes.c_int64),
                ("batch_stride", ctypes.c_int64), ("head_stride", ctypes.c_int64)]


class ForwardArgs(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("backend", ctypes.c_int),
                ("q", Tensor), ("k", Tensor), ("v", Tensor), ("o", Tensor), ("lse", Tensor),
                ("mask", ctypes.POINTER(Mask)), ("scale", ctypes.c_float), ("softcap", ctypes.c_float),
                ("study", ctypes.POINTER(Study)), ("varlen", ctypes.POINTER(Varlen)),
                ("scales", ctypes.POINTER(Scales)), ("sinks", ctypes.c_void_p),
                ("alibi_slopes", ctypes.c_void_p), ("alibi_stride", ctypes.c_int64), ("tree", ctypes.c_void_p),
                ("block_list", ctypes.POINTER(BlockListStruct)), ("plan", ctypes.c_void_p)]


class BackwardArgs(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("backend", ctypes.c_int), ("deterministic", ctypes.c_int32),
                ("q", Tensor), ("k", Tensor), ("v", Tensor), ("o", Tensor), ("lse", Tensor), ("dout", Tensor),
                ("dlse", Tensor), ("dq", Tensor), ("dk", Tensor), ("dv", Tensor), ("mask", ctypes.POINTER(Mask)),
                ("scale", ctypes.c_float), ("softcap", ctypes.c_float), ("sinks", ctypes.c_void_p),
                ("dsinks", ctypes.c_void_p), ("varlen", ctypes.POINTER(Varlen))]


class Cache(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("k", Tensor), ("v", Tensor), ("page_table", ctypes.c_void_p),
                ("page_table_stride", ctypes.c_int64), ("pages_per_sequence", ctypes.c_int64),
                ("lengths", ctypes.c_void_p), ("batch_index", ctypes.c_void_p)]


class CacheScales(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("k", Tensor), ("v", Tensor), ("per_token", ctypes.c_int32),
                ("seed", ctypes.c_uint64), ("hadamard", ctypes.c_int32)]


class SharedPrefixes(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("groups", ctypes.c_int64), ("cu_sequences", ctypes.c_void_p),
                ("lengths", ctypes.c_void_p)]


class DecodeArgs(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("backend", ctypes.c_int),
                ("q", Tensor), ("cache", ctypes.POINTER(Cache)), ("k_new", Tensor), ("v_new", Tensor),
                ("rotary", ctypes.POINTER(Rotary)), ("o", Tensor), ("lse", Tensor), ("mask", ctypes.POINTER(Mask)),
                ("scale", ctypes.c_float), ("softcap", ctypes.c_float), ("split_size", ctypes.c_int64),
                ("plan", ctypes.c_void_p), ("study", ctypes.POINTER(Study)), ("sinks", ctypes.c_void_p),
                ("scales", ctypes.POINTER(CacheScales)), ("alibi_slopes", ctypes.c_void_p),
                ("alibi_stride", ctypes.c_int64), ("tree", ctypes.c_void_p), ("qv", Tensor),
                ("prefixes", ctypes.POINTER(SharedPrefixes))]


class MergeArgs(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("backend", ctypes.c_int), ("parts", ctypes.c_int64),
                ("o_parts", Tensor), ("o_part_stride", ctypes.c_int64),
                ("lse_parts", Tensor), ("lse_part_stride", ctypes.c_int64), ("o", Tensor), ("lse", Tensor)]


class QuantizeArgs(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("backend", ctypes.c_int), ("x", Tensor), ("out", Tensor),
                ("layout", ctypes.c_int), ("scale", Tensor), ("block", ctypes.c_int64),
                ("scale_given", ctypes.c_int32), ("hadamard", ctypes.c_int32), ("seed", ctypes.c_uint64),
                ("terms", ctypes.c_int32), ("rotary", ctypes.POINTER(Rotary)), ("first_positions", ctypes.c_void_p),
                ("amplitude", ctypes.c_float), ("shift", Tensor), ("k_shift", Tensor), ("q_dot_k_shift", Tensor),
                ("best_scale", ctypes.c_int32)]


class Info(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("hopper_built", ctypes.c_int32), ("hopper_usable", ctypes.c_int32),
                ("hopper_reason", ctypes.c_char * 256), ("device_name", ctypes.c_char * 256),
                ("device_sm_count", ctypes.c_int32), ("cpu_threads", ctypes.c_int32), ("cpu_simd", ctypes.c_char * 32)]


class TandemError(RuntimeError):
    """A call that failed. `status` is the name of its tandem_status, for example "TANDEM_UNSUPPORTED"."""

    def __init__(self, status, message):
        super().__init__(f"{status}: {message}")
        self.status = status

    def __reduce__(self):
        """A copy is made without __init__, which takes other arguments than the exception shows."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__


class TandemTypeError(TandemError, TypeError):
    """An argument of a kind that its call does not take. Also a TypeError, as those of Python's own functions are."""

    def __init__(self, message):
        super().__init__("TANDEM_INVALID_ARGUMENT", message)


def invalid(message):
    return TandemError("TANDEM_INVALID_ARGUMENT", message)


def library_path():
    chosen = os.environ.get("TANDEM_LIBRARY")
    if chosen:
        return chosen
    beside = sorted(Path(__file__).parent.glob("libtandem.so*"))
    if beside:
        return str(beside[0])
    installed = ctypes.util.find_library("tandem")
    if installed:
        return installed
    raise OSError("libtandem was not found: set TANDEM_LIBRARY to the path of libtandem.so, or put it on the "
                  "system's library path")


@functools.cache
def library():
    """libtandem, loaded at the first call: $TANDEM_LIBRARY, else beside this package, else the system's."""
    lib = ctypes.CDLL(library_path())
    calls = {ForwardArgs: ([lib.tandem_forward_workspace, lib.tandem_forward_plan_size],
                           [lib.tandem_forward, lib.tandem_forward_plan]),
             BackwardArgs: ([lib.tandem_backward_workspace], [lib.tandem_backward]),
             DecodeArgs: ([lib.tandem_decode_workspace, lib.tandem_decode_plan_size],
                          [lib.tandem_decode, lib.tandem_decode_plan])}
    for args, (queries, runs) in calls.items():
        for query in queries:
            query.argtypes = [ctypes.POINTER(args), ctypes.POINTER(ctypes.c_size_t)]
        for run in runs:
            run.argtypes = [ctypes.POINTER(args), ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    lib.tandem_merge.argtypes = [ctypes.POINTER(MergeArgs), ctypes.c_void_p]
    lib.tandem_quantize.argtypes = [ctypes.POINTER(QuantizeArgs), ctypes.c_void_p]
    lib.tandem_get_info.argtypes = [ctypes.POINTER(Info)]
    lib.tandem_status_name.argtypes = [ctypes.c_int]
    for text in (lib.tandem_last_error, lib.tandem_status_name, lib.tandem_version):
        text.restype = ctypes.c_char_p
    return lib


_SHORT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "e4m3": "float8_e4m3fn", "int8": "int8"}


def _quoted_choice(match):
    """TANDEM_BACKEND_CPU as "cpu"."""
    kind, name = match.groups()
    return '"' + (name if kind == "DECODE" else name.replace("_", "-")).lower() + '"'


# What the C interface calls an argument or a value, and what it is here. Each line works on what those before it left.
_ARGUMENTS = {r"\bscales\.(qk_amplitude|v_shift|q_dot_k_shift)\b": r"\1", r"\bscales\.hadamard is 1\b": "hadamard is given",
              r"\bhadamard is 1\b": "hadamard is given", r"\bscales\.per_token = 1\b": "scales of each token",
              r"\bscales\.v_layout is TANDEM_VALUES_BY_KEY\b": "values_by_column is False",
              r"\bscales\.v_terms is 2\b": "v has two terms",
              r"\bscales\.([qkv])\b": r"\1_descale", r"\bscales\.[qkv]_block\b": "descale_block",
              r"\bscales is given, but cache": "a descale or hadamard is given, but cache",
              r"\bscales is given\b": "a descale, values_by_column, qk_amplitude or a shift is given",
              "; only 8-bit inputs have scales: pass NULL": "; only 8-bit inputs have these",
              "; only an 8-bit cache has scales: pass NULL": "; only an 8-bit cache has descales and hadamard",
              r"\bscale_given is 1\b": "scale is given", r"\bbest_scale is 1\b": "best_scale is True",
              r"\blayout is TANDEM_VALUES_BY_COLUMN\b": "by_column is True",
              r"(?<=two terms are by column: )TANDEM_VALUES_BY_COLUMN": "by_column=True",
              r"\bTANDEM_VALUES_BY_COLUMN\b": "values_by_column=True", r"\bTANDEM_VALUES_BY_KEY\b": "values_by_column=False",
              r"\bo(?=[ .;,)]|$)": "out",
              r"\bmask\.window_left\b": "window[0]", r"\bmask\.window_right\b": "window[1]", r"\bmask\.chunk\b": "chunk",
              r"\bTANDEM_UNLIMITED \(-1\)": "None", "or 0 for 1 / sqrt": "or None for 1 / sqrt",
              r"\bsequence of varlen\.batch\b": "sequence", r"\bvarlen\.batch\b": "the number of sequences",
              r"\bvarlen is given\b": "lengths of sequences are given", r"\bwith varlen\b": "with lengths of sequences",
              r"\btandem_forward with lengths of sequences\b": "forward_varlen", r"\bvarlen\.(?=\w)": "",
              r"\bcache\.([kv])\b": r"\1_cache", r"\bcache\.": "",
              r"\bpages_per_sequence\b": "page_table.shape[1]", r"\bpage_table_stride\b": "page_table's stride",
              r"\balibi_stride\b": "alibi_slopes' stride", r"\b(o|lse)_part_stride\b": r"\1_parts' stride",
              r"\bprefixes\.groups\b": "the length of prefix_lengths", r"\bprefixes\.cu_sequences\b": "cu_prefix_groups",
              r"\bprefixes\.lengths\b": "prefix_lengths", r"\bblock_list\.slots\b": "block_list.blocks.shape[3]",
              r"\brotary\.cos\b": "rotary[0]", r"\brotary\.sin\b": "rotary[1]",
              r"\brotary\.positions\b": "rotary[0].shape[0]",
              r"\b(\w+)\.data is NULL, but (\w+)\.data is not\b": r"\2 is given, but \1 is not",
              r"(?<=\w)\.data\b(?= is NULL)": "", r"(?<=[\w\]])\.data\b": "'s address",
              r"\bTANDEM_(BACKEND|OVERLAP|TURN|DECODE)_([A-Z0-9_]+)": _quoted_choice,
              r"(?i)\bTANDEM_(bf16|fp16|fp32|e4m3|int8)\b": lambda match: _SHORT_DTYPES[match[1].lower()],
              r"\b\d+ \((bf16|fp16|fp32|e4m3|int8)\)": lambda match: _SHORT_DTYPES[match[1]],
              r"\btandem_forward_plan\b": "forward_varlen_plan", r"\btandem_decode_plan\b": "decode_plan",
              r"\btandem_(?=(forward|backward|decode|merge|quantize)\b)": "", r"\bNULL\b": "None"}


def in_words_of_python(message):
    """A message of the library with the names that arguments and values have here."""
    for name, own in _ARGUMENTS.items():
        message = re.sub(name, own, message)
    return message


def check(status):
    """Raises TandemError with the library's own message, in Python's names, unless status is TANDEM_OK."""
    if status != 0:
        lib = library()
        message = in_words_of_python(lib.tandem_last_error().decode())
        raise TandemError(lib.tandem_status_name(status).decode(), message)
