// Threads, lanes, registers, global stores.
#pragma once

#include "tests/hw/conformance.h"

namespace tandem::test {

class ThreadVerbs : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Machine, ThreadVerbs, testing::ValuesIn(machine::modes()),
                         testing::PrintToStringParamName());

/// Every thread writes down who it is.
struct Introduce {
  static constexpr int threads = 384, facts = 6;
  using Shared = NoShared;
  std::uint32_t* seen;

  TANDEM_DEVICE void operator()() const {
    std::uint32_t* own = seen + (hw::block_index() * threads + hw::thread_index()) * facts;
    own[0] = hw::thread_index();
    own[1] = hw::lane_index();
    own[2] = hw::warp_index();
    own[3] = hw::warpgroup_index();
    own[4] = hw::block_index();
    own[5] = hw::grid_size();
  }
};

TEST_P(ThreadVerbs, ThreadsKnowTheirPlace) {
  constexpr std::uint32_t blocks = 5;
  const machine::Buffer seen(poisoned<std::uint32_t>(blocks * Introduce::threads * Introduce::facts));
  run(Introduce{seen.data()}, blocks);
  std::vector<std::uint32_t> expected;
  for (std::uint32_t block = 0; block < blocks; ++block) {
    for (std::uint32_t t = 0; t < Introduce::threads; ++t) {
      expected.insert(expected.end(), {t, t % 32, t / 32, t / 128, block, blocks});
    }
  }
  expect_equal(seen.read(), expected, Introduce::facts);
}

/// Every lane writes down whether it was elected, twice.
struct Elect {
  static constexpr int threads = 256;
  using Shared = NoShared;
  std::uint32_t* elected;

  TANDEM_DEVICE void operator()() const {
    elected[hw::thread_index()] = hw::elect_one() ? 1 : 0;
    elected[threads + hw::thread_index()] = hw::elect_one() ? 1 : 0;
  }
};

TEST_P(ThreadVerbs, ElectionElectsExactlyOneLaneOfEachWarp) {
  const machine::Buffer elected(poisoned<std::uint32_t>(2 * Elect::threads));
  run(Elect{elected.data()});
  const std::vector<std::uint32_t> seen = elected.read();
  for (std::size_t warp = 0; warp < seen.size() / 32; ++warp) {
    std::uint32_t count = 0;
    for (std::size_t lane = 0; lane < 32; ++lane) {
      ASSERT_LE(seen[32 * warp + lane], 1u);
      count += seen[32 * warp + lane];
    }
    EXPECT_EQ(count, 1u) << "warp " << warp;
  }
  keep_golden("elected", seen);
}

/// Words and floats across all distances.
struct Shuffle {
  static constexpr int threads = 64, masks = 31;
  using Shared = NoShared;
  std::uint32_t* words;
  float* floats;

  TANDEM_DEVICE void operator()() const {
    const std::uint32_t t = hw::thread_index();
    for (std::uint32_t mask = 1; mask <= masks; ++mask) {
      words[(mask - 1) * threads + t] = hw::shuffle_xor(t * 2654435761u, mask);
      floats[(mask - 1) * threads + t] = hw::shuffle_xor(static_cast<float>(t) + 0.5f, mask);
    }
  }
};

TEST_P(ThreadVerbs, ShufflesExchangeValuesOfLanes) {
  const machine::Buffer words(poisoned<std::uint32_t>(Shuffle::threads * Shuffle::masks));
  const machine::Buffer floats(poisoned<float>(Shuffle::threads * Shuffle::masks));
  run(Shuffle{words.data(), floats.data()});
  std::vector<std::uint32_t> expected_words;
  std::vector<float> expected_floats;
  for (std::uint32_t mask = 1; mask <= Shuffle::masks; ++mask) {
    for (std::uint32_t t = 0; t < Shuffle::threads; ++t) {
      expected_words.push_back((t ^ mask) * 2654435761u);
      expected_floats.push_back(static_cast<float>(t ^ mask) + 0.5f);
    }
  }
  expect_equal(words.read(), expected_words, Shuffle::threads);
  expect_equal(floats.read(), expected_floats, Shuffle::threads);
}

/// Words and floats of any lane: each lane asks for another, and for a different one each time.
struct ShuffleFromLanes {
  static constexpr int threads = 64, rounds = 32;
  using Shared = NoShared;
  std::uint32_t* words;
  float* floats;

  TANDEM_DEVICE static std::uint32_t source(std::uint32_t lane, std::uint32_t round) {
    return (lane * 7 + round * round) % 32;
  }

  TANDEM_DEVICE void operator()() const {
    const std::uint32_t t = hw::thread_index();
    for (std::uint32_t round = 0; round < rounds; ++round) {
      const std::uint32_t lane = source(hw::lane_index(), round);
      words[round * threads + t] = hw::shuffle(t * 2654435761u + round, lane);
      floats[round * threads + t] = hw::shuffle(static_cast<float>(t) + 0.5f, lane);
    }
  }
};

