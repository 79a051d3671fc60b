// Calls of tandem_forward over sequences of different lengths, packed or paged, whose lengths and page
// numbers are often anything, and spoiled ones. A call as it was drawn is valid and has to give what the
// oracle of the forward gives for each sequence gathered (forward_oracle.h). Whatever was spoiled, a call
// writes its outputs or nothing.
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

constexpr std::int64_t most_sequences = 3, slots = 4;

struct Call {
  static constexpr std::size_t most_changes = 2;
  Arena arena = Arena(arena_bytes);
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k, used, page_table;
  tandem_mask mask{};
  tandem_varlen varlen{};
  tandem_forward_args args{};
};

/// Lengths one behind the other; returns their end.
std::int64_t make_packed(std::vector<std::int32_t>& cu_seqlens, std::int64_t batch, Draws& draws) {
  std::int64_t end = draws.below(4) == 0 ? 2 : 0;  // rows that belong to nobody
  for (std::int64_t i = 0; i <= batch; ++i) {
    cu_seqlens.push_back(static_cast<std::int32_t>(end));
    if (i < batch) end += draws.below(5) == 0 ? draws.between(0, 40) : draws.between(0, 6);
  }
  return end + static_cast<std::int64_t>(draws.below(3));
}

void make_valid(Call& call, Draws& draws) {
  const std::int64_t batch = draws.between(0, most_sequences), kv_heads = draws.between(1, 2),
                     heads = kv_heads * draws.between(1, 3), d = 8 * draws.between(1, 2);
  const tandem_dtype dtype = draws.one_of({TANDEM_BF16, TANDEM_FP16, TANDEM_FP32});
  tandem_forward_args& args = call.args;
  tandem_varlen& varlen = call.varlen;
  args.struct_size = sizeof args, varlen.struct_size = sizeof varlen;
  args.backend = draws.one_of({TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE, TANDEM_BACKEND_AUTO});
  varlen.batch = batch;
  args.varlen = &varlen;
  std::int64_t q_entries = batch, q_rows = draws.between(0, 5), k_entries = batch,
               k_rows = draws.between(0, 9);
  if (draws.below(3) != 0) {
    q_entries = 1, q_rows = make_packed(call.cu_seqlens_q, batch, draws);
    varlen.cu_seqlens_q = call.cu_seqlens_q.data();
  }
  const std::size_t keys = draws.below(3);
  if (keys == 0) {
    k_entries = 1, k_rows = make_packed(call.cu_seqlens_k, batch, draws);
    varlen.cu_seqlens_k = call.cu_seqlens_k.data();
  }
  if (keys == 1) {
    k_entries = draws.between(0, 6), k_rows = draws.between(1, 9);
    for (std::int64_t i = 0; i < std::max<std::int64_t>(batch, 1) * slots; ++i)  // of no sequence: not NULL
      call.page_table.push_back(draws.below(8) == 0 ? draws.one_of(wild)
                                                    : static_cast<std::int32_t>(draws.between(0, 5)));
    varlen.page_table = call.page_table.data();
    varlen.page_table_stride = varlen.pages_per_sequence = slots;
  }
  if (keys == 1 || draws.below(2) == 0) {
    for (std::int64_t i = 0; i < std::max<std::int64_t>(batch, 1); ++i)
      call.used.push_back(draws.below(8) == 0 ? draws.one_of(wild)
                                              : static_cast<std::int32_t>(draws.between(0, 20)));
    varlen.seqused_k = call.used.data();
  }
  if (draws.below(4) == 0) varlen.max_seqlen_q = draws.between(1, 8);
  if (draws.below(4) == 0) varlen.max_seqlen_k = draws.between(1, 20);
  std::size_t begin = 0;
  args.q = place(call.arena, dtype, {q_entries, q_rows, heads, d}, draws, begin);
  args.k = place(call.arena, dtype, {k_entries, k_rows, kv_heads, d}, draws, begin);
  args.v = place(call.arena, dtype, {k_entries, k_rows, kv_heads, d}, draws, begin);
  args.o = place(call.arena, dtype, {q_entries, q_rows, heads, d}, draws, begin);
  if (draws.below(3) != 0)
    args.lse = place(call.arena, TANDEM_FP32, {q_entries, q_rows, heads, 1}, draws, begin);
  args.scale = draws.one_of({0.0f, 0.3f}), args.softcap = draws.one_of({0.0f, 20.0f});
  call.mask = {sizeof(tandem_mask), TANDEM_MASK_WINDOW, draws.between(-1, 20), draws.between(-1, 2)};
  if (draws.below(2) == 0) call.mask = {sizeof(tandem_mask), TANDEM_MASK_CAUSAL, 0, 0};
  args.mask = draws.below(3) == 0 ? nullptr : &call.mask;
}

