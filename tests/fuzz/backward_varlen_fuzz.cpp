// Calls of tandem_backward over sequences of different lengths, packed or in entries, and spoiled ones. A
// call as it was drawn is valid: each sequence has the gradients that tandem.h says (oracle_backward.h), and
// rows of no sequence stay as they were. Whatever was spoiled, a call writes no more than its outputs.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/fuzz/backward_results.h"
#include "tests/fuzz/hostile.h"
#include "tests/fuzz/lengths.h"
#include "tests/fuzz/options.h"

namespace tandem::fuzz {
namespace {

struct Call {
  static constexpr std::size_t most_changes = 2;
  Arena arena = Arena(arena_bytes);
  Table cu_seqlens_q, cu_seqlens_k, used;
  std::vector<float> sinks;
  bool poisoned = false;
  tandem_mask mask{};
  tandem_varlen varlen{};
  tandem_backward_args args{};

  std::vector<tandem_tensor*> tensors() {
    return {&args.q,    &args.k,    &args.v,  &args.o,  &args.lse,
            &args.dout, &args.dlse, &args.dq, &args.dk, &args.dv};
  }
  std::vector<tandem_tensor> outputs() const { return {args.dq, args.dk, args.dv, dsinks_of(args)}; }
};

Rows queries_of(const Call& call, std::int64_t i) {
  Rows rows = rows_of_sequence(call.varlen.cu_seqlens_q, call.args.q, i);
  rows.count = bounded(rows.count, call.varlen.max_seqlen_q);
  return rows;
}

Rows keys_of_sequence(const Call& call, std::int64_t i) {
  Rows rows = rows_of_sequence(call.varlen.cu_seqlens_k, call.args.k, i);
  rows.count = bounded(rows.count, call.varlen.max_seqlen_k);
  if (call.varlen.seqused_k != nullptr)
    rows.count = std::clamp<std::int64_t>(call.varlen.seqused_k[i], 0, rows.count);
  return rows;
}

tandem_tensor take(const tandem_tensor& t, const Rows& rows) {
  tandem_tensor own = t;
  if (t.data != nullptr) own.data = row_at(t, rows.entry, rows.first, 0);
  own.shape[0] = 1, own.shape[1] = rows.count;
  return own;
}

/// The call of a sequence alone.
tandem_backward_args sequence_of(const Call& call, std::int64_t i) {
  tandem_backward_args own = call.args;
  own.varlen = nullptr;
  const Rows queries = queries_of(call, i), keys = keys_of_sequence(call, i);
  for (tandem_tensor* t : {&own.q, &own.o, &own.lse, &own.dout, &own.dlse, &own.dq}) *t = take(*t, queries);
  for (tandem_tensor* t : {&own.k, &own.v, &own.dk, &own.dv}) *t = take(*t, keys);
  return own;
}

bool may_run(Call& call) {
  const tandem_backward_args& args = call.args;
  for (const tandem_tensor* t : call.tensors())
    if (!(t == &args.dlse && t->data == nullptr) && !lies_within(call.arena, *t)) return false;
  if (args.dsinks != nullptr && !lies_within(call.arena, dsinks_of(args))) return false;
  if (args.dsinks != nullptr && args.q.shape[2] > static_cast<std::int64_t>(call.sinks.size())) return false;
  if (args.k.shape[1] > 1000 || args.q.shape[1] > 1000 || args.q.shape[2] > 100) return false;
  const Wide batch = call.varlen.batch;
  return fits(call.varlen.cu_seqlens_q, call.cu_seqlens_q, batch + 1) &&
         fits(call.varlen.cu_seqlens_k, call.cu_seqlens_k, batch + 1) &&
         fits(call.varlen.seqused_k, call.used, batch);
}

/// NaN in rows that belong to no sequence, and in keys that are not in use.
void poison(Call& call) {
  const tandem_backward_args& args = call.args;
  const auto poison_others = [&](const tandem_tensor& t, auto rows_of_own) {
    if (t.data == nullptr) return;
    for_each_row(t, [&](std::int64_t b, std::int64_t s, std::int64_t, std::byte* row) {
      for (std::int64_t i = 0; i < call.varlen.batch; ++i) {
        const Rows own = rows_of_own(call, i);
        if (own.entry == b && own.first <= s && s < own.first + own.count) return;
      }
      std::memset(row, 0xff, row_bytes(t));
    });
  };
  for (const tandem_tensor* t : {&args.q, &args.o, &args.lse, &args.dout, &args.dlse})
    poison_others(*t, queries_of);
  for (const tandem_tensor* t : {&args.k, &args.v}) poison_others(*t, keys_of_sequence);
}

void draw_options(Call& call, Draws& draws, std::int64_t heads, Placer& placer) {
  tandem_backward_args& args = call.args;
  args.scale = draws.one_of({0.0f, 0.0f, 0.3f, 1.0f});
  args.softcap = draws.one_of({0.0f, 0.0f, 0.5f, 20.0f});
  call.mask = draw_mask(draws, 30);
  args.mask = draws.below(3) == 0 ? nullptr : &call.mask;
  if (draws.below(4) == 0) call.varlen.max_seqlen_q = draws.between(1, 8);
  if (draws.below(4) == 0) call.varlen.max_seqlen_k = draws.between(1, 20);
  if (draws.below(2) == 0) return;
  call.sinks = draw_sinks(heads, placer.noise()), args.sinks = call.sinks.data();
  args.dsinks = static_cast<float*>(placer.output(TANDEM_FP32, {1, 1, 1, heads}).data);
}

void make_valid(Call& call, Draws& draws) {
  tandem_backward_args& args = call.args;
  tandem_varlen& varlen = call.varlen;
  args.struct_size = sizeof args, varlen.struct_size = sizeof varlen;
  args.backend = draws.one_of({TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE, TANDEM_BACKEND_AUTO});
  args.varlen = &varlen;
  const std::int64_t batch = draws.below(8) == 7 ? 0 : draws.between(1, 3);
  const std::int64_t kv_heads = draws.between(1, 2), heads = kv_heads * draws.between(1, 2);
  const std::int64_t d = 8 * draws.between(1, 2);
  std::int64_t q_entries = batch, k_entries = batch, q_rows = draws.between(0, 5),
               k_rows = draws.between(0, 9);
  varlen.batch = batch;
  if (draws.below(3) != 0) {
    q_entries = 1, q_rows = make_packed(call.cu_seqlens_q, batch, draws, 40);
    varlen.cu_seqlens_q = call.cu_seqlens_q.data();
  }
  if (draws.below(3) != 0) {
    k_entries = 1, k_rows = make_packed(call.cu_seqlens_k, batch, draws, 40);
    varlen.cu_seqlens_k = call.cu_seqlens_k.data();
  }
  if (draws.below(2) == 0) {
    for (std::int64_t i = 0; i < batch; ++i) call.used.push_back(mostly(draws, draws.between(0, 20)));
    varlen.seqused_k = call.used.data();
  }
  const tandem_dtype dtype = draws.one_of({TANDEM_BF16, TANDEM_FP16, TANDEM_FP32});
  Placer placer(call.arena, draws);
  const auto queries = [&] { return placer.input(dtype, {q_entries, q_rows, heads, d}); };
  const auto keys = [&] { return placer.input(dtype, {k_entries, k_rows, kv_heads, d}); };
  const auto statistic = [&] { return placer.input(TANDEM_FP32, {q_entries, q_rows, heads, 1}); };
  args.q = queries(), args.k = keys(), args.v = keys(), args.o = queries(), args.dout = queries();
  args.lse = statistic();
  if (draws.below(2) == 0) args.dlse = statistic();
  args.dq = queries(), args.dk = keys(), args.dv = keys();
  draw_options(call, draws, heads, placer);
  poison_some(call, draws, poison);
}

/// What the backward has nothing of.
void change_to_unserved(tandem_varlen& varlen, Draws& draws) {
  static constexpr std::int32_t zeros[64] = {};
  const std::int32_t** const pointers[] = {&varlen.page_table, &varlen.leftpad_k, &varlen.batch_index,
                                           &varlen.cu_seqlens_k_new};
  if (draws.below(4) == 0)
    varlen.split_size = odd_number(draws);
  else
    *draws.one_of(pointers) = zeros;
}

void change(Call& call, Draws& draws) {
  tandem_backward_args& args = call.args;
  tandem_varlen& varlen = call.varlen;
  Table* const tables[] = {&call.cu_seqlens_q, &call.cu_seqlens_k, &call.used};
  const std::int32_t** const pointers[] = {&varlen.cu_seqlens_q, &varlen.cu_seqlens_k, &varlen.seqused_k};
  std::size_t* const sizes[] = {&args.struct_size, &varlen.struct_size, &call.mask.struct_size};
  Table& table = *draws.one_of(tables);
  switch (change_one({call.tensors(), args.backend, call.arena}, 8, draws)) {
    case 0:
      return change_mask(call.mask, draws);
    case 1:
      return change_factor(args, draws);
    case 2:
      return change_size(*draws.one_of(sizes), draws, true);
    case 3:
      (draws.below(2) == 0 ? varlen.max_seqlen_q : varlen.max_seqlen_k) = odd_number(draws);
      break;
    case 4:
      varlen.batch = draws.below(4) == 0 ? odd_number(draws) : draws.between(-1, 3);
      break;
    case 5:
      if (!table.empty()) table[draws.below(table.size())] = draws.one_of(wild);
      break;
    case 6:
      *draws.one_of(pointers) = nullptr;
      break;
    case 7:
      return change_to_unserved(varlen, draws);
  }
}

void count_features(const Call& call) {
  const tandem_backward_args& args = call.args;
  const tandem_varlen& varlen = call.varlen;
  const bool sequences = varlen.batch > 0;
  bool some = false, without_queries = false, without_keys = false;
  for (std::int64_t i = 0; i < varlen.batch; ++i) {
    const std::int64_t queries = queries_of(call, i).count, keys = keys_of_sequence(call, i).count;
    some |= queries > 0 && keys > 0;
    without_queries |= queries == 0 && keys > 0, without_keys |= queries > 0 && keys == 0;
  }
  count_feature("queries and keys", some);
  count_feature("a sequence without queries", without_queries);
  count_feature("a sequence without keys", without_keys);
  count_feature("no sequence", !sequences);
  count_feature("packed queries", sequences && varlen.cu_seqlens_q != nullptr);
  count_feature("entries of queries", sequences && varlen.cu_seqlens_q == nullptr);
  count_feature("packed keys", sequences && varlen.cu_seqlens_k != nullptr);
  count_feature("entries of keys", sequences && varlen.cu_seqlens_k == nullptr);
  count_feature("seqused_k of packed keys", varlen.cu_seqlens_k != nullptr && !call.used.empty());
  count_feature("seqused_k of entries", varlen.cu_seqlens_k == nullptr && !call.used.empty());
  count_feature("max_seqlen_q", varlen.max_seqlen_q > 0);
  count_feature("max_seqlen_k", varlen.max_seqlen_k > 0);
  count_feature("dlse", args.dlse.data != nullptr);
  count_feature("dsinks", args.dsinks != nullptr);
  count_feature("causal", args.mask != nullptr && args.mask->kind == TANDEM_MASK_CAUSAL);
  count_feature("window", args.mask != nullptr && args.mask->kind == TANDEM_MASK_WINDOW);
  count_feature("softcap", args.softcap > 0);
  count_feature("NaN where nobody reads", call.poisoned);
}

void add(Gradient& sums, const Gradient& part) {
  for (std::size_t h = 0; h < sums.values.size(); ++h)
    sums.values[h] += part.values[h], sums.magnitudes[h] += part.magnitudes[h];
}

/// Compares each sequence's gradients, and puts back what stood there before: other rows stay as they are.
void compare(Call& call, const Arena& before) {
  const tandem_tensor dsinks = dsinks_of(call.args);
  const auto heads = static_cast<std::size_t>(call.args.dsinks == nullptr ? 0 : call.args.q.shape[2]);
  Gradient sums{Numbers(heads), Numbers(heads)};
  bool all_comparable = true;
  for (std::int64_t i = 0; i < call.varlen.batch; ++i) {
    const tandem_backward_args own = sequence_of(call, i);
    const Gradients expected = differentiate(own);
    if (expected.comparable) {
      compare(own.dq, expected.dq, "dq is wrong");
      compare(own.dk, expected.dk, "dk is wrong");
      compare(own.dv, expected.dv, "dv is wrong");
    }
    add(sums, expected.dsinks);
    all_comparable = all_comparable && expected.comparable;
    for (const tandem_tensor* t : {&own.dq, &own.dk, &own.dv}) restore(call.arena, before, *t);
  }
  if (call.args.dsinks != nullptr && all_comparable) compare(dsinks, sums, "dsinks are wrong");
  if (call.args.dsinks != nullptr) restore(call.arena, before, dsinks);
  if (all_comparable) count_features(call);
}

void run(Call& call, std::size_t changes) {
  const bool spoiled = changes > 0;
  std::size_t bytes = 0;
  const tandem_status asked = tandem_backward_workspace(&call.args, &bytes);
  if (!spoiled && asked != TANDEM_OK) fail(call, "the workspace of a valid call is refused");
  if (asked != TANDEM_OK || !may_run(call)) return;
  for (std::int64_t i = 0; !spoiled && i < call.varlen.batch; ++i) write_forward(sequence_of(call, i));
  const Arena before = call.arena;
  const Lent workspace(bytes);
  const tandem_status status = tandem_backward(&call.args, workspace.data(), workspace.bytes(), nullptr);
  if (!spoiled) {
    if (status != TANDEM_OK) fail(call, "a valid call is refused");
    compare(call, before);
  } else if (status == TANDEM_OK) {
    for (const tandem_tensor& output : call.outputs())
      if (output.data != nullptr) restore(call.arena, before, output);
  }
  if (call.arena != before) fail(call, "memory was written that is no output's");
}

}  // namespace
}  // namespace tandem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tandem::fuzz::try_input<tandem::fuzz::Call>(data, size);
}