TEST_P(ThreadVerbs, ShufflesBringTheValueOfTheLaneThatIsAskedFor) {
  using Body = ShuffleFromLanes;
  const machine::Buffer words(poisoned<std::uint32_t>(Body::threads * Body::rounds));
  const machine::Buffer floats(poisoned<float>(Body::threads * Body::rounds));
  run(Body{words.data(), floats.data()});
  std::vector<std::uint32_t> expected_words;
  std::vector<float> expected_floats;
  for (std::uint32_t round = 0; round < Body::rounds; ++round) {
    for (std::uint32_t t = 0; t < Body::threads; ++t) {
      const std::uint32_t from = t / 32 * 32 + (t % 32 * 7 + round * round) % 32;
      expected_words.push_back(from * 2654435761u + round);
      expected_floats.push_back(static_cast<float>(from) + 0.5f);
    }
  }
  expect_equal(words.read(), expected_words, Body::threads);
  expect_equal(floats.read(), expected_floats, Body::threads);
}

/// Each warp votes on whether one of its threads is number `wanted`, for every number.
struct Vote {
  static constexpr int threads = 96, votes = threads + 1;
  using Shared = NoShared;
  std::uint32_t* results;

  TANDEM_DEVICE void operator()() const {
    const std::uint32_t t = hw::thread_index();
    for (std::uint32_t wanted = 0; wanted < votes; ++wanted) {
      results[wanted * threads + t] = hw::any_lane(t == wanted) ? 1 : 0;
    }
  }
};

TEST_P(ThreadVerbs, AnyLaneHearsEveryLaneOfItsOwnWarp) {
  const machine::Buffer results(poisoned<std::uint32_t>(Vote::threads * Vote::votes));
  run(Vote{results.data()});
  std::vector<std::uint32_t> expected;
  for (std::uint32_t wanted = 0; wanted < Vote::votes; ++wanted) {
    for (std::uint32_t t = 0; t < Vote::threads; ++t) expected.push_back(t / 32 == wanted / 32 ? 1 : 0);
  }
  expect_equal(results.read(), expected, Vote::threads);
}

/// Every second thread stores 16 bytes, and one float elsewhere.
struct Store {
  static constexpr int threads = 32;
  using Shared = NoShared;
  std::uint32_t* words;
  float* values;

  TANDEM_DEVICE void operator()() const {
    const std::uint32_t t = hw::thread_index();
    if (t % 2 == 0) {
      const std::uint32_t own[4] = {4 * t, 4 * t + 1, 4 * t + 2, 4 * t + 3};
      hw::store_global(words + 4 * t, own);
    } else {
      hw::store_global(values + t, 0.25f * static_cast<float>(t));
    }
  }
};

TEST_P(ThreadVerbs, GlobalStoresWriteWhatTheyAreGivenAndNothingElse) {
  constexpr std::uint32_t untouched = 77;
  const machine::Buffer words(std::vector<std::uint32_t>(4 * Store::threads, untouched));
  const machine::Buffer values(std::vector<float>(Store::threads, untouched));
  run(Store{words.data(), values.data()});
  std::vector<std::uint32_t> expected_words;
  std::vector<float> expected_values;
  for (std::uint32_t t = 0; t < Store::threads; ++t) {
    for (std::uint32_t i = 0; i < 4; ++i) expected_words.push_back(t % 2 == 0 ? 4 * t + i : untouched);
    expected_values.push_back(t % 2 == 0 ? untouched : 0.25f * static_cast<float>(t));
  }
  expect_equal(words.read(), expected_words, 4);
  expect_equal(values.read(), expected_values, Store::threads);
}

/// One warpgroup gives registers up; the others take them, and then hold many values at once.
struct TradeRegisters {
  static constexpr int threads = 384, held = 96;
  using Shared = NoShared;
  const float* input;  ///< `held` values for each thread
  float* sums;

  TANDEM_DEVICE void operator()() const {
    const std::uint32_t t = hw::thread_index();
    if (hw::warpgroup_index() == 0) {
      hw::set_role("giver");
      hw::release_registers<24>();
      sums[t] = input[t];
    } else {
      hw::set_role("taker");
      hw::acquire_registers<240>();
      float values[held];
      TANDEM_UNROLL
      for (int i = 0; i < held; ++i) values[i] = input[i * threads + t];
      float sum = 0;
      TANDEM_UNROLL
      for (int i = held - 1; i >= 0; --i) sum = hw::fma(sum, 0.5f, values[i]);
      sums[t] = sum;
    }
  }
};

TEST_P(ThreadVerbs, RegistersMoveFromOneWarpgroupToTheOthers) {
  std::mt19937 random(5);
  std::vector<float> input(TradeRegisters::held * TradeRegisters::threads);
  for (float& x : input) x = static_cast<float>(random() % 1024);
  const machine::Buffer device_input(input);
  const machine::Buffer sums(poisoned<float>(TradeRegisters::threads));
  run(TradeRegisters{device_input.data(), sums.data()});
  std::vector<float> expected(input.begin(), input.begin() + TradeRegisters::threads);
  for (std::size_t t = 128; t < expected.size(); ++t) {
    float sum = 0;
    for (std::size_t i = TradeRegisters::held; i-- > 0;) {
      sum = std::fma(sum, 0.5f, input[i * TradeRegisters::threads + t]);
    }
    expected[t] = sum;
  }
  expect_equal(sums.read(), expected, TradeRegisters::threads);
}

}  // namespace tandem::test
