// What a step has to come to, where kernels and the oracle may round what they append to different
// neighbours.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/decode.h"
#include "tests/support/decode_case.h"

namespace tandem::test {

/// The oracle's values. Of an 8-bit cache over the tokens that the step has appended as they lie there now: a
/// row times a Hadamard matrix is near the middle of two neighbours in many columns, and angles of fp32
/// decide. That they are what they should be is for cache_failure.
inline cpu::ReferenceValues reference_of(const DecodeTensors& after, const DecodeTensors& before) {
  if (!after.setup.eight_bit.on) return cpu::reference_decode_values(before.problem());
  std::vector<std::int32_t> lengths;
  for (std::int64_t b = 0; b < after.setup.batch(); ++b)
    lengths.push_back(static_cast<std::int32_t>(after.setup.length(b) + after.setup.new_len));
  core::DecodeProblem step = after.problem();
  step.lengths = lengths.data(), step.k_new = step.v_new = {};
  return cpu::reference_decode_values(step);
}

}  // namespace tandem::test
