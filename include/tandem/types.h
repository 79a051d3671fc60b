/* SPDX-License-Identifier: Apache-2.0
 *
 * What the calls of tandem.h have in common: statuses, dtypes, tensors, and the structs that say what a call
 * does beside its tensors. Include tandem.h.
 */
#ifndef TANDEM_TYPES_H
#define TANDEM_TYPES_H

#include <stddef.h>
#include <stdint.h>

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
  TANDEM_E4M3 =
      4,          /* 8 bits; tandem_forward's q, k and v, tandem_decode's caches, tandem_quantize's outputs */
  TANDEM_INT8 = 5 /* -127 ... 127, in two's complement; where E4M3 is, but for tandem_forward's v */
} tandem_dtype;

typedef enum tandem_backend {
  /* Hopper where the data are in device memory, the CPU where they are in host memory. Decided by the first
   * of a call's tensors, in the order of its arguments, that has elements and whose data is not NULL: q
   * mostly */
  TANDEM_BACKEND_AUTO = 0,
  TANDEM_BACKEND_CPU = 1,      /* host memory; tiled, fp32 arithmetic, tandem_info.cpu_threads threads */
  TANDEM_BACKEND_HOPPER = 2,   /* device memory; bf16 and fp16 */
  TANDEM_BACKEND_REFERENCE = 3 /* host memory; the plain float64 oracle, slow */
} tandem_backend;

/* A borrowed four-dimensional tensor, in the order batch, sequence, heads, head dim. Tandem owns nothing.
 *
 * Hopper's kernels move most tensors by TMA: q, k, v, o, their gradients, qv, caches and what is appended to
 * them, and tandem_quantize's x and out. There their data have to be aligned to 16 bytes
 * (TANDEM_INVALID_ARGUMENT). The first three strides have to be multiples of 16 bytes, from 0 to below 2^40
 * bytes, and the first three sizes at most 2^28 (TANDEM_UNSUPPORTED).
 *
 * Other tensors (scales, shifts, lse, dlse) have any strides, and are aligned to their elements. */
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
  /* 0: no chunks. Else, up to 2^60, positions are cut into chunks of so many, from the first key on, and a
   * query sees, of what `kind` lets it see, only the keys in the chunk of its own position; one that stands
   * before the first key sees none. On Hopper of 16 bits and up to head dim 192; tandem_forward needs
   * workspace then. Not in tandem_backward */
  int64_t chunk;
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
 * 0 (which is not checked), with shape batch, blocks, heads, 1 and any strides. Batch and heads may also be
 * 1: shared. A block is so many tokens, the last one may have fewer. On Hopper blocks of k and v are
 * multiples of 128. data == NULL: all scales are 1. */
