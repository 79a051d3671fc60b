#include "tests/fuzz/oracle_rules.h"

#include <algorithm>
#include <cmath>

#include "tests/fuzz/oracle_eight_bit.h"

namespace tandem::fuzz {

bool is_dtype(const tandem_dtype& dtype) { return number(dtype) >= 1 && number(dtype) <= 3; }
bool is_fp32(const tandem_tensor& t) { return number(t.dtype) == TANDEM_FP32; }
bool same_dtype(const tandem_tensor& a, const tandem_tensor& b) { return number(a.dtype) == number(b.dtype); }

bool is_host_backend(const tandem_backend& backend) {
  const int kind = number(backend);
  return kind == TANDEM_BACKEND_AUTO || kind == TANDEM_BACKEND_CPU || kind == TANDEM_BACKEND_REFERENCE;
}

bool factors_hold(float scale, float softcap) {
  for (const float factor : {scale, softcap})
    if (!(factor >= 0 && factor <= 2.3e38f)) return false;
  return softcap == 0 || std::isfinite((scale > 0 ? scale : 1.0f) / softcap);
}

bool mask_holds(const tandem_mask* mask) {
  if (mask == nullptr) return true;
  constexpr std::int64_t largest_chunk = std::int64_t{1} << 61;
  if (mask->struct_size != sizeof(tandem_mask)) return false;
  if (mask->chunk < 0 || mask->chunk > largest_chunk) return false;
  const int kind = number(mask->kind);
  const std::int64_t left = mask->window_left, right = mask->window_right;
  if (kind == TANDEM_MASK_WINDOW) return left >= -1 && right >= -1;
  return (kind == TANDEM_MASK_FULL || kind == TANDEM_MASK_CAUSAL) && left == 0 && right == 0;
}

bool queries_and_keys_hold(const tandem_tensor& queries, const tandem_tensor& keys,
                           std::int64_t most_columns) {
  const std::int64_t *q = queries.shape, *k = keys.shape;
  for (int i = 0; i < 4; ++i)
    if (q[i] < 0 || k[i] < 0) return false;
  if (q[3] % 8 != 0 || q[3] < 8 || q[3] > most_columns || k[3] != q[3]) return false;
  return k[2] == 0 ? q[2] == 0 : q[2] % k[2] == 0;
}

bool same_shape(const tandem_tensor& a, const tandem_tensor& b, int dimensions) {
  return std::equal(a.shape, a.shape + dimensions, b.shape);
}

namespace {

/// The arrays of block lists, of which there are some, by [entry, head, block of queries].
tandem_tensor counts_of(const tandem_forward_args& args) {
  const tandem_block_list& list = *args.block_list;
  const Wide rows = (Wide{args.q.shape[1]} + list.q_block - 1) / list.q_block;
  return {const_cast<std::int32_t*>(list.counts),
          TANDEM_FP32,  // which is as large
          {list.batch_stride == 0 ? 1 : args.q.shape[0], list.head_stride == 0 ? 1 : args.q.shape[2],
           static_cast<std::int64_t>(rows), 1},
          {list.batch_stride, list.head_stride, 1, 1}};
}

tandem_tensor blocks_of(const tandem_forward_args& args) {
  const tandem_block_list& list = *args.block_list;
  tandem_tensor blocks = counts_of(args);
  blocks.data = const_cast<std::int32_t*>(list.blocks), blocks.shape[3] = list.slots;
  for (int i = 0; i < 3; ++i) blocks.stride[i] *= list.slots;
  return blocks;
}

bool dtypes_hold(const tandem_forward_args& args) {
  if (args.lse.data != nullptr && !is_fp32(args.lse)) return false;
  if (!same_dtype(args.k, args.q)) return false;
  if (is_eight_bit(number(args.q.dtype)))
    return number(args.v.dtype) == TANDEM_E4M3 && is_dtype(args.o.dtype);
  return is_dtype(args.q.dtype) && same_dtype(args.v, args.q) && same_dtype(args.o, args.q);
}

bool columns_hold(std::int64_t columns) { return columns > 0 && columns % 8 == 0 && columns <= 512; }

bool shapes_hold(const tandem_forward_args& args) {
  const tandem_tensor &q = args.q, &k = args.k, &v = args.v;
  const std::int64_t most_columns = is_eight_bit(number(q.dtype)) ? 256 : 512;
  if (!queries_and_keys_hold(q, k, most_columns) || k.shape[0] != q.shape[0] || !same_shape(args.o, q, 3))
    return false;
  if (args.lse.data != nullptr && (!same_shape(args.lse, q, 3) || args.lse.shape[3] != 1)) return false;
  const bool by_column = args.scales != nullptr && number(args.scales->v_layout) == TANDEM_VALUES_BY_COLUMN;
  if (by_column)
    return v.shape[0] == k.shape[0] && v.shape[1] == (args.scales->v_terms == 2 ? 2 : 1) * q.shape[3] &&
           v.shape[2] == k.shape[2] && v.shape[3] == (Wide{k.shape[1]} + 15) / 16 * 16 &&
           args.o.shape[3] == q.shape[3];
  if (is_eight_bit(number(q.dtype)) && v.shape[3] != q.shape[3]) return false;
  return same_shape(v, k, 3) && args.o.shape[3] == v.shape[3] && columns_hold(v.shape[3]);
}

/// Of 8 bits, which have scales and nothing else beside a band.
bool eight_bit_holds(const tandem_forward_args& args) {
  if (!is_eight_bit(number(args.q.dtype))) return args.scales == nullptr;
  if (args.sinks != nullptr || args.alibi_slopes != nullptr || args.tree != nullptr) return false;
  if (args.block_list != nullptr || (args.mask != nullptr && args.mask->chunk != 0)) return false;
  if (args.scales == nullptr) return true;
  const tandem_scales& scales = *args.scales;
  const bool by_column = number(scales.v_layout) == TANDEM_VALUES_BY_COLUMN;
  if (scales.v_terms < 0 || scales.v_terms > 2 || (scales.v_terms == 2 && !by_column)) return false;
  if (!(scales.qk_amplitude >= 0 && scales.qk_amplitude <= 448)) return false;
  const std::int64_t q_heads = args.q.shape[2], kv_heads = args.k.shape[2];
  return scales.struct_size == sizeof scales &&
         (by_column || number(scales.v_layout) == TANDEM_VALUES_BY_KEY) &&
         scales_hold(scales.q, scales.q_block, args.q, {q_heads, kv_heads}) &&
         scales_hold(scales.k, scales.k_block, args.k, {kv_heads}) &&
         scales_hold(scales.v, scales.v_block, args.k, {kv_heads}) &&
         shift_holds(scales.v_shift, args.k, false) && dots_hold(scales.q_dot_k_shift, args.q) &&
         (scales.q_dot_k_shift.data == nullptr || args.softcap == 0);
}

/// What a call reads beside q, k and v, as tensors.
std::vector<tandem_tensor> other_inputs(const tandem_forward_args& args) {
  const std::int64_t* q = args.q.shape;
  const auto words = static_cast<std::int64_t>(std::min(Wide{q[0]} * q[1], Wide{1} << 60));
  std::vector<tandem_tensor> all;
  if (args.sinks != nullptr) all.push_back(as_tensor(args.sinks, q[2]));
  if (args.alibi_slopes != nullptr) {
    all.push_back(as_tensor(args.alibi_slopes, q[2]));
    all.back().shape[0] = q[0], all.back().stride[0] = args.alibi_stride;
  }
  if (args.tree != nullptr)  // a word is two numbers of 32 bits
    all.push_back({const_cast<std::uint64_t*>(args.tree), TANDEM_FP32, {1, words, 1, 2}, {0, 2, 0, 1}});
  if (args.block_list != nullptr) {
    all.push_back(counts_of(args));
    all.push_back(blocks_of(args));
  }
  if (args.scales == nullptr) return all;
  const tandem_scales& scales = *args.scales;
  for (const tandem_tensor* t : {&scales.q, &scales.k, &scales.v, &scales.v_shift, &scales.q_dot_k_shift})
    if (t->data != nullptr) all.push_back(*t);
  return all;
}

bool block_list_holds(const tandem_block_list* list) {
  if (list == nullptr) return true;
  if (list->struct_size != sizeof *list) return false;
  const auto holds = [](std::int64_t number, std::int64_t least) {
    return number >= least && number <= INT32_MAX;
  };
  return holds(list->q_block, 1) && holds(list->k_block, 1) && holds(list->slots, 0) &&
         holds(list->batch_stride, 0) && holds(list->head_stride, 0);
}

bool slopes_hold(const tandem_forward_args& args) {
  return args.alibi_slopes == nullptr ||
         (args.alibi_stride >= 0 && (args.scale == 0 || args.scale >= 1e-30f) &&
          (args.softcap == 0 || args.softcap >= 1e-30f));
}

}  // namespace

Verdict judge(const tandem_forward_args& args) {
  if (args.struct_size != sizeof args || !is_host_backend(args.backend)) return Verdict::invalid;
  if (!factors_hold(args.scale, args.softcap) || !mask_holds(args.mask)) return Verdict::invalid;
  if (!dtypes_hold(args) || !shapes_hold(args) || !eight_bit_holds(args) || !slopes_hold(args) ||
      !block_list_holds(args.block_list))
    return Verdict::invalid;
  const std::vector<tandem_tensor> others = other_inputs(args);
  std::vector<const tandem_tensor*> inputs = {&args.q, &args.k, &args.v}, outputs = {&args.o};
  for (const tandem_tensor& t : others) inputs.push_back(&t);
  if (args.lse.data != nullptr) outputs.push_back(&args.lse);
  for (const auto& some : {inputs, outputs})
    for (const tandem_tensor* t : some)
      if (!memory_holds(*t)) return Verdict::invalid;
  constexpr std::uintptr_t bytes_of_word = 8;
  if (args.q.shape[0] > 0 && args.q.shape[1] > 0 &&
      reinterpret_cast<std::uintptr_t>(args.tree) % bytes_of_word != 0)
    return Verdict::invalid;
  return overlaps_hold(inputs, outputs);
}

}  // namespace tandem::fuzz
