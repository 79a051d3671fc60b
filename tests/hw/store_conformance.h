// TMA's stores and reductions: boxes from shared memory into strided tensors, in and out of bounds.
#pragma once

#include "tests/hw/tma_conformance.h"

namespace tandem::test {

class StoreVerbs : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Machine, StoreVerbs, testing::ValuesIn(machine::modes()),
                         testing::PrintToStringParamName());

/// One block brings raw bytes into shared memory with ordinary stores, and one thread stores them as a box.
struct StoreBox {
  static constexpr int threads = 64;
  struct Shared {
    alignas(1024) std::uint16_t box[LoadBoxes::max_elements];
  };
  hw::TensorMap map;
  hw::BoxOrigin origin;
  int elements;
  const std::uint16_t* raw;

  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    for (int i = static_cast<int>(hw::thread_index()); i < elements; i += threads) shared.box[i] = raw[i];
    hw::fence_async_proxy();
    hw::sync_block();
    if (hw::thread_index() == 0) {
      hw::store_box(map, origin, shared.box);
      hw::commit_stores();
      hw::wait_stores_read<0>();
    }
  }
};

/// What a box has to hold for its elements to become the tensor's; those out of bounds are `outside`.
inline std::vector<std::uint16_t> box_to_store(const hw::BoxOrigin& origin, const BoxCase& c,
                                               std::uint16_t outside) {
  std::vector<std::uint16_t> raw = expected_box(origin, c.box, c.swizzle);
  std::replace(raw.begin(), raw.end(), std::uint16_t{0}, outside);
  return raw;
}

/// The tensor's memory with only the elements of one box; gaps everywhere else.
inline std::vector<std::uint16_t> memory_with_box(const hw::BoxOrigin& o, const Sizes4& box) {
  using Tensor = StridedTensor;
  const std::vector<std::uint16_t> all = Tensor::memory();
  std::vector<std::uint16_t> memory(all.size(), Tensor::gap);
  const auto range = [](int origin, int size, int dim) {
    return std::pair(std::max(origin, 0), std::min(origin + size, dim));
  };
  const auto [d0, d1] = range(o.d, box[0], Tensor::dims[0]);
  const auto [s0, s1] = range(o.s, box[1], Tensor::dims[1]);
  const auto [h0, h1] = range(o.h, box[2], Tensor::dims[2]);
  const auto [b0, b1] = range(o.b, box[3], Tensor::dims[3]);
  for (int b = b0; b < b1; ++b)
    for (int h = h0; h < h1; ++h)
      for (int s = s0; s < s1; ++s)
        for (int d = d0; d < d1; ++d) {
          const auto at = [](int i, std::size_t stride) { return static_cast<std::size_t>(i) * stride; };
          const std::size_t place =
              at(b, Tensor::stride_b) + at(s, Tensor::stride_s) + at(h, Tensor::stride_h) + at(d, 1);
          memory[place] = all[place];
        }
  return memory;
}

TEST_P(StoreVerbs, BoxesAreStoredFromTheirSwizzleAndOnlyWithinBounds) {
  constexpr std::uint16_t outside = 0xbad0;  // greater than any of the tensor's elements, and no gap
  for (const BoxCase& c : {BoxCase{"no swizzle", hw::Swizzle::none, {24, 24, 3, 2}},
                           {"no swizzle, wide", hw::Swizzle::none, {256, 6, 3, 2}},
                           {"32 bytes", hw::Swizzle::bytes32, {16, 24, 3, 2}},
                           {"64 bytes", hw::Swizzle::bytes64, {32, 24, 3, 2}},
                           {"128 bytes", hw::Swizzle::bytes128, {64, 24, 3, 2}}}) {
    for (const hw::BoxOrigin& o : box_origins()) {
      if (o.d < 0 || o.s < 0 || o.h < 0 || o.b < 0) continue;  // which a store may not have
      SCOPED_TRACE(std::string(c.name) + ", origin " + testing::PrintToString(Sizes4{o.d, o.s, o.h, o.b}));
      const std::vector<std::uint16_t> expected = memory_with_box(o, c.box);
      const machine::Buffer memory(std::vector<std::uint16_t>(expected.size(), StridedTensor::gap));
      const machine::Buffer raw(box_to_store(o, c, outside));
      const StoreBox body{machine::encode(StridedTensor::request(memory.data(), c.box, c.swizzle)), o,
                          c.box[0] * c.box[1] * c.box[2] * c.box[3], raw.data()};
      ASSERT_NO_THROW(run(body));  // with the trace: a coordinate that the chip refuses ends the context
      expect_equal(memory.read(), expected, StridedTensor::stride_h);
    }
  }
}

