// What the fuzzers of the backward pass share: the forward before it, and how gradients are compared.
#pragma once

#include <cmath>
#include <cstring>

#include "tests/fuzz/hostile.h"
#include "tests/fuzz/oracle_backward.h"

namespace tandem::fuzz {

/// The forward's lse, if memory lets it be so: p is a probability then. Of sequences of one length.
inline void write_forward(const tandem_backward_args& args) {
  for (std::int64_t b = 0; has_elements(args.q) && b < args.q.shape[0]; ++b) {
    Sequence entry = entry_of(args.q, args.k, args.v, b);
    entry.mask = args.mask, entry.scale = args.scale, entry.softcap = args.softcap;
    entry.sinks = args.sinks;
    for (std::int64_t i = 0; i < args.q.shape[1]; ++i)
      for (std::int64_t h = 0; h < args.q.shape[2]; ++h) {
        const float lse = static_cast<float>(attend(entry, i, h).lse);
        std::memcpy(row_at(args.lse, b, i, h), &lse, sizeof lse);
      }
  }
}

inline void compare(const tandem_tensor& result, const Gradient& expected, const char* what) {
  const double rounding = tolerance_of(result.dtype);
  std::size_t e = 0;
  for_each_row(result, [&](std::int64_t, std::int64_t, std::int64_t, const std::byte* row) {
    for (std::int64_t column = 0; column < result.shape[3]; ++column, ++e) {
      const double right = expected.values[e], magnitude = expected.magnitudes[e];
      if (magnitude > 1e4) continue;  // beyond what fp16 holds, and bounds
      const double error = std::abs(value(result, row, column) - right);
      if (!(error <= rounding * std::abs(right) + 1e-5 * magnitude + 1e-7)) fail(what);
    }
  });
}

}  // namespace tandem::fuzz