typedef struct tandem_scales {
  size_t struct_size;           /* sizeof(tandem_scales) */
  tandem_tensor q;              /* heads: q_heads, kv_heads or 1 */
  tandem_tensor k;              /* heads: kv_heads or 1 */
  tandem_tensor v;              /* heads: kv_heads or 1 */
  int64_t q_block;              /* tokens of a block; 0: all, blocks is 1 */
  int64_t k_block;              /* the same */
  int64_t v_block;              /* the same */
  tandem_value_layout v_layout; /* default: TANDEM_VALUES_BY_KEY */
  /* 0 and 1: one. 2, by column only: v is b, 2 * d, kv_heads, n, and columns d ... 2 * d - 1 are a second
   * term of each value: it stands for the sum of both times its scale. On Hopper with q and k of INT8 */
  int32_t v_terms;
  /* Of q and k of E4M3: no element is larger in magnitude, as tandem_quantize_args.amplitude sees to; 0 ...
   * 448, 0: not known. Where d * qk_amplitude^2 is at most 65504, which is what fp16 holds, Hopper has faster
   * kernels (v by column, d up to 128, no cap). They take scores in fp16: rows with larger elements may come
   * out as NaN or wrong */
  float qk_amplitude;
  /* The vector that tandem_quantize_args.shift has taken off the values of each head: fp32, batch, 1, heads,
   * d; batch and heads may be 1: shared, or heads kv_heads. Added to o before it is rounded; rows that see no
   * key stay 0. On Hopper up to head dim 128. data == NULL: none */
  tandem_tensor v_shift;
  /* What tandem_quantize_args.k_shift has taken off the scores of each query, before scale: fp32, b, sq,
   * q_heads, 1, as tandem_quantize_args.q_dot_k_shift. lse gets scale times it; o needs nothing. With a
   * softcap keys can't have a shift. On Hopper up to head dim 128. data == NULL: none */
  tandem_tensor q_dot_k_shift;
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
 * (pages, page_size, kv_heads, d; on Hopper page_size is a power of two, at least 16), and row i of the table
 * names in slot j the page of keys j * page_size ... of sequence i. With neither, they have an entry for each
 * sequence. Of these keys the first seqused_k[i] are in use. Keys that are not in use are never read, nor are
 * the slots of their pages: both may hold anything.
 *
 * Appending: with k_new and v_new, keys and values of the caches, in entries or pages, are written first, and
 * then attended to with the others: those of sequence i behind its first seqused_k[i] ones. No two sequences
 * may append to one place. What a sequence has no room for is lost, the last of its tokens first;
 * where seqused_k[i] leaves too little room, it counts as the room without them.
 *
 * Of a batch of 0 sequences arrays of them may be NULL.
 *
 * Masks stand as in a call of the sequence alone. Rows of q, o and lse that belong to no sequence are not
 * touched. What lies in device memory can't be validated, but never leads out of bounds: numbers outside of
 * the tensors are clamped to them, and the keys and values of a page that does not exist count as 0. */
typedef struct tandem_varlen {
  size_t struct_size;          /* sizeof(tandem_varlen) */
  int64_t batch;               /* sequences */
  const int32_t* cu_seqlens_q; /* batch + 1, ascending; NULL: q has `batch` entries of its sequence length */
  const int32_t* cu_seqlens_k; /* batch + 1, ascending; NULL: k and v have `batch` entries, or pages */
  const int32_t* seqused_k;    /* batch; NULL: all; required with a page_table, and to append */
  const int32_t* page_table;   /* rows of pages_per_sequence page numbers; NULL: keys are not paged */
  int64_t page_table_stride;   /* elements from row to row, >= 0; read where page_table is not NULL only */
  int64_t pages_per_sequence;  /* slots of a row, >= 1; read where page_table is not NULL only */
  int64_t max_seqlen_q;        /* no sequence has more queries: those beyond are left out. 0: not known */
  int64_t max_seqlen_k; /* no sequence has more keys: those beyond are left out. 0: not known. Kernels are
                           chosen by both bounds: pass what is known */
  tandem_tensor k_new;  /* batch, s_new, kv_heads, d, or with cu_seqlens_k_new packed; dtype of q. data ==
                           NULL: nothing is appended, all ignored. k and v are written then */
  tandem_tensor v_new;  /* the same with v's dv, on Hopper d; data == NULL exactly if k_new's is */
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
  /* 0: keys are split and kernels chosen for speed, by the whole batch. A multiple of 64: those of sequences
   * of few queries are split at multiples of it, and no choice depends on the batch or on bounds, so that a
   * sequence's result is the same to the bit in any batch (docs/varlen.md, Bits). The CPU's always is */
  int64_t split_size;
} tandem_varlen;

/* Block-sparse attention: of the keys that the mask lets it see, a query sees only those in the key blocks
 * that are listed for its own block of queries. Blocks are counted from the first query and the first key.
 *
 * With tandem_varlen an entry is a sequence, and blocks are counted from its own first query and first key. A
 * sequence has rows for max_seqlen_q queries, or, where that is 0, for as many as q has rows; those behind
 * its own queries are not read. Blocks behind its last key may be listed, and have no keys.
 *
 * Row r of the lists, r = entry * batch_stride + query head * head_stride + block of queries, has a count of
 * key blocks, and their numbers: ascending, each once. What lies in device memory can't be validated:
 * other numbers give wrong results there, but never lead out of bounds; a count below 0 is 0, and one
 * above `slots` is that. */
typedef struct tandem_block_list {
  size_t struct_size; /* sizeof(tandem_block_list) */
  int64_t q_block;    /* queries of a block, >= 1, the last one may have fewer; on Hopper a multiple of 128 */
  int64_t k_block;    /* keys of a block, the same */
  const int32_t* counts; /* one for each row, in the memory of the backend */
  const int32_t* blocks; /* `slots` for each row, in the memory of the backend; read up to the row's count */
  int64_t slots;         /* 0 ... 2^31 - 1 */
  int64_t batch_stride;  /* rows from entry (sequence) to entry, 0 ... 2^31 - 1; 0: all have the same */
  int64_t head_stride;   /* rows from query head to query head, the same */
} tandem_block_list;

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_TYPES_H */
