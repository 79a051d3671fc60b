/* SPDX-License-Identifier: Apache-2.0
 *
 * Tandem: exact attention on NVIDIA Hopper, as a plain library. This is the whole C interface (C11), with
 * types.h.
 *
 * Every function is thread-safe. None prints, exits, synchronises a stream, or allocates device memory of its
 * own. What a process keeps after its first calls is in docs/conventions.md.
 *
 * A function that fails returns a status other than TANDEM_OK, and describes the failure in
 * tandem_last_error() of the calling thread. A call that is refused (TANDEM_INVALID_ARGUMENT,
 * TANDEM_UNSUPPORTED, TANDEM_WORKSPACE_TOO_SMALL, TANDEM_NO_DEVICE) has written nothing. After
 * TANDEM_DEVICE_ERROR, TANDEM_INTERNAL_ERROR or TANDEM_OUT_OF_MEMORY outputs and caches may be partly
 * written.
 *
 * No output may overlap an input, another output or itself; o may not be q either. Inputs may overlap. Caches
 * that a call appends to, and scales that it writes for what it appends, count as outputs; but values may lie
 * in the keys, as tandem_cache says. A call that breaks this is refused, where its arguments show it. The
 * workspace and the plan may overlap nothing else, which is not checked.
 *
 * The interface grows, and does not change: later versions only add functions, enumerators, and fields at the
 * end of structs that begin with a struct_size. Zero-initialise such a struct and set struct_size to its
 * sizeof: the library takes what the caller's header did not have as 0, which is always the default.
 * Optional parts of a call are structs of their own, passed by pointer; NULL is the default.
 * tandem_tensor stays as it is.
 */
#ifndef TANDEM_TANDEM_H
#define TANDEM_TANDEM_H

#include <tandem/types.h>

#define TANDEM_VERSION_MAJOR 0
#define TANDEM_VERSION_MINOR 2
#define TANDEM_VERSION_PATCH 0

#if defined(__GNUC__)
#define TANDEM_API __attribute__((visibility("default")))
#else
#define TANDEM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* One forward call: o = softmax(scale * q k^T + mask) v, and the natural log of the sum of exponentials.
 *
 * Zero-initialise it, set struct_size = sizeof(tandem_forward_args), then fill in what is needed. */