/// One thread moves boxes of a matrix to another through two slots: what TMA brought, TMA stores. Then it
/// reads back what it stored.
struct MoveBoxes {
  static constexpr int threads = 32, boxes = 9, rows = 8, columns = 64, slots = 2;
  struct Shared {
    alignas(1024) std::uint16_t box[slots][rows * columns];
    hw::Barrier loaded;
  };
  hw::TensorMap from, to;
  const std::uint32_t* stored;  ///< where `to` lies
  std::uint32_t* seen;          ///< as many words

  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    if (hw::thread_index() == 0) {
      hw::barrier_init(shared.loaded, 1);
      hw::fence_barrier_init();
    }
    hw::sync_block();
    if (hw::thread_index() != 0) return;
    for (int i = 0; i < boxes; ++i) {
      hw::wait_stores_read<slots - 1>();  // of the slot's last box, too
      hw::barrier_arrive_expecting(shared.loaded, sizeof shared.box[0]);
      hw::load_box(shared.box[i % slots], from, shared.loaded, {0, i * rows, 0, 0});
      hw::barrier_wait(shared.loaded, static_cast<std::uint32_t>(i) & 1);
      hw::store_box(to, {0, (boxes - 1 - i) * rows, 0, 0}, shared.box[i % slots]);
      hw::commit_stores();
    }
    hw::wait_stores<0>();
    for (int i = 0; i < boxes * rows * columns / 2; ++i) seen[i] = hw::load_global(stored + i);
  }
};

TEST_P(StoreVerbs, SlotsAreReusedOnceTheirStoresHaveReadAndTheThreadSeesWhatItStored) {
  using Body = MoveBoxes;
  constexpr std::size_t box = Body::rows * Body::columns, count = Body::boxes * box;
  std::vector<std::uint16_t> values(count), expected(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<std::uint16_t>(i * 13 + 5);
    expected[(Body::boxes - 1 - i / box) * box + i % box] = values[i];
  }
  const machine::Buffer source(values), target(poisoned<std::uint16_t>(count));
  const machine::Buffer seen(poisoned<std::uint32_t>(count / 2));
  const auto map = [](const std::uint16_t* matrix) {
    return machine::encode(matrix_request(matrix, Body::boxes * Body::rows, Body::columns, Body::rows));
  };
  run(Body{map(source.data()), map(target.data()), reinterpret_cast<const std::uint32_t*>(target.data()),
           seen.data()});
  expect_equal(target.read(), expected, Body::columns);
  std::vector<std::uint32_t> words(count / 2);
  std::memcpy(words.data(), expected.data(), count * sizeof expected[0]);
  expect_equal(seen.read(), words, Body::columns / 2);
}

/// All threads write a tile over and over; each round's goes to rows of its own.
struct StoreRounds {
  static constexpr int threads = 128, rounds = 7, rows = 16, columns = 64;
  struct Shared {
    alignas(1024) std::uint16_t tile[rows * columns];
  };
  hw::TensorMap map;

  TANDEM_DEVICE static constexpr std::uint16_t value(int round, int row, int column) {
    return static_cast<std::uint16_t>((round * rows + row) * 97 + column);
  }
  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    const int t = static_cast<int>(hw::thread_index());
    for (int round = 0; round < rounds; ++round) {
      for (int i = t; i < rows * columns; i += threads) {
        shared.tile[place_in_panel(i / columns, i % columns)] = value(round, i / columns, i % columns);
      }
      hw::fence_async_proxy();
      hw::sync_block();
      if (t == 0) {
        hw::store_box(map, {0, round * rows, 0, 0}, shared.tile);
        hw::commit_stores();
        hw::wait_stores_read<0>();
      }
      hw::sync_block();
    }
  }
};

TEST_P(StoreVerbs, ATileIsWrittenAnewBetweenItsStores) {
  using Body = StoreRounds;
  constexpr int rows = Body::rounds * Body::rows;
  std::vector<std::uint16_t> expected(rows * Body::columns);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto row = static_cast<int>(i) / Body::columns;
    expected[i] = Body::value(row / Body::rows, row % Body::rows, static_cast<int>(i) % Body::columns);
  }
  const machine::Buffer matrix(poisoned<std::uint16_t>(expected.size()));
  run(Body{machine::encode(matrix_request(matrix.data(), rows, Body::columns, Body::rows))});
  expect_equal(matrix.read(), expected, Body::columns);
}

/// Every block adds its tile to the same matrix, in two boxes of 32 columns, some rows out of bounds, several
/// times.
struct AddTiles {
  static constexpr int threads = 128, rounds = 3, rows = 32, columns = 64, panel = 32;
  struct Shared {
    alignas(1024) float panels[columns / panel][rows * panel];
  };
  hw::TensorMap map;
  int first_row;  ///< of the tiles

  TANDEM_DEVICE static constexpr int place(int row, int column) {
    return row * panel + (column / 4 ^ row % 8) * 4 + column % 4;
  }
  TANDEM_DEVICE static constexpr int term(int block, int row, int column) {
    return (block + 1) * (row + 3) - 5 * column;
  }
  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    const int t = static_cast<int>(hw::thread_index()), block = static_cast<int>(hw::block_index());
    for (int i = t; i < rows * columns; i += threads) {
      const int row = i / columns, column = i % columns;
      shared.panels[column / panel][place(row, column % panel)] =
          static_cast<float>(term(block, row, column));
    }
    hw::fence_async_proxy();
    hw::sync_block();
    if (t != 0) return;
    for (int round = 0; round < rounds; ++round) {
      for (int i = 0; i < columns / panel; ++i) {
        hw::reduce_add_box(map, {i * panel, first_row, 0, 0}, shared.panels[i]);
      }
      hw::commit_stores();
    }
    hw::wait_stores<0>();
  }
};

