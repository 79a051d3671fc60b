#include <algorithm>

#include "tests/fuzz/varlen_call.h"

namespace tandem::fuzz {
namespace {

/// What the tensors' sizes follow from.
struct Sizes {
  std::int64_t batch, kv_heads, heads, d, columns;
  std::int64_t q_entries, q_rows, k_entries, k_rows, slots;
  bool rotary, appends;
  tandem_dtype dtype;
};

Sizes draw_sizes(Draws& draws) {
  Sizes s{};
  s.batch = draws.below(8) == 7 ? 0 : draws.between(1, 3);
  s.kv_heads = draws.between(1, 2), s.heads = s.kv_heads * draws.between(1, 3);
  s.rotary = draws.below(3) == 0;
  s.d = s.rotary ? 16 : 8 * draws.between(1, 2);
  s.columns = draws.below(3) == 0 ? 8 * draws.between(1, 3) : s.d;
  s.dtype = draws.one_of({TANDEM_BF16, TANDEM_FP16, TANDEM_FP32});
  s.q_entries = s.k_entries = s.batch;
  s.q_rows = draws.between(0, 5), s.k_rows = draws.between(0, 9);
  return s;
}

void draw_queries(VarlenCall& call, Draws& draws, Sizes& s) {
  if (draws.below(3) == 0) return;
  s.q_entries = 1;
  const bool beyond_trees = draws.below(6) == 0;
  if (beyond_trees) s.heads = s.kv_heads = 1;
  s.q_rows = make_packed(call.cu_seqlens_q, s.batch, draws, 30, beyond_trees ? 65 : 0);
  call.varlen.cu_seqlens_q = call.cu_seqlens_q.data();
}

/// Pages are anyone's where nothing is appended, else each sequence's own; some do not exist.
void draw_pages(VarlenCall& call, Draws& draws, Sizes& s) {
  const std::int64_t rows = std::max<std::int64_t>(s.batch, 1);  // of no sequence: not NULL
  s.k_rows = draws.between(1, 9), s.slots = draws.between(1, 4);
  s.k_entries = s.appends ? rows * s.slots : draws.between(0, 6);
  tandem_varlen& varlen = call.varlen;
  varlen.pages_per_sequence = s.slots;
  varlen.page_table_stride = s.slots + (draws.below(4) == 0 ? 2 : 0);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t slot = 0; slot < varlen.page_table_stride; ++slot)
      call.page_table.push_back(
          slot >= s.slots ? wild[0] : mostly(draws, s.appends ? i * s.slots + slot : draws.between(0, 5)));
  varlen.page_table = call.page_table.data();
}

/// Padding, and entries in another order: each is one sequence's where something is appended.
void draw_entries(VarlenCall& call, Draws& draws, Sizes& s) {
  tandem_varlen& varlen = call.varlen;
  if (draws.below(2) == 0) {
    for (std::int64_t i = 0; i < s.batch; ++i) call.leftpad.push_back(mostly(draws, draws.between(0, 5)));
    varlen.leftpad_k = call.leftpad.data();
  }
  if (s.batch == 0 || draws.below(2) == 0) return;
  s.k_entries = draws.between(s.appends ? s.batch : 1, 4);
  const std::int64_t first = draws.between(0, 3);
  for (std::int64_t i = 0; i < s.batch; ++i)
    call.batch_index.push_back(mostly(draws, s.appends ? (first + i) % s.k_entries : draws.between(0, 3)));
  varlen.batch_index = call.batch_index.data();
}

void draw_keys(VarlenCall& call, Draws& draws, Sizes& s) {
  const std::size_t kind = draws.below(4);
  s.appends = kind != 0 && draws.below(3) != 0;
  if (kind == 0) {
    s.k_entries = 1, s.k_rows = make_packed(call.cu_seqlens_k, s.batch, draws, 40);
    call.varlen.cu_seqlens_k = call.cu_seqlens_k.data();
  } else if (kind == 1) {
    draw_pages(call, draws, s);
  } else {
    draw_entries(call, draws, s);
  }
  if (kind != 1 && !s.appends && draws.below(2) == 0) return;
  for (std::int64_t i = 0; i < std::max<std::int64_t>(s.batch, 1); ++i)
    call.used.push_back(mostly(draws, draws.between(0, 20)));
  call.varlen.seqused_k = call.used.data();
}

void draw_appended(VarlenCall& call, Draws& draws, const Sizes& s, Placer& placer) {
  std::int64_t entries = s.batch, rows = draws.between(0, 4);
  if (draws.below(2) == 0) {
    entries = 1, rows = make_packed(call.cu_seqlens_k_new, s.batch, draws, 12);
    call.varlen.cu_seqlens_k_new = call.cu_seqlens_k_new.data();
  }
  call.varlen.k_new = placer.input(s.dtype, {entries, rows, s.kv_heads, s.d});
  call.varlen.v_new = placer.input(s.dtype, {entries, rows, s.kv_heads, s.columns});
}

/// What scores depend on beside q and k.
void draw_options(VarlenCall& call, Draws& draws, const Sizes& s, Noise& noise) {
  tandem_forward_args& args = call.args;
  if (s.rotary) call.angles.draw(draws, noise, s.dtype, s.d), call.varlen.rotary = &call.angles.rotary;
  if (draws.below(4) == 0) call.varlen.max_seqlen_q = draws.between(1, 8);
  if (draws.below(4) == 0) call.varlen.max_seqlen_k = draws.between(1, 20);
  args.scale = draws.one_of({0.0f, 0.3f}), args.softcap = draws.one_of({0.0f, 0.0f, 5.0f});
  call.mask = draw_mask(draws, 20);
  call.mask.chunk = draw_chunk(draws);
  args.mask = draws.below(4) == 0 ? nullptr : &call.mask;
  call.options.draw(args, draws, noise, {s.batch, s.heads, s.q_entries * s.q_rows, 8});
}

/// NaN in rows of k and v that no sequence reads, and of q that are no sequence's.
void poison(VarlenCall& call) {
  std::vector<const std::byte*> read;
  for (std::int64_t i = 0; i < call.varlen.batch; ++i) {
    const Extent extent = extent_of(call, i);
    for (std::int64_t row = extent.padding; row < extent.padding + extent.keys; ++row)
      if (const KeyPlace at = place_of(call, i, row); at.exists)
        read.push_back(row_at(call.args.k, at.entry, at.row, 0));
    for (std::int64_t row = 0; row < extent.queries.count; ++row)
      read.push_back(row_at(call.args.q, extent.queries.entry, extent.queries.first + row, 0));
  }
  std::sort(read.begin(), read.end());
  const auto poison_others = [&](const tandem_tensor& known, const tandem_tensor& t) {
    for_each_row(t, [&](std::int64_t b, std::int64_t s, std::int64_t, std::byte* row) {
      if (!std::binary_search(read.begin(), read.end(), row_at(known, b, s, 0)))
        std::memset(row, 0xff, row_bytes(t));
    });
  };
  poison_others(call.args.q, call.args.q);
  poison_others(call.args.k, call.args.v);
  poison_others(call.args.k, call.args.k);
}

}  // namespace

