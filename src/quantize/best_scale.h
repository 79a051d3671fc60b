// A scale for each row, the best of some: the rounding error of one row's elements varies by a fifth from
// scale to scale (docs/fp8.md, Scales of rows).
#pragma once

#include <cstdint>

#include "core/quantize_problem.h"
#include "hw/hw.h"
#include "quantize/place.h"
#include "tile/inverse.h"
#include "tile/warp_reduce.h"

namespace tandem::quantize {

/// Of row i, which some lanes share: of core::scale_choice times the least power of two the one whose
/// rounding has the least squared error. Differences and their squares are of fp16, two at once.
template <QuantizeVariant V, typename OwnRows>
TANDEM_DEVICE float best_scale_of(const OwnRows& rows, int i, float amplitude) {
  float largest = 0;
  rows.for_each_four(i, [&](const float(&x)[4]) { raise_to_magnitude(largest, x); });
  const float least = core::scale_for(tile::warp_max<OwnRows::lanes>(largest) * rows.to_unit, amplitude);
  const float inverse = core::inverse_of(least) * rows.to_unit;

  std::uint32_t errors[core::scale_choices] = {};
  rows.for_each_four(i, [&](const float(&x)[4]) {
    const std::uint32_t exact[2] = {hw::pack<hw::Operand::fp16>(x[0] * inverse, x[1] * inverse),
                                    hw::pack<hw::Operand::fp16>(x[2] * inverse, x[3] * inverse)};
    TANDEM_UNROLL
    for (int choice = 0; choice < core::scale_choices; ++choice) {
      const float shrink = 1 / core::scale_choice(choice);
      const std::uint32_t less = hw::pack<hw::Operand::fp16>(-shrink, -shrink);
      std::uint32_t rounded[2];
      hw::unpack_e4m3(rounded, pack<V>(x[0], x[1], x[2], x[3], inverse * shrink));
      TANDEM_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        const std::uint32_t error = hw::fma_fp16(exact[pair], less, rounded[pair]);
        errors[choice] = hw::fma_fp16(error, error, errors[choice]);
      }
    }
  });

  float best = least, least_error = 0;
  TANDEM_UNROLL
  for (int choice = 0; choice < core::scale_choices; ++choice) {
    const float own = hw::unpack_low<hw::Operand::fp16>(errors[choice]) +
                      hw::unpack_high<hw::Operand::fp16>(errors[choice]);
    const float unit = core::scale_choice(choice);
    const float error = tile::warp_sum<OwnRows::lanes>(own) * (unit * unit);
    if (choice > 0 && !(error < least_error)) continue;
    best = least * unit, least_error = error;
  }
  return best;
}

/// Writes it, if the row exists, and returns its inverse.
template <QuantizeVariant V, typename OwnRows>
TANDEM_DEVICE float take_best_scale(const QuantizeArguments& args, const Place& place, const OwnRows& rows,
                                    int i) {
  const float scale = best_scale_of<V>(rows, i, args.amplitude);
  const bool exists = place.first() + rows.row(i) < args.length;
  if (exists && hw::lane_index() % OwnRows::lanes == 0)
    hw::store_global(place.scale_of_row(args, rows.row(i)), scale);
  return tile::inverse_of_given(scale);
}

}  // namespace tandem::quantize