typedef struct tandem_forward_args {
  size_t struct_size;     /* sizeof(tandem_forward_args) of the header that the caller was compiled with */
  tandem_backend backend; /* default: TANDEM_BACKEND_AUTO */
  tandem_tensor q;        /* b, sq, q_heads, d; d: a multiple of 8, at most 512 (8-bit dtypes: 256). On Hopper
                             d > 256 only without varlen, sinks, slopes, chunks, tree and block_list */
  tandem_tensor k;        /* b, sk, kv_heads, d; q_heads is a multiple of kv_heads; dtype of q; written only
                             where varlen appends */
  tandem_tensor v;        /* b, sk, kv_heads, dv; dv: as d; equal to d for 8-bit dtypes, whose layout is
                             tandem_scales.v_layout. If q and k are INT8, v must be E4M3; on Hopper also
                             TANDEM_VALUES_BY_COLUMN */
  tandem_tensor o;   /* b, sq, q_heads, dv; written; dtype of q; of 8-bit q bf16 or fp16 (CPU: or fp32) */
  tandem_tensor lse; /* b, sq, q_heads, 1; written; fp32; data == NULL: not wanted, all ignored */
  const tandem_mask* mask;     /* NULL: every query sees every key */
  float scale;                 /* > 0, at most 2.3e38; 0 means 1 / sqrt(d) */
  float softcap;               /* > 0: scores become softcap * tanh(scale * q k^T / softcap); 0: off */
  const tandem_study* study;   /* NULL: the kernel that measures best */
  const tandem_varlen* varlen; /* NULL: all sequences have the lengths of the tensors */
  const tandem_scales* scales; /* of q, k and v of 8 bits; NULL: all 1, and values by key */
  /* q_heads numbers in the memory of the backend, NULL: none. Each is the score of one more key of its head,
   * that every query sees and that has no value: as after scale and cap, so exp(sink) more in the sum that
   * divides, and in lse. -inf: none for this head. Not of 8-bit inputs. On Hopper such calls need workspace
   */
  const float* sinks;
  /* ALiBi. NULL: none. Else q_heads numbers in the memory of the backend, and for the next sequence as many
   * alibi_stride elements further: the score of query i and key j, after scale and cap, is
   * slope * |i + (sk - sq) - j| less, sq and sk being the sequence's; scale and softcap have to be at least
   * 1e-30 then, or 0.
   * Not of 8-bit inputs, nor in tandem_backward. On Hopper such calls need workspace */
  const float* alibi_slopes;
  int64_t alibi_stride; /* >= 0; 0: all sequences have the same; read where alibi_slopes is not NULL only */
  /* A tree of drafts. NULL: none. Else a word for each query in the memory of the backend, in the order
   * batch, sequence of q, contiguous. It speaks of the keys that the queries of a sequence are aligned with,
   * the last sq of sk: of those that the mask lets it see, query i sees key sk - sq + j only where bit j of
   * its word is set (its own is bit i). 0: all. Keys before these, and sequences of more than 64 queries, are
   * as without. Masks, slopes and rotary embedding go by a query's place i, not by its depth in the tree. Not
   * of 8-bit inputs. On Hopper up to head dim 192; such calls need workspace */
  const uint64_t* tree;
  /* NULL: all key blocks are seen. Not of 8-bit inputs. Chunks and a tree besides on Hopper up to head dim
   * 192, as without a list */
  const tandem_block_list* block_list;
  /* What tandem_forward_plan made for the same shapes, options and lengths; NULL: this call makes it for
   * itself, in its workspace. Calls count in it: one plan serves one call at a time. Ignored where
   * tandem_forward_plan_size says 0 */
  void* plan;
} tandem_forward_args;

/* Bytes of workspace that tandem_forward needs for these arguments, in the memory of the backend that serves
 * them (host memory for the CPU, device memory for Hopper). Data pointers may be NULL here; if backend is
 * AUTO, not all of them. 0 is a usual answer. */
TANDEM_API tandem_status tandem_forward_workspace(const tandem_forward_args* args, size_t* bytes);

/* Runs one forward call.
 *
 * workspace: at least tandem_forward_workspace bytes, aligned to 256; contents need not be initialised and
 * are not kept. May be NULL if the query says 0. On Hopper it may also be NULL for calls without varlen,
 * sinks, chunks, slopes and tree (slower for few queries on many keys). If it is not NULL, it must have all
 * the bytes. One workspace serves one call at a time.
 *
 * stream: a cudaStream_t (CUstream) of the current device for Hopper, where the call only enqueues work and
 * can be captured in a CUDA graph; ignored by the other backends, which return when the result is written.
 *
 * Empty problems are no errors: with sq = 0 nothing is written; a query that sees no key gets o = 0, lse =
 * -inf.
 *
 * Scores may be of any size on the CPU; on Hopper, in decoding steps too, scale * q.k has to stay below 1e8
 * in magnitude. */
TANDEM_API tandem_status tandem_forward(const tandem_forward_args* args, void* workspace,
                                        size_t workspace_bytes, void* stream);

/* Bytes of the plan that tandem_forward_plan makes for these arguments; 0 where none is needed: on the CPU,
 * and on Hopper for calls without varlen, sinks, chunks, slopes and tree. Data: as for
 * tandem_forward_workspace. */
TANDEM_API tandem_status tandem_forward_plan_size(const tandem_forward_args* args, size_t* bytes);

