// TMA: boxes of strided tensors in every swizzle, in and out of bounds, raw bytes in shared memory.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <utility>

#include "tests/hw/conformance.h"

namespace tandem::test {

class CopyVerbs : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Machine, CopyVerbs, testing::ValuesIn(machine::modes()),
                         testing::PrintToStringParamName());

/// Each block loads one box and writes out what has come to lie in shared memory.
struct LoadBoxes {
  static constexpr int threads = 64, max_elements = 64 * 24 * 3 * 2;
  struct Shared {
    alignas(1024) std::uint16_t box[max_elements];
    hw::Barrier loaded;
  };
  hw::TensorMap map;
  const hw::BoxOrigin* origins;  ///< of each block
  int elements;                  ///< of a box
  std::uint16_t* raw;            ///< `elements` of each block

  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    if (hw::thread_index() == 0) {
      hw::barrier_init(shared.loaded, 1);
      hw::fence_barrier_init();
    }
    hw::sync_block();
    if (hw::thread_index() == 0) {
      hw::prefetch_map(map);
      hw::prefetch_box(map, origins[hw::block_index()]);
      hw::barrier_arrive_expecting(shared.loaded, static_cast<std::uint32_t>(2 * elements));
      hw::load_box(shared.box, map, shared.loaded, origins[hw::block_index()]);
    }
    hw::barrier_wait(shared.loaded, 0);
    std::uint16_t* own = raw + static_cast<int>(hw::block_index()) * elements;
    for (int i = static_cast<int>(hw::thread_index()); i < elements; i += threads) own[i] = shared.box[i];
  }
};

/// Four sizes, innermost (head dim) first.
using Sizes4 = std::array<int, 4>;

/// A tensor whose elements all differ, with gaps between its rows; s runs slower than h.
struct StridedTensor {
  static constexpr Sizes4 dims = {88, 37, 5, 2};
  static constexpr std::size_t stride_h = 96, stride_s = 5 * stride_h + 8, stride_b = 37 * stride_s + 64;
  static constexpr std::uint16_t gap = 0xdead;

  static std::uint16_t value(const Sizes4& at) {
    for (std::size_t i = 0; i < 4; ++i) {
      if (at[i] < 0 || at[i] >= dims[i]) return 0;
    }
    return static_cast<std::uint16_t>(1 + at[0] + dims[0] * (at[1] + dims[1] * (at[2] + dims[2] * at[3])));
  }
  static std::vector<std::uint16_t> memory() {
    std::vector<std::uint16_t> cells(dims[3] * stride_b, gap);
    for (int b = 0; b < dims[3]; ++b)
      for (int h = 0; h < dims[2]; ++h)
        for (int s = 0; s < dims[1]; ++s)
          for (int d = 0; d < dims[0]; ++d) {
            const auto at = [](int i, std::size_t stride) { return static_cast<std::size_t>(i) * stride; };
            cells[at(b, stride_b) + at(s, stride_s) + at(h, stride_h) + at(d, 1)] = value({d, s, h, b});
          }
    return cells;
  }
  static MapRequest request(const void* address, const Sizes4& box, hw::Swizzle swizzle) {
    MapRequest r{address, {}, {2 * stride_s, 2 * stride_h, 2 * stride_b}, {}, swizzle};
    std::copy(dims.begin(), dims.end(), r.dims);
    std::copy(box.begin(), box.end(), r.box);
    return r;
  }
};

/// Byte address of (row, column) in a box of `row_bytes` a row: bits 4-6 are XORed with bits 7-9, or with as
/// many of them as the swizzle is wide.
inline std::size_t swizzled_address(std::size_t row, std::size_t column, std::size_t row_bytes,
                                    hw::Swizzle swizzle) {
  const std::size_t address = row * row_bytes + 2 * column;
  const std::size_t mask = swizzle == hw::Swizzle::bytes128  ? 7
                           : swizzle == hw::Swizzle::bytes64 ? 3
                           : swizzle == hw::Swizzle::bytes32 ? 1
                                                             : 0;
  return address ^ (address >> 7 & mask) << 4;
}

