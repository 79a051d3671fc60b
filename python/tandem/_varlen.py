# SPDX-License-Identifier: Apache-2.0
"""Attention over sequences of different lengths."""

from ._arrays import arrays_of, check_kinds, check_ranks, describe, table
from ._block_list import arrays_of_list, as_block_list
from ._calls import check_options, options_of, plan_address, run_with_memory
from ._library import ForwardArgs, Varlen, invalid, library
from ._options import (as_backend, as_int64, as_mask, as_rotary, as_scale, as_sinks, as_slopes, as_softcap, as_tables, as_tree,
                       check_new, check_together, pointer_to, sized)


def packed(x):
    """A packed tensor as the C interface has it, with a batch dimension of 1."""
    return x[None] if x.ndim == 3 else x


def _lengths(arrays, name, x, count):
    """The address of `count` int32 numbers, or None."""
    if x is None:
        return None
    address, shape, _ = table(arrays, name, x, ("int32",), ("numbers",))
    if shape != (count,):
        raise invalid(f"{name} has {shape[0]} numbers; {count} are needed")
    return address


def _batch(cu_seqlens_q, cu_seqlens_k, seqused_k, q):
    for cu_seqlens in (cu_seqlens_q, cu_seqlens_k):
        if cu_seqlens is not None:
            return max(len(cu_seqlens) - 1, 0)
    return len(q) if seqused_k is None else len(seqused_k)


def as_varlen(arrays, q, lengths, bounds, **own):
    """The C interface's struct. lengths: cu_seqlens_q, cu_seqlens_k and seqused_k by their names; bounds: the same of
    max_seqlen_q and max_seqlen_k, and own of what a call has besides."""
    check_ranks({name: x for name, x in lengths.items() if x is not None}, (1,), "numbers")
    batch = _batch(**lengths, q=q)
    count = {"cu_seqlens_q": batch + 1, "cu_seqlens_k": batch + 1, "seqused_k": batch}
    return sized(Varlen, batch=batch, **{name: as_int64(name, x) for name, x in bounds.items()},
                 **{name: _lengths(arrays, name, x, count[name]) for name, x in lengths.items()}, **own)


def _set_pages(arrays, varlen, page_table):
    varlen.page_table, shape, strides = table(arrays, "page_table", page_table, ("int32",), ("batch", "pages_per_sequence"))
    if shape[0] != varlen.batch:
        raise invalid(f"page_table has {shape[0]} rows; {varlen.batch} are needed")
    varlen.pages_per_sequence, varlen.page_table_stride = shape[1], strides[0]


def _most_queries(varlen, q):
    """That a sequence may have."""
    rows = q.shape[-3]
    return varlen.max_seqlen_q if 0 < varlen.max_seqlen_q < rows else rows


class _Call:
    """One call as the C interface takes it, over arrays that it keeps alive."""

    def __init__(self, q, k, v, *, cu_seqlens_q=None, cu_seqlens_k=None, seqused_k=None, page_table=None, max_seqlen_q=0,
                 max_seqlen_k=0, k_new=None, v_new=None, cu_seqlens_k_new=None, rotary=None, rotary_interleaved=False,
                 leftpad_k=None, batch_index=None, causal=False, window=None, chunk=0, scale=None, softcap=0.0,
                 return_lse=False, out=None, backend="auto", sinks=None, alibi_slopes=None, tree=None, split_size=0,
                 block_list=None, plan=None):
        self.arrays = arrays = arrays_of(q)
        check_kinds(arrays, {"q": q, "k": k, "v": v})
        check_ranks({"q": q, "k": k, "v": v}, (3, 4), "rows, h, d or b, s, h, d")
        check_new(k_new, v_new, starts=cu_seqlens_k_new)
        self.out = arrays.empty((*q.shape[:-1], v.shape[-1])) if out is None else out
        tensors = {"q": q, "k": k, "v": v, "out": self.out}
        lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "seqused_k": seqused_k}
        places = {"page_table": page_table, "cu_seqlens_k_new": cu_seqlens_k_new, "leftpad_k": leftpad_k,
                  "batch_index": batch_index}
        new = {"k_new": k_new, "v_new": v_new}
        extras = {"sinks": sinks, "alibi_slopes": alibi_slopes, "tree": tree, "plan": plan} | arrays_of_list(block_list)
        angles = zip(("rotary[0]", "rotary[1]"), as_tables(rotary))
        given = {name: x for name, x in (lengths | places | new | dict(angles) | extras).items() if x is not None}
        check_together(arrays, tensors | given, written=["out"] + (["k", "v"] if k_new is not None else []))
        self.lse = arrays.empty_float((*q.shape[:-1], 1)) if return_lse else None

        varlen = as_varlen(arrays, q, lengths, {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k},
                           split_size=as_int64("split_size", split_size),
                           rotary=pointer_to(as_rotary(arrays, rotary, rotary_interleaved)))
        batch = varlen.batch
        for name, count in (("cu_seqlens_k_new", batch + 1), ("leftpad_k", batch), ("batch_index", batch)):
            setattr(varlen, name, _lengths(arrays, name, places[name], count))
        for name, x in new.items():
            if x is not None:
                setattr(varlen, name, describe(arrays, name, packed(x)))
        if page_table is not None:
            _set_pages(arrays, varlen, page_table)
        lists = as_block_list(arrays, block_list, (batch, _most_queries(varlen, q), q.shape[-2]))
        args = sized(ForwardArgs, backend=as_backend(backend), mask=pointer_to(as_mask(causal, window, chunk)),
                     scale=as_scale(scale), softcap=as_softcap(softcap), varlen=pointer_to(varlen),
                     sinks=as_sinks(arrays, sinks, q.shape[-2]), tree=as_tree(arrays, tree, q.shape[:-2]),
                     block_list=pointer_to(lists), **as_slopes(arrays, alibi_slopes, batch, q.shape[-2]))
        args.q, args.k, args.v, args.o = (describe(arrays, name, packed(x)) for name, x in tensors.items())
        if return_lse:
            args.lse = describe(arrays, "lse", packed(self.lse))
        self.args, self.kept = args, given  # arrays that args points to
        if plan is not None:
            args.plan = plan_address(arrays, plan, library().tandem_forward_plan_size, args, "forward_varlen_plan")

    def run(self, query, call):
        """Runs `call` with as much memory as `query` asks for, and returns this."""
        return run_with_memory(self.arrays, self.args, query, call, lambda size: self.arrays.workspace(size, zeroed=False))


