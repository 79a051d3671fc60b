#include "forward/plan.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numbers>
#include <numeric>
#include <string>
#include <utility>

#include "core/dtype.h"
#include "core/integers.h"
#include "core/remembered.h"
#include "forward/check_eight_bit.h"
#include "forward/cost.h"
#include "forward/schedule.h"
#include "hw/operand.h"

namespace tandem::forward {
namespace {

constexpr std::int64_t max_tiles = std::int64_t{1} << 30;

Tiling tiling_with(Packing packing, const core::ForwardProblem& problem, const ForwardVariant& variant) {
  const std::int64_t rows = problem.q_len() << packing.log2_heads;
  return {packing, problem.q_heads() >> packing.log2_heads, core::ceil_div(rows, variant.block_m)};
}

/// As many heads as a pack can have: a power of two, so that rows are told apart by shifts.
Packing largest_packing(const core::ForwardProblem& problem) {
  constexpr auto most = static_cast<std::uint64_t>(Packing::most_heads);
  return {std::countr_zero(static_cast<std::uint64_t>(problem.group()) | most)};
}

/// Packs only where the tiles are at most this part of what they would be: for less, the boxes of a head's
/// consecutive queries are kept.
constexpr double worthwhile_part = 0.9;

/// `token_heads`: heads of the tensor that is scaled.
ScaleView scale_view(const core::Scales& scales, std::int64_t token_heads) {
  const core::Tensor& values = scales.values;
  if (values.data == nullptr) return {};
  const std::int64_t sharing = token_heads / values.shape[2];
  const bool one_block = values.shape[1] == 1;
  return {static_cast<const float*>(values.data),
          values.stride[0],
          one_block ? 0 : values.stride[1],
          values.stride[2],
          core::Divisor(one_block ? 1
                                  : static_cast<int>(std::min<std::int64_t>(
                                        scales.block, core::BasicMask<std::int32_t>::max_length))),
          core::Divisor(static_cast<int>(sharing))};
}

VarlenArguments varlen_arguments(const core::ForwardProblem& problem, const ForwardVariant& variant,
                                 const Tiling& tiling) {
  const core::Varlen& varlen = problem.varlen;
  const bool paged = varlen.page_table != nullptr;
  const std::int64_t page_size = problem.k.shape[1];
  VarlenArguments args{};
  args.cu_seqlens_q = varlen.cu_seqlens_q;
  args.cu_seqlens_k = varlen.cu_seqlens_k;
  args.seqused_k = varlen.seqused_k;
  args.page_table = varlen.page_table;
  args.page_table_stride = varlen.page_table_stride;
  args.sequences = static_cast<int>(varlen.sequences);
  args.q_rows = static_cast<int>(problem.q.shape[1]);
  args.k_rows = static_cast<int>(paged ? varlen.pages_per_sequence * page_size : page_size);
  args.max_seqlen_q = static_cast<int>(varlen.max_seqlen_q);
  args.max_seqlen_k = static_cast<int>(varlen.max_seqlen_k);
  args.pages = static_cast<int>(problem.k.shape[0]);
  args.log2_page_size = paged ? std::countr_zero(static_cast<std::uint64_t>(page_size)) : 0;
  args.box_rows = map_boxes(problem, variant).keys.rows;
  args.split_keys = static_cast<int>(varlen.split_keys);
  args.parts_batch = core::Divisor(static_cast<int>(std::max<std::int64_t>(1, varlen.parts_batch)));
  args.most_tiles = static_cast<int>(tile_count(problem, variant));
  args.packs = static_cast<int>(tiling.packs);
  args.list_key = key_of_list(problem, variant);
  return args;
}

BlockListArguments block_list_arguments(const core::ForwardProblem& problem, const ForwardVariant& variant) {
  const core::BlockList& list = problem.blocks;
  return {list.counts,
          list.blocks,
          list.batch_stride,
          list.head_stride,
          static_cast<int>(list.slots),
          static_cast<std::uint32_t>(core::ceil_div(problem.k_len(), list.k_block)),
          core::Divisor(static_cast<int>(list.q_block / variant.block_m)),
          core::Divisor(static_cast<int>(list.k_block / variant.block_n))};
}

bool is_asked_for(const ForwardVariant& variant, const core::ForwardProblem& problem) {
  static constexpr tandem_overlap overlaps[] = {TANDEM_OVERLAP_SERIAL, TANDEM_OVERLAP_TWO_STAGE,
                                                TANDEM_OVERLAP_THREE_STAGE};
  const auto turn = variant.turn == TurnPolicy::free ? TANDEM_TURN_FREE : TANDEM_TURN_PINGPONG;
  return (problem.overlap == TANDEM_OVERLAP_AUTO ||
          problem.overlap == overlaps[static_cast<int>(variant.overlap)]) &&
         (problem.turn == TANDEM_TURN_AUTO || problem.turn == turn) &&
         (problem.block_m == 0 || problem.block_m == variant.block_m) &&
         (problem.block_n == 0 || problem.block_n == variant.block_n);
}

/// The mask without limits that hide nothing: no query lies further from a key on its left than the last one
/// from the first key, nor on its right than the first query from the last key.
core::Mask without_idle_limits(const core::ForwardProblem& problem) {
  core::Mask mask = problem.mask;
  if (mask.left >= problem.k_len() - 1) mask.left = core::Mask::unlimited;
  if (mask.right >= problem.q_len() - 1) mask.right = core::Mask::unlimited;
  return mask;
}

/// What kernels of prefixes don't know.
bool needs_band(const core::ForwardProblem& problem) {
  return problem.mask.left != core::Mask::unlimited || problem.mask.chunk > 0 || problem.slopes.given() ||
         problem.tree != nullptr;
}

ValueLayout layout_of_values(const core::ForwardProblem& problem) {
  if (!core::is_8_bit(problem.dtype())) return ValueLayout::rows;
  return problem.quantisation.v_transposed ? ValueLayout::columns : ValueLayout::rows_transposed;
}

/// Whether the candidate's kernel computes the problem as asked.
bool can_serve(const Candidate& candidate, const core::ForwardProblem& problem) {
  const ForwardVariant& variant = candidate.variant;
  const auto lengths = problem.varlen.given ? Lengths::varlen : Lengths::uniform;
  return variant.operand == hw::operand_of(problem.dtype()) &&
         (!variant.is_8_bit() || variant.output == hw::operand_of(problem.o.dtype)) &&
         variant.values == layout_of_values(problem) && variant.value_terms == problem.quantisation.v_terms &&
         (!variant.fp16_scores || problem.quantisation.scores_fit_fp16(problem.head_dim())) &&
         variant.lengths == lengths && variant.block_sparse == problem.blocks.given() &&
         variant.knows_columns(problem.head_dim(), problem.value_dim()) &&
         variant.softcap == (problem.softcap > 0) &&
         (variant.mask == MaskKind::band || !needs_band(problem)) &&
         (variant.knows_chunks() || problem.mask.chunk == 0) &&
         (variant.knows_slopes() || !problem.slopes.given()) &&
         (variant.knows_trees() || problem.tree == nullptr) &&
         (problem.is_free() ? !candidate.on_request : is_asked_for(variant, problem));
}

/// A candidate with what it costs.
struct Judged {
  const Candidate* candidate = nullptr;
  double us = 0;