TEST_P(StoreVerbs, AddsOfManyBlocksToTheSameTileAllCount) {
  using Body = AddTiles;
  constexpr int rows = 48, blocks = 40;
  const auto start = [](std::size_t i) { return static_cast<float>(i % 1000) + 0.5f; };
  for (const int first_row : {0, 9, 24, 40}) {
    SCOPED_TRACE("tiles from row " + std::to_string(first_row));
    std::vector<float> values(rows * Body::columns), expected(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const int row = static_cast<int>(i) / Body::columns - first_row;
      int sum = 0;  // exact in fp32, in any order
      for (int block = 0; block < blocks && row >= 0 && row < Body::rows; ++block) {
        sum += Body::rounds * Body::term(block, row, static_cast<int>(i) % Body::columns);
      }
      values[i] = start(i);
      expected[i] = start(i) + static_cast<float>(sum);
    }
    const machine::Buffer matrix(values);
    run(Body{machine::encode({matrix.data(),
                              {Body::columns, rows, 1, 1},
                              {4 * Body::columns, 16, 16},
                              {Body::panel, Body::rows, 1, 1},
                              hw::Swizzle::bytes128,
                              4}),
             first_row},
        blocks);
    expect_equal(matrix.read(), expected, Body::columns);
  }
}

/// Blocks add their tiles in the order of the numbers that they take; the first one stores, and the last one
/// copies the sums back. Terms are such that another order gives other bits.
struct AddInTurn {
  static constexpr int threads = 32, rows = 8, columns = 32, count = rows * columns;
  struct Shared {
    alignas(128) float tile[count];
    alignas(128) float sums[count];
    hw::Barrier full;
  };
  hw::TensorMap map;
  const float* sums;
  std::uint32_t *next, *turns;
  float* copied;

  TANDEM_DEVICE static constexpr float term(int number, int i) {
    constexpr float large = 1 << 24;
    const auto own = static_cast<float>(i + 1);
    return number % 3 == 0 ? large * own : number % 3 == 1 ? own + 0.5f : -large * own;
  }
  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    const std::uint32_t lane = hw::lane_index(), blocks = hw::grid_size();
    std::uint32_t number = 0;
    if (lane == 0) number = hw::take_number(next);
    number = hw::shuffle(number, 0);
    for (int i = static_cast<int>(hw::thread_index_anew()); i < count; i += threads)
      shared.tile[i] = term(static_cast<int>(number), i);
    hw::fence_async_proxy();
    hw::sync_warp();
    if (lane == 0) {
      if (number > 0) {
        hw::wait_counter(turns, number);
        hw::fence_async_proxy_global();
        hw::reduce_add_box(map, {0, 0, 0, 0}, shared.tile);
      } else {
        hw::store_box(map, {0, 0, 0, 0}, shared.tile);
      }
      hw::commit_stores();
      hw::wait_stores<0>();
      hw::signal_counter(turns);
    }
    if (number + 1 < blocks) return;
    if (lane == 0) {
      hw::barrier_init(shared.full, 1);
      hw::fence_barrier_init();
      hw::wait_counter(turns, blocks);
      hw::fence_async_proxy_global();
      hw::barrier_arrive_expecting(shared.full, sizeof shared.sums);
      hw::copy_in(shared.sums, sums, sizeof shared.sums, shared.full);
    }
    hw::sync_warp();
    hw::barrier_wait(shared.full, 0);
    for (int i = static_cast<int>(lane); i < count; i += threads)
      hw::store_global(copied + i, shared.sums[i]);
  }
};

TEST_P(StoreVerbs, AddsOfBlocksThatWaitForOneAnotherComeInTheirOrder) {
  using Body = AddInTurn;
  for (const std::uint32_t blocks : {1u, 2u, 7u, 300u}) {
    SCOPED_TRACE(std::to_string(blocks) + " blocks");
    const machine::Buffer sums(poisoned<float>(Body::count)), copied(poisoned<float>(Body::count));
    const machine::Buffer next(std::vector<std::uint32_t>{0}), turns(std::vector<std::uint32_t>{0});
    std::vector<float> expected(Body::count);
    for (std::uint32_t number = 0; number < blocks; ++number) {
      for (int i = 0; i < Body::count; ++i) expected[i] += Body::term(static_cast<int>(number), i);
    }
    run(Body{machine::encode({sums.data(),
                              {Body::columns, Body::rows, 1, 1},
                              {4 * Body::columns, 16, 16},
                              {Body::columns, Body::rows, 1, 1},
                              hw::Swizzle::none,
                              4}),
             sums.data(), next.data(), turns.data(), copied.data()},
        blocks);
    expect_equal(sums.read(), expected, Body::columns);
    expect_equal(copied.read(), expected, Body::columns);
    EXPECT_EQ(turns.read()[0], blocks);
  }
}

}  // namespace tandem::test
