// Stream-K: how the keys of all sequences are distributed over the blocks of a grid, in shares of equal cost.
//
// Keys are counted in units (key blocks, or fixed splits). A stream is one row tile of one key/value head of
// one sequence; all streams of a sequence have the same units. Streams stand one after another, each with as
// many positions as it costs: its units, and behind them `overhead` positions without keys, for what a stream
// costs besides (queries, output). Each block, or team of blocks that visit a sequence's streams side by
// side, takes a contiguous share of all positions, which may begin and end within streams. Source: Osama,
// Merrill et al., "Stream-K", PPoPP 2023; for decoding: Sanovar et al., "LeanAttention", 2024.
#pragma once

#include <cstdint>

#include "core/mask.h"
#include "core/tile_scheduler.h"

namespace tandem::core {

/// The keys of one sequence, and the units that they make.
struct SequenceUnits {
  int length;      ///< keys in the cache before the call, clamped
  int keys;        ///< with those that are appended
  int first_unit;  ///< the keys before it are seen by no query
  int units;       ///< of each stream, at least 1: a sequence without keys has outputs too
};

/// Cuts sequences into units.
struct UnitRule {
  BasicMask<std::int32_t> mask;
  int q_len, new_len;
  int capacity;  ///< keys that a sequence can have, at least new_len
  Divisor unit;  ///< keys of a unit

  /// `length` is what the device says, which may be anything.
  constexpr SequenceUnits of(int length) const { return of(length, q_len); }
  /// Of a sequence that has so many queries.
  constexpr SequenceUnits of(int length, int queries) const {
    const int most = capacity - new_len;
    length = length < 0 ? 0 : (length > most ? most : length);
    const int keys = length + new_len;
    auto begin = mask.visible_keys(0, queries, keys).begin;
    auto end = mask.visible_keys(queries - 1, queries, keys).end;
    if (new_len > 0) {  // who visits a key appends it, seen or not
      begin = begin < length ? begin : length;
      end = keys;
    }
    if (begin >= end) return {length, keys, 0, 1};
    const int first = unit.divide(begin).quotient;
    return {length, keys, first, unit.divide(end - 1).quotient + 1 - first};
  }
  /// Of those units what is behind the first `shared` keys, which are whole units and seen by all queries.
  constexpr SequenceUnits behind(const SequenceUnits& all, int shared) const {
    const int first = unit.divide(shared).quotient;
    if (first <= all.first_unit) return all;
    const int left = all.first_unit + all.units - first;
    return {all.length, all.keys, first, left < 1 ? 1 : left};
  }
  /// Of keys that all see, which are whole units.
  constexpr SequenceUnits of_prefix(int keys) const { return {keys, keys, 0, unit.divide(keys).quotient}; }
};

/// The positions of one stream: those with units come first.
struct StreamSpan {
  int units, overhead;

  constexpr int size() const { return units + overhead; }
  /// From position `within` of the stream to the next unit, its own or that of the stream behind it. A share
  /// that begins among positions without keys so begins with the next stream.
  constexpr int to_next_unit(int within) const { return within < units ? 0 : size() - within; }
};

/// All positions of `streams` streams (at least one) that have `units` units together. Nothing is assigned
/// behind the last unit: so every block's own overhead, of the stream that it begins with, is left out once.
constexpr int positions(int units, int streams, int overhead) { return units + overhead * (streams - 1); }

/// Contiguous shares of `total` positions; they differ by one at most. A block with a share of s has at most
/// s units and, for every stream that it begins after its first, `overhead` fewer.
class Shares {
 public:
  constexpr Shares() = default;
  /// At least `min_share` positions in each share where there are that many; blocks beyond get nothing.
  /// `total` is at least 1.
  constexpr Shares(int total, const Divisor& grid, const Divisor& min_share) {
    const auto [worth, left] = min_share.divide(total);
    if (worth >= grid.value()) {
      blocks_ = grid.value();
      const auto [share, longer] = grid.divide(total);
      share_ = share, longer_ = longer;
    } else if (left < worth) {  // no division: every short step comes here
      blocks_ = worth, share_ = min_share.value(), longer_ = left;
    } else {
      blocks_ = worth < 1 ? 1 : worth;
      share_ = total / blocks_, longer_ = total % blocks_;
    }
  }

  /// Blocks that have a share.
  constexpr int blocks() const { return blocks_; }
  /// First position of the block's share; for blocks() and beyond, the end of all.
  constexpr int begin(int block) const {
    const int b = block < blocks_ ? block : blocks_;
    return b * share_ + (b < longer_ ? b : longer_);
  }
  /// Whose share a position is in.
  constexpr int owner(int position) const {
    const int behind = position - longer_ * (share_ + 1);  // the longer shares, which come first
    const bool longer = behind < 0;
    return (longer ? 0 : longer_) + (longer ? position : behind) / (share_ + (longer ? 1 : 0));
  }

 private:
  int blocks_ = 1, share_ = 0, longer_ = 0;
};

}  // namespace tandem::core
