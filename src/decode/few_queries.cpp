#include "decode/few_queries.h"

#include "decode/plan.h"

namespace tandem::decode {
namespace {

/// More rows of a key/value head would read its keys too often.
constexpr std::int64_t most_rows = 1024;
/// Of all sequences and heads, so that their blocks can be counted.
constexpr std::int64_t most_keys = std::int64_t{1} << 30;

}  // namespace

core::DecodeProblem step_over(const core::ForwardProblem& p) {
  const core::Varlen& varlen = p.varlen;
  core::DecodeProblem step{};
  step.q = p.q, step.k_cache = p.k, step.v_cache = p.v, step.o = p.o, step.lse = p.lse;
  step.page_table = varlen.page_table, step.page_table_stride = varlen.page_table_stride;
  step.pages_per_sequence = varlen.pages_per_sequence;
  step.mask = p.mask, step.scale = p.scale, step.softcap = p.softcap, step.sinks = p.sinks;
  step.kernel = TANDEM_DECODE_AUTO;
  step.split_size = varlen.split_size;
  return step;
}

std::optional<core::DecodeProblem> step_of(const core::ForwardProblem& p) {
  if (p.needs_list() || p.blocks.given() || p.value_dim() != p.head_dim() || core::is_8_bit(p.dtype()) ||
      p.dtype() == TANDEM_FP32 || !p.is_free() || p.group() * p.q_len() > most_rows || p.k_len() == 0)
    return std::nullopt;
  const core::DecodeProblem step = step_over(p);
  // What TMA takes the forward's checks have seen.
  if (choose_variant(step) == nullptr || p.batch() * p.kv_heads() * p.k_len() > most_keys)
    return std::nullopt;
  return step;
}

}  // namespace tandem::decode
