// Calls of tandem_forward over sequences of different lengths, packed, in pages or in entries, whose lengths
// and page numbers are often anything, and spoiled ones. A call as it was drawn is valid and has to give what
// tandem.h says (oracle_*.h) of each sequence, and writes its outputs and what it appends. Whatever was
// spoiled, a call writes no more than these.
#include <algorithm>
#include <cmath>

#include "tests/fuzz/oracle_eight_bit.h"
#include "tests/fuzz/oracle_rotary.h"
#include "tests/fuzz/varlen_call.h"

namespace tandem::fuzz {
namespace {

/// A row of k or v, 0 where its page or entry does not exist.
ReadRow rows_of_keys(const VarlenCall& call, const tandem_tensor& t, std::int64_t i, std::int64_t padding) {
  return [&call, &t, i, padding](std::int64_t key, std::int64_t head) {
    const KeyPlace at = place_of(call, i, padding + key);
    return at.exists ? read_row(t, at.entry, at.row, head) : Numbers(static_cast<std::size_t>(t.shape[3]));
  };
}

Sequence sequence_of(const VarlenCall& call, std::int64_t i) {
  const tandem_forward_args& args = call.args;
  const Extent extent = extent_of(call, i);
  Sequence all;
  all.queries = extent.queries.count, all.keys = extent.keys;
  all.head_dim = args.q.shape[3], all.columns = args.v.shape[3];
  all.group = args.q.shape[2] / args.k.shape[2];
  const std::int64_t first_position = extent.padding + extent.keys - extent.queries.count;
  all.q = [&call, rows = extent.queries, first_position](std::int64_t query, std::int64_t head) {
    const Numbers row = read_row(call.args.q, rows.entry, rows.first + query, head);
    return call.varlen.rotary == nullptr ? row : turned(row, *call.varlen.rotary, first_position + query);
  };
  all.k = rows_of_keys(call, args.k, i, extent.padding);
  all.v = rows_of_keys(call, args.v, i, extent.padding);
  all.scale = args.scale, all.softcap = args.softcap, all.mask = args.mask;
  all.sinks = args.sinks;
  if (args.alibi_slopes != nullptr) all.slopes = args.alibi_slopes + i * args.alibi_stride;
  if (args.tree != nullptr)
    all.tree = args.tree + extent.queries.entry * args.q.shape[1] + extent.queries.first;
  if (args.block_list != nullptr)
    all.lists = [&call, i](std::int64_t query, std::int64_t head, std::int64_t key) {
      return call.lists.show(i, query, head, key);
    };
  return all;
}

/// As it was, but for a rotation's rounding.
void compare_row(const tandem_tensor& cache, const KeyPlace& at, std::int64_t h, const Numbers& expected,
                 bool turns) {
  const double largest = largest_of(expected), unit = tolerance_of(cache.dtype) / 2;
  if (turns && !(largest < largest_fp16)) return;
  const Numbers row = read_row(cache, at.entry, at.row, h);
  for (std::size_t e = 0; e < row.size(); ++e)
    if (!near(row[e], expected[e], 0, turns ? unit * std::abs(expected[e]) + error_of_scores * largest : 0))
      fail("an appended row is wrong");
}

/// Visits what sequence i appends as (place, its row of k_new, its row of the sequence).
template <typename Visit>
void for_each_added(const VarlenCall& call, std::int64_t i, const Visit& visit) {
  const Extent extent = extent_of(call, i);
  for (std::int64_t n = 0; n < extent.added.count; ++n)
    if (const KeyPlace at = place_of(call, i, extent.before + n); at.exists)
      visit(at, Rows{extent.added.entry, extent.added.first + n, 1}, extent.before + n);
}

void compare_appended(const VarlenCall& call, std::int64_t i) {
  const tandem_varlen& varlen = call.varlen;
  for_each_added(call, i, [&](const KeyPlace& at, const Rows& from, std::int64_t row) {
    for (std::int64_t h = 0; h < call.args.k.shape[2]; ++h) {
      const Numbers key = read_row(varlen.k_new, from.entry, from.first, h);
      const bool turns = varlen.rotary != nullptr;
      compare_row(call.args.k, at, h, turns ? turned(key, *varlen.rotary, row) : key, turns);
      compare_row(call.args.v, at, h, read_row(varlen.v_new, from.entry, from.first, h), false);
    }
  });
}

void count_features_of_keys(const VarlenCall& call) {
  const tandem_varlen& varlen = call.varlen;
  bool added = false, lost = false, padded = false;
  for (std::int64_t i = 0; i < varlen.batch; ++i) {
    const Extent extent = extent_of(call, i);
    added |= extent.added.count > 0;
    padded |= extent.padding > 0 && extent.keys > 0;
    if (call.appends())
      lost |= extent.added.count < (varlen.cu_seqlens_k_new == nullptr
                                        ? varlen.k_new.shape[1]
                                        : varlen.cu_seqlens_k_new[i + 1] - varlen.cu_seqlens_k_new[i]);
  }
  count_feature("packed keys", call.packed() && varlen.batch > 0);
  count_feature("pages", call.paged() && varlen.batch > 0);
  count_feature("entries", !call.packed() && !call.paged() && varlen.batch > 0);
  count_feature("batch_index", varlen.batch_index != nullptr);
  count_feature("leftpad_k", padded);
  count_feature("append to pages", added && call.paged());
  count_feature("append to entries", added && !call.paged());
  count_feature("append to entries with batch_index", added && varlen.batch_index != nullptr);
  count_feature("append behind padding, with rotary", added && padded && varlen.rotary != nullptr);
  count_feature("append packed tokens", added && varlen.cu_seqlens_k_new != nullptr);
  count_feature("append more than there is room for", lost);
  count_feature("append with rotary", added && varlen.rotary != nullptr);
  count_feature("max_seqlen_q", varlen.max_seqlen_q > 0);
  count_feature("max_seqlen_k", varlen.max_seqlen_k > 0);
  count_feature("split_size", varlen.split_size > 0);
}

void count_features(const VarlenCall& call) {
  const tandem_forward_args& args = call.args;
  const bool sequences = call.varlen.batch > 0;
  bool large_tree = false;
  for (std::int64_t i = 0; i < call.varlen.batch && args.tree != nullptr; ++i)
    large_tree |= extent_of(call, i).queries.count > 64;
  count_features_of_keys(call);
  count_feature("no sequence", !sequences);
  count_feature("packed queries", sequences && call.varlen.cu_seqlens_q != nullptr);
  call.angles.count_features(call.varlen.rotary != nullptr, args.q.dtype);
  const tandem_block_list* const list = sequences ? args.block_list : nullptr;
  count_feature("block lists", list != nullptr);
  count_feature("block lists of sequences", list != nullptr && list->batch_stride > 0);
  count_feature("block lists for a bound", list != nullptr && call.varlen.max_seqlen_q > 0);
  count_feature("other columns of v", args.v.shape[3] != args.q.shape[3]);
  count_features_of_scores(args, sequences);
  count_feature("tree of more than 64 queries", large_tree);
  count_feature("NaN where nobody reads", call.poisoned);
}

/// Compares each sequence's rows, and puts back what stood there before: other rows stay as they are.
void compare(VarlenCall& call, const Arena& before) {
  const tandem_forward_args& args = call.args;
  const double rotation = call.varlen.rotary != nullptr ? tolerance_of(args.q.dtype) : 0;
  const Compared compared{args.o, args.lse, error_of_scores + rotation};
  for (std::int64_t i = 0; i < call.varlen.batch; ++i) {
    compare_appended(call, i);
    const Rows queries = extent_of(call, i).queries;
    const Sequence sequence = sequence_of(call, i);
    for (std::int64_t row = 0; row < queries.count; ++row)
      for (std::int64_t h = 0; h < args.q.shape[2]; ++h) {
        if (!overflows(sequence.q(row, h), args.q.dtype))
          compared.row(queries.entry, queries.first + row, h, attend(sequence, row, h));
        for (const tandem_tensor* t : {&args.o, &args.lse})
          if (t->data != nullptr)
            put_back(call.arena, before, row_at(*t, queries.entry, queries.first + row, h), row_bytes(*t));
      }
  }
  for (std::int64_t i = 0; i < call.varlen.batch; ++i)
    for_each_added(call, i, [&](const KeyPlace& at, const Rows&, std::int64_t) {
      for (const tandem_tensor* t : {&args.k, &args.v})
        for (std::int64_t h = 0; h < t->shape[2]; ++h)
          put_back(call.arena, before, row_at(*t, at.entry, at.row, h), row_bytes(*t));
    });
  count_features(call);
}

/// The backends of the host need no bytes of a plan, and follow none.
void make_plan(VarlenCall& call) {
  std::size_t bytes = 1;
  if (tandem_forward_plan_size(&call.args, &bytes) != TANDEM_OK || bytes != 0)
    fail(call, "the plan's size is wrong");
  if (tandem_forward_plan(&call.args, nullptr, 0, nullptr) != TANDEM_OK) fail(call, "a plan is refused");
  call.args.plan = &call;
}

}  // namespace

void run(VarlenCall& call, std::size_t changes) {
  const bool spoiled = changes > 0;
  std::size_t bytes = 0;
  const tandem_status asked = tandem_forward_workspace(&call.args, &bytes);
  if (!spoiled && asked != TANDEM_OK) fail(call, "the workspace of a valid call is refused");
  if (asked != TANDEM_OK || !may_run(call)) return;
  const Arena before = call.arena;
  const Lent workspace(bytes);
  if (!spoiled) make_plan(call);
  const tandem_status status = tandem_forward(&call.args, workspace.data(), workspace.bytes(), nullptr);
  if (!spoiled) {
    if (status != TANDEM_OK) fail(call, "a valid call is refused");
    compare(call, before);
  } else if (status == TANDEM_OK) {
    restore(call.arena, before, call.args.o);
    if (call.args.lse.data != nullptr) restore(call.arena, before, call.args.lse);
    if (call.appends())
      for (const tandem_tensor* t : {&call.args.k, &call.args.v}) restore(call.arena, before, *t);
  }
  if (call.arena != before) fail(call, "memory was written that is no output's");
}

}  // namespace tandem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tandem::fuzz::try_input<tandem::fuzz::VarlenCall>(data, size);
}
