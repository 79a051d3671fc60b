// What is built for study: every overlap with and without turns, whatever is fastest.
#pragma once

#include <array>
#include <cstddef>

#include "forward/recipes.h"

namespace tandem::forward {

struct StudyTile {
  int block_m, block_n;
  int kv_stages = 2;
};

/// Tiles whose registers suffice with either turn and operand type. What fits at most, and what keeps the
/// next larger one out, is in docs/performance/ptxas.md, "Registers of the overlaps". Three-stage has K of
/// the next block and V of the last in flight while it needs the stage after, so a pipeline of two starves
/// it.
template <int head_dim>
constexpr StudyTile study_tile(Overlap overlap) {
  const auto of = [overlap](StudyTile serial, StudyTile two_stage, StudyTile three_stage) {
    return overlap == Overlap::serial ? serial : overlap == Overlap::two_stage ? two_stage : three_stage;
  };
  if constexpr (head_dim == 64) return of({192, 128}, {192, 112}, {128, 128, 3});
  if constexpr (head_dim == 96) return of({128, 176}, {128, 176}, {128, 112, 3});
  if constexpr (head_dim == 128) return of({128, 176}, {128, 176}, {128, 112, 3});
  if constexpr (head_dim == 192) return of({128, 112}, {128, 112}, {128, 64, 3});
  if constexpr (head_dim == 256) return of({128, 80}, {128, 64}, {128, 48, 3});
}

/// Whether a default candidate's kernel serves all masks with the study's overlap and turns.
template <int head_dim>
constexpr bool is_built_by_default(const ForwardVariant& study) {
  for (const Candidate& c : candidates<head_dim>()) {
    if (c.variant.operand == study.operand && c.variant.mask == MaskKind::band && !c.variant.softcap &&
        c.variant.overlap == study.overlap && c.variant.turn == study.turn) {
      return true;
    }
  }
  return false;
}

/// Calls `visit(variant)` for what one head dim lacks. Masks are bands, which full ones are too, and there is
/// no cap: for study that is enough, and the build stays lean.
template <int head_dim, typename Visit>
constexpr void for_each_study(Visit&& visit) {
  for (hw::Operand operand : {hw::Operand::bf16, hw::Operand::fp16}) {
    for (Overlap overlap : {Overlap::serial, Overlap::two_stage, Overlap::three_stage}) {
      for (TurnPolicy turn : {TurnPolicy::free, TurnPolicy::pingpong}) {
        const auto [block_m, block_n, kv_stages] = study_tile<head_dim>(overlap);
        const ForwardVariant variant{operand, head_dim,  MaskKind::band,   false,  overlap, turn, block_m,
                                     block_n, kv_stages, Lengths::uniform, operand};
        if (!is_built_by_default<head_dim>(variant)) visit(variant);
      }
    }
  }
}

/// Everything that is built for study for one head dim.
template <int head_dim>
constexpr auto study_candidates() {
  constexpr std::size_t count = [] {
    std::size_t n = 0;
    for_each_study<head_dim>([&n](const ForwardVariant&) { ++n; });
    return n;
  }();
  std::array<Candidate, count> all{};
  std::size_t i = 0;
  for_each_study<head_dim>([&](const ForwardVariant& variant) { all[i++] = {variant, /*on_request=*/true}; });
  return all;
}

}  // namespace tandem::forward
