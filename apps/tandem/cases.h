// Random forward calls for tandem check.
#pragma once

#include <cstdint>
#include <string>

#include "call.h"

namespace tandem::cli {

/// A call that follows from the seed and the backend alone: dtype, batch, heads, group, lengths (also 0),
/// head dim, mask, scale, softcap, order of dimensions and padding. Small enough for the oracle, about 10^7
/// products at most. What lies between the elements of its inputs is NaN.
Call random_call(std::uint64_t seed, tandem_backend backend);

/// Everything of a call that matters, on one line.
std::string described(const Call& call);

}  // namespace tandem::cli
