# SPDX-License-Identifier: Apache-2.0
"""8-bit tensors and their scales in FlashAttention-3's functions.

Where all sequences have one length the 8-bit kernels serve, and in steps of a few queries the decoding kernels for caches
of 8 bits. Other calls are converted to bfloat16, which holds each of their values exactly: the scales of q and k multiply q and those of v the output, so that k and v, of which there is more,
stay as they are."""

from typing import NamedTuple, Optional

import torch

from .torch import attention_eight_bit, quantize

QUANTISED_HEAD_DIMS = (64, 128, 256)


def is_eight_bit(x):
    return x.dtype.itemsize == 1


def serves(q, v, options):
    """Whether the 8-bit kernels take tensors of one length as they are: their rows are multiples of 16 bytes."""
    head_dim = q.shape[-1]
    return (is_eight_bit(q) and v.shape[-1] == head_dim and head_dim % 16 == 0 and head_dim <= 256 and not options.chunk
            and options.alibi_slopes is None)


def attend_eight_bit(q, k, v, scales, options):
    """out, b, sq, heads, d, bfloat16, and the log-sum-exp, b, sq, heads. v is brought into columns where there is a kernel
    for it: two passes over v cost less than its transposition in every tile."""
    descales = {f"{name}_descale": None if x is None else x.float() for name, x in zip("qkv", scales)}
    by_column = v.shape[-1] in QUANTISED_HEAD_DIMS
    if by_column:
        one = torch.ones((1, 1, 1), dtype=torch.float32, device=v.device)
        v, _ = quantize(v.to(torch.bfloat16), by_column=True, block=0, scale=one)
    return attention_eight_bit(q, k, v, values_by_column=by_column, **descales, **options.keywords())


def widened(x):
    return x.to(torch.bfloat16) if is_eight_bit(x) else x


def _times(x, scales, sequence):
    """x, b, s, heads, d, or with the sequence of each row packed, times the numbers of its sequence and key/value head."""
    scales = scales.float().repeat_interleave(x.shape[-2] // scales.shape[1], dim=1)
    scales = scales[:, None] if sequence is None else scales[sequence]
    return (x.float() * scales[..., None]).to(torch.bfloat16)


class Scales(NamedTuple):
    """What 8-bit values are multiplied by, float32, b, kv_heads; None for 1."""
    q: Optional[torch.Tensor]
    k: Optional[torch.Tensor]
    v: Optional[torch.Tensor]

    @classmethod
    def of(cls, q, q_descale, k_descale, v_descale):
        if is_eight_bit(q):
            if q.dtype != torch.float8_e4m3fn:
                raise NotImplementedError(f"Tandem does not serve {q.dtype}; of 8 bits float8_e4m3fn is allowed")
            return cls(q_descale, k_descale, v_descale)
        for name, given in (("q_descale", q_descale), ("k_descale", k_descale), ("v_descale", v_descale)):
            if given is not None:
                raise NotImplementedError(f"Tandem does not serve {name} of {q.dtype} tensors; it is for 8 bits")
        return NO_SCALES

    def queries(self, q, sequence=None):
        """q in 16 bits, with the scales of the scores in it."""
        if self is NO_SCALES:
            return q
        of_scores = [scale.float() for scale in (self.q, self.k) if scale is not None]
        return _times(q, torch.stack(of_scores).prod(dim=0), sequence) if of_scores else widened(q)

    def queries_alone(self, q):
        """q in 16 bits with its own scales."""
        return widened(q) if self.q is None else _times(q, self.q, None)

    def of_cache(self, scale):
        """Those of keys or values as tandem.torch.decode takes them."""
        return None if scale is None else scale.float()

    def output(self, out, sequence=None):
        return out if self.v is None else _times(out, self.v, sequence)


NO_SCALES = Scales(None, None, None)