std::vector<tandem_tensor*> VarlenCall::tensors() {
  return {&args.q, &args.k, &args.v, &args.o, &args.lse, &varlen.k_new, &varlen.v_new};
}

Extent extent_of(const VarlenCall& call, std::int64_t i) {
  const tandem_varlen& varlen = call.varlen;
  Extent extent{};
  extent.queries = rows_of_sequence(varlen.cu_seqlens_q, call.args.q, i);
  extent.queries.count = bounded(extent.queries.count, varlen.max_seqlen_q);
  if (call.appends()) extent.added = rows_of_sequence(varlen.cu_seqlens_k_new, varlen.k_new, i);
  const std::int64_t room = call.paged() ? call.args.k.shape[1] * varlen.pages_per_sequence
                                         : rows_of_sequence(varlen.cu_seqlens_k, call.args.k, i).count;
  extent.added.count = std::min(extent.added.count, room);
  const std::int64_t used = varlen.seqused_k != nullptr ? varlen.seqused_k[i] : room;
  extent.before = std::clamp<std::int64_t>(used, 0, room - extent.added.count);
  const std::int64_t rows = extent.before + extent.added.count;
  extent.padding = varlen.leftpad_k != nullptr ? std::clamp<std::int64_t>(varlen.leftpad_k[i], 0, rows) : 0;
  extent.keys = bounded(rows - extent.padding, varlen.max_seqlen_k);
  return extent;
}

KeyPlace place_of(const VarlenCall& call, std::int64_t i, std::int64_t row) {
  const tandem_varlen& varlen = call.varlen;
  const std::int64_t size = call.args.k.shape[1];
  if (call.packed()) return {true, 0, varlen.cu_seqlens_k[i] + row};
  std::int64_t entry = varlen.batch_index != nullptr ? varlen.batch_index[i] : i;
  if (call.paged()) entry = varlen.page_table[i * varlen.page_table_stride + row / size], row %= size;
  return {entry >= 0 && entry < call.args.k.shape[0], entry, row};
}

