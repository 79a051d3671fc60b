# SPDX-License-Identifier: Apache-2.0
"""What stands behind flash_attn_with_kvcache. Nothing here reads a length on the host but attention_chunk, which cuts
sequences into pieces."""

from typing import NamedTuple, Optional

import torch

from ._flash import Lengths, Options, attend_varlen, in_one_head_dim, in_parts_of_v, sequence_of_rows
from ._flash_fp8 import is_eight_bit, widened
from .torch import attention_varlen, decode

MOST_STEP_QUERIES = 8
STEP_HEAD_DIMS = range(8, 257, 8)  # of decode on Hopper
LEAST_PAGE = 16  # tokens, of the forward on Hopper


class Queries(NamedTuple):
    q: torch.Tensor  # b, sq, heads, d, or packed
    cu_seqlens: Optional[torch.Tensor]
    most: Optional[int]


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


# ---- Rotary embedding and appending, where the kernel does not do them


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


def _append(cache, new, sequence, positions):
    """Writes the new rows to the cache, in place."""
    if cache.page_table is None:
        entry = sequence if cache.batch_index is None else cache.batch_index[sequence].long()
        place = entry, positions
    else:
        page_size = cache.k.shape[1]
        place = cache.pages()[sequence, positions // page_size].long(), positions % page_size
    for pool, rows in ((cache.k, new.k), (cache.v, new.v)):
        if is_eight_bit(pool):  # PyTorch does not index these everywhere
            pool, rows = pool.view(torch.uint8), rows.to(pool.dtype).view(torch.uint8)
        pool[place] = rows


def _append_and_rotate(queries, cache, new, rotary, options):
    """The queries, rotated, and the cache with the new tokens in it."""
    begins = cache.lengths if rotary is None or rotary.begins is None else rotary.begins
    if rotary is not None:
        _, positions = _positions(begins, queries.q, queries.cu_seqlens)
        if not options.masks():  # all queries count as the first new token
            sequence, _ = _positions(begins, queries.q, queries.cu_seqlens)
            positions = begins[sequence].long()
        queries = queries._replace(q=_turned(queries.q, positions, rotary))
    if new is None:
        return queries, cache
    sequence, places = _positions(cache.lengths, new.k, new.cu_seqlens)
    if rotary is not None:
        _, positions = _positions(begins, new.k, new.cu_seqlens)
        new = new._replace(k=_turned(new.k, positions, rotary))
    _append(cache, new, sequence, places)
    return queries, cache._replace(lengths=(cache.lengths + new.lengths()).to(torch.int32))


# ---- Attention over the cache


def step_serves(q, k_cache, page_table):
    """Whether tandem.torch.decode takes these queries, b, sq, heads, d, over this cache."""
    page_size = k_cache.shape[1]
    return q.shape[1] <= MOST_STEP_QUERIES and (
        q.is_cpu or (q.shape[-1] in STEP_HEAD_DIMS and (page_table is None or page_size & (page_size - 1) == 0)))


def _is_step(queries, cache, options):
    return (queries.cu_seqlens is None and cache.leftpad is None and not options.chunk
            and step_serves(queries.q, cache.k, cache.page_table))


def _kernel_turns(queries, cache, new, rotary, options):
    """Whether decode's own rotary embedding means the same: queries stand at the last positions, which are those of the
    new tokens."""
    return rotary is None or (options.masks() and new is not None and new.k.shape[1] == queries.q.shape[1]
                              and (rotary.begins is None or rotary.begins is cache.lengths))


def _contiguous_keys(x, cache):
    """k or v of the sequences, one entry each, gathered from pages or by the batch index."""
    if cache.page_table is not None:
        pages = x[cache.pages().long()]
        return pages.reshape(pages.shape[0], -1, *pages.shape[3:])
    return x[:len(cache.lengths)] if cache.batch_index is None else x[cache.batch_index.long()]


def _over_long_queries(queries, cache, options):
    """The forward over the cache, in one call."""
    q, batch = queries.q, len(cache.lengths)
    lengths = {"seqused_k": cache.lengths, "cu_seqlens_q": queries.cu_seqlens, "max_seqlen_q": int(queries.most or 0)}
    page_size = cache.k.shape[1]
    as_pages = page_size >= LEAST_PAGE and page_size & (page_size - 1) == 0 or q.device.type == "cpu"
    if cache.page_table is not None and as_pages and cache.leftpad is None:
        return attention_varlen(q, cache.k, cache.v, page_table=cache.pages(), **lengths, **options.keywords())
    k, v = _contiguous_keys(cache.k, cache), _contiguous_keys(cache.v, cache)
    if cache.leftpad is not None:  # a sequence's keys begin behind its padding: packed, with gaps
        capacity = k.shape[1]
        ends = torch.arange(1, batch + 1, device=q.device, dtype=torch.int32) * capacity
        begins = ends - capacity + cache.leftpad
        lengths |= {"cu_seqlens_k": torch.cat([begins, ends[-1:]]), "seqused_k": cache.lengths - cache.leftpad,
                    "max_seqlen_k": capacity}
        k, v = k.flatten(0, 1), v.flatten(0, 1)
    return attention_varlen(q, k, v, **lengths, **options.keywords())


def _over_chunks(queries, cache, options):
    """Sequence after sequence, lengths on the host."""
    k, v = _contiguous_keys(cache.k, cache), _contiguous_keys(cache.v, cache)
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
    if options.chunk:
        return _over_chunks(queries, cache, options)
    if _is_step(queries, cache, options):
        return decode(queries.q, cache.k, cache.v, cache.lengths, page_table=cache.page_table,
                      batch_index=cache.batch_index, **options.keywords())
    return _over_long_queries(queries, cache, options)


def attend_cache(queries, cache, new, rotary, options: Options):
    """out and its log-sum-exp, both shaped as the queries."""
    whole_rows = new is None or new.cu_seqlens is None
    uniform = cache.k.shape[-1] == cache.v.shape[-1] and cache.k.shape[-1] % 8 == 0 and not is_eight_bit(cache.k)
    if (uniform and whole_rows and _is_step(queries, cache, options)
            and _kernel_turns(queries, cache, new, rotary, options)):
        turning = {} if rotary is None else {"rotary": (rotary.cos, rotary.sin),
                                             "rotary_interleaved": rotary.interleaved}
        appending = {} if new is None else {"k_new": new.k, "v_new": new.v}
        return decode(queries.q, cache.k, cache.v, cache.lengths, page_table=cache.page_table,
                      batch_index=cache.batch_index, **appending, **turning, **options.keywords())
    queries, cache = _append_and_rotate(queries, cache, new, rotary, options)

    def of(part):
        q, k, v = in_one_head_dim(queries.q, widened(cache.k), part)
        out, lse = _attend_after(queries._replace(q=q), cache._replace(k=k, v=v), options)
        return out[..., :part.shape[-1]], lse
    return in_parts_of_v(of, widened(cache.v))
