# SPDX-License-Identifier: Apache-2.0
"""What stands behind flash_attn_with_kvcache. Nothing here reads a length on the host but attention_chunk where the
library has no chunks, so that sequences are cut into pieces."""

from typing import NamedTuple, Optional

import torch

from ._flash import (MOST_CHUNKED_HEAD_DIM, MOST_HEAD_DIM, Lengths, attend_varlen, in_parts_of_v, in_served_head_dims,
                     sequence_of_rows)
from ._flash_fp8 import NO_SCALES, is_eight_bit, widened
from .torch import attention_varlen, decode

MOST_STEP_QUERIES = 8
STEP_HEAD_DIMS = range(8, 257, 8)  # of decode on Hopper
MOST_VALUE_COLUMNS = 512  # of decode
LEAST_PAGE = 16  # tokens, of the forward on Hopper


class Queries(NamedTuple):
    q: torch.Tensor  # b, sq, heads, d, or packed
    cu_seqlens: Optional[torch.Tensor]
    most: Optional[int]
    qv: Optional[torch.Tensor] = None  # b, sq, heads, dv


class New(NamedTuple):
    k: torch.Tensor  # b, s_new, kv_heads, d, or packed
    v: torch.Tensor
    cu_seqlens: Optional[torch.Tensor]

    def lengths(self):
        return self.k.shape[1] if self.cu_seqlens is None else self.cu_seqlens.diff()


class Rotary(NamedTuple):
    cos: torch.Tensor
    sin: torch.Tensor
    interleaved: bool
    begins: Optional[torch.Tensor]  # position of each sequence's first new token; None: its length


class Cache(NamedTuple):
    k: torch.Tensor
    v: torch.Tensor
    lengths: torch.Tensor
    page_table: Optional[torch.Tensor]
    batch_index: Optional[torch.Tensor]
    leftpad: Optional[torch.Tensor]

    def pages(self):
        """The page table's rows of the sequences, None where the cache is contiguous."""
        if self.page_table is None or self.batch_index is None:
            return self.page_table
        return self.page_table[self.batch_index.long()]


def as_lengths(given, queries, cache, page_table):
    """cache_seqlens as int32, b."""
    batch = queries.q.shape[0] if queries.cu_seqlens is None else queries.cu_seqlens.shape[0] - 1
    if given is None:
        given = cache.shape[1] * (1 if page_table is None else page_table.shape[1])
    if isinstance(given, int):
        return torch.full((batch,), given, dtype=torch.int32, device=cache.device)
    return given


# ---- Rotary embedding and appending, where the library does not do them


def _positions(begins, tokens, cu_seqlens):
    """For each row of `tokens` its sequence and its place behind `begins`: b x s, or for packed rows one dimension."""
    device = tokens.device
    if cu_seqlens is None:
        batch, length = tokens.shape[:2]
        sequence = torch.arange(batch, device=device)[:, None].expand(batch, length)
        offset = torch.arange(length, device=device)[None]
    else:
        sequence, offset = sequence_of_rows(len(tokens), cu_seqlens)
    return sequence, begins[sequence].long() + offset


def _turned(x, positions, rotary):
    """x's leading columns rotated by the angles of `positions`, in float32."""
    half = rotary.cos.shape[1]
    place = positions.clamp(0, rotary.cos.shape[0] - 1)
    cos, sin = (table.float()[place].unsqueeze(-2) for table in (rotary.cos, rotary.sin))
    own = x[..., :2 * half].float()
    first, second = (own[..., 0::2], own[..., 1::2]) if rotary.interleaved else own.split(half, dim=-1)
    rotated = first * cos - second * sin, first * sin + second * cos
    joined = torch.stack(rotated, dim=-1).flatten(-2) if rotary.interleaved else torch.cat(rotated, dim=-1)
    return torch.cat([joined, x[..., 2 * half:].float()], dim=-1).to(x.dtype)


def _rotate(queries, cache, new, rotary, options):
    """The queries and new keys, rotated."""
    begins = cache.lengths if rotary.begins is None else rotary.begins
    sequence, positions = _positions(begins, queries.q, queries.cu_seqlens)
    if not options.masks():  # all queries count as the first new token
        positions = begins[sequence].long()
    queries = queries._replace(q=_turned(queries.q, positions, rotary))
    if new is not None:
        _, positions = _positions(begins, new.k, new.cu_seqlens)
        new = new._replace(k=_turned(new.k, positions, rotary))
    return queries, new