/* Makes once what calls of the same lengths would each make for themselves: the layers of a model, in one
 * step of an engine. Reads the lengths on the device, in stream order, and writes the plan that args->plan of
 * the following calls may point to. What counts of `args` is everything but the data of tensors, sinks,
 * slopes, tree and block list; appended tokens are counted, but not written.
 *
 * The following calls need the same shapes, dtype, mask, softcap, study, split_size and bounds, and the same
 * arrays have to be NULL. They take lengths, and which entries sequences have, as they were when the plan was
 * made; the page table is read anew. With a plan of as many bytes for other shapes rows of o and lse may keep
 * what they held, but nothing is read or written out of bounds.
 *
 * plan: at least tandem_forward_plan_size bytes in the memory of the backend, aligned to 256; NULL if 0 are
 * needed. Too few bytes: TANDEM_WORKSPACE_TOO_SMALL. stream: as in tandem_forward; a captured call reads the
 * lengths anew at every replay. */
TANDEM_API tandem_status tandem_forward_plan(const tandem_forward_args* args, void* plan, size_t plan_bytes,
                                             void* stream);

/* The gradients of one forward call: dq, dk and dv of q, k and v, given dout, the gradient of o, and maybe
 * dlse, that of lse. With x = scale * q k^T and s = softcap * tanh(x / softcap) (without softcap s = x),
 *   p = exp(s - lse), ds = p * (dout v^T - rowsum(dout * o) + dlse), dx = ds * (1 - tanh^2) (or ds),
 *   dv = p^T dout, dq = scale * dx k, dk = scale * dx^T q,
 * where p is 0 for what the mask hides. o and lse are the forward's; they may also be those of a call over
 * more keys, of which k and v are a part: then dk and dv are that part's, and dq its share of a sum.
 *
 * Of a forward with sinks lse has them in it, so that these gradients need nothing else. Those of the sinks
 * are, for each head, the sum over all batch entries and queries, also those that the mask hides all keys of,
 *   dsink = sum(exp(sink - lse) * (dlse - rowsum(dout * o))).
 *
 * Zero-initialise it, set struct_size = sizeof(tandem_backward_args), then fill in what is needed. */
typedef struct tandem_backward_args {
  size_t struct_size;      /* sizeof(tandem_backward_args) of the header that the caller was compiled with */
  tandem_backend backend;  /* default: TANDEM_BACKEND_AUTO */
  int32_t deterministic;   /* 0 or 1; no effect: every backend gives the same bits in every run */
  tandem_tensor q;         /* b, sq, q_heads, d; d a multiple of 8 up to 256 */
  tandem_tensor k;         /* b, sk, kv_heads, d; q_heads is a multiple of kv_heads; dtype of q */
  tandem_tensor v;         /* b, sk, kv_heads, d; dtype of q */
  tandem_tensor o;         /* b, sq, q_heads, d; dtype of q */
  tandem_tensor lse;       /* b, sq, q_heads, 1; fp32 */
  tandem_tensor dout;      /* b, sq, q_heads, d; dtype of q */
  tandem_tensor dlse;      /* b, sq, q_heads, 1; fp32; data == NULL: lse has no gradient, all ignored */
  tandem_tensor dq;        /* b, sq, q_heads, d; written; dtype of q */
  tandem_tensor dk;        /* b, sk, kv_heads, d; written; dtype of q */
  tandem_tensor dv;        /* b, sk, kv_heads, d; written; dtype of q */
  const tandem_mask* mask; /* of the forward. NULL: every query sees every key */
  float scale;             /* of the forward. > 0; 0 means 1 / sqrt(d) */
  float softcap;           /* of the forward. > 0: scores are capped; 0: off */
  const float* sinks; /* of the forward: q_heads numbers in the memory of the backend; read where dsinks is
                         not NULL only */
  float* dsinks; /* q_heads numbers in the memory of the backend; written, always the same bits. NULL: not
                    wanted */
  /* Of the forward. NULL: all sequences have the lengths of the tensors. Else q, o, lse, dout, dlse and dq
   * have the forward's rows of queries, k, v, dk and dv its keys. Rows that belong to no sequence, and keys
   * that are not in use, are neither read nor written. Nothing of pages, padding, batch_index, appended keys,
   * rotary embedding or split_size: such fields have to be 0 */
  const tandem_varlen* varlen;
} tandem_backward_args;

