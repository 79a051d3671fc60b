// What 8-bit queries, keys and values stand for, and the order of transposed values.
#pragma once

#include <cstdint>

#include <tandem/tandem.h>

#include "core/shift.h"

namespace tandem::core {

/// Where key `key` stands in a row of transposed values: of each 16 keys, the order 0 1 8 9 2 3 10 11 4 5 12
/// 13 6 7 14
/// 15. So the probabilities that a thread holds after Q K^T are, four by four, those that it needs for P V.
constexpr std::int64_t position_of_key(std::int64_t key) {
  const std::int64_t in_eight = key % 8, upper = key % 16 / 8;
  return key / 16 * 16 + in_eight / 2 * 4 + upper * 2 + in_eight % 2;
}
/// The inverse.
constexpr std::int64_t key_of_position(std::int64_t position) {
  const std::int64_t lane = position % 16 / 4, in_four = position % 4;
  return position / 16 * 16 + in_four / 2 * 8 + lane * 2 + in_four % 2;
}
/// Keys are permuted in groups of so many, and rows of transposed values padded to whole groups.
inline constexpr std::int64_t key_group = 16;

/// Scales of one tensor: what an element stands for is its value times its scale.
struct Scales {
  tandem_tensor
      values;  ///< fp32, batch x blocks x heads x 1, each 1 where it is shared; data == nullptr: all 1
  std::int64_t block;  ///< tokens of a block

  /// Of a token of head `head` of `heads`.
  float of(std::int64_t batch, std::int64_t token, std::int64_t head, std::int64_t heads) const {
    if (values.data == nullptr) return 1;
    const std::int64_t own_head = values.shape[2] == 0 ? 0 : head * values.shape[2] / heads;
    return static_cast<const float*>(
        values
            .data)[batch * values.stride[0] + token / block * values.stride[1] + own_head * values.stride[2]];
  }
};

/// All of a forward call's. Strides of dimensions of size 1 are 0.
struct Quantisation {
  Scales q, k, v;
  bool v_transposed;    ///< v is b, v_terms * d, kv_heads, keys (tandem_value_layout)
  int v_terms = 1;      ///< of each value: it stands for their sum times its scale
  float amplitude = 0;  ///< of the elements of q and k none is larger; 0: not known
  Shift v_shift = {};   ///< what every value stands for besides
  /// fp32, as lse; data == nullptr: none. Times the problem's scale it is what every score of a row is
  /// besides
  Tensor q_dot_k_shift = {};

  /// That of a row.
  float dot_of_row(std::int64_t batch, std::int64_t query, std::int64_t head) const {
    const Tensor& t = q_dot_k_shift;
    if (t.data == nullptr) return 0;
    return static_cast<const float*>(t.data)[batch * t.stride[0] + query * t.stride[1] + head * t.stride[2]];
  }

  /// Whether fp16 holds every score, before its scales.
  constexpr bool scores_fit_fp16(std::int64_t head_dim) const {
    constexpr float largest = 65504;
    return amplitude > 0 && static_cast<float>(head_dim) * amplitude * amplitude <= largest;
  }
};

/// Those of an 8-bit cache. Strides of dimensions of size 1 are 0.
struct CacheScales {
  /// batch x 1 x heads x 1, batch and heads also 1; per token: as the cache, with a last dimension of 1. data
  /// == nullptr: all 1
  tandem_tensor k, v;
  bool per_token;
  bool hadamard;       ///< keys are multiplied by the matrix of `seed` (core/hadamard.h)
  std::uint64_t seed;  ///< read where `hadamard` is set

  /// Of a token: `entry` and `row` say where it lies in the cache.
  static float* at(const tandem_tensor& scales, std::int64_t entry, std::int64_t row, std::int64_t head) {
    return static_cast<float*>(scales.data) + entry * scales.stride[0] + row * scales.stride[1] +
           head * scales.stride[2];
  }
  /// Of a sequence's head, where tokens have none of their own.
  static float of(const tandem_tensor& scales, std::int64_t sequence, std::int64_t head) {
    return scales.data == nullptr ? 1 : *at(scales, sequence, 0, head);
  }
};

}  // namespace tandem::core
