# SPDX-License-Identifier: Apache-2.0
"""Tandem as an attention implementation of Hugging Face Transformers.

    from tandem.integrations import transformers as tandem_transformers

    tandem_transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="tandem", dtype=torch.bfloat16)

Serves prefill and decoding with their caches, static ones too, training, left and right padding, sliding windows,
chunked attention (Llama 4), softcap, grouped heads, learnable sinks, encoders, sequences that are packed into one row (by
their position_ids). What it does not serve raises NotImplementedError and names it: dropout, holes in a padding mask, packed
sequences in chunks, gradients of padded sequences that are longer than a chunk, other masks: those with a row for each
query, of four dimensions, that a caller makes. Keys of sequences that
are padded on the left are copied once a layer.
"""

import torch

from .._flash import Options, attend, in_served_head_dims, records
from .._flash_cache import MOST_STEP_QUERIES, STEP_HEAD_DIMS
from ..torch import attention_varlen, decode

NAME = "tandem"
# Transformers' functions that masks are made of, by their qualified names: those whose meaning reaches the kernels by
# other ways (is_causal, sliding_window), and what joins them.
PACKED, CHUNKED = "packed_sequence_mask_function", "chunked_overlay"
KNOWN_MASKS = ("causal_mask_function", "bidirectional_mask_function", "sliding_window_overlay", PACKED, CHUNKED)
JOINS = ("and_masks", "remap_positions_for_packed_sequence")


def register():
    """Makes attn_implementation="tandem" known to Transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, key_ranges)


# ---- Masks: which keys of each sequence count


# What hands them from Transformers' masks to its layers is a tensor of this dtype, which is how attention_forward tells
# them from a caller's mask: no attention takes masks of it, and unlike an attribute or a tensor's identity it stays with
# copies to other devices, slices, and inputs of compiled graphs.
_OWN = torch.uint32


def _as_own(ranges):
    return ranges.to(torch.int32).contiguous().view(_OWN)


def _ranges_in(mask):
    """What _as_own was given, None from None."""
    if mask is None:
        return None
    if mask.dtype != _OWN or mask.dim() != 4 or mask.shape[1] != 1 or 1 not in mask.shape[2:] or mask.shape[3] > 2:
        raise NotImplementedError(
            f"Tandem does not serve other masks than causal ones, windows, chunks and padding: attention_mask is "
            f"{mask.dtype} of shape {tuple(mask.shape)}; pass a padding mask, of batch and keys, or none")
    return mask.contiguous().view(torch.int32)


def _name_of(function):
    return getattr(function, "__qualname__", repr(function)).partition(".")[0]


def _contents(function):
    """What a function's closure holds, by its names there."""
    cells = zip(getattr(function.__code__, "co_freevars", ()), function.__closure__ or ())
    return {name: cell.cell_contents for name, cell in cells}


def _parts(function):
    """A mask function, or those that it is made of."""
    if _name_of(function) not in JOINS:
        return [function]
    inside = [part for own in _contents(function).values() for part in (own if isinstance(own, tuple) else (own,))]
    return [part for own in inside if callable(own) and not isinstance(own, torch.Tensor) for part in _parts(own)]


def _check_mask_function(function):
    for part in _parts(function):
        if _name_of(part) not in KNOWN_MASKS:
            raise NotImplementedError(f"Tandem does not serve attention masks made by {_name_of(part)}")


def _inside(function, name):
    """What the closures of a mask's parts of that name hold."""
    return [_contents(part) for part in _parts(function) if _name_of(part) == name]


def _packed_starts(function):
    """Where the sequences begin that are packed into the rows of a batch: 1 x 1 x (sequences + 1) x 1, over all rows;
    None where none are. Reads their number on the host."""
    ids = [own for contents in _inside(function, PACKED) for own in contents.values()]
    if not ids:
        return None
    if _inside(function, CHUNKED):
        raise NotImplementedError("Tandem does not serve packed sequences with chunked attention")
    begins = torch.ones_like(ids[0], dtype=torch.bool)
    begins[:, 1:] = ids[0][:, 1:] != ids[0][:, :-1]
    starts = begins.flatten().nonzero().flatten()
    return _as_own(torch.cat([starts, starts.new_full((1,), begins.numel())])[None, None, :, None])