/* Bytes of workspace that tandem_backward needs for these arguments, in the memory of the backend that serves
 * them (docs/backward.md says how many). Data pointers may be NULL here; if backend is AUTO, not all of them.
 * For the rest only whether dlse.data, dsinks and the arrays of varlen are NULL counts. */
TANDEM_API tandem_status tandem_backward_workspace(const tandem_backward_args* args, size_t* bytes);

/* Runs one backward call. workspace, stream: as in tandem_forward.
 *
 * Empty problems are no errors. A query that sees no key, or whose lse is -inf, gets dq = 0 and has no part
 * in dk and dv; a key that nobody sees gets dk = dv = 0. Rows that the mask hides altogether may hold NaN,
 * but in o, dout and dlse where dsinks is wanted; where lse is -inf for another reason, Hopper needs finite q
 * and dout. A row whose lse is -inf has no part in dsinks. */
TANDEM_API tandem_status tandem_backward(const tandem_backward_args* args, void* workspace,
                                         size_t workspace_bytes, void* stream);

/* The keys and values of the tokens so far, in the memory of the backend.
 *
 * Contiguous (page_table == NULL): k and v have one entry of `capacity` tokens for each sequence. Paged: they
 * are pools of pages, and row r of the page table names in slot i the page of tokens i * page_size ... The
 * capacity is then page_size * pages_per_sequence.
 *
 * On Hopper page_size is a power of two; at least 16 for a step with chunks, slopes or a tree, or whose
 * values have another head dim than the keys in memory of their own. Kernels are chosen and workspaces
 * measured by the capacity, since lengths lie on the device: pass no more slots than the longest sequence
 * needs.
 *
 * Tokens beyond a sequence's length are never read, nor are the slots of their pages: both may hold anything.
 * What lies in device memory can't be validated, but never leads out of bounds of k and v: a negative length
 * counts as 0, one above capacity - (tokens appended) as that, and the keys and values of a page or entry
 * that does not exist count as 0. What is appended to one is lost; the step itself still attends to it on
 * Hopper, and takes it for 0 elsewhere. */
typedef struct tandem_cache {
  size_t struct_size; /* sizeof(tandem_cache) */
  /* contiguous: entries, capacity, kv_heads, d; paged: pages, page_size, kv_heads, d. Written only where
   * tokens are appended; not otherwise. Values may have dv columns in place of d, but for 8 bits: a multiple
   * of 8 up to 512. Where dv < d they may be the first dv columns of the keys, as in multi-head latent
   * attention (DeepSeek-V2, arXiv 2405.04434; 512 of 576): v has the data and strides of k then, and v_new
   * those of k_new. In memory of their own Hopper serves them up to dv = 256, where nothing is appended and
   * split_size is 0 */
  tandem_tensor k, v;
  const int32_t* page_table;  /* rows of pages_per_sequence page numbers; NULL: contiguous */
  int64_t page_table_stride;  /* elements from row to row, >= 0; read where page_table is not NULL only */
  int64_t pages_per_sequence; /* slots of a row, >= 1; read where page_table is not NULL only */
  const int32_t* lengths;     /* b: tokens in the cache before this call */
  const int32_t* batch_index; /* b: entry, or row of the page table, of each sequence, which for rows has to
                                 be right; NULL: sequence i has entry or row i */
} tandem_cache;

/* What a cache of 8 bits (TANDEM_E4M3 or TANDEM_INT8) stands for: each element for its value times its scale,
 * fp32, > 0.
 *
 * With per_token = 0 row i of the scales is sequence i's of the call, and appended tokens are divided by
 * them: beyond 448, of INT8 beyond 127, an element becomes that. With per_token = 1 scales lie as their
 * tokens do, in the same pages and rows, also inline between them; those of tokens beyond a length are never
 * read. Appending finds a scale for each token and head, and writes it: the least power of two that brings
 * its largest magnitude to 448 or less, of INT8 its largest magnitude / 127 (1 where all is 0).
 *
 * With hadamard = 1 cache.k holds keys that have been multiplied by tandem_quantize's matrix H diag(signs) /
 * sqrt(d), which spreads outliers over all columns: q and what is appended to the keys are multiplied by it
 * too, after their rotary embedding, so that scores stay what they are. */
