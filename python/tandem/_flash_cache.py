# SPDX-License-Identifier: Apache-2.0
"""What stands behind flash_attn_with_kvcache. Nothing here reads a length on the host but attention_chunk, which cuts
sequences into pieces."""

import dataclasses
from typing import Optional

import torch

from ._flash import Lengths, Options, attend_varlen
from .torch import attention_varlen, decode

MOST_STEP_QUERIES = 8
STEP_HEAD_DIMS = (64, 128, 256)  # of decode on Hopper
LEAST_PAGE = 16  # tokens, of the forward on Hopper


@dataclasses.dataclass(frozen=True)
class Queries:
    q: torch.Tensor  # b, sq, heads, d, or packed
    cu_seqlens: Optional[torch.Tensor]
    most: Optional[int]


@dataclasses.dataclass(frozen=True)
class New:
    k: torch.Tensor  # b, s_new, kv_heads, d, or packed
    v: torch.Tensor
    cu_seqlens: Optional[torch.Tensor]

    def lengths(self):
        return self.k.shape[1] if self.cu_seqlens is None else self.cu_seqlens.diff()


@dataclasses.dataclass(frozen=True)
class Rotary:
    cos: torch.Tensor
    sin: torch.Tensor
    interleaved: bool
    begins: Optional[torch.Tensor]  # position of each sequence's first new token; None: its length


@dataclasses.dataclass(frozen=True)
class Cache:
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
        row = torch.arange(tokens.shape[0], device=device)
        sequence = torch.bucketize(row, cu_seqlens[1:].long(), right=True).clamp(max=len(cu_seqlens) - 2)
        offset = row - cu_seqlens[sequence]
    return sequence, begins[sequence].long() + offset


def _turned(x, positions, rotary):
    """x's leading columns turned by the angles of `positions`, in float32."""
    half = rotary.cos.shape[1]
    place = positions.clamp(0, rotary.cos.shape[0] - 1)
    cos, sin = (table[place].float().unsqueeze(-2) for table in (rotary.cos, rotary.sin))
    own = x[..., :2 * half].float()
    first, second = (own[..., 0::2], own[..., 1::2]) if rotary.interleaved else own.split(half, dim=-1)
    turned = first * cos - second * sin, first * sin + second * cos
    joined = torch.stack(turned, dim=-1).flatten(-2) if rotary.interleaved else torch.cat(turned, dim=-1)
    return torch.cat([joined.to(x.dtype), x[..., 2 * half:]], dim=-1)


def _append(cache, new, sequence, positions):
    """Writes the new rows to the cache, in place."""
    if cache.page_table is None:
        entry = sequence if cache.batch_index is None else cache.batch_index[sequence].long()
        place = entry, positions
    else:
        page_size = cache.k.shape[1]
        place = cache.pages()[sequence, positions // page_size].long(), positions % page_size
    cache.k[place], cache.v[place] = new.k, new.v


def _append_and_turn(queries, cache, new, rotary, options):
    """The queries, turned, and the cache with the new tokens in it."""
    begins = cache.lengths if rotary is None or rotary.begins is None else rotary.begins
    if rotary is not None:
        _, positions = _positions(begins, queries.q, queries.cu_seqlens)
        if not options.masks():  # all queries count as the first new token
            sequence, _ = _positions(begins, queries.q, queries.cu_seqlens)
            positions = begins[sequence].long()
        queries = dataclasses.replace(queries, q=_turned(queries.q, positions, rotary))
    if new is None:
        return queries, cache
    sequence, places = _positions(cache.lengths, new.k, new.cu_seqlens)
    if rotary is not None:
        _, positions = _positions(begins, new.k, new.cu_seqlens)
        new = dataclasses.replace(new, k=_turned(new.k, positions, rotary))
    _append(cache, new, sequence, places)
    return queries, dataclasses.replace(cache, lengths=(cache.lengths + new.lengths()).to(torch.int32))


# ---- Attention over the cache


def _is_step(queries, cache, options):
    """Whether tandem.torch.decode serves."""
    q, on_host = queries.q, queries.q.device.type == "cpu"
    page_size = cache.k.shape[1]
    return (queries.cu_seqlens is None and q.shape[1] <= MOST_STEP_QUERIES and cache.leftpad is None
            and not options.chunk
            and (on_host or (q.shape[-1] in STEP_HEAD_DIMS
                             and (cache.page_table is None or page_size & (page_size - 1) == 0))))


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


def attend_cache(queries, cache, new, rotary, options: Options):
    """out and its log-sum-exp, both shaped as the queries."""
    if cache.k.shape[-1] != cache.v.shape[-1]:
        raise NotImplementedError(f"Tandem does not serve a cache whose keys have head dim {cache.k.shape[-1]} and "
                                  f"values {cache.v.shape[-1]}")
    whole_rows = new is None or new.cu_seqlens is None
    if _is_step(queries, cache, options) and whole_rows and _kernel_turns(queries, cache, new, rotary, options):
        turning = {} if rotary is None else {"rotary": (rotary.cos, rotary.sin),
                                             "rotary_interleaved": rotary.interleaved}
        appending = {} if new is None else {"k_new": new.k, "v_new": new.v}
        return decode(queries.q, cache.k, cache.v, cache.lengths, page_table=cache.page_table,
                      batch_index=cache.batch_index, **appending, **turning, **options.keywords())
    queries, cache = _append_and_turn(queries, cache, new, rotary, options)
    if options.chunk:
        return _over_chunks(queries, cache, options)
    if _is_step(queries, cache, options):
        return decode(queries.q, cache.k, cache.v, cache.lengths, page_table=cache.page_table,
                      batch_index=cache.batch_index, **options.keywords())
    return _over_long_queries(queries, cache, options)
