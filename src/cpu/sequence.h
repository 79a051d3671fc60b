// One sequence of a decoding step: how long it is, where its tokens lie, and how rotary embedding turns them.
#pragma once

#include <cstdint>
#include <span>

#include "core/decode_problem.h"
#include "cpu/tiling.h"

namespace tandem::cpu {

struct Sequence {
  std::int64_t length;  ///< tokens in the cache before the step, brought within its capacity
  std::int64_t keys;    ///< with those that the step appends
  KeyPlaces places;     ///< in the cache

  Sequence(const core::DecodeProblem& problem, std::int64_t batch);
};

/// Loads row [b, s, h] of q or k_new and turns it by the angles of `position`, where there is rotary
/// embedding. A position that the tables do not have takes the nearest that they have.
void load_rotated(const core::Tensor& tensor, const std::int64_t (&at)[3], const core::Rotary& rotary,
                  std::int64_t position, std::span<double> row);

/// New tokens of a call, and the caches that they go to.
struct Appended {
  core::Tensor k_new, v_new, k_cache, v_cache;
  core::Rotary rotary;
};

/// Writes token `token` of entry `entry` of the new ones, whose position is `position`, to its place; it is
/// lost where that does not exist.
void append_token(const Appended& appended, std::int64_t entry, std::int64_t token, const KeyPlace& place,
                  std::int64_t position);

/// Writes the step's keys, rotated, and values to the cache. What belongs in a page that does not exist is
/// lost.
void append(const core::DecodeProblem& problem);

}  // namespace tandem::cpu
