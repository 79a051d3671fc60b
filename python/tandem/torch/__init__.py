# SPDX-License-Identifier: Apache-2.0
"""Tandem in PyTorch: operators that torch.compile, autograd, autocast and CUDA graphs know.

    from tandem.torch import attention

    out = attention(q, k, v, causal=True)   # b, s, h, d; out.backward() is Tandem's too

Tensors on a Hopper GPU are served there, on the current stream; tensors in host memory by the CPU backend. Nothing is
built against PyTorch: any from 2.4 on will do.
"""

import torch

from .._arrays import TorchTensors, chosen_dtype, torch_name
from .._library import EIGHT_BITS, FLOATS, UNLIMITED
from .._options import as_int64, as_number, as_scale, as_sides, as_softcap, as_tables, check_eight_bit, check_new
from . import _call, _native, _ops

__all__ = ["attention", "attention_eight_bit", "attention_varlen", "decode", "merge", "quantize"]


def _dtype_of(dtype, allowed):
    """PyTorch's dtype from one of the names `allowed`, or from itself."""
    return getattr(torch, chosen_dtype(TorchTensors.name_of_dtype, dtype, allowed))


# ---- Calls that may go past PyTorch's dispatcher. Each name is bound once: a look-up costs as much as a question.

_Tensor = torch.Tensor
_bfloat16 = torch.bfloat16
_is_tracing = torch.compiler.is_dynamo_compiling
_records = torch.is_grad_enabled
_casts = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
_is_deterministic = torch.are_deterministic_algorithms_enabled
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.maybe_current_level


def _records_any(q, k, v):
    return _records() and (q.requires_grad or k.requires_grad or v.requires_grad)


def _is_plain(q, k, v):
    """Nobody looks on but autograd: no compiler, no autocast, no mode; just three tensors. (Tensors in one of functorch's
    transforms look like any others, but show no memory.)"""
    return (not _is_tracing() and type(q) is _Tensor and type(k) is _Tensor and type(v) is _Tensor
            and not _casts() and _modes() == 0
            # No complex number has parts of bfloat16, whose conjugate has the negative bit.
            and (q.dtype is _bfloat16 or not (q.is_neg() or k.is_neg() or v.is_neg())))


def _may_follow(x):
    """The same of another argument of such a call, which may be absent."""
    return x is None or (type(x) is _Tensor and not x.is_neg() and not (_records() and x.requires_grad))


def _are_tensors(numbers):
    """Of numbers of tokens, each absent or a tensor: of int32, or the call goes the other way, so without gradients."""
    for x in numbers:
        if x is not None and type(x) is not _Tensor:
            return False
    return True


def _all_follow(arguments):
    """What _may_follow says of several, numbers among them."""
    for x in arguments:
        if x is not None and type(x) is not int and type(x) is not bool and not _may_follow(x):
            return False
    return True


def _is_plain_too(x):
    """The same of sinks, which may have gradients."""
    return type(x) is _Tensor and not x.is_neg()


def _eagerly(tensors, options, with_lse):
    left, right, scale, softcap, _, sinks = options
    if _records_any(*tensors) or not _may_follow(sinks):
        return _ops.Attention.apply(*tensors, *options)
    return _call.forward(*(_ops.rows_contiguous(x) for x in tensors), (left, right), scale, softcap, with_lse=with_lse,
                         sinks=sinks)


def attention(q, k, v, *, causal=False, window=None, scale=None, softcap=0.0, return_lse=False, deterministic=None,
              sinks=None, chunk=0, alibi_slopes=None, tree=None):
    """softmax(scale * q k^T + mask) v, with gradients.

    q: b, sq, q_heads, d; k: b, sk, kv_heads, d; v: b, sk, kv_heads, dv; q_heads a multiple of kv_heads, d and dv
    multiples of 8 up to 512, for gradients up to 256 and the same. Tensors of one device and dtype: bfloat16 or float16; float32 too in host memory. Under autocast they become its dtype. A
    tensor whose last dimension is not contiguous is copied.

    causal: the last query sees every key (bottom-right aligned). window: (left, right), the number of keys seen on
    either side of the query's own position, None for no limit. scale: default 1 / sqrt(d). softcap: > 0 turns scores s
    into softcap * tanh(s / softcap). deterministic: the gradients' bits are the same in every run (default: as
    torch.use_deterministic_algorithms says). sinks (float32, q_heads): the score of one more key of each head, which has
    no value; they have gradients too.

    chunk, alibi_slopes (float32, q_heads or b, q_heads) and tree (int64 words, b, sq) mean what they mean in
    tandem.forward_varlen, and have no gradients.

    Returns out, b, sq, q_heads, dv, of q's dtype; with return_lse a pair of out and the natural log-sum-exp, float32, b, sq,
    q_heads, which has a gradient too. A query that sees no key has output 0 and log-sum-exp -inf. Raises TandemError
    with the library's message.
    """
    if chunk or alibi_slopes is not None or tree is not None:
        return attention_varlen(q, k, v, causal=causal, window=window, chunk=chunk, scale=scale, softcap=softcap,
                                return_lse=return_lse, sinks=sinks, alibi_slopes=alibi_slopes, tree=tree)
    left, right = (UNLIMITED, 0 if causal else UNLIMITED) if window is None else as_sides(causal, window)
    scale = 0.0 if scale is None else as_scale(scale)
    plain = _is_plain(q, k, v) and (sinks is None or _is_plain_too(sinks))
    if plain and not _records_any(q, k, v) and (sinks is None or _may_follow(sinks)):
        out, lse = _native.run_forward(q, k, v, (left, right, scale, softcap, sinks), return_lse)
        if out is not None:
            return (out, lse) if return_lse else out
    if deterministic is None:
        deterministic = _is_deterministic()
    options = left, right, scale, as_softcap(softcap), deterministic, sinks
    if plain and _transforms() is None and (q.is_cuda or q.is_cpu):
        out, lse = _eagerly((q, k, v), options, return_lse)
    else:
        out, lse = torch.ops.tandem.forward(q, k, v, *options)
    return (out, lse) if return_lse else out


