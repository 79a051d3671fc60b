/* SPDX-License-Identifier: Apache-2.0
 *
 * Tandem: exact attention on NVIDIA Hopper, as a plain library. This is the whole C interface (C11).
 *
 * Every function is thread-safe. None prints, exits, synchronises, or allocates device memory.
 * A function that fails returns a status other than TANDEM_OK, leaves every output untouched, and
 * describes the failure in tandem_last_error() of the calling thread.
 */
#ifndef TANDEM_TANDEM_H
#define TANDEM_TANDEM_H

#include <stddef.h>
#include <stdint.h>

#define TANDEM_VERSION_MAJOR 0
#define TANDEM_VERSION_MINOR 1
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
  TANDEM_WORKSPACE_TOO_SMALL = 3, /* see tandem_forward_workspace */
  TANDEM_NO_DEVICE = 4,           /* no driver, no GPU, or a GPU that is not Hopper */
  TANDEM_DEVICE_ERROR = 5,        /* the CUDA driver refused a call; the message carries its own */
  TANDEM_INTERNAL_ERROR = 6       /* a defect in Tandem; please report it */
} tandem_status;

typedef enum tandem_dtype { TANDEM_BF16 = 1, TANDEM_FP16 = 2, TANDEM_FP32 = 3 } tandem_dtype;

typedef enum tandem_backend {
  TANDEM_BACKEND_AUTO = 0,     /* Hopper where q is in device memory, the CPU where it is in host memory */
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

/* window_left and window_right are read for TANDEM_MASK_WINDOW only, and have to be 0 otherwise. */
typedef struct tandem_mask {
  tandem_mask_kind kind;
  int64_t window_left;  /* keys to the left of the query's own position, >= 0 or TANDEM_UNLIMITED */
  int64_t window_right; /* keys to the right of it, >= 0 or TANDEM_UNLIMITED */
} tandem_mask;

/* One forward call: o = softmax(scale * q k^T + mask) v, and the natural log of the sum of exponentials.
 *
 * Zero-initialise it, set struct_size = sizeof(tandem_forward_args), then fill in what is needed. */
typedef struct tandem_forward_args {
  size_t struct_size;     /* sizeof(tandem_forward_args) of the header that the caller was compiled with */
  tandem_backend backend; /* default: TANDEM_BACKEND_AUTO */
  tandem_tensor q;        /* b, sq, q_heads, d; d a multiple of 8 up to 256 */
  tandem_tensor k;        /* b, sk, kv_heads, d; q_heads is a multiple of kv_heads; dtype of q */
  tandem_tensor v;        /* b, sk, kv_heads, d; dtype of q */
  tandem_tensor o;        /* b, sq, q_heads, d; written; dtype of q */
  tandem_tensor lse;      /* b, sq, q_heads, 1; written; fp32; data == NULL: not wanted, all ignored */
  tandem_mask mask;       /* default: full */
  float scale;            /* > 0; 0 means 1 / sqrt(d) */
  float softcap;          /* > 0: scores become softcap * tanh(scale * q k^T / softcap); 0: off */
} tandem_forward_args;

/* Bytes of workspace that tandem_forward needs for these arguments, in the memory of the backend that serves
 * them (host memory for the CPU, device memory for Hopper). Data pointers may be NULL here if backend is not
 * AUTO. 0 is a usual answer. */
TANDEM_API tandem_status tandem_forward_workspace(const tandem_forward_args* args, size_t* bytes);

/* Runs one forward call.
 *
 * workspace: at least tandem_forward_workspace bytes, aligned to 256; contents need not be initialised and
 * are not kept. NULL if 0 bytes are needed. One workspace serves one call at a time. stream: a cudaStream_t
 * (CUstream) of the current device for Hopper, where the call only enqueues work and can be captured in a
 * CUDA graph; ignored by the other backends, which return when the result is written.
 *
 * Empty problems are no errors: with sq = 0 nothing is written; a query that sees no key gets o = 0, lse =
 * -inf. */
TANDEM_API tandem_status tandem_forward(const tandem_forward_args* args, void* workspace,
                                        size_t workspace_bytes, void* stream);

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
