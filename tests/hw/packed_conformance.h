// TMA of packed rows: boxes of one sequence among others, whose last row is a bound of its own.
#pragma once

#include <algorithm>
#include <string>

#include "hw/tensor_map.h"
#include "tests/hw/conformance.h"

namespace tandem::test {

class PackedVerbs : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Machine, PackedVerbs, testing::ValuesIn(machine::modes()),
                         testing::PrintToStringParamName());

/// Each block moves one box of packed rows to a tensor of the same shape, by way of shared memory, and writes
/// out what lay there.
struct MovePackedBoxes {
  static constexpr int threads = 64, rows = 16, columns = 64, elements = rows * columns;
  struct Shared {
    alignas(1024) std::uint16_t box[elements];
    hw::Barrier loaded;
  };
  hw::TensorMap from, to;
  const hw::PackedOrigin* origins;  ///< of each block
  std::uint16_t* raw;               ///< `elements` of each block

  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    const hw::PackedOrigin origin = origins[hw::block_index()];
    if (hw::thread_index() == 0) {
      hw::barrier_init(shared.loaded, 1);
      hw::fence_barrier_init();
    }
    hw::sync_block();
    if (hw::thread_index() == 0) {
      hw::barrier_arrive_expecting(shared.loaded, sizeof shared.box);
      hw::load_box(shared.box, from, shared.loaded, origin);
    }
    hw::barrier_wait(shared.loaded, 0);
    std::uint16_t* own = raw + static_cast<int>(hw::block_index()) * elements;
    for (int i = static_cast<int>(hw::thread_index()); i < elements; i += threads) own[i] = shared.box[i];
    if (hw::thread_index() == 0) {
      hw::store_box(to, origin, shared.box);
      hw::commit_stores();
      hw::wait_stores_read<0>();
    }
  }
};

/// Rows of several heads, with gaps between heads and between rows; all elements differ.
struct PackedRows {
  static constexpr int tokens = 61, heads = 3, head_dim = 64, head_stride = 72, row_stride = 3 * 72 + 8;
  static constexpr std::uint16_t gap = 0xdead;

  static std::uint16_t value(int token, int head, int column) {
    return static_cast<std::uint16_t>(1 + column + head_dim * (head + heads * token));
  }
  static std::size_t place(int token, int head, int column) {
    return static_cast<std::size_t>(token * row_stride + head * head_stride + column);
  }
  static std::vector<std::uint16_t> memory() {
    std::vector<std::uint16_t> cells(tokens * row_stride, gap);
    for (int t = 0; t < tokens; ++t)
      for (int h = 0; h < heads; ++h)
        for (int d = 0; d < head_dim; ++d) cells[place(t, h, d)] = value(t, h, d);
    return cells;
  }
  static hw::TensorMap map(std::uint16_t* data) {
    const core::Tensor tensor{
        data, TANDEM_BF16, {1, tokens, heads, head_dim}, {0, row_stride, head_stride, 1}};
    const hw::TensorMapRequest from = hw::tensor_map_request(tensor, {MovePackedBoxes::rows, 1, true});
    MapRequest to{data, {}, {}, {}, from.swizzle};
    to.rank = from.rank;
    std::copy_n(from.dims, from.rank, to.dims);
    std::copy_n(from.stride_bytes, from.rank - 1, to.stride_bytes);
    std::copy_n(from.box, from.rank, to.box);
    return machine::encode(to);
  }
};

/// Boxes that end with, beyond and wholly behind their sequence, of sequences of 0 rows to all.
inline std::vector<hw::PackedOrigin> packed_origins() {
  constexpr int all = PackedRows::tokens;
  std::vector<hw::PackedOrigin> origins = {{0, 0, 0, all, all}, {0, 48, 2, all, all}, {0, 0, 1, 16, 16},
                                           {0, 0, 1, 5, 20},    {0, 16, 0, 17, 40},   {0, 16, 0, 16, 40},
                                           {0, 0, 2, 0, 30},    {0, 64, 1, 3, 30},    {0, 0, 0, 1, all}};
  std::mt19937 random(5);
  for (int i = 0; i < 24; ++i) {
    const int past = static_cast<int>(random() % (all + 1)), length = static_cast<int>(random() % 32);
    origins.push_back({0, 16 * static_cast<int>(random() % 3), static_cast<int>(random() % 3),
                       std::min(length, past), past});
  }
  return origins;
}

TEST_P(PackedVerbs, BoxesEndWithTheirSequence) {
  using Move = MovePackedBoxes;
  for (const hw::PackedOrigin& o : packed_origins()) {
    SCOPED_TRACE("row " + std::to_string(o.s) + " of " + std::to_string(o.length) + " that end ahead of " +
                 std::to_string(o.past) + ", head " + std::to_string(o.h));
    const machine::Buffer source(PackedRows::memory());
    const machine::Buffer target(std::vector<std::uint16_t>(source.read().size(), PackedRows::gap));
    const machine::Buffer origin(std::vector{o});
    const machine::Buffer raw(poisoned<std::uint16_t>(Move::elements));
    run(Move{PackedRows::map(source.data()), PackedRows::map(target.data()), origin.data(), raw.data()});

    std::vector<std::uint16_t> landed(Move::elements, 0), stored(source.read().size(), PackedRows::gap);
    for (int row = 0; row < Move::rows && o.s + row < o.length; ++row)
      for (int column = 0; column < Move::columns; ++column) {
        const int token = o.past - o.length + o.s + row, chunk = column / 8 ^ row % 8;  // swizzled
        const std::uint16_t value = PackedRows::value(token, o.h, column);
        landed[static_cast<std::size_t>(row * Move::columns + 8 * chunk + column % 8)] = value;
        stored[PackedRows::place(token, o.h, column)] = value;
      }
    EXPECT_EQ(raw.read(), landed);
    EXPECT_EQ(target.read(), stored);
  }
}

}  // namespace tandem::test
