# SPDX-License-Identifier: Apache-2.0
"""What stands behind flash_attn_interface: FlashAttention-3's calls said in Tandem's, and put together from several
where one does not do."""

from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F

from ._options import as_int64, as_pair
from .torch import attention, attention_varlen

MOST_HEAD_DIM = 256
MOST_CHUNKED_HEAD_DIM = 192  # of the forward in chunks on Hopper


def refuse(**tensors):
    """NotImplementedError for what Tandem does not serve, by its name."""
    for name, x in tensors.items():
        if x is not None:
            raise NotImplementedError(f"Tandem does not serve {name}")


class Options(NamedTuple):
    scale: Optional[float]
    window: Optional[tuple]  # keys to the left and to the right, None for no limit; None: all keys
    chunk: int
    softcap: float
    deterministic: bool
    alibi_slopes: Optional[torch.Tensor] = None  # FlashAttention-2's; FlashAttention-3's functions have none
    sinks: Optional[torch.Tensor] = None  # of transformers' models

    @classmethod
    def of(cls, q, scale, causal, window, *, attention_chunk, softcap, deterministic=False, alibi_slopes=None):
        left, right = (as_int64("window_size", side) for side in as_pair("window_size", window, "(left, right), -1 for no limit"))
        right = 0 if causal else right
        hides = left >= 0 or right >= 0
        return cls(q.shape[-1] ** -0.5 if scale is None else scale,
                   (left if left >= 0 else None, right if right >= 0 else None) if hides else None, attention_chunk,
                   softcap, deterministic, alibi_slopes)

    def masks(self):
        """Whether it matters where queries stand, but for attention_chunk and alibi_slopes."""
        return self.window is not None

    def keywords(self):
        own = {"scale": self.scale, "window": self.window, "softcap": self.softcap, "return_lse": True}
        given = {"alibi_slopes": self.alibi_slopes, "sinks": self.sinks}
        return own | {name: x for name, x in given.items() if x is not None}


def records(q, k, v):
    """Whether gradients are recorded."""
    return torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)


def _padded(x, head_dim):
    return x if x.shape[-1] == head_dim else F.pad(x, (0, head_dim - x.shape[-1]))