typedef struct tandem_cache_scales {
  size_t struct_size; /* sizeof(tandem_cache_scales) */
  /* per_token = 0: batch, 1, kv_heads, 1; batch and heads may also be 1: shared. data == NULL: all are 1.
   * per_token = 1: the first three dimensions of cache.k, and 1. Any strides */
  tandem_tensor k;
  tandem_tensor v;   /* the same */
  int32_t per_token; /* 0 or 1 */
  uint64_t seed;     /* of the matrix's signs; read where hadamard is 1 */
  int32_t hadamard;  /* 0 or 1; with 1 d has to be a power of two */
} tandem_cache_scales;

/* Which sequences of a decoding step begin with the same tokens, so that their keys and values are read once
 * (cascade attention). A hint: results are those of the same call without it.
 *
 * Group g has the sequences cu_sequences[g] ... cu_sequences[g + 1] - 1 of the batch, whose first lengths[g]
 * tokens have the same keys and values: usually because their rows of the page table begin with the same
 * pages. The library may read them from any of these sequences. A token that a sequence did not have before
 * the step, or that a query does not see, does not belong to the prefix. Sequences may be in no group: before
 * the first, or behind the last. Both arrays lie in the memory of the backend and are read there, at every
 * replay of a captured call. There may be groups without sequences, so that `groups` can be an upper bound.
 * On Hopper a call that its kernels for this do not serve reads every sequence for itself (docs/decode.md,
 * Prefixes of several sequences). */
typedef struct tandem_shared_prefixes {
  size_t struct_size;          /* sizeof(tandem_shared_prefixes) */
  int64_t groups;              /* 0 to b; 0: nothing is shared */
  const int32_t* cu_sequences; /* groups + 1, ascending */
  const int32_t* lengths;      /* groups, in tokens */
} tandem_shared_prefixes;

/* One decoding step: a few new queries of each sequence against its cache, which the step may first append
 * to. The cache has the dtype of q, or 8 bits.
 *
 * Sequence i has n = lengths[i] + s_new keys. Its queries stand at the last sq positions: query j at n - sq +
 * j, from where the mask counts and which rotary embedding turns it by. A query that sees no key gets o = 0
 * and lse = -inf.
 *
 * Zero-initialise it, set struct_size = sizeof(tandem_decode_args), then fill in what is needed. */
