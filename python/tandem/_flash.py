# SPDX-License-Identifier: Apache-2.0
"""What stands behind flash_attn_interface: FlashAttention-3's calls said in Tandem's, and put together from several
where one does not do."""

import dataclasses
from typing import Optional

import torch
import torch.nn.functional as F

from .torch import attention, attention_varlen

MOST_HEAD_DIM = 256


def refuse(q, **tensors):
    """NotImplementedError for what Tandem does not serve, by its name."""
    if q.dtype.itemsize == 1:
        raise NotImplementedError(f"Tandem does not serve {q.dtype} here; bfloat16 and float16 are allowed")
    for name, x in tensors.items():
        if x is not None:
            raise NotImplementedError(f"Tandem does not serve {name}")


@dataclasses.dataclass(frozen=True)
class Options:
    scale: float
    window: tuple  # keys to the left and to the right, None for no limit
    chunk: int
    softcap: float
    deterministic: bool

    @classmethod
    def of(cls, q, scale, causal, window, *, attention_chunk, softcap, deterministic=False):
        left, right = (None if int(side) < 0 else int(side) for side in window)
        return cls(q.shape[-1] ** -0.5 if scale is None else scale, (left, 0 if causal else right), attention_chunk,
                   softcap, deterministic)

    def masks(self):
        return self.window != (None, None)

    def keywords(self):
        return {"scale": self.scale, "window": self.window, "softcap": self.softcap, "return_lse": True}


def _padded(x, head_dim):
    return x if x.shape[-1] == head_dim else F.pad(x, (0, head_dim - x.shape[-1]))


def in_one_head_dim(q, k, v):
    """q, k and v padded with zeros, which change no score, to one head dim that Tandem has."""
    head_dim = -(-max(q.shape[-1], v.shape[-1]) // 8) * 8
    if head_dim > MOST_HEAD_DIM:
        raise NotImplementedError(f"Tandem does not serve head dims above {MOST_HEAD_DIM}: q has {q.shape[-1]}, v "
                                  f"{v.shape[-1]}")
    return (_padded(x, head_dim) for x in (q, k, v))


# ---- Sequences of one length


def attend(q, k, v, options):
    """out, b, sq, heads, dv, and the log-sum-exp, b, sq, heads."""
    head_dim_v = v.shape[-1]
    q, k, v = in_one_head_dim(q, k, v)
    whole = _chunked if options.chunk else _plain
    out, lse = whole(q, k, v, options)
    return out[..., :head_dim_v], lse


def _plain(q, k, v, options):
    return attention(q, k, v, deterministic=options.deterministic, **options.keywords())


def _blind(q, rows):
    """out and lse of the first `rows` queries, which see no key."""
    out = torch.zeros_like(q[:, :rows])
    return out, out.new_full(out.shape[:3], -torch.inf, dtype=torch.float32)


def _chunked(q, k, v, options):
    """Queries and keys of each chunk by themselves: whole chunks as batch entries of one call, and the chunks that the
    first query and the last key cut off in calls of their own. In each the last query stands at the last key, so that
    masks stay aligned."""
    chunk, sk = options.chunk, k.shape[1]
    shift = sk - q.shape[1]  # query i stands at position i + shift
    first = max(shift, 0)
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
    if not pieces:
        return _plain(q, k, v, options)  # nothing at all
    return tuple(torch.cat(parts, dim=1) for parts in zip(*pieces))


# ---- Sequences of different lengths


@dataclasses.dataclass(frozen=True)
class Lengths:
    cu_q: torch.Tensor
    cu_k: torch.Tensor
    used_q: Optional[torch.Tensor]
    used_k: Optional[torch.Tensor]
    max_q: int
    max_k: int


def attend_varlen(q, k, v, lengths, options):
    """out, total_q, heads, dv, and the log-sum-exp, total_q, heads."""
    if options.chunk or (lengths.used_q is not None and options.masks()):
        return _one_by_one(q, k, v, lengths, options)
    head_dim_v = v.shape[-1]
    q, k, v = in_one_head_dim(q, k, v)
    out, lse = attention_varlen(q, k, v, cu_seqlens_q=lengths.cu_q, cu_seqlens_k=lengths.cu_k,
                                seqused_k=lengths.used_k, max_seqlen_q=int(lengths.max_q),
                                max_seqlen_k=int(lengths.max_k), deterministic=options.deterministic,
                                **options.keywords())
    return out[..., :head_dim_v], lse


def _one_by_one(q, k, v, lengths, options):
    """A call for each sequence, whose lengths are read on the host."""
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
