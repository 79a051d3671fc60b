/* SPDX-License-Identifier: Apache-2.0
 *
 * Which Hopper kernel serves a call: for study of the kernels, and no part of the stable interface. Names and
 * meanings may change in any release, so the struct's size has to be exactly that of the library's.
 */
#ifndef TANDEM_STUDY_H
#define TANDEM_STUDY_H

#include <tandem/tandem.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the matrix products and the softmax of a forward kernel overlap. */
typedef enum tandem_overlap {
  TANDEM_OVERLAP_AUTO = 0,       /* what measures best for the shape */
  TANDEM_OVERLAP_SERIAL = 1,     /* FlashAttention-3's Algorithm 1: each product is waited for at once */
  TANDEM_OVERLAP_TWO_STAGE = 2,  /* Algorithm 2: the softmax of a block while P V of the block before runs */
  TANDEM_OVERLAP_THREE_STAGE = 3 /* Algorithm 4: and while Q K^T of the block after runs */
} tandem_overlap;

/* Whether the two or three consumer warpgroups of a forward kernel take turns at the tensor cores. */
typedef enum tandem_turn {
  TANDEM_TURN_AUTO = 0,
  TANDEM_TURN_FREE = 1,    /* as the hardware arbitrates */
  TANDEM_TURN_PINGPONG = 2 /* in turns: the products of one warpgroup while the others are in their softmax */
} tandem_turn;

/* How decode turns scores into outputs. */
typedef enum tandem_decode_kernel {
  TANDEM_DECODE_AUTO = 0,
  TANDEM_DECODE_PLAIN = 1,     /* grouped queries as the 64-row operand */
  TANDEM_DECODE_SHARED_P = 2,  /* transposed products, probabilities through shared memory */
  TANDEM_DECODE_REGISTER_P = 3 /* transposed products, probabilities in registers, keys split across warps */
} tandem_decode_kernel;

/* All choices have the same result up to rounding. libtandem has the kernels that are chosen where nothing is
 * asked for; libtandem_study, which has the same interface and is not installed, has all. One that the
 * library lacks is TANDEM_UNSUPPORTED on Hopper; the other backends have no such kernels, and ignore it. */
struct tandem_study {
  size_t struct_size;          /* sizeof(tandem_study) */
  tandem_overlap overlap;      /* of tandem_forward */
  tandem_turn turn;            /* of tandem_forward */
  tandem_decode_kernel kernel; /* of tandem_decode */
  int block_m;                 /* rows of a tile; 0: any. Of tandem_decode: of the kernels that AUTO weighs */
  int block_n;                 /* keys of a block; 0: any */
};

/* Writes how the Hopper backend would serve the call, and what each way to do so costs by the model that
 * decides, line after line, cut off at `size` bytes with the 0 at the end. Needs no device. Data: as for
 * tandem_forward_workspace. */
TANDEM_API tandem_status tandem_explain_forward(const tandem_forward_args* args, char* text, size_t size);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_STUDY_H */