def _among_own_rows(new, sequence, positions):
    """Sequence and position of each packed row, those of no sequence at the first new row's, whose value they are to write
    again; at 0 where there is none. Also which rows are own, that first row's number, and whether there is one."""
    row, begin, end = torch.arange(len(new.k), device=new.k.device), new.cu_seqlens[:1].long(), new.cu_seqlens[-1:]
    own, first, any_new = (row >= begin) & (row < end), begin.clamp(max=len(row) - 1), end > begin
    sequence, positions = (torch.where(own, x, x[first] * any_new) for x in (sequence, positions))
    return sequence, positions, own[:, None, None], first, any_new


def _append(cache, new):
    """The cache with the new rows in it, written in place. Rows of no sequence change nothing."""
    sequence, positions = _positions(cache.lengths, new.k, new.cu_seqlens)
    has_others = new.cu_seqlens is not None and len(new.k) > 0
    if has_others:
        sequence, positions, own, first, any_new = _among_own_rows(new, sequence, positions)
    if cache.page_table is None:
        entry = sequence if cache.batch_index is None else cache.batch_index[sequence].long()
        place = entry, positions
    else:
        page_size = cache.k.shape[1]
        place = cache.pages()[sequence, positions // page_size].long(), positions % page_size
    if has_others:  # a page table without new rows may name no page
        place = tuple(x * any_new for x in place)
    for pool, rows in ((cache.k, new.k), (cache.v, new.v)):
        if is_eight_bit(pool):  # PyTorch does not index these everywhere
            pool, rows = pool.view(torch.uint8), rows.to(pool.dtype).view(torch.uint8)
        if has_others:
            standing = pool[tuple(x[first] for x in place)]
            rows = torch.where(own, rows, torch.where(any_new, rows[first], standing))
        pool[place] = rows
    return cache._replace(lengths=(cache.lengths + new.lengths()).to(torch.int32))


# ---- Attention over the cache


def step_serves(q, k_cache, page_table):
    """Whether tandem.torch.decode takes these queries, b, sq, heads, d, over this cache."""
    page_size = k_cache.shape[1]
    return q.shape[1] <= MOST_STEP_QUERIES and (
        q.is_cpu or (q.shape[-1] in STEP_HEAD_DIMS and (page_table is None or page_size & (page_size - 1) == 0)))


def is_simple_step(q, k_cache, v_cache, page_table):
    """Whether q is b, sq, heads, d, and both step_serves and is_simple of tandem._flash are true."""
    shape = q.shape
    return (len(shape) == 4 and shape[1] <= MOST_STEP_QUERIES and shape[3] == v_cache.shape[-1]
            and shape[3] in STEP_HEAD_DIMS and q.element_size() > 1
            and (page_table is None or step_serves(q, k_cache, page_table)))


def _is_step(queries, cache, new, options):
    return (queries.cu_seqlens is None and cache.leftpad is None and not options.chunk and options.alibi_slopes is None
            and (cache.k.shape[-1] == cache.v.shape[-1] or queries.qv is not None) and (new is None or new.cu_seqlens is None) and step_serves(queries.q, cache.k, cache.page_table))


def _forward_serves(queries, cache, new, options):
    """Whether tandem.torch.attention_varlen takes the cache as it is."""
    if cache.page_table is not None and cache.leftpad is not None:
        return False
    if new is not None and cache.k.shape[-1] != cache.v.shape[-1] and not queries.q.is_cpu:
        return False
    page_size = cache.k.shape[1]
    return queries.q.is_cpu or ((cache.page_table is None or (page_size >= LEAST_PAGE and page_size & (page_size - 1) == 0))
                                and (not options.chunk or cache.k.shape[-1] <= MOST_CHUNKED_HEAD_DIM))


def _kernel_turns(queries, cache, new, rotary, options):
    """Whether the library's own rotary embedding means the same: queries stand at the last positions, which are those of
    the new tokens."""
    return (options.masks() and new is not None and new.cu_seqlens is queries.cu_seqlens
            and (new.cu_seqlens is not None or new.k.shape[1] == queries.q.shape[1])
            and (rotary.begins is None or rotary.begins is cache.lengths))


def _in_one_call(queries, cache, new, rotary, options):
    """A decoding step or the forward over the cache."""
    turning = {} if rotary is None else {"rotary": (rotary.cos, rotary.sin), "rotary_interleaved": rotary.interleaved}
    appending = {} if new is None else {"k_new": new.k, "v_new": new.v}
    if _is_step(queries, cache, new, options):
        return decode(queries.q, cache.k, cache.v, cache.lengths, page_table=cache.page_table,
                      batch_index=cache.batch_index, qv=queries.qv, **appending, **turning, **options.keywords())
    return attention_varlen(queries.q, cache.k, cache.v, cu_seqlens_q=queries.cu_seqlens, seqused_k=cache.lengths,
                            page_table=cache.pages(), max_seqlen_q=int(queries.most or 0), leftpad_k=cache.leftpad,
                            batch_index=cache.batch_index if cache.page_table is None else None,
                            cu_seqlens_k_new=None if new is None else new.cu_seqlens, chunk=options.chunk,
                            **appending, **turning, **options.keywords())


def _contiguous(cache):
    """The cache with an entry for each sequence, in their order: copied from pages, or by the batch index."""
    if cache.page_table is not None:
        pages = cache.pages().long()
        k, v = (x[pages].flatten(1, 2) for x in (cache.k, cache.v))
    elif cache.batch_index is not None:
        k, v = (x[cache.batch_index.long()] for x in (cache.k, cache.v))
    else:
        k, v = (x[:len(cache.lengths)] for x in (cache.k, cache.v))
    return cache._replace(k=k, v=v, page_table=None, batch_index=None)


def _over_chunks(queries, cache, options):
    """Sequence after sequence, lengths on the host. The cache is contiguous."""
    k, v = cache.k, cache.v
    batch, capacity = k.shape[:2]
    first = torch.zeros_like(cache.lengths) if cache.leftpad is None else cache.leftpad
    starts = torch.arange(batch, device=k.device, dtype=torch.int32) * capacity + first
    cu_q = queries.cu_seqlens
    if cu_q is None:
        cu_q = torch.arange(batch + 1, dtype=torch.int32) * queries.q.shape[1]
    ends = torch.full_like(starts[-1:], batch * capacity)
    lengths = Lengths(cu_q, torch.cat([starts, ends]), None, cache.lengths - first, 0, 0)
    packed = queries.q if queries.cu_seqlens is not None else queries.q.flatten(0, 1)
    out, lse = attend_varlen(packed, k.flatten(0, 1), v.flatten(0, 1), lengths, options)
    shape = queries.q.shape[:-1]
    return out.reshape(*shape, -1), lse.reshape(shape)


def _attend_after(queries, cache, options):
    """Attention over a cache that has everything in it."""
    if _is_step(queries, cache, None, options) or _forward_serves(queries, cache, None, options):
        return _in_one_call(queries, cache, None, None, options)
    cache = _contiguous(cache)
    if _forward_serves(queries, cache, None, options):
        return _in_one_call(queries, cache, None, None, options)
    return _over_chunks(queries, cache, options)


def _in_eight_bit_step(queries, cache, scales, options):
    """A decoding step over a cache of 8 bits, which is not copied."""
    return decode(scales.queries_alone(queries.q), cache.k, cache.v, cache.lengths, page_table=cache.page_table,
                  batch_index=cache.batch_index, k_descale=scales.of_cache(scales.k),
                  v_descale=scales.of_cache(scales.v), **options.keywords())


def attend_cache(queries, cache, new, rotary, options, scales):
    """out and its log-sum-exp, both shaped as the queries."""
    head_dim = cache.k.shape[-1]
    most_of_values = MOST_HEAD_DIM if queries.qv is None else MOST_VALUE_COLUMNS
    has_dims = (head_dim % 8 == cache.v.shape[-1] % 8 == 0 and head_dim <= MOST_HEAD_DIM
                and cache.v.shape[-1] <= most_of_values)
    if queries.qv is not None and not (has_dims and _is_step(queries, cache, new, options)
                                       and not is_eight_bit(cache.k)):
        raise NotImplementedError(
            f"Tandem serves qv in decoding steps of up to {MOST_STEP_QUERIES} queries, as many of each sequence, over "
            "caches of 16 bits without cache_leftpad, attention_chunk and alibi_slopes")
    serves = has_dims and not is_eight_bit(cache.k) and (
        _is_step(queries, cache, new, options) or _forward_serves(queries, cache, new, options))
    queries = queries._replace(q=widened(queries.q))
    if rotary is not None and not (serves and _kernel_turns(queries, cache, new, rotary, options)):
        queries, new = _rotate(queries, cache, new, rotary, options)
        rotary = None
    if serves:
        return _in_one_call(queries, cache, new, rotary, options)
    if new is not None:
        cache = _append(cache, new)
    if has_dims and is_eight_bit(cache.k) and head_dim % 16 == 0 and _is_step(queries, cache, None, options):
        return _in_eight_bit_step(queries, cache, scales, options)
    sequence = None if queries.cu_seqlens is None or scales is NO_SCALES else sequence_of_rows(
        len(queries.q), queries.cu_seqlens)[0]
    queries = queries._replace(q=scales.queries(queries.q, sequence))

    def of(part):
        q, k, v = in_served_head_dims(queries.q, widened(cache.k), part)
        out, lse = _attend_after(queries._replace(q=q), cache._replace(k=k, v=v), options)
        return out[..., :part.shape[-1]], lse
    out, lse = in_parts_of_v(of, widened(cache.v))
    return scales.output(out, sequence), lse
