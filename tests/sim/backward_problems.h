// Problems of the backward for tests of its plan: of addresses that nobody reads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>

#include "core/backward_problem.h"
#include "tests/support/backward_case.h"

/// Apart from what tests of the other plans call the same.
namespace tandem::test::backward_problems {

inline constexpr std::uintptr_t unit = std::uintptr_t{1} << 32;
inline char* at(std::uintptr_t number) { return reinterpret_cast<char*>(number * unit); }

inline std::int64_t padded(std::int64_t length) { return (length + 127) / 128 * 128; }

inline core::Tensor contiguous(std::uintptr_t number, tandem_dtype dtype, std::int64_t b, std::int64_t s,
                               std::int64_t h, std::int64_t d) {
  return core::contiguous(at(number), dtype, {b, s, h, d});
}

struct Drawn {
  std::int64_t batch, q_len, k_len, q_heads, kv_heads, head_dim;
};

inline core::BackwardProblem problem_of(const Drawn& x) {
  const auto& [b, sq, sk, hq, hk, d] = x;
  core::BackwardProblem p{};
  p.q = contiguous(1, TANDEM_BF16, b, sq, hq, d), p.o = contiguous(2, TANDEM_BF16, b, sq, hq, d);
  p.dout = contiguous(3, TANDEM_BF16, b, sq, hq, d), p.dq = contiguous(4, TANDEM_BF16, b, sq, hq, d);
  p.k = contiguous(5, TANDEM_BF16, b, sk, hk, d), p.v = contiguous(6, TANDEM_BF16, b, sk, hk, d);
  p.dk = contiguous(7, TANDEM_BF16, b, sk, hk, d), p.dv = contiguous(8, TANDEM_BF16, b, sk, hk, d);
  p.lse = contiguous(9, TANDEM_FP32, b, sq, hq, 1), p.dlse = contiguous(10, TANDEM_FP32, b, sq, hq, 1);
  p.sinks = reinterpret_cast<const float*>(at(11)), p.dsinks = reinterpret_cast<float*>(at(12));
  p.scale = 0.3f;
  return p;
}

inline core::BackwardProblem draw_problem(std::uint64_t seed) {
  Random random(seed);
  const auto draw = [&random](std::uint64_t most) { return static_cast<std::int64_t>(random() % most); };
  const std::int64_t kv_heads = 1 + draw(3);
  core::BackwardProblem p =
      problem_of({draw(4), draw(400), draw(400), kv_heads * (1 + draw(3)), kv_heads, 8 * (1 + draw(32))});
  if (draw(2) == 0) p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = p.dout.dtype = TANDEM_FP16;
  if (draw(4) != 0) p.mask = random_mask(random, p.q_len(), p.k_len());
  if (draw(3) == 0) p.softcap = 20;
  if (draw(2) == 0) p.dlse.data = nullptr;
  if (draw(2) == 0) p.sinks = p.dsinks = nullptr;
  return p;
}

/// The first queries that see no key, and the first keys that nobody sees, one by one.
inline std::int64_t unseeing_queries(const core::BackwardProblem& p) {
  std::int64_t i = 0;
  for (; i < p.q_len(); ++i) {
    const core::KeyRange keys = p.mask.visible_keys(i, p.q_len(), p.k_len());
    if (keys.begin < keys.end) break;
  }
  return i;
}
inline std::int64_t unseen_keys(const core::BackwardProblem& p) {
  std::int64_t first = p.k_len();
  for (std::int64_t i = 0; i < p.q_len(); ++i) {
    const core::KeyRange keys = p.mask.visible_keys(i, p.q_len(), p.k_len());
    if (keys.begin < keys.end) first = std::min(first, keys.begin);
  }
  return first;
}

template <typename Check>
void for_each_draw(Check check) {
  for (std::uint64_t seed = 1; seed <= 400 && !testing::Test::HasFailure(); ++seed) {
    const core::BackwardProblem p = draw_problem(seed);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": batch " << p.batch() << ", " << p.q_len()
                                    << " queries, " << p.k_len() << " keys, heads " << p.q_heads() << "/"
                                    << p.kv_heads() << ", head dim " << p.head_dim() << ", mask "
                                    << p.mask.left << " " << p.mask.right);
    check(p);
  }
}

}  // namespace tandem::test::backward_problems
