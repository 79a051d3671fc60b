# SPDX-License-Identifier: Apache-2.0
"""torch.ops.flash_attn_3: the operators of FlashAttention-3's extension by their names, for code that calls these and not
its Python functions. Arguments and results mean what they mean there; of what nobody uses (partial results, the sums of
the backward pass) empty tensors come back."""

import torch

from . import flash_attn_interface as interface
from ._flash import Lengths, Options, attend, attend_varlen, is_simple

NAMESPACE = "flash_attn_3"
LENGTHS = "Tensor? cu_seqlens_q = None, Tensor? cu_seqlens_k = None, "
USED = "Tensor? seqused_q = None, Tensor? seqused_k = None, int? max_seqlen_q = None, int? max_seqlen_k = None, "
MASK = "bool is_causal = False, int window_size_left = -1, int window_size_right = -1, "
SCHEMAS = {
    "fwd": "(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new = None, Tensor(v_new!)? v_new = None, Tensor? q_v = None, "
           f"Tensor(out!)? out = None, {LENGTHS}Tensor? cu_seqlens_k_new = None, {USED}Tensor? page_table = None, "
           "Tensor? kv_batch_idx = None, Tensor? leftpad_k = None, Tensor? rotary_cos = None, Tensor? rotary_sin = None, "
           "Tensor? seqlens_rotary = None, Tensor? q_descale = None, Tensor? k_descale = None, Tensor? v_descale = None, "
           f"float? softmax_scale = None, {MASK}int attention_chunk = 0, float softcap = 0.0, "
           "bool is_rotary_interleaved = False, Tensor? scheduler_metadata = None, int num_splits = 0, "
           "bool? pack_gqa = None, int sm_margin = 0) -> (Tensor(out!), Tensor, Tensor, Tensor)",
    "bwd": "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(dq!)? dq = None, "
           f"Tensor(dk!)? dk = None, Tensor(dv!)? dv = None, {LENGTHS}{USED}float? softmax_scale = None, {MASK}"
           "float softcap = 0.0, bool deterministic = False, int sm_margin = 0) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "fwd_combine": "(Tensor out_partial, Tensor lse_partial, Tensor(out!)? out = None, ScalarType? out_dtype = None) -> "
                   "(Tensor(out!), Tensor)",
    "get_scheduler_metadata": "(int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, int num_heads_k, "
                              "int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k, "
                              f"{LENGTHS}Tensor? cu_seqlens_k_new = None, Tensor? seqused_q = None, "
                              f"Tensor? leftpad_k = None, int? page_size = None, int max_seqlen_k_new = 0, {MASK}"
                              "int attention_chunk = 0, bool has_softcap = False, int num_splits = 0, "
                              "bool? pack_gqa = None, int sm_margin = 0) -> Tensor",
}


def _empty(like, count):
    return tuple(torch.empty(0, dtype=torch.float32, device=like.device) for _ in range(count))


def _options(given):
    return {"softmax_scale": given["softmax_scale"], "causal": given["is_causal"],
            "window_size": (given["window_size_left"], given["window_size_right"]), "softcap": given["softcap"]}


def _is_cache(given):
    names = ("k_new", "page_table", "kv_batch_idx", "leftpad_k", "rotary_cos")
    return any(given[name] is not None for name in names) or (given["seqused_k"] is not None
                                                              and given["cu_seqlens_k"] is None)


def _forward(given):
    q, k, v = given["q"], given["k"], given["v"]
    options = _options(given) | {name: given[name] for name in ("q_descale", "k_descale", "v_descale", "attention_chunk")}
    options["qv"] = given["q_v"]
    if _is_cache(given):
        if given["seqused_q"] is not None:
            raise NotImplementedError("Tandem does not serve seqused_q over a cache")
        out, lse = interface.flash_attn_with_kvcache(
            q, k, v, given["k_new"], given["v_new"], rotary_cos=given["rotary_cos"], rotary_sin=given["rotary_sin"],
            cache_seqlens=given["seqused_k"], cache_batch_idx=given["kv_batch_idx"], cache_leftpad=given["leftpad_k"],
            page_table=given["page_table"], cu_seqlens_q=given["cu_seqlens_q"],
            cu_seqlens_k_new=given["cu_seqlens_k_new"], max_seqlen_q=given["max_seqlen_q"],
            rotary_seqlens=given["seqlens_rotary"], rotary_interleaved=given["is_rotary_interleaved"],
            return_softmax_lse=True, **options)
    elif given["cu_seqlens_q"] is not None:
        out, lse = interface.flash_attn_varlen_func(
            q, k, v, given["cu_seqlens_q"], given["cu_seqlens_k"], given["max_seqlen_q"] or 0, given["max_seqlen_k"] or 0,
            given["seqused_q"], given["seqused_k"], return_attn_probs=True, **options)
    elif given["seqused_q"] is not None:
        raise NotImplementedError("Tandem does not serve seqused_q of sequences that are not packed")
    else:
        out, lse = interface.flash_attn_func(q, k, v, return_attn_probs=True, **options)
    out = out if given["out"] is None else given["out"].copy_(out)
    return out, lse.contiguous(), *_empty(out, 2)


