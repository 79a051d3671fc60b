// What measures best of each variant's decisions.
#pragma once

#include "core/mask.h"
#include "forward/variant.h"

namespace tandem::forward {

constexpr Decisions measured_decisions(const ForwardVariant& v) {
  const bool narrow = v.head_dim <= 128, narrow_values = v.value_dim <= 128;
  const bool band = v.mask == MaskKind::band;
  const bool few_registers = v.head_dim == 256 && v.turn == TurnPolicy::free;
  // Lists of tiles and of blocks take registers too.
  const bool few_registers_of_lists = (v.lengths == Lengths::varlen || v.block_sparse) &&
                                      (v.consumers() == 3 || (v.head_dim >= 192 && v.softcap));
  return {.loops_apart = v.overlap == Overlap::two_stage && !band,
          .direction = narrow ? core::Direction::last_key_first : core::Direction::first_key_first,
          .edge_before = band || narrow,
          .edge_after = band || !narrow,
          .maxima_as_integers = v.references_stay() || !narrow_values || v.codes(),
          .begins_early = v.references_stay() && v.head_dim == 128,
          .queries_kept_longer = few_registers && band,
          .tiles_stand_apart = (few_registers && !band) || few_registers_of_lists,
          .stages_output = v.can_stage_output()};
}

/// The variant with them.
constexpr ForwardVariant decided(ForwardVariant variant) {
  variant.decisions = measured_decisions(variant);
  return variant;
}

}  // namespace tandem::forward
