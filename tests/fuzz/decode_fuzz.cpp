// Steps of tandem_decode over caches whose lengths, page numbers and indices are anything, and spoiled ones.
// A step as it was drawn is valid and has to give what tandem.h says (oracle_*.h) of each sequence, and
// writes its outputs and what it appends. Whatever was spoiled, a step writes no more than these.
#include <algorithm>
#include <cmath>

#include "tests/fuzz/decode_call.h"
#include "tests/fuzz/oracle_eight_bit.h"
#include "tests/fuzz/oracle_rotary.h"

namespace tandem::fuzz {
namespace {

/// One half of a cache, and what is appended to it.
struct Half {
  const tandem_tensor &cache, &scales, &added;
  bool turns, spreads;  ///< by a rotation, which is rounded to q's dtype, and by the Hadamard matrix
  /// Of an element of a row that is appended, beside the largest of the row.
  double error() const {
    const double turned = turns ? tolerance_of(added.dtype) / 2 + error_of_scores : 0;
    return spreads ? (turned + error_of_scores) * std::sqrt(static_cast<double>(added.shape[3])) : turned;
  }
};
Half keys_of(const DecodeCall& call) {
  return {call.cache.k, call.scales.k, call.args.k_new, call.args.rotary != nullptr, call.hadamard()};
}
Half values_of(const DecodeCall& call) {
  return {call.cache.v, call.scales.v, call.args.v_new, false, false};
}

/// A row of q or k_new at its position in the sequence, as scores have it.
Numbers placed(const DecodeCall& call, const Numbers& row, std::int64_t position) {
  const Numbers own = call.args.rotary == nullptr ? row : turned(row, *call.args.rotary, position);
  return call.hadamard() ? times_hadamard(own, call.scales.seed) : own;
}

/// What a token's elements are multiplied by.
double scale_of(const DecodeCall& call, const Half& half, std::int64_t b, const TokenPlace& at,
                std::int64_t h) {
  if (call.args.scales == nullptr) return 1;
  return call.scales_of_tokens() ? value(half.scales, row_at(half.scales, at.entry, at.row, h), 0)
                                 : scale_at(half.scales, b, 0, h);
}

/// What a token of a cache stands for: 0 where it does not exist.
Numbers read_token(const DecodeCall& call, const Half& half, std::int64_t b, std::int64_t token,
                   std::int64_t h) {
  const TokenPlace at = place_of(call, b, token);
  if (!at.exists) return Numbers(static_cast<std::size_t>(half.cache.shape[3]));
  Numbers row = read_row(half.cache, at.entry, at.row, h);
  const double scale = call.eight_bit() ? scale_of(call, half, b, at, h) : 1;
  for (double& x : row) x *= scale;
  return row;
}

Sequence sequence_of(const DecodeCall& call, std::int64_t b) {
  const tandem_decode_args& args = call.args;
  Sequence all;
  all.queries = args.q.shape[1], all.keys = call.length(b) + call.added();
  all.columns = call.cache.v.shape[3];
  all.head_dim = args.q.shape[3] + (args.qv.data == nullptr ? 0 : all.columns);
  all.group = args.q.shape[2] / call.cache.k.shape[2];
  all.q = [&call, b, first = all.keys - all.queries](std::int64_t i, std::int64_t h) {
    return placed(call, read_row(call.args.q, b, i, h), first + i);
  };
  if (args.qv.data != nullptr)
    all.qv = [&args, b](std::int64_t i, std::int64_t h) { return read_row(args.qv, b, i, h); };
  all.k = [&call, b](std::int64_t token, std::int64_t h) {
    return read_token(call, keys_of(call), b, token, h);
  };
  all.v = [&call, b](std::int64_t token, std::int64_t h) {
    return read_token(call, values_of(call), b, token, h);
  };
  all.scale = args.scale, all.softcap = args.softcap, all.mask = args.mask;
  all.sinks = args.sinks;
  if (args.alibi_slopes != nullptr) all.slopes = args.alibi_slopes + b * args.alibi_stride;
  if (args.tree != nullptr) all.tree = args.tree + b * all.queries;
  return all;
}

/// Elements of the dtype of q: as they were, but for a rotation's rounding.
void compare_appended(const Half& half, const TokenPlace& at, std::int64_t h, const Numbers& expected) {
  const double largest = largest_of(expected), unit = tolerance_of(half.cache.dtype) / 2;
  if (half.turns && !(largest < largest_fp16)) return;
  const Numbers row = read_row(half.cache, at.entry, at.row, h);
  for (std::size_t e = 0; e < row.size(); ++e) {
    const double error = half.turns ? unit * std::abs(expected[e]) + error_of_scores * largest : 0;
    if (!near(row[e], expected[e], 0, error)) fail("an appended row is wrong");
  }
}

/// Of 8 bits, over the scale that was given, or that was found: the least power of two.
void compare_eight_bit(const DecodeCall& call, const Half& half, std::int64_t b, const TokenPlace& at,
                       std::int64_t h, const Numbers& expected) {
  const tandem_dtype dtype = half.cache.dtype;
  const double scale = scale_of(call, half, b, at, h), largest = largest_of(expected),
               error = 2 * half.error() * largest;
  if ((error != 0 || call.scales_of_tokens()) && !(largest < largest_fp16)) return;
  if (!(scale > 0 && std::isfinite(scale))) fail("a scale is no number above 0");
  if (call.scales_of_tokens() && !is_scale_for(dtype, scale, largest, error))
    fail("an appended token's scale is wrong");
  const Numbers row = read_row(half.cache, at.entry, at.row, h);
  for (std::size_t e = 0; e < row.size(); ++e) {
    const double quotient = expected[e] / scale, reach = std::min(std::abs(quotient), largest_element(dtype));
    if (!is_rounded(dtype, row[e], quotient, error_of_scores * reach + error / scale))
      fail("an appended row of 8 bits is wrong");
  }
}

/// Compares what sequence b has appended to one half of its cache.
void compare_appended(const DecodeCall& call, const Half& half, std::int64_t b) {
  for (std::int64_t i = 0; i < call.added(); ++i) {
    const std::int64_t token = call.length(b) + i;
    const TokenPlace at = place_of(call, b, token);
    if (!at.exists) continue;
    for (std::int64_t h = 0; h < half.cache.shape[2]; ++h) {
      Numbers expected = read_row(half.added, b, i, h);
      if (&half.cache == &call.cache.k) expected = placed(call, expected, token);
      if (call.eight_bit())
        compare_eight_bit(call, half, b, at, h, expected);
      else
        compare_appended(half, at, h, expected);
    }
  }
}

/// What sequence b has appended becomes what stood there before.
void put_back_appended(DecodeCall& call, const Arena& before, std::int64_t b) {
  for (std::int64_t i = 0; i < call.added(); ++i) {
    const TokenPlace at = place_of(call, b, call.length(b) + i);
    std::vector<const tandem_tensor*> tensors = {&call.cache.k, &call.cache.v};
    if (call.scales_of_tokens()) tensors.push_back(&call.scales.k), tensors.push_back(&call.scales.v);
    for (const tandem_tensor* t : tensors)
      for (std::int64_t h = 0; at.exists && h < t->shape[2]; ++h)
        put_back(call.arena, before, row_at(*t, at.entry, at.row, h), row_bytes(*t));
  }
}

void count_features(const DecodeCall& call) {
  const tandem_decode_args& args = call.args;
  const bool appends = call.added() > 0, eight_bit = call.eight_bit(), rotary = args.rotary != nullptr;
  bool full = false;
  for (std::int64_t b = 0; b < call.batch(); ++b) full |= call.length(b) + call.added() == call.capacity();
  count_feature("a batch of 0", call.batch() == 0);
  count_feature("a full cache", full);
  count_feature("pages", call.paged());
  count_feature("batch_index of rows of the page table", call.paged() && args.cache->batch_index != nullptr);
  count_feature("batch_index of entries", !call.paged() && args.cache->batch_index != nullptr);
  const bool other_columns = call.cache.v.shape[3] != args.q.shape[3],
             in_keys = other_columns && call.cache.v.data == call.cache.k.data;
  count_feature("other columns of values", other_columns && !in_keys);
  count_feature("values in the keys", in_keys);
  count_feature("append values in the keys", in_keys && appends);
  count_feature("head dims above 256", args.q.shape[3] > 256);
  count_feature("append", appends);
  count_feature("8 bits", eight_bit && !appends);
  count_feature("8 bits without scales", eight_bit && args.scales == nullptr);
  count_feature("8 bits with scales of sequences and heads",
                eight_bit && args.scales != nullptr && call.scales.per_token == 0);
  const bool integers = number(call.cache.k.dtype) == TANDEM_INT8;
  count_feature("int8", integers && !appends);
  count_feature("append to int8 with scales of tokens", integers && appends && call.scales_of_tokens());
  count_feature("append to int8 by given scales", integers && appends && !call.scales_of_tokens());
  count_feature("hadamard", call.hadamard());
  count_feature("append with hadamard and rotary", appends && call.hadamard() && rotary);
  count_feature("queries that meet values", args.qv.data != nullptr);
  count_feature("queries that meet values of 8 bits", args.qv.data != nullptr && eight_bit);
  count_feature("8 bits with scales of tokens", eight_bit && call.scales_of_tokens());
  count_feature("scales between rows", call.scales_of_tokens() && call.inline_scales);
  count_feature("append to 8 bits with scales of tokens", appends && call.scales_of_tokens());
  count_feature("append to 8 bits with rotary", appends && eight_bit && rotary);
  count_feature("append to 8 bits by given scales", appends && eight_bit && !call.scales_of_tokens());
  count_feature("append zeros to 8 bits with scales of tokens",
                call.appends_zeros && call.scales_of_tokens());
  count_feature("append with rotary", appends && rotary && !eight_bit);
  call.angles.count_features(rotary, args.q.dtype);
  count_feature("more than three queries", args.q.shape[1] > 3);
  count_features_of_scores(args, call.batch() > 0);
  count_feature("sinks, slopes, tree and 8 bits", eight_bit && args.sinks && args.alibi_slopes && args.tree);
  count_feature("fixed splits", args.split_size > 0);
  count_feature("plan", call.planned);
  count_feature("groups that share prefixes", args.prefixes != nullptr && call.prefixes.groups > 0);
  count_feature("NaN where nobody reads", call.poisoned);
}

/// The cache after the step holds what was appended; o and lse are those of the keys that it holds then.
void compare(const DecodeCall& call) {
  const tandem_decode_args& args = call.args;
  const double rotation = args.rotary != nullptr ? tolerance_of(args.q.dtype) : 0;
  const double spread = call.hadamard() ? static_cast<double>(args.q.shape[3]) : 1;
  const Compared compared{args.o, args.lse, (error_of_scores + rotation) * spread};
  for (std::int64_t b = 0; b < call.batch(); ++b) {
    compare_appended(call, keys_of(call), b);
    compare_appended(call, values_of(call), b);
    const Sequence sequence = sequence_of(call, b);
    for (std::int64_t i = 0; i < args.q.shape[1]; ++i)
      for (std::int64_t h = 0; h < args.q.shape[2]; ++h)
        if (!overflows(sequence.q(i, h), args.q.dtype) &&
            !(call.hadamard() && !(largest_of(sequence.q(i, h)) < largest_sum)))
          compared.row(b, i, h, attend(sequence, i, h));
  }
  count_features(call);
}

/// A plan for the step: the backends of the host need no bytes of it.
void make_plan(DecodeCall& call, const Lent& plan) {
  std::size_t bytes = 1;
  if (tandem_decode_plan_size(&call.args, &bytes) != TANDEM_OK || bytes != 0)
    fail("the plan's size is wrong");
  if (tandem_decode_plan(&call.args, plan.data(), 256, nullptr) != TANDEM_OK) fail("a plan is refused");
  call.args.plan = plan.data();
}

void run_spoiled(DecodeCall& call, const Arena& before, const Lent& workspace) {
  if (tandem_decode(&call.args, workspace.data(), workspace.bytes(), nullptr) != TANDEM_OK) return;
  restore(call.arena, before, call.args.o);
  if (call.args.lse.data != nullptr) restore(call.arena, before, call.args.lse);
  if (call.added() == 0) return;
  for (const tandem_tensor* t : {&call.cache.k, &call.cache.v}) restore(call.arena, before, *t);
  if (!call.scales_of_tokens()) return;
  for (const tandem_tensor* t : {&call.scales.k, &call.scales.v}) restore(call.arena, before, *t);
}

void run_valid(DecodeCall& call, const Arena& before, const Lent& workspace) {
  if (tandem_decode(&call.args, workspace.data(), workspace.bytes(), nullptr) != TANDEM_OK)
    fail(call, "a valid step is refused");
  compare(call);
  restore(call.arena, before, call.args.o);
  if (call.args.lse.data != nullptr) restore(call.arena, before, call.args.lse);
  for (std::int64_t b = 0; b < call.batch(); ++b) put_back_appended(call, before, b);
}

}  // namespace

void run(DecodeCall& call, std::size_t changes) {
  const bool spoiled = changes > 0;
  const Lent plan(256);
  if (!spoiled && call.planned) make_plan(call, plan);
  std::size_t bytes = 0;
  const tandem_status asked = tandem_decode_workspace(&call.args, &bytes);
  if (!spoiled && asked != TANDEM_OK) fail(call, "the workspace of a valid step is refused");
  if (asked != TANDEM_OK || !may_run(call)) return;
  const Arena before = call.arena;
  const Lent workspace(bytes);
  if (workspace.bytes() > 0) std::memset(workspace.data(), 0, workspace.bytes());
  (spoiled ? run_spoiled : run_valid)(call, before, workspace);
  if (call.arena != before) fail(call, "memory was written that is no output's");
}

}  // namespace tandem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tandem::fuzz::try_input<tandem::fuzz::DecodeCall>(data, size);
}
