// Decode's plan: of drawn steps, which kernel serves, its grid and what it is told, against a model of its
// own.
#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <numbers>
#include <string>
#include <vector>

#include "decode/cost.h"
#include "decode/plan.h"
#include "decode/table.h"
#include "tests/sim/decode_plan_cases.h"

namespace tandem::test {
namespace {

using core::DecodeProblem;
using decode::Algorithm;
using decode::DecodeVariant;
using testing::ElementsAre;

/// The step by the words of stream_k.h.
struct Model {
  const DecodeProblem& p;

  bool in_keys() const { return p.v_cache.shape[3] < p.q.shape[3]; }
  std::int64_t rows() const { return p.q_len() * p.q_heads() / p.kv_heads(); }
  std::int64_t streams(const DecodeVariant& v) const { return p.kv_heads() * ceil_div(rows(), v.query_rows); }
  std::int64_t unit(const DecodeVariant& v) const { return p.split_size > 0 ? p.split_size : v.block_n; }
  std::int64_t units(const DecodeVariant& v) const {
    return p.batch() * streams(v) * std::max<std::int64_t>(1, ceil_div(p.capacity(), unit(v)));
  }

  /// Kernels of the step's kind and least head dim, narrow ones first; those with two blocks of a
  /// multiprocessor where a narrow tile has one as well, apart.
  std::vector<DecodeVariant> kernels(bool twins) const {
    const Algorithm algorithm = p.eight_bit()                          ? Algorithm::eight_bit
                                : p.kernel == TANDEM_DECODE_PLAIN      ? Algorithm::plain
                                : p.kernel == TANDEM_DECODE_REGISTER_P ? Algorithm::register_p
                                                                       : Algorithm::shared_p;
    std::vector<DecodeVariant> found;
    for (const DecodeVariant& v : decode::all_variants()) {
      const bool twin = !v.is_alone() && v.query_rows <= 16;
      if (!v.lists_queries() && (v.algorithm == algorithm || (v.paired() && has_prices())) &&
          (v.operand == hw::Operand::bf16) == (p.dtype() == TANDEM_BF16) && v.head_dim >= p.q.shape[3] &&
          v.value_dim >= p.o.shape[3] && (v.value_dim < v.head_dim) == in_keys() &&
          v.two_part_keys == p.has_qv() && v.token_scales == p.scales.per_token && twin == twins &&
          (v.element == decode::Element::int8) == (p.k_cache.dtype == TANDEM_INT8) &&
          (v.element == decode::Element::int8 || v.hadamard == p.scales.hadamard))
        found.push_back(v);
    }
    if (found.empty()) return found;
    const auto least = std::ranges::min(found, {}, &DecodeVariant::head_dim).head_dim;
    std::erase_if(found, [least](const DecodeVariant& v) { return v.head_dim != least; });
    std::ranges::sort(found, {}, &DecodeVariant::query_rows);
    return found;
  }

  /// Whether the cost model chooses: it knows the kernels, and the batch may have a say.
  bool has_prices() const { return p.kernel == TANDEM_DECODE_AUTO && p.split_size == 0 && !p.eight_bit(); }

  /// Without prices: by rows alone, and for 8 bits by what there is to read.
  DecodeVariant chosen_by_rows() const {
    std::vector<DecodeVariant> usual = kernels(false);
    if (p.kernel == TANDEM_DECODE_AUTO)
      std::erase_if(usual, [](const DecodeVariant& v) { return v.query_rows > 32; });
    DecodeVariant found = usual.back();
    for (auto v = usual.rbegin(); v != usual.rend(); ++v)
      if (v->query_rows >= rows()) found = *v;
    if (p.kernel != TANDEM_DECODE_AUTO || found.query_rows < rows()) return found;
    const bool short_streams = p.split_size == 0 && 2 * p.capacity() * p.head_dim() <= 512 * 1024 &&
                               p.batch() * streams(found) >= 264;
    if (!p.eight_bit() || (!short_streams && units(found) <= 8 * 132)) return found;
    for (const DecodeVariant& twin : kernels(true))
      if (twin.query_rows == found.query_rows) return twin;
    return found;
  }

