#include "backward/plan.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backward/kept.h"
#include "backward/sequence.h"
#include "backward/sums.h"
#include "backward/varlen_plan.h"
#include "core/dtype.h"
#include "core/integers.h"
#include "core/workspace.h"
#include "hw/operand.h"

namespace tandem::backward {
namespace {

constexpr std::int64_t max_tiles = std::int64_t{1} << 30;

/// Of the smallest built head dim that serves the problem, the variant of the kind; nullptr if there is none.
const BackwardVariant* find(const core::BackwardProblem& problem, Kernel kernel) {
  if (problem.dtype() == TANDEM_FP32) return nullptr;
  const auto operand = hw::operand_of(problem.dtype());
  int head_dim = 0;
  for (const BackwardVariant& v : all_variants(problem.varlen.given ? Lengths::varlen : Lengths::uniform)) {
    if (v.head_dim < problem.head_dim()) continue;
    if (head_dim == 0) head_dim = v.head_dim;
    if (v.head_dim == head_dim && v.operand == operand && v.softcap == (problem.softcap > 0) &&
        v.kernel == kernel) {
      return &v;
    }
  }
  return nullptr;
}

/// Drops the first `rows` rows.
void drop(core::Tensor& tensor, std::int64_t rows) {
  if (tensor.data != nullptr) {
    tensor.data = static_cast<char*>(tensor.data) +
                  rows * tensor.stride[1] * static_cast<std::int64_t>(core::size_of(tensor.dtype));
  }
  tensor.shape[1] -= rows;
}

/// Whether tiles of keys, and of queries, fall in length, from one tile of a head to the next.
bool is_falling(const core::Mask& mask) {
  return mask.right != core::Mask::unlimited && mask.left == core::Mask::unlimited;
}

/// What an order of tiles is made for: tiles of a head, heads, and what these share.
struct TileShape {
  int tiles, heads, batch;
  bool falls;        ///< in length, from one tile of a head to the next: with a causal mask
  int cached_heads;  ///< whose shared rows L2 holds

