// What kernels of 8 bits can't take, named.
#pragma once

#include <string>
#include <utility>

#include "core/problem.h"
#include "core/status.h"
#include "forward/eight_bit_recipes.h"
#include "forward/variant.h"

namespace tandem::forward {

/// A block of keys has one scale.
inline core::Status check_scale_blocks(const core::Quantisation& quantisation) {
  for (auto [name, scales] :
       {std::pair{"scales.k_block", &quantisation.k}, {"scales.v_block", &quantisation.v}}) {
    if (scales->values.data == nullptr || scales->values.shape[1] <= 1) continue;
    if (scales->block % eight_bit_block_n != 0)
      return {TANDEM_UNSUPPORTED, std::string(name) + " is " + std::to_string(scales->block) +
                                      "; the Hopper backend takes multiples of " +
                                      std::to_string(eight_bit_block_n)};
  }
  return {};
}

/// Whether lse is another one for the keys' shift.
inline bool wants_k_shift(const core::ForwardProblem& problem) {
  return problem.lse.data != nullptr && problem.quantisation.q_dot_k_shift.data != nullptr;
}

/// Wide heads have no registers to add what shifts have taken off.
inline core::Status check_shifts(const core::ForwardProblem& problem, const ForwardVariant& variant) {
  const auto refuse = [&problem](const char* name, const char* advice) -> core::Status {
    return {TANDEM_UNSUPPORTED, std::string(name) + " is given, but the head dim is " +
                                    std::to_string(problem.head_dim()) +
                                    "; the Hopper backend takes it up to 128: pass NULL, and add " + advice};
  };
  if (variant.adds_shifts()) return {};
  if (problem.quantisation.v_shift.given()) return refuse("scales.v_shift", "it to o yourself");
  if (wants_k_shift(problem)) return refuse("scales.q_dot_k_shift", "scale times it to lse yourself");
  return {};
}

}  // namespace tandem::forward
