#include <algorithm>

#include "tests/fuzz/forward_call.h"
#include "tests/fuzz/oracle_eight_bit.h"
#include "tests/fuzz/oracle_rules.h"

namespace tandem::fuzz {
namespace {

/// What the tensors' sizes follow from.
struct Sizes {
  std::int64_t b, sq, sk, kv_heads, heads, d, columns;
  bool eight_bit;
  tandem_dtype inputs, values, output;
};

Sizes draw_sizes(Draws& draws) {
  Sizes s{};
  const auto rarely_none = [&](std::int64_t most) {
    return draws.below(8) == 0 ? 0 : draws.between(1, most);
  };
  s.b = rarely_none(2), s.kv_heads = rarely_none(2), s.heads = s.kv_heads * draws.between(1, 3);
  s.sq = rarely_none(4), s.d = 8 * draws.between(1, 3);
  s.sk = draws.below(3) == 0 ? draws.between(0, 140) : rarely_none(6);
  if (draws.below(8) == 0)  // more than a tree's
    s.b = s.heads = s.kv_heads = 1, s.sq = draws.between(60, 70);
  s.eight_bit = draws.below(3) == 0;
  s.output = draws.one_of({TANDEM_BF16, TANDEM_FP16, TANDEM_FP32});
  s.inputs = s.eight_bit ? draws.one_of({TANDEM_E4M3, TANDEM_INT8}) : s.output;
  s.values = s.eight_bit ? TANDEM_E4M3 : s.output;
  s.columns = !s.eight_bit && draws.below(3) == 0 ? 8 * draws.between(1, 3) : s.d;
  return s;
}

/// Values of 8 bits by column, of one or two terms: zeros behind the last key.
tandem_tensor draw_columns(Placer& placer, const Sizes& s, std::int64_t terms) {
  const std::int64_t padded = (s.sk + 15) / 16 * 16;
  const tandem_tensor v = placer.input(s.values, {s.b, terms * s.d, s.kv_heads, padded});
  if (!placer.fits(v)) return v;
  for_each_row(v, [&](std::int64_t, std::int64_t, std::int64_t, std::byte* row) {
    for (std::int64_t key = s.sk; key < padded; ++key) row[place_of_key(key)] = std::byte{};
  });
  return v;
}

/// Of blocks of tokens; batch and heads may be shared.
tandem_tensor draw_scales(Placer& placer, Draws& draws, std::int64_t batch, std::int64_t tokens,
                          std::int64_t heads, std::int64_t& block) {
  block = draws.below(3) == 0 ? 0 : draws.between(1, std::min<std::int64_t>(tokens + 2, 60));
  const std::int64_t blocks = block == 0 ? 1 : (tokens + block - 1) / block;
  const tandem_tensor scales =
      placer.scales({draws.below(2) == 0 ? 1 : batch, blocks, draws.below(2) == 0 ? 1 : heads, 1});
  return draws.below(4) == 0 ? tandem_tensor{} : scales;
}

void draw_eight_bit(ForwardCall& call, Draws& draws, const Sizes& s, Placer& placer) {
  tandem_scales& scales = call.scales;
  call.args.scales = draws.below(4) == 0 ? nullptr : &scales;
  if (call.args.scales == nullptr) return;
  const std::int64_t q_heads = draws.below(2) == 0 ? s.kv_heads : s.heads;
  scales.q = draw_scales(placer, draws, s.b, s.sq, q_heads, scales.q_block);
  scales.k = draw_scales(placer, draws, s.b, s.sk, s.kv_heads, scales.k_block);
  scales.v = draw_scales(placer, draws, s.b, s.sk, s.kv_heads, scales.v_block);
  if (draws.below(3) == 0) return;
  scales.v_layout = TANDEM_VALUES_BY_COLUMN;
  scales.v_terms = static_cast<std::int32_t>(draws.between(0, 2));
  scales.qk_amplitude = static_cast<float>(draws.between(0, 448));
}

/// What quantising has taken off values, and off scores where no cap has changed them since.
void draw_shifts(ForwardCall& call, Draws& draws, const Sizes& s, Placer& placer) {
  tandem_scales& scales = call.scales;
  if (call.args.scales == nullptr) return;
  if (draws.below(2) == 0)
    scales.v_shift = placer.input(
        TANDEM_FP32, {draws.below(2) == 0 ? 1 : s.b, 1, draws.below(2) == 0 ? 1 : s.kv_heads, s.d});
  if (call.args.softcap == 0 && draws.below(2) == 0)
    scales.q_dot_k_shift = placer.input(TANDEM_FP32, {s.b, s.sq, s.heads, 1});
}

}  // namespace

std::vector<tandem_tensor*> ForwardCall::tensors() {
  std::vector<tandem_tensor*> all = {&args.q, &args.k, &args.v, &args.o, &args.lse};
  for (tandem_tensor* t : {&scales.q, &scales.k, &scales.v, &scales.v_shift, &scales.q_dot_k_shift})
    if (t->data != nullptr) all.push_back(t);
  return all;
}

void make_valid(ForwardCall& call, Draws& draws) {
  const Sizes s = draw_sizes(draws);
  tandem_forward_args& args = call.args;
  args.struct_size = sizeof args, call.scales.struct_size = sizeof call.scales;
  call.lists.list.struct_size = sizeof call.lists.list;
  args.backend = draws.one_of({TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE, TANDEM_BACKEND_AUTO});
  Placer placer(call.arena, draws);
  args.q = placer.input(s.inputs, {s.b, s.sq, s.heads, s.d});
  args.k = placer.input(s.inputs, {s.b, s.sk, s.kv_heads, s.d});
  if (s.eight_bit) draw_eight_bit(call, draws, s, placer);
  args.v = call.by_column() ? draw_columns(placer, s, call.terms())
                            : placer.input(s.values, {s.b, s.sk, s.kv_heads, s.columns});
  place_outputs(args, placer, draws, s.output, {s.b, s.sq, s.heads, s.columns});
  args.scale = draws.one_of({0.0f, 0.0f, 0.3f, 1.0f});
  args.softcap = draws.one_of({0.0f, 0.0f, 0.5f, 20.0f});
  call.mask = draw_mask(draws, 150);
  args.mask = draws.below(4) == 0 ? nullptr : &call.mask;
  if (s.eight_bit) return draw_shifts(call, draws, s, placer);  // which have nothing else
  call.mask.chunk = draws.below(4) == 0 ? draws.between(1, 40) : 0;
  call.options.draw(args, draws, placer.noise(), {s.b, s.heads, s.b * s.sq, s.sq});
  if (draws.below(3) == 0) call.lists.draw(args, draws, placer.noise(), {s.b, s.heads, s.sq, s.sk});
}

void change(ForwardCall& call, Draws& draws) {
  tandem_forward_args& args = call.args;
  tandem_block_list& list = call.lists.list;
  std::int64_t* const numbers[] = {&args.alibi_stride,   &call.scales.q_block, &call.scales.k_block,
                                   &call.scales.v_block, &list.q_block,        &list.k_block,
                                   &list.slots,          &list.batch_stride,   &list.head_stride};
  std::size_t* const sizes[] = {&args.struct_size, &call.mask.struct_size, &call.scales.struct_size,
                                &list.struct_size};
  switch (change_one({call.tensors(), args.backend, call.arena}, 7, draws)) {
    case 0:
      return change_mask(call.mask, draws);
    case 1:
      change_factor(args, draws);
      if (args.scale > 1e30f) shrink(args.q, call.arena, static_cast<int>(draws.between(40, 125)));
      break;
    case 2:  // keys that are all one row, as many as one likes
      args.k.shape[1] = args.v.shape[1] = odd_number(draws);
      args.k.stride[1] = args.v.stride[1] = 0;
      break;
    case 3:
      *draws.one_of(numbers) = odd_number(draws);
      break;
    case 4:
      return change_size(*draws.one_of(sizes), draws, false);
    case 5:
      store(call.scales.v_layout, static_cast<int>(draws.between(-1, 2)));
      call.scales.v_terms = static_cast<std::int32_t>(draws.between(-1, 3));
      call.scales.qk_amplitude = static_cast<float>(draws.between(-1, 450));
      args.scales = draws.below(2) == 0 ? nullptr : &call.scales;
      break;
    case 6: {  // numbers that lie anywhere, or nowhere
      const void** const arrays[] = {
          reinterpret_cast<const void**>(&args.sinks), reinterpret_cast<const void**>(&args.alibi_slopes),
          reinterpret_cast<const void**>(&args.tree), reinterpret_cast<const void**>(&list.counts),
          reinterpret_cast<const void**>(&list.blocks)};
      *draws.one_of(arrays) = draws.below(2) == 0 ? nullptr : &call.arena[draws.below(arena_bytes)];
    }
  }
}

bool may_run(const ForwardCall& call) {
  const tandem_forward_args& args = call.args;
  for (const tandem_tensor* t : {&args.q, &args.k, &args.v, &args.o})
    if (!lies_within(call.arena, *t)) return false;
  const tandem_scales& scales = call.scales;
  for (const tandem_tensor* t :
       {&args.lse, &scales.q, &scales.k, &scales.v, &scales.v_shift, &scales.q_dot_k_shift})
    if (t->data != nullptr && !lies_within(call.arena, *t)) return false;
  const std::int64_t* q = args.q.shape;
  if (!call.options.fit(args, q[0], Wide{q[0]} * q[1]) ||
      !call.lists.fit(args, {q[0], q[2], q[1], args.k.shape[1]}))
    return false;
  if (args.backend == TANDEM_BACKEND_REFERENCE && args.k.shape[1] > 100'000)
    return false;  // room for its scores
  Wide pairs = 0;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(q[1], 1000); ++i) {
    const Keys keys = keys_of(args.mask, q[1], args.k.shape[1], i);
    pairs += Wide{keys.end} - keys.begin;
  }
  return pairs * q[0] * q[2] * q[3] < 2'000'000;
}

}  // namespace tandem::fuzz
