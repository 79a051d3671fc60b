// A tile of 16-bit words in shared memory, as TMA writes it and WGMMA reads it.
#pragma once

#include <cstdint>

#include "core/integers.h"
#include "hw/hw.h"

namespace tandem::tile {

/// Elements in one 128-byte row of a panel: the widest swizzle.
inline constexpr int panel_columns = hw::Panels::width;
/// Rows after which the swizzle pattern repeats; with 128 bytes a row, an atom is 1024 bytes.
inline constexpr int atom_rows = 8;
inline constexpr int row_bytes = 128;
inline constexpr int atom_bytes = atom_rows * row_bytes;
/// K of one 16-bit WGMMA.
inline constexpr int k_step = 16;

/// 16 bytes of a row: what the swizzle moves as one.
struct alignas(16) Chunk {
  std::uint32_t words[4];
};
inline constexpr int chunk_columns = 8;

/// rows x columns elements as panels of 64 columns, each panel rows x 128 bytes with the 128-byte swizzle
/// (address bits 4-6 are XORed with bits 7-9). One TMA box fills one panel.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout
template <int rows_, int columns_>
struct alignas(atom_bytes) SharedTile {
  static constexpr int rows = rows_, columns = columns_;
  static constexpr int panels = (columns + panel_columns - 1) / panel_columns;
  static constexpr int panel_bytes = rows * row_bytes;
  static constexpr int bytes = panels * panel_bytes;
  static_assert(rows % atom_rows == 0);

  std::uint16_t panel[panels][rows][panel_columns];

  /// Columns `column` (a multiple of 8) to column + 7 of a row, for ordinary accesses.
  TANDEM_DEVICE Chunk& chunk(int row, int column) {
    const int in_panel = column % panel_columns, swizzled = in_panel ^ (row % atom_rows * chunk_columns);
    void* address = &panel[column / panel_columns][row][swizzled];
    return *static_cast<Chunk*>(address);
  }

  /// How many chunks ahead of a chunk are such further rows, a multiple of 8, and panels.
  static constexpr int ahead(int further_rows, int further_panels) {
    return (further_rows * row_bytes + further_panels * panel_bytes) / static_cast<int>(sizeof(Chunk));
  }

  /// `count` columns from panel `first` on. With places that the compiler knows from there on, it keeps one
  /// address where it would else keep one of each.
  template <int count>
  TANDEM_DEVICE SharedTile<rows_, count>& part(int first) {
    void* address = &panel[first][0][0];
    return *static_cast<SharedTile<rows_, count>*>(address);
  }

  /// `count` rows of a panel, from row `first` on, a multiple of 8.
  template <int count>
  TANDEM_DEVICE SharedTile<count, panel_columns>& rows_of_panel(int number, int first) {
    void* address = &panel[number][first][0];
    return *static_cast<SharedTile<count, panel_columns>*>(address);
  }

  /// The tile as a K-major operand (columns are K), at K step `step`.
  TANDEM_DEVICE hw::MatrixDescriptor k_major(int step) const {
    constexpr int steps_per_panel = panel_columns / k_step;
    const auto base =
        hw::MatrixDescriptor::make(hw::shared_address(&panel[0][0][0]), 0, atom_bytes, hw::Swizzle::bytes128);
    return base.advanced((step / steps_per_panel) * panel_bytes + (step % steps_per_panel) * k_step * 2);
  }