  int all_heads() const { return heads * batch; }
  static TileShape of(const core::BackwardProblem& problem, const BackwardVariant& variant,
                      std::int64_t cached_bytes) {
    const bool keys = variant.is_of_keys();
    const std::int64_t tiles = keys ? core::ceil_div(problem.k_len(), variant.block_n)
                                    : core::ceil_div(problem.q_len(), variant.block_m);
    const std::int64_t rows = keys ? problem.q_len() * problem.group() * 2 : problem.k_len();
    const std::int64_t of_head = std::max<std::int64_t>(1, rows * problem.head_dim() * 2 * 2);
    return {static_cast<int>(tiles), static_cast<int>(keys ? problem.kv_heads() : problem.q_heads()),
            static_cast<int>(problem.batch()), is_falling(problem.mask),
            static_cast<int>(std::max<std::int64_t>(1, cached_bytes / of_head))};
  }
};

/// Of tiles that come by length, the longest first, where lengths fall.
core::TileScheduler make_schedule(const TileShape& s, int sm_count) {
  if (!s.falls) return core::TileScheduler(s.tiles, s.heads, s.batch, sm_count);
  return core::TileScheduler::longest_first(s.tiles, s.heads, s.batch, sm_count, s.cached_heads);
}

/// Of kernels whose tiles wait for nobody. Tiles of a head read the same rows, so they run at the same time
/// where heads are enough to even out (docs/performance/backward.md, Wide heads head by head).
core::TileScheduler make_free_schedule(const TileShape& s, int sm_count) {
  constexpr double enough_heads = 0.7;  // for each multiprocessor
  if (s.falls && s.all_heads() >= enough_heads * sm_count)
    return core::TileScheduler::head_by_head(s.tiles, s.heads, s.batch, sm_count);
  return make_schedule(s, sm_count);
}

/// Heads of a section, where sections overlap; 0: they do not.
int overlapping_heads(const core::BackwardProblem& problem, const BackwardVariant& variant,
                      const TileShape& s, int sm_count) {
  using Pays = SectionOverlap;
  if (!may_overlap(problem, variant) || s.tiles < Pays::fewest_tiles) return 0;
  const bool visits_are_long = variant.head_dim == 128 && s.tiles >= Pays::many_tiles;
  const int heads = std::max(1, visits_are_long ? s.cached_heads : s.cached_heads / 2);
  const bool pays = s.all_heads() >= Pays::fewest_sections * heads &&
                    std::int64_t{s.tiles} * s.all_heads() >= std::int64_t{Pays::fewest_rounds} * sm_count;
  return pays ? heads : 0;
}

/// The problem as the kernel of tiles of keys has it: splits are key/value heads.
core::BackwardProblem with_splits(core::BackwardProblem problem, int splits) {
  for (core::Tensor* tensor : {&problem.k, &problem.v, &problem.dk, &problem.dv}) tensor->shape[2] *= splits;
  return problem;
}

/// Of tiles whose length falls and that take `in_turn` heads of queries in turn.
///
/// A tile reads and adds to the same blocks as the one before of its head: from L2, if it comes there soon.
/// Of many heads in turn a block takes so long that tiles have to begin one shortly after another. So they
/// are taken head by head, and only the last heads take turns, a tile of each at a time, that long tiles do
/// not end late. At head dim 64, where a tile waits longest for the one before, heads take turns in sections
/// of two rounds of the grid: their first tiles begin together. So do all where they are two rounds. With few
/// heads in turn L2 has a block long enough, and sections are of five rounds, which wait less
/// (docs/performance/backward.md, Sections where heads are grouped).
core::TileScheduler grouped_order(const TileShape& s, std::int64_t in_turn, const BackwardVariant& keys,
                                  int sm_count) {
  constexpr std::int64_t many_in_turn = 8;
  constexpr double two_rounds = 2.2;  // nearly
  const auto of_heads = [&s](int section_heads, int last_tiles) {
    return core::TileScheduler::staggered(s.tiles, s.heads, s.batch, section_heads, last_tiles);
  };
  const bool few = in_turn <= few_in_turn, long_waits = waits_long(keys);
  const std::int64_t all = s.all_heads(), tiles = all * s.tiles, of_section = (few ? 5 : 2) * sm_count;
  if (static_cast<double>(tiles) <= two_rounds * sm_count) return of_heads(s.all_heads(), 0);
  if (!few && !(long_waits && in_turn <= many_in_turn)) return of_heads(1, sm_count / (long_waits ? 1 : 2));
  // So many sections that the tiles of one are as near to that, up or down, as they can be.
  std::int64_t sections = std::max<std::int64_t>(1, tiles / of_section);
  if (tiles * tiles > of_section * of_section * sections * (sections + 1)) ++sections;
  return of_heads(static_cast<int>(core::ceil_div(all, sections)), 0);
}

/// Of tiles of keys, of which there are some. Where they wait for one another (ring.h) and have the same
/// length, the first ones of as many heads as fill the chip come first.
KeyOrder make_key_order(const core::BackwardProblem& problem, const Choice& choice, int sm_count) {
  const BackwardVariant& variant = choice.keys;
  const bool grouped = problem.group() > 1;
  if (!variant.adds_dq()) {
    constexpr int more_of_groups = 8;  // than L2 holds: balance counts more
    const std::int64_t bytes = choice.cached_bytes * (grouped ? more_of_groups : 1);
    return KeyOrder(make_free_schedule(TileShape::of(problem, variant, bytes), sm_count));
  }
  const TileShape s = TileShape::of(problem, variant, choice.cached_bytes);
  if (const int heads = overlapping_heads(problem, variant, s, sm_count); heads > 0)
    return KeyOrder::overlapping(s.tiles, s.heads, s.batch, heads);
  if (s.falls && grouped) return KeyOrder(grouped_order(s, problem.group(), variant, sm_count));
  if (s.falls) return KeyOrder(make_schedule(s, sm_count));
  // Enough that a tile's visits take as long as its turn to add takes to come: a hop for each tile of its
  // head that is at work, about as long as a visit.
  const std::int64_t visits = core::ceil_div(problem.q_len(), variant.block_m) * problem.group();
  const auto together = static_cast<int>(
      core::ceil_div(sm_count, std::min<std::int64_t>(s.tiles, std::max<std::int64_t>(visits, 1))));
  return KeyOrder(
      core::TileScheduler::staggered(s.tiles, s.heads, s.batch, std::min(together, s.all_heads())));
}

/// Rows of statistics.
std::int64_t padded_rows(const core::BackwardProblem& problem, std::int64_t q_len) {
  return problem.batch() * problem.q_heads() * core::round_up(q_len, query_padding);
}

/// Blocks of the kernels before and after the products: 64 queries each.
std::int64_t row_blocks(const core::BackwardProblem& problem) {
  return padded_rows(problem, problem.q_len()) / part_rows;
}

core::Status no_variant(const core::BackwardProblem& problem) {
  return {TANDEM_UNSUPPORTED, std::string("no Hopper kernel of the backward is built for dtype ") +
                                  core::name_of(problem.dtype()) + " with head dim " +
                                  std::to_string(problem.head_dim()) +
                                  "; built are bf16 and fp16 with head dims up to 256"};
}

}  // namespace

bool may_overlap(const core::BackwardProblem& problem, const BackwardVariant& variant) {
  return variant.adds_dq() && is_falling(problem.mask) && problem.group() == 1;
}

Choice choose(const core::BackwardProblem& problem) {
  const BackwardVariant *keys = find(problem, Kernel::keys_pipelined), *queries = keys;
  if (keys == nullptr) keys = find(problem, Kernel::keys_in_roles), queries = find(problem, Kernel::queries);
  if (keys == nullptr || queries == nullptr) return {{}, {}, false};
  Choice choice{*keys, *queries, true};
  if (!problem.varlen.given) choice.splits = splits_that_pay(crop(problem), choice);
  return choice;
}

Choice choice_with(const BackwardVariant& variant) {
  Choice choice{variant, variant, true};
  if (variant.adds_dq()) return choice;
  for (const BackwardVariant& other : all_variants(variant.lengths)) {
    if (other.operand != variant.operand || other.head_dim != variant.head_dim ||
        other.softcap != variant.softcap) {
      continue;
    }
    if (other.is_of_keys() != variant.is_of_keys())
      (other.is_of_keys() ? choice.keys : choice.queries) = other;
  }
  return choice;
}

const std::vector<BackwardVariant>& all_variants(Lengths lengths) {
  const auto of = [](Lengths own) {
    std::vector<BackwardVariant> all = launch::variants_of<Family>();
    std::erase_if(all, [own](const BackwardVariant& v) { return v.lengths != own; });
    return all;
  };
  static const std::vector<BackwardVariant> uniform = of(Lengths::uniform), varlen = of(Lengths::varlen);
  return lengths == Lengths::uniform ? uniform : varlen;
}

Cropped crop(const core::BackwardProblem& problem) {
  const std::int64_t q_len = problem.q_len(), k_len = problem.k_len();
  Cropped cropped{problem, hidden_rows(q_len, k_len, problem.mask.right),
                  hidden_rows(k_len, q_len, problem.mask.left)};
  core::BackwardProblem& p = cropped.problem;
  for (core::Tensor* tensor : {&p.q, &p.o, &p.lse, &p.dout, &p.dlse, &p.dq})
    drop(*tensor, cropped.unseeing_queries);
  for (core::Tensor* tensor : {&p.k, &p.v, &p.dk, &p.dv}) drop(*tensor, cropped.unseen_keys);
  return cropped;
}

RingPlan ring_plan(const Cropped& cropped, const Choice& choice) {
  const core::BackwardProblem problem = with_splits(cropped.problem, choice.splits);
  if (!choice.adds_dq() || cropped.empty()) return {};
  RingPlan ring{make_key_order(problem, choice, choice.grid), 0, 0};
  const int tiles = TileShape::of(problem, choice.keys, choice.cached_bytes).tiles;
  ring.heads = static_cast<int>(std::min<std::int64_t>(
      ring.order.heads_at_work() + core::ceil_div(choice.grid, tiles), problem.batch() * problem.kv_heads()));
  ring.parts = ring.heads * problem.group() * (core::round_up(problem.q_len(), query_padding) / part_rows) *
               parts_of_rows(choice.keys.head_dim);
  return ring;
}

KeptPlan kept_plan(const Cropped& cropped, const Choice& choice) {
  const core::BackwardProblem& p = cropped.problem;
  if (choice.splits == 1 || cropped.empty()) return {};
  const std::int64_t blocks = core::ceil_div(p.k_len(), kept_keys),
                     splits = p.batch() * p.kv_heads() * choice.splits;
  return {splits, static_cast<int>(blocks), splits * blocks * kept_elements(choice.keys.head_dim)};
}

WorkspaceLayout workspace_layout(const Cropped& cropped, const RingPlan& ring, const KeptPlan& kept) {
  const core::BackwardProblem& problem = cropped.problem;
  const auto statistics = [&](std::int64_t q_len) {
    return core::part_bytes(static_cast<std::size_t>(padded_rows(problem, q_len)) * sizeof(float));
  };
  const auto parts = static_cast<std::size_t>(ring.parts);
  const std::size_t seeing = statistics(problem.q_len()),
                    unseeing = problem.dsinks == nullptr ? 0 : statistics(cropped.unseeing_queries);
  WorkspaceLayout layout{};
  layout.delta = seeing;
  layout.dq_sums = 2 * seeing;
  layout.counter_count = parts > 0 ? static_cast<int>(1 + parts) : 0;
  layout.counters = layout.dq_sums + parts * part_elements * sizeof(float);
  layout.kept_dk = layout.counters +
                   core::part_bytes(static_cast<std::size_t>(layout.counter_count) * sizeof(std::uint32_t));
  layout.kept_dv = layout.kept_dk + static_cast<std::size_t>(kept.elements) * sizeof(float);
  layout.unseeing_lse_log2 = layout.kept_dv + (layout.kept_dv - layout.kept_dk);
  layout.unseeing_delta = layout.unseeing_lse_log2 + unseeing;
  layout.end = layout.unseeing_delta + unseeing;
  return layout;
}

WorkspaceLayout layout_of(const core::BackwardProblem& problem, const Choice& choice) {
  const Cropped cropped = crop(problem);
  return workspace_layout(cropped, ring_plan(cropped, choice), kept_plan(cropped, choice));
}

Call::Call(const core::BackwardProblem& problem, const Choice& choice, int sm_count, void* workspace)
    : whole_(problem),
      cropped_(crop(problem)),
      choice_(choice),
      sm_count_(sm_count),
      ring_(ring_plan(cropped_, choice)),
      kept_(kept_plan(cropped_, choice)),
      layout_(workspace_layout(cropped_, ring_, kept_)),
      workspace_(workspace) {
  const auto at = [workspace](std::size_t offset) {
    return reinterpret_cast<float*>(static_cast<char*>(workspace) + offset);
  };
  statistics_ = {at(layout_.lse_log2), at(layout_.delta)};
  unseeing_statistics_ = {at(layout_.unseeing_lse_log2), at(layout_.unseeing_delta)};
  dq_sums_ = layout_.counter_count > 0 ? at(layout_.dq_sums) : nullptr;
  counters_ = reinterpret_cast<std::uint32_t*>(at(layout_.counters));
}

core::Region Call::workspace() const { return core::Region::of(workspace_, layout_.end); }

Step<PrepareFamily> Call::prepare_rows(const core::BackwardProblem& p, const Statistics& statistics,
                                       int counter_count) const {
  PrepareArguments args = prepare_arguments(p, statistics);
  args.counters = counters_, args.counter_count = counter_count;
  args.row_blocks = core::Divisor(std::max(args.extent.padded_q_len / part_rows, 1));
  args.q_heads = core::Divisor(args.extent.q_heads);
  return prepare_step(p, {choice_.keys.operand, choice_.keys.head_dim}, static_cast<int>(row_blocks(p)),
                      args);
}

Step<PrepareFamily> Call::prepare() const {
  Step<PrepareFamily> step = prepare_rows(cropped_.problem, statistics_, layout_.counter_count);
  step.memory.add_array("workspace", core::Role::output, workspace());
  return step;
}

Step<PrepareFamily> Call::prepare_unseeing() const {
  core::BackwardProblem first = whole_;
  first.q.shape[1] = cropped_.unseeing_queries;
  Step<PrepareFamily> step = prepare_rows(first, unseeing_statistics_, 0);
  step.memory.add_array("workspace", core::Role::updated, workspace());
  return step;
}

Step<SinksFamily> Call::sinks() const {
  const core::BackwardProblem& p = cropped_.problem;
  const auto rows = [](std::int64_t q_len) { return core::round_up(q_len, query_padding); };
  return sinks_step(
      p, {statistics_, unseeing_statistics_, rows(p.q_len()), rows(cropped_.unseeing_queries), p.batch()},
      workspace());
}

Step<Family> Call::products(const BackwardVariant& variant) const {
  const core::BackwardProblem& p = cropped_.problem;
  const bool keys = variant.is_of_keys();
  BackwardArguments args = make_arguments(p, statistics_);
  args.dk = dk(), args.dv = dv();
  const int splits = keys ? choice_.splits : 1;
  args.splits = {core::Divisor(splits), splits * static_cast<int>(p.kv_heads()), kept_.key_blocks};
  args.group = core::Divisor(static_cast<int>(p.group()) / splits);
  if (variant.adds_dq()) {
    args.order = ring_.order;
    args.ring = {dq_sums_, counters_ + 1, counters_, core::Divisor(ring_.heads), {}, 0};
  } else if (keys) {
    args.order = make_key_order(with_splits(p, choice_.splits), choice_, sm_count_);
  } else {
    args.schedule = make_free_schedule(TileShape::of(p, variant, choice_.cached_bytes), sm_count_);
  }
  const int positions = keys ? args.order.positions() : args.schedule.positions();
  return products_step(p,
                       {variant, args, blocks_for(variant, positions, sm_count_), ring_.parts, workspace()});
}

float* Call::kept(std::size_t offset) const {
  return kept_.elements == 0 ? nullptr : reinterpret_cast<float*>(static_cast<char*>(workspace_) + offset);
}

GradientOutput Call::dk() const {
  const core::BackwardProblem& p = cropped_.problem;
  return {core::TensorView::of(p.dk), kept(layout_.kept_dk)};
}

GradientOutput Call::dv() const { return {core::TensorView::of(cropped_.problem.dv), kept(layout_.kept_dv)}; }

Step<CombineFamily> Call::combine() const {
  const core::BackwardProblem& p = cropped_.problem;
  const int heads = static_cast<int>(p.kv_heads()), all_heads = heads * static_cast<int>(p.batch());
  Step<CombineFamily> step{{{choice_.keys.operand, choice_.keys.head_dim},
                            2 * all_heads * kept_.key_blocks * (choice_.keys.head_dim / kept_columns),
                            {dk(),
                             dv(),
                             {core::Divisor(choice_.splits), choice_.splits * heads, kept_.key_blocks},
                             core::Divisor(kept_.key_blocks),
                             core::Divisor(heads),
                             core::Divisor(all_heads),
                             static_cast<int>(p.k_len()),
                             static_cast<int>(p.head_dim()),
                             p.scale}},
                           {}};
  step.memory.add_array("workspace", core::Role::input, workspace());
  step.memory.add("dk", core::Role::output, p.dk);
  step.memory.add("dv", core::Role::output, p.dv);
  return step;
}

Step<ClearFamily> Call::clear(const char* name, const core::Tensor& gradient, std::int64_t rows) const {
  constexpr int warps = 4;
  const std::int64_t heads = gradient.shape[2];
  const auto count = static_cast<int>(gradient.shape[0] * rows * heads);
  Step<ClearFamily> step{
      {{},
       static_cast<int>(core::ceil_div(count, warps)),
       {core::TensorView::of(gradient), core::Divisor(static_cast<int>(std::max<std::int64_t>(heads, 1))),
        core::Divisor(static_cast<int>(std::max<std::int64_t>(rows, 1))), count,
        static_cast<int>(gradient.shape[3])}},
      {}};
  step.memory.add(name, core::Role::updated, gradient);
  return step;
}

core::TensorList memory_of(const core::BackwardProblem& problem, const Choice& choice, void* workspace) {
  core::TensorList list = tensors_of(problem);
  list.add_array("workspace", core::Role::output,
                 core::Region::of(workspace, workspace_bytes(problem, choice)));
  return list;
}

core::Status check_tensors(const core::BackwardProblem& problem) {
  for (auto [name, tensor] : {std::pair{"q", &problem.q},
                              {"k", &problem.k},
                              {"v", &problem.v},
                              {"o", &problem.o},
                              {"dout", &problem.dout},
                              {"dq", &problem.dq},
                              {"dk", &problem.dk},
                              {"dv", &problem.dv}}) {
    if (core::Status s = hw::check_tensor(name, *tensor); !s.ok()) return s;
  }
  return {};
}

core::Status check_rows(std::int64_t padded_q_rows, std::int64_t padded_k_rows) {
  constexpr std::int64_t most_rows = max_tiles / (part_box_rows * 2) * part_rows;
  if (padded_q_rows < most_rows && padded_k_rows < most_rows) return {};
  return {TANDEM_UNSUPPORTED, "batch * heads * (length + 128) exceeds 2^28 rows; split the batch"};
}

core::Status supported(const core::BackwardProblem& problem) {
  const Choice choice = choose(problem);
  if (!choice.found) return no_variant(problem);
  if (core::Status s = check_tensors(problem); !s.ok()) return s;
  if (problem.varlen.given) return varlen_supported(problem);
  return check_rows(problem.batch() * problem.q_heads() * (problem.q_len() + query_padding),
                    problem.batch() * problem.q_heads() * (problem.k_len() + query_padding));
}

std::size_t workspace_bytes(const core::BackwardProblem& problem) {
  return workspace_bytes(problem, choose(problem));
}

std::size_t workspace_bytes(const core::BackwardProblem& problem, const Choice& choice) {
  return problem.varlen.given ? varlen_layout(problem, choice).end : layout_of(problem, choice).end;
}

}  // namespace tandem::backward
