// Scores that fall with distance (ALiBi): a slope for each head, and how far the keys of a block are.
#pragma once

#include <type_traits>

#include "forward/arguments.h"
#include "forward/variant.h"
#include "forward/work.h"
#include "hw/hw.h"
#include "tile/softmax.h"

namespace tandem::forward {

/// Of the thread's two rows.
template <ForwardVariant V>
struct ScoreBias {
  float slope[2];   ///< of scores as they are (SlopeArguments)
  int position[2];  ///< of the query among its sequence's keys

  /// `row`: the thread's upper one.
  TANDEM_DEVICE void begin(const ForwardArguments& args, const Work& work, int row) {
    if (args.slopes.data == nullptr) return;
    const MaskLengths lengths = lengths_of<V>(args, work.tile);
    const int pack = queries_of<V>(work.tile).pack;
    const float* own = args.slopes.data + listed_tile<V>(work.tile).sequence * args.slopes.stride;
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      slope[i] = hw::load_global(own + args.packing.head(pack, row + 8 * i)) * args.slopes.to_score;
      position[i] = args.packing.query(row + 8 * i) + lengths.k_len - lengths.mask_q_len;
    }
  }
  /// Takes slope * distance off the scores of a block that begins at `first_key`. Distances are exact.
  TANDEM_DEVICE void add(const ForwardArguments& args, float (&scores)[V.block_n / 2], int first_key) const {
    if (args.slopes.data == nullptr) return;
    const int own_column = first_key + 2 * static_cast<int>(hw::lane_index() % 4);
    const float to_position[2] = {static_cast<float>(position[0] - own_column),
                                  static_cast<float>(position[1] - own_column)};
    TANDEM_UNROLL
    for (int j = 0; j < V.block_n / 2; ++j) {
      const int i = tile::row_of_accumulator(j);
      const float ahead = to_position[i] - static_cast<float>(tile::column_of_accumulator(j));
      scores[j] = hw::fma(-slope[i], hw::max(ahead, -ahead), scores[j]);
    }
  }
};

/// Of kernels that don't know slopes.
struct NoScoreBias {
  template <typename... Any>
  TANDEM_DEVICE void begin(const Any&...) {}
  template <typename... Any>
  TANDEM_DEVICE void add(const Any&...) const {}
};

template <ForwardVariant V>
using ScoreBiasOf = std::conditional_t<V.knows_slopes(), ScoreBias<V>, NoScoreBias>;

}  // namespace tandem::forward
