/* SPDX-License-Identifier: Apache-2.0
 *
 * Tandem: exact attention on NVIDIA Hopper, as a plain library. This is the whole C interface (C11).
 *
 * Every function is thread-safe. None prints, exits, synchronises, or allocates device memory.
 * A function that fails returns a status other than TANDEM_OK, leaves every output untouched, and
 * describes the failure in tandem_last_error() of the calling thread.
 *
 * The interface grows, and does not change: later versions only add functions, enumerators, and fields at the
 * end of structs that begin with a struct_size. Zero-initialise such a struct and set struct_size to its
 * sizeof: the library takes what the caller's header did not have as 0, which is always the default.
 * Optional parts of a call are structs of their own, passed by pointer; NULL is the default.
 * tandem_tensor stays as it is.
 */
#ifndef TANDEM_TANDEM_H
#define TANDEM_TANDEM_H

#include <stddef.h>
#include <stdint.h>

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

typedef enum tandem_status {
  TANDEM_OK = 0,
  TANDEM_INVALID_ARGUMENT = 1, /* an argument contradicts its documentation; it would fail on any machine */
  TANDEM_UNSUPPORTED = 2,      /* a valid request that this build or this backend does not serve */
  TANDEM_WORKSPACE_TOO_SMALL = 3, /* see tandem_forward_workspace and its like */
  TANDEM_NO_DEVICE = 4,           /* no driver, no GPU, or a GPU that is not Hopper */
  TANDEM_DEVICE_ERROR = 5,        /* the CUDA driver refused a call; the message carries its own */
  TANDEM_INTERNAL_ERROR = 6,      /* a defect in Tandem; please report it */
  TANDEM_OUT_OF_MEMORY = 7        /* no host memory for what a call needs beside its workspace */
} tandem_status;

typedef enum tandem_dtype {
  TANDEM_BF16 = 1,
  TANDEM_FP16 = 2,
  TANDEM_FP32 = 3,
  TANDEM_E4M3 = 4 /* 8 bits; tandem_forward's q, k and v, tandem_decode's caches, tandem_quantize's outputs */
} tandem_dtype;

typedef enum tandem_backend {
  /* Hopper where the data are in device memory, the CPU where they are in host memory. Decided by the first
   * of a call's tensors, in the order of its arguments, that has elements and whose data is not NULL: q
   * mostly */
  TANDEM_BACKEND_AUTO = 0,
  TANDEM_BACKEND_CPU = 1,      /* host memory; tiled, all cores, fp32 arithmetic */
  TANDEM_BACKEND_HOPPER = 2,   /* device memory; bf16 and fp16 */
  TANDEM_BACKEND_REFERENCE = 3 /* host memory; the plain float64 oracle, slow */
} tandem_backend;

/* A borrowed four-dimensional tensor, in the order batch, sequence, heads, head dim. Tandem owns nothing. */
typedef struct tandem_tensor {
  void* data;         /* address of element [0, 0, 0, 0]; never written through for inputs */
  tandem_dtype dtype; /* element type */
  int64_t shape[4];   /* batch, sequence length, heads, head dim */
  int64_t stride[4];  /* in elements; stride[3] is 1; strides of dimensions of size 1 are ignored */
} tandem_tensor;

typedef enum tandem_mask_kind {
  TANDEM_MASK_FULL = 0,   /* every query sees every key */
  TANDEM_MASK_CAUSAL = 1, /* bottom-right aligned: the last query sees every key */
  TANDEM_MASK_WINDOW = 2  /* query i sees keys i + (sk - sq) - left ... i + (sk - sq) + right */
} tandem_mask_kind;

#define TANDEM_UNLIMITED INT64_C(-1)

/* Which keys a query sees. window_left and window_right are read for TANDEM_MASK_WINDOW only, and have to be
 * 0 otherwise. */
typedef struct tandem_mask {
  size_t struct_size;    /* sizeof(tandem_mask) */
  tandem_mask_kind kind; /* default: full */
  int64_t window_left;   /* keys to the left of the query's own position, >= 0 or TANDEM_UNLIMITED */
  int64_t window_right;  /* keys to the right of it, >= 0 or TANDEM_UNLIMITED */
} tandem_mask;

