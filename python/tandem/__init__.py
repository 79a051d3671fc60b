# SPDX-License-Identifier: Apache-2.0
"""Tandem for Python: exact attention over NumPy arrays and PyTorch tensors, through libtandem's C interface."""

import ctypes

from ._arrays import arrays_of, check_kinds, check_ranks, describe
from ._backward import backward, backward_varlen
from ._block_list import BlockList, arrays_of_list, as_block_list
from ._decode import DecodeWorkspace, decode, decode_plan
from ._eight_bit import as_scales, blocks_of_scales, quantize, score_amplitude
from ._library import EIGHT_BITS, ForwardArgs, Info, TandemError, check, library
from ._merge import merge
from ._options import (as_backend, as_mask, as_number, as_scale, as_sinks, as_slopes, as_softcap, as_study, as_tree, check_eight_bit,
                       check_together, pointer_to, sized)
from ._varlen import forward_varlen, forward_varlen_plan

__all__ = ["BlockList", "DecodeWorkspace", "TandemError", "backward", "backward_varlen", "decode", "decode_plan", "forward",
           "forward_varlen", "forward_varlen_plan", "info", "merge", "quantize", "score_amplitude", "version"]


def forward(q, k, v, *, causal=False, window=None, scale=None, softcap=0.0, return_lse=False, out=None,
            backend="auto", study=None, q_descale=None, k_descale=None, v_descale=None, descale_block=128,
            values_by_column=False, sinks=None, alibi_slopes=None, chunk=0, tree=None, block_list=None, qk_amplitude=0.0,
            v_shift=None, q_dot_k_shift=None):
    """softmax(scale * q k^T + mask) v, with any strides whose last one is 1.

    q: b, sq, q_heads, d; k: b, sk, kv_heads, d; v: b, sk, kv_heads, dv; q_heads a multiple of kv_heads, d and dv, which of
    8 bits is d, multiples of 8 up to 512, of 8 bits up to 256. On Hopper those above 256 go without sinks, slopes, chunks,
    trees and block lists.
    All NumPy arrays, or all PyTorch tensors of one device, where the call is enqueued on the current stream.
    bfloat16 and float16; float32 too in host memory; 8 bits, float8_e4m3fn, or int8 q and k with v of
    float8_e4m3fn, as quantize makes them: see below.

    causal: the last query sees every key (bottom-right aligned). window: (left, right), the number of keys seen on
    either side of the query's own position, None for no limit. scale: default 1 / sqrt(d). softcap: > 0 turns scores
    s into softcap * tanh(s / softcap). out: where to write, b, sq, q_heads, dv of q's dtype (default: a new array).
    backend: "auto", "cpu", "hopper" or "reference". study: which Hopper kernel serves, for study and no stable part of
    the interface: a dict of overlap ("serial", "two-stage" or "three-stage"), turn ("free" or "pingpong"), and block_m and
    block_n (a tile's rows, a block's keys); the other backends ignore it.

    sinks (float32, q_heads): the score of one more key of each head, which has no value: exp(sink) more in the sum that
    divides, and in the log-sum-exp. A query that sees no other key has output 0. Not of 8 bits.
    alibi_slopes (float32, q_heads or b, q_heads): scores of query i and key j are slope * |i + sk - sq - j| less, after
    scale and softcap. Not of 8 bits. chunk and tree (uint64 or int64, b, sq): as in forward_varlen. Not of 8 bits.
    block_list: a BlockList, which blocks of keys each block of queries sees. Not of 8 bits.

    Of 8 bits: q_descale, k_descale, v_descale: what elements are multiplied by, float32, b, heads, or b, blocks, heads with
    blocks of descale_block tokens; b and heads may be 1, q's heads also k's. q_descale of b, sq, heads has a scale for each
    token, as quantize finds them with block=1. Without, 1. values_by_column: v is b, d,
    kv_heads, n, as quantize writes it with by_column, or, of two terms, b, 2 * d, kv_heads, n. On Hopper q and k of int8
    need values_by_column, and two terms need int8. qk_amplitude: no element of q and k of float8_e4m3fn is larger in
    magnitude, 0: not known; with that of score_amplitude, for which quantize takes an amplitude, Hopper is faster, and scores
    have 11 bits. v_shift: what quantize took off v as shift, float32, b, kv_heads, d, b and kv_heads also 1; it is added to
    the output of queries that see a key. q_dot_k_shift: what quantize returned for q with k_shift, for the log-sum-exp; not
    with softcap. out is bfloat16, if given also float16 (in host memory float32).

    Returns out; with return_lse a pair of out and the natural log-sum-exp, float32, b, sq, q_heads. A query that sees
    no key has output 0 and log-sum-exp -inf. Raises TandemError with the library's message.
    """
    backend = as_backend(backend)
    arrays = arrays_of(q)
    check_kinds(arrays, {"q": q, "k": k, "v": v})
    check_ranks({"q": q, "k": k, "v": v})
    dtype, qk_amplitude = arrays.dtype_name(q), as_number("qk_amplitude", qk_amplitude)
    descales = {"q": q_descale, "k": k_descale, "v": v_descale}
    shifts = {"v_shift": v_shift, "q_dot_k_shift": q_dot_k_shift}
    check_eight_bit("q", dtype, {f"{name}_descale": x for name, x in descales.items()} | shifts
                    | {"values_by_column": values_by_column or None, "qk_amplitude": qk_amplitude or None}, "q, k and v")
    if out is None:
        eight_bit = dtype in EIGHT_BITS
        shape = (*q.shape[:-1], (q if eight_bit else v).shape[-1])
        out = arrays.empty(shape, arrays.dtype("bfloat16") if eight_bit else None)
    tensors = {"q": q, "k": k, "v": v, "out": out}
    given = {f"{name}_descale": x for name, x in descales.items() if x is not None}
    others = {"sinks": sinks, "alibi_slopes": alibi_slopes, "tree": tree, **shifts}
    given |= {name: x for name, x in others.items() if x is not None}
    check_together(arrays, tensors | given | arrays_of_list(block_list), written=["out"])
    lse = arrays.empty_float((*q.shape[:3], 1)) if return_lse else None

    args = sized(ForwardArgs, backend=backend, mask=pointer_to(as_mask(causal, window, chunk)), scale=as_scale(scale),
                 softcap=as_softcap(softcap), study=pointer_to(as_study(study)),
                 scales=pointer_to(as_scales(arrays, descales | shifts, blocks_of_scales(descales, descale_block, q), values_by_column,
                                             _terms_of(q, v, values_by_column), qk_amplitude)),
                 sinks=as_sinks(arrays, sinks, q.shape[2]),
                 tree=as_tree(arrays, tree, q.shape[:2]),
                 block_list=pointer_to(as_block_list(arrays, block_list, q.shape)),
                 **as_slopes(arrays, alibi_slopes, q.shape[0], q.shape[2]))
    args.q, args.k, args.v, args.o = (describe(arrays, name, x) for name, x in tensors.items())
    if return_lse:
        args.lse = describe(arrays, "lse", lse)

    lib = library()
    with arrays.stream() as stream:
        size = ctypes.c_size_t()
        check(lib.tandem_forward_workspace(ctypes.byref(args), ctypes.byref(size)))
        workspace = arrays.workspace(size.value, zeroed=False) if size.value else None
        check(lib.tandem_forward(ctypes.byref(args), None if workspace is None else arrays.pointer(workspace),
                                 size.value, stream))
    return (out, lse[..., 0]) if return_lse else out


def _terms_of(q, v, values_by_column):
    """Of values by column, by what stands for a column of the head."""
    return 2 if values_by_column and v.shape[1] == 2 * q.shape[3] > 0 else 1


def info():
    """What is built and what is here: the fields of tandem_info as a dict."""
    answer = sized(Info)
    check(library().tandem_get_info(ctypes.byref(answer)))
    fields = {name: getattr(answer, name) for name, _ in Info._fields_ if name != "struct_size"}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in fields.items()}


def version():
    """The version of the library that is loaded, as "major.minor.patch"."""
    return library().tandem_version().decode()
