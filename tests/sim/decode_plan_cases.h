// Decoding steps for tests of the plan: shapes and addresses, without any memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>

#include "core/decode_problem.h"
#include "tests/support/host_tensor.h"

namespace tandem::test {

template <typename T>
T* at(std::uintptr_t number) {
  return reinterpret_cast<T*>(number << 32);
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// A tensor of which nobody else has the strides.
inline core::Tensor tensor(std::uintptr_t number, tandem_dtype dtype, std::int64_t b, std::int64_t s,
                           std::int64_t h, std::int64_t d) {
  const auto n = static_cast<std::int64_t>(number) * 64;
  return {at<void>(number), dtype, {b, s, h, d}, {n << 12, n << 6, n, 1}};
}

struct Shape {
  std::int64_t batch = 2, q_len = 1, group = 1, kv_heads = 1, head_dim = 128, capacity = 1024, page_size = 0;
  tandem_dtype dtype = TANDEM_BF16;
  bool eight_bit = false, per_token = false, int8 = false, hadamard = false;
  std::int64_t value_dim = 0;  ///< > 0: values are so many of the keys' first columns
};

/// Makes values and outputs the first columns of the keys.
inline void put_values_into_keys(core::DecodeProblem& p, std::int64_t value_dim) {
  p.v_cache = p.k_cache, p.v_new = p.k_new;
  p.v_cache.shape[3] = p.o.shape[3] = value_dim;
  if (p.appends()) p.v_new.shape[3] = value_dim, p.rotary = {};
}

inline core::DecodeProblem problem_of(const Shape& x) {
  const std::int64_t q_heads = x.group * x.kv_heads;
  const tandem_dtype cache = !x.eight_bit ? x.dtype : x.int8 ? TANDEM_INT8 : TANDEM_E4M3;
  const std::int64_t pages = x.page_size > 0 ? x.batch * (x.capacity / x.page_size) + 1 : x.batch;
  const std::int64_t rows = x.page_size > 0 ? x.page_size : x.capacity;
  core::DecodeProblem p{};
  p.q = tensor(1, x.dtype, x.batch, x.q_len, q_heads, x.head_dim);
  p.k_cache = tensor(2, cache, pages, rows, x.kv_heads, x.head_dim);
  p.v_cache = tensor(3, cache, pages, rows, x.kv_heads, x.head_dim);
  p.o = tensor(4, x.dtype, x.batch, x.q_len, q_heads, x.head_dim);
  p.lse = tensor(5, TANDEM_FP32, x.batch, x.q_len, q_heads, 1);
  if (x.page_size > 0) {
    p.page_table = at<const std::int32_t>(6);
    p.pages_per_sequence = x.capacity / x.page_size, p.page_table_stride = p.pages_per_sequence + 3;
  }
  p.lengths = at<const std::int32_t>(7), p.batch_index = at<const std::int32_t>(8);
  p.scale = 0.25f;
  p.scales.per_token = x.per_token, p.scales.hadamard = x.hadamard, p.scales.seed = 5;
  if (x.eight_bit) {
    p.scales.k = tensor(9, TANDEM_FP32, 1, 1, x.kv_heads, 1);
    p.scales.v = tensor(10, TANDEM_FP32, 1, 1, x.kv_heads, 1);
  }
  if (x.value_dim > 0) put_values_into_keys(p, x.value_dim);
  return p;
}

inline core::DecodeProblem draw_problem(std::uint64_t seed) {
  Random random(seed);
  const auto one_of = [&random](std::initializer_list<std::int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  Shape x;
  x.batch = one_of({1, 2, 5, 17, 64, 132, 300}), x.q_len = one_of({1, 1, 2, 4, 9});
  x.group = one_of({1, 2, 4, 7, 8, 12, 16}), x.kv_heads = one_of({1, 2, 3, 8, 11});
  x.head_dim =
      random() % 3 == 0 ? one_of({8, 64, 128, 256}) : 8 * (1 + static_cast<std::int64_t>(random() % 32));
  x.page_size = one_of({0, 0, 1, 16, 64, 128});
  x.capacity = one_of({128, 256, 1000, 1024, 4096, 20000, 131072}) / 64 * 64 + (x.page_size == 0 ? 7 : 0);
  if (x.page_size > 0) x.capacity = ceil_div(x.capacity, x.page_size) * x.page_size;
  x.dtype = random() % 2 == 0 ? TANDEM_BF16 : TANDEM_FP16;
  x.eight_bit = random() % 3 == 0, x.per_token = x.eight_bit && random() % 2 == 0;
  const bool in_keys = !x.eight_bit && random() % 3 == 0;
  if (in_keys) x.head_dim = 8 * (2 + static_cast<std::int64_t>(random() % 71));
  const bool wide = !in_keys && !x.eight_bit && random() % 6 == 0;
  if (wide) x.head_dim = 8 * (33 + static_cast<std::int64_t>(random() % 32));
  x.int8 = x.eight_bit && random() % 2 == 0;
  x.hadamard = x.eight_bit && std::has_single_bit(static_cast<std::uint64_t>(x.head_dim));
  core::DecodeProblem p = problem_of(x);
  if (random() % 3 == 0) p.split_size = one_of({64, 256, 1024});
  if (random() % 3 == 0) p.kernel = static_cast<tandem_decode_kernel>(one_of({1, 2, 3}));
  if (random() % 2 == 0) p.softcap = 30;
  if (random() % 2 == 0) p.mask = core::Mask::causal();
  if (random() % 2 == 0) {
    const std::int64_t added = one_of({1, 3});
    p.k_new = tensor(11, x.dtype, x.batch, added, x.kv_heads, x.head_dim);
    p.v_new = tensor(12, x.dtype, x.batch, added, x.kv_heads, x.head_dim);
  }
  if (random() % 2 == 0) p.rotary = {at<void>(13), at<void>(14), TANDEM_FP32, x.capacity, 8, true};
  if (random() % 2 == 0) p.sinks = at<const float>(15);
  if (in_keys || wide) p.kernel = random() % 2 == 0 ? TANDEM_DECODE_AUTO : TANDEM_DECODE_SHARED_P;
  if (in_keys) {
    const auto most = static_cast<std::uint64_t>(std::min<std::int64_t>(64, x.head_dim / 8 - 1));
    put_values_into_keys(p, 8 * (1 + static_cast<std::int64_t>(random() % most)));
  }
  return p;
}

}  // namespace tandem::test