def _backward(given):
    """Tandem's own backward pass; of calls that are more than a forward the gradients of that, which is run again."""
    q, k, v, dout, out = (given[name] for name in ("q", "k", "v", "dout", "out"))
    options = Options.of(q, given["softmax_scale"], given["is_causal"],
                         (given["window_size_left"], given["window_size_right"]), attention_chunk=0,
                         softcap=given["softcap"], deterministic=given["deterministic"])
    sides = (-1 if side is None else side for side in options.window or (None, None))
    numbers = (*sides, options.scale, options.softcap, options.deterministic)
    # One head's log-sum-exps are neighbours: b, h, sq, or h, rows.
    results = dout, None, q, k, v, out, given["softmax_lse"].transpose(-1, -2)
    packed = given["cu_seqlens_q"] is not None
    if not is_simple(q, v) or (packed and given["seqused_q"] is not None):
        gradients = _of_the_forward(given, options)
    elif packed:
        gradients = torch.ops.tandem.backward_varlen(
            *results, given["cu_seqlens_q"], given["cu_seqlens_k"], given["seqused_k"], given["max_seqlen_q"] or 0,
            given["max_seqlen_k"] or 0, *numbers)
    else:
        gradients = torch.ops.tandem.backward(*results, *numbers)
    for name, gradient in zip(("dq", "dk", "dv"), gradients):
        if given[name] is not None:
            given[name].copy_(gradient)
    sums = (dout.float() * out.float()).sum(dim=-1).transpose(-1, -2).contiguous()
    return sums, *_empty(out, 4)


def _of_the_forward(given, options):
    with torch.enable_grad():
        inputs = [given[name].detach().requires_grad_() for name in "qkv"]
        if given["cu_seqlens_q"] is None:
            out, _ = attend(*inputs, options)
        else:
            lengths = Lengths(given["cu_seqlens_q"], given["cu_seqlens_k"], given["seqused_q"], given["seqused_k"],
                              given["max_seqlen_q"] or 0, given["max_seqlen_k"] or 0)
            out, _ = attend_varlen(*inputs, lengths, options)
    return torch.autograd.grad(out, inputs, given["dout"])


def _combine(given):
    return interface.flash_attn_combine(given["out_partial"], given["lse_partial"], given["out"], given["out_dtype"])


def _metadata(given):
    return torch.empty(0, dtype=torch.int32, device=given["seqused_k"].device)


_kept = []


def register():
    """Defines the operators; an error where FlashAttention-3 itself, or this, has done so already."""
    if hasattr(getattr(torch.ops, NAMESPACE), "fwd"):
        raise RuntimeError(f"torch.ops.{NAMESPACE} is defined already: FlashAttention-3's extension is loaded")
    library = torch.library.Library(NAMESPACE, "DEF")
    functions = {"fwd": _forward, "bwd": _backward, "fwd_combine": _combine, "get_scheduler_metadata": _metadata}
    for name, function in functions.items():
        library.define(name + SCHEMAS[name])
        library.impl(name, _of_all_arguments(name, function), "CompositeImplicitAutograd")
    _kept.append(library)


def _of_all_arguments(name, function):
    """`function`, which takes all arguments by their names in a dict, as the dispatcher calls it."""
    schema = getattr(getattr(torch.ops, NAMESPACE), name).default._schema.arguments
    names = [argument.name for argument in schema]
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return lambda *arguments, **keywords: function(defaults | dict(zip(names, arguments)) | keywords)