  /// Where both serve the problem: with less padding; built for its kind of mask; by cost; by its place in
  /// the table.
  bool is_better_than(const Judged& other, const core::ForwardProblem& problem) const {
    if (other.candidate == nullptr) return true;
    const ForwardVariant &a = candidate->variant, &b = other.candidate->variant;
    if (a.head_dim != b.head_dim) return a.head_dim < b.head_dim;
    if (a.value_dim != b.value_dim) return a.value_dim < b.value_dim;
    if (a.fp16_scores != b.fp16_scores) return a.fp16_scores;
    if (a.mask != b.mask) return (a.mask == MaskKind::band) == needs_band(problem);
    return us < other.us;
  }
};

/// One table, so that a candidate has one address.
const auto& candidates() {
  static constexpr auto all = all_candidates();
  return all;
}

const Candidate* find_candidate(const core::ForwardProblem& problem) {
  if (problem.dtype() == TANDEM_FP32) return nullptr;
  Judged best;
  for (const Candidate& candidate : candidates()) {
    // Head dims ascend: those behind what was found only pad more.
    if (best.candidate != nullptr && candidate.variant.head_dim > best.candidate->variant.head_dim) break;
    if (!can_serve(candidate, problem)) continue;
    const Judged judged{&candidate, estimate_to_choose(problem, candidate.variant).compute_us};
    if (judged.is_better_than(best, problem)) best = judged;
  }
  return best.candidate;
}

/// What boxes of TMA can take of a page.
core::Status check_pages(const core::ForwardProblem& problem) {
  constexpr std::int64_t fewest = 16;
  const std::int64_t page_size = problem.k.shape[1];
  if (problem.varlen.page_table == nullptr ||
      (page_size >= fewest && std::has_single_bit(static_cast<std::uint64_t>(page_size))))
    return {};
  return {TANDEM_UNSUPPORTED, "k.shape[1] (page size) is " + std::to_string(page_size) +
                                  "; the Hopper backend takes powers of two from 16 on"};
}

/// Blocks of lists are whole tiles and key blocks.
core::Status check_block_list(const core::BlockList& list) {
  if (!list.given()) return {};
  for (auto [name, value] :
       {std::pair{"block_list.q_block", list.q_block}, {"block_list.k_block", list.k_block}})
    if (value % block_list_unit != 0)
      return {TANDEM_UNSUPPORTED, std::string(name) + " is " + std::to_string(value) +
                                      "; the Hopper backend takes multiples of " +
                                      std::to_string(block_list_unit)};
  return {};
}

const char* name_of(tandem_overlap overlap) {
  static constexpr const char* names[] = {"TANDEM_OVERLAP_AUTO", "TANDEM_OVERLAP_SERIAL",
                                          "TANDEM_OVERLAP_TWO_STAGE", "TANDEM_OVERLAP_THREE_STAGE"};
  return names[overlap];
}

const char* name_of(tandem_turn turn) {
  static constexpr const char* names[] = {"TANDEM_TURN_AUTO", "TANDEM_TURN_FREE", "TANDEM_TURN_PINGPONG"};
  return names[turn];
}

/// Whether the last box of a row would end beyond it.
bool rows_are_narrow(const core::ForwardProblem& problem, const ForwardVariant& variant) {
  const auto fills = [](std::int64_t columns, int of_tile) {
    return columns == of_tile && of_tile % hw::Panels::width == 0;
  };
  return !fills(problem.head_dim(), variant.head_dim) || !fills(problem.value_dim(), variant.value_dim);
}

}  // namespace

core::ForwardProblem for_kernels(const core::ForwardProblem& problem) {
  core::ForwardProblem known = problem;
  if (!problem.varlen.keeps_bits()) known.mask = without_idle_limits(problem);
  if (problem.needs_list() && !problem.varlen.given)
    known.varlen = {.given = true,
                    .sequences = problem.batch(),
                    .max_seqlen_q = problem.q_len(),
                    .max_seqlen_k = problem.k_len()};
  if (!known.varlen.given) known.plan = nullptr;  // there is nothing to plan
  return known;
}

ShapeOfProblem::ShapeOfProblem(const core::ForwardProblem& p)
    : numbers{p.batch(),
              p.q_len(),
              p.k_len(),
              p.q_heads(),
              p.kv_heads(),
              p.head_dim(),
              p.value_dim(),
              p.mask.left,
              p.mask.right,
              p.mask.chunk,
              p.dtype(),
              p.o.dtype,
              p.overlap,
              p.turn,
              p.block_m,
              p.block_n,
              (p.softcap > 0 ? 1 : 0) + (p.varlen.given ? 2 : 0) + (p.slopes.given() ? 4 : 0) +
                  (p.tree != nullptr ? 8 : 0) + 16 * static_cast<int>(layout_of_values(p)) +
                  (p.blocks.given() ? 64 : 0) + 128 * (p.quantisation.v_terms - 1) +
                  (p.quantisation.scores_fit_fp16(p.head_dim()) ? 256 : 0) +
                  (p.varlen.keeps_bits() ? 512 : 0) + 1024 * p.varlen.split_keys} {}

std::uint64_t ShapeOfProblem::hash() const {
  std::uint64_t hash = 0;
  for (const std::int64_t number : numbers) hash = core::mixed(hash, static_cast<std::uint64_t>(number));
  return hash >> 32;
}

const Candidate* choose_candidate(const core::ForwardProblem& problem) {
  thread_local core::Remembered<ShapeOfProblem, const Candidate*> known;
  return known.of(ShapeOfProblem(problem), [&] { return find_candidate(problem); });
}

std::vector<const Candidate*> candidates_of(const core::ForwardProblem& problem) {
  const Candidate* chosen = choose_candidate(problem);
  std::vector<const Candidate*> weighed;
  for (const Candidate& candidate : candidates())
    if (chosen != nullptr && can_serve(candidate, problem) &&
        candidate.variant.head_dim == chosen->variant.head_dim &&
        candidate.variant.value_dim == chosen->variant.value_dim &&
        candidate.variant.mask == chosen->variant.mask)
      weighed.push_back(&candidate);
  return weighed;
}

const ForwardVariant* choose_variant(const core::ForwardProblem& problem) {
  const Candidate* chosen = choose_candidate(problem);
  return chosen == nullptr ? nullptr : &chosen->variant;
}

core::Status no_variant(const core::ForwardProblem& problem) {
  const bool integers = problem.dtype() == TANDEM_INT8, two_terms = problem.quantisation.v_terms == 2;
  if (integers && !problem.quantisation.v_transposed)
    return {TANDEM_UNSUPPORTED,
            "scales.v_layout is TANDEM_VALUES_BY_KEY, but q and k are int8; the Hopper backend takes values "
            "by column beside them: TANDEM_VALUES_BY_COLUMN"};
  if (two_terms && !integers)
    return {TANDEM_UNSUPPORTED,
            "scales.v_terms is 2, but q and k are e4m3; the Hopper backend takes values of two terms beside "
            "int8"};
  return {
      TANDEM_UNSUPPORTED,
      std::string("no Hopper kernel is built for dtype ") + core::name_of(problem.dtype()) +
          " with head dim " + std::to_string(std::max(problem.head_dim(), problem.value_dim())) +
          (problem.mask.chunk > 0 ? ", chunks" : "") + (problem.slopes.given() ? ", slopes" : "") +
          (problem.tree != nullptr ? ", a tree" : "") + (problem.blocks.given() ? ", a block list" : "") +
          (problem.softcap > 0 ? ", a softcap, overlap " : ", overlap ") + name_of(problem.overlap) +
          " and turn " + name_of(problem.turn) +
          "; built are bf16 and fp16 with head dims up to 256, up to 512 of fixed lengths and bands alone, "
          "and overlaps and turns other than the default ones up to 256 without a softcap" +
          (problem.mask.chunk > 0 || problem.tree != nullptr ? ", chunks and trees up to 192" : "")};
}

Tiling tiling_of(const core::ForwardProblem& problem, const ForwardVariant& variant) {
  const Tiling plain = tiling_with(Packing{}, problem, variant);
  if (variant.block_sparse) return plain;  // heads may have lists of their own
  const Tiling packed = tiling_with(largest_packing(problem), problem, variant);
  const double most_tiles = worthwhile_part * static_cast<double>(plain.tiles());
  return static_cast<double>(packed.tiles()) <= most_tiles ? packed : plain;
}

std::int64_t tile_count(const core::ForwardProblem& problem, const ForwardVariant& variant) {
  const Tiling tiling = tiling_of(problem, variant);
  if (problem.varlen.given) return tiling.packs * most_listed_tiles(problem, variant);
  return tiling.tiles() * problem.batch();
}

MapBoxes map_boxes(const core::ForwardProblem& problem, const ForwardVariant& variant) {
  const int heads = tiling_of(problem, variant).packing.heads();
  const int keys = problem.varlen.page_table == nullptr
                       ? variant.block_n
                       : static_cast<int>(std::gcd<std::int64_t>(variant.block_n, problem.k.shape[1]));
  return {
      .q = {variant.block_m / variant.query_tiles(), heads},
      .keys = {keys},
      .values = {variant.values == ValueLayout::columns ? variant.value_dim : keys / variant.block_parts()},
      .o = {output_rows, heads}};
}

std::int64_t most_listed_tiles(const core::ForwardProblem& problem, const ForwardVariant& variant) {
  if (!problem.varlen.given) return 0;
  // Each sequence has at most one tile that is not full.
  const std::int64_t tile_queries = queries_of_tile(variant, tiling_of(problem, variant).packing);
  const std::int64_t of_bound = problem.batch() * core::ceil_div(problem.q_len(), tile_queries);
  if (problem.varlen.split_keys > 0) return of_bound;
  const std::int64_t rows = problem.q.shape[0] * problem.q.shape[1];
  return std::min(of_bound, rows / tile_queries + problem.batch());
}

ForwardArguments make_arguments(const core::ForwardProblem& problem, const ForwardVariant& variant,
                                int grid) {
  const Tiling tiling = tiling_of(problem, variant);
  ForwardArguments args{};
  args.o = core::TensorView::of(problem.o);
  args.lse = core::TensorView::of(problem.lse);
  args.mask = problem.mask.narrowed<std::int32_t>();
  args.packing = tiling.packing;
  args.q_len = static_cast<int>(problem.q_len());
  args.k_len = static_cast<int>(problem.k_len());
  args.value_dim = static_cast<int>(problem.value_dim());
  args.narrow_rows = variant.boxes_end_with_rows() && rows_are_narrow(problem, variant);
  args.key_box_columns = hw::box_columns(problem.head_dim(), args.narrow_rows);
  args.value_box_columns = hw::box_columns(problem.value_dim(), args.narrow_rows);
  args.group = core::Divisor(static_cast<int>(problem.group() >> tiling.packing.log2_heads));
  args.scale_log2 = (problem.softcap > 0 ? problem.softcap : problem.scale) * std::numbers::log2e_v<float>;
  args.q_scale = scale_view(problem.quantisation.q, problem.q_heads());
  args.k_scale = scale_view(problem.quantisation.k, problem.kv_heads());
  args.v_scale = scale_view(problem.quantisation.v, problem.kv_heads());
  args.v_shift = core::ShiftView::of(problem.quantisation.v_shift, problem.kv_heads());
  if (wants_k_shift(problem)) args.q_dot_k_shift = core::TensorView::of(problem.quantisation.q_dot_k_shift);
  args.scale = problem.scale;
  args.score_to_cap = problem.softcap > 0 ? problem.scale / problem.softcap : 0.f;
  args.sinks = problem.sinks;
  args.slopes = {problem.slopes.data, problem.slopes.stride,
                 1 / (problem.softcap > 0 ? problem.softcap : problem.scale)};
  args.tree = reinterpret_cast<const std::uint32_t*>(problem.tree);
  if (problem.blocks.given()) args.block_list = block_list_arguments(problem, variant);
  if (problem.mask.chunk > 0) args.chunks = {core::Divisor(static_cast<int>(problem.mask.chunk)), 0};
  if (problem.varlen.given) {
    args.varlen = varlen_arguments(problem, variant, tiling);  // its list is the schedule
  } else {
    args.schedule = make_schedule(problem, variant, tiling, grid);
  }
  return args;
}

int grid_size(const core::ForwardProblem& problem, const ForwardVariant& variant, int sm_count) {
  return static_cast<int>(
      std::min<std::int64_t>(tile_count(problem, variant), sm_count * variant.resident()));
}

launch::Record<Family> make_record(const core::ForwardProblem& problem, const ForwardVariant& variant,
                                   int sm_count, void* list) {
  const int blocks = grid_size(problem, variant, sm_count);
  launch::Record<Family> record{variant, blocks, {}};
  if (blocks == 0) return record;
  record.arguments = make_arguments(problem, variant, blocks);
  record.arguments.varlen.tile_list = static_cast<std::int32_t*>(list);
  const MapBoxes boxes = map_boxes(problem, variant);
  using Args = ForwardArguments;
  const std::int32_t of_keys = record.arguments.key_box_columns,
                     of_values = record.arguments.value_box_columns;
  record.request({"q", problem.q, boxes.q, &Args::q}, of_keys, &Args::q_last);
  const bool stores_boxes = variant.decisions.stages_output && problem.varlen.split_keys == 0;
  if (stores_boxes) record.request({"o", problem.o, boxes.o, &Args::o_boxes});
  if (problem.k_len() == 0 || problem.k.shape[0] * problem.k.shape[1] == 0) {
    // Nothing will be loaded, but the maps have to be valid.
    record.request({"q", problem.q, boxes.q, &Args::k});
    record.request({"q", problem.q, boxes.q, &Args::v});
  } else {
    record.request({"k", problem.k, boxes.keys, &Args::k}, of_keys, &Args::k_last);
    record.request({"v", problem.v, boxes.values, &Args::v}, of_values, &Args::v_last);
  }
  return record;
}

core::TensorList memory_of(const core::ForwardProblem& problem, void* workspace,
                           core::Role role_of_workspace) {
  core::TensorList list = tensors_of(problem);
  if (problem.varlen.given)
    list.add_array("workspace", role_of_workspace, core::Region::of(workspace, workspace_bytes(problem)));
  if (problem.plan != nullptr)
    list.add_array("plan", core::Role::updated, core::Region::of(problem.plan, plan_bytes(problem)));
  return list;
}

core::Status supported(const core::ForwardProblem& problem) {
  const ForwardVariant* chosen = choose_variant(problem);
  if (chosen == nullptr) return no_variant(problem);
  for (auto [name, tensor] :
       {std::pair{"q", &problem.q}, {"k", &problem.k}, {"v", &problem.v}, {"o", &problem.o}}) {
    if (core::Status s = hw::check_tensor(name, *tensor); !s.ok()) return s;
  }
  if (core::Status s = check_pages(problem); !s.ok()) return s;
  if (core::Status s = check_scale_blocks(problem.quantisation); !s.ok()) return s;
  if (core::Status s = check_block_list(problem.blocks); !s.ok()) return s;
  if (core::Status s = check_shifts(problem, *chosen); !s.ok()) return s;
  if (core::Status s = check_appended(problem); !s.ok()) return s;
  if (tile_count(problem, *chosen) >= max_tiles) {
    return {TANDEM_UNSUPPORTED, "batch * heads * ceil(sq / " + std::to_string(chosen->block_m) +
                                    ") exceeds 2^30 tiles; split the batch"};
  }
  return {};
}

}  // namespace tandem::forward