_OPTIONS = options_of(_Call)


def _call_of(function, tensors, options):
    """The call of `function`, whose options are still to be looked at."""
    check_options(function, options, _OPTIONS)
    return _Call(*tensors, **options)


def forward_varlen(q, k, v, **options):
    """Attention of each sequence of a batch, whose lengths differ; in one call, that reads no length on the host.

    q: with cu_seqlens_q (int32, batch + 1, ascending) rows, q_heads, d, where sequence i has the rows
    cu_seqlens_q[i] ... cu_seqlens_q[i + 1] - 1; without, batch, sq, q_heads, d. k, v: with cu_seqlens_k packed in the
    same way; with page_table (int32, batch, pages_per_sequence) pools of pages, pages, page_size, kv_heads, d, on Hopper
    of a power of two of at least 16 tokens; with neither, batch, sk, kv_heads, d. seqused_k (int32, batch): how many
    of its keys a sequence uses; required with page_table. What is not in use may hold anything. Lengths and tables
    lie where q does.

    k_new, v_new: written into k and v, which are caches in entries or pages then, in place: behind the first
    seqused_k[i] tokens of sequence i, and then attended to with them. batch, s_new, kv_heads, d, or with
    cu_seqlens_k_new (int32, batch + 1) packed like q. rotary: (cos, sin), each positions x dim / 2, float32 or q's dtype,
    as in decode: turns q and k_new; the last query stands at the last key. leftpad_k (int32, batch): so many tokens
    of an entry before the first key are padding, which seqused_k counts. batch_index (int32, batch): its entry of k and v.

    max_seqlen_q, max_seqlen_k: upper bounds where they are known, 0 where not: they bound the grid and the workspace,
    and choose the kernel. causal, window, scale, softcap, out and backend as in forward, each sequence masked as if
    it were alone; sinks and alibi_slopes too, those of a batch by sequence. chunk: positions are cut into chunks of so
    many, and a query sees the keys in its own only; 0: all. tree (uint64 or int64, a word for each query): drafts that
    branch. Of the keys that a sequence's queries are aligned with, a query sees number j only where bit j of its word is
    set (and the mask lets it); a word of 0 hides nothing, and sequences of more than 64 queries have no tree.

    split_size: a multiple of 64 keys, for results of a sequence that are the same to the bit in any batch: keys of sequences
    of few queries are split at multiples of it, and no kernel is chosen by the batch. 0: for speed.

    plan: what forward_varlen_plan returned for the same shapes, options and lengths; one call at a time.

    block_list: a BlockList of sequences, counted from a sequence's first query and key. Each has rows for max_seqlen_q
    queries, or, where that is 0, for as many as q has rows; those behind its own queries are not read.

    v may have another last dimension than k. Returns out, shaped like q with v's last dimension; with return_lse a pair of it and the natural log-sum-exp, float32, shaped like q
    without its last dimension. Rows of no sequence are not written. Raises TandemError with the library's message.
    """
    call = _call_of("forward_varlen", (q, k, v), options)
    lib = library()
    call.run(lib.tandem_forward_workspace, lib.tandem_forward)
    return call.out if call.lse is None else (call.out, call.lse[..., 0])


def forward_varlen_plan(q, k, v, **options):
    """Makes once what the calls of one step would each make for themselves: what forward_varlen takes as `plan` for the
    same shapes, options and lengths, as the layers of a model have them. Reads lengths alone: nothing is computed or
    appended. One plan serves one call at a time. None where the backend needs none."""
    lib = library()
    return _call_of("forward_varlen_plan", (q, k, v), options).run(lib.tandem_forward_plan_size, lib.tandem_forward_plan)
