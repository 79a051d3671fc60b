// Random choices that the cases of tandem check are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

#include "tensor.h"

namespace tandem::cli {

using Random = std::mt19937_64;

std::int64_t between(Random& random, std::int64_t low, std::int64_t high);
bool one_in(Random& random, int n);

template <typename Value, std::size_t count>
Value one_of(Random& random, const Value (&values)[count]) {
  return values[static_cast<std::size_t>(between(random, 0, count - 1))];
}

/// Any order of dimensions. Paddings are multiples of 8 elements, so that 16-bit strides stay multiples of
/// the 16 bytes that TMA asks for.
Layout random_layout(Random& random);

/// What forward and decoding calls have alike: scale, softcap, and the outputs' layouts.
template <typename AnyCall>
void draw_options(Random& random, AnyCall& call) {
  call.scale = one_in(random, 3) ? one_of(random, {0.02f, 0.125f, 0.5f}) : 0;
  call.softcap = one_in(random, 4) ? one_of(random, {1.0f, 15.0f, 50.0f}) : 0;
  call.want_lse = !one_in(random, 4);
  call.o_layout = random_layout(random);
  call.lse_layout = random_layout(random);
  call.lse_layout.row_padding = 0;
}

/// Normally distributed, in a random layout.
HostTensor random_tensor(Random& random, tandem_dtype dtype, const Shape& shape, float magnitude);

/// One that the backend takes.
tandem_dtype random_dtype(Random& random, tandem_backend backend);

}  // namespace tandem::cli
