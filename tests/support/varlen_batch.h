// Sequences of a batch in other batches: what they are alone, in another order, beside fewer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/support/varlen_case.h"

namespace tandem::test {

/// Those of the batch's sequences that are named, in that order, as a call of their own has them: at other
/// places, of the same values. What the call ought to leave in caches is not known of them.
VarlenTensors sequences_of(const VarlenTensors& all, const std::vector<std::size_t>& which);
/// O and lse of one sequence, each number as its bits.
std::vector<std::uint64_t> bits_of(const VarlenTensors& tensors, std::size_t sequence);

}  // namespace tandem::test