def _is_causal(function):
    """Whether a mask hides the key behind a query."""
    zero, one = torch.zeros((), dtype=torch.long), torch.ones((), dtype=torch.long)
    return not bool(function(zero, zero, zero, one))


def _chunk_begin(function, q_offset, kv_offset, is_padded):
    """The first key in the first query's chunk, from which on chunks are counted as from the first key of all: a number,
    or int64, b, where chunks begin behind each sequence's padding. 0 where there are none."""
    found = [] if function is None else _inside(function, CHUNKED)
    if not found:
        return 0
    size, padding = found[0]["chunk_size"], found[0]["left_padding"] if is_padded else 0
    before = (q_offset - padding) // size * size
    if not isinstance(before, torch.Tensor):
        return max(before - kv_offset, 0)
    return (padding + before.clamp(min=0) - kv_offset).clamp(min=0)


def key_ranges(*, batch_size, kv_length, q_length=None, q_offset=0, kv_offset=0, mask_function=None,
               attention_mask=None, cache_position=None, device=None, **_):
    """What Transformers hands to attention_forward as its mask, made once for all layers: None where all keys count, or
    b x 1 x 1 x 1, the number of keys that count, or b x 1 x 1 x 2, the first and the end of them, or what
    _packed_starts says. Of four dimensions, because that is how Transformers knows a mask that is made already."""
    if q_length is None:  # up to Transformers 5.10 or so
        q_length, q_offset = cache_position.shape[0], cache_position[0]
    if mask_function is not None:
        _check_mask_function(mask_function)
        if (starts := _packed_starts(mask_function)) is not None:
            if attention_mask is not None:
                raise NotImplementedError("Tandem does not serve packed sequences with a padding mask")
            return starts
    seen = q_offset + q_length - kv_offset  # keys up to the last query's own
    causal = mask_function is None or _is_causal(mask_function)
    begin = _chunk_begin(mask_function, q_offset, kv_offset, attention_mask is not None)
    if attention_mask is not None:
        return _ranges_of(attention_mask.bool()[:, kv_offset:kv_offset + kv_length], begin, seen if causal else None,
                          kv_length)
    from_first = not isinstance(begin, torch.Tensor) and begin == 0
    if from_first and not isinstance(seen, torch.Tensor) and (seen == kv_length or not causal):
        return None
    end = torch.as_tensor(seen if causal else kv_length, device=device).clamp(max=kv_length)
    range_ = end[None] if from_first else torch.stack([torch.as_tensor(begin, device=end.device), end])
    return _as_own(range_.expand(batch_size, 1, 1, -1))


def _ranges_of(mask, chunk_begin, seen, kv_length):
    """The range of each row of a padding mask, at a chunk's begin or behind it. Right padding hides nothing from a causal
    query that counts: a range ends at the last query then, so that masks stay aligned."""
    place = torch.arange(mask.shape[1], device=mask.device)
    begin = mask.int().argmax(dim=1)
    last = torch.where(mask, place + 1, 0).amax(dim=1)
    end = last if seen is None else torch.zeros_like(last) + seen
    if not torch.compiler.is_compiling():
        if bool(((last - begin) != mask.sum(dim=1)).any()):
            raise NotImplementedError("Tandem does not serve padding masks with holes")
    begin = begin.clamp(min=chunk_begin)
    if not torch.compiler.is_compiling():
        if not bool(begin.any()):
            return None if bool((end == kv_length).all()) else _as_own(end[:, None, None, None])
    return _as_own(torch.stack([begin, end], dim=1)[:, None, None])


# ---- Attention


