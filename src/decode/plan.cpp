#include "decode/plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numbers>
#include <string>

#include "core/dtype.h"
#include "core/hopper.h"
#include "core/integers.h"
#include "decode/cost.h"
#include "hw/operand.h"
#include "hw/tensor_map.h"

namespace tandem::decode {
namespace {

using core::DecodeProblem;
using core::Status;

constexpr std::int64_t max_units = std::int64_t{1} << 30;

std::int64_t rows_of(const DecodeProblem& problem) { return problem.group() * problem.q_len(); }

std::int64_t unit_keys(const DecodeProblem& problem, const DecodeVariant& variant) {
  return problem.split_size > 0 ? problem.split_size : variant.block_n;
}

/// Units of all sequences at their longest.
std::int64_t most_units(const DecodeProblem& problem, const DecodeVariant& variant) {
  const std::int64_t of_stream =
      std::max<std::int64_t>(1, core::ceil_div(problem.capacity(), unit_keys(problem, variant)));
  return problem.batch() * streams_of(problem, variant) * of_stream;
}

/// In units; for fixed splits, which all cost as much, nothing.
int overhead_of(const DecodeProblem& problem, const DecodeVariant& variant) {
  return problem.split_size > 0 ? 0 : variant.stream_overhead();
}

/// With what streams cost besides.
std::int64_t most_positions(const DecodeProblem& problem, const DecodeVariant& variant) {
  return most_units(problem, variant) +
         problem.batch() * streams_of(problem, variant) * overhead_of(problem, variant);
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

/// Option 0 is ahead where a step is short, and none is where it waits for memory (docs/decode.md).
tandem_decode_kernel resolve(const DecodeProblem& problem) {
  return problem.kernel == TANDEM_DECODE_AUTO ? TANDEM_DECODE_SHARED_P : problem.kernel;
}

/// What serves only where there is much to read, or streams are short; of wide tiles there are always two.
bool is_narrow_twin(const DecodeVariant& variant) { return !variant.is_alone() && variant.query_rows <= 16; }

/// Whether values have as many columns as keys; those that have fewer lie in the keys.
bool values_are_as_wide(const DecodeProblem& problem) { return problem.value_dim() == problem.head_dim(); }

/// Whether the cost model (cost.h) knows the step's kernels, and may choose by the batch.
bool has_prices(const DecodeProblem& problem) {
  return problem.kernel == TANDEM_DECODE_AUTO && problem.split_size == 0 && !problem.eight_bit() &&
         !problem.listed.given;
}

/// Without prices: the narrowest tile with room for all rows (they come first), or else the widest; at most
/// 32 rows where the step is not for study, since 64 would merge its fixed splits for too long.
bool is_better_by_rows(const DecodeProblem& problem, const DecodeVariant& variant,
                       const DecodeVariant* chosen) {
  const int most_rows = problem.kernel == TANDEM_DECODE_AUTO ? 32 : 64;
  if (is_narrow_twin(variant)) return false;
  return chosen == nullptr || (chosen->query_rows < rows_of(problem) &&
                               variant.query_rows > chosen->query_rows && variant.query_rows <= most_rows);
}

/// Whether an 8-bit step reads so much, or has so many short streams, that two blocks of a multiprocessor are
/// worth twice as many parts.
bool is_worth_two(const DecodeProblem& problem, const DecodeVariant& twin, const DecodeVariant* chosen) {
  constexpr std::int64_t fewest_units = 8 * core::hopper_sm_count;
  constexpr std::int64_t most_bytes = 512 * 1024;  // of a short stream's keys and values
  if (problem.kernel != TANDEM_DECODE_AUTO || !twin.eight_bit() || !is_narrow_twin(twin) ||
      chosen == nullptr || chosen->query_rows < rows_of(problem))
    return false;
  const bool has_short_streams = problem.split_size == 0 &&
                                 2 * problem.capacity() * problem.head_dim() <= most_bytes &&
                                 problem.batch() * streams_of(problem, *chosen) >= 2 * core::hopper_sm_count;
  return has_short_streams || most_units(problem, *chosen) > fewest_units;
}

Algorithm algorithm_of(const DecodeProblem& problem) {
  if (problem.eight_bit()) return Algorithm::eight_bit;
  const tandem_decode_kernel kernel = resolve(problem);
  if (kernel == TANDEM_DECODE_PLAIN) return Algorithm::plain;
  return kernel == TANDEM_DECODE_SHARED_P ? Algorithm::shared_p : Algorithm::register_p;
}

/// Whether the kernel is of the algorithm, or one that AUTO weighs beside it; and of what a call asks for.
bool is_asked_for(const DecodeProblem& problem, const DecodeVariant& variant) {
  return (variant.algorithm == algorithm_of(problem) || (variant.paired() && has_prices(problem)) ||
          variant.shares_prefixes()) &&
         (problem.block_m == 0 || problem.block_m == variant.query_rows) &&
         (problem.block_n == 0 || problem.block_n == variant.block_n);
}

/// Whether the kernel takes queries as they are said. Of a list, and of fixed splits, it has a multiprocessor
/// for itself: it reads fastest on a part of the chip, and all of these have the same bits.
bool knows_queries(const DecodeVariant& variant, const DecodeProblem& problem) {
  if (variant.lists_queries() != (problem.listed.given || problem.packed.given())) return false;
  if (variant.shares_prefixes() != problem.lists_prefixes) return false;
  if (problem.packed.given() && problem.split_size > 0) return variant.is_alone();
  return !problem.listed.given || problem.lists_prefixes || (variant.narrows_tiles() && variant.is_alone());
}

/// Whether the kernel knows the cache's elements and what belongs to them, of e4m3 no more than that.
bool knows_elements(const DecodeVariant& variant, const DecodeProblem& problem) {
  if (variant.token_scales != problem.scales.per_token) return false;
  if (problem.k_cache.dtype == TANDEM_INT8) return variant.element == Element::int8;
  return variant.element == Element::e4m3 && variant.hadamard == problem.scales.hadamard;
}

Status unsupported(const std::string& what, std::int64_t value, const std::string& allowed) {
  return {TANDEM_UNSUPPORTED,
          what + " is " + std::to_string(value) + "; the Hopper backend takes " + allowed};
}

Status check_tensors(const DecodeProblem& problem) {
  for (auto [name, tensor] : {std::pair{"q", &problem.q},
                              {"qv", &problem.qv},
                              {"cache.k", &problem.k_cache},
                              {"cache.v", &problem.v_cache},
                              {"k_new", &problem.k_new},
                              {"v_new", &problem.v_new},
                              {"o", &problem.o}}) {
    const bool added = tensor == &problem.k_new || tensor == &problem.v_new;
    if (added && problem.new_len() == 0) continue;
    if (Status s = hw::check_tensor(name, *tensor); !s.ok()) return s;
  }
  return hw::check_rotary("rotary", problem.rotary);
}

/// Values of another head dim have no place of their own in the kernels.
Status check_values(const DecodeProblem& problem) {
  if (problem.has_qv()) {
    const bool latent = problem.head_dim() == latent_dim - latent_value_dim &&
                        problem.value_dim() == latent_value_dim && !problem.eight_bit();
    if (latent) return {};
    return {
        TANDEM_UNSUPPORTED,
        std::string("qv is given, q.shape[3] (head dim) is ") + std::to_string(problem.head_dim()) +
            ", cache.v.shape[3] " + std::to_string(problem.value_dim()) + " and cache.k.dtype " +
            core::name_of(problem.k_cache.dtype) +
            "; with qv the Hopper backend takes head dim 64 with 512 columns of values, of bf16 and fp16"};
  }
  if (values_are_as_wide(problem) || problem.values_in_keys()) return {};
  return {TANDEM_UNSUPPORTED,
          "cache.v has head dim " + std::to_string(problem.value_dim()) + " and cache.k " +
              std::to_string(problem.head_dim()) +
              "; the Hopper backend takes fewer columns of values only where they are the first of the keys: "
              "cache.v has the address and strides of cache.k, and v_new those of k_new"};
}

/// What a call for study asks for besides.
std::string of_study(const DecodeProblem& problem) {
  std::string words;
  if (problem.block_m > 0) words += ", study.block_m " + std::to_string(problem.block_m);
  if (problem.block_n > 0) words += ", study.block_n " + std::to_string(problem.block_n);
  return words;
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

bool has_room(const DecodeVariant& variant, const DecodeProblem& problem) {
  return variant.head_dim >= problem.key_columns() && variant.value_dim >= problem.value_dim() &&
         variant.values_in_keys() != values_are_as_wide(problem) && variant.two_part_keys == problem.has_qv();
}

/// Whether the tile's ring does for the streams. Three blocks of a multiprocessor, or two of one stage,
/// hardly have one: they are for steps of which the prices know them, or where each multiprocessor has a
/// stream and none takes an only stage often. With one to two streams three blocks took up to 1.35 times as
/// long as two.
bool has_ring_for(const DecodeProblem& problem, const DecodeVariant& variant) {
  constexpr std::int64_t most_keys = 1024, sm_count = core::hopper_sm_count;
  const std::int64_t streams = problem.batch() * streams_of(problem, variant);
  const bool has_ring = variant.resident == 1 || (variant.resident == 2 && variant.stages > 1);
  if (has_ring || is_short(problem, variant)) return true;
  if (variant.resident == 3 && 10 * streams > 13 * sm_count && streams <= 2 * sm_count) return false;
  return streams > sm_count && (variant.stages > 1 || problem.capacity() <= most_keys);
}

/// Tiles that were measured, of which up to four have room for all rows, or for 64. Of one whose warpgroups
/// split the keys three quarters may be empty: that takes no longer.
bool may_serve(const DecodeProblem& problem, const DecodeVariant& variant) {
  if (!can_count_positions(problem, variant)) return false;
  if (problem.block_m > 0) return true;  // for study
  if (!has_ring_for(problem, variant)) return false;
  constexpr std::int64_t narrowest = 8, widest = 64;
  const std::int64_t rows = rows_of(problem);
  return 4 * variant.query_rows >= std::min(rows, widest) &&
         (variant.query_rows < (variant.splits_keys() ? 4 : 2) * rows || variant.query_rows == narrowest);
}

}  // namespace

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

const DecodeVariant* choose_variant(const DecodeProblem& problem) {
  static constexpr auto table = all_variants();
  if (problem.dtype() == TANDEM_FP32) return nullptr;
  const auto operand = hw::operand_of(problem.dtype());
  const DecodeVariant* chosen = nullptr;
  double least_us = 0;
  for (const DecodeVariant& variant : table) {
    if (!is_asked_for(problem, variant) || variant.operand != operand || !has_room(variant, problem) ||
        !knows_queries(variant, problem) || !knows_elements(variant, problem))
      continue;
    if (chosen != nullptr && variant.head_dim > chosen->head_dim)
      break;  // head dims ascend: it only pads more
    if (!has_prices(problem)) {
      if (is_better_by_rows(problem, variant, chosen) || is_worth_two(problem, variant, chosen))
        chosen = &variant;
    } else {
      constexpr double never = std::numeric_limits<double>::infinity();
      const double us = may_serve(problem, variant) ? estimated_us(problem, variant) : never;
      if (chosen == nullptr || us < least_us) chosen = &variant, least_us = us;
    }
  }
  return chosen;
}

double estimated_us(const DecodeProblem& problem, const DecodeVariant& variant) {
  const GridShape grid = grid_shape(problem, variant, core::hopper_sm_count);
  return step_us(problem, variant, grid, even_share_of(problem, variant, grid));
}

Status supported(const DecodeProblem& problem) {
  if (Status s = check_values(problem); !s.ok()) return s;
  const DecodeVariant* variant = choose_variant(problem);
  if (variant == nullptr) {
    return {TANDEM_UNSUPPORTED,
            std::string("no Hopper decode kernel is built for dtype ") + core::name_of(problem.dtype()) +
                " with head dim " + std::to_string(problem.head_dim()) + of_study(problem) +
                "; built are bf16 and fp16 with head dims up to 512, and up to 576 for up to 512 "
                "columns of values that lie in the keys: pass such, or everything in host memory to "
                "TANDEM_BACKEND_CPU"};
  }
  if (const auto size = static_cast<std::uint64_t>(problem.page_size());
      problem.paged() && !std::has_single_bit(size)) {
    return unsupported("cache.k.shape[1] (page size)", problem.page_size(),
                       "powers of two: use " + std::to_string(std::bit_floor(size)) + " or " +
                           std::to_string(2 * std::bit_floor(size)));
  }
  if (problem.mask.chunk > 0)
    return unsupported("mask.chunk", problem.mask.chunk,
                       "no chunks in a decoding step: tandem_forward with varlen does");
  if (problem.slopes.given() || problem.tree != nullptr)
    return {TANDEM_UNSUPPORTED,
            std::string(problem.slopes.given() ? "alibi_slopes are" : "a tree is") +
                " given; the Hopper backend takes none in a decoding step: tandem_forward with varlen does"};
  constexpr std::int64_t longest = core::BasicMask<std::int32_t>::max_length;
  if (problem.capacity() > longest)
    return unsupported("the cache's capacity", problem.capacity(), "at most 2^28 keys of a sequence");
  if (!can_count_positions(problem, *variant))
    return unsupported(
        "batch * heads * (capacity in key blocks + " + std::to_string(overhead_of(problem, *variant)) + ")",
        most_positions(problem, *variant), "fewer than 2^30; split the batch");
  return check_tensors(problem);
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

bool may_cut_streams(const launch::Record<Family>& step) {
  const DecodeArguments& args = step.arguments;
  return step.blocks > 0 && !(args.known_streams && args.known_parts.value() == 1);
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

launch::Record<ClearFamily> make_clear_record(void* workspace) {
  static_assert(most_counters <= ClearVariant::threads());
  launch::Record<ClearFamily> record{{}, 1, {}};
  record.arguments = {static_cast<std::uint32_t*>(workspace), most_counters};
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