def in_served_head_dims(q, k, v):
    """q, k and v padded with zeros, which change no score, to head dims that Tandem has: multiples of 8, and for gradients
    one of all."""
    of_q, of_v = (-(-x.shape[-1] // 8) * 8 for x in (q, v))
    if of_q > MOST_HEAD_DIM:
        raise NotImplementedError(f"Tandem does not serve head dims of q and k above {MOST_HEAD_DIM}: q has {q.shape[-1]}")
    if records(q, k, v):
        of_q = of_v = max(of_q, of_v)
    return _padded(q, of_q), _padded(k, of_q), _padded(v, of_v)


def in_parts_of_v(function, v):
    """out and lse of function(v), which serves v of up to 256 columns: for more, part after part, each with the same
    weights."""
    parts = [function(part) for part in v.split(MOST_HEAD_DIM, dim=-1)]
    return torch.cat([out for out, _ in parts], dim=-1) if len(parts) > 1 else parts[0][0], parts[0][1]


# ---- Sequences of one length


def is_simple(q, v):
    """Whether Tandem takes the tensors as they are, with gradients."""
    head_dim = q.shape[-1]
    return v.shape[-1] == head_dim and head_dim % 8 == 0 and head_dim <= MOST_HEAD_DIM and q.dtype.itemsize > 1


def _check_slopes(options):
    if options.alibi_slopes is not None:
        raise NotImplementedError("Tandem does not serve alibi_slopes with attention_chunk where gradients are recorded or, on "
                                  f"Hopper, head dims are above {MOST_CHUNKED_HEAD_DIM}")


def serves_chunks(q, k, v):
    """Whether one call serves attention_chunk: without gradients, of which chunks have none, and on Hopper up to a head
    dim."""
    return not records(q, k, v) and (q.is_cpu or max(q.shape[-1], min(v.shape[-1], MOST_HEAD_DIM)) <= MOST_CHUNKED_HEAD_DIM)


def attend(q, k, v, options):
    """out, b, sq, heads, dv, and the log-sum-exp, b, sq, heads."""
    if is_simple(q, v) and not options.chunk:
        return _plain(q, k, v, options)

    def of(part):
        whole = _plain if not options.chunk else _in_chunks if serves_chunks(q, k, v) else _chunked
        out, lse = whole(*in_served_head_dims(q, k, part), options)
        return out[..., :part.shape[-1]], lse
    return in_parts_of_v(of, v)


def _plain(q, k, v, options):
    return attention(q, k, v, deterministic=options.deterministic, **options.keywords())


def _in_chunks(q, k, v, options):
    return attention_varlen(q, k, v, chunk=options.chunk, **options.keywords())


def _blind(q, rows):
    """out and lse of the first `rows` queries, which see no key."""
    out = torch.zeros_like(q[:, :rows])
    return out, out.new_full(out.shape[:3], -torch.inf, dtype=torch.float32)


def _chunked(q, k, v, options):
    """Queries and keys of each chunk by themselves: whole chunks as batch entries of one call, and the chunks that the
    first query and the last key cut off in calls of their own. In each the last query stands at the last key, so that
    masks stay aligned."""
    _check_slopes(options)
    chunk, sk = options.chunk, k.shape[1]
    shift = sk - q.shape[1]  # query i stands at position i + shift
    first = max(shift, 0)
    if first == sk:  # there is no key or no query
        return _plain(q, k, v, options)
    whole_begin = min(-(-first // chunk) * chunk, sk)
    whole_end = max(sk // chunk * chunk, whole_begin)
    pieces = [_blind(q, first - shift)] if first > shift else []
    for begin, end in ((first, whole_begin), (whole_begin, whole_end), (whole_end, sk)):
        if begin == end:
            continue
        keys = slice(begin // chunk * chunk, end)
        own = [q[:, begin - shift:end - shift], k[:, keys], v[:, keys]]
        if begin == whole_begin < whole_end:
            out, lse = _plain(*(x.reshape(-1, chunk, *x.shape[2:]) for x in own), options)
            pieces.append((out.reshape(own[0].shape), lse.reshape(own[0].shape[:3])))
        else:
            pieces.append(_plain(*own, options))
    return tuple(torch.cat(parts, dim=1) for parts in zip(*pieces))


# ---- Sequences of different lengths


class Lengths(NamedTuple):
    cu_q: torch.Tensor
    cu_k: torch.Tensor
    used_q: Optional[torch.Tensor]
    used_k: Optional[torch.Tensor]
    max_q: int
    max_k: int


def attend_varlen(q, k, v, lengths, options):
    """out, total_q, heads, dv, and the log-sum-exp, total_q, heads."""
    if options.chunk and not serves_chunks(q, k, v):
        return _one_by_one(q, k, v, lengths, options)
    if lengths.used_q is not None:
        return _of_used_queries(q, k, v, lengths, options)

    if is_simple(q, v):
        return _plain_varlen(q, k, v, lengths, options)

    def of(part):
        out, lse = _plain_varlen(*in_served_head_dims(q, k, part), lengths, options)
        return out[..., :part.shape[-1]], lse
    return in_parts_of_v(of, v)


def _plain_varlen(q, k, v, lengths, options):
    return attention_varlen(q, k, v, cu_seqlens_q=lengths.cu_q, cu_seqlens_k=lengths.cu_k, seqused_k=lengths.used_k,
                            max_seqlen_q=int(lengths.max_q), max_seqlen_k=int(lengths.max_k), chunk=options.chunk,
                            deterministic=options.deterministic, **options.keywords())


def sequence_of_rows(rows, starts):
    """For each of `rows` packed rows its sequence and its place there; a row of none has the last sequence."""
    row = torch.arange(rows, device=starts.device)
    sequence = torch.bucketize(row, starts[1:].long(), right=True).clamp(max=len(starts) - 2)
    return sequence, row - starts[sequence]


def _of_used_queries(q, k, v, lengths, options):
    """Without reading a length on the host: each sequence's rows go round until those in use stand last, where masks are
    aligned. The others are zeros, and what comes out for them is taken away, so that they have no gradients."""
    sequence, place = sequence_of_rows(len(q), lengths.cu_q)
    length, used = lengths.cu_q.diff()[sequence].long(), lengths.used_q[sequence].long()
    unused = place >= used
    q = q.masked_fill(unused[:, None, None], 0)
    moves = options.masks() or options.chunk or options.alibi_slopes is not None
    if moves:
        around = length.clamp(min=1)
        own, start = place < length, torch.arange(len(q), device=q.device) - place
        comes_from = torch.where(own, start + (place + used) % around, start + place)
        goes_to = torch.where(own, start + (place - used) % around, start + place)
        q = q[comes_from]
    out, lse = attend_varlen(q, k, v, lengths._replace(used_q=None), options)
    if moves:
        out, lse = out[goes_to], lse[goes_to]
    return out.masked_fill(unused[:, None, None], 0), lse.masked_fill(unused[:, None], -torch.inf)


def _one_by_one(q, k, v, lengths, options):
    """A call for each sequence, whose lengths are read on the host."""
    _check_slopes(options)
    starts_q, starts_k = lengths.cu_q.tolist(), lengths.cu_k.tolist()
    batch = len(starts_q) - 1
    used_q, used_k = ([None] * batch if used is None else used.tolist() for used in (lengths.used_q, lengths.used_k))
    outs, lses = [], []
    for i in range(batch):
        rows, keys = slice(*starts_q[i:i + 2]), slice(*starts_k[i:i + 2])
        own_q, own_k, own_v = q[rows], k[keys], v[keys]
        out, lse = attend(own_q[None, :used_q[i]], own_k[None, :used_k[i]], own_v[None, :used_k[i]], options)
        unused = len(own_q) - out.shape[1]
        outs.append(F.pad(out[0], (0, 0, 0, 0, 0, unused)))
        lses.append(F.pad(lse[0], (0, 0, 0, unused)))
    return torch.cat(outs), torch.cat(lses)