inline std::vector<std::uint16_t> expected_box(const hw::BoxOrigin& o, const Sizes4& box,
                                               hw::Swizzle swizzle) {
  const auto columns = static_cast<std::size_t>(box[0]);
  std::vector<std::uint16_t> raw(columns * static_cast<std::size_t>(box[1] * box[2] * box[3]));
  std::size_t row = 0;
  for (int b = 0; b < box[3]; ++b)
    for (int h = 0; h < box[2]; ++h)
      for (int s = 0; s < box[1]; ++s, ++row)
        for (std::size_t d = 0; d < columns; ++d)
          raw[swizzled_address(row, d, 2 * columns, swizzle) / 2] =
              StridedTensor::value({o.d + static_cast<int>(d), o.s + s, o.h + h, o.b + b});
  return raw;
}

/// Inside, partly outside on each side, wholly outside on each side, far away; then anywhere. The chip wants
/// the innermost coordinate in steps of 16 bytes.
inline std::vector<hw::BoxOrigin> box_origins() {
  constexpr int far = 1 << 20;
  std::vector<hw::BoxOrigin> origins = {
      {0, 0, 0, 0},   {8, 5, 1, 0},  {64, 0, 0, 0},    {80, 30, 4, 1},          {-8, 0, 0, 0},
      {0, -5, 0, 0},  {0, 0, -1, 0}, {0, 0, 0, -1},    {-16, -7, -2, -1},       {-256, 0, 0, 0},
      {0, -24, 0, 0}, {0, 0, -3, 0}, {0, 0, 0, -2},    {88, 0, 0, 0},           {0, 37, 0, 0},
      {0, 0, 5, 0},   {0, 0, 0, 2},  {far, far, 0, 0}, {-far, -far, -far, -far}};
  std::mt19937 random(2);
  const auto draw = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  for (int i = 0; i < 20; ++i) origins.push_back({8 * draw(-3, 11), draw(-10, 40), draw(-2, 5), draw(-1, 2)});
  return origins;
}

struct BoxCase {
  const char* name;
  hw::Swizzle swizzle;
  Sizes4 box;
};

TEST_P(CopyVerbs, BoxesLandInTheirSwizzleWithZerosOutOfBounds) {
  const machine::Buffer source(StridedTensor::memory());
  const std::vector<hw::BoxOrigin> origins = box_origins();
  const machine::Buffer device_origins(origins);
  for (const BoxCase& c : {BoxCase{"no swizzle", hw::Swizzle::none, {24, 24, 3, 2}},
                           {"no swizzle, wide", hw::Swizzle::none, {256, 6, 3, 2}},
                           {"32 bytes", hw::Swizzle::bytes32, {16, 24, 3, 2}},
                           {"64 bytes", hw::Swizzle::bytes64, {32, 24, 3, 2}},
                           {"128 bytes", hw::Swizzle::bytes128, {64, 24, 3, 2}}}) {
    const int elements = c.box[0] * c.box[1] * c.box[2] * c.box[3];
    const machine::Buffer raw(poisoned<std::uint16_t>(origins.size() * static_cast<std::size_t>(elements)));
    run(LoadBoxes{machine::encode(StridedTensor::request(source.data(), c.box, c.swizzle)),
                  device_origins.data(), elements, raw.data()},
        static_cast<int>(origins.size()));
    const std::vector<std::uint16_t> all = raw.read();
    for (std::size_t i = 0; i < origins.size(); ++i) {
      const hw::BoxOrigin& o = origins[i];
      SCOPED_TRACE(std::string(c.name) + ", origin " + testing::PrintToString(Sizes4{o.d, o.s, o.h, o.b}));
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(i) * elements;
      expect_equal({begin, begin + elements}, expected_box(o, c.box, c.swizzle),
                   static_cast<std::size_t>(c.box[0]));
    }
  }
}

