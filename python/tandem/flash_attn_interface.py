# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's Python interface over Tandem: change the import and go on.

    from tandem.flash_attn_interface import flash_attn_func, flash_attn_with_kvcache

Names, arguments and results are those of `flash_attn_interface` (Dao-AILab/flash-attention, hopper/). What Tandem does
not serve raises NotImplementedError and names it: qv but in decoding steps, head dims of q and k above 256, 8-bit dtypes other than e4m3. Hints
that choose among kernels without changing results (num_splits, pack_gqa, sm_margin, scheduler_metadata) are taken and not
needed: Tandem balances its own work.

Some calls are put together from several, and are slower for it: attention_chunk with gradients; head dims of v above
256, which are cut into parts, and other than q's, which are padded where gradients are recorded; 8-bit tensors of variable
lengths, or with more queries over a cache than a step has, which are converted to bfloat16; and seqused_q, whose rows are
moved. attention_chunk reads lengths on the host where it is a call for each sequence: no CUDA graph can capture that. All
other calls, gradients of variable lengths too, read no length on the host. docs/python.md has a table of them.
"""

import torch

from ._flash import Lengths, Options, attend, attend_varlen, is_simple, refuse, sequence_of_rows
from ._flash_cache import Cache, New, Queries, Rotary, as_lengths, attend_cache, is_simple_step
from ._flash_fp8 import Scales, attend_eight_bit, is_eight_bit, serves, widened
from ._options import both_or_neither, check_new
from .torch import attention, attention_varlen, decode, merge

__all__ = ["flash_attn_combine", "flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_with_kvcache", "get_scheduler_metadata", "register_operators"]


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
                    window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None,
                    deterministic=False, sm_margin=0, return_attn_probs=False, alibi_slopes=None):
    """softmax(softmax_scale * q k^T + mask) v, with gradients.

    q: b, sq, heads, d; k: b, sk, kv_heads, d; v: b, sk, kv_heads, dv. Causal masks and windows are aligned to the last
    query and the last key; window_size: keys to the left and to the right, -1 for no limit. attention_chunk: queries
    see keys of their own chunk of so many positions only. alibi_slopes: scores of query i and key j are
    slope * |i + sk - sq - j| less.

    Returns out, b, sq, heads, dv; with return_attn_probs a pair of it and the natural log-sum-exp, b, heads, sq.
    """
    if (qv is None and q_descale is None and k_descale is None and v_descale is None and not attention_chunk
            and alibi_slopes is None and type(window_size) is tuple and window_size == (-1, -1) and is_simple(q, v)):  # the usual call, quickly
        result = attention(q, k, v, causal=causal, scale=softmax_scale, softcap=softcap, return_lse=return_attn_probs,
                           deterministic=deterministic)
        return (result[0], result[1].transpose(1, 2)) if return_attn_probs else result
    refuse(qv=qv)
    options = Options.of(q, softmax_scale, causal, window_size, attention_chunk=attention_chunk, softcap=softcap,
                         deterministic=deterministic, alibi_slopes=alibi_slopes)
    scales = Scales.of(q, q_descale, k_descale, v_descale)
    if serves(q, v, options):
        out, lse = attend_eight_bit(q, k, v, scales, options)
        return (out, lse.transpose(1, 2)) if return_attn_probs else out
    out, lse = attend(scales.queries(q), widened(k), widened(v), options)
    out = scales.output(out)
    return (out, lse.transpose(1, 2)) if return_attn_probs else out


def flash_attn_qkvpacked_func(qkv, softmax_scale=None, causal=False, q_descale=None, k_descale=None, v_descale=None,
                              window_size=(-1, -1), attention_chunk=0, softcap=0.0, deterministic=False,
                              num_heads_q=None, sm_margin=0, return_attn_probs=False, alibi_slopes=None):
    """flash_attn_func of q, k and v in one tensor: b, s, 3, heads, d; or with num_heads_q b, s, all heads, d, those of
    q first and then those of k and v."""
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(dim=-3)
    else:
        kv_heads = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split([num_heads_q, kv_heads, kv_heads], dim=-2)
    return flash_attn_func(q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size,
                           attention_chunk, softcap, deterministic=deterministic, return_attn_probs=return_attn_probs,
                           alibi_slopes=alibi_slopes)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None,
                           seqused_k=None, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None,
                           v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1,
                           pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False,
                           alibi_slopes=None):
    """The same for sequences of different lengths, packed: q: total_q, heads, d; k, v: total_k, kv_heads, d.

    cu_seqlens_q, cu_seqlens_k: int32, batch + 1: where each sequence begins. seqused_q, seqused_k: int32, batch: of
    these rows, only the first so many count; what stands in out for the others is open.

    Returns out, total_q, heads, dv; with return_attn_probs a pair of it and the log-sum-exp, heads, total_q.
    """
    if (qv is None and q_descale is None and k_descale is None and v_descale is None and seqused_q is None
            and not attention_chunk and alibi_slopes is None and type(window_size) is tuple and window_size == (-1, -1)
            and is_simple(q, v)):  # the usual call, quickly
        result = attention_varlen(q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_k=seqused_k,
                                  max_seqlen_q=int(max_seqlen_q), max_seqlen_k=int(max_seqlen_k), causal=causal,
                                  scale=softmax_scale, softcap=softcap, return_lse=return_attn_probs,
                                  deterministic=deterministic)
        return (result[0], result[1].transpose(0, 1)) if return_attn_probs else result
    refuse(qv=qv)
    options = Options.of(q, softmax_scale, causal, window_size, attention_chunk=attention_chunk, softcap=softcap,
                         deterministic=deterministic, alibi_slopes=alibi_slopes)
    lengths = Lengths(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k)
    scales = Scales.of(q, q_descale, k_descale, v_descale)
    sequence = sequence_of_rows(len(q), cu_seqlens_q)[0] if is_eight_bit(q) else None
    out, lse = attend_varlen(scales.queries(q, sequence), widened(k), widened(v), lengths, options)
    out = scales.output(out, sequence)
    return (out, lse.transpose(0, 1)) if return_attn_probs else out


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None,
                            cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None,
                            cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None,
                            q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, causal=False,
                            window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True,
                            scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0,
                            return_softmax_lse=False, alibi_slopes=None):
    """Attention of a few or many new queries over a cache, to which k and v are appended in place first.

    q: b, sq, heads, d, or with cu_seqlens_q packed. k_cache, v_cache: entries, capacity, kv_heads, d, or with
    page_table (int32, b, slots) pages, page_size, kv_heads, d. cache_seqlens: tokens in the cache before the call, an int or
    int32, b. cache_batch_idx: which entry is each sequence's. cache_leftpad: keys before it do not count. rotary_cos,
    rotary_sin: positions, dim / 2: turn k by positions cache_seqlens ... (or rotary_seqlens ...), and q by the same, or
    all of it by the first where the mask is neither causal nor a window. No gradients.

    qv: b, sq, heads, dv: a second part of the queries, which meets the values, in steps of up to 8 queries: scores are
    softmax_scale * (q k^T + qv v^T), softmax_scale by default 1 / sqrt(d + dv). On Hopper d is 64 and dv 512.

    A step of up to 8 queries, all sequences as many, is one kernel, over caches of 8 bits too. Others are one call of
    the forward over the cache, which appends and turns; no length is read on the host, except for attention_chunk with
    head dims above 192. Where Tandem does not take the cache as it is (longer queries over 8 bits, pages of fewer than 16
    tokens or with cache_leftpad), new rows are written by PyTorch, and a copy is read. On Hopper PyTorch writes them
    too where v has another head dim than q; nothing is copied then.

    Returns out; with return_softmax_lse a pair of it and the log-sum-exp, b, heads, sq (packed: heads, total_q).
    """
    if (k is None) != (v is None) or (rotary_cos is None) != (rotary_sin is None):
        check_new(k, v, ("k", "v"))
        both_or_neither(("rotary_cos", "rotary_sin"), rotary_cos, rotary_sin, "pass the tables of both, or neither")
    if (qv is None and q_descale is None and k_descale is None and v_descale is None and rotary_cos is None
            and cu_seqlens_q is None and cu_seqlens_k_new is None and cache_leftpad is None and not attention_chunk
            and alibi_slopes is None and isinstance(cache_seqlens, torch.Tensor) and q.dtype == k_cache.dtype
            and type(window_size) is tuple and window_size == (-1, -1) and not torch.is_grad_enabled()
            and is_simple_step(q, k_cache, v_cache, page_table)):  # the usual step, quickly
        result = decode(q, k_cache, v_cache, cache_seqlens, k_new=k, v_new=v, page_table=page_table,
                        batch_index=cache_batch_idx, causal=causal, scale=softmax_scale, softcap=softcap,
                        return_lse=return_softmax_lse)
        return (result[0], result[1].transpose(-1, -2)) if return_softmax_lse else result
    if q.dtype != k_cache.dtype:
        raise NotImplementedError(f"Tandem does not serve q of {q.dtype} over a cache of {k_cache.dtype} here: "
                                  "FlashAttention-3 has one dtype for both. tandem.torch.decode takes caches of 8 bits")
    if softmax_scale is None and qv is not None:
        softmax_scale = (q.shape[-1] + qv.shape[-1]) ** -0.5
    options = Options.of(q, softmax_scale, causal, window_size, attention_chunk=attention_chunk, softcap=softcap,
                         alibi_slopes=alibi_slopes)
    scales = Scales.of(q, q_descale, k_descale, v_descale)
    queries = Queries(q, cu_seqlens_q, max_seqlen_q, qv)
    cache = Cache(k_cache, v_cache, as_lengths(cache_seqlens, queries, k_cache, page_table), page_table,
                  cache_batch_idx, cache_leftpad)
    new = None if k is None else New(k, v, cu_seqlens_k_new)
    rotary = None if rotary_cos is None else Rotary(rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens)
    with torch.no_grad():
        out, lse = attend_cache(queries, cache, new, rotary, options, scales)
    return (out, lse.transpose(-1, -2)) if return_softmax_lse else out


def flash_attn_combine(out_partial, lse_partial, out=None, out_dtype=None):
    """Merges results over parts of the keys.

    out_partial: parts, b, s, heads, d; lse_partial: parts, b, s, heads, float32. out: where to write; out_dtype: of the
    result (default: that of out_partial). Returns the result, b, s, heads, d, and its log-sum-exp, b, s, heads.
    """
    merged, lse = merge(out_partial, lse_partial, dtype=out_dtype if out is None else out.dtype)
    return (merged, lse) if out is None else (out.copy_(merged), lse)


def get_scheduler_metadata(batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, cache_seqlens,
                           qkv_dtype=torch.bfloat16, headdim_v=None, cu_seqlens_q=None, cu_seqlens_k_new=None,
                           cache_leftpad=None, page_size=None, max_seqlen_k_new=0, causal=False, window_size=(-1, -1),
                           attention_chunk=0, has_softcap=False, num_splits=0, pack_gqa=None, sm_margin=0):
    """What flash_attn_with_kvcache takes as scheduler_metadata: an empty int32 tensor, because a step of Tandem finds
    its shares by itself. tandem.decode_plan makes plans that layers can share."""
    return torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)


def register_operators():
    """Defines torch.ops.flash_attn_3.fwd, bwd, fwd_combine and get_scheduler_metadata, for code that calls these. An error
    where FlashAttention-3 itself is loaded, which defines them too."""
    from . import _flash_ops
    _flash_ops.register()