  /// Keys of it, where each stream is cut in so many.
  std::int64_t longest_part(const DecodeVariant& v, std::int64_t parts) const {
    const std::int64_t blocks = std::max<std::int64_t>(1, core::ceil_div(p.capacity(), v.block_n));
    return core::ceil_div(blocks, parts) * v.block_n;
  }

  /// With prices: of the tiles of which up to four have room for all rows, or 64, none costs less.
  void expect_chosen_by_price(const DecodeVariant& chosen) const {
    std::vector<DecodeVariant> all = kernels(false);
    const std::vector<DecodeVariant> twins = kernels(true);
    all.insert(all.end(), twins.begin(), twins.end());
    const auto serves = [this](const DecodeVariant& v) {
      const bool is_for_short_streams = v.resident == 3 || (v.resident == 2 && v.stages == 1);
      const std::int64_t all = p.batch() * streams(v);
      const bool is_narrow = !v.paired() && v.query_rows == 8 && streams(v) == p.kv_heads() && all >= 44 &&
                             p.batch() > 1 && v.head_dim <= 128;
      const bool is_short = is_narrow && p.capacity() <= 163840 / v.head_dim;
      const bool has_short_parts = is_narrow && all <= 198 && longest_part(v, 396 / all) <= 1024;
      if (is_for_short_streams && !is_short && !has_short_parts) {
        if (all <= 132 || (v.stages == 1 && p.capacity() > 1024)) return false;
        if (v.resident == 3 && all >= 172 && all <= 264) return false;  // 1.3 to 2 for each multiprocessor
      }
      const int least = rows() <= 32 ? 8 : 16;
      const std::int64_t most = (v.paired() && v.query_rows == 64 ? 4 : 2) * rows();
      return v.query_rows >= least && (v.query_rows < most || v.query_rows == 8);
    };
    if (std::ranges::none_of(all, serves)) {  // there is none of 8 rows
      EXPECT_EQ(chosen.query_rows, 16);
      return;
    }
    EXPECT_TRUE(serves(chosen));
    for (const DecodeVariant& v : all) {
      if (serves(v)) {
        EXPECT_LE(decode::estimated_us(p, chosen), decode::estimated_us(p, v))
            << "of " << v.query_rows << " rows, " << v.resident;
      }
    }
  }
};

template <typename Check>
void for_each_draw(Check check) {
  for (std::uint64_t seed = 1; seed <= 600 && !testing::Test::HasFailure(); ++seed) {
    const DecodeProblem p = draw_problem(seed);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": batch " << p.batch() << ", " << p.q_len()
                                    << " queries, heads " << p.q_heads() << "/" << p.kv_heads()
                                    << ", head dim " << p.head_dim() << "/" << p.value_dim() << ", capacity "
                                    << p.capacity() << ", page size " << p.page_size() << ", split "
                                    << p.split_size << ", kernel " << p.kernel);
    check(p, *decode::choose_variant(p));
  }
}

DecodeProblem short_streams_of_many_rows() {
  return problem_of({.batch = 59, .group = 128, .kv_heads = 8, .head_dim = 64, .capacity = 113});
}

TEST(DecodePlans, TheKernelHasRoomForTheRowsAndIsOfTheCachesKind) {
  std::map<int, int> wide, resident;
  const auto check = [&](const DecodeProblem& p, const DecodeVariant& v) {
    if (Model{p}.has_prices()) {
      Model{p}.expect_chosen_by_price(v);
    } else {
      EXPECT_EQ(v, Model{p}.chosen_by_rows()) << "rows " << v.query_rows << " resident " << v.resident;
    }
    ++wide[v.query_rows], ++resident[v.resident];
  };
  for_each_draw(check);
  const DecodeProblem short_streams = short_streams_of_many_rows();  // seldom drawn
  check(short_streams, *decode::choose_variant(short_streams));
  EXPECT_EQ(wide.size(), 5U);  // 8, 16, 32, 64, 128
  EXPECT_GT(resident[2], 50);
}

// bench/results/h200/2026-11-28/decode-two-warpgroups.txt: 22.7 us, by two tiles of 64 rows 32.3.
TEST(DecodePlans, ShortStreamsOfManyRowsHaveTilesOf128) {
  EXPECT_EQ(decode::choose_variant(short_streams_of_many_rows())->query_rows, 128);
}

TEST(DecodePlans, ForStudyTheCheapestKernelOfTheTileThatIsAskedForServes) {
  for (const std::int64_t group : {8, 48, 128}) {
    DecodeProblem p = problem_of({.batch = 8, .group = group, .kv_heads = 4, .capacity = 4096});
    for (const auto& [rows, keys, paired] :
         {std::tuple{16, 0, false}, {32, 64, false}, {64, 128, false}, {64, 64, true}, {128, 0, true}}) {
      p.block_m = rows, p.block_n = keys;
      const DecodeVariant* v = decode::choose_variant(p);
      ASSERT_NE(v, nullptr);
      EXPECT_EQ(v->query_rows, rows);
      EXPECT_EQ(v->paired(), paired) << rows << " x " << keys;
    }
    p.block_m = 24;
    EXPECT_EQ(decode::choose_variant(p), nullptr);
    EXPECT_NE(std::string(decode::supported(p).message()).find("study.block_m 24"), std::string::npos);
  }
}

/// Its parts are merged by a kernel of its own only, and fixed splits by the step.
TEST(DecodePlans, FixedSplitsAndKernelsByNameHaveOneWarpgroup) {
  for (const tandem_decode_kernel kernel :
       {TANDEM_DECODE_AUTO, TANDEM_DECODE_SHARED_P, TANDEM_DECODE_PLAIN}) {
    DecodeProblem p = problem_of({.batch = 8, .group = 128, .kv_heads = 4, .capacity = 4096});
    p.kernel = kernel;
    if (kernel == TANDEM_DECODE_AUTO) {
      EXPECT_TRUE(decode::choose_variant(p)->paired());
      p.split_size = 256;
    }
    EXPECT_FALSE(decode::choose_variant(p)->paired());
  }
}

TEST(DecodePlans, LimitsBetweenKernelsOfEightBitsAreWhereTheModelHasThem) {
  const auto resident = [](Shape x) {
    x.eight_bit = true;
    const DecodeProblem p = problem_of(x);
    EXPECT_EQ(*decode::choose_variant(p), Model{p}.chosen_by_rows());
    return decode::choose_variant(p)->resident;
  };
  EXPECT_EQ(resident({.batch = 264, .capacity = 2048}), 2);
  EXPECT_EQ(resident({.batch = 263, .capacity = 512}), 1) << "fewer streams";
  EXPECT_EQ(resident({.batch = 1, .capacity = 8 * 132 * 128}), 1);
  EXPECT_EQ(resident({.batch = 1, .capacity = 8 * 132 * 128 + 1}), 2);
}

TEST(DecodePlans, AGridHasWholeTeamsWhereTheyLeaveLittleOver) {
  int apart = 0, differ = 0;
  for_each_draw([&](const DecodeProblem& p, const DecodeVariant& v) {
    for (const int multiprocessors : {1, 7, 78, 132, 144}) {
      const std::int64_t resident = std::min(multiprocessors, 132) * v.resident;
      const std::int64_t streams = Model{p}.streams(v), units = Model{p}.units(v);
      const decode::GridShape grid = decode::grid_shape(p, v, multiprocessors);
      const std::int64_t teams = resident / streams;
      const bool whole = 10 * teams * streams >= 9 * resident;
      EXPECT_EQ(grid.usual.team_blocks, whole ? streams : 1);
      EXPECT_EQ(grid.usual.teams, whole ? std::min(units / streams, teams) : std::min(units, resident));
      EXPECT_LE(grid.blocks(), resident);
      apart += whole ? 0 : 1;
      const bool may_differ = whole && p.split_size == 0 && v.algorithm != Algorithm::plain &&
                              v.query_rows <= 16 && v.head_dim < 256 && v.is_alone();
      if (!grid.differs()) {
        EXPECT_EQ(grid.of_long_step.teams, may_differ ? teams : grid.usual.teams);
      } else {
        ++differ;
        EXPECT_TRUE(may_differ);
        EXPECT_EQ(streams % grid.of_long_step.team_blocks, 0);
        EXPECT_EQ(grid.of_long_step.teams, resident / grid.of_long_step.team_blocks);
        EXPECT_GE(100 * grid.of_long_step.blocks(), 102 * grid.usual.blocks());
      }
      for (std::int64_t team = 1; may_differ && team < streams; ++team) {
        if (streams % team == 0) {
          EXPECT_LT(100 * (resident / team * team), 102 * grid.of_long_step.blocks());
        }
      }
    }
  });
  EXPECT_GT(apart, 100);
  EXPECT_GT(differ, 20);
}

TEST(DecodePlans, AWorkspaceHasPartialsOfEachBlockOrFixedSplit) {
  for_each_draw([](const DecodeProblem& p, const DecodeVariant& v) {
    const std::int64_t partials = p.split_size > 0 ? Model{p}.units(v) : 2 * 132 * v.resident;
    const auto bytes = static_cast<std::size_t>(4096 + partials * v.query_rows * (v.value_dim + 2) * 4);
    EXPECT_EQ(decode::workspace_bytes(p, v), bytes);
    EXPECT_EQ(decode::workspace_bytes(p), bytes);
    EXPECT_EQ(decode::plan_bytes(p), static_cast<std::size_t>(4 * (2 + 2 * 396)));
  });
}

bool is_of(const core::TensorView& view, const core::Tensor& tensor) {
  return view.data == tensor.data && view.batch_stride == tensor.stride[0] &&
         view.row_stride == tensor.stride[1] && view.head_stride == tensor.stride[2];
}

void expect_tensors(const decode::DecodeArguments& args, const DecodeProblem& p) {
  EXPECT_TRUE(is_of(args.q, p.q) && is_of(args.o, p.o) && is_of(args.lse, p.lse));
  EXPECT_TRUE(is_of(args.k_new, p.k_new) && is_of(args.v_new, p.v_new));
  EXPECT_TRUE(is_of(args.k_cache, p.k_cache) && is_of(args.v_cache, p.v_cache));
  EXPECT_TRUE(is_of(args.k_scale, p.scales.k) && is_of(args.v_scale, p.scales.v));
  EXPECT_EQ(args.hadamard.on, p.scales.hadamard);
  for (int column = 0; column < 256 && args.hadamard.on; ++column)
    EXPECT_EQ((args.hadamard.signs[column / 32] >> column % 32 & 1) != 0,
              core::changes_sign(p.scales.seed, column));
  EXPECT_EQ(args.hadamard.to_unit,
            p.scales.hadamard ? 1.f / std::sqrt(static_cast<float>(p.head_dim())) : 0.f);
  EXPECT_EQ(args.lengths, p.lengths);
  EXPECT_EQ(args.sinks, p.sinks);
  EXPECT_EQ(args.rotary.cos, p.rotary.cos);
  EXPECT_EQ(args.rotary.sin, p.rotary.sin);
  EXPECT_EQ(args.pages.table, p.page_table);
  EXPECT_EQ(args.pages.batch_index, p.batch_index);
  EXPECT_EQ(args.pages.table_stride, p.page_table_stride);
  EXPECT_EQ(args.pages.pages, p.pages());
  const std::int64_t box = p.paged() ? std::min<std::int64_t>(64, p.page_size()) : 64;
  EXPECT_EQ(1 << args.pages.box_shift, box);
  EXPECT_EQ(decode::box_rows(p), box);
  EXPECT_EQ(std::uint32_t{1} << args.pages.page_shift,
            p.paged() ? static_cast<std::uint32_t>(p.page_size()) : std::uint32_t{1} << 31);
}

/// Units that are worth a block: 128 keys, or all of a shorter stream; of fixed splits one.
std::int64_t fewest_units(const DecodeProblem& p, const DecodeVariant& v) {
  if (p.split_size > 0) return 1;
  return p.capacity() > 64 ? std::max(1, 128 / v.block_n) : 1;
}

/// Units that a block has at least where all streams are as long: of what leaves streams whole, or in two or
/// four parts, or in as many as there are teams for, that which costs least; but as usual where the step may
/// be long, or splits are fixed.
void expect_even_share(const decode::EvenShare& share, const DecodeProblem& p, const DecodeVariant& v,
                       const decode::DecodeArguments& args) {
  const std::int64_t usual = fewest_units(p, v);
  const std::int64_t units = std::max<std::int64_t>(1, ceil_div(p.capacity(), v.block_n));
  const decode::GridShape grid = decode::grid_shape(p, v, 132);
  if (p.split_size > 0 || p.batch() * units >= args.long_step) {
    EXPECT_EQ(share.units, usual);
    EXPECT_FALSE(share.ends_with_streams);
    return;
  }
  const std::int64_t in_turn = p.batch() * (Model{p}.streams(v) / grid.usual.team_blocks);
  std::vector<decode::EvenShare> others{{usual}};
  if (p.capacity() <= 1536) {
    for (const std::int64_t other :
         {ceil_div(in_turn, grid.usual.teams) * units, units, ceil_div(units, 2), ceil_div(units, 4)})
      others.push_back({other});
  }
  if (const std::int64_t parts = std::min(units, grid.usual.teams / in_turn); parts > 1)
    others.push_back({ceil_div(units, parts), true});
  if (share.of_own_blocks) others.push_back({units, false, true});
  bool found = false;
  for (const decode::EvenShare& other : others) {
    if (other.units < usual) continue;
    found = found || (other.units == share.units && other.ends_with_streams == share.ends_with_streams &&
                      other.of_own_blocks == share.of_own_blocks);
    EXPECT_LE(decode::step_us(p, v, grid, share), decode::step_us(p, v, grid, other)) << other.units;
  }
  EXPECT_TRUE(found) << share.units;
}

void expect_numbers(const decode::DecodeArguments& args, const DecodeProblem& p, const DecodeVariant& v,
                    const decode::GridShape& grid) {
  const Model model{p};
  const std::int64_t streams = model.streams(v);
  const auto mask = p.mask.narrowed<std::int32_t>();
  EXPECT_EQ(args.units.mask.left, mask.left);
  EXPECT_EQ(args.units.mask.right, mask.right);
  EXPECT_EQ(args.units.q_len, p.q_len());
  EXPECT_EQ(args.units.new_len, p.new_len());
  EXPECT_EQ(args.units.capacity, p.capacity());
  EXPECT_EQ(args.units.unit.value(), model.unit(v));
  EXPECT_EQ(args.batch, p.batch());
  EXPECT_EQ(args.blocks, grid.blocks());
  for (const auto& [teams, shape] :
       {std::pair{args.teams, grid.usual}, std::pair{args.long_teams, grid.of_long_step}}) {
    EXPECT_EQ(teams.team_blocks.value(), shape.team_blocks);
    EXPECT_EQ(teams.count.value(), shape.teams);
    EXPECT_EQ(teams.streams_per_block * shape.team_blocks, streams);
  }
  const std::int64_t block_bytes =
      std::int64_t{model.in_keys() ? 1 : 2} * v.block_n * v.head_dim * (p.eight_bit() ? 1 : 2);
  EXPECT_EQ(args.long_step, grid.differs()
                                ? ceil_div((6 << 20) / block_bytes * grid.of_long_step.blocks(), streams)
                                : std::numeric_limits<int>::max());
  EXPECT_EQ(args.rows, model.rows());
  EXPECT_EQ(args.head_dim, p.q.shape[3]);
  EXPECT_EQ(args.value_dim, p.o.shape[3]);
  EXPECT_EQ(args.group.value(), p.q_heads() / p.kv_heads());
  EXPECT_EQ(args.row_tiles.value() * p.kv_heads(), streams);
  EXPECT_EQ(args.fixed_splits, p.split_size > 0);
  EXPECT_EQ(args.overhead, p.split_size > 0 ? 0 : (64 * 1024 + block_bytes / 2) / block_bytes);
  EXPECT_EQ(args.min_share.value(), fewest_units(p, v));
  EXPECT_EQ(args.streams.value(), streams);
  const bool wide = v.query_rows > 16 || v.value_dim == 512;
  const bool known = decode::make_arguments(p, v, grid, nullptr).known_streams;  // also where a plan is made
  const bool of_own_blocks = known && p.batch() * streams > grid.blocks();
  expect_even_share({args.even_share.value(), args.shares_end_with_streams, of_own_blocks}, p, v, args);
  EXPECT_EQ(args.merges_apart, !known && p.split_size == 0 && wide && v.algorithm != Algorithm::plain &&
                                   p.capacity() > v.block_n);
  EXPECT_EQ(args.policy,
            model.rows() > v.query_rows ? hw::CachePolicy::normal : hw::CachePolicy::evict_first);
  EXPECT_FLOAT_EQ(args.scale_log2, (p.softcap > 0 ? p.softcap : p.scale) * std::numbers::log2e_v<float>);
  EXPECT_FLOAT_EQ(args.score_to_cap, p.softcap > 0 ? p.scale / p.softcap : 0);
}

void expect_map(const launch::MapRequest<decode::DecodeArguments>& of, const std::string& name,
                const core::Tensor& tensor, const hw::BoxRows& box,
                hw::TensorMap decode::DecodeArguments::*map) {
  EXPECT_TRUE(of.name == name && of.tensor.data == tensor.data && of.map == map) << name;
  EXPECT_TRUE(of.box.rows == box.rows && of.box.heads == 1 && of.box.columns == box.columns) << name;
}

TEST(DecodePlans, AKernelIsToldWhatTheProblemSays) {
  for_each_draw([](DecodeProblem p, const DecodeVariant& v) {
    p.plan = at<void>(16);
    auto* workspace = at<char>(17);
    const decode::GridShape grid = decode::grid_shape(p, v, 132);
    const auto record = decode::make_record(p, v, 132, workspace);
    EXPECT_EQ(record.variant, v);
    const std::int64_t streams = p.batch() * Model{p}.streams(v);  // each may have a block
    EXPECT_EQ(record.blocks,
              record.arguments.known_streams && streams > grid.blocks() ? streams : grid.blocks());
    expect_tensors(record.arguments, p);
    expect_numbers(record.arguments, p, v, grid);
    EXPECT_EQ(static_cast<const void*>(record.arguments.plan), p.plan);
    EXPECT_EQ(reinterpret_cast<char*>(record.arguments.counters), workspace);
    EXPECT_EQ(reinterpret_cast<char*>(record.arguments.partials), workspace + 4096);
    using Arguments = decode::DecodeArguments;
    const bool fits = p.head_dim() == v.head_dim && p.value_dim() == v.value_dim;
    const bool whole = v.eight_bit() || Model{p}.in_keys() || fits;
    EXPECT_EQ(record.arguments.narrow_rows, !whole);
    std::size_t i = 0;
    for (const auto& [name, cache, map, last, of_args] :
         {std::tuple{"cache.k", &p.k_cache, &Arguments::k, &Arguments::k_last, &Arguments::key_box_columns},
          {"cache.v", &p.v_cache, &Arguments::v, &Arguments::v_last, &Arguments::value_box_columns}}) {
      if (map == &Arguments::v && Model{p}.in_keys()) break;
      const auto columns = static_cast<int>((cache->shape[3] + 7) / 8 * 8);
      EXPECT_EQ(record.arguments.*of_args, whole ? hw::Panels::all_columns : columns);
      expect_map(record.maps.at(i++), name, *cache, {decode::box_rows(p)}, map);
      if (!whole && columns % 64 != 0)
        expect_map(record.maps.at(i++), name, *cache, {decode::box_rows(p), 1, false, columns % 64}, last);
    }
    EXPECT_EQ(record.map_count, i);
    const auto planning = decode::make_plan_record(p, v, 132, at<void>(18));
    EXPECT_EQ(planning.blocks, 1);
    EXPECT_EQ(planning.arguments.plan, at<std::int32_t>(18));
    EXPECT_EQ(planning.arguments.step.plan, nullptr) << "what the problem has is of another call";
    expect_tensors(planning.arguments.step, p);
    expect_numbers(planning.arguments.step, p, v, grid);
  });
}

TEST(DecodePlans, WhereTilesAreWideTheCombineKernelHasBlocksForEachPlaceButTheFirstTeams) {
  int apart = 0;
  for_each_draw([&](const DecodeProblem& p, const DecodeVariant& v) {
    const auto step = decode::make_record(p, v, 132, at<void>(17));
    const auto combine = decode::make_combine_record(step);
    const decode::GridShape grid = decode::grid_shape(p, v, 132);
    const std::int64_t slices = std::int64_t{1} << combine.arguments.log2_slices;
    const bool merges = step.arguments.merges_apart && grid.usual.teams > 1;
    EXPECT_EQ(combine.blocks, merges ? (grid.blocks() - grid.usual.team_blocks) * slices : 0);
    EXPECT_LE(slices, v.query_rows * v.value_dim / 4 / 128) << "a chunk of a tile for each thread";
    if (combine.blocks == 0) return;
    ++apart;
    EXPECT_EQ(combine.variant, (decode::CombineVariant{v.operand, v.value_dim, v.query_rows}));
    EXPECT_EQ(combine.map_count, 0U);
    expect_tensors(combine.arguments.step, p);
    expect_numbers(combine.arguments.step, p, v, grid);
  });
  EXPECT_GT(apart, 50);
}

TEST(DecodePlans, WithoutAnyPageMapsAreOfTheQueries) {
  DecodeProblem p = problem_of({.capacity = 16, .page_size = 16});
  p.k_cache.shape[0] = p.v_cache.shape[0] = 0;
  const auto record = decode::make_record(p, *decode::choose_variant(p), 132, nullptr);
  ASSERT_EQ(record.map_count, 2U);
  expect_map(record.maps[0], "q", p.q, {1}, &decode::DecodeArguments::k);
  expect_map(record.maps[1], "q", p.q, {1}, &decode::DecodeArguments::v);
  put_values_into_keys(p, 64);
  EXPECT_EQ(decode::make_record(p, *decode::choose_variant(p), 132, nullptr).map_count, 1U);
}

/// Memory of a launch, in words: name, role, bytes.
std::vector<std::string> memory(const core::TensorList& list) {
  static constexpr const char* roles[] = {"input", "output", "updated"};
  std::vector<std::string> all;
  for (const core::ListedTensor& t : list) {
    std::int64_t bytes = t.region.element_bytes;
    for (const std::int64_t size : t.region.shape) bytes *= size;
    all.push_back(t.address_name() + " " + roles[static_cast<int>(t.role)] + " " + std::to_string(bytes));
  }
  return all;
}

// docs/decode.md, Workspace.
TEST(DecodePlans, AWorkspaceHasABoundWhateverTheBatchAndTheLengths) {
  constexpr double megabyte = 1e6;
  const DecodeProblem p = problem_of({.batch = 4096, .capacity = 1 << 20});
  for (const DecodeVariant& v : decode::all_variants())
    EXPECT_LE(static_cast<double>(decode::workspace_bytes(p, v)), (v.values_in_keys() ? 35 : 18) * megabyte)
        << "head dim " << v.head_dim << ", " << v.query_rows << " rows";
}

TEST(DecodePlans, TheMemoryOfEachLaunchIsWhatItTouches) {
  DecodeProblem p = problem_of({.batch = 5});
  std::vector<std::string> expected = memory(tensors_of(p));
  expected.push_back("workspace updated " + std::to_string(decode::workspace_bytes(p)));
  EXPECT_EQ(memory(decode::memory_of_step(p, at<void>(17))), expected);
  p.plan = at<void>(16);
  expected.emplace_back("plan input 3176");
  EXPECT_EQ(memory(decode::memory_of_step(p, at<void>(17))), expected);
  EXPECT_THAT(memory(decode::memory_of_planning(p, at<void>(18))),
              ElementsAre("cache.lengths input 20", "plan output 3176"));
  EXPECT_THAT(memory(decode::memory_of_clearing(at<void>(17))), ElementsAre("workspace output 1584"));
  const auto clearing = decode::make_clear_record(at<void>(17));
  EXPECT_EQ(clearing.blocks, 1);
  EXPECT_EQ(clearing.arguments.counters, at<std::uint32_t>(17));
  EXPECT_EQ(clearing.arguments.count, 396);
}

}  // namespace
}  // namespace tandem::test
