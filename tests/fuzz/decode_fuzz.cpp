// Steps of tandem_decode over caches whose lengths, page numbers and indices are anything, and spoiled ones.
// A step as it was drawn is valid and has to give what the oracle of the forward gives for each sequence
// gathered (forward_oracle.h). Whatever was spoiled, a step writes its outputs and what it appends, or
// nothing.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <tandem/tandem.h>

#include "tests/fuzz/forward_oracle.h"
#include "tests/fuzz/hostile.h"

namespace tandem::fuzz {
namespace {

constexpr std::int64_t sequences = 2, slots = 3;

struct Call {
  static constexpr std::size_t most_changes = 2;
  Arena arena = Arena(arena_bytes);
  std::vector<std::int32_t> lengths, page_table, batch_index;
  tandem_mask mask{};
  tandem_cache cache{};
  tandem_decode_args args{};

  std::int64_t added() const { return args.k_new.data == nullptr ? 0 : args.k_new.shape[1]; }
  std::int64_t capacity() const { return cache.k.shape[1] * (cache.page_table == nullptr ? 1 : slots); }
};

/// Often `usual`, sometimes a number that nothing has.
std::int32_t mostly(Draws& draws, std::int64_t usual) {
  return draws.below(8) == 0 ? draws.one_of(wild) : static_cast<std::int32_t>(usual);
}

/// Pages of their own for each sequence, so that none appends where another reads; some do not exist.
void make_places(Call& step, Draws& draws, bool paged) {
  for (std::int64_t i = 0; i < sequences; ++i)
    step.lengths.push_back(mostly(draws, draws.between(0, step.cache.k.shape[1] * 2)));
  step.cache.lengths = step.lengths.data();
  if (!paged) return;
  for (std::int64_t i = 0; i < sequences * slots; ++i) step.page_table.push_back(mostly(draws, i));
  step.cache.page_table = step.page_table.data();
  step.cache.page_table_stride = step.cache.pages_per_sequence = slots;
  if (draws.below(3) != 0) return;
  step.batch_index = {1, 0};
  step.cache.batch_index = step.batch_index.data();
}

void make_valid(Call& step, Draws& draws) {
  const std::int64_t kv_heads = draws.between(1, 2), group = draws.between(1, 3), d = 8 * draws.between(1, 2);
  const std::int64_t q_len = draws.between(1, 3), tokens = draws.between(4, 9), added = draws.between(0, 3);
  const bool paged = draws.below(2) == 0;
  const tandem_dtype dtype = draws.one_of({TANDEM_BF16, TANDEM_FP16, TANDEM_FP32});
  tandem_decode_args& args = step.args;
  args.struct_size = sizeof args;
  args.backend = draws.one_of({TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE, TANDEM_BACKEND_AUTO});
  std::size_t begin = 0;
  const std::int64_t entries = sequences * (paged ? slots : 1);
  args.q = place(step.arena, dtype, {sequences, q_len, kv_heads * group, d}, draws, begin);
  step.cache.struct_size = sizeof step.cache;
  step.cache.k = place(step.arena, dtype, {entries, tokens, kv_heads, d}, draws, begin);
  step.cache.v = place(step.arena, dtype, {entries, tokens, kv_heads, d}, draws, begin);
  args.cache = &step.cache;
  if (added > 0) {
    args.k_new = place(step.arena, dtype, {sequences, added, kv_heads, d}, draws, begin);
    args.v_new = place(step.arena, dtype, {sequences, added, kv_heads, d}, draws, begin);
  }
  args.o = place(step.arena, dtype, {sequences, q_len, kv_heads * group, d}, draws, begin);
  args.lse = place(step.arena, TANDEM_FP32, {sequences, q_len, kv_heads * group, 1}, draws, begin);
  make_places(step, draws, paged);
  args.scale = draws.one_of({0.0f, 0.3f});
  args.softcap = draws.one_of({0.0f, 20.0f});
  step.mask = {sizeof(tandem_mask), TANDEM_MASK_WINDOW, draws.between(-1, 20), draws.between(-1, 2)};
  args.mask = draws.below(2) == 0 ? nullptr : &step.mask;
}

void change(Call& step, Draws& draws) {
  static constexpr Part parts[] = {Part::shape,  Part::shape, Part::stride,
                                   Part::stride, Part::data,  Part::dtype};
  tandem_decode_args& args = step.args;
  tandem_tensor* const tensors[] = {&args.q,     &step.cache.k, &step.cache.v, &args.k_new,
                                    &args.v_new, &args.o,       &args.lse};
  tandem_tensor& tensor = *draws.one_of(tensors);
  const std::size_t what = draws.below(std::size(parts) + 2);
  if (what < std::size(parts)) return change(tensor, parts[what], step.arena, draws);
  if (what > std::size(parts)) return change_window(step.mask, draws);
  args.split_size = odd_number(draws);
}

std::byte* at(const tandem_tensor& t, std::int64_t b, std::int64_t s, std::int64_t h) {
  const auto step = [&t](int i, std::int64_t index) { return t.shape[i] == 1 ? 0 : index * t.stride[i]; };
  return static_cast<std::byte*>(t.data) +
         (step(0, b) + step(1, s) + step(2, h)) * static_cast<std::int64_t>(size_of(t.dtype));
}

/// Token `token` of sequence b in a cache, or nullptr where its page does not exist.
std::byte* token_at(const Call& step, const tandem_tensor& cache, std::int64_t b, std::int64_t token,
                    std::int64_t h) {
  const std::int64_t row = step.cache.batch_index == nullptr ? b : step.cache.batch_index[b];
  if (step.cache.page_table == nullptr) return at(cache, row, token, h);
  const std::int32_t page = step.cache.page_table[row * slots + token / cache.shape[1]];
  return page < 0 || page >= cache.shape[0] ? nullptr : at(cache, page, token % cache.shape[1], h);
}

/// One sequence as a forward call with dense keys and values.
struct Gathered {
  std::vector<std::byte> k, v;
  tandem_forward_args args{};
};

Gathered gather(const Call& step, std::int64_t b, std::int64_t keys) {
  const tandem_tensor& cache = step.cache.k;
  const std::int64_t heads = cache.shape[2], d = cache.shape[3];
  const std::size_t row_bytes = static_cast<std::size_t>(d) * size_of(cache.dtype);
  Gathered all;
  for (const auto& [memory, from] : {std::pair{&all.k, &step.cache.k}, {&all.v, &step.cache.v}}) {
    memory->resize(static_cast<std::size_t>(keys * heads) * row_bytes + 1);
    for (std::int64_t row = 0; row < keys * heads; ++row)
      if (const std::byte* token = token_at(step, *from, b, row / heads, row % heads))
        std::memcpy(memory->data() + static_cast<std::size_t>(row) * row_bytes, token, row_bytes);
  }
  all.args.q = step.args.q;
  all.args.q.data = at(step.args.q, b, 0, 0);
  all.args.q.shape[0] = 1;
  all.args.k = all.args.v = {all.k.data(), cache.dtype, {1, keys, heads, d}, {0, heads * d, d, 1}};
  all.args.v.data = all.v.data();
  all.args.mask = step.args.mask;
  all.args.scale = step.args.scale;
  all.args.softcap = step.args.softcap;
  return all;
}

/// Rows with the head dim and dtype of q that hold the same numbers, any NaN for a NaN.
bool same_row(const tandem_tensor& q, const std::byte* a, const std::byte* b) {
  for (std::int64_t e = 0; e < q.shape[3]; ++e, a += size_of(q.dtype), b += size_of(q.dtype))
    if (!near(element(q.dtype, a), element(q.dtype, b), 0)) return false;
  return true;
}

/// The cache after the step holds what was appended; o and lse are those of the keys that it holds then.
void compare(const Call& step) {
  const tandem_decode_args& args = step.args;
  const double tolerance = tolerance_of(args.o.dtype);
  for (std::int64_t b = 0; b < sequences; ++b) {
    const std::int64_t length = std::clamp<std::int64_t>(step.lengths[static_cast<std::size_t>(b)], 0,
                                                         step.capacity() - step.added());
    for (std::int64_t row = 0; row < step.added() * step.cache.k.shape[2]; ++row) {
      const std::int64_t token = row / step.cache.k.shape[2], h = row % step.cache.k.shape[2];
      const std::byte *k = token_at(step, step.cache.k, b, length + token, h),
                      *v = token_at(step, step.cache.v, b, length + token, h);
      if (k == nullptr) continue;
      if (!same_row(args.q, k, at(args.k_new, b, token, h))) fail("an appended key is wrong");
      if (!same_row(args.q, v, at(args.v_new, b, token, h))) fail("an appended value is wrong");
    }
    const Gathered sequence = gather(step, b, length + step.added());
    for (std::int64_t i = 0; i < args.q.shape[1]; ++i)
      for (std::int64_t h = 0; h < args.q.shape[2]; ++h) {
        const Result expected = attend(sequence.args, 0, i, h);
        const std::byte* o = at(args.o, b, i, h);
        for (std::size_t e = 0; e < expected.o.size(); ++e)
          if (!near(element(args.o.dtype, o + e * size_of(args.o.dtype)), expected.o[e], tolerance))
            fail("o is wrong");
        if (!near(element(TANDEM_FP32, at(args.lse, b, i, h)), expected.lse, 1e-5)) fail("lse is wrong");
      }
  }
}

/// Whether all that the step may touch lies in the arena and in its tables.
bool may_run(const Call& step) {
  const tandem_decode_args& args = step.args;
  for (const tandem_tensor* t : {&args.q, &step.cache.k, &step.cache.v, &args.o})
    if (!lies_within(step.arena, *t)) return false;
  for (const tandem_tensor* t : {&args.k_new, &args.v_new, &args.lse})
    if (t->data != nullptr && !lies_within(step.arena, *t)) return false;
  return args.q.shape[0] <= sequences && step.cache.k.shape[1] <= 100'000 && step.added() <= 100'000;
}

void run(Call& step, std::size_t changes) {
  const bool spoiled = changes > 0;
  std::size_t bytes = 0;
  const tandem_status asked = tandem_decode_workspace(&step.args, &bytes);
  if (!spoiled && asked != TANDEM_OK) fail("the workspace of a valid step is refused");
  if (asked != TANDEM_OK || !may_run(step)) return;
  const Arena before = step.arena;
  const Lent workspace(bytes);
  if (bytes > 0) std::memset(workspace.data(), 0, bytes);
  const tandem_status status = tandem_decode(&step.args, workspace.data(), bytes, nullptr);
  if (status == TANDEM_OK) {
    if (!spoiled) compare(step);
    restore(step.arena, before, step.args.o);
    if (step.args.lse.data != nullptr) restore(step.arena, before, step.args.lse);
    if (step.added() > 0)
      for (const tandem_tensor* cache : {&step.cache.k, &step.cache.v}) restore(step.arena, before, *cache);
  } else if (!spoiled) {
    fail("a valid step is refused");
  }
  if (step.arena != before) fail("memory was written that is no output's");
}

}  // namespace
}  // namespace tandem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tandem::fuzz::try_input<tandem::fuzz::Call>(data, size);
}
