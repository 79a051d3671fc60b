// What follows from a variant by measurement, rather than from the algorithm: all of it here, so that it can
// be printed beside the variant (tandem sim --variants).
#pragma once

#include "core/mask.h"
#include "forward/variant.h"

namespace tandem::forward {

struct Decisions {
  /// Each consumer walks only the blocks that its own rows see, and lets the others of the tile pass by. Band
  /// masks leave no registers for it.
  bool walks_apart;
  /// Last key first, a causal mask's diagonal comes before the loop over full blocks, where it overlaps with
  /// nothing anyway. Wide heads lose more by it: tiles that run at the same time begin at different keys
  /// then, and fetch more at once (docs/performance/archive.md).
  core::Direction direction;
  /// Where a walk can meet the mask's edges: at a prefix's end only.
  bool edge_before, edge_after;
  /// Row maxima by VIMNMX3, on the bits of floats. The float maxima of one row hide beside the other row's
  /// exponentials only where there are many of both.
  bool maxima_as_integers;
  /// Up to 128 columns the rescaling hides between the exponentials, as long as no branch parts them; wider
  /// outputs ask first whether there is anything to do.
  bool rescales_in_line;
  /// What measures better where registers are scarcest, by what ptxas makes of it
  /// (docs/performance/ptxas.md): queries go back after the loop; and tiles do not pass into one another.
  bool queries_kept_longer, tiles_stand_apart;
};

constexpr Decisions decisions_of(const ForwardVariant& v) {
  const bool narrow = v.head_dim <= 128, band = v.mask == MaskKind::band;
  const bool varlen = v.lengths == Lengths::varlen;
  const bool few_registers = v.head_dim == 256 && v.turn == TurnPolicy::free;
  return {.walks_apart = v.overlap == Overlap::two_stage && !band,
          .direction = narrow ? core::Direction::last_key_first : core::Direction::first_key_first,
          .edge_before = band || narrow,
          .edge_after = band || !narrow,
          .maxima_as_integers = !narrow,
          .rescales_in_line = narrow,
          .queries_kept_longer = few_registers && band,
          .tiles_stand_apart = (few_registers && !band) || (v.head_dim >= 192 && varlen)};
}

// Each by itself, as kernels ask for it.
template <ForwardVariant V>
inline constexpr bool walks_apart = decisions_of(V).walks_apart;
template <ForwardVariant V>
inline constexpr bool edge_before = decisions_of(V).edge_before;
template <ForwardVariant V>
inline constexpr bool edge_after = decisions_of(V).edge_after;
template <ForwardVariant V>
inline constexpr bool maxima_as_integers = decisions_of(V).maxima_as_integers;
template <ForwardVariant V>
inline constexpr bool rescales_in_line = decisions_of(V).rescales_in_line;
template <ForwardVariant V>
inline constexpr bool queries_kept_longer = decisions_of(V).queries_kept_longer;
template <ForwardVariant V>
inline constexpr bool tiles_stand_apart = decisions_of(V).tiles_stand_apart;
template <ForwardVariant V>
inline constexpr core::Direction direction = decisions_of(V).direction;

}  // namespace tandem::forward