void change(Call& call, Draws& draws) {
  tandem_forward_args& args = call.args;
  tandem_varlen& varlen = call.varlen;
  tandem_tensor* const tensors[] = {&args.q, &args.k, &args.v, &args.o, &args.lse};
  tandem_tensor& tensor = *draws.one_of(tensors);
  std::int64_t* const numbers[] = {&varlen.max_seqlen_q, &varlen.max_seqlen_k, &varlen.page_table_stride};
  std::vector<std::int32_t>* const tables[] = {&call.cu_seqlens_q, &call.cu_seqlens_k, &call.used};
  std::vector<std::int32_t>& table = *draws.one_of(tables);
  static constexpr Part parts[] = {Part::shape, Part::stride, Part::data, Part::dtype};
  const std::size_t what = draws.below(std::size(parts) + 4);
  if (what < std::size(parts)) return change(tensor, parts[what], call.arena, draws);
  switch (what - std::size(parts)) {
    case 0:
      *draws.one_of(numbers) = odd_number(draws);
      break;
    case 1:  // fewer, since the tables have no more
      varlen.batch = draws.between(-1, varlen.batch);
      break;
    case 2:
      if (!table.empty()) table[draws.below(table.size())] = draws.one_of(wild);
      break;
    default:
      (draws.below(2) == 0 ? varlen.seqused_k : varlen.page_table) = nullptr;
  }
}

/// One sequence as a forward call with dense keys and values, and where its queries are.
struct Gathered {
  std::vector<std::byte> k, v;
  tandem_forward_args args{};
  std::int64_t entry = 0, first = 0;
};

std::int64_t bounded(std::int64_t length, std::int64_t bound) {
  return bound == 0 ? length : std::min(length, bound);
}

Gathered gather(const Call& call, std::int64_t i) {
  const tandem_forward_args& args = call.args;
  const tandem_varlen& varlen = call.varlen;
  const std::int64_t heads = args.k.shape[2], d = args.k.shape[3], page_size = args.k.shape[1];
  Gathered all;
  std::int64_t rows = args.q.shape[1], room = page_size, entry = i, first = 0;
  all.entry = i;
  if (varlen.cu_seqlens_q != nullptr)
    all.entry = 0, all.first = varlen.cu_seqlens_q[i], rows = varlen.cu_seqlens_q[i + 1] - all.first;
  if (varlen.cu_seqlens_k != nullptr)
    entry = 0, first = varlen.cu_seqlens_k[i], room = varlen.cu_seqlens_k[i + 1] - first;
  if (varlen.page_table != nullptr) room = page_size * slots;
  rows = bounded(rows, varlen.max_seqlen_q);
  std::int64_t keys = bounded(room, varlen.max_seqlen_k);
  if (varlen.seqused_k != nullptr) keys = std::clamp<std::int64_t>(varlen.seqused_k[i], 0, keys);

  const std::size_t row_bytes = static_cast<std::size_t>(d) * size_of(args.k.dtype);
  for (const auto& [memory, from] : {std::pair{&all.k, &args.k}, {&all.v, &args.v}}) {
    memory->resize(static_cast<std::size_t>(keys * heads) * row_bytes + 1);
    for (std::int64_t row = 0; row < keys * heads; ++row) {
      std::int64_t token = first + row / heads, place = entry;
      if (varlen.page_table != nullptr) {
        place = varlen.page_table[i * varlen.page_table_stride + token / page_size], token %= page_size;
        if (place < 0 || place >= from->shape[0]) continue;
      }
      std::memcpy(memory->data() + static_cast<std::size_t>(row) * row_bytes,
                  row_at(*from, place, token, row % heads), row_bytes);
    }
  }
  all.args.q = args.q;
  all.args.q.data = const_cast<std::byte*>(row_at(args.q, all.entry, all.first, 0));
  all.args.q.shape[0] = 1, all.args.q.shape[1] = rows;
  all.args.k = all.args.v = {all.k.data(), args.k.dtype, {1, keys, heads, d}, {0, heads * d, d, 1}};
  all.args.v.data = all.v.data();
  all.args.mask = args.mask, all.args.scale = args.scale, all.args.softcap = args.softcap;
  return all;
}