typedef struct tandem_decode_args {
  size_t struct_size;     /* sizeof(tandem_decode_args) of the header that the caller was compiled with */
  tandem_backend backend; /* default: TANDEM_BACKEND_AUTO */
  tandem_tensor q; /* b, sq, q_heads, d; sq 1 to 8; d a multiple of 8 up to 576, of 8-bit caches up to 256, on
                      Hopper up to 512 but where values lie in the keys */
  const tandem_cache* cache; /* q_heads is a multiple of kv_heads. Not NULL */
  tandem_tensor k_new; /* b, s_new, kv_heads, d: appended at positions lengths[i] ...; dtype of q. data ==
                          NULL: nothing is appended, all ignored. No two sequences may append to one place */
  tandem_tensor v_new; /* the same with cache.v's dv; data == NULL exactly if k_new's is */
  const tandem_rotary* rotary; /* NULL: no rotary embedding. Not where tokens are appended to keys that values
                                  lie in */
  tandem_tensor o;             /* b, sq, q_heads, dv; written; dtype of q */
  tandem_tensor lse;           /* b, sq, q_heads, 1; written; fp32; data == NULL: not wanted, all ignored */
  const tandem_mask* mask;     /* NULL: every query sees every key */
  float scale;                 /* > 0, at most 2.3e38; 0 means 1 / sqrt(d), which is not what latent
                                  attention has */
  float softcap;               /* > 0: scores become softcap * tanh(scale * q k^T / softcap); 0: off */
  int64_t split_size; /* 0: keys are split for speed. A multiple of 64: fixed splits of that many keys, so
                         that a sequence's result is the same to the bit in any batch. The CPU's always is */
  const void* plan; /* what tandem_decode_plan made for the same shapes and lengths; NULL: this call balances
                       for itself. With other lengths o and lse may hold anything, and the workspace has to be
                       zeroed again */
  const tandem_study* study; /* NULL: the kernel that measures best */
  const float* sinks; /* q_heads numbers in the memory of the backend, NULL: none. As in tandem_forward_args;
                         a query that sees no other key gets o = 0 and lse = the sink */
  const tandem_cache_scales* scales; /* of a cache of 8 bits; NULL: all 1 */
  /* ALiBi, as in tandem_forward_args, row i being sequence i's of the call. On Hopper steps with slopes, a
   * tree or chunks go by the forward's kernels: caches of 16 bits, no plan (docs/decode.md, Backends) */
  const float* alibi_slopes;
  int64_t alibi_stride;
  const uint64_t* tree; /* b, sq: as in tandem_forward_args */
  /* A second part of the queries, which meets the values: scores are scale * (q k^T + qv v^T), as of latent
   * attention whose positions' columns are cache.k and whose latent ones cache.v. b, sq, q_heads, dv; dtype
   * of q; not rotated. data == NULL: none, all ignored. A scale of 0 means 1 / sqrt(d + dv) then. On Hopper
   * where d is 64 and dv 512, over a cache of q's dtype and without chunks, slopes or a tree */
  tandem_tensor qv;
  const tandem_shared_prefixes* prefixes; /* NULL: no sequences are said to share keys */
} tandem_decode_args;

/* Bytes of workspace that tandem_decode needs for these arguments, in the memory of the backend that serves
 * them. It depends on shapes, strides, dtypes, mask, split_size and study; on whether k_new, rotary, lse,
 * page_table, batch_index, plan, alibi_slopes, tree, qv and prefixes are NULL; and, where dv < d, on whether
 * v has k's address. Other pointers are not followed, but rotary's cos may not be NULL; lengths are not read.
 * If backend is AUTO, the first tensor that has data needs its real address.
 *
 * Steps of several shapes can share one workspace: the largest of their answers. docs/decode.md (Workspace)
 * has a bound for all. */
TANDEM_API tandem_status tandem_decode_workspace(const tandem_decode_args* args, size_t* bytes);

/* Runs one decoding step: one kernel on Hopper, or two where a key/value head has more than 16 query rows;
 * up to three with chunks, slopes or a tree, four or five where sequences share prefixes.
 *
 * workspace: at least tandem_decode_workspace bytes, aligned to 256, ZEROED ONCE before its first use; every
 * call leaves it ready for the next, of any shape that it is large enough for. NULL if 0 bytes are needed.
 * One workspace serves one call at a time. stream: as in tandem_forward; a captured call reads lengths, page
 * table and batch index anew at every replay.
 *
 * b = 0 is no error: nothing is written then. */
TANDEM_API tandem_status tandem_decode(const tandem_decode_args* args, void* workspace,
                                       size_t workspace_bytes, void* stream);

/* Bytes of the plan that tandem_decode_plan makes for these arguments; 0 where none is needed: on the CPU,
 * and with chunks, slopes or a tree. Data: as for tandem_decode_workspace. */
TANDEM_API tandem_status tandem_decode_plan_size(const tandem_decode_args* args, size_t* bytes);

/* Balances a batch once for all layers that share its lengths: reads args->cache->lengths on the device, in
 * stream order, and writes the plan that args->plan of the following calls may point to. These have to have
 * the shapes, mask, split_size and study of `args`, and the lengths that were read. Other data as for
 * tandem_decode_workspace.
 *
 * plan: at least tandem_decode_plan_size bytes in the memory of the backend, aligned to 256; NULL if 0 are
 * needed. Too few bytes: TANDEM_WORKSPACE_TOO_SMALL. */
