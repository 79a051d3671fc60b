// Barriers of the block, named barriers, mbarriers, and all of them together in a pipeline.
#pragma once

#include "tests/hw/conformance.h"
#include "tile/pipeline.h"
#include "tile/shared_tile.h"

namespace tandem::test {

class BarrierVerbs : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Machine, BarrierVerbs, testing::ValuesIn(machine::modes()),
                         testing::PrintToStringParamName());

/// Threads pass structs through shared memory in opposite order, round after round.
struct Reverse {
  static constexpr int threads = 384, rounds = 20;
  struct Note {
    std::uint32_t round, thread;
  };
  struct Shared {
    Note note[2][threads];
  };
  std::uint32_t* seen;

  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    const std::uint32_t t = hw::thread_index();
    for (std::uint32_t round = 0; round < rounds; ++round) {
      shared.note[round % 2][t] = Note{round, t};
      hw::sync_block();
      const Note note = shared.note[round % 2][threads - 1 - t];
      seen[round * threads + t] = 1000 * note.round + note.thread;
    }
  }
};

TEST_P(BarrierVerbs, BlockBarrierOrdersStoresAndLoads) {
  const machine::Buffer seen(poisoned<std::uint32_t>(Reverse::rounds * Reverse::threads));
  run(Reverse{seen.data()});
  std::vector<std::uint32_t> expected;
  for (std::uint32_t i = 0; i < Reverse::rounds * Reverse::threads; ++i) {
    expected.push_back(1000 * (i / Reverse::threads) + Reverse::threads - 1 - i % Reverse::threads);
  }
  expect_equal(seen.read(), expected, Reverse::threads);
}

/// Three warpgroups take turns, each turn a named barrier of its own as in pingpong.
struct TakeTurns {
  static constexpr int threads = 384, groups = 3, rounds = 25;
  struct Shared {
    std::uint32_t turns;
  };
  std::uint32_t* seen;  ///< what each group found at its turns

  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    const std::uint32_t group = hw::warpgroup_index();
    const std::uint32_t own = 1 + group, next = 1 + (group + 1) % groups;
    constexpr std::uint32_t pair = 2 * hw::warpgroup_size;
    if (hw::thread_index() == 0) shared.turns = 0;
    hw::sync_block();
    if (group == groups - 1) hw::arrive_named(1, pair);
    for (int round = 0; round < rounds; ++round) {
      hw::sync_named(own, pair);
      if (hw::thread_index() % hw::warpgroup_size == 0) {
        seen[round * groups + static_cast<int>(group)] = shared.turns;
        shared.turns += 1;
      }
      if (group != groups - 1 || round != rounds - 1) hw::arrive_named(next, pair);
    }
  }
};

TEST_P(BarrierVerbs, NamedBarriersPassTheTurnAround) {
  const machine::Buffer seen(poisoned<std::uint32_t>(TakeTurns::rounds * TakeTurns::groups));
  run(TakeTurns{seen.data()});
  std::vector<std::uint32_t> expected;
  for (std::uint32_t i = 0; i < TakeTurns::rounds * TakeTurns::groups; ++i) expected.push_back(i);
  expect_equal(seen.read(), expected, TakeTurns::groups);
}

/// Two warpgroups vote, each at a barrier of its own, where one thread's predicate holds or none's.
struct VoteAtBarrier {
  static constexpr int threads = 256, rounds = 24;
  struct Shared {
    std::uint32_t value[threads];
  };
  std::uint32_t* seen;  ///< what each thread came to know, and what another one wrote before

  /// Whose predicate holds in this round, of the warpgroup's threads; nobody's: 128 or more.
  static constexpr std::uint32_t holder(std::uint32_t round, std::uint32_t group) {
    return (37 * round + 85 * group) % 160;
  }
  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    const std::uint32_t group = hw::warpgroup_index(), own = hw::thread_index() % hw::warpgroup_size;
    const std::uint32_t first = group * hw::warpgroup_size;
    for (std::uint32_t round = 0; round < rounds; ++round) {
      shared.value[first + own] = 10 * round + own % 10;
      const bool any = hw::sync_named_any(1 + group, hw::warpgroup_size, own == holder(round, group));
      const std::uint32_t other = shared.value[first + hw::warpgroup_size - 1 - own];
      const bool none = hw::sync_named_any(1 + group, hw::warpgroup_size, false);
      seen[round * threads + first + own] = other * 4 + (any ? 2 : 0) + (none ? 1 : 0);
    }
  }
};

TEST_P(BarrierVerbs, AVoteAtANamedBarrierIsKnownToAllOfItsThreads) {
  const machine::Buffer seen(poisoned<std::uint32_t>(VoteAtBarrier::rounds * VoteAtBarrier::threads));
  run(VoteAtBarrier{seen.data()});
  std::vector<std::uint32_t> expected;
  for (std::uint32_t i = 0; i < VoteAtBarrier::rounds * VoteAtBarrier::threads; ++i) {
    const std::uint32_t round = i / VoteAtBarrier::threads, thread = i % VoteAtBarrier::threads;
    const std::uint32_t group = thread / hw::warpgroup_size, own = thread % hw::warpgroup_size;
    const std::uint32_t other = hw::warpgroup_size - 1 - own;
    expected.push_back((10 * round + other % 10) * 4 +
                       (VoteAtBarrier::holder(round, group) < hw::warpgroup_size ? 2 : 0));
  }
  expect_equal(seen.read(), expected, VoteAtBarrier::threads);
}

