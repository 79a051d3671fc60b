#include "backward/steps.h"

#include <algorithm>
#include <numbers>

#include "backward/sums.h"
#include "core/integers.h"

namespace tandem::backward {
namespace {

/// The ring as a tensor of fp32 rows of 32 that parts are boxes of.
core::Tensor sums_tensor(std::int64_t parts, void* sums) {
  const std::int64_t rows = parts * part_box_rows;
  return {sums, TANDEM_FP32, {1, rows, 1, part_box_columns}, {0, part_box_columns, 0, 1}};
}

}  // namespace

int blocks_for(const BackwardVariant& variant, int tiles, int sm_count) {
  if (variant.adds_dq()) return std::min(tiles, sm_count);
  return variant.is_of_keys() || tiles == 0 ? tiles : tiles + 1;
}

Extent extent_of(const core::BackwardProblem& problem) {
  return {static_cast<int>(problem.q_len()),
          static_cast<int>(problem.k_len()),
          static_cast<int>(problem.q_heads()),
          static_cast<int>(problem.head_dim()),
          static_cast<int>(core::round_up(problem.q_len(), query_padding)),
          problem.mask.narrowed<std::int32_t>()};
}

BackwardArguments make_arguments(const core::BackwardProblem& problem, const Statistics& statistics) {
  BackwardArguments args{};
  args.dq = core::TensorView::of(problem.dq);
  args.statistics = statistics;
  args.extent = extent_of(problem);
  args.scale = problem.scale;
  args.scale_log2 = (problem.softcap > 0 ? problem.softcap : problem.scale) * std::numbers::log2e_v<float>;
  args.score_to_cap = problem.softcap > 0 ? problem.scale / problem.softcap : 0.f;
  return args;
}

Step<Family> products_step(const core::BackwardProblem& p, const Products& products) {
  constexpr int warpgroup_rows = 64;
  const BackwardVariant& variant = products.variant;
  const bool keys = variant.is_of_keys(), packed = variant.is_varlen(),
             keeps = products.arguments.dk.kept != nullptr;
  Step<Family> step{{variant, products.blocks, products.arguments}, {}};
  const hw::BoxRows query_rows{keys ? variant.block_m : warpgroup_rows, 1, packed},
      key_rows{keys ? warpgroup_rows : variant.block_n, 1, packed};
  step.record.request({"q", p.q, query_rows, &BackwardArguments::q});
  step.record.request({"dout", p.dout, query_rows, &BackwardArguments::dout});
  step.record.request({"k", p.k, key_rows, &BackwardArguments::k});
  step.record.request({"v", p.v, key_rows, &BackwardArguments::v});
  if (variant.adds_dq()) {
    step.record.request({"workspace",
                         sums_tensor(products.parts, products.arguments.ring.sums),
                         {part_box_rows},
                         &BackwardArguments::dq_sums});
    step.record.request({"dq", p.dq, {part_rows, 1, packed}, &BackwardArguments::dq_rows});
  }
  step.memory.add("q", core::Role::input, p.q);
  step.memory.add("k", core::Role::input, p.k);
  step.memory.add("v", core::Role::input, p.v);
  step.memory.add("dout", core::Role::input, p.dout);
  const bool writes = variant.adds_dq() || (keys && keeps);
  step.memory.add_array("workspace", writes ? core::Role::updated : core::Role::input, products.workspace);
  if (keys && !keeps) {
    step.memory.add("dk", core::Role::output, p.dk);
    step.memory.add("dv", core::Role::output, p.dv);
  }
  if (!keys || variant.adds_dq()) step.memory.add("dq", core::Role::output, p.dq);
  return step;
}

PrepareArguments prepare_arguments(const core::BackwardProblem& p, const Statistics& statistics) {
  PrepareArguments args{};
  args.o = core::TensorView::of(p.o), args.dout = core::TensorView::of(p.dout);
  args.lse = core::TensorView::of(p.lse), args.dlse = core::TensorView::of(p.dlse);
  args.statistics = statistics;
  args.extent = extent_of(p);
  return args;
}

Step<PrepareFamily> prepare_step(const core::BackwardProblem& p, const RowsVariant& variant, int blocks,
                                 const PrepareArguments& arguments) {
  Step<PrepareFamily> step{{variant, blocks, arguments}, {}};
  step.memory.add("o", core::Role::input, p.o);
  step.memory.add("dout", core::Role::input, p.dout);
  step.memory.add("lse", core::Role::input, p.lse);
  if (p.dlse.data != nullptr) step.memory.add("dlse", core::Role::input, p.dlse);
  return step;
}

Step<SinksFamily> sinks_step(const core::BackwardProblem& p, const SinkRows& rows,
                             const core::Region& workspace) {
  const auto heads = static_cast<int>(p.q_heads());
  Step<SinksFamily> step{
      {{},
       heads,
       {rows.seeing, rows.unseeing, static_cast<int>(rows.seeing_rows), static_cast<int>(rows.unseeing_rows),
        static_cast<int>(rows.batch), heads, p.sinks, p.dsinks}},
      {}};
  const auto of_heads = [heads](const float* data) {
    return core::Region::of(data, sizeof *data, 1, heads, 0);
  };
  step.memory.add_array("workspace", core::Role::input, workspace);
  step.memory.add_array("sinks", core::Role::input, of_heads(p.sinks));
  step.memory.add_array("dsinks", core::Role::output, of_heads(p.dsinks));
  return step;
}

}  // namespace tandem::backward