void make_valid(VarlenCall& call, Draws& draws) {
  Sizes s = draw_sizes(draws);
  tandem_forward_args& args = call.args;
  args.struct_size = sizeof args, call.varlen.struct_size = sizeof call.varlen;
  call.lists.list.struct_size = sizeof call.lists.list;
  args.backend = draws.one_of({TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE, TANDEM_BACKEND_AUTO});
  call.varlen.batch = s.batch;
  args.varlen = &call.varlen;
  draw_queries(call, draws, s);
  draw_keys(call, draws, s);
  Placer placer(call.arena, draws);
  args.q = placer.input(s.dtype, {s.q_entries, s.q_rows, s.heads, s.d});
  args.k = placer.input(s.dtype, {s.k_entries, s.k_rows, s.kv_heads, s.d});
  args.v = placer.input(s.dtype, {s.k_entries, s.k_rows, s.kv_heads, s.columns});
  if (s.appends) draw_appended(call, draws, s, placer);
  place_outputs(args, placer, draws, s.dtype, {s.q_entries, s.q_rows, s.heads, s.columns});
  draw_options(call, draws, s, placer.noise());
  poison_some(call, draws, poison);
  if (draws.below(4) == 0) call.varlen.split_size = 64 * draws.between(1, 3);
  if (draws.below(3) == 0) call.lists.draw(args, draws, placer.noise(), call.listed_sizes());
}

void change(VarlenCall& call, Draws& draws) {
  tandem_forward_args& args = call.args;
  tandem_varlen& varlen = call.varlen;
  tandem_block_list& list = call.lists.list;
  std::int64_t* const numbers[] = {&varlen.max_seqlen_q,
                                   &varlen.max_seqlen_k,
                                   &varlen.page_table_stride,
                                   &varlen.pages_per_sequence,
                                   &call.angles.rotary.positions,
                                   &call.angles.rotary.dim,
                                   &args.alibi_stride,
                                   &varlen.split_size,
                                   &list.q_block,
                                   &list.k_block,
                                   &list.slots,
                                   &list.batch_stride,
                                   &list.head_stride};
  std::size_t* const sizes[] = {&args.struct_size, &varlen.struct_size, &call.angles.rotary.struct_size,
                                &call.mask.struct_size, &list.struct_size};
  Table* const tables[] = {&call.cu_seqlens_q, &call.cu_seqlens_k, &call.cu_seqlens_k_new,
                           &call.used,         &call.leftpad,      &call.batch_index,
                           &call.lists.counts, &call.lists.blocks};
  Table& table = *draws.one_of(tables);
  const std::int32_t** const pointers[] = {
      &varlen.cu_seqlens_q,     &varlen.cu_seqlens_k, &varlen.seqused_k,
      &varlen.cu_seqlens_k_new, &varlen.leftpad_k,    &varlen.batch_index,
      &varlen.page_table,       &list.counts,         &list.blocks};
  switch (change_one({call.tensors(), args.backend, call.arena}, 9, draws)) {
    case 0:
      return change_mask(call.mask, draws);
    case 1:
      return change_factor(args, draws);
    case 2:
      *draws.one_of(numbers) = odd_number(draws);
      break;
    case 3:
      return change_size(*draws.one_of(sizes), draws, true);
    case 4:
      varlen.batch = draws.below(4) == 0 ? odd_number(draws) : draws.between(-1, 3);
      break;
    case 5:
    case 6:
      if (!table.empty()) table[draws.below(table.size())] = draws.one_of(wild);
      break;
    case 7:
      *draws.one_of(pointers) = nullptr;
      break;
    case 8:
      store(call.angles.rotary.dtype, static_cast<int>(draws.between(-1, 5)));
      call.angles.rotary.interleaved = static_cast<std::int32_t>(draws.between(-1, 2));
  }
}

bool may_run(const VarlenCall& call) {
  const tandem_forward_args& args = call.args;
  const tandem_varlen& varlen = call.varlen;
  for (const tandem_tensor* t : {&args.q, &args.k, &args.v, &args.o})
    if (!lies_within(call.arena, *t)) return false;
  for (const tandem_tensor* t : {&args.lse, &varlen.k_new, &varlen.v_new})
    if (t->data != nullptr && !lies_within(call.arena, *t)) return false;
  if (args.k.shape[1] > 1000 || args.q.shape[1] > 1000 || args.q.shape[2] > 100 ||
      varlen.k_new.shape[1] > 1000)
    return false;
  const Wide batch = varlen.batch;
  if (!fits(varlen.cu_seqlens_q, call.cu_seqlens_q, batch + 1) ||
      !fits(varlen.cu_seqlens_k, call.cu_seqlens_k, batch + 1) ||
      !fits(varlen.cu_seqlens_k_new, call.cu_seqlens_k_new, batch + 1) ||
      !fits(varlen.seqused_k, call.used, batch) || !fits(varlen.leftpad_k, call.leftpad, batch) ||
      !fits(varlen.batch_index, call.batch_index, batch) ||
      !fits(varlen.page_table, call.page_table,
            (batch - 1) * varlen.page_table_stride + varlen.pages_per_sequence))
    return false;
  if (!call.options.fit(args, varlen.batch, Wide{args.q.shape[0]} * args.q.shape[1]) ||
      !call.lists.fit(args, call.listed_sizes()))
    return false;
  return varlen.rotary == nullptr || call.angles.fit();
}

}  // namespace tandem::fuzz
