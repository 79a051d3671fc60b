#include "hw/tensor_map.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "core/dtype.h"

namespace tandem::hw {
namespace {

constexpr std::int64_t max_dim = core::BasicMask<std::int32_t>::max_length;
constexpr std::int64_t max_stride_bytes = std::int64_t{1} << 40;
constexpr int alignment = 16;

core::Status unsupported(const std::string& what, int dimension, std::int64_t value,
                         const std::string& allowed) {
  return {TANDEM_UNSUPPORTED, what + "[" + std::to_string(dimension) + "] is " + std::to_string(value) +
                                  "; the Hopper backend takes " + allowed};
}

std::string not_aligned(const std::string& name, std::uintptr_t address) {
  return name + " is not aligned: its address modulo 16 is " + std::to_string(address % alignment) +
         "; the Hopper backend needs addresses that are multiples of 16 bytes";
}

}  // namespace

core::Status check_tensor(const char* name, const core::Tensor& tensor) {
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (address % alignment != 0) {
    return {TANDEM_INVALID_ARGUMENT, not_aligned(std::string(name) + ".data", address)};
  }
  // Nothing is loaded from an empty tensor, so that it may have any strides.
  for (const std::int64_t size : tensor.shape)
    if (size == 0) return {};
  const auto element = static_cast<std::int64_t>(core::size_of(tensor.dtype));
  for (int i = 0; i < 3; ++i) {
    if (tensor.shape[i] > max_dim)
      return unsupported(std::string(name) + ".shape", i, tensor.shape[i], "at most 2^28");
    if (tensor.shape[i] <= 1) continue;
    const std::int64_t stride = tensor.stride[i];
    if (stride < 0 || stride >= max_stride_bytes / element || stride * element % alignment != 0) {
      return unsupported(std::string(name) + ".stride", i, stride,
                         "non-negative multiples of " + std::to_string(alignment / element) +
                             " elements below 2^40 bytes (a limit of TMA)");
    }
  }
  return {};
}

core::Status check_rotary(const char* name, const core::Rotary& rotary) {
  for (auto [table, data] : {std::pair{".cos", rotary.cos}, {".sin", rotary.sin}}) {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    if (address % alignment != 0)
      return {TANDEM_INVALID_ARGUMENT, not_aligned(std::string(name) + table, address)};
  }
  return {};
}

TensorMapRequest tensor_map_request(const core::Tensor& tensor, BoxRows box) {
  const std::uint64_t element = core::size_of(tensor.dtype);
  const auto dim = [&](int i) { return static_cast<std::uint64_t>(tensor.shape[i]); };
  const std::uint64_t counted = std::max<std::uint64_t>(element, 2);  // 8-bit elements count in pairs
  const std::uint64_t row = dim(3) * element / counted;
  // TMA wants a valid stride also where there is nothing to step over.
  const auto stride = [&](int i) {
    return tensor.shape[i] > 1 ? static_cast<std::uint64_t>(tensor.stride[i]) * element
                               : std::uint64_t{alignment};
  };
  constexpr std::uint32_t row_bytes = 128;
  const auto columns = static_cast<std::uint32_t>(box.columns > 0 ? static_cast<std::uint64_t>(box.columns)
                                                                  : row_bytes / counted);
  const Swizzle swizzle = tensor.dtype == TANDEM_FP32 ? Swizzle::none : Swizzle::bytes128;
  const auto heads = static_cast<std::uint32_t>(std::min(box.heads, box.rows));
  const std::uint32_t positions = static_cast<std::uint32_t>(box.rows) / heads;
  if (box.packed) {
    constexpr std::uint64_t any = std::uint64_t{1} << 31;
    return {tensor.data,
            5,
            {row, PackedOrigin::packed_rows, dim(2), any, any},
            {stride(1), stride(2), PackedOrigin::wrapping_bytes - stride(1), stride(1)},
            {columns, positions, 1, 1, 1},
            swizzle};
  }
  if (box.heads == 1)
    return {tensor.data,
            4,
            {row, dim(1), dim(2), dim(0)},
            {stride(1), stride(2), stride(0)},
            {columns, positions, 1, 1},
            swizzle};
  return {tensor.data,
          4,
          {row, dim(2), dim(1), dim(0)},
          {stride(2), stride(1), stride(0)},
          {columns, heads, positions, 1},
          swizzle};
}

}  // namespace tandem::hw
