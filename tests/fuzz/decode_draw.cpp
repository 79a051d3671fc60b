#include <algorithm>
#include <bit>

#include "tests/fuzz/decode_call.h"

namespace tandem::fuzz {
namespace {

/// What the tensors' sizes follow from.
struct Sizes {
  std::int64_t batch, q_len, kv_heads, heads, d, columns, tokens, slots, entries, added;
  bool paged, rotary, values_in_keys;
  tandem_dtype dtype, cached;

  std::int64_t capacity() const { return tokens * (paged ? slots : 1); }
};

Sizes draw_sizes(Draws& draws) {
  Sizes s{};
  s.batch = draws.below(12) == 11 ? 0 : draws.between(1, 3);
  s.q_len = draws.below(3) == 0 ? draws.between(4, 8) : draws.between(1, 3);
  s.kv_heads = draws.between(1, 2), s.heads = s.kv_heads * draws.between(1, 3);
  s.rotary = draws.below(3) == 0;
  s.d = s.rotary ? 16 * draws.between(1, s.q_len > 3 ? 1 : 2) : 8 * draws.between(1, 2);
  const bool wide = draws.below(12) == 0;  // as latent attention is
  if (wide) s.batch = s.heads = s.kv_heads = 1, s.q_len = 2, s.d = draws.one_of({264, 512, 576});
  s.tokens = draws.between(1, wide ? 4 : 9), s.slots = draws.between(1, 3);
  s.paged = draws.below(2) == 0;
  s.entries = s.paged ? std::max<std::int64_t>(s.batch, 1) * s.slots : s.batch + draws.between(0, 1);
  s.added = std::min(draws.between(0, 3), s.capacity());
  s.dtype = draws.one_of({TANDEM_BF16, TANDEM_FP16, TANDEM_FP32});
  s.cached = !wide && draws.below(3) == 0 ? draws.one_of({TANDEM_E4M3, TANDEM_INT8}) : s.dtype;
  s.columns = std::min<std::int64_t>(s.d, 512);
  if (s.cached == s.dtype && draws.below(3) == 0)
    s.columns = wide ? draws.one_of({256, 512}) : 8 * draws.between(1, 4);
  s.values_in_keys = s.columns < s.d && (!s.rotary || s.added == 0) && draws.below(4) != 0;
  return s;
}

/// Pages or entries; where tokens are appended each sequence has its own. Some do not exist.
void draw_places(DecodeCall& call, Draws& draws, const Sizes& s) {
  tandem_cache& cache = call.cache;
  for (std::int64_t i = 0; i < s.batch; ++i)
    call.lengths.push_back(draws.below(4) == 0 ? static_cast<std::int32_t>(s.capacity() - s.added)
                                               : mostly(draws, draws.between(0, s.capacity())));
  cache.lengths = call.lengths.data();
  const bool shares = s.added == 0 && draws.below(2) == 0;
  if (s.paged) {
    cache.pages_per_sequence = s.slots;
    cache.page_table_stride = s.slots + (draws.below(4) == 0 ? 2 : 0);
    for (std::int64_t i = 0; i < std::max<std::int64_t>(s.batch, 1); ++i)
      for (std::int64_t slot = 0; slot < cache.page_table_stride; ++slot)
        call.page_table.push_back(
            slot >= s.slots ? wild[0]
                            : mostly(draws, shares ? draws.between(0, s.entries - 1) : i * s.slots + slot));
    cache.page_table = call.page_table.data();
  }
  if (draws.below(3) != 0) return;
  const std::int64_t first = draws.between(0, 2);
  for (std::int64_t i = 0; i < s.batch; ++i) {
    const std::int64_t own = (i + first) % (s.paged ? s.batch : s.entries);
    call.batch_index.push_back(s.paged ? static_cast<std::int32_t>(own)
                                       : mostly(draws, shares ? first % s.entries : own));
  }
  cache.batch_index = call.batch_index.data();
}

/// Of a cache of 8 bits: of its tensors, sequences, heads or tokens, maybe between the tokens' rows.
void draw_scales(DecodeCall& call, Draws& draws, const Sizes& s, Placer& placer) {
  tandem_cache_scales& scales = call.scales;
  const std::size_t kind = draws.below(4);
  if (kind == 3) return;
  call.args.scales = &scales;
  scales.per_token = kind < 2 ? 1 : 0;
  scales.hadamard = std::has_single_bit(static_cast<std::uint64_t>(s.d)) && draws.below(2) == 0 ? 1 : 0;
  scales.seed = draws.below(65536) * 0x9e3779b97f4a7c15u;
  for (const auto& [own, cache] : {std::pair{&scales.k, &call.cache.k}, {&scales.v, &call.cache.v}}) {
    if (kind == 2) {
      const std::int64_t batch = draws.below(2) == 0 ? 1 : s.batch,
                         heads = draws.below(2) == 0 ? 1 : s.kv_heads;
      const tandem_tensor given = placer.scales({batch, 1, heads, 1});
      if (draws.below(4) != 0) *own = given;
    } else if (call.inline_scales) {
      *own = {
          static_cast<std::byte*>(cache->data) + s.d, TANDEM_FP32, {s.entries, s.tokens, s.kv_heads, 1}, {}};
      for (int i = 0; i < 3; ++i) own->stride[i] = cache->stride[i] / 4;
      own->stride[3] = 1;
      placer.fill_scales(*own);
    } else {
      *own = placer.scales({s.entries, s.tokens, s.kv_heads, 1});
    }
  }
}

tandem_tensor draw_cache(DecodeCall& call, const Sizes& s, std::int64_t columns, Placer& placer) {
  if (!call.inline_scales) return placer.input(s.cached, {s.entries, s.tokens, s.kv_heads, columns});
  tandem_tensor cache = placer.output(s.cached, {s.entries, s.tokens, s.kv_heads, columns + 8});
  cache.shape[3] = columns;
  for (int i = 0; i < 3; ++i) call.inline_scales = call.inline_scales && cache.stride[i] % 4 == 0;
  placer.fill_numbers(cache);
  return cache;
}

/// What scores depend on beside q and k.
void draw_options(DecodeCall& call, Draws& draws, const Sizes& s, Noise& noise) {
  tandem_decode_args& args = call.args;
  if (s.rotary) call.angles.draw(draws, noise, s.dtype, s.d), args.rotary = &call.angles.rotary;
  args.scale = draws.one_of({0.0f, 0.3f});
  args.softcap = draws.one_of({0.0f, 0.0f, 5.0f});
  args.split_size = draws.one_of<std::int64_t>({0, 0, 64, 128});
  call.mask = draw_mask(draws, 20);
  call.mask.chunk = draw_chunk(draws);
  args.mask = draws.below(4) == 0 ? nullptr : &call.mask;
  call.options.draw(args, draws, noise, {s.batch, s.heads, s.batch * s.q_len, s.q_len});
  call.planned = draws.below(4) == 0;
}

/// Groups of sequences, whose numbers are anything: the backends of the host read each sequence's own keys.
void draw_prefixes(DecodeCall& call, Draws& draws, const Sizes& s) {
  call.prefixes.struct_size = sizeof call.prefixes;
  if (draws.below(4) != 0) return;
  call.args.prefixes = &call.prefixes;
  call.prefixes.groups = draws.between(0, s.batch);
  for (std::int64_t i = 0; i < call.prefixes.groups; ++i)
    call.prefix_lengths.push_back(mostly(draws, draws.between(0, s.capacity())));
  for (std::int64_t i = 0; i <= call.prefixes.groups; ++i) call.cu_prefix_groups.push_back(mostly(draws, i));
  call.prefixes.cu_sequences = call.cu_prefix_groups.data();
  call.prefixes.lengths = call.prefix_lengths.data();
}

/// What no sequence reads becomes NaN: tokens beyond the lengths, pages and entries of nobody, their scales.
void poison(DecodeCall& call) {
  std::vector<const std::byte*> read;
  for (std::int64_t b = 0; b < call.batch(); ++b)
    for (std::int64_t token = 0; token < call.length(b); ++token)
      if (const TokenPlace at = place_of(call, b, token); at.exists)
        read.push_back(row_at(call.cache.k, at.entry, at.row, 0));
  std::sort(read.begin(), read.end());
  for_each_row(call.cache.k, [&](std::int64_t entry, std::int64_t row, std::int64_t h, std::byte*) {
    if (std::binary_search(read.begin(), read.end(), row_at(call.cache.k, entry, row, 0))) return;
    std::vector<const tandem_tensor*> tensors = {&call.cache.k, &call.cache.v};
    if (call.scales_of_tokens()) tensors.push_back(&call.scales.k), tensors.push_back(&call.scales.v);
    for (const tandem_tensor* t : tensors) std::memset(row_at(*t, entry, row, h), 0xff, row_bytes(*t));
  });
}

tandem_tensor first_columns(const tandem_tensor& t, std::int64_t columns) {
  tandem_tensor some = t;
  some.shape[3] = columns;
  return some;
}

}  // namespace

std::vector<tandem_tensor*> DecodeCall::tensors() {
  std::vector<tandem_tensor*> all = {&args.q,     &args.qv,    &cache.k, &cache.v,
                                     &args.k_new, &args.v_new, &args.o,  &args.lse};
  if (args.scales != nullptr) all.push_back(&scales.k), all.push_back(&scales.v);
  return all;
}

std::int64_t DecodeCall::length(std::int64_t b) const {
  return std::clamp<std::int64_t>(lengths[static_cast<std::size_t>(b)], 0, capacity() - added());
}

TokenPlace place_of(const DecodeCall& call, std::int64_t b, std::int64_t token) {
  const tandem_cache& cache = call.cache;
  const std::int64_t row = cache.batch_index == nullptr ? b : cache.batch_index[b];
  const std::int64_t size = cache.k.shape[1];
  const std::int64_t entry =
      call.paged() ? cache.page_table[row * cache.page_table_stride + token / size] : row;
  return {entry >= 0 && entry < cache.k.shape[0], entry, call.paged() ? token % size : token};
}

void make_valid(DecodeCall& call, Draws& draws) {
  const Sizes s = draw_sizes(draws);
  Placer placer(call.arena, draws);
  tandem_decode_args& args = call.args;
  args.struct_size = sizeof args;
  args.backend = draws.one_of({TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE, TANDEM_BACKEND_AUTO});
  args.q = placer.input(s.dtype, {s.batch, s.q_len, s.heads, s.d});
  args.cache = &call.cache;
  call.scales.struct_size = sizeof call.scales;
  call.cache.struct_size = sizeof call.cache;
  call.inline_scales = s.cached != s.dtype && draws.below(3) == 0;
  call.cache.k = draw_cache(call, s, s.d, placer);
  call.cache.v = draw_cache(call, s, s.columns, placer);
  if (s.values_in_keys) call.cache.v = first_columns(call.cache.k, s.columns);
  draw_places(call, draws, s);
  if (s.cached != s.dtype) draw_scales(call, draws, s, placer);
  if (s.added > 0) {
    args.k_new = placer.input(s.dtype, {s.batch, s.added, s.kv_heads, s.d});
    args.v_new = placer.input(s.dtype, {s.batch, s.added, s.kv_heads, s.columns});
    if (s.values_in_keys) args.v_new = first_columns(args.k_new, s.columns);
    call.appends_zeros = s.batch > 0 && draws.below(6) == 0 && placer.fits(args.v_new);
    if (call.appends_zeros) std::memset(row_at(args.v_new, 0, 0, 0), 0, row_bytes(args.v_new));
  }
  if (draws.below(4) == 0) args.qv = placer.input(s.dtype, {s.batch, s.q_len, s.heads, s.columns});
  place_outputs(args, placer, draws, s.dtype, {s.batch, s.q_len, s.heads, s.columns});
  draw_options(call, draws, s, placer.noise());
  draw_prefixes(call, draws, s);
  poison_some(call, draws, poison);
}

void change(DecodeCall& call, Draws& draws) {
  tandem_decode_args& args = call.args;
  tandem_cache& cache = call.cache;
  std::int64_t* const numbers[] = {&args.split_size,         &cache.pages_per_sequence,
                                   &cache.page_table_stride, &call.angles.rotary.positions,
                                   &call.angles.rotary.dim,  &args.alibi_stride,
                                   &call.prefixes.groups};
  std::size_t* const sizes[] = {&args.struct_size,        &cache.struct_size,
                                &call.scales.struct_size, &call.angles.rotary.struct_size,
                                &call.mask.struct_size,   &call.prefixes.struct_size};
  switch (change_one({call.tensors(), args.backend, call.arena}, 8, draws)) {
    case 0:
      return change_mask(call.mask, draws);
    case 1:
      return change_factor(args, draws);
    case 2:
      *draws.one_of(numbers) = odd_number(draws);
      break;
    case 3:
      return change_size(*draws.one_of(sizes), draws, true);
    case 4:  // 8 bits or not, with what else it has
      cache.k.dtype = cache.v.dtype = draws.one_of({TANDEM_E4M3, TANDEM_INT8, TANDEM_BF16});
      args.scales = &call.scales;
      break;
    case 5:
      call.scales.per_token = call.scales.hadamard = call.angles.rotary.interleaved =
          static_cast<std::int32_t>(draws.between(-1, 2));
      break;
    case 6:
      store(call.angles.rotary.dtype, static_cast<int>(draws.between(-1, 5)));
      break;
    case 7: {  // something is not given
      const void** const pointers[] = {reinterpret_cast<const void**>(&args.cache),
                                       reinterpret_cast<const void**>(&cache.lengths),
                                       reinterpret_cast<const void**>(&cache.page_table),
                                       reinterpret_cast<const void**>(&cache.batch_index),
                                       &call.angles.rotary.cos,
                                       &call.angles.rotary.sin,
                                       reinterpret_cast<const void**>(&args.scales),
                                       reinterpret_cast<const void**>(&call.prefixes.cu_sequences),
                                       reinterpret_cast<const void**>(&call.prefixes.lengths)};
      *draws.one_of(pointers) = nullptr;
    }
  }
}

bool may_run(const DecodeCall& call) {
  const tandem_decode_args& args = call.args;
  const tandem_cache& cache = call.cache;
  for (const tandem_tensor* t : {&args.q, &cache.k, &cache.v, &args.o})
    if (!lies_within(call.arena, *t)) return false;
  for (const tandem_tensor* t :
       {&args.qv, &args.k_new, &args.v_new, &args.lse, &call.scales.k, &call.scales.v})
    if (t->data != nullptr && !lies_within(call.arena, *t)) return false;
  const auto fits = [](const auto& array, Wide needed) { return needed <= static_cast<Wide>(array.size()); };
  const std::int64_t *q = args.q.shape, batch = q[0];
  if (!fits(call.lengths, batch) || cache.k.shape[1] > 100'000 || call.added() > 100'000) return false;
  if (cache.batch_index != nullptr && !fits(call.batch_index, batch)) return false;
  const auto rows = static_cast<Wide>(call.lengths.size());
  if (call.paged() && !fits(call.page_table, (rows - 1) * cache.page_table_stride + cache.pages_per_sequence))
    return false;
  if (args.prefixes != nullptr && (!fits(call.cu_prefix_groups, Wide{call.prefixes.groups} + 1) ||
                                   !fits(call.prefix_lengths, call.prefixes.groups)))
    return false;
  if (!call.options.fit(args, batch, Wide{batch} * q[1])) return false;
  return args.rotary == nullptr || call.angles.fit();
}

}  // namespace tandem::fuzz
