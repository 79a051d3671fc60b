#include "decode/prefix_plan.h"

#include <algorithm>

#include "core/hopper.h"
#include "core/integers.h"
#include "decode/plan.h"

namespace tandem::decode {
namespace {

using core::DecodeProblem;
using core::Tensor;

/// Whether the kernels know all that the problem has besides prefixes.
bool is_served(const DecodeProblem& p) {
  const bool plain_cache = !p.eight_bit() && !p.has_qv() && p.value_dim() == p.head_dim() && p.pages() > 0 &&
                           p.capacity() > 0 && p.kv_heads() > 0;
  const bool free = p.split_size == 0 && p.plan == nullptr && p.kernel == TANDEM_DECODE_AUTO &&
                    p.block_m == 0 && p.block_n == 0;
  return plain_cache && free && p.batch() > 1 && p.mask.left == core::Mask::unlimited && p.mask.chunk == 0 &&
         !p.slopes.given() && p.tree == nullptr;
}

/// Entries of a list: one of each sequence, and those of the prefixes, the last of a group's with fewer
/// queries than it has room for.
std::int64_t most_entries(const DecodeProblem& p, std::int64_t queries) {
  const std::int64_t groups = std::min(p.prefixes.groups, p.batch() / 2);
  return p.batch() + p.batch() * p.q_len() / queries + groups;
}

}  // namespace

std::optional<std::int64_t> token_stride(const Tensor& q) {
  if (q.shape[1] == 1) return q.stride[0];
  if (q.shape[0] == 1 || q.stride[0] == q.shape[1] * q.stride[1]) return q.stride[1];
  return std::nullopt;
}

std::optional<SharedStep> shared_step_of(const DecodeProblem& p) {
  if (!p.prefixes.given() || !is_served(p)) return std::nullopt;
  SharedStep shared{p, nullptr};
  DecodeProblem& step = shared.step;
  step.k_new = step.v_new = {}, step.rotary = {}, step.prefixes = {};
  step.lengths = step.batch_index = nullptr;
  step.listed = {.given = true,
                 .sequences = p.batch(),
                 .most_queries = p.q_len(),
                 .most_keys = p.capacity(),
                 .alone = true};
  step.lists_prefixes = true;
  shared.variant = choose_variant(step);
  if (shared.variant == nullptr) return std::nullopt;
  step.listed.most_queries = shared.variant->query_rows / p.group();  // of a tile
  if (step.listed.most_queries < 2 * p.q_len()) return std::nullopt;
  step.listed.sequences = most_entries(p, step.listed.most_queries);
  return can_count_positions(step, *shared.variant) ? std::optional(shared) : std::nullopt;
}

DecodeProblem step_over(const SharedStep& shared, const DecodeProblem& p, const SharedMemory& memory) {
  DecodeProblem step = shared.step;
  const std::int64_t tokens = p.batch() * p.q_len(), heads = p.q_heads(), columns = p.value_dim();
  constexpr std::int64_t parts = 2;
  step.listed.list = memory.list;
  // Both parts have the same queries.
  step.q = {
      p.q.data, p.dtype(), {parts, tokens, heads, p.head_dim()}, {0, *token_stride(p.q), p.q.stride[2], 1}};
  step.o = {memory.o,
            TANDEM_FP32,
            {parts, tokens, heads, columns},
            {tokens * heads * columns, heads * columns, columns, 1}};
  step.lse = {memory.lse, TANDEM_FP32, {parts, tokens, heads, 1}, {tokens * heads, heads, 1, 1}};
  return step;
}

launch::Record<PrefixListFamily> make_prefix_list_record(const DecodeProblem& p, const SharedStep& shared,
                                                         const SharedMemory& memory, int step_blocks) {
  constexpr std::int64_t rows_of_block = 4 * PrefixListVariant::threads(),
                         most_clearing = core::hopper_sm_count / 2;
  const std::int64_t rows = p.batch() * p.q_len() * p.q_heads();
  const PrefixListArguments args{
      p.lengths,
      p.batch_index,
      p.prefixes.cu_sequences,
      p.prefixes.lengths,
      {p.mask.narrowed<std::int32_t>(), static_cast<int>(p.q_len()), static_cast<int>(p.new_len()),
       static_cast<int>(p.capacity()), core::Divisor(shared.variant->block_n)},
      static_cast<int>(p.batch()),
      static_cast<int>(p.prefixes.groups),
      static_cast<int>(shared.step.listed.most_queries),
      step_blocks,
      memory.list,
      memory.notes,
      memory.lse,
      static_cast<int>(rows)};
  const std::int64_t clearing = std::min(most_clearing, core::ceil_div(rows, rows_of_block));
  return {{}, static_cast<int>(1 + clearing), args};
}

}  // namespace tandem::decode
