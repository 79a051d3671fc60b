// Which tiles a block walks, and which key blocks of each: the same answer for producer and consumers.
#pragma once

#include "core/mask.h"
#include "core/schedule.h"
#include "forward/arguments.h"
#include "forward/variant.h"
#include "hw/hw.h"

namespace tandem::forward {

/// One tile of queries and the key blocks that it meets.
struct Work {
  core::Tile tile;
  int first_query;
  core::BlockRanges blocks;
};

/// The tiles of this block, one after another, in the schedule's order.
template <ForwardVariant V>
class TileWalk {
 public:
  TANDEM_DEVICE explicit TileWalk(const ForwardArguments& args) : args_(args) { find(); }

  TANDEM_DEVICE bool done() const { return done_; }
  TANDEM_DEVICE const Work& work() const { return work_; }
  TANDEM_DEVICE void advance() {
    ++round_;
    find();
  }

 private:
  /// Only the last round can leave this block without a tile, so the first empty place ends the walk.
  TANDEM_DEVICE void find() {
    const std::int64_t position = core::Schedule::position(round_, static_cast<int>(hw::block_index()),
                                                           static_cast<int>(hw::grid_size()));
    done_ = position >= args_.schedule.tiles();
    if (done_) return;
    const core::Tile tile = args_.schedule.tile(static_cast<int>(position));
    const int first = tile.m_block * V.block_m;
    const int past = first + V.block_m < args_.q_len ? first + V.block_m : args_.q_len;
    work_ = {tile, first, core::block_ranges(args_.mask, first, past, args_.q_len, args_.k_len, V.block_n)};
  }

  const ForwardArguments& args_;
  int round_ = 0;
  bool done_ = false;
  Work work_;
};

}  // namespace tandem::forward
