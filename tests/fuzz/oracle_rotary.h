// What tandem.h says of rotary embedding.
#pragma once

#include "tests/fuzz/oracle_memory.h"

namespace tandem::fuzz {

/// By the rules of tandem.h, for what has a tensor's dtype and head dim.
bool rotary_holds(const tandem_rotary& rotary, const tandem_tensor& rotated);
/// A table of angles.
tandem_tensor table_of(const tandem_rotary& rotary, const void* angles);

/// A row turned by the angles of a position.
Numbers turned(const Numbers& row, const tandem_rotary& rotary, std::int64_t position);

/// Whether a turned row has numbers that its dtype, to which a backend may round it, makes infinite.
bool overflows(const Numbers& turned, tandem_dtype dtype);

}  // namespace tandem::fuzz
