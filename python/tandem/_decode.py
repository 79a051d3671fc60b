# SPDX-License-Identifier: Apache-2.0
"""Decoding steps against a cache of keys and values."""

import ctypes

from ._arrays import arrays_of, check_kinds, check_ranks, describe, table
from ._calls import check_options, options_of, plan_address, run_with_memory
from ._eight_bit import as_cache_scales
from ._library import FLOATS, Cache, DecodeArgs, SharedPrefixes, invalid, library
from ._options import (as_backend, as_int64, as_mask, as_rotary, as_scale, as_sinks, as_slopes, as_softcap, as_study, as_tables,
                       as_tree, check_eight_bit, check_new, check_together, pointer_to, sized)

_OF_CACHES = "entries or pages, tokens, h, d"


class DecodeWorkspace:
    """Scratch memory that calls of decode share, so that they neither allocate nor clear any: for steps one after
    another, of any shapes, on one device and stream. It grows as needed, and is made anew for arrays of another kind or
    place; run the largest step before capturing a CUDA graph, because growing frees the memory that the graph would go
    on using."""

    def __init__(self):
        self._memory = None

    def _of(self, arrays, size):
        """At least size bytes, which were zero before their first use."""
        if self._memory is None or not arrays.is_beside(self._memory) or len(self._memory) < size:
            self._memory = arrays.workspace(size)
        return self._memory


def _cache(arrays, tensors):
    """The C interface's cache; what it indexes with is int32."""
    b = tensors["q"].shape[0]
    cache = sized(Cache, **{field: describe(arrays, name, tensors[name], _OF_CACHES)
                            for field, name in (("k", "k_cache"), ("v", "v_cache"))})
    for field, name in (("lengths", "lengths"), ("batch_index", "batch_index")):
        if name in tensors:
            address, shape, _ = table(arrays, name, tensors[name], ("int32",), ("b",))
            if shape != (b,):
                raise invalid(f"{name} has {shape[0]} elements; q has a batch of {b}")
            setattr(cache, field, address)
    if "page_table" in tensors:
        address, (rows, slots), strides = table(arrays, "page_table", tensors["page_table"], ("int32",),
                                                ("rows", "slots"))
        if rows < b and "batch_index" not in tensors:
            raise invalid(f"page_table has {rows} rows; q has a batch of {b}")
        bounds = arrays.bounds(tensors["batch_index"]) if "batch_index" in tensors else None
        if bounds and not 0 <= bounds[0] <= bounds[1] < rows:
            raise invalid(f"batch_index is from {bounds[0]} to {bounds[1]}; page_table "
                          f"has rows 0 to {rows - 1}")
        cache.page_table, cache.page_table_stride, cache.pages_per_sequence = address, strides[0], slots
    return cache


def _prefixes(arrays, tensors):
    """The C interface's groups of sequences that share prefixes; None where the step names none."""
    given = [name in tensors for name in ("cu_prefix_groups", "prefix_lengths")]
    if not any(given):
        return None
    if not all(given):
        raise invalid("cu_prefix_groups and prefix_lengths belong together; pass both or none")
    lengths, (groups,), _ = table(arrays, "prefix_lengths", tensors["prefix_lengths"], ("int32",), ("groups",))
    sequences, (boundaries,), _ = table(arrays, "cu_prefix_groups", tensors["cu_prefix_groups"], ("int32",), ("groups + 1",))
    if boundaries != groups + 1:
        raise invalid(f"cu_prefix_groups has {boundaries} numbers and prefix_lengths {groups}; "
                      "the first has one more than there are groups")
    return sized(SharedPrefixes, groups=groups, cu_sequences=sequences, lengths=lengths)


