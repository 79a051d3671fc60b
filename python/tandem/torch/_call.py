# SPDX-License-Identifier: Apache-2.0
"""Calls of libtandem over PyTorch tensors that keep the caller's thread for a few microseconds.

Most of a call's arguments are those of the same layer's call before: shapes, strides, options. They stand packed in a
`_Prepared`, found by these, so that a call writes its addresses and goes. Whoever uses one takes it out of the table
meanwhile, so that threads need no lock.
"""

import ctypes

import torch

from .._arrays import arrays_of, check_ranks, torch_name
from .._library import (BACKENDS, DTYPES, FLOATS, MASK_WINDOW, UNLIMITED, BackwardArgs, Cache, CacheScales, DecodeArgs,
                        ForwardArgs, Mask, Rotary, SharedPrefixes, check, invalid, library)
from .._options import as_int64, as_slopes, as_tree
from .._pack import Packer
from ._native import empty_lse, empty_out

CODES = {getattr(torch, name): code for name, code in DTYPES.items()}
_FLOAT_CODES = {getattr(torch, name): DTYPES[name] for name in FLOATS}
ABSENT = (0, 0, *8 * (0,))  # the fields of a tensor that there is none of
MOST_PREPARED = 4096  # of more different calls, few are repeated

_prepared = {}


def _stream_by_its_object(index):
    return torch.cuda.current_stream(index).cuda_stream


# The address of a device's current stream. What Triton asks PyTorch for takes a tenth of the time of a stream object.
raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _stream_by_its_object)