TANDEM_API tandem_status tandem_decode_plan(const tandem_decode_args* args, void* plan, size_t plan_bytes,
                                            void* stream);

/* Merges `parts` results of attention over parts of the keys into the result over all of them: of split keys,
 * of a shared prefix and the rest, of the ranks of a ring.
 *
 * Row by row: lse = log(sum over parts of exp(lse_part)), o = sum over parts of exp(lse_part - lse) * o_part,
 * with natural logarithms, as tandem_forward and tandem_decode write them. A part whose lse is -inf has seen
 * no key: its row of o_parts is not read and may hold anything. Rows for which that holds of all parts, also
 * of none, get o = 0 and lse = -inf. Arithmetic is fp32.
 *
 * Zero-initialise it, set struct_size = sizeof(tandem_merge_args), then fill in what is needed. */
typedef struct tandem_merge_args {
  size_t struct_size;      /* sizeof(tandem_merge_args) of the header that the caller was compiled with */
  tandem_backend backend;  /* default: TANDEM_BACKEND_AUTO */
  int64_t parts;           /* >= 0 */
  tandem_tensor o_parts;   /* b, s, heads, d: the first part; any dtype; d a multiple of 8 */
  int64_t o_part_stride;   /* elements from part to part */
  tandem_tensor lse_parts; /* b, s, heads, 1: the first part; fp32 */
  int64_t lse_part_stride; /* elements from part to part */
  tandem_tensor o;         /* b, s, heads, d; written; any dtype */
  tandem_tensor lse;       /* b, s, heads, 1; written; fp32; data == NULL: not wanted, all ignored */
} tandem_merge_args;

/* Merges partial results: one kernel on Hopper, without a workspace. There the strides and
 * addresses of o_parts and o, and o_part_stride, have to be multiples of 16 bytes; else TANDEM_UNSUPPORTED.
 * stream: as in tandem_forward. Rows without elements are no error: nothing is written then. */
TANDEM_API tandem_status tandem_merge(const tandem_merge_args* args, void* stream);

/* Quantises q, k or v to 8 bits for tandem_forward, in one pass:
 *
 * To E4M3: scale = the least power of two that maps the largest magnitude of a block to 448 or less (1 where
 * all is 0), or the given one; out = x / scale, rounded to nearest even, beyond 448 to 448; NaN stays NaN.
 *
 * To INT8, by key only: scale = the largest magnitude of a block / 127 (1 where all is 0), or the given one;
 * out = x / scale, rounded to nearest even, beyond 127 to 127; NaN becomes 0.
 *
 * Scales that are written lie between 2^-119 and 2^126.
 *
 * With 2 terms, of E4M3 by column only, columns d ... 2 * d - 1 of out are a second one, of what the first
 * has left: x / scale - first, rounded in the same way.
 *
 * With rotary, every row of x is first turned, in fp32, as new keys are in tandem_varlen; so nothing is
 * rounded between the rotation and what follows.
 *
 * With shift, a vector is then taken off every row: a mean, which would take bits from what differs. Of v
 * tandem_scales.v_shift adds it to o again. Of k it changes no probability, and lse by scale * q k_shift^T:
 * the call of q writes these products where it has k_shift, and tandem_scales.q_dot_k_shift takes them.
 *
 * With hadamard, every row of x is then multiplied by H diag(signs) / sqrt(d), H the Hadamard matrix of size
 * d: "incoherent processing", which spreads an outlier over all columns. q and k need the same seed, so that
 * q k^T stays what it is; v has none. H is Sylvester's, whose element i, j is -1 where i and j have an odd
 * number of bits in common; sign j is -1 where the top bit of output j, from 0, of SplitMix64 with this seed
 * is set.
 *
 * Zero-initialise it, set struct_size = sizeof(tandem_quantize_args), then fill in what is needed. */