class _Step:
    """One step as the C interface takes it, over arrays that it keeps alive."""

    def __init__(self, q, k_cache, v_cache, lengths, *, k_new=None, v_new=None, page_table=None, batch_index=None,
                 rotary=None, rotary_interleaved=False, causal=False, window=None, chunk=0, scale=None, softcap=0.0,
                 return_lse=False, out=None, split_size=0, plan=None, study=None, backend="auto", sinks=None,
                 k_descale=None, v_descale=None, alibi_slopes=None, tree=None, hadamard=None,
                 qv=None, cu_prefix_groups=None, prefix_lengths=None):
        args = sized(DecodeArgs, backend=as_backend(backend), mask=pointer_to(as_mask(causal, window, chunk)),
                     scale=as_scale(scale), softcap=as_softcap(softcap),
                     split_size=as_int64("split_size", split_size), study=pointer_to(as_study(study)))
        self.arrays = arrays = arrays_of(q)
        check_kinds(arrays, {"q": q, "k_cache": k_cache, "v_cache": v_cache})
        check_ranks({"q": q})
        check_ranks({"k_cache": k_cache, "v_cache": v_cache}, dimensions=_OF_CACHES)
        check_new(k_new, v_new)
        check_eight_bit("k_cache", arrays.dtype_name(k_cache),
                        {"k_descale": k_descale, "v_descale": v_descale, "hadamard": hadamard}, "caches")
        self.out = arrays.empty((*q.shape[:3], v_cache.shape[-1])) if out is None else out
        self.lse = arrays.empty_float((*q.shape[:3], 1)) if return_lse else None
        given = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "lengths": lengths, "k_new": k_new, "v_new": v_new,
                 "page_table": page_table, "batch_index": batch_index, "out": self.out, "plan": plan, "sinks": sinks,
                 "k_descale": k_descale, "v_descale": v_descale, "alibi_slopes": alibi_slopes, "tree": tree, "qv": qv,
                 "cu_prefix_groups": cu_prefix_groups, "prefix_lengths": prefix_lengths}
        self.tensors = tensors = {name: x for name, x in given.items() if x is not None}
        if rotary is not None:
            tensors["rotary[0]"], tensors["rotary[1]"] = as_tables(rotary)
        descales = {name: tensors[name] for name in ("k_descale", "v_descale") if name in tensors}
        scales = as_cache_scales(arrays, descales, hadamard)
        appended = ["k_cache", "v_cache"] + list(descales) * bool(scales and scales.per_token)
        check_together(arrays, tensors, written=["out"] + appended * ("k_new" in tensors))
        args.scales = pointer_to(scales)
        args.q, args.o = (describe(arrays, name, x, dtypes=FLOATS) for name, x in (("q", q), ("out", self.out)))
        args.cache = ctypes.pointer(_cache(arrays, tensors))
        for name in ("k_new", "v_new", "qv"):
            if name in tensors:
                setattr(args, name, describe(arrays, name, tensors[name], dtypes=FLOATS))
        args.rotary = pointer_to(as_rotary(arrays, rotary, rotary_interleaved))
        if return_lse:
            args.lse = describe(arrays, "lse", self.lse)
        heads = q.shape[2]
        args.sinks, args.tree = as_sinks(arrays, sinks, heads), as_tree(arrays, tree, q.shape[:2])
        for name, value in as_slopes(arrays, alibi_slopes, q.shape[0], heads).items():
            setattr(args, name, value)
        args.prefixes = pointer_to(_prefixes(arrays, tensors))
        self.args = args
        if plan is not None:
            args.plan = plan_address(arrays, plan, library().tandem_decode_plan_size, args, "decode_plan")

    def call(self, query, run, memory):
        """Runs `run` with as much memory as `query` asks for, from memory(size)."""
        return run_with_memory(self.arrays, self.args, query, run, memory)


_OPTIONS = options_of(_Step)


def _step_of(function, arrays, options, besides=()):
    """The step of a call of `function`, whose options are still to be looked at. besides: other arguments that it has."""
    check_options(function, options, [*_OPTIONS, *besides])
    return _Step(*arrays, **options)


