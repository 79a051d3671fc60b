# SPDX-License-Identifier: Apache-2.0
"""Tandem in PyTorch: operators that torch.compile, autograd, autocast and CUDA graphs know.

    from tandem.torch import attention

    out = attention(q, k, v, causal=True)   # b, s, h, d; out.backward() is Tandem's too

Tensors on a Hopper GPU are served there, on the current stream; tensors in host memory by the CPU backend. Nothing is
built against PyTorch: any from 2.4 on will do.
"""

import torch

from .._library import UNLIMITED, TandemError
from . import _call, _ops

__all__ = ["attention", "attention_varlen", "decode", "merge"]


def _invalid(message):
    return TandemError("TANDEM_INVALID_ARGUMENT", message)


def _sides(causal, window):
    """The mask as keys to the left and to the right, in words that torch.compile can read."""
    if window is None:
        return UNLIMITED, 0 if causal else UNLIMITED
    if causal:
        raise _invalid(f"causal and window={window} contradict each other; a causal window is window=(left, 0)")
    left, right = (UNLIMITED if limit is None else limit for limit in window)
    if left < UNLIMITED or right < UNLIMITED:
        raise _invalid(f"window is {window}; its sides have to be 0 or more keys, or None")
    return left, right


def _scale(scale):
    """As the C interface takes it, where 0 stands for the default and so can't be asked for."""
    if scale is None:
        return 0.0
    if not scale > 0:
        raise _invalid(f"scale is {scale}; it has to be > 0, or None for 1 / sqrt(d)")
    return float(scale)


def _is_plain(q, k, v):
    """Nobody looks on: no compiler, no autograd, no autocast, no mode, no transform; just three tensors."""
    return (not torch.compiler.is_compiling() and type(q) is type(k) is type(v) is torch.Tensor
            and not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad))
            and q.device.type in ("cuda", "cpu") and not torch.is_autocast_enabled(q.device.type)
            and torch._C._len_torch_dispatch_stack() == 0 and torch._C._functorch.maybe_current_level() is None
            and not (q.is_neg() or k.is_neg() or v.is_neg()))


def attention(q, k, v, *, causal=False, window=None, scale=None, softcap=0.0, return_lse=False, deterministic=None):
    """softmax(scale * q k^T + mask) v, with gradients.

    q: b, sq, q_heads, d; k, v: b, sk, kv_heads, d; q_heads a multiple of kv_heads, d a multiple of 8 up to 256. Tensors
    of one device and dtype: bfloat16 or float16; float32 too in host memory. Under autocast they become its dtype. A
    tensor whose last dimension is not contiguous is copied.

    causal: the last query sees every key (bottom-right aligned). window: (left, right), the number of keys seen on
    either side of the query's own position, None for no limit. scale: default 1 / sqrt(d). softcap: > 0 turns scores s
    into softcap * tanh(s / softcap). deterministic: the gradients' bits are the same in every run (default: as
    torch.use_deterministic_algorithms says).

    Returns out, shape and dtype of q; with return_lse a pair of out and the natural log-sum-exp, float32, b, sq,
    q_heads, which has a gradient too. A query that sees no key has output 0 and log-sum-exp -inf. Raises TandemError
    with the library's message.
    """
    mask, scale = _sides(causal, window), _scale(scale)
    if _is_plain(q, k, v):
        q, k, v = _ops.rows_contiguous(q), _ops.rows_contiguous(k), _ops.rows_contiguous(v)
        out, lse = _call.forward(q, k, v, mask, scale, float(softcap), with_lse=return_lse)
    else:
        if deterministic is None:
            deterministic = torch.are_deterministic_algorithms_enabled()
        out, lse = torch.ops.tandem.forward(q, k, v, *mask, scale, float(softcap), deterministic)
    return (out, lse) if return_lse else out


def attention_varlen(q, k, v, *, cu_seqlens_q=None, cu_seqlens_k=None, seqused_k=None, page_table=None, max_seqlen_q=0,
                     max_seqlen_k=0, causal=False, window=None, scale=None, softcap=0.0, return_lse=False,
                     deterministic=None):
    """Attention of sequences of different lengths as an operator: arguments and results are those of
    tandem.forward_varlen, which says what they mean.

    Has gradients where keys are not paged; they read the lengths on the host and run one sequence after another, so
    that no CUDA graph can capture them. A row of no sequence has gradient 0.
    """
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    out, lse = torch.ops.tandem.forward_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, page_table, max_seqlen_q,
                                               max_seqlen_k, *_sides(causal, window), _scale(scale), float(softcap),
                                               deterministic)
    return (out, lse) if return_lse else out


def decode(q, k_cache, v_cache, lengths, *, k_new=None, v_new=None, page_table=None, batch_index=None, rotary=None,
           rotary_interleaved=False, causal=False, window=None, scale=None, softcap=0.0, split_size=0,
           return_lse=False):
    """One decoding step as an operator: arguments and results are those of tandem.decode, which says what they mean.

    Appends to k_cache and v_cache in place where k_new and v_new are given. Scratch memory is kept for each stream. Has
    no gradient.
    """
    cos, sin = (None, None) if rotary is None else rotary
    options = (lengths, page_table, batch_index, cos, sin, rotary_interleaved, *_sides(causal, window),
               _scale(scale), float(softcap), split_size)
    if k_new is None and v_new is None:
        out, lse = torch.ops.tandem.decode(q, k_cache, v_cache, *options)
    else:
        out, lse = torch.ops.tandem.decode_append(q, k_cache, v_cache, k_new, v_new, *options)
    return (out, lse) if return_lse else out


def merge(o_parts, lse_parts, *, dtype=None):
    """Results over parts of the keys merged, as an operator: arguments and results are those of tandem.merge. Has no
    gradient."""
    return torch.ops.tandem.merge(o_parts, lse_parts, o_parts.dtype if dtype is None else dtype)