/* How 8-bit values lie in memory. */
typedef enum tandem_value_layout {
  TANDEM_VALUES_BY_KEY = 0, /* v is b, sk, kv_heads, d */
  /* v is b, d, kv_heads, n with n = sk rounded up to a multiple of 16: a row holds one column of all keys, of
   * each 16 in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, and zeros behind the last key. What
   * tandem_quantize writes where it is asked to; the fastest, since the kernel has nothing to transpose */
  TANDEM_VALUES_BY_COLUMN = 1
} tandem_value_layout;

/* What 8-bit q, k and v stand for: each element for its value times its scale. Tensors of scales are fp32, >
 * 0, with shape batch, blocks, heads, 1 and any strides. Batch and heads may also be 1: shared. A block is so
 * many tokens, the last one may have fewer. On Hopper blocks of k and v are multiples of 128. data == NULL:
 * all scales are 1. */
typedef struct tandem_scales {
  size_t struct_size;           /* sizeof(tandem_scales) */
  tandem_tensor q;              /* heads: q_heads, kv_heads or 1 */
  tandem_tensor k;              /* heads: kv_heads or 1 */
  tandem_tensor v;              /* heads: kv_heads or 1 */
  int64_t q_block;              /* tokens of a block; 0: all, blocks is 1 */
  int64_t k_block;              /* the same */
  int64_t v_block;              /* the same */
  tandem_value_layout v_layout; /* default: TANDEM_VALUES_BY_KEY */
} tandem_scales;

/* Which kernel serves, for study: tandem/study.h, which is not part of the stable interface. */
typedef struct tandem_study tandem_study;

/* Rotary embedding (Su et al., RoFormer, arXiv 2104.09864): turns q and the appended keys by the angles of
 * their positions. A cache holds keys that are rotated already. A position that the tables do not have
 * takes the nearest that they have. */
typedef struct tandem_rotary {
  size_t struct_size;  /* sizeof(tandem_rotary) */
  const void* cos;     /* positions x dim / 2, contiguous, on Hopper aligned to 16 bytes */
  const void* sin;     /* the same */
  tandem_dtype dtype;  /* of cos and sin: fp32, or that of q */
  int64_t positions;   /* rows of the tables, >= 1 */
  int64_t dim;         /* leading columns that are rotated: a multiple of 16, at most d; the others stay */
  int32_t interleaved; /* 1: columns 2i and 2i + 1 are a pair; 0: columns i and i + dim / 2 */
} tandem_rotary;

/* Sequences of different lengths in one forward call. Lengths and tables lie in the memory of the backend; on
 * Hopper they are read on the device, so that a captured call reads them anew at every replay.
 *
 * Queries: with cu_seqlens_q, those of sequence i are rows cu_seqlens_q[i] ... cu_seqlens_q[i + 1] - 1 of q,
 * whose batch dimension is 1. Without, q has an entry for each sequence.
 *
 * Keys and values: with cu_seqlens_k, packed in the same way. With a page_table, k and v are pools of pages
 * (pages, page_size, kv_heads, d), and row i of the table names in slot j the page of keys j * page_size ...
 * of sequence i. With neither, they have an entry for each sequence. Of these keys the first seqused_k[i] are
 * in use. Keys that are not in use are never read, nor are the slots of their pages: both may hold anything.
 *
 * Appending: with k_new and v_new, keys and values of the caches, in entries or pages, are written first, and
 * then attended to with the others: those of sequence i behind its first seqused_k[i] ones. No two sequences
 * may append to one place. What a sequence has no room for is lost, the last of its tokens first;
 * seqused_k[i] above its room without them counts as that.
 *
 * Masks stand as in a call of the sequence alone. Rows of q, o and lse that belong to no sequence are not
 * touched. What lies in device memory can't be validated, but never leads out of bounds: numbers outside of
 * the tensors are clamped to them, and the keys and values of a page that does not exist count as 0. */