def decode(q, k_cache, v_cache, lengths, *, workspace=None, **options):
    """One decoding step: softmax(scale * q k^T + mask) v over each sequence's cache, which the step may append to.

    All NumPy arrays, or all PyTorch tensors of one device, where the step is enqueued on the current stream, and a CUDA
    graph that captures it reads lengths and page table anew.

    q: b, sq, q_heads, d with sq 1 to 8.
    k_cache, v_cache: entries, capacity, kv_heads, d, or with page_table pages, page_size, kv_heads, d; q_heads a multiple
        of kv_heads. Values may have fewer columns than keys, and then be views of their first ones (k_cache[..., :512], and
        v_new of k_new), as multi-head latent attention has them; d up to 576 then, on Hopper only so.
    lengths: int32, b: the tokens in the cache before the step. What lies beyond is never read.
    k_new, v_new: b, s_new, kv_heads, d: written into the caches in place, at positions lengths ...; the last query stands at
        the last token after that.
    page_table: int32, b, slots: slot i names the page of tokens i * page_size ... On Hopper page_size is a power of two.
    batch_index: int32, b: which entry of the caches, or row of page_table, is each sequence's.
    rotary: (cos, sin), each positions x dim / 2, contiguous, float32 or q's dtype: turns q and k_new by their positions.
    rotary_interleaved: pairs are columns 2i and 2i + 1, not i and i + dim / 2.
    causal, window, scale, softcap, return_lse, out, backend: as in forward.
    chunk, tree (b, sq): as in forward_varlen.
    sinks, alibi_slopes: as in forward.
    split_size: a multiple of 64 keys, for results that are the same to the bit in any batch; 0: for speed.
    plan: what decode_plan returned for the same shapes, options and lengths.
    study: as in forward, a dict of kernel ("plain", "shared_p" or "register_p"), block_m and block_n.
    k_descale, v_descale: of caches of float8_e4m3fn or int8, with q, k_new and v_new of 16 bits: what elements are multiplied
        by, float32: b, kv_heads, each also 1, or one for each token and head: entries or pages, tokens, kv_heads, as the
        caches lie. Appending rounds to 8 bits, by the descales given or, for tokens of their own, by ones that it finds and
        writes.
    hadamard: of such caches: the seed of the Hadamard matrix (see quantize) that keys in the cache have been multiplied by,
        as q and k_new are by the step; d a power of two.
    qv: b, sq, q_heads, dv: a second part of the queries, which meets the values: scores are scale * (q k^T + qv v^T), scale
        by default 1 / sqrt(d + dv); on Hopper with d = 64 and dv = 512.
    cu_prefix_groups, prefix_lengths: int32, groups + 1 and groups: sequences cu_prefix_groups[g] ...
        cu_prefix_groups[g + 1] - 1 share their first prefix_lengths[g] tokens, as their pages have them; on Hopper these are
        read once for several sequences. Results are those without.
    workspace: a DecodeWorkspace (default: fresh memory).

    Returns out; with return_lse a pair of out and the natural log-sum-exp, float32, b, sq, q_heads. A query that sees
    no key has output 0 and log-sum-exp -inf. Raises TandemError with the library's message.
    """
    step = _step_of("decode", (q, k_cache, v_cache, lengths), options, ["workspace"])
    lib = library()
    workspace = DecodeWorkspace() if workspace is None else workspace
    step.call(lib.tandem_decode_workspace, lib.tandem_decode, lambda size: workspace._of(step.arrays, size))
    return step.out if step.lse is None else (step.out, step.lse[..., 0])


def decode_plan(q, k_cache, v_cache, lengths, **options):
    """Balances a ragged batch once for all layers: what decode takes as `plan` for the same shapes, options and
    lengths. None where the backend needs none."""
    step = _step_of("decode_plan", (q, k_cache, v_cache, lengths), options)
    lib = library()
    return step.call(lib.tandem_decode_plan_size, lib.tandem_decode_plan, step.arrays.workspace)
