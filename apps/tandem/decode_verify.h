// Is a decoding step right? Its sequences as forward calls of their own, and the rule of verify.h over all of
// them.
#pragma once

#include "decode_call.h"
#include "verify.h"

namespace tandem::cli {

/// What one sequence of the step attends with, as a forward call: keys and values gathered from the pages,
/// appended keys rotated and rounded to the cache's dtype, queries rotated and rounded to `q_dtype`.
Call gathered(const DecodeCall& call, std::int64_t sequence, tandem_dtype q_dtype);

/// The rule of `judge` for the outputs, and for the cache: appended rows within one rounding, everything else
/// as it was to the bit.
Verdict verify(const DecodeCall& call, const DecodeOutput& output);

}  // namespace tandem::cli
