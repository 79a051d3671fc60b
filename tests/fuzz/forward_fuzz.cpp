// Hostile calls of tandem_forward, compared with an oracle of their own (oracle_*.h): what is valid gives its
// result and touches nothing else, what is not is refused and touches nothing.
#include <algorithm>
#include <cmath>

#include "tests/fuzz/forward_call.h"
#include "tests/fuzz/oracle_eight_bit.h"
#include "tests/fuzz/oracle_rules.h"

namespace tandem::fuzz {
namespace {

/// A reader of values by column.
ReadRow columns_of(const tandem_tensor& v, std::int64_t b, std::int64_t columns, std::int64_t terms) {
  return [=, &v](std::int64_t key, std::int64_t head) {
    Numbers row(static_cast<std::size_t>(columns));
    for (std::int64_t e = 0; e < terms * columns; ++e)
      row[static_cast<std::size_t>(e % columns)] += value(v, row_at(v, b, e, head), place_of_key(key));
    return row;
  };
}

/// A reader of rows of 8 bits, each times the scale of its block.
ReadRow scaled(ReadRow rows, const tandem_tensor& scales, std::int64_t block, std::int64_t b,
               std::int64_t heads_per_scale) {
  if (scales.data == nullptr) return rows;
  return [=, &scales](std::int64_t token, std::int64_t head) {
    Numbers row = rows(token, head);
    const double scale = scale_at(scales, b, block == 0 ? 0 : token / block, head / heads_per_scale);
    for (double& x : row) x *= scale;
    return row;
  };
}

/// A reader of values that stand for a vector besides.
ReadRow shifted(ReadRow rows, const tandem_tensor& shift, std::int64_t b, std::int64_t heads) {
  if (shift.data == nullptr) return rows;
  return [=, &shift](std::int64_t token, std::int64_t head) {
    Numbers row = rows(token, head);
    const Numbers own = shift_at(shift, b, head, heads);
    for (std::size_t e = 0; e < row.size(); ++e) row[e] += own[e];
    return row;
  };
}

/// Gives lse back what a shift has taken off all scores of a row.
void add_dot(Result& result, const tandem_forward_args& args, std::int64_t b, std::int64_t i,
             std::int64_t h) {
  if (args.scales == nullptr || args.scales->q_dot_k_shift.data == nullptr) return;
  const tandem_tensor& dots = args.scales->q_dot_k_shift;
  const double scale = args.scale > 0 ? args.scale : 1 / std::sqrt(static_cast<double>(args.q.shape[3])),
               more = scale * value(dots, row_at(dots, b, i, h), 0);
  result.lse += more;
  if (std::isfinite(more)) result.score_reach = std::max(result.score_reach, std::abs(more));
}

Sequence sequence_of(const ForwardCall& call, std::int64_t b) {
  const tandem_forward_args& args = call.args;
  Sequence all = entry_of(args.q, args.k, args.v, b);
  all.scale = args.scale, all.softcap = args.softcap, all.mask = args.mask, all.sinks = args.sinks;
  if (args.alibi_slopes != nullptr) all.slopes = args.alibi_slopes + b * args.alibi_stride;
  if (args.tree != nullptr) all.tree = args.tree + b * all.queries;
  if (call.by_column()) {
    all.columns = args.q.shape[3];
    all.v = columns_of(args.v, b, all.columns, call.terms());
  }
  if (args.block_list != nullptr)
    all.lists = [&call, b](std::int64_t query, std::int64_t head, std::int64_t key) {
      return call.lists.show(b, query, head, key);
    };
  if (args.scales == nullptr) return all;
  const tandem_scales& scales = *args.scales;
  const bool grouped = scales.q.shape[2] == args.k.shape[2];
  all.q = scaled(all.q, scales.q, scales.q_block, b, grouped ? all.group : 1);
  all.k = scaled(all.k, scales.k, scales.k_block, b, 1);
  all.v = shifted(scaled(all.v, scales.v, scales.v_block, b, 1), scales.v_shift, b, args.k.shape[2]);
  return all;
}

void count_features_of_eight_bit(const ForwardCall& call) {
  const bool rows = call.eight_bit() && has_elements(call.args.q) && has_elements(call.args.k),
             scaled = rows && call.args.scales != nullptr;
  const tandem_scales& scales = call.scales;
  count_feature("8 bits", rows);
  count_feature("8 bits without scales", rows && !scaled);
  count_feature("blocks of q", scaled && scales.q.data != nullptr && scales.q.shape[1] > 1);
  count_feature("blocks of k", scaled && scales.k.data != nullptr && scales.k.shape[1] > 1);
  count_feature("blocks of v", scaled && scales.v.data != nullptr && scales.v.shape[1] > 1);
  count_feature("scales of q for each head", scaled && scales.q.data != nullptr && scales.q.shape[2] > 2);
  count_feature("scales of k for each entry", scaled && scales.k.data != nullptr && scales.k.shape[0] > 1);
  const tandem_tensor &v_shift = scales.v_shift, &dots = scales.q_dot_k_shift;
  count_feature("a shift of v", scaled && v_shift.data != nullptr);
  count_feature("a shift of v for each entry", scaled && v_shift.data != nullptr && v_shift.shape[0] > 1);
  count_feature("a shift of v for each head", scaled && v_shift.data != nullptr && v_shift.shape[2] > 1);
  count_feature("a shift of k", scaled && dots.data != nullptr && call.args.lse.data != nullptr);
  const bool integers = scaled && number(call.args.q.dtype) == TANDEM_INT8;
  count_feature("integers", integers);
  count_feature("integers, values of two terms", integers && call.by_column() && call.terms() == 2);
  count_feature("values of two terms", rows && call.by_column() && call.terms() == 2);
  count_feature("values by column", rows && call.by_column());
  count_feature("values by column of many keys", rows && call.by_column() && call.args.k.shape[1] > 16);
}

void count_features(const ForwardCall& call) {
  const tandem_forward_args& args = call.args;
  const bool rows = has_elements(args.q) && has_elements(args.k);
  count_features_of_eight_bit(call);
  count_features_of_scores(args, rows);
  count_feature("rows", rows);
  count_feature("nothing to write", !has_elements(args.o));
  count_feature("no keys", has_elements(args.q) && args.k.shape[1] == 0);
  count_feature("many keys", rows && args.k.shape[1] > 16);
  count_feature("other columns of v", rows && !call.eight_bit() && args.v.shape[3] != args.q.shape[3]);
  count_feature("block lists", rows && args.block_list != nullptr);
  count_feature("block lists of each entry and head",
                rows && args.block_list != nullptr && args.block_list->batch_stride > 0 &&
                    args.block_list->head_stride > 0 && args.q.shape[0] > 1 && args.q.shape[2] > 1);
  count_feature("block lists, slopes, tree and sinks",
                rows && args.block_list && args.alibi_slopes && args.tree && args.sinks);
  count_feature("tree of more than 64 queries", rows && args.tree != nullptr && args.q.shape[1] > 64);
}

/// Compares every output, whose inputs are apart from it.
void compare(const ForwardCall& call) {
  const tandem_forward_args& args = call.args;
  const Compared compared{args.o, args.lse};
  for (std::int64_t b = 0; has_elements(args.o) && b < args.o.shape[0]; ++b) {
    const Sequence sequence = sequence_of(call, b);
    for (std::int64_t i = 0; i < args.o.shape[1]; ++i)
      for (std::int64_t h = 0; h < args.o.shape[2]; ++h) {
        Result expected = attend(sequence, i, h);
        add_dot(expected, args, b, i, h);
        compared.row(b, i, h, expected);
      }
  }
  count_features(call);
}

}  // namespace

void run(ForwardCall& call, std::size_t changes) {
  const Verdict verdict = judge(call.args);
  if (changes == 0 && verdict == Verdict::invalid && may_run(call))
    fail(call, "the oracle refuses what was drawn");
  if (verdict == Verdict::unknown || (verdict == Verdict::valid && !may_run(call))) return;
  const Arena before = call.arena;
  std::size_t bytes = 0;
  const tandem_status asked = tandem_forward_workspace(&call.args, &bytes);
  if (verdict == Verdict::valid && asked != TANDEM_OK) fail(call, "the workspace of a valid call is refused");
  const Lent workspace(bytes);
  const tandem_status status = tandem_forward(&call.args, workspace.data(), workspace.bytes(), nullptr);
  settle(call, {verdict, status, before, workspace.is_enough()}, compare);
}

}  // namespace tandem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tandem::fuzz::try_input<tandem::fuzz::ForwardCall>(data, size);
}
