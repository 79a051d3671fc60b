// Global memory: loads, stores, atomics, and what they order between blocks.
#pragma once

#include <algorithm>
#include <numeric>

#include "tests/hw/conformance.h"

namespace tandem::test {

class GlobalVerbs : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Machine, GlobalVerbs, testing::ValuesIn(machine::modes()),
                         testing::PrintToStringParamName());

/// Every kind of load, and every kind of store of what it gave.
struct MoveWords {
  static constexpr int threads = 64;
  using Shared = NoShared;
  const std::uint32_t* words;  ///< four a thread
  std::uint32_t* quads;        ///< as they are
  std::uint32_t* kept[2];      ///< as they are, two and four at once
  std::uint32_t* singles;      ///< as they are
  std::uint16_t* halves;       ///< upper halves, in every second place
  float* floats;               ///< as they are
  std::int32_t* negated;       ///< of the first of four, minus its value

  TANDEM_DEVICE void operator()() const {
    const std::uint32_t t = hw::thread_index();
    hw::wait_for_prior_grid();
    std::uint32_t quad[4];
    hw::load_global(quad, words + 4 * t);
    hw::store_global(quads + 4 * t, quad);
    hw::store_kept(kept[0] + 4 * t, {quad[0], quad[1]});
    hw::store_kept(kept[0] + 4 * t + 2, {quad[2], quad[3]});
    hw::store_kept(kept[1] + 4 * t, quad);
    for (std::uint32_t i = 4 * t; i < 4 * t + 4; ++i) {
      const std::uint32_t word = hw::load_global(words + i);
      hw::store_global(singles + i, word);
      hw::store_global(halves + 2 * i, static_cast<std::uint16_t>(word >> 16));
      hw::store_global(floats + i, hw::load_global(reinterpret_cast<const float*>(words) + i));
    }
    hw::release_next_grid();
    const std::int32_t first = hw::load_global(reinterpret_cast<const std::int32_t*>(words) + 4 * t);
    hw::store_global(reinterpret_cast<std::uint32_t*>(negated + t), static_cast<std::uint32_t>(-first));
  }
};

TEST_P(GlobalVerbs, LoadsAndStoresOfEverySizeMoveWhatIsThere) {
  constexpr std::size_t count = 4 * MoveWords::threads;
  constexpr std::uint16_t untouched = 0xabcd;
  std::vector<std::uint32_t> values(count);
  std::vector<std::uint16_t> upper(2 * count, untouched);
  std::vector<float> as_floats(count);
  std::vector<std::int32_t> negated(MoveWords::threads);
  std::mt19937 random(41);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<std::uint32_t>(random()) & 0xbfffffffu;  // no NaN
    upper[2 * i] = static_cast<std::uint16_t>(values[i] >> 16);
    std::memcpy(&as_floats[i], &values[i], sizeof(float));
    if (i % 4 == 0) negated[i / 4] = -static_cast<std::int32_t>(values[i]);
  }
  const machine::Buffer in(values), quads(poisoned<std::uint32_t>(count)),
      singles(poisoned<std::uint32_t>(count));
  const machine::Buffer kept_pairs(poisoned<std::uint32_t>(count)),
      kept_quads(poisoned<std::uint32_t>(count));
  const machine::Buffer halves(std::vector<std::uint16_t>(2 * count, untouched));
  const machine::Buffer floats(poisoned<float>(count));
  const machine::Buffer differences(poisoned<std::int32_t>(negated.size()));
  run(MoveWords{in.data(),
                quads.data(),
                {kept_pairs.data(), kept_quads.data()},
                singles.data(),
                halves.data(),
                floats.data(),
                differences.data()});
  expect_equal(quads.read(), values, 4);
  expect_equal(kept_pairs.read(), values, 4);
  expect_equal(kept_quads.read(), values, 4);
  expect_equal(singles.read(), values, 4);
  expect_equal(halves.read(), upper, 8);
  expect_equal(floats.read(), as_floats, 4);
  expect_equal(differences.read(), negated, 4);
}

/// Every thread of every block draws a number.
struct DrawNumbers {
  static constexpr int threads = 96;
  using Shared = NoShared;
  std::uint32_t* counter;
  std::uint32_t* numbers;

  TANDEM_DEVICE void operator()() const {
    const std::uint32_t t = hw::block_index() * threads + hw::thread_index();
    hw::store_global(numbers + t, hw::atomic_add(counter, 3));
  }
};

TEST_P(GlobalVerbs, AtomicsReturnEachOldValueOnce) {
  constexpr std::size_t blocks = 11, count = blocks * DrawNumbers::threads;
  const machine::Buffer counter(std::vector<std::uint32_t>{100});
  const machine::Buffer numbers(poisoned<std::uint32_t>(count));
  run(DrawNumbers{counter.data(), numbers.data()}, blocks);
  std::vector<std::uint32_t> drawn = numbers.read(), expected(count);
  std::sort(drawn.begin(), drawn.end());
  for (std::size_t i = 0; i < count; ++i) expected[i] = static_cast<std::uint32_t>(100 + 3 * i);
  expect_equal(drawn, expected, count);
  EXPECT_EQ(counter.read()[0], 100 + 3 * count);
}

/// All blocks of a group leave a partial result; the last to come adds them up, and resets the counter.
struct LastBlockCombines {
  static constexpr int threads = 128, group = 8;
  struct Shared {
    std::uint32_t arrived;
  };
  float* partials;          ///< a row of `threads` for each block
  std::uint32_t* counters;  ///< one a group
  float* sums;              ///< a row for each group

  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    const std::uint32_t t = hw::thread_index(), block = hw::block_index();
    // Blocks of a group are far apart, so that they run on different multiprocessors.
    const std::uint32_t groups = hw::grid_size() / group, own = block % groups;
    hw::store_global(partials + block * threads + t, static_cast<float>(block * 1000 + t));
    hw::sync_block();
    if (t == 0) shared.arrived = hw::atomic_add(counters + own, 1);
    hw::sync_block();
    if (shared.arrived != group - 1) return;
    float sum = 0;
    for (std::uint32_t i = 0; i < group; ++i) {
      sum += hw::load_global(partials + (own + i * groups) * threads + t);
    }
    hw::store_global(sums + own * threads + t, sum);
    if (t == 0) hw::store_global(counters + own, 0u);
  }
};

TEST_P(GlobalVerbs, TheLastBlockOfAGroupSeesWhatTheOthersStored) {
  using Body = LastBlockCombines;
  constexpr std::size_t groups = 20, blocks = groups * Body::group;
  const machine::Buffer partials(poisoned<float>(blocks * Body::threads));
  const machine::Buffer sums(poisoned<float>(groups * Body::threads));
  const std::vector<std::uint32_t> zeros(groups);
  const machine::Buffer counters(zeros);
  std::vector<float> expected(groups * Body::threads);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (std::size_t part = 0; part < Body::group; ++part) {
      const std::size_t block = i / Body::threads + part * groups;
      expected[i] += static_cast<float>(block * 1000 + i % Body::threads);
    }
  }
  for (int launch = 0; launch < 3; ++launch) {  // the counters are ready for the next
    run(Body{partials.data(), counters.data(), sums.data()}, blocks);
    expect_equal(sums.read(), expected, Body::threads);
    expect_equal(counters.read(), zeros, groups);
  }
}

}  // namespace tandem::test