def attention_varlen(q, k, v, *, cu_seqlens_q=None, cu_seqlens_k=None, seqused_k=None, page_table=None, max_seqlen_q=0,
                     max_seqlen_k=0, k_new=None, v_new=None, cu_seqlens_k_new=None, rotary=None,
                     rotary_interleaved=False, leftpad_k=None, batch_index=None, causal=False, window=None, chunk=0,
                     scale=None, softcap=0.0, return_lse=False, deterministic=None, sinks=None, alibi_slopes=None,
                     tree=None, split_size=0):
    """Attention of sequences of different lengths as an operator: arguments and results are those of
    tandem.forward_varlen, which says what they mean. Appends to k and v in place where k_new and v_new are given.

    Has gradients where keys are neither paged nor in a cache (k_new, rotary, leftpad_k, batch_index), nor chunk,
    alibi_slopes, tree or split_size is given: those of all sequences in one call, which reads no length on the host. A row
    of no sequence, and a key that is not in use, has gradient 0.
    """
    left, right = (UNLIMITED, 0 if causal else UNLIMITED) if window is None else as_sides(causal, window)
    scale = 0.0 if scale is None else as_scale(scale)
    lengths = cu_seqlens_q, cu_seqlens_k, seqused_k, page_table
    is_bare = (k_new is None and v_new is None and cu_seqlens_k_new is None and leftpad_k is None and batch_index is None
               and rotary is None and alibi_slopes is None and tree is None and not chunk and not split_size)
    if not is_bare:
        check_new(k_new, v_new, starts=cu_seqlens_k_new)
    cos, sin = (None, None) if rotary is None else as_tables(rotary)
    new, cache = (k_new, v_new, cu_seqlens_k_new), (leftpad_k, batch_index, cos, sin, rotary_interleaved)
    extras = _native.NO_EXTRAS if is_bare and sinks is None else (*new, *cache, chunk, sinks, alibi_slopes, tree,
                                                                  split_size)
    if _is_plain(q, k, v) and not _records_any(q, k, v) and _are_tensors(lengths) and _all_follow(extras):
        out, lse = _native.run_forward_varlen(
            q, k, v, (*lengths, max_seqlen_q, max_seqlen_k, left, right, scale, softcap), extras, return_lse)
        if out is not None:
            return (out, lse) if return_lse else out
    options = left, right, scale, as_softcap(softcap)
    max_seqlen_q, max_seqlen_k = as_int64("max_seqlen_q", max_seqlen_q), as_int64("max_seqlen_k", max_seqlen_k)
    if is_bare:
        if deterministic is None:
            deterministic = _is_deterministic()
        out, lse = torch.ops.tandem.forward_varlen(q, k, v, *lengths, max_seqlen_q, max_seqlen_k, *options,
                                                   deterministic, sinks)
    else:
        own = (*lengths, *cache, max_seqlen_q, max_seqlen_k, as_int64("chunk", chunk), *options, sinks, alibi_slopes, tree,
               as_int64("split_size", split_size))
        if k_new is None:
            out, lse = torch.ops.tandem.forward_cache(q, k, v, *own)
        else:
            out, lse = torch.ops.tandem.forward_append(q, k, v, *new, *own)
    return (out, lse) if return_lse else out


def _check_scales_of_cache(k_cache, k_descale, v_descale, hadamard):
    if hadamard is not None or k_descale is not None or v_descale is not None:
        given = {"k_descale": k_descale, "v_descale": v_descale, "hadamard": hadamard}
        check_eight_bit("k_cache", torch_name(k_cache.dtype), given, "caches")


