// All sequences of a call, as the blocks that list tiles see them: their tiles, and where these stand in the
// row of all tiles (tile_order.h).
//
// Each thread of a block reads one sequence, so a block waits for lengths once, whatever it lists. More
// sequences than a block has threads come one chunk after another.
#pragma once

#include "forward/arguments.h"
#include "forward/sequence.h"
#include "forward/tile_order.h"
#include "forward/variant.h"
#include "tile/warp_reduce.h"

namespace tandem::forward {

/// In shared memory: a chunk of the sequences.
struct SequenceTable {
  static constexpr int capacity = ListVariant::threads(), warps = ListVariant::warps();

  SequenceInRow sequence[capacity];
  int class_tiles[warps][length_classes];  ///< of one head, of each warp's sequences
};

/// Adds numbers of tiles from 0 on. Sequences that overlap may have more than an int counts: no sum is above
/// `most_counted`, which no list has room for.
inline constexpr int most_counted = 1 << 30;
TANDEM_DEVICE int add_counts(int a, int b) {
  const std::uint32_t sum = static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b);
  return sum < most_counted ? static_cast<int>(sum) : most_counted;
}

/// A block's view of the table. All threads of the block call its functions together, but for those of a
/// warp, which read the chunk that is there.
class SequencesOfBlock {
 public:
  /// Counts all tiles.
  TANDEM_DEVICE SequencesOfBlock(const ListArguments& args, SequenceTable& table)
      : args_(args), table_(table), size_(TileSize::of(args)), warp_(static_cast<int>(hw::warp_index())) {
    count_all();
  }

  TANDEM_DEVICE const TileSize& size() const { return size_; }
  /// Tiles of one head, up to most_counted.
  TANDEM_DEVICE int total() const { return total_; }
  TANDEM_DEVICE int chunks() const {
    return (args_.forward.varlen.sequences + SequenceTable::capacity - 1) / SequenceTable::capacity;
  }

  /// Brings a chunk into shared memory, where it isn't the one that is there. Chunks come in turn, from the
  /// first one on.
  TANDEM_DEVICE void bring(int chunk) {
    if (chunk == chunk_) return;
    if (chunk == 0) class_next_ = class_begin_;
    chunk_ = chunk;
    SequenceTiles tiles = first_;
    if (chunk > 0) tiles = tiles_of(chunk * SequenceTable::capacity + thread());
    const int own_class = class_of(size_, tiles);
    hw::sync_block();  // all have read the table
    int past = 0;      // the sequence, of its class's tiles of this warp
    TANDEM_UNROLL
    for (int i = 0; i < length_classes; ++i) {
      const int of_class = tile::warp_scan_sum(i == own_class ? tiles.count : 0);
      if (i == own_class) past = of_class;
      note_class(i, tile::of_lane(of_class, hw::warp_size - 1));
    }
    hw::sync_block();
    int begin = class_next_;  // of class i, of this warp's sequences: of lane i
    for (int warp = 0; warp < SequenceTable::warps; ++warp) {
      const int of_warp = noted(warp);
      if (warp < warp_) begin += of_warp;
      class_next_ += of_warp;
    }
    table_.sequence[thread()] = {tiles, tile::of_lane(begin, own_class) + past - tiles.count};
    hw::sync_block();
  }

  /// Warp: calls visit(number of the sequence, sequence) for each of the chunk that has tiles, one a lane.
  template <typename Visit>
  TANDEM_DEVICE void for_each(Visit visit) const {
    const int first = chunk_ * SequenceTable::capacity, left = args_.forward.varlen.sequences - first;
    const int here = left < SequenceTable::capacity ? left : SequenceTable::capacity;
    for (int i = static_cast<int>(hw::lane_index()); i < here; i += hw::warp_size)
      if (table_.sequence[i].tiles.count > 0) visit(first + i, table_.sequence[i]);
  }
  /// Warp: the sequence of tile number `tile` of one head's; `none` where it is not in the chunk.
  TANDEM_DEVICE int find(int tile) const {
    int found = none;
    for_each([&](int index, const SequenceInRow& sequence) {
      if (tile >= sequence.start && tile < sequence.start + sequence.tiles.count) found = index;
    });
    return tile::warp_max(found);
  }
  static constexpr int none = -1;
  /// One of the chunk.
  TANDEM_DEVICE const SequenceInRow& operator[](int index) const {
    return table_.sequence[index - chunk_ * SequenceTable::capacity];
  }

 private:
  TANDEM_DEVICE void count_all() {
    int of_class[length_classes]{};
    for (int chunk = 0; chunk < chunks(); ++chunk) {
      const SequenceTiles tiles = tiles_of(chunk * SequenceTable::capacity + thread());
      if (chunk == 0) first_ = tiles;
      const int own_class = class_of(size_, tiles);
      TANDEM_UNROLL
      for (int i = 0; i < length_classes; ++i)
        of_class[i] = add_counts(of_class[i], i == own_class ? tiles.count : 0);
    }
    TANDEM_UNROLL
    for (int i = 0; i < length_classes; ++i)
      note_class(i, tile::warp_reduce<hw::warp_size>(of_class[i], add_counts));
    hw::sync_block();
    // Lane i has class i's.
    int own = 0;
    for (int warp = 0; warp < SequenceTable::warps; ++warp) own = add_counts(own, noted(warp));
    total_ = tile::warp_reduce<hw::warp_size>(own, add_counts);
    class_begin_ = tile::warp_scan(own, add_counts) - own;
  }
  TANDEM_DEVICE static int thread() { return static_cast<int>(hw::thread_index()); }
  /// None where the sequence is left to others.
  TANDEM_DEVICE SequenceTiles tiles_of(int index) const {
    if (index >= args_.forward.varlen.sequences) return {};
    const Sequence s = read_sequence(args_.forward.varlen, args_.cache, index);
    if (s.q_len <= args_.few.most_queries) return {};
    return SequenceTiles::of(size_, s);
  }
  /// Warp: what lane i reads of class i.
  TANDEM_DEVICE void note_class(int i, int tiles) {
    if (static_cast<int>(hw::lane_index()) == i) table_.class_tiles[warp_][i] = tiles;
  }
  TANDEM_DEVICE int noted(int warp) const {
    const int lane = static_cast<int>(hw::lane_index());
    return lane < length_classes ? table_.class_tiles[warp][lane] : 0;
  }

  const ListArguments& args_;
  SequenceTable& table_;
  TileSize size_;
  int warp_;
  SequenceTiles first_{};  ///< the thread's, of the first chunk
  int total_ = 0, chunk_ = none;
  // Of class i in lane i: where its first tile stands, and the first of the next chunk.
  int class_begin_ = 0, class_next_ = 0;
};

}  // namespace tandem::forward
