// Random backward calls for tandem check --backward.
#pragma once

#include <cstdint>
#include <string>

#include "backward_call.h"

namespace tandem::cli {

/// The call of random_call with a gradient of o, every third time one of lse, either mode, and layouts of its
/// own.
BackwardCall random_backward(std::uint64_t seed, tandem_backend backend);

/// Everything of a call that matters, on one line.
std::string described(const BackwardCall& call);

}  // namespace tandem::cli