typedef struct tandem_varlen {
  size_t struct_size;          /* sizeof(tandem_varlen) */
  int64_t batch;               /* sequences */
  const int32_t* cu_seqlens_q; /* batch + 1, ascending; NULL: q has `batch` entries of its sequence length */
  const int32_t* cu_seqlens_k; /* batch + 1, ascending; NULL: k and v have `batch` entries, or pages */
  const int32_t* seqused_k;    /* batch; NULL: all; required with a page_table */
  const int32_t* page_table;   /* rows of pages_per_sequence page numbers; NULL: keys are not paged */
  int64_t page_table_stride;   /* elements from row to row, >= 0; read where page_table is not NULL only */
  int64_t pages_per_sequence;  /* slots of a row, >= 1; read where page_table is not NULL only */
  int64_t max_seqlen_q;        /* no sequence has more queries: those beyond are left out. 0: not known */
  int64_t max_seqlen_k;        /* no sequence has more keys: those beyond are left out. 0: not known */
  tandem_tensor k_new; /* batch, s_new, kv_heads, d, or with cu_seqlens_k_new packed; dtype of q. data ==
                          NULL: nothing is appended, all ignored. k and v are written then */
  tandem_tensor v_new; /* the same; data == NULL exactly if k_new's is */
  const int32_t* cu_seqlens_k_new; /* batch + 1, ascending; NULL: each sequence appends s_new tokens */
  /* NULL: no rotary embedding. Else q and the new keys are turned by their positions: a key's is its row of
   * the sequence (of the entry where keys are not packed, padding included), a query's that of the key that
   * it is aligned with: the last query's that of the last key */
  const tandem_rotary* rotary;
  const int32_t* leftpad_k;   /* batch: rows of an entry that are padding, before the first key; they count in
                                 seqused_k and are never read. NULL: none. Only where keys have entries */
  const int32_t* batch_index; /* batch: the entry of k and v of each sequence, one that does not exist having
                                 keys and values of 0; NULL: sequence i has entry i. Only where keys have
                                 entries */
} tandem_varlen;

/* One forward call: o = softmax(scale * q k^T + mask) v, and the natural log of the sum of exponentials.
 *
 * Zero-initialise it, set struct_size = sizeof(tandem_forward_args), then fill in what is needed. */
typedef struct tandem_forward_args {
  size_t struct_size;     /* sizeof(tandem_forward_args) of the header that the caller was compiled with */
  tandem_backend backend; /* default: TANDEM_BACKEND_AUTO */
  tandem_tensor q;        /* b, sq, q_heads, d; d a multiple of 8 up to 256 */
  tandem_tensor k;        /* b, sk, kv_heads, d; q_heads is a multiple of kv_heads; dtype of q; written only
                             where varlen appends */
  tandem_tensor v;        /* the same; of 8 bits: see tandem_value_layout */
  tandem_tensor o;        /* b, sq, q_heads, d; written; dtype of q; of 8-bit q bf16 or fp16 (CPU: or fp32) */
  tandem_tensor lse;      /* b, sq, q_heads, 1; written; fp32; data == NULL: not wanted, all ignored */
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
} tandem_forward_args;

/* Bytes of workspace that tandem_forward needs for these arguments, in the memory of the backend that serves
 * them (host memory for the CPU, device memory for Hopper). Data pointers may be NULL here; if backend is
 * AUTO, not all of them. 0 is a usual answer. */
TANDEM_API tandem_status tandem_forward_workspace(const tandem_forward_args* args, size_t* bytes);

/* Runs one forward call.
 *
 * workspace: at least tandem_forward_workspace bytes, aligned to 256; contents need not be initialised and
 * are not kept. NULL if 0 bytes are needed; also on Hopper where all sequences have the same lengths
 * and there are no sinks, but few queries on many keys are slower without. One workspace serves one call at a
 * time. stream: a cudaStream_t (CUstream) of the current device for Hopper, where the call only enqueues work
 * and can be captured in a CUDA graph; ignored by the other backends, which return when the result is
 * written.
 *
 * Empty problems are no errors: with sq = 0 nothing is written; a query that sees no key gets o = 0, lse =
 * -inf.
 *
 * Scores may be of any size on the CPU; on Hopper, in decoding steps too, scale * q.k has to stay below 1e8
 * in magnitude. */
TANDEM_API tandem_status tandem_forward(const tandem_forward_args* args, void* workspace,
                                        size_t workspace_bytes, void* stream);

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
  int32_t deterministic;   /* 1: the same bits in every run; 0: sums in any order, where that is faster. The
                              backends CPU and REFERENCE are always deterministic */
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
} tandem_backward_args;