/// As LoadBoxes, over rows of 128 bytes that a box fills in part, and that held marks.
struct LoadNarrowBox {
  static constexpr int threads = 64, rows = 24, columns = 64;
  static constexpr std::uint16_t mark = 0x5a5a;
  struct Shared {
    alignas(1024) std::uint16_t box[rows * columns];
    hw::Barrier loaded;
  };
  hw::TensorMap map;
  hw::BoxOrigin origin;
  int box_columns;
  hw::CachePolicy policy;
  std::uint16_t* raw;

  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    const int thread = static_cast<int>(hw::thread_index());
    for (int i = thread; i < rows * columns; i += threads) shared.box[i] = mark;
    hw::fence_async_proxy();
    if (thread == 0) {
      hw::barrier_init(shared.loaded, 1);
      hw::fence_barrier_init();
    }
    hw::sync_block();
    if (thread == 0) {
      hw::barrier_arrive_expecting(shared.loaded, static_cast<std::uint32_t>(2 * rows * box_columns));
      hw::load_box(shared.box, map, shared.loaded, origin, hw::l2_policy(policy));
    }
    hw::barrier_wait(shared.loaded, 0);
    for (int i = thread; i < rows * columns; i += threads) raw[i] = shared.box[i];
  }
};

// The last box of rows that are no multiple of 128 bytes; under every policy of L2, which changes no byte.
TEST_P(CopyVerbs, BoxesNarrowerThanTheirSwizzleKeepItsRowsAndLeaveTheRest) {
  constexpr int rows = LoadNarrowBox::rows, columns = LoadNarrowBox::columns;
  const machine::Buffer source(StridedTensor::memory());
  for (const int box_columns : {8, 16, 24, 32, 40, 48, 56}) {
    for (const auto& [o, policy] : {std::pair{hw::BoxOrigin{0, 0, 0, 0}, hw::CachePolicy::normal},
                                    {hw::BoxOrigin{64, 9, 2, 1}, hw::CachePolicy::evict_first},
                                    {hw::BoxOrigin{80, 20, 4, 0}, hw::CachePolicy::evict_last}}) {
      SCOPED_TRACE(std::to_string(box_columns) + " columns from " + std::to_string(o.d) + " on");
      const Sizes4 box = {box_columns, rows, 1, 1};
      const machine::Buffer raw(poisoned<std::uint16_t>(rows * columns));
      run(LoadNarrowBox{machine::encode(StridedTensor::request(source.data(), box, hw::Swizzle::bytes128)), o,
                        box_columns, policy, raw.data()});
      std::vector<std::uint16_t> expected(rows * columns, LoadNarrowBox::mark);
      for (int s = 0; s < rows; ++s)
        for (int d = 0; d < box_columns; ++d)
          expected[static_cast<std::size_t>(place_in_panel(s, d))] =
              StridedTensor::value({o.d + d, o.s + s, o.h, o.b});
      expect_equal(raw.read(), expected, columns);
    }
  }
}

// What a broadcast (expanded) head or batch dimension asks of TMA.
TEST_P(CopyVerbs, StrideZeroRepeatsTheSameElements) {
  constexpr int columns = 64, rows = 8, heads = 3;
  std::vector<std::uint16_t> values(rows * columns);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i + 1);
  const machine::Buffer source(values);
  const machine::Buffer origins(std::vector<hw::BoxOrigin>{{0, 0, 0, 0}, {0, 0, 1, 0}});
  const machine::Buffer raw(poisoned<std::uint16_t>(2 * rows * columns));
  MapRequest request = matrix_request(source.data(), rows, columns, rows);
  request.dims[2] = heads;
  request.stride_bytes[1] = 0;
  request.swizzle = hw::Swizzle::bytes128;
  run(LoadBoxes{machine::encode(request), origins.data(), rows * columns, raw.data()}, 2);
  std::vector<std::uint16_t> expected(2 * values.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto at = static_cast<int>(i % values.size());
    expected[i / values.size() * values.size() +
             static_cast<std::size_t>(place_in_panel(at / columns, at % columns))] =
        values[static_cast<std::size_t>(at)];
  }
  expect_equal(raw.read(), expected, columns);
}