def decode(q, k_cache, v_cache, lengths, *, k_new=None, v_new=None, page_table=None, batch_index=None, rotary=None,
           rotary_interleaved=False, causal=False, window=None, scale=None, softcap=0.0, split_size=0,
           return_lse=False, sinks=None, k_descale=None, v_descale=None, chunk=0, alibi_slopes=None, tree=None,
           hadamard=None, qv=None, cu_prefix_groups=None, prefix_lengths=None):
    """One decoding step as an operator: arguments and results are those of tandem.decode, which says what they mean.

    v_cache may have another head dim than k_cache, or be its first columns. Appends to both in place where k_new and v_new
    are given, and to k_descale and v_descale where
    tokens have scales of their own. Scratch memory is kept for each stream. Has no gradient.
    """
    left, right = (UNLIMITED, 0 if causal else UNLIMITED) if window is None else as_sides(causal, window)
    scale = 0.0 if scale is None else as_scale(scale)
    cos, sin = (None, None) if rotary is None else as_tables(rotary)
    shares = cu_prefix_groups is not None or prefix_lengths is not None
    is_bare = (k_new is None and v_new is None and batch_index is None and rotary is None and not split_size
               and sinks is None and k_descale is None and v_descale is None and not chunk and alibi_slopes is None
               and tree is None and hadamard is None and qv is None)
    if not is_bare:
        check_new(k_new, v_new)
        _check_scales_of_cache(k_cache, k_descale, v_descale, hadamard)
    extras = _native.NO_EXTRAS if is_bare else (
        k_new, v_new, batch_index, cos, sin, rotary_interleaved, split_size, sinks, k_descale, v_descale, chunk,
        alibi_slopes, tree, hadamard is not None, hadamard or 0, qv)
    if (not shares and _is_plain(q, k_cache, v_cache) and not _records_any(q, k_cache, v_cache) and type(lengths) is _Tensor
            and (page_table is None or type(page_table) is _Tensor) and _all_follow(extras)):
        out, lse = _native.run_decode(q, k_cache, v_cache, (lengths, page_table, left, right, scale, softcap), extras,
                                      return_lse)
        if out is not None:
            return (out, lse) if return_lse else out
    options = (lengths, page_table, batch_index, cos, sin, rotary_interleaved, left, right, scale,
               as_softcap(softcap), as_int64("split_size", split_size), sinks, k_descale, v_descale,
               as_int64("chunk", chunk), alibi_slopes, tree, None if hadamard is None else as_int64("hadamard", hadamard), qv,
               cu_prefix_groups, prefix_lengths)
    if k_new is None:
        out, lse = torch.ops.tandem.decode(q, k_cache, v_cache, *options)
    else:
        out, lse = torch.ops.tandem.decode_append(q, k_cache, v_cache, k_new, v_new, *options)
    return (out, lse) if return_lse else out


def quantize(x, *, by_column=False, block=128, scale=None, hadamard=None, dtype=torch.float8_e4m3fn, terms=1, rotary=None,
             rotary_interleaved=False, first_positions=None, amplitude=0.0, shift=None, k_shift=None, best_scale=False):
    """x in 8 bits and its scales as an operator: arguments and results are those of tandem.quantize. Has no
    gradient."""
    cos, sin = (None, None) if rotary is None else as_tables(rotary)
    block, terms = as_int64("block", block), as_int64("terms", terms, bits=32)
    hadamard = None if hadamard is None else as_int64("hadamard", hadamard)
    integers = _dtype_of(dtype, EIGHT_BITS) == torch.int8
    options = (by_column, block, hadamard, integers, terms, cos, sin, rotary_interleaved, first_positions,
               as_number("amplitude", amplitude), shift, bool(best_scale))
    if k_shift is not None:
        out, found, dots = torch.ops.tandem.quantize_queries(x, scale, k_shift, *options)
        return out, found if scale is None else scale, dots
    if scale is None:
        return torch.ops.tandem.quantize(x, *options)
    return torch.ops.tandem.quantize_by(x, scale, *options), scale


def attention_eight_bit(q, k, v, *, q_descale=None, k_descale=None, v_descale=None, descale_block=128,
                        values_by_column=False, causal=False, window=None, scale=None, softcap=0.0, return_lse=False,
                        dtype=torch.bfloat16, qk_amplitude=0.0, v_shift=None, q_dot_k_shift=None):
    """Attention over float8_e4m3fn tensors, q and k also int8, as an operator: arguments and results are those of tandem.forward. dtype: of
    out, bfloat16 or float16. Has no gradient.

        q8, q_scale = quantize(q, hadamard=1)
        k8, k_scale = quantize(k, hadamard=1)
        v8, v_scale = quantize(v, by_column=True)
        out = attention_eight_bit(q8, k8, v8, q_descale=q_scale, k_descale=k_scale, v_descale=v_scale,
                                  values_by_column=True, causal=True)
    """
    left, right = as_sides(causal, window)
    scores = left, right, as_scale(scale), as_softcap(softcap)
    out, lse = torch.ops.tandem.forward_eight_bit(
        q, k, v, q_descale, k_descale, v_descale, as_int64("descale_block", descale_block), values_by_column, *scores,
        _dtype_of(dtype, FLOATS), as_number("qk_amplitude", qk_amplitude), v_shift, q_dot_k_shift)
    return (out, lse) if return_lse else out


def merge(o_parts, lse_parts, *, dtype=None):
    """Results over parts of the keys merged, as an operator: arguments and results are those of tandem.merge. Has no
    gradient."""
    return torch.ops.tandem.merge(o_parts, lse_parts, o_parts.dtype if dtype is None else _dtype_of(dtype, FLOATS))