  /// The tile as an MN-major operand (rows are K), at K step `step`, from the columns of panel `first` on.
  TANDEM_DEVICE hw::MatrixDescriptor mn_major(int step, int first = 0) const {
    const auto base = hw::MatrixDescriptor::make(hw::shared_address(&panel[first][0][0]), panel_bytes,
                                                 atom_bytes, hw::Swizzle::bytes128);
    return base.advanced(step * k_step * row_bytes);
  }
};

/// Rounds the warp's 16 rows of a WGMMA's accumulators into a tile, from row `first` on, and from column
/// `first_column`.
template <hw::Operand operand, int count, typename Tile>
TANDEM_DEVICE void store_rounded(Tile& to, int first, const float (&accumulators)[count],
                                 int first_column = 0) {
  // Four 8 x 8 matrices, upper and lower rows of two neighbouring chunks; lane l addresses row l % 8 of
  // matrix l / 8.
  const int lane = static_cast<int>(hw::lane_index());
  const int row = first + lane % 8 + lane / 8 % 2 * 8, column = first_column + lane / 16 * chunk_columns;
  TANDEM_UNROLL
  for (int g = 0; g < count / 8; ++g) {
    std::uint32_t words[4];
    TANDEM_UNROLL
    for (int m = 0; m < 4; ++m) {
      words[m] = hw::pack<operand>(accumulators[8 * g + 2 * m], accumulators[8 * g + 2 * m + 1]);
    }
    hw::store_matrices(&to.chunk(row, 16 * g + column), words);
  }
}

/// Starts loading a tile from row `row` on: so many consecutive rows of one head as a box has. The caller has
/// announced `box_bytes`.
template <typename Tile, typename Origin>
TANDEM_DEVICE void load_rows(Tile& tile, int row, const hw::Panels& panels, hw::Barrier& barrier,
                             const Origin& origin, hw::CachePolicy policy) {
  const hw::L2Policy hint = hw::l2_policy(policy);
  TANDEM_UNROLL
  for (int p = 0; p < Tile::panels; ++p) {
    const int column = p * panel_columns;
    // Two calls, or ptxas would keep the address of a map that it chose in registers.
    if (panels.has_whole(column)) {
      hw::load_box(tile.panel[p][row], panels.whole, barrier, origin.right_by(column), hint);
    } else if (panels.has(column)) {
      hw::load_box(tile.panel[p][row], panels.last, barrier, origin.right_by(column), hint);
    }
  }
}
/// All of it, in one box a panel.
template <typename Tile, typename Origin>
TANDEM_DEVICE void load_tile(Tile& tile, const hw::Panels& panels, hw::Barrier& barrier, const Origin& origin,
                             hw::CachePolicy policy = hw::CachePolicy::normal) {
  load_rows(tile, 0, panels, barrier, origin, policy);
}

/// What boxes bring of a tile: bytes.
template <typename Tile>
TANDEM_DEVICE std::uint32_t box_bytes(const hw::Panels& panels) {
  const int columns = core::clamp(panels.columns, 0, Tile::panels * panel_columns);
  return static_cast<std::uint32_t>(Tile::rows * columns) * sizeof(std::uint16_t);
}

/// `thread` of `threads` clears its part of the columns of a tile that no box brings. Who calls it fences for
/// the async proxy.
template <int rows, int columns>
TANDEM_DEVICE void clear_columns_beyond(const hw::Panels& panels, SharedTile<rows, columns>& tile, int thread,
                                        int threads) {
  for (int row = thread; row < rows; row += threads)
    for (int column = panels.columns; column < columns; column += chunk_columns)
      tile.chunk(row, column) = Chunk{};
}

/// Starts storing a tile that was written by ordinary stores and fenced. The caller commits, and waits before
/// the tile is written again.
template <int rows, int columns>
TANDEM_DEVICE void start_storing(const SharedTile<rows, columns>& tile, const hw::TensorMap& map,
                                 hw::BoxOrigin origin, hw::CachePolicy policy) {
  const hw::L2Policy hint = hw::l2_policy(policy);
  TANDEM_UNROLL
  for (int p = 0; p < SharedTile<rows, columns>::panels; ++p) {
    hw::store_box(map, {p * panel_columns, origin.s, origin.h, origin.b}, tile.panel[p], hint);
  }
}

/// Starts bringing what `load_tile` would load into L2.
template <typename Tile>
TANDEM_DEVICE void prefetch_tile(const hw::Panels& panels, hw::BoxOrigin origin) {
  TANDEM_UNROLL
  for (int p = 0; p < Tile::panels; ++p) {
    const int column = p * panel_columns;
    if (panels.has_whole(column)) {
      hw::prefetch_box(panels.whole, origin.right_by(column));
    } else if (panels.has(column)) {
      hw::prefetch_box(panels.last, origin.right_by(column));
    }
  }
}

}  // namespace tandem::tile
