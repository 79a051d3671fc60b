// Element types on the host: sizes, names, and rounding. The tool is a user of the C interface, so it brings
// its own conversions; they also check the library's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <tandem/tandem.h>

namespace tandem::cli {

std::size_t size_of(tandem_dtype dtype);
std::string name_of(tandem_dtype dtype);  ///< "bf16", "fp16", "fp32"

/// Unit roundoff: the largest relative error of rounding a normal value to nearest.
double unit_roundoff(tandem_dtype dtype);

/// Nearest value of `dtype`, ties to even.
float round_to(tandem_dtype dtype, float value);

/// Elements at `bytes` as floats, exactly. `bytes` holds values.size() elements.
void decode(tandem_dtype dtype, const std::byte* bytes, std::span<float> values);

/// Floats rounded to `dtype`, written at `bytes`.
void encode(tandem_dtype dtype, std::span<const float> values, std::byte* bytes);

}  // namespace tandem::cli