def _refuse(module, dropout, others):
    if dropout:
        raise NotImplementedError(f"Tandem does not serve dropout; {type(module).__name__} asks for {dropout}")
    for name in ("position_bias", "cu_seq_lens_q", "cache"):
        if others.get(name) is not None:
            raise NotImplementedError(f"Tandem does not serve {name} in Transformers")


def _is_step(q, mask):
    """Whether decode serves: few queries, no gradient, keys from the first on."""
    wanted = torch.is_grad_enabled() and q.requires_grad
    served = q.device.type == "cpu" or q.shape[-1] in STEP_HEAD_DIMS
    return q.shape[1] <= MOST_STEP_QUERIES and served and not wanted and (mask is None or mask.shape[1] == 1)


def _attend_packed(q, k, v, starts, options):
    """b, s, h, d."""
    length, head_dim_v = q.shape[1], v.shape[-1]
    packed = (x.flatten(0, 1) for x in in_served_head_dims(q, k, v))
    out, _ = attention_varlen(*packed, cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=length,
                              max_seqlen_k=length, **options.keywords())
    return out[..., :head_dim_v].unflatten(0, q.shape[:2])


def _attend(q, k, v, mask, options):
    """b, s, h, d."""
    batch, capacity, head_dim_v = *k.shape[:2], v.shape[-1]
    if _is_step(q, mask) and q.shape[-1] == head_dim_v:
        lengths = torch.full((batch,), capacity, dtype=torch.int32, device=q.device) if mask is None else mask[:, 0]
        return decode(q, k, v, lengths.contiguous(), chunk=options.chunk, **options.keywords())[0]
    if mask is None:
        return attend(q, k, v, options)[0]
    q, k, v = in_served_head_dims(q, k, v)
    lengths = {"seqused_k": mask[:, -1].contiguous()}
    if mask.shape[1] == 2 and not records(q, k, v):
        lengths["leftpad_k"] = mask[:, 0].contiguous()
    elif mask.shape[1] == 2:  # gradients are those of packed keys, with gaps
        begins = torch.arange(batch, device=q.device, dtype=torch.int32) * capacity + mask[:, 0]
        lengths = {"cu_seqlens_k": torch.cat([begins, torch.full_like(begins[:1], batch * capacity)]),
                   "seqused_k": mask[:, 1] - mask[:, 0], "max_seqlen_k": capacity}
        k, v = k.flatten(0, 1), v.flatten(0, 1)
    return attention_varlen(q, k, v, **lengths, chunk=options.chunk, **options.keywords())[0][..., :head_dim_v]


def _chunk_of(module, keys):
    """The chunk's size in a layer of chunked attention, as its configuration has it; 0: none, or all keys are in one."""
    config, layer = getattr(module, "config", None), getattr(module, "layer_idx", None)
    types = getattr(config, "layer_types", None)
    if types is None or layer is None or types[layer] != "chunked_attention":
        return 0
    return config.attention_chunk_size if keys > config.attention_chunk_size else 0


def attention_forward(module, query, key, value, attention_mask, dropout=0.0, *, scaling=None, sliding_window=None,
                      softcap=None, is_causal=None, s_aux=None, **others):
    """What Transformers calls in each layer. query, key, value: b, heads, s, d; attention_mask: of key_ranges. s_aux:
    the heads' learnable sinks, which take a share of each query's weight.

    Returns the output, b, sq, heads, d, and None for the weights, which nobody has.
    """
    _refuse(module, dropout, others)
    mask = _ranges_in(attention_mask)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    left = None if sliding_window is None else sliding_window - 1  # its windows count the query's own key
    packed = mask is not None and mask.shape[2] > 1
    options = Options.of(q, scaling, causal, (-1 if left is None else left, -1 if left is None else left),
                         attention_chunk=_chunk_of(module, k.shape[1]), softcap=softcap or 0.0)
    if s_aux is not None:
        options = options._replace(sinks=s_aux.float().contiguous())
    if packed:
        out = _attend_packed(q, k, v, mask.flatten(), options)
    else:
        out = _attend(q, k, v, None if mask is None else mask[:, 0, 0], options)
    return out.contiguous(), None
