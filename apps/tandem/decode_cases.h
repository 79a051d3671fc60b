// Random decoding steps for tandem check --decode.
#pragma once

#include <cstdint>
#include <string>

#include "decode_call.h"

namespace tandem::cli {

/// A step that follows from the seed and the backend alone: dtype, batch, lengths (also 0), queries, heads,
/// group, head dim, pages, batch index, appended tokens, rotary embedding, mask, scale, softcap, splits,
/// plan, layouts. Rows of the cache that no sequence has are NaN, slots of the page table beyond a length are
/// any number.
DecodeCall random_step(std::uint64_t seed, tandem_backend backend);

/// Everything of a step that matters, on one line.
std::string described(const DecodeCall& call);

}  // namespace tandem::cli
