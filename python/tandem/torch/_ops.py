# SPDX-License-Identifier: Apache-2.0
"""Tandem's operators in PyTorch's dispatcher, torch.ops.tandem: what torch.compile, autograd, autocast and export see.

left and right are the mask's keys on either side of a query's own position, -1 for no limit; causal is right = 0.
"""

import functools

import torch

import tandem

from .._options import check_new
from . import _call, _native

_records = torch.is_grad_enabled
_is_alone = {}  # whether behind autograd, of a set of dispatch keys, there is but a backend's kernel


def _find_whether_alone(keys):
    select, *own = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
                    for name in ("BackendSelect", "CPU", "CUDA"))
    left = (keys & torch._C._after_autograd_keyset) - select  # that one is always there, and passes calls on
    alone = _is_alone[keys.raw_repr()] = left.raw_repr() in [key.raw_repr() for key in own]
    return alone


class _Library(torch.library.Library):
    """Operators whose calls go from autograd's place in the dispatcher straight to the kernel, where nothing is recorded
    and nobody else looks on (a mode, a transform, a tensor of another kind). PyTorch goes there by the dispatcher once
    more, which takes as long as the kernel's call."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._kernels = {}

    def impl(self, name, function, key="", **options):
        if key == "CPU":
            self._kernels[name] = function  # the same as on CUDA
        elif key == "Autograd" and options.get("with_keyset"):
            function = self._straight(function, self._kernels[name])
        super().impl(name, function, key, **options)

    @staticmethod
    def _straight(recording, kernel):
        def call(keys, *arguments):
            if _records():
                return recording(keys, *arguments)
            alone = _is_alone.get(keys.raw_repr())
            if alone is None:
                alone = _find_whether_alone(keys)
            return kernel(*arguments) if alone else recording(keys, *arguments)
        return call


LIBRARY = _Library("tandem", "DEF")
MASK = "SymInt left, SymInt right, float scale, float softcap"
STEP = ("Tensor lengths, Tensor? page_table, Tensor? batch_index, Tensor? cos, Tensor? sin, bool interleaved, "
        f"{MASK}, SymInt split_size, Tensor? sinks=None")
CACHE = ("Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seqused_k, Tensor? page_table, Tensor? leftpad_k, "
         "Tensor? batch_index, Tensor? cos, Tensor? sin, bool interleaved, SymInt max_seqlen_q, SymInt max_seqlen_k, "
         f"SymInt chunk, {MASK}, Tensor? sinks=None, Tensor? alibi_slopes=None, Tensor? tree=None, "
         "SymInt split_size=0")
BIASES = "SymInt chunk=0, Tensor? alibi_slopes=None, Tensor? tree=None"
LATER = "int? hadamard=None, Tensor? qv=None, Tensor? cu_prefix_groups=None, Tensor? prefix_lengths=None"


def _define(name, schema):
    LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))


_define("forward", f"(Tensor q, Tensor k, Tensor v, {MASK}, bool deterministic, Tensor? sinks=None) -> (Tensor, Tensor)")
_define("forward_varlen", "(Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
        "Tensor? seqused_k, Tensor? page_table, SymInt max_seqlen_q, SymInt max_seqlen_k, "
        f"{MASK}, bool deterministic, Tensor? sinks=None) -> (Tensor, Tensor)")
_define("backward", "(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
        f"{MASK}, bool deterministic) -> (Tensor, Tensor, Tensor)")
_define("backward_with_sinks", "(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
        f"{MASK}, bool deterministic, Tensor sinks) -> (Tensor, Tensor, Tensor, Tensor)")
SEQUENCES = "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seqused_k, SymInt max_seqlen_q, SymInt max_seqlen_k"
_define("backward_varlen", "(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
        f"{SEQUENCES}, {MASK}, bool deterministic) -> (Tensor, Tensor, Tensor)")
_define("backward_varlen_with_sinks", "(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
        f"{SEQUENCES}, {MASK}, bool deterministic, Tensor sinks) -> (Tensor, Tensor, Tensor, Tensor)")
_define("forward_cache", f"(Tensor q, Tensor k, Tensor v, {CACHE}) -> (Tensor, Tensor)")
_define("forward_append", "(Tensor q, Tensor(a!) k, Tensor(b!) v, Tensor k_new, Tensor v_new, Tensor? cu_seqlens_k_new, "
        f"{CACHE}) -> (Tensor, Tensor)")
_define("decode", f"(Tensor q, Tensor k_cache, Tensor v_cache, {STEP}, Tensor? k_descale=None, Tensor? v_descale=None, "
        f"{BIASES}, {LATER}) -> (Tensor, Tensor)")
# Scales of a sequence or head are not written, only those of each token.
_define("decode_append", "(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor k_new, Tensor v_new, "
        f"{STEP}, Tensor(c!)? k_descale=None, Tensor(d!)? v_descale=None, {BIASES}, "
        f"{LATER}) -> (Tensor, Tensor)")
QUANTISED = ("bool by_column, SymInt block, int? hadamard, bool integers=False, int terms=1, Tensor? cos=None, "
             "Tensor? sin=None, bool interleaved=False, Tensor? first_positions=None, "
             "float amplitude=0.0, Tensor? shift=None, bool best_scale=False")
_define("quantize", f"(Tensor x, {QUANTISED}) -> (Tensor, Tensor)")
_define("quantize_by", f"(Tensor x, Tensor scale, {QUANTISED}) -> Tensor")
_define("quantize_queries", f"(Tensor x, Tensor? scale, Tensor k_shift, {QUANTISED}) -> (Tensor, Tensor, Tensor)")
_define("forward_eight_bit", "(Tensor q, Tensor k, Tensor v, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, "
        f"SymInt descale_block, bool values_by_column, {MASK}, ScalarType dtype, float qk_amplitude=0.0, "
        "Tensor? v_shift=None, Tensor? q_dot_k_shift=None) -> (Tensor, Tensor)")
_define("merge", "(Tensor o_parts, Tensor lse_parts, ScalarType dtype) -> (Tensor, Tensor)")


def rows_contiguous(x):
    """x, or a copy whose last dimension is contiguous; also of none, which is refused later, by name."""
    return x if x.dim() == 0 or x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


# ---- What the operators do


def _forward(q, k, v, *options):
    left, right, scale, softcap, _, *sinks = options
    sinks = sinks[0] if sinks else None
    here = _native.run_forward(q, k, v, (left, right, scale, softcap, sinks), True)
    if here[0] is not None:
        return here
    return _call.forward(rows_contiguous(q), rows_contiguous(k), rows_contiguous(v), (left, right), scale, softcap,
                         sinks=sinks)


def _window(*sides):
    return tuple(None if side < 0 else side for side in sides)


def _forward_varlen(q, k, v, *rest):
    cu_seqlens_q, cu_seqlens_k, seqused_k, page_table, max_q, max_k, left, right, scale, softcap, _, *sinks = rest
    sinks = sinks[0] if sinks else None
    extras = _native.NO_EXTRAS if sinks is None else (*(None,) * 7, False, 0, sinks, None, None, 0)
    here = _native.run_forward_varlen(q, k, v, rest[:10], extras, True)
    if here[0] is not None:
        return here
    return tandem.forward_varlen(rows_contiguous(q), rows_contiguous(k), rows_contiguous(v), cu_seqlens_q=cu_seqlens_q,
                                 cu_seqlens_k=cu_seqlens_k, seqused_k=seqused_k, page_table=page_table,
                                 max_seqlen_q=max_q, max_seqlen_k=max_k, window=_window(left, right),
                                 scale=scale or None, softcap=softcap, return_lse=True, sinks=sinks)


def _check_columns(q, v):
    if q.shape[-1] != v.shape[-1]:
        raise NotImplementedError(f"Tandem has no gradients where v has another head dim than q: {v.shape[-1]} and "
                                  f"{q.shape[-1]}; pad the smaller ones with zeros")


def _backward(dout, dlse, *rest):
    """Of backward, and of backward_with_sinks where the sinks are last."""
    q, k, v, out, lse, left, right, scale, softcap, deterministic, *sinks = rest
    sinks = sinks[0] if sinks else None
    _check_columns(q, v)
    here = _native.run_backward((q, k, v, out, dout), (lse, dlse), (left, right, scale, softcap, deterministic), sinks)
    if here is not None:
        return here
    tensors = {"q": q, "k": k, "v": v, "o": out, "dout": dout}
    tensors = {name: rows_contiguous(x) for name, x in tensors.items()}
    return tuple(_call.backward(tensors, lse, dlse, ((left, right), scale, softcap, deterministic), sinks))


def _backward_varlen(dout, dlse, *rest):
    """Of backward_varlen, and of backward_varlen_with_sinks where the sinks are last."""
    q, k, v, out, lse, *lengths, left, right, scale, softcap, deterministic = rest[:15]
    sinks = rest[15] if len(rest) > 15 else None
    _check_columns(q, v)
    here = _native.run_backward_varlen((q, k, v, out, dout), (lse, dlse), lengths,
                                       (left, right, scale, softcap, deterministic), sinks)
    if here is not None:
        return here
    cu_seqlens_q, cu_seqlens_k, seqused_k, max_q, max_k = lengths
    return tandem.backward_varlen(*map(rows_contiguous, (q, k, v, out)), lse, rows_contiguous(dout), dlse=dlse,
                                  cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_k=seqused_k,
                                  max_seqlen_q=max_q, max_seqlen_k=max_k, window=_window(left, right),
                                  scale=scale or None, softcap=softcap, deterministic=deterministic, sinks=sinks)


def _forward_cache(q, k, v, *rest, new=(None, None, None)):
    *lengths, leftpad, index, cos, sin, interleaved, max_q, max_k, chunk, left, right, scale, softcap = rest[:16]
    sinks, slopes, tree, split_size = (*rest[16:], *(None, None, None, 0)[len(rest) - 16:])
    here = _native.run_forward_varlen(q, k, v, (*lengths, max_q, max_k, left, right, scale, softcap),
                                      (*new, leftpad, index, cos, sin, interleaved, chunk, sinks, slopes, tree,
                                       split_size), True)
    if here[0] is not None:
        return here
    cu_seqlens_q, cu_seqlens_k, seqused_k, page_table = lengths
    k_new, v_new, cu_seqlens_k_new = new
    if k_new is None:
        k, v = rows_contiguous(k), rows_contiguous(v)
    else:
        torch.autograd.graph.increment_version((k, v))
    return tandem.forward_varlen(rows_contiguous(q), k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                                 seqused_k=seqused_k, page_table=page_table, max_seqlen_q=max_q, max_seqlen_k=max_k,
                                 k_new=None if k_new is None else rows_contiguous(k_new),
                                 v_new=None if v_new is None else rows_contiguous(v_new),
                                 cu_seqlens_k_new=cu_seqlens_k_new, rotary=None if cos is None else (cos, sin),
                                 rotary_interleaved=interleaved, leftpad_k=leftpad, batch_index=index,
                                 window=_window(left, right), chunk=chunk, scale=scale or None, softcap=softcap,
                                 return_lse=True, sinks=sinks, alibi_slopes=slopes, tree=tree, split_size=split_size)


def _forward_append(q, k, v, *rest):
    return _forward_cache(q, k, v, *rest[3:], new=rest[:3])


def _step(q, k_cache, v_cache, lengths, *options, new=(None, None)):
    check_new(*new)
    page_table, batch_index, cos, sin, interleaved, left, right, scale, softcap, split_size, *rest = options
    sinks, k_descale, v_descale, chunk, slopes, tree, hadamard, qv, *prefixes = (
        *rest, *(None, None, None, 0, *6 * (None,))[len(rest):])
    shares = any(x is not None for x in prefixes)
    here = (None, None) if shares else _native.run_decode(q, k_cache, v_cache, (lengths, page_table, left, right, scale, softcap),
                              (*new, batch_index, cos, sin, interleaved, split_size, sinks, k_descale, v_descale, chunk,
                               slopes, tree, hadamard is not None, hadamard or 0, qv), True)
    if here[0] is not None:
        return here
    tensors = {"q": rows_contiguous(q), "k_cache": k_cache, "v_cache": v_cache}
    if new[0] is not None:
        torch.autograd.graph.increment_version(_native.written_by_a_step(k_cache, v_cache, k_descale, v_descale))
        tensors |= zip(("k_new", "v_new"), map(rows_contiguous, new))
    if qv is not None:
        tensors["qv"] = rows_contiguous(qv)
    numbers = {"lengths": lengths, "page_table": page_table, "batch_index": batch_index,
               "cu_prefix_groups": prefixes[0], "prefix_lengths": prefixes[1]}
    return _call.decode(tensors, {name: x for name, x in numbers.items() if x is not None},
                        None if cos is None else (cos, sin, interleaved), (sinks, k_descale, v_descale, slopes, tree),
                        ((left, right), scale, softcap, split_size, chunk, hadamard), _scratch.of(q.device))


def _decode_append(q, k_cache, v_cache, k_new, v_new, *rest):
    return _step(q, k_cache, v_cache, *rest, new=(k_new, v_new))


def _quantize(x, by_column, block, hadamard, *finer, scale=None, k_shift=None):
    # Those at the end that have their default do not come.
    defaults = (False, 1, None, None, False, None, 0.0, None, False)
    integers, terms, cos, sin, interleaved, first_positions, amplitude, shift, best = (*finer, *defaults[len(finer):])
    return tandem.quantize(rows_contiguous(x), scale=scale, by_column=by_column, block=block, hadamard=hadamard,
                           dtype="int8" if integers else "float8_e4m3fn", terms=terms,
                           rotary=None if cos is None else (cos, sin), rotary_interleaved=interleaved,
                           first_positions=first_positions, amplitude=amplitude, shift=shift, k_shift=k_shift,
                           best_scale=best)


def _quantize_by(x, scale, *options):
    return _quantize(x, *options, scale=scale)[0]


def _quantize_queries(x, scale, k_shift, *options):
    out, found, dots = _quantize(x, *options, scale=scale, k_shift=k_shift)
    return out, found if scale is None else found.clone(), dots


def _forward_eight_bit(q, k, v, *rest):
    q_descale, k_descale, v_descale, block, by_column, left, right, scale, softcap, dtype, *finer = rest
    amplitude, v_shift, q_dot_k_shift = (*finer, *(0.0, None, None)[len(finer):])
    return tandem.forward(rows_contiguous(q), rows_contiguous(k), rows_contiguous(v), q_descale=q_descale,
                          k_descale=k_descale, v_descale=v_descale, descale_block=block, values_by_column=by_column,
                          window=_window(left, right), scale=scale or None, softcap=softcap,
                          out=torch.empty(q.shape, dtype=dtype, device=q.device), return_lse=True,
                          qk_amplitude=amplitude, v_shift=v_shift, q_dot_k_shift=q_dot_k_shift)


def _merge(o_parts, lse_parts, dtype):
    return tandem.merge(rows_contiguous(o_parts), lse_parts, dtype=dtype)


class _Scratch:
    """Scratch memory of decoding steps, zeroed once and kept for each stream: steps of one run one after another."""

    def __init__(self):
        self._kept = {}

    def of(self, device):
        """What makes it for a step. In a CUDA graph, which keeps its memory to itself, every step has its own."""
        if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return torch.zeros
        return functools.partial(self._keep, (device, _call.raw_stream(device.index)))

    def _keep(self, stream, size, **options):
        memory = self._kept.get(stream)
        if memory is None or len(memory) < size:
            memory = self._kept[stream] = torch.zeros(max(size, 1 << 24), **options)
            if _native.lend is not None:
                address = -(-memory.data_ptr() // 256) * 256
                _native.lend(stream[0].index, stream[1], address, memory.data_ptr() + len(memory) - address)
        return memory


_scratch = _Scratch()

for device in ("CPU", "CUDA"):
    LIBRARY.impl("forward", _forward, device)
    LIBRARY.impl("forward_varlen", _forward_varlen, device)
    LIBRARY.impl("forward_cache", _forward_cache, device)
    LIBRARY.impl("forward_append", _forward_append, device)
    LIBRARY.impl("backward", _backward, device)
    LIBRARY.impl("backward_with_sinks", _backward, device)
    LIBRARY.impl("backward_varlen", _backward_varlen, device)
    LIBRARY.impl("backward_varlen_with_sinks", _backward_varlen, device)
    LIBRARY.impl("decode", _step, device)
    LIBRARY.impl("decode_append", _decode_append, device)
    LIBRARY.impl("quantize", _quantize, device)
    LIBRARY.impl("quantize_by", _quantize_by, device)
    LIBRARY.impl("quantize_queries", _quantize_queries, device)
    LIBRARY.impl("forward_eight_bit", _forward_eight_bit, device)
    LIBRARY.impl("merge", _merge, device)


# ---- What they return, without doing it


@torch.library.register_fake("tandem::forward", lib=LIBRARY)
def _(q, k, v, *options, sinks=None):
    return _native.empty_out(rows_contiguous(q), v), _call.empty_lse(q)


def _fake_varlen(q, k, v, *rest, **extras):
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(q.shape[:-1], dtype=torch.float32)


for name in ("forward_varlen", "forward_cache", "forward_append"):
    torch.library.register_fake(f"tandem::{name}", _fake_varlen, lib=LIBRARY)


def _fake_backward(dout, dlse, *rest):
    return tuple(torch.empty_like(rows_contiguous(x)) for x in rest[:3])


def _fake_backward_with_sinks(dout, dlse, *rest):
    return *_fake_backward(dout, dlse, *rest), torch.empty_like(rest[-1])


for name in ("backward", "backward_varlen"):
    torch.library.register_fake(f"tandem::{name}", _fake_backward, lib=LIBRARY)
    torch.library.register_fake(f"tandem::{name}_with_sinks", _fake_backward_with_sinks, lib=LIBRARY)


def _fake_step(q, k_cache, v_cache, *rest, **extras):
    return q.new_empty((*q.shape[:-1], v_cache.shape[-1])), q.new_empty(q.shape[:3], dtype=torch.float32)


torch.library.register_fake("tandem::decode", _fake_step, lib=LIBRARY)
torch.library.register_fake("tandem::decode_append", _fake_step, lib=LIBRARY)


def _fake_eight_bits(x, by_column, _block, _hadamard, integers=False, terms=1, *_rotary):
    b, s, h, d = x.shape
    shape = (b, (2 if terms == 2 else 1) * d, h, (s + 15) // 16 * 16) if by_column else x.shape
    return x.new_empty(shape, dtype=torch.int8 if integers else torch.float8_e4m3fn)


@torch.library.register_fake("tandem::quantize", lib=LIBRARY)
def _fake_quantize(x, by_column, block, *options):
    b, s, h, _ = x.shape
    blocks = (s + block - 1) // block if block else 1
    return _fake_eight_bits(x, by_column, block, *options), x.new_empty((b, blocks, h), dtype=torch.float32)


@torch.library.register_fake("tandem::quantize_queries", lib=LIBRARY)
def _fake_quantize_queries(x, scale, _k_shift, *options):
    out, found = _fake_quantize(x, *options)
    return out, found if scale is None else torch.empty_like(scale), x.new_empty(x.shape[:3], dtype=torch.float32)


@torch.library.register_fake("tandem::quantize_by", lib=LIBRARY)
def _(x, scale, *options):
    return _fake_eight_bits(x, *options)


@torch.library.register_fake("tandem::forward_eight_bit", lib=LIBRARY)
def _(q, *rest):
    dtype = rest[11]
    return q.new_empty(q.shape, dtype=dtype), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.register_fake("tandem::merge", lib=LIBRARY)
def _(o_parts, lse_parts, dtype):
    shape = o_parts.shape[1:]
    return o_parts.new_empty(shape, dtype=dtype), o_parts.new_empty(shape[:3], dtype=torch.float32)


# ---- Gradients


def _gradients(ctx, name, *arguments):
    """dq, dk, dv and dsinks, or None for the last where nobody wants them, of an operator."""
    sinks = ctx.saved_tensors[-1]
    if sinks is None or not ctx.needs_input_grad[ctx.place_of_sinks]:
        return *getattr(torch.ops.tandem, name)(*arguments), None
    return getattr(torch.ops.tandem, f"{name}_with_sinks")(*arguments, sinks)


def _keep_for_backward(ctx, inputs, output):
    q, k, v, *ctx.options, sinks = inputs
    ctx.place_of_sinks = len(inputs) - 1
    ctx.save_for_backward(q, k, v, *output, sinks)
    ctx.set_materialize_grads(False)


def _differentiate(ctx, dout, dlse):
    q, k, v, out, lse, _ = ctx.saved_tensors
    if dout is None:
        dout = torch.zeros_like(out)
    dq, dk, dv, dsinks = _gradients(ctx, "backward", dout, dlse, q, k, v, out, lse, *ctx.options)
    return dq, dk, dv, *([None] * 5), dsinks


def _keep_varlen(ctx, inputs, output):
    q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, page_table, max_q, max_k, *ctx.options, sinks = inputs
    ctx.is_paged, ctx.bounds = page_table is not None, (max_q, max_k)
    ctx.place_of_sinks = len(inputs) - 1
    ctx.save_for_backward(q, k, v, *output, cu_seqlens_q, cu_seqlens_k, seqused_k, sinks)
    ctx.set_materialize_grads(False)


def _differentiate_varlen(ctx, dout, dlse):
    if ctx.is_paged:
        raise NotImplementedError("tandem::forward_varlen has no derivative for paged keys")
    q, k, v, out, lse, *lengths, _ = ctx.saved_tensors
    dout = torch.zeros_like(out) if dout is None else dout
    dq, dk, dv, dsinks = _gradients(ctx, "backward_varlen", dout, dlse, q, k, v, out, lse, *lengths, *ctx.bounds,
                                    *ctx.options)
    return dq, dk, dv, *([None] * 11), dsinks


def _no_derivative(name, why):
    def backward(ctx, *gradients):
        raise NotImplementedError(f"tandem::{name} has no derivative: {why}")
    torch.library.register_autograd(f"tandem::{name}", backward, lib=LIBRARY)


torch.library.register_autograd("tandem::forward", _differentiate, setup_context=_keep_for_backward, lib=LIBRARY)
torch.library.register_autograd("tandem::forward_varlen", _differentiate_varlen, setup_context=_keep_varlen,
                                lib=LIBRARY)
for name in ("backward", "backward_with_sinks", "backward_varlen", "backward_varlen_with_sinks"):
    _no_derivative(name, "Tandem has no double backward")
_no_derivative("decode", "decoding is for inference; use tandem.torch.attention")
_no_derivative("forward_cache", "caches are for inference, and chunk, alibi_slopes, tree and split_size have none; use "
               "tandem.torch.attention or attention_varlen without")
for name in ("quantize", "quantize_by", "quantize_queries", "forward_eight_bit"):
    _no_derivative(name, "8 bits are for inference; use tandem.torch.attention")
_no_derivative("merge", "only attention itself has a backward pass")


class Attention(torch.autograd.Function):
    """The operator `forward` with its gradients, for eager calls: without the dispatcher on either way."""

    @staticmethod
    def forward(ctx, *inputs):
        out, lse = _forward(*inputs)
        _keep_for_backward(ctx, inputs, (out, lse))
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        if torch.is_grad_enabled():  # somebody wants the gradients' graph: the operator says that there is none
            return _differentiate(ctx, dout, dlse)
        q, k, v, out, lse, sinks = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout
        wanted = [] if sinks is None or not ctx.needs_input_grad[-1] else [sinks]
        dq, dk, dv, *dsinks = _backward(dout, dlse, q, k, v, out, lse, *ctx.options, *wanted)
        return dq, dk, dv, *([None] * 5), *(dsinks or [None])


# ---- Autocast: q, k and v in the dtype that it asks for


def _autocast(name, device, key):
    def cast(q, k, v, *options):
        dtype = torch.get_autocast_dtype(device)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return getattr(torch.ops.tandem, name)(q.to(dtype), k.to(dtype), v.to(dtype), *options)
    return cast


for name in ("forward", "forward_varlen", "forward_cache"):
    LIBRARY.impl(name, _autocast(name, "cuda", torch._C.DispatchKey.AutocastCUDA), "AutocastCUDA")
    LIBRARY.impl(name, _autocast(name, "cpu", torch._C.DispatchKey.AutocastCPU), "AutocastCPU")
