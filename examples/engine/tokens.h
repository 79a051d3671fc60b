// SPDX-License-Identifier: Apache-2.0
//
// What stands for a model here: each token's query, key and value are random numbers that follow from the
// request, the position and, for a wrong draft, the step.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "../memory.h"
#include "options.h"

namespace engine {

using tandem::Bf16;

/// A token of a request: what is there, or what a draft wrongly takes to be there.
struct Token {
  std::int64_t request, position;
  std::int64_t wrong_in_step = 0;  ///< 0: it is right
};

/// Rows of all heads, one after another.
struct TokenRows {
  std::vector<Bf16> q, k, v;
};

inline TokenRows rows_of(const Options& options, const Token& token) {
  std::seed_seq seed{options.seed, token.request, token.position, token.wrong_in_step};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto draw = [&](std::int64_t heads) {
    std::vector<Bf16> row(static_cast<std::size_t>(heads * options.head_dim));
    for (Bf16& value : row) value = example::bf16_of(normal(random));
    return row;
  };
  TokenRows rows;
  rows.q = draw(options.heads), rows.k = draw(options.kv_heads), rows.v = draw(options.kv_heads);
  return rows;
}

/// Angles as a model has them: position * 10000^(-pair / pairs).
struct Angles {
  std::vector<float> cos, sin;

  explicit Angles(const Options& options) {
    const std::int64_t half = options.head_dim / 2;
    for (std::int64_t position = 0; position < options.positions(); ++position)
      for (std::int64_t pair = 0; pair < half; ++pair) {
        const double angle = static_cast<double>(position) *
                             std::pow(10000.0, -static_cast<double>(pair) / static_cast<double>(half));
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
  }
};

/// Heads of a token as the definition turns them: columns i and i + d / 2 are a complex number.
inline std::vector<float> turned(const Angles& angles, std::span<const Bf16> heads, std::int64_t head_dim,
                                 std::int64_t position) {
  std::vector<float> out;
  for (const Bf16 x : heads) out.push_back(example::value_of(x));
  const auto half = static_cast<std::size_t>(head_dim / 2);
  const std::size_t row = static_cast<std::size_t>(position) * half;
  for (std::size_t first = 0; first < out.size(); first += 2 * half)
    for (std::size_t i = 0; i < half; ++i) {
      float &x = out[first + i], &y = out[first + half + i];
      const double c = angles.cos[row + i], s = angles.sin[row + i], old = x;
      x = static_cast<float>(old * c - y * s);
      y = static_cast<float>(old * s + y * c);
    }
  return out;
}

}  // namespace engine
