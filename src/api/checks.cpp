#include "api/checks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>

#include "api/extent.h"
#include "core/dtype.h"
#include "core/workspace.h"

namespace tandem::api {

using core::ListedTensor;
using core::Mask;
using core::Region;
using core::Role;
using core::Status;
using core::Tensor;

namespace {

/// Of scores: times log2 e it has to be a float.
constexpr float max_factor = 2.3e38f;
constexpr const char* dimension_names[] = {"batch", "sequence length", "heads", "head dim"};

bool is_dtype(int number) { return number >= TANDEM_BF16 && number <= TANDEM_INT8; }

Status check_window_side(const char* name, std::int64_t keys, int kind) {
  if (kind != TANDEM_MASK_WINDOW && keys != 0)
    return invalid(name, " is ", keys, ", but mask.kind is ",
                   kind == TANDEM_MASK_FULL ? "TANDEM_MASK_FULL" : "TANDEM_MASK_CAUSAL",
                   ", which has no window; set it to 0, or mask.kind to TANDEM_MASK_WINDOW");
  if (keys < 0 && keys != TANDEM_UNLIMITED)
    return invalid(name, " is ", keys, "; it has to be 0 or more keys, or TANDEM_UNLIMITED (-1)");
  return {};
}

Status check_address(const ListedTensor& argument) {
  const Region& region = argument.region;
  if (is_empty(region)) return {};
  if (region.data == nullptr)
    return argument.is_array ? invalid(argument.name, " is NULL, but this call needs it")
                             : invalid(argument.address_name(),
                                       " is NULL; only a tensor without elements may have no memory");
  const auto address = reinterpret_cast<std::uintptr_t>(region.data);
  if (address % static_cast<std::uintptr_t>(region.element_bytes) != 0)
    return invalid(argument.address_name(), " is ", region.data, ", which is not aligned to its elements of ",
                   region.element_bytes, " bytes");
  Extent extent{};
  extent_of(region, &extent);
  const bool wraps = address < std::uintptr_t{0} - static_cast<std::uintptr_t>(extent.low) && extent.low < 0;
  if (wraps || address + static_cast<std::uintptr_t>(extent.high) < address)
    return invalid(argument.address_name(), " is ", region.data, ", from where ", argument.name,
                   argument.is_array ? "'s size leads" : ".shape and .stride lead",
                   " out of the address space");
  return {};
}

/// "[2, 3, 4, 8]": of the caller's dimensions, which are a region's last four.
std::string of_tensor(std::span<const std::int64_t> numbers) {
  const auto own = numbers.last<4>();
  return text("[", own[0], ", ", own[1], ", ", own[2], ", ", own[3], "]");
}

}  // namespace

bool is_8_bit(const tandem_dtype& dtype) { return is_dtype(number_of(dtype)) && core::is_8_bit(dtype); }

std::string describe_dtype(int number) {
  return text(number, " (", is_dtype(number) ? core::name_of(static_cast<tandem_dtype>(number)) : "unknown",
              ")");
}

Status check_struct_size(const char* name, std::size_t size, std::size_t first_version, std::size_t own) {
  if (size < first_version)
    return invalid(name, "->struct_size is ", size, ", less than that of the first version, ", first_version,
                   "; set it to the sizeof of the struct");
  if (size > own)
    return unsupported(name, "->struct_size is ", size, ", more than the ", own, " that Tandem ",
                       tandem_version(), " knows; load the library that the header belongs to");
  return {};
}

Status read_mask(const tandem_mask* given, tandem_mask* known) {
  return read_optional({"mask", "tandem_mask", TANDEM_SIZE_UP_TO(tandem_mask, window_right)}, given, known);
}

Status read_study(const tandem_study* given, tandem_study* known) {
  return read_optional({"study", "tandem_study", sizeof(tandem_study)}, given, known);
}

void drop_unused_strides(Tensor& tensor) {
  if (std::ranges::find(tensor.shape, 0) != std::end(tensor.shape)) {
    constexpr std::int64_t row = 1024;  // the same of keys and of values that lie in them
    std::fill_n(tensor.stride, 3, row);
    tensor.stride[3] = 1;
  }
  for (int i = 0; i < 4; ++i)
    if (tensor.shape[i] == 1) tensor.stride[i] = 0;
}

// ---- Options

Status check_backend(const tandem_backend& backend) {
  const int number = number_of(backend);
  if (number >= TANDEM_BACKEND_AUTO && number <= TANDEM_BACKEND_REFERENCE) return {};
  return invalid("backend is ", number,
                 ", which is no tandem_backend; use TANDEM_BACKEND_AUTO, _CPU, _HOPPER or ", "_REFERENCE");
}

Status check_mask(const tandem_mask& mask) {
  const int kind = number_of(mask.kind);
  if (kind < TANDEM_MASK_FULL || kind > TANDEM_MASK_WINDOW)
    return invalid("mask.kind is ", kind,
                   ", which is no tandem_mask_kind; use TANDEM_MASK_FULL, _CAUSAL or _WINDOW");
  if (Status s = check_window_side("mask.window_left", mask.window_left, kind); !s.ok()) return s;
  if (Status s = check_window_side("mask.window_right", mask.window_right, kind); !s.ok()) return s;
  if (mask.chunk >= 0 && mask.chunk <= Mask::max_length) return {};
  return invalid("mask.chunk is ", mask.chunk, "; it has to be 0 (no chunks) or from 1 to ",
                 Mask::max_length);
}

Status check_study(const tandem_study& study) {
  const int overlap = number_of(study.overlap), turn = number_of(study.turn),
            kernel = number_of(study.kernel);
  if (overlap < TANDEM_OVERLAP_AUTO || overlap > TANDEM_OVERLAP_THREE_STAGE)
    return invalid("study.overlap is ", overlap,
                   ", which is no tandem_overlap; use TANDEM_OVERLAP_AUTO, _SERIAL, _TWO_STAGE or ",
                   "_THREE_STAGE");
  if (turn < TANDEM_TURN_AUTO || turn > TANDEM_TURN_PINGPONG)
    return invalid("study.turn is ", turn,
                   ", which is no tandem_turn; use TANDEM_TURN_AUTO, _FREE or _PINGPONG");
  if (kernel < TANDEM_DECODE_AUTO || kernel > TANDEM_DECODE_REGISTER_P)
    return invalid("study.kernel is ", kernel,
                   ", which is no tandem_decode_kernel; use TANDEM_DECODE_AUTO, _PLAIN, _SHARED_P or ",
                   "_REGISTER_P");
  if (study.block_m < 0) return invalid("study.block_m is ", study.block_m, "; it has to be 0 (any) or more");
  if (study.block_n < 0) return invalid("study.block_n is ", study.block_n, "; it has to be 0 (any) or more");
  return {};
}

Status check_scales(const ScoreFactors& factors) {
  const auto [scale, softcap] = factors;
  if (!std::isfinite(scale) || scale < 0)
    return invalid("scale is ", scale, "; it has to be finite and > 0, or 0 for 1 / sqrt(head dim)");
  if (!std::isfinite(softcap) || softcap < 0)
    return invalid("softcap is ", softcap, "; it has to be finite and > 0, or 0 for none");
  if (scale > max_factor) return invalid("scale is ", scale, "; it has to be at most ", max_factor);
  if (softcap > max_factor)
    return invalid("softcap is ", softcap, "; it has to be at most ", max_factor, ", or 0 for none");
  if (const float largest = scale > 0 ? scale : 1.0f; softcap > 0 && !std::isfinite(largest / softcap))
    return invalid("softcap is ", softcap, " with scale ", scale,
                   "; scale / softcap has to be finite, or softcap 0 for none");
  return {};
}

Status check_split_size(const char* name, std::int64_t split_size) {
  constexpr std::int64_t unit = 64;
  if (split_size > Mask::max_length)  // sums with lengths have to fit
    return invalid(name, " is ", split_size, "; it has to be at most ", Mask::max_length,
                   ", or 0 to leave it to Tandem");
  if (split_size >= 0 && split_size % unit == 0) return {};
  return invalid(name, " is ", split_size, "; it has to be a multiple of ", unit,
                 " keys, or 0 to leave it to Tandem");
}

Status check_slopes(const float* slopes, std::int64_t stride, const ScoreFactors& factors) {
  constexpr float least = 1e-30f;  // slopes are divided by the cap, or by the scale
  if (slopes == nullptr) return {};
  if (stride < 0) return invalid("alibi_stride is ", stride, "; it has to be 0 or more elements");
  const auto [scale, softcap] = factors;
  if (softcap != 0 && softcap < least)
    return invalid("softcap is ", softcap, "; with alibi_slopes it has to be at least ", least,
                   ", or 0 for none");
  if (scale == 0 || scale >= least) return {};
  return invalid("scale is ", scale, "; with alibi_slopes it has to be at least ", least,
                 ", or 0 for 1 / sqrt(head dim)");
}

// ---- Types and shapes

Status check_dtype_of_q(const Tensor& q) {
  const int dtype = number_of(q.dtype);
  if (!is_dtype(dtype))
    return invalid("q.dtype is ", dtype,
                   ", which is no tandem_dtype; use TANDEM_BF16, TANDEM_FP16 or TANDEM_FP32");
  if (core::is_8_bit(q.dtype))
    return invalid("q.dtype is ", describe_dtype(dtype),
                   ", which only tandem_forward takes; use TANDEM_BF16, TANDEM_FP16 or TANDEM_FP32");
  return {};
}

Status check_dtype_as_q(const Named& argument, const Tensor& q) {
  const int own = number_of(argument.tensor->dtype), dtype = number_of(q.dtype);
  if (own == dtype) return {};
  return invalid(argument.name, ".dtype is ", describe_dtype(own), ", but q.dtype is ", describe_dtype(dtype),
                 "; inputs and outputs have one dtype");
}

Status check_dtype_of_lse(const Named& lse) {
  if (const int dtype = number_of(lse.tensor->dtype); dtype != TANDEM_FP32)
    return invalid(lse.name, ".dtype is ", describe_dtype(dtype), "; it has to be TANDEM_FP32");
  return {};
}

Status check_sizes(std::span<const Named> tensors) {
  for (const auto& [name, tensor] : tensors)
    for (int i = 0; i < 4; ++i)
      if (const std::int64_t size = tensor->shape[i]; size < 0)
        return invalid(name, ".shape[", i, "] (", dimension_names[i], ") is ", size, "; sizes are 0 or more");
  for (const auto& [name, tensor] : tensors) {
    const int dtype = number_of(tensor->dtype);  // of some not checked yet
    auto bytes =
        is_dtype(dtype) ? static_cast<std::int64_t>(core::size_of(static_cast<tandem_dtype>(dtype))) : 1;
    for (const std::int64_t size : tensor->shape)
      if (size != 0 && __builtin_mul_overflow(bytes, size, &bytes))
        return invalid(name, ".shape is ", of_tensor(tensor->shape),
                       "; its size in bytes, with 1 for what is 0, has to fit in 63 bits");
  }
  return {};
}

Status check_head_dim(const Named& tensor, std::int64_t most) {
  const std::int64_t head_dim = tensor.tensor->shape[3];
  if (head_dim == 0 || head_dim % 8 != 0 || head_dim > most)
    return invalid(tensor.name, ".shape[3] (head dim) is ", head_dim,
                   "; it has to be a multiple of 8 from 8 to ", most);
  return {};
}

Status check_switch(const char* name, std::int32_t value) {
  if (value == 0 || value == 1) return {};
  return invalid(name, " is ", value, "; it has to be 0 or 1");
}

Status check_hadamard(const Named& rows, const char* switch_name, std::int32_t value) {
  const std::int64_t d = rows.tensor->shape[3];
  if (value == 0 || std::has_single_bit(static_cast<std::uint64_t>(d))) return {};
  return invalid(rows.name, ".shape[3] (head dim) is ", d, ", but ", switch_name,
                 " is 1, which needs a power of two");
}

Status check_agreements(std::span<const Agreement> agreements) {
  for (const Agreement& a : agreements) {
    const std::int64_t value = a.tensor.tensor->shape[a.dimension],
                       expected = a.model.tensor->shape[a.dimension];
    if (value != expected)
      return invalid(a.tensor.name, ".shape[", a.dimension, "] (", dimension_names[a.dimension], ") is ",
                     value, ", but it has to be ", a.model.name, ".shape[", a.dimension, "], which is ",
                     expected);
  }
  return {};
}

Status check_columns_of_lse(const Named& lse) {
  if (lse.tensor->shape[3] != 1)
    return invalid(lse.name, ".shape[3] is ", lse.tensor->shape[3],
                   "; it has to be 1, one number per query and head");
  return {};
}

Status check_heads(const Tensor& q, const Named& k) {
  const std::int64_t q_heads = q.shape[2], kv_heads = k.tensor->shape[2];
  const bool divides = kv_heads == 0 ? q_heads == 0 : q_heads % kv_heads == 0;
  if (!divides)
    return invalid("q.shape[2] (heads) is ", q_heads, ", which is not a multiple of ", k.name,
                   ".shape[2] (heads), which is ", kv_heads);
  return {};
}

Status check_some_heads(const Tensor& q, const Named& k) {
  const std::int64_t q_heads = q.shape[2], kv_heads = k.tensor->shape[2];
  if (q_heads < kv_heads)
    return invalid("q.shape[2] (heads) is ", q_heads, ", less than ", k.name, ".shape[2] (heads), which is ",
                   kv_heads);
  return {};
}

// ---- Memory

Status check_strides(const core::TensorList& tensors) {
  for (const auto& [name, role, region, is_array] : tensors) {
    constexpr int last = Region::dimensions - 1;
    if (region.shape[last] != 1 && region.stride[last] != 1)
      return invalid(name, ".stride[3] (head dim) is ", region.stride[last],
                     "; it has to be 1: the last dimension is contiguous");
    if (Extent extent{}; !extent_of(region, &extent))
      return invalid(name, ".shape is ", of_tensor(region.shape), " with ", name, ".stride ",
                     of_tensor(region.stride), "; its size and its offsets in bytes have to fit in 63 bits");
  }
  return {};
}

Status check_distinct(const core::TensorList& tensors) {
  for (const auto& [name, role, region, is_array] : tensors)
    if (role != Role::input && overlaps_itself(region))
      return invalid(name, ".stride is ", of_tensor(region.stride), ", which gives two elements of ", name,
                     " the same address; an output's elements have to be distinct");
  return {};
}

Status check_addresses(const core::TensorList& tensors) {
  for (const ListedTensor& argument : tensors)
    if (Status s = check_address(argument); !s.ok()) return s;
  return {};
}

Status check_overlaps(const core::TensorList& tensors) {
  const auto check = [](const ListedTensor& output, const ListedTensor& other) -> Status {
    if (!overlap(output.region, other.region)) return {};
    return invalid(output.address_name(), " is ", output.region.data, ", whose elements overlap those of ",
                   other.name, " (", other.address_name(), " is ", other.region.data,
                   "); an output needs memory of its own");
  };
  for (const ListedTensor& output : tensors) {
    if (output.role == Role::input) continue;
    for (const ListedTensor& other : tensors)
      if (other.role == Role::input || &other < &output)
        if (Status s = check(output, other); !s.ok()) return s;
  }
  return {};
}

Status check_plan(core::TensorList tensors, const core::Region& plan, core::Role role, const char* made_by) {
  if (reinterpret_cast<std::uintptr_t>(plan.data) % core::workspace_alignment != 0)
    return invalid("plan is ", plan.data, ", which is not aligned to ", core::workspace_alignment,
                   " bytes; pass what ", made_by, " wrote to");
  tensors.add_array("plan", role, plan);
  if (Status s = check_addresses(tensors); !s.ok()) return s;
  return check_overlaps(tensors);
}

Status check_tensors(const core::TensorList& tensors, bool need_data) {
  if (Status s = check_strides(tensors); !s.ok()) return s;
  if (Status s = check_distinct(tensors); !s.ok() || !need_data) return s;
  if (Status s = check_addresses(tensors); !s.ok()) return s;
  return check_overlaps(tensors);
}

// ---- What the arguments mean

Mask resolve_mask(const tandem_mask& mask, std::int64_t q_len, std::int64_t k_len) {
  const bool full = mask.kind == TANDEM_MASK_FULL, causal = mask.kind == TANDEM_MASK_CAUSAL;
  const std::int64_t left = full || causal ? TANDEM_UNLIMITED : mask.window_left;
  const std::int64_t right = full ? TANDEM_UNLIMITED : causal ? 0 : mask.window_right;
  // A query's position lies in [sk - sq, sk - 1]: further out than these there are no keys to hide.
  const bool left_hides = left != TANDEM_UNLIMITED && left < k_len - 1;
  const bool right_hides = right != TANDEM_UNLIMITED && right < q_len - 1;
  // One chunk is as good as none, unless queries before the first key would see keys to their right.
  const bool one_chunk = mask.chunk >= k_len && (right == 0 || q_len <= 1);
  // Chunks of more keys than there are mean the same as of all of them, and fit the kernels' numbers.
  return {{left_hides ? left : Mask::unlimited, right_hides ? right : Mask::unlimited},
          one_chunk ? 0 : std::min(mask.chunk, std::max<std::int64_t>(k_len, 1))};
}

float resolve_scale(float scale, std::int64_t head_dim) {
  return scale > 0 ? scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

}  // namespace tandem::api