/* Bytes of workspace that tandem_backward needs for these arguments, in the memory of the backend that serves
 * them (docs/backward.md says how many). Data pointers may be NULL here; if backend is AUTO, not all of them.
 * For the rest only whether dlse.data and dsinks are NULL counts. */
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
 * Tokens beyond a sequence's length are never read, nor are the slots of their pages: both may hold anything.
 * What lies in device memory can't be validated, but never leads out of bounds of k and v: a negative length
 * counts as 0, one above capacity - (tokens appended) as that, and the keys and values of a page or entry
 * that does not exist count as 0 (and what is appended to it is dropped). */
typedef struct tandem_cache {
  size_t struct_size; /* sizeof(tandem_cache) */
  tandem_tensor k, v; /* contiguous: entries, capacity, kv_heads, d; paged: pages, page_size, kv_heads, d.
                         Written only where tokens are appended; not otherwise */
  const int32_t* page_table;  /* rows of pages_per_sequence page numbers; NULL: contiguous */
  int64_t page_table_stride;  /* elements from row to row, >= 0; read where page_table is not NULL only */
  int64_t pages_per_sequence; /* slots of a row, >= 1; read where page_table is not NULL only */
  const int32_t* lengths;     /* b: tokens in the cache before this call */
  const int32_t* batch_index; /* b: entry, or row of the page table, of each sequence, which for rows has to
                                 be right; NULL: sequence i has entry or row i */
} tandem_cache;

/* What a cache of 8 bits (TANDEM_E4M3) stands for: each element for its value times its scale, fp32, > 0.
 *
 * With per_token = 0 row i of the scales is sequence i's of the call, and appended tokens are divided by
 * them: beyond 448 an element becomes 448. With per_token = 1 scales lie as their tokens do, in the same
 * pages and rows, also inline between them; those of tokens beyond a length are never read. Appending finds a
 * scale for each token and head, the least power of two that brings its largest magnitude to 448 or less, and
 * writes it.
 */
typedef struct tandem_cache_scales {
  size_t struct_size; /* sizeof(tandem_cache_scales) */
  /* per_token = 0: batch, 1, kv_heads, 1; batch and heads may also be 1: shared. data == NULL: all are 1.
   * per_token = 1: the first three dimensions of cache.k, and 1. Any strides */
  tandem_tensor k;
  tandem_tensor v;   /* the same */
  int32_t per_token; /* 0 or 1 */
} tandem_cache_scales;

/* One decoding step: a few new queries of each sequence against its cache, which the step may first append
 * to. The cache has the dtype of q, or 8 bits.
 *
 * Sequence i has n = lengths[i] + s_new keys. Its queries stand at the last sq positions: query j at n - sq +
 * j, from where the mask counts and which rotary embedding turns it by. A query that sees no key gets o = 0
 * and lse = -inf.
 *
 * Zero-initialise it, set struct_size = sizeof(tandem_decode_args), then fill in what is needed. */
typedef struct tandem_decode_args {
  size_t struct_size;        /* sizeof(tandem_decode_args) of the header that the caller was compiled with */
  tandem_backend backend;    /* default: TANDEM_BACKEND_AUTO */
  tandem_tensor q;           /* b, sq, q_heads, d; sq 1 to 8; d a multiple of 8 up to 256 */
  const tandem_cache* cache; /* q_heads is a multiple of kv_heads; pages on Hopper have a power of two of
                                tokens. Not NULL */
  tandem_tensor k_new; /* b, s_new, kv_heads, d: appended at positions lengths[i] ...; dtype of q. data ==
                          NULL: nothing is appended, all ignored. No two sequences may append to one place */
  tandem_tensor v_new; /* the same; data == NULL exactly if k_new's is */
  const tandem_rotary* rotary; /* NULL: no rotary embedding */
  tandem_tensor o;             /* b, sq, q_heads, d; written; dtype of q */
  tandem_tensor lse;           /* b, sq, q_heads, 1; written; fp32; data == NULL: not wanted, all ignored */
  const tandem_mask* mask;     /* NULL: every query sees every key */
  float scale;                 /* > 0, at most 2.3e38; 0 means 1 / sqrt(d) */
  float softcap;               /* > 0: scores become softcap * tanh(scale * q k^T / softcap); 0: off */
  int64_t split_size; /* 0: keys are split for speed. A multiple of 64: fixed splits of that many keys, so
                         that a sequence's result is the same to the bit in any batch. The CPU's always is */
  const void* plan; /* what tandem_decode_plan made for the same shapes and lengths; NULL: this call balances
                       for itself */
  const tandem_study* study; /* NULL: the kernel that measures best */
  const float* sinks; /* q_heads numbers in the memory of the backend, NULL: none. As in tandem_forward_args;
                         a query that sees no other key gets o = 0 and lse = the sink */
  const tandem_cache_scales* scales; /* of a cache of TANDEM_E4M3; NULL: all 1 */
} tandem_decode_args;