/// Two warps hand 32 values back and forth; every lane arrives, every lane waits.
struct HandOver {
  static constexpr int threads = 64, rounds = 70;
  struct Shared {
    hw::Barrier full, empty;
    std::uint32_t value[32];
  };
  std::uint32_t* seen;

  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    const std::uint32_t lane = hw::lane_index();
    if (hw::thread_index() == 0) {
      hw::barrier_init(shared.full, 32);
      hw::barrier_init(shared.empty, 32);
      hw::fence_barrier_init();
    }
    hw::sync_block();
    const bool writer = hw::warp_index() == 0;
    for (std::uint32_t round = 0; round < rounds; ++round) {
      if (writer) {
        hw::barrier_wait(shared.empty, (round & 1) ^ 1);  // passes at once in the first round
        shared.value[lane] = 100 * round + lane;
        hw::barrier_arrive(shared.full);
      } else {
        hw::barrier_wait(shared.full, round & 1);
        seen[32 * round + lane] = shared.value[31 - lane];
        hw::barrier_arrive(shared.empty);
      }
    }
  }
};

TEST_P(BarrierVerbs, PhasesCountTheArrivalsOfManyThreads) {
  const machine::Buffer seen(poisoned<std::uint32_t>(32 * HandOver::rounds));
  run(HandOver{seen.data()});
  std::vector<std::uint32_t> expected;
  for (std::uint32_t i = 0; i < 32 * HandOver::rounds; ++i) expected.push_back(100 * (i / 32) + 31 - i % 32);
  expect_equal(seen.read(), expected, 32);
}

/// A producer feeds a pipeline by TMA; two consumer warpgroups add up what they find. The shape of every
/// kernel.
struct FeedPipeline {
  static constexpr int threads = 384, consumers = 256, stages = 3, rounds = 50, blocks = 4;
  using Tile = tile::SharedTile<32, 64>;
  static constexpr int elements = Tile::rows * Tile::columns;
  struct Shared {
    Tile stage[stages];
    tile::Pipeline<stages> pipeline;
  };
  hw::TensorMap map;    ///< Tile::rows of each round of each block
  std::uint32_t* sums;  ///< of each consumer thread of each round of each block

  TANDEM_DEVICE int tile_of(int round) const { return static_cast<int>(hw::block_index()) * rounds + round; }

  TANDEM_DEVICE void produce(Shared& shared) const {
    tile::PipelineState<stages> at;
    for (int round = 0; round < rounds; ++round) {
      hw::barrier_wait(shared.pipeline.empty[at.stage], at.parity ^ 1);
      hw::barrier_arrive_expecting(shared.pipeline.full[at.stage], Tile::bytes);
      tile::load_tile(shared.stage[at.stage], hw::Panels::whole_ones(map), shared.pipeline.full[at.stage],
                      hw::BoxOrigin{0, tile_of(round) * Tile::rows, 0, 0});
      at.advance();
    }
  }

  TANDEM_DEVICE void consume(Shared& shared, int thread) const {
    tile::PipelineState<stages> at;
    for (int round = 0; round < rounds; ++round) {
      tile::consumer_wait(shared.pipeline, at);
      const std::uint16_t* stage = &shared.stage[at.stage].panel[0][0][0];
      std::uint32_t sum = 0;
      for (int i = thread; i < elements; i += consumers) sum = sum * 31 + stage[i];
      sums[tile_of(round) * consumers + thread] = sum;
      hw::sync_warp();  // all lanes have read
      tile::consumer_release(shared.pipeline, at);
      at.advance();
    }
  }

  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    if (hw::thread_index() == 0) {
      shared.pipeline.init(consumers / hw::warp_size);
      hw::fence_barrier_init();
    }
    hw::sync_block();
    if (hw::warpgroup_index() == 0) {
      hw::release_registers<24>();
      if (hw::warp_index() == 0 && hw::elect_one()) produce(shared);
    } else {
      hw::acquire_registers<240>();
      consume(shared, static_cast<int>(hw::thread_index()) - hw::warpgroup_size);
    }
  }
};

TEST_P(BarrierVerbs, PipelineCarriesEveryTileToEveryConsumerOnce) {
  constexpr int tiles = FeedPipeline::blocks * FeedPipeline::rounds, rows = tiles * FeedPipeline::Tile::rows,
                columns = 64;
  std::mt19937 random(41);
  std::vector<std::uint16_t> values(rows * columns);
  for (std::uint16_t& v : values) v = static_cast<std::uint16_t>(random());
  std::vector<std::uint32_t> expected(tiles * FeedPipeline::consumers, 0);
  std::vector<std::uint16_t> stage(FeedPipeline::elements);
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    for (int i = 0; i < FeedPipeline::elements; ++i) {
      stage[static_cast<std::size_t>(place_in_panel(i / columns, i % columns))] =
          values[tile * stage.size() + static_cast<std::size_t>(i)];
    }
    for (std::size_t i = 0; i < stage.size(); ++i) {
      std::uint32_t& sum = expected[tile * FeedPipeline::consumers + i % FeedPipeline::consumers];
      sum = sum * 31 + stage[i];
    }
  }
  const machine::Buffer source(values);
  const machine::Buffer sums(poisoned<std::uint32_t>(expected.size()));
  run(FeedPipeline{machine::encode(matrix_request(source.data(), rows, columns, FeedPipeline::Tile::rows)),
                   sums.data()},
      FeedPipeline::blocks);
  expect_equal(sums.read(), expected, FeedPipeline::consumers);
}

}  // namespace tandem::test