/// Several boxes on one barrier, announced by two threads at different times, a third arriving without bytes;
/// over many phases.
struct ShareBarrier {
  static constexpr int threads = 96, rounds = 9, rows = 8, columns = 64, boxes = 3;
  struct Shared {
    alignas(1024) std::uint16_t box[boxes][rows * columns];
    hw::Barrier loaded;
  };
  hw::TensorMap map;
  std::uint16_t* raw;  ///< all boxes of each round

  TANDEM_DEVICE void load(Shared& shared, int box, int round) const {
    hw::load_box(shared.box[box], map, shared.loaded, {0, (round * boxes + box) * rows, 0, 0});
  }

  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    constexpr std::uint32_t bytes = sizeof(shared.box[0]);
    const std::uint32_t t = hw::thread_index();
    if (t == 0) {
      hw::barrier_init(shared.loaded, 3);
      hw::fence_barrier_init();
    }
    hw::sync_block();
    for (int round = 0; round < rounds; ++round) {
      if (t == 0) {
        hw::barrier_arrive_expecting(shared.loaded, 2 * bytes);
        load(shared, 0, round);
        load(shared, 1, round);
      } else if (t == 32) {
        hw::barrier_arrive_expecting(shared.loaded, bytes);
        load(shared, 2, round);
      } else if (t == 64) {
        hw::barrier_arrive(shared.loaded);
      }
      hw::barrier_wait(shared.loaded, static_cast<std::uint32_t>(round) & 1);
      const std::uint16_t* box = &shared.box[0][0];
      for (int i = static_cast<int>(t); i < boxes * rows * columns; i += threads) {
        raw[round * boxes * rows * columns + i] = box[i];
      }
      hw::sync_warp();  // the block barrier wants whole warps
      hw::sync_block();
    }
  }
};

TEST_P(CopyVerbs, BoxesOfSeveralThreadsCompleteOneBarrierPhaseAfterPhase) {
  constexpr int rows = ShareBarrier::rounds * ShareBarrier::boxes * ShareBarrier::rows;
  constexpr int columns = ShareBarrier::columns;
  std::vector<std::uint16_t> values(rows * columns), expected(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<std::uint16_t>(i * 7 + 1);
    const auto at = static_cast<int>(i);  // rows of a panel repeat their pattern after 8
    expected[static_cast<std::size_t>(place_in_panel(at / columns, at % columns))] = values[i];
  }
  const machine::Buffer source(values), raw(poisoned<std::uint16_t>(values.size()));
  run(ShareBarrier{machine::encode(matrix_request(source.data(), rows, columns, ShareBarrier::rows)),
                   raw.data()});
  expect_equal(raw.read(), expected, columns);
}

/// A tile of `rows` rows in the 128-byte swizzle, from boxes of fewer rows at multiples of 128 bytes: what
/// pages that are shorter than a tile ask for. The rows come from all over the source.
struct LoadInParts {
  static constexpr int threads = 32, rows = 64, columns = 64;
  struct Shared {
    alignas(1024) std::uint16_t tile[rows * columns];
    hw::Barrier loaded;
  };
  hw::TensorMap map;
  int box_rows;
  std::uint16_t* raw;

  TANDEM_DEVICE static constexpr int source_row(int part, int parts) { return (part * 5 + 1) % parts; }

  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    const int lane = static_cast<int>(hw::thread_index()), parts = rows / box_rows;
    if (lane == 0) {
      hw::barrier_init(shared.loaded, 1);
      hw::fence_barrier_init();
    }
    hw::sync_block();
    if (lane == 0) hw::barrier_arrive_expecting(shared.loaded, sizeof shared.tile);
    hw::sync_warp();
    for (int part = lane; part < parts; part += threads) {  // lanes share the work
      hw::load_box(shared.tile + part * box_rows * columns, map, shared.loaded,
                   {0, source_row(part, parts) * box_rows, 0, 0},
                   hw::l2_policy(hw::CachePolicy::evict_first));
    }
    hw::sync_warp();
    hw::barrier_wait(shared.loaded, 0);
    for (int i = lane; i < rows * columns; i += threads) raw[i] = shared.tile[i];
  }
};