/* Bytes of workspace that tandem_decode needs for these arguments, in the memory of the backend that serves
 * them. Data may be anything here (but q's, or the next that is given, if backend is AUTO): only which of it
 * is NULL counts, for k_new, lse, page_table, batch_index and cos, which may not be NULL. Lengths are not
 * read. */
TANDEM_API tandem_status tandem_decode_workspace(const tandem_decode_args* args, size_t* bytes);

/* Runs one decoding step: one kernel on Hopper.
 *
 * workspace: at least tandem_decode_workspace bytes, aligned to 256, ZEROED ONCE before its first use; every
 * call leaves it ready for the next, of any shape that it is large enough for. NULL if 0 bytes are needed.
 * One workspace serves one call at a time. stream: as in tandem_forward; a captured call reads lengths, page
 * table and batch index anew at every replay.
 *
 * b = 0 is no error: nothing is written then. */
TANDEM_API tandem_status tandem_decode(const tandem_decode_args* args, void* workspace,
                                       size_t workspace_bytes, void* stream);

/* Bytes of the plan that tandem_decode_plan makes for these arguments; 0 where the backend needs none (the
 * CPU). Data: as for tandem_decode_workspace. */
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

/* Merges partial results: one kernel on Hopper, without a workspace, where strides and addresses of o_parts
 * and o are multiples of 16 bytes. stream: as in tandem_forward. Rows without elements are no error: nothing
 * is written then. */
TANDEM_API tandem_status tandem_merge(const tandem_merge_args* args, void* stream);

/* Quantises q, k or v to 8 bits for tandem_forward, in one pass:
 *
 * scale = the least power of two that maps the largest magnitude of a block to 448 or less (1 where all is
 * 0), or the given one; out = x / scale, rounded to nearest even, beyond 448 to 448; NaN stays NaN.
 *
 * With hadamard, every row of x is first multiplied by H diag(signs) / sqrt(d), H the Hadamard matrix of size
 * d: "incoherent processing", which spreads an outlier over all columns. q and k need the same seed, so that
 * q k^T stays what it is; v has none.
 *
 * Zero-initialise it, set struct_size = sizeof(tandem_quantize_args), then fill in what is needed. */
typedef struct tandem_quantize_args {
  size_t struct_size;     /* sizeof(tandem_quantize_args) of the header that the caller was compiled with */
  tandem_backend backend; /* default: TANDEM_BACKEND_AUTO */
  tandem_tensor x; /* b, s, heads, d; d a multiple of 8 up to 256. On Hopper bf16 or fp16, d 64, 128 or 256 */
  tandem_tensor out;          /* b, s, heads, d, or as v in tandem_value_layout; e4m3; written */
  tandem_value_layout layout; /* of out */
  tandem_tensor scale; /* b, blocks, heads, 1, each also 1 where it is shared; fp32; written, or read if
                          given. On Hopper it is shared only if it is given */
  int64_t block; /* tokens that share a scale; 0: all, blocks is 1. On Hopper a multiple of 128, and 128 where
                    scale is written */
  int32_t scale_given; /* 1: scale is read: all > 0 */
  int32_t hadamard;    /* 1: as above; d has to be a power of two */
  uint64_t seed;       /* of the signs; read where hadamard is 1 */
} tandem_quantize_args;

/* Quantises a tensor: one kernel on Hopper, without a workspace. stream: as in tandem_forward. */
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