typedef struct tandem_quantize_args {
  size_t struct_size;     /* sizeof(tandem_quantize_args) of the header that the caller was compiled with */
  tandem_backend backend; /* default: TANDEM_BACKEND_AUTO */
  tandem_tensor x; /* b, s, heads, d; d a multiple of 8 up to 256. On Hopper bf16 or fp16, d 64, 128 or 256 */
  tandem_tensor out; /* b, s, heads, d, or as v in tandem_value_layout and v_terms; E4M3 or INT8; written */
  tandem_value_layout layout; /* of out */
  tandem_tensor scale; /* b, blocks, heads, 1, each also 1 where it is shared; fp32; written, or read if
                          given. On Hopper it is shared only if it is given */
  int64_t block; /* tokens that share a scale; 0: all, blocks is 1. On Hopper a multiple of 128, and 128 where
                    scale is written, or 1 with best_scale */
  int32_t scale_given;         /* 1: scale is read: all > 0, which is not checked */
  int32_t hadamard;            /* 1: as above; d has to be a power of two */
  uint64_t seed;               /* of the signs; read where hadamard is 1 */
  int32_t terms;               /* 0 and 1: one; 2: as above */
  const tandem_rotary* rotary; /* NULL: none. Else rows are first turned by their positions; by key only */
  const int32_t*
      first_positions; /* b numbers in the memory of the backend: token j of entry i has position
                          first_positions[i] + j. NULL: all 0; read where rotary is not NULL only */
  float amplitude; /* of E4M3 whose scales are written: the largest magnitude that an element of out may have.
                      Scales are powers of two unless best_scale is 1, so a block's largest element lies
                      between half of this and this; 1 ... 448, and 0: 448.
                      Counts rounded down to an E4M3 number. Less leaves fewer bits to small elements: below
                      2^-6 they are multiples of 2^-9. For tandem_scales.qk_amplitude */
  tandem_tensor shift; /* fp32; batch, 1, heads, d; batch may be 1, heads a divisor of x's: shared. Taken off
                          every row of x; behind rotary, ahead of hadamard. data == NULL: none */
  tandem_tensor k_shift;       /* of x = q, by key only: the shift of k; as shift. data == NULL: none */
  tandem_tensor q_dot_k_shift; /* b, s, heads, 1; fp32; written: the product of each row, as hadamard would
                                  have it, and its head's k_shift. For tandem_scales; has to be given where
                                  k_shift is. data == NULL: no k_shift is given, all ignored */
  int32_t best_scale; /* 1: of E4M3 by key whose scales are written: each is the one of 2^(i/4), i = 0 ... 3,
                         times the least power of two that has the least squared error. Pays where few
                         elements share a scale, as of q with block 1. On Hopper block has to be 1 then */
} tandem_quantize_args;

/* Quantises a tensor: one kernel on Hopper, without a workspace. stream: as in tandem_forward. An x without
 * elements is no error: nothing is written then, scales neither. */
TANDEM_API tandem_status tandem_quantize(const tandem_quantize_args* args, void* stream);

/* The message of the calling thread's last failure: which argument, what it was, what is allowed. Never NULL;
 * valid until the thread's next failing call. */
TANDEM_API const char* tandem_last_error(void);

/* The name of a status, for example "TANDEM_UNSUPPORTED". */
TANDEM_API const char* tandem_status_name(tandem_status status);

/* The version of the library that is loaded, as "major.minor.patch". */
TANDEM_API const char* tandem_version(void);

/* What is built and what is here. Set struct_size before the call. */
typedef struct tandem_info {
  size_t struct_size;
  int32_t hopper_built;    /* 1: the library contains the Hopper kernels */
  int32_t hopper_usable;   /* 1: and the current device can run them */
  char hopper_reason[256]; /* where hopper_usable is 0: why */
  char device_name[256];   /* the current CUDA device, "" if there is none */
  int32_t device_sm_count; /* its multiprocessors */
  int32_t cpu_threads;     /* threads that the CPU backend uses */
  char cpu_simd[32];       /* the instruction set that the CPU backend chose, for example "AVX2" */
} tandem_info;

TANDEM_API tandem_status tandem_get_info(tandem_info* info);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_TANDEM_H */
