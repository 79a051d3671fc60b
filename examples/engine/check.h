// SPDX-License-Identifier: Apache-2.0
//
// What a step's outputs ought to be: float64 attention of each sequence over keys and values that this
// program keeps for itself, turned by its own arithmetic.
#pragma once

#include <cmath>
#include <map>
#include <span>
#include <vector>

#include "../memory.h"
#include "scheduler.h"
#include "tokens.h"

namespace engine {

class Oracle {
 public:
  Oracle(const Options& options, const Angles& angles) : options_(options), angles_(angles) {}

  /// Rows of all tokens of the step.
  std::vector<float> outputs(const Scheduler& scheduler, const std::vector<Share>& shares) {
    std::vector<float> all;
    for (const Share& share : shares) {
      const std::vector<float> own = outputs_of(scheduler.request(share), share);
      all.insert(all.end(), own.begin(), own.end());
    }
    return all;
  }

 private:
  /// Keys, as a cache holds them, and values.
  struct History {
    std::vector<float> k, v;
  };

  std::vector<float> outputs_of(const Request& request, const Share& share) {
    History& history = histories_[request.number];
    const auto row = static_cast<std::size_t>(options_.kv_heads * options_.head_dim);
    for (std::vector<float>* values : {&history.k, &history.v})  // wrong drafts go, or all of a preempted one
      values->resize(static_cast<std::size_t>(request.cached) * row);
    std::vector<float> q;
    for (const Token& token : share.tokens) {
      const TokenRows rows = rows_of(options_, token);
      const auto turn = [&](std::span<const Bf16> heads) {
        return turned(angles_, heads, options_.head_dim, token.position);
      };
      for (const float x : turn(rows.q)) q.push_back(x);
      for (const float x : turn(rows.k)) history.k.push_back(example::value_of(example::bf16_of(x)));
      for (const Bf16 x : rows.v) history.v.push_back(example::value_of(x));
    }
    return attend(q, history, static_cast<std::int64_t>(share.tokens.size()));
  }

  std::vector<float> attend(const std::vector<float>& q, const History& history, std::int64_t tokens) const {
    const auto keys = static_cast<std::int64_t>(history.k.size()) / (options_.kv_heads * options_.head_dim);
    const tandem::Shape queries{
        .batch = 1, .sequence = tokens, .heads = options_.heads, .head_dim = options_.head_dim};
    const tandem::Shape cache{
        .batch = 1, .sequence = keys, .heads = options_.kv_heads, .head_dim = options_.head_dim};
    std::vector<float> o(q.size());
    example::require(
        attention_forward(tandem::Tensor<const float>::bshd(q.data(), queries),
                          tandem::Tensor<const float>::bshd(history.k.data(), cache),
                          tandem::Tensor<const float>::bshd(history.v.data(), cache),
                          tandem::Tensor<float>::bshd(o.data(), queries),
                          {.mask = tandem::Mask::causal(), .backend = TANDEM_BACKEND_REFERENCE}));
    return o;
  }

  const Options& options_;
  const Angles& angles_;
  std::map<std::int64_t, History> histories_;
};

/// The largest difference, NaN where there is one.
inline float largest_difference(const std::vector<Bf16>& outputs, const std::vector<float>& expected) {
  float largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const float difference = std::fabs(example::value_of(outputs[i]) - expected[i]);
    largest = difference <= largest ? largest : difference;
  }
  return largest;
}

}  // namespace engine
