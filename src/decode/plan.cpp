#include "decode/plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numbers>

#include "core/hopper.h"
#include "core/integers.h"
#include "decode/cost.h"
#include "hw/tensor_map.h"

namespace tandem::decode {
namespace {

using core::DecodeProblem;

constexpr std::int64_t max_units = std::int64_t{1} << 30;

std::int64_t unit_keys(const DecodeProblem& problem, const DecodeVariant& variant) {
  return problem.split_size > 0 ? problem.split_size : variant.block_n;
}

PageView pages_of(const DecodeProblem& problem) {
  PageView pages{};
  pages.table = problem.page_table;
  pages.batch_index = problem.batch_index;
  pages.table_stride = problem.page_table_stride;
  pages.pages = static_cast<int>(problem.pages());
  pages.page_shift = problem.paged() ? std::countr_zero(static_cast<std::uint32_t>(problem.page_size())) : 31;
  pages.box_shift = std::countr_zero(static_cast<std::uint32_t>(box_rows(problem)));
  return pages;
}

/// Fewer streams side by side, as many as leave the fewest blocks over, where that brings 2 %.
TeamShape shape_of_long_step(const TeamShape& usual, int resident) {
  TeamShape best = usual;
  for (int team_blocks = usual.team_blocks; team_blocks > 0; --team_blocks) {
    const TeamShape shape{team_blocks, resident / team_blocks};
    if (usual.team_blocks % team_blocks == 0 && 100 * shape.blocks() >= 102 * best.blocks()) best = shape;
  }
  return best;
}

/// A step is long where another stream cut, at a share's end, does not count. In units of a stream of each.
int long_step_of(const DecodeProblem& problem, const DecodeVariant& variant, const GridShape& grid) {
  if (!grid.differs()) return std::numeric_limits<int>::max();
  const std::int64_t share = long_share_bytes / variant.block_bytes();
  return static_cast<int>(
      std::min(max_units, core::ceil_div(share * grid.of_long_step.blocks(), streams_of(problem, variant))));
}

/// Less than 128 keys cost more to merge than another block saves, unless a stream has no more.
int min_share_of(const DecodeProblem& problem, const DecodeVariant& variant) {
  if (problem.split_size > 0) return 1;
  const std::int64_t keys = std::clamp<std::int64_t>(problem.capacity(), 1, 128);
  return static_cast<int>(core::ceil_div(keys, variant.block_n));
}

/// Where streams are equally long, shares may be so chosen that few of them are cut. Not where the step may
/// be long: its teams are others; nor beside another kernel: how many blocks share is not known.
EvenShare even_share_of(const DecodeProblem& problem, const DecodeVariant& variant, const GridShape& grid) {
  const EvenShare usual{min_share_of(problem, variant)};
  const std::int64_t units = problem.batch() * core::ceil_div(problem.capacity(), variant.block_n);
  const bool beside = problem.listed.given && !problem.listed.alone;
  if (problem.split_size > 0 || beside || units >= long_step_of(problem, variant, grid)) return usual;
  return best_share(problem, variant, grid, usual.units);
}

}  // namespace

std::int64_t rows_of(const DecodeProblem& problem) { return problem.group() * problem.q_len(); }

std::int64_t most_units(const DecodeProblem& problem, const DecodeVariant& variant) {
  const std::int64_t of_stream =
      std::max<std::int64_t>(1, core::ceil_div(problem.capacity(), unit_keys(problem, variant)));
  return problem.batch() * streams_of(problem, variant) * of_stream;
}

int overhead_of(const DecodeProblem& problem, const DecodeVariant& variant) {
  return problem.split_size > 0 ? 0 : variant.stream_overhead();
}

std::int64_t most_positions(const DecodeProblem& problem, const DecodeVariant& variant) {
  return most_units(problem, variant) +
         problem.batch() * streams_of(problem, variant) * overhead_of(problem, variant);
}

bool can_count_positions(const DecodeProblem& problem, const DecodeVariant& variant) {
  return most_positions(problem, variant) < max_units;
}

std::int64_t streams_of(const DecodeProblem& problem, const DecodeVariant& variant) {
  return problem.kv_heads() * core::ceil_div(rows_of(problem), variant.query_rows);
}

int box_rows(const DecodeProblem& problem) {
  return problem.paged() ? static_cast<int>(std::min<std::int64_t>(problem.page_size(), most_box_rows))
                         : most_box_rows;
}

double estimated_us(const DecodeProblem& problem, const DecodeVariant& variant) {
  const GridShape grid = grid_shape(problem, variant, core::hopper_sm_count);
  return step_us(problem, variant, grid, even_share_of(problem, variant, grid));
}

GridShape grid_shape(const DecodeProblem& problem, const DecodeVariant& variant, int sm_count) {
  const auto resident = std::min(sm_count, core::hopper_sm_count) * variant.resident;
  const std::int64_t streams = streams_of(problem, variant), units = most_units(problem, variant);
  if (units == 0) return {{1, 0}, {1, 0}};
  const std::int64_t teams = resident / streams;
  // Whole teams leave blocks over: worth it up to a tenth of them.
  if (10 * teams * streams < 9 * resident) {
    const TeamShape apart{1, static_cast<int>(std::min<std::int64_t>(units, resident))};
    return {apart, apart};
  }
  const TeamShape usual{static_cast<int>(streams), static_cast<int>(std::min(units / streams, teams))};
  return {usual,
          problem.split_size == 0 && variant.has_long_steps() ? shape_of_long_step(usual, resident) : usual};
}

std::size_t workspace_bytes(const DecodeProblem& problem, const DecodeVariant& variant) {
  const std::int64_t partials = problem.split_size > 0
                                    ? most_units(problem, variant)
                                    : std::int64_t{2} * core::hopper_sm_count * variant.resident;
  const PartialLayout layout{variant.query_rows, variant.value_dim};
  return counter_bytes + static_cast<std::size_t>(partials * layout.floats()) * sizeof(float);
}

DecodeArguments make_arguments(const DecodeProblem& problem, const DecodeVariant& variant,
                               const GridShape& grid, void* workspace) {
  DecodeArguments args{};
  args.q = core::TensorView::of(problem.q);
  args.k_new = core::TensorView::of(problem.k_new);
  args.v_new = core::TensorView::of(problem.v_new);
  args.k_cache = core::TensorView::of(problem.k_cache);
  args.v_cache = core::TensorView::of(problem.v_cache);
  args.o = core::TensorView::of(problem.o);
  args.lse = core::TensorView::of(problem.lse);
  args.k_scale = core::TensorView::of(problem.scales.k);
  args.v_scale = core::TensorView::of(problem.scales.v);
  args.qv = core::TensorView::of(problem.qv);
  args.hadamard = core::HadamardView::of(problem.scales.hadamard, problem.scales.seed, problem.head_dim());
  args.lengths = problem.lengths;
  args.listed = problem.listed.list;
  args.listed_key = problem.listed.key;
  args.sinks = problem.sinks;
  args.pages = pages_of(problem);
  args.rotary = core::RotaryView::of(problem.rotary);
  args.units = {problem.mask.narrowed<std::int32_t>(), static_cast<int>(problem.q_len()),
                static_cast<int>(problem.new_len()), static_cast<int>(problem.capacity()),
                core::Divisor(static_cast<int>(std::min(unit_keys(problem, variant), max_units)))};
  args.packed = {problem.packed.cu_seqlens, static_cast<int>(problem.q.shape[1])};
  args.batch = static_cast<int>(problem.batch());
  const auto streams = static_cast<int>(streams_of(problem, variant));
  const auto teams = [streams](const TeamShape& shape) {
    return Teams{core::Divisor(shape.team_blocks), core::Divisor(shape.teams), streams / shape.team_blocks};
  };
  args.blocks = grid.blocks();
  args.teams = teams(grid.usual);
  args.long_teams = teams(grid.of_long_step);
  args.long_step = long_step_of(problem, variant, grid);
  args.rows = static_cast<int>(rows_of(problem));
  args.narrow_rows = variant.boxes_end_with_rows() &&
                     (problem.head_dim() < variant.head_dim || problem.value_dim() < variant.value_dim);
  args.key_box_columns = hw::box_columns(problem.head_dim(), args.narrow_rows);
  args.value_box_columns = hw::box_columns(problem.value_dim(), args.narrow_rows);
  args.head_dim = static_cast<int>(problem.head_dim());
  args.value_dim = static_cast<int>(problem.value_dim());
  args.group = core::Divisor(static_cast<int>(problem.group()));
  args.row_tiles = core::Divisor(static_cast<int>(core::ceil_div(rows_of(problem), variant.query_rows)));
  args.streams = core::Divisor(streams);
  const EvenShare even = even_share_of(problem, variant, grid);
  const bool may_be_long = problem.batch() * core::ceil_div(problem.capacity(), variant.block_n) >=
                           long_step_of(problem, variant, grid);
  const std::int64_t parts = may_be_long ? 0 : known_parts(problem, variant, grid, even);
  args.known_streams = parts > 0;
  args.known_parts = core::Divisor(static_cast<int>(std::max<std::int64_t>(1, parts)));
  args.starts_at_key_0 = args.known_streams && !problem.paged() && problem.mask.left == core::Mask::unlimited;
  args.fixed_splits = problem.split_size > 0;
  // Streams of one unit are not cut. Few rows are merged at once: most listed sequences have one query.
  constexpr std::int64_t most_merged_at_once = 16;
  const bool has_few_rows =
      problem.listed.given && (!problem.listed.alone || rows_of(problem) <= most_merged_at_once);
  args.merges_apart = variant.merges_apart() && !args.fixed_splits && !has_few_rows && !args.known_streams &&
                      most_units(problem, variant) > problem.batch() * streams_of(problem, variant);
  args.overhead = overhead_of(problem, variant);
  args.min_share = core::Divisor(min_share_of(problem, variant));
  args.even_share = core::Divisor(static_cast<int>(even.units));
  args.shares_end_with_streams = even.ends_with_streams;
  // Several row tiles read the same keys, or those of a prefix; otherwise nobody reads them again.
  args.policy = args.row_tiles.value() > 1 || problem.lists_prefixes ? hw::CachePolicy::normal
                                                                     : hw::CachePolicy::evict_first;
  args.scale_log2 = (problem.softcap > 0 ? problem.softcap : problem.scale) * std::numbers::log2e_v<float>;
  args.score_to_cap = problem.softcap > 0 ? problem.scale / problem.softcap : 0.f;
  args.plan = static_cast<const std::int32_t*>(problem.plan);
  args.counters = static_cast<std::uint32_t*>(workspace);
  args.partials = reinterpret_cast<float*>(static_cast<std::byte*>(workspace) + counter_bytes);
  return args;
}

/// Blocks that have a part of a stream, which they know.
int known_blocks(const DecodeArguments& args) {
  return args.batch * args.streams.value() * args.known_parts.value();
}

launch::Record<Family> make_record(const DecodeProblem& problem, const DecodeVariant& variant, int sm_count,
                                   void* workspace) {
  const GridShape grid = grid_shape(problem, variant, sm_count);
  const bool has_value_map = !variant.values_in_keys() || variant.two_part_keys;
  launch::Record<Family> record{variant, grid.blocks(), {}};
  if (record.blocks == 0) return record;
  record.arguments = make_arguments(problem, variant, grid, workspace);
  if (record.arguments.known_streams) record.blocks = std::max(record.blocks, known_blocks(record.arguments));
  using Args = DecodeArguments;
  if (problem.pages() == 0) {  // nothing will be loaded, but maps have to be valid
    record.request({"q", problem.q, {1}, &Args::k});
    if (has_value_map) record.request({"q", problem.q, {1}, &Args::v});
    return record;
  }
  const hw::BoxRows box{box_rows(problem)};
  record.request({"cache.k", problem.k_cache, box, &Args::k}, record.arguments.key_box_columns,
                 &Args::k_last);
  if (has_value_map)
    record.request({"cache.v", problem.v_cache, box, &Args::v}, record.arguments.value_box_columns,
                   &Args::v_last);
  return record;
}

bool counts_parts(const launch::Record<Family>& step) {
  const DecodeArguments& args = step.arguments;
  return step.blocks > 0 && !args.merges_apart && !(args.known_streams && args.known_parts.value() == 1);
}

/// Of a stream's merge: as many as fill the multiprocessors about once, with blocks that may have nothing
/// to merge, since each takes its time to find that out, or with those that have.
int log2_slices_of(const DecodeArguments& args, const CombineVariant& variant, int places) {
  const int merging = std::min(args.batch * args.streams.value(), places);
  constexpr int blocks = CombineVariant::fitting_blocks * core::hopper_sm_count;
  const int wanted = std::max(2 * blocks / places, blocks / std::max(1, merging));
  return std::bit_width(static_cast<unsigned>(std::clamp(wanted, 1, variant.most_slices()))) - 1;
}

launch::Record<CombineFamily> make_combine_record(const launch::Record<Family>& step) {
  const DecodeArguments& args = step.arguments;
  launch::Record<CombineFamily> record{
      {step.variant.operand, step.variant.value_dim, step.variant.query_rows, step.variant.queries},
      0,
      {args, 0}};
  const int places = (args.teams.count.value() - 1) * args.teams.team_blocks.value();
  if (step.blocks == 0 || !args.merges_apart || places == 0) return record;
  record.arguments.log2_slices = log2_slices_of(args, record.variant, places);
  record.blocks = places << record.arguments.log2_slices;
  return record;
}

launch::Record<PlanFamily> make_plan_record(const DecodeProblem& problem, const DecodeVariant& variant,
                                            int sm_count, void* plan) {
  const GridShape grid = grid_shape(problem, variant, sm_count);
  launch::Record<PlanFamily> record{{}, grid.blocks() == 0 ? 0 : 1, {}};
  if (record.blocks == 0) return record;
  record.arguments = {make_arguments(problem, variant, grid, nullptr), static_cast<std::int32_t*>(plan)};
  record.arguments.step.plan = nullptr;  // what the problem has is of another call
  record.arguments.step.known_streams = false;
  return record;
}

launch::Record<ClearFamily> make_clear_record(void* counters) {
  static_assert(most_counters <= ClearVariant::threads());
  launch::Record<ClearFamily> record{{}, 1, {}};
  record.arguments = {static_cast<std::uint32_t*>(counters), most_counters};
  return record;
}

std::size_t workspace_bytes(const DecodeProblem& problem) {
  const DecodeVariant* variant = choose_variant(problem);
  return variant == nullptr ? 0 : workspace_bytes(problem, *variant);
}

std::size_t plan_bytes(const DecodeProblem& problem) {
  return choose_variant(problem) == nullptr ? 0 : any_plan_bytes;
}

}  // namespace tandem::decode