/// Compares each sequence's rows, and puts what stood there before back.
void compare(Call& call, const Arena& before) {
  const tandem_forward_args& args = call.args;
  const auto put_back = [&](const std::byte* at, std::size_t bytes) {
    const auto begin = at - call.arena.data();
    std::copy_n(before.begin() + begin, bytes, call.arena.begin() + begin);
  };
  for (std::int64_t i = 0; i < call.varlen.batch; ++i) {
    const Gathered sequence = gather(call, i);
    for (std::int64_t row = 0; row < sequence.args.q.shape[1]; ++row)
      for (std::int64_t h = 0; h < args.q.shape[2]; ++h) {
        const Result expected = attend(sequence.args, 0, row, h);
        const std::byte* o = row_at(args.o, sequence.entry, sequence.first + row, h);
        for (std::size_t e = 0; e < expected.o.size(); ++e)
          if (!near(value(args.o, o, static_cast<std::int64_t>(e)), expected.o[e],
                    tolerance_of(args.o.dtype)))
            fail("o is wrong");
        put_back(o, expected.o.size() * size_of(args.o.dtype));
        if (args.lse.data == nullptr) continue;
        const std::byte* lse = row_at(args.lse, sequence.entry, sequence.first + row, h);
        if (!near(value(args.lse, lse, 0), expected.lse, 1e-5)) fail("lse is wrong");
        put_back(lse, sizeof(float));
      }
  }
}

/// Whether all that the call may touch lies in the arena and in its tables, and it ends soon.
bool may_run(const Call& call) {
  const tandem_forward_args& args = call.args;
  for (const tandem_tensor* t : {&args.q, &args.k, &args.v, &args.o})
    if (!lies_within(call.arena, *t)) return false;
  if (args.lse.data != nullptr && !lies_within(call.arena, args.lse)) return false;
  return call.varlen.page_table_stride <= slots && args.k.shape[1] <= 1000 && args.q.shape[1] <= 1000 &&
         args.q.shape[2] <= 100;
}

void run(Call& call, std::size_t changes) {
  const bool spoiled = changes > 0;
  std::size_t bytes = 0;
  const tandem_status asked = tandem_forward_workspace(&call.args, &bytes);
  if (!spoiled && asked != TANDEM_OK) fail("the workspace of a valid call is refused");
  if (asked != TANDEM_OK || !may_run(call)) return;
  const Arena before = call.arena;
  const Lent workspace(bytes);
  const tandem_status status = tandem_forward(&call.args, workspace.data(), bytes, nullptr);
  if (!spoiled) {
    if (status != TANDEM_OK) fail("a valid call is refused");
    compare(call, before);  // rows of no sequence stay as they are
  } else if (status == TANDEM_OK) {
    restore(call.arena, before, call.args.o);
    if (call.args.lse.data != nullptr) restore(call.arena, before, call.args.lse);
  }
  if (call.arena != before) fail("memory was written that is no output's");
}

}  // namespace
}  // namespace tandem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tandem::fuzz::try_input<tandem::fuzz::Call>(data, size);
}