def _aligned(size):
    return -(-size // 8) * 8


class _Prepared:
    """The arguments of one kind of call, packed, and behind them the structs that they point to: {field: (packer,
    values)}."""

    def __init__(self, function, packer, fields, groups):
        behind = sum(_aligned(group.size) for group, _ in groups.values())
        self.buffer = ctypes.create_string_buffer(packer.size + behind)
        self.address = ctypes.addressof(self.buffer)
        self.words = memoryview(self.buffer).cast("B").cast("Q")
        packer.into(self.buffer, 0, *fields)
        at = packer.size
        self.groups = {}  # where each begins, in words
        for field, (group, values) in groups.items():
            group.into(self.buffer, at, *values)
            self.words[field.offset // 8] = self.address + at
            self.groups[field] = at // 8
            at += _aligned(group.size)
        self.call, query = _functions(function, backend=fields[0])
        size = ctypes.c_size_t()
        check(query(self.address, ctypes.byref(size)))
        self.workspace_bytes = size.value

    def run(self, device, scratch=torch.empty):
        """Enqueues on the current stream of `device`; on the CPU returns when the outputs are written. scratch: what
        makes the workspace, called as torch.empty."""
        if device.type != "cuda":
            self._run(device, None, scratch)
        elif device.index == torch.cuda.current_device():
            self._run(device, raw_stream(device.index), scratch)
        else:
            with torch.cuda.device(device):
                self._run(device, raw_stream(device.index), scratch)

    def _run(self, device, stream, scratch):
        size, address = self.workspace_bytes, None
        if size:
            memory = scratch(size + 255, dtype=torch.uint8, device=device)
            address = -(-memory.data_ptr() // 256) * 256
        check(self.call(self.address, address, size, stream))


def _functions(name, backend):
    """tandem_`name` and tandem_`name`_workspace, which take addresses. Where the first only enqueues it keeps the
    interpreter's lock, as libtandem_python does: steps of one stream share scratch memory, also those of two threads, so
    the kernels of one must not come between those of the other."""
    lib = library()
    make = ctypes.CFUNCTYPE if backend == BACKENDS["cpu"] else ctypes.PYFUNCTYPE
    run = make(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    query = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    return run((f"tandem_{name}", lib)), query((f"tandem_{name}_workspace", lib))


_MASK = Packer(Mask, "chunk")


def _mask(field, mask, chunk=0):
    """The group of a mask; none where every query sees every key."""
    return {} if mask == (UNLIMITED, UNLIMITED) and not chunk else {field: (_MASK, (MASK_WINDOW, *mask, chunk))}


def _check(tensors):
    """All of {name: tensor} have four dimensions and a dtype that Tandem knows, of 8 bits only caches, and are on one
    device."""
    model_name, model = next(iter(tensors.items()))
    check_ranks(tensors)
    for name, x in tensors.items():
        allowed = CODES if name in ("k_cache", "v_cache") else _FLOAT_CODES
        if x.dtype not in allowed:
            raise invalid(f"{name} is {torch_name(x.dtype)}; allowed are {', '.join(map(torch_name, allowed))}")
        if x.device != model.device:
            raise invalid(f"{model_name} is on {model.device}, {name} on {x.device}")


def _kind(x):
    """What of a tensor, or of None, decides whether prepared arguments serve: all but its memory."""
    return None if x is None else (x.dtype, x.device, x.shape, x.stride())


def _fields(x):
    """The C interface's tensor, its address still open."""
    return (0, CODES[x.dtype], *x.shape, *x.stride())


def _rows(name, x, device):
    """The same of b, s, h numbers; whether there are any counts for the workspace."""
    if x is None:
        return ABSENT
    check_ranks({name: x}, (3,), "b, s, h")
    if x.dtype != torch.float32 or x.device != device:
        raise invalid(f"{name} is {torch_name(x.dtype)} on {x.device}; it has to be float32 on {device}")
    return (x.data_ptr(), CODES[x.dtype], *x.shape, 1, *x.stride(), 1)


def _check_sinks(q, sinks):
    """sinks is a float32 number for each head of q, beside it."""
    if sinks.dtype != torch.float32 or sinks.device != q.device:
        raise invalid(f"sinks is {torch_name(sinks.dtype)} on {sinks.device}; it has to be float32 on "
                      f"{q.device}")
    if sinks.shape != q.shape[2:3] or not sinks.is_contiguous():
        raise invalid(f"sinks has shape {tuple(sinks.shape)}, strides {sinks.stride()}; {q.shape[2]} contiguous numbers "
                      "are needed, one a head of q")


def _backend(device):
    return BACKENDS["hopper" if device.type == "cuda" else "cpu"]


def _keep(key, prepared):
    if len(_prepared) >= MOST_PREPARED:
        _prepared.clear()
    _prepared[key] = prepared


_FORWARD = Packer(ForwardArgs, "sinks")
_F = {name: getattr(ForwardArgs, name).offset // 8 for name in ("q", "k", "v", "o", "lse", "sinks")}
_F_Q, _F_K, _F_V, _F_O, _F_LSE, _F_SINKS = _F.values()


def _prepare_forward(tensors, lse, sinks, options):
    mask, scale, softcap = options
    _check(tensors)
    described = [field for x in tensors.values() for field in _fields(x)]
    device, address = tensors["q"].device, 0 if sinks is None else sinks.data_ptr()
    return _Prepared("forward", _FORWARD,
                     (_backend(device), *described, *_rows("lse", lse, device), 0, scale, softcap, 0, 0, 0, address),
                     _mask(ForwardArgs.mask, mask))


def forward(q, k, v, mask, scale, softcap, *, with_lse=True, sinks=None):
    """out and lse, None unless it is wanted. mask: keys to the left and to the right, -1 for no limit. scale: 0 for the
    default. sinks: float32, a number for each head. The last dimensions are contiguous."""
    key = (q.dtype, q.device, q.shape, q.stride(), k.dtype, k.device, k.shape, k.stride(), v.dtype, v.device, v.shape,
           v.stride(), mask, scale, softcap, with_lse, sinks is None)
    if sinks is not None:
        _check_sinks(q, sinks)
    prepared = _prepared.pop(key, None)
    out = empty_out(q, v)
    lse = empty_lse(q) if with_lse and q.dim() == 4 else None
    if prepared is None:
        prepared = _prepare_forward({"q": q, "k": k, "v": v, "out": out}, lse, sinks, (mask, scale, softcap))
    words = prepared.words
    words[_F_Q], words[_F_K], words[_F_V], words[_F_O] = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
    if lse is not None:
        words[_F_LSE] = lse.data_ptr()
    if sinks is not None:
        words[_F_SINKS] = sinks.data_ptr()
    prepared.run(q.device)
    _keep(key, prepared)
    return out, lse


_BACKWARD = Packer(BackwardArgs, "dsinks")
_B_SINKS, _B_DSINKS = BackwardArgs.sinks.offset // 8, BackwardArgs.dsinks.offset // 8
_B = ("q", "k", "v", "o", "lse", "dout", "dlse", "dq", "dk", "dv")
_B_WORDS = [getattr(BackwardArgs, name).offset // 8 for name in _B]


def _prepare_backward(tensors, rows, sinks, options):
    """rows: lse and dlse. sinks: the addresses of them and of their gradients. options: mask, scale, softcap and whether
    to be deterministic."""
    mask, scale, softcap, deterministic = options
    _check(tensors)
    device = tensors["q"].device
    described = {name: _fields(x) for name, x in tensors.items()}
    described |= {name: _rows(name, x, device) for name, x in rows.items()}
    fields = [field for name in _B for field in described[name]]
    return _Prepared("backward", _BACKWARD,
                     (_backend(device), int(deterministic), *fields, 0, scale, softcap, *sinks),
                     _mask(BackwardArgs.mask, mask))


def backward(tensors, lse, dlse, options, sinks=None):
    """dq, dk and dv, and with sinks dsinks. tensors: q, k, v, o and dout by their names, whose last dimensions are
    contiguous; dlse: None where lse has no gradient. options: mask, scale and softcap as in forward, and whether the bits
    have to be the same in every run."""
    key = *map(_kind, tensors.values()), _kind(lse), _kind(dlse), options, sinks is None
    prepared = _prepared.pop(key, None)
    gradients = [torch.empty_like(tensors[name]) for name in ("q", "k", "v")]
    of_sinks, addresses = [], (0, 0)
    if sinks is not None:
        _check_sinks(tensors["q"], sinks)
        of_sinks = [torch.empty_like(sinks)]
        addresses = sinks.data_ptr(), of_sinks[0].data_ptr()
    tensors = tensors | dict(zip(("dq", "dk", "dv"), gradients))
    rows = {"lse": lse, "dlse": dlse}
    if prepared is None:
        prepared = _prepare_backward(tensors, rows, addresses, options)
    prepared.words[_B_SINKS], prepared.words[_B_DSINKS] = addresses
    for name, word in zip(_B, _B_WORDS):
        x = rows[name] if name in rows else tensors[name]
        if x is not None:
            prepared.words[word] = x.data_ptr()
    prepared.run(tensors["q"].device)
    _keep(key, prepared)
    return gradients + of_sinks


_DECODE, _CACHE, _ROTARY = Packer(DecodeArgs, "prefixes"), Packer(Cache, "batch_index"), Packer(Rotary, "interleaved")
_SCALES, _PREFIXES = Packer(CacheScales, "hadamard"), Packer(SharedPrefixes, "lengths")
_D = {name: getattr(DecodeArgs, name).offset // 8 for name in ("q", "k_new", "v_new", "o", "lse", "sinks", "alibi_slopes", "tree", "qv")}
_D_CACHE = {name: getattr(Cache, name).offset // 8 for name in ("k", "v", "page_table", "lengths", "batch_index")}
_D_SCALES = {name: getattr(CacheScales, name).offset // 8 for name in ("k", "v")}
_D_PREFIXES = {"cu_prefix_groups": SharedPrefixes.cu_sequences.offset // 8, "prefix_lengths": SharedPrefixes.lengths.offset // 8}
_D_ROTARY = {name: getattr(Rotary, name).offset // 8 for name in ("cos", "sin")}


def _check_numbers(name, x, device, shape, or_more=False):
    """x is int32 of that shape, or of more in each dimension, on the device, its last dimension contiguous."""
    if x.dtype != torch.int32 or x.device != device:
        raise invalid(f"{name} is {torch_name(x.dtype)} on {x.device}; it has to be int32 on {device}")
    fits = x.dim() == len(shape) and all(own == wanted or (or_more and own > wanted) for own, wanted in zip(x.shape, shape))
    if not fits:
        raise invalid(f"{name} has shape {tuple(x.shape)}; {' x '.join(map(str, shape))} numbers are needed"
                      + " at least" * or_more)
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        raise invalid(f"{name} has strides {x.stride()}; the last one has to be 1")


def _check_rotary(q, cos, sin):
    if cos.shape != sin.shape or cos.dtype != sin.dtype or not (cos.is_contiguous() and sin.is_contiguous()):
        raise invalid(f"rotary is {tuple(cos.shape)} and {tuple(sin.shape)}, {cos.dtype} and {sin.dtype}; cosines and "
                      "sines have to be of one shape and dtype, and contiguous")
    if cos.dim() != 2 or cos.dtype not in CODES or cos.device != q.device or sin.device != q.device:
        raise invalid(f"rotary has {cos.dim()} dimensions, is {cos.dtype}, on {cos.device}; positions x dim / 2 of "
                      f"float32 or q's dtype on {q.device} are needed")


def _scale_fields(name, x, cache):
    """The C interface's tensor of a cache's scales: b, heads, or those of the cache's first three dimensions."""
    if x is None:
        return ABSENT
    if x.dim() not in (2, 3) or x.dtype != torch.float32 or x.device != cache.device:
        raise invalid(f"{name} has {x.dim()} dimensions, is {torch_name(x.dtype)} on {x.device}; 2 (b, "
                      f"heads) or 3 (as the cache: entries or pages, tokens, heads) of float32 on {cache.device} are needed")
    four = (lambda sizes: (*sizes, 1)) if x.dim() == 3 else (lambda sizes: (sizes[0], 1, sizes[1], 1))
    return (x.data_ptr(), CODES[x.dtype], *four(x.shape), *four(x.stride()))


def _scale_group(tensors, k_descale, v_descale, hadamard):
    """The scales of a cache, and its Hadamard matrix, as a group of fields; none where there are none."""
    given = [x for x in (k_descale, v_descale) if x is not None]
    if not given and hadamard is None:
        return {}
    if len({x.dim() for x in given}) > 1:
        raise invalid("k_descale and v_descale have different numbers of dimensions")
    fields = [field for name, x in (("k_descale", k_descale), ("v_descale", v_descale))
              for field in _scale_fields(name, x, tensors["k_cache"])]
    per_token, seed = any(x.dim() == 3 for x in given), 0 if hadamard is None else as_int64("hadamard", hadamard) % 2**64
    return {DecodeArgs.scales: (_SCALES, (*fields, int(per_token), seed, int(hadamard is not None)))}


def _prefix_group(numbers, device):
    """The groups of sequences that share prefixes, as a group of fields; none where there are none."""
    given = {name: numbers[name] for name in _D_PREFIXES if name in numbers}
    if not given:
        return {}
    if len(given) < 2:
        raise invalid("cu_prefix_groups and prefix_lengths belong together; pass both or none")
    for name, x in given.items():
        _check_numbers(name, x, device, (0,), or_more=True)
    boundaries, groups = map(len, given.values())
    if boundaries != groups + 1:
        raise invalid(f"cu_prefix_groups has {boundaries} numbers and prefix_lengths {groups}; the first has one more than "
                      "there are groups")
    return {DecodeArgs.prefixes: (_PREFIXES, (groups, *(x.data_ptr() for x in given.values())))}


def _biases(q, slopes, tree):
    """The fields of ALiBi's slopes and of a tree, behind those of scales."""
    for name, x in (("alibi_slopes", slopes), ("tree", tree)):
        if x is not None and x.device != q.device:
            raise invalid(f"{name} is on {x.device}; it has to be on {q.device}")
    arrays = arrays_of(q)
    fields = as_slopes(arrays, slopes, q.shape[0], q.shape[2])
    return fields.get("alibi_slopes", 0), fields.get("alibi_stride", 0), as_tree(arrays, tree, q.shape[:2]) or 0


def _prepare_decode(tensors, numbers, rotary, extras, options):
    mask, scale, softcap, split_size, chunk, hadamard = options
    _, *descales, slopes, tree = extras
    _check(tensors)
    q, batch = tensors["q"], tensors["q"].shape[0]
    least = {"lengths": (batch,), "page_table": (0 if "batch_index" in numbers else batch, 1), "batch_index": (batch,)}
    for name in least:
        if name in numbers:
            _check_numbers(name, numbers[name], q.device, least[name], or_more=name == "page_table")
    table = numbers.get("page_table")
    paging = (0, 0, 0) if table is None else (table.data_ptr(), table.stride(0), table.shape[1])
    index = numbers["batch_index"].data_ptr() if "batch_index" in numbers else 0
    # Whether values lie in the keys counts for the workspace.
    caches = [(tensors[name].data_ptr(), *_fields(tensors[name])[1:]) for name in ("k_cache", "v_cache")]
    groups = {DecodeArgs.cache: (_CACHE, (*caches[0], *caches[1], *paging, 0, index))}
    if rotary is not None:
        cos, sin, interleaved = rotary
        _check_rotary(q, cos, sin)
        sizes = cos.shape[0], 2 * cos.shape[1]
        tables = cos.data_ptr(), sin.data_ptr(), CODES[cos.dtype]
        groups[DecodeArgs.rotary] = (_ROTARY, (*tables, *sizes, int(interleaved)))
    new = [(tensors[name].data_ptr(), *_fields(tensors[name])[1:]) if name in tensors else ABSENT
           for name in ("k_new", "v_new", "qv")]
    fields = (_backend(q.device), *_fields(q), 0, *new[0], *new[1], 0, *_fields(tensors["out"]), *_fields(tensors["lse"]),
              0, scale, softcap, split_size, 0, 0, 0, 0, *_biases(q, slopes, tree), *new[2], 0)
    return _Prepared("decode", _DECODE, fields,
                     groups | _mask(DecodeArgs.mask, mask, chunk) | _scale_group(tensors, *descales, hadamard)
                     | _prefix_group(numbers, q.device))


def _check_rows(numbers):
    """On the host, rows of the page table that do not exist would be read beyond it."""
    index, rows = numbers["batch_index"], len(numbers["page_table"])
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < rows:
        raise invalid(f"batch_index is from {int(index.min())} to {int(index.max())}; page_table has rows 0 to "
                      f"{rows - 1}")


def decode(tensors, numbers, rotary, extras, options, scratch):
    """out, b, sq, q_heads, d, and its log-sum-exp, b, sq, q_heads.

    tensors: q, k_cache, v_cache, k_new and v_new where they are appended, and qv if there is one, by their names. numbers:
    lengths, and page_table, batch_index, cu_prefix_groups and prefix_lengths where there are any. rotary: cos, sin and whether pairs are neighbours, or None. extras: sinks,
    as in forward, k_descale, v_descale, alibi_slopes and tree, each or None. options: mask, scale, softcap as in forward,
    split_size, chunk, the seed of a Hadamard matrix or None. scratch: makes memory that was zero before its first use.
    """
    layout = tuple((name, *_kind(x)) for name, x in (tensors | numbers).items())
    turning = rotary and (*map(_kind, rotary[:2]), rotary[2])
    sinks, *descales, slopes, tree = extras
    scaling = tuple(map(_kind, extras[1:]))
    in_keys = [tensors[k].data_ptr() == tensors[v].data_ptr()
               for k, v in (("k_cache", "v_cache"), ("k_new", "v_new")) if v in tensors]
    key = layout, turning, sinks is None, scaling, options, *in_keys
    prepared = _prepared.pop(key, None)
    q = tensors["q"]
    check_ranks({"q": q, "v_cache": tensors["v_cache"]})
    out = q.new_empty((*q.shape[:-1], tensors["v_cache"].shape[-1]))
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if {"page_table", "batch_index"} <= numbers.keys() and q.device.type == "cpu":
        _check_rows(numbers)
    if prepared is None:
        prepared = _prepare_decode(tensors | {"out": out, "lse": lse[..., None]}, numbers, rotary, extras, options)
    words = prepared.words
    if sinks is not None:
        _check_sinks(q, sinks)
        words[_D["sinks"]] = sinks.data_ptr()
    for name, x in (("alibi_slopes", slopes), ("tree", tree)):
        if x is not None:
            words[_D[name]] = x.data_ptr()
    for name, x in (("q", q), ("o", out), ("lse", lse), *((n, tensors[n]) for n in ("k_new", "v_new", "qv") if n in tensors)):
        words[_D[name]] = x.data_ptr()
    cache = prepared.groups[DecodeArgs.cache]
    for name, x in (("k", tensors["k_cache"]), ("v", tensors["v_cache"]), *numbers.items()):
        if name in _D_CACHE:
            words[cache + _D_CACHE[name]] = x.data_ptr()
        else:
            words[prepared.groups[DecodeArgs.prefixes] + _D_PREFIXES[name]] = x.data_ptr()
    for name, x in zip("kv", descales):
        if x is not None:
            words[prepared.groups[DecodeArgs.scales] + _D_SCALES[name]] = x.data_ptr()
    if rotary is not None:
        turn = prepared.groups[DecodeArgs.rotary]
        words[turn + _D_ROTARY["cos"]], words[turn + _D_ROTARY["sin"]] = rotary[0].data_ptr(), rotary[1].data_ptr()
    prepared.run(q.device, scratch)
    _keep(key, prepared)
    return out, lse