TEST_P(CopyVerbs, BoxesOfFewRowsMakeUpASwizzledTile) {
  using Body = LoadInParts;
  std::vector<std::uint16_t> values(Body::rows * Body::columns);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i * 3 + 1);
  const machine::Buffer source(values);
  for (const int box_rows : {1, 2, 4, 8, 16, 32}) {
    SCOPED_TRACE("boxes of " + std::to_string(box_rows) + " rows");
    const int parts = Body::rows / box_rows;
    MapRequest request = matrix_request(source.data(), Body::rows, Body::columns, box_rows);
    request.swizzle = hw::Swizzle::bytes128;
    const machine::Buffer raw(poisoned<std::uint16_t>(values.size()));
    run(Body{machine::encode(request), box_rows, raw.data()});
    std::vector<std::uint16_t> expected(values.size());
    for (int i = 0; i < Body::rows * Body::columns; ++i) {
      const int row = i / Body::columns, column = i % Body::columns;
      const int from = Body::source_row(row / box_rows, parts) * box_rows + row % box_rows;
      expected[static_cast<std::size_t>(place_in_panel(row, column))] =
          values[static_cast<std::size_t>(from * Body::columns + column)];
    }
    expect_equal(raw.read(), expected, Body::columns);
  }
}

/// Bulk copies of several sizes to neighbouring places, on one barrier.
struct CopyIn {
  static constexpr int threads = 64, words = 8192;
  struct Shared {
    alignas(16) std::uint32_t words[CopyIn::words];
    hw::Barrier loaded;
  };
  const std::uint32_t* source;  ///< as many, read in pieces from the end to the beginning
  const std::int32_t* sizes;    ///< of the pieces, in words, closed by 0
  std::uint32_t* seen;

  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    const int t = static_cast<int>(hw::thread_index());
    if (t == 0) {
      hw::barrier_init(shared.loaded, 1);
      hw::fence_barrier_init();
    }
    hw::sync_block();
    if (t == 0) {
      hw::barrier_arrive_expecting(shared.loaded, sizeof shared.words);
      int at = 0;
      for (int i = 0; sizes[i] != 0; ++i) {
        const std::int32_t size = sizes[i];
        hw::copy_in(shared.words + at, source + words - at - size, static_cast<std::uint32_t>(4 * size),
                    shared.loaded);
        at += size;
      }
    }
    hw::barrier_wait(shared.loaded, 0);
    hw::sync_warp();
    for (int i = t; i < words; i += threads) seen[i] = shared.words[i];
  }
};

TEST_P(CopyVerbs, BulkCopiesOfSeveralSizesCompleteOneBarrier) {
  std::vector<std::uint32_t> values(CopyIn::words), expected;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint32_t>(i * 2654435761u);
  std::vector<std::int32_t> sizes = {4, 8, 4, 12, 64, 1000, 4096};
  sizes.push_back(CopyIn::words - std::accumulate(sizes.begin(), sizes.end(), 0));
  std::ptrdiff_t end = CopyIn::words;
  for (const std::int32_t size : sizes) {
    expected.insert(expected.end(), values.begin() + end - size, values.begin() + end);
    end -= size;
  }
  sizes.push_back(0);
  const machine::Buffer source(values), seen(poisoned<std::uint32_t>(values.size()));
  const machine::Buffer device_sizes(sizes);
  run(CopyIn{source.data(), device_sizes.data(), seen.data()});
  expect_equal(seen.read(), expected, 64);
}

}  // namespace tandem::test
