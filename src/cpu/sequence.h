// One sequence of a decoding step: how long it is, where its tokens lie, and how rotary embedding turns them.
#pragma once

#include <cstdint>
#include <span>

#include "core/decode_problem.h"
#include "core/dtype.h"
#include "cpu/tiling.h"

namespace tandem::cpu {

struct Sequence {
  std::int64_t length;  ///< tokens in the cache before the step, brought within its capacity
  std::int64_t keys;    ///< with those that the step appends
  KeyPlaces places;     ///< in the cache

  Sequence(const core::DecodeProblem& problem, std::int64_t batch);
};

/// Where a token's key or value of one head lies.
struct CachedToken {
  std::int64_t sequence;
  KeyPlace place;
  std::int64_t head;
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

/// What a token's key or value in the cache stands for, of one sequence's head; zeros where its place does
/// not exist. `cache` and `scales` are both of keys or both of values.
void load_cached(const core::DecodeProblem& problem, const core::Tensor& cache, const core::Tensor& scales,
                 const CachedToken& token, std::span<float> row);

/// What appending makes of a row for an 8-bit cache: elements, and what they are multiplied by.
struct EightBitRow {
  float scale;
  float elements[most_columns];  ///< that the cache's dtype has
};
/// Of `row`, a new token's, and either the keys' scales or the values'.
EightBitRow eight_bit_key(const core::DecodeProblem& problem, const CachedToken& token,
                          std::span<const double> row);
EightBitRow eight_bit_value(const core::DecodeProblem& problem, const CachedToken& token,
                            std::span<const double> row);

/// Loads query row [b, s, h] as the cache's keys take it: turned by the angles of `position`, and multiplied
/// by the Hadamard matrix where they are.
void load_query(const core::DecodeProblem& problem, const std::int64_t (&at)[3], std::int64_t position,
                std::span<double> row);

/// Writes the step's keys, rotated, and values to the cache. What belongs in a page that does not exist is
/// lost.
void append(const core::DecodeProblem& problem);

}  // namespace tandem::cpu
