// SPDX-License-Identifier: Apache-2.0
//
// What all calls of attention.hpp share: element types, views of tensors, masks, statuses.
#ifndef TANDEM_TENSOR_HPP
#define TANDEM_TENSOR_HPP

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include <tandem/tandem.h>

namespace tandem {

/// bfloat16 and IEEE binary16 as storage: 16 bits, no arithmetic.
struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};
/// 8 bits with 4 of exponent and 3 of mantissa (OCP E4M3): what eight_bit.hpp quantises to.
struct E4m3 {
  std::uint8_t bits;
};

/// The dtype behind an element type. Specialise it for other types of the same bits, for example
/// `template <> inline constexpr tandem_dtype tandem::dtype_of<__nv_bfloat16> = TANDEM_BF16;`
template <typename T>
inline constexpr auto dtype_of = nullptr;
template <>
inline constexpr tandem_dtype dtype_of<Bf16> = TANDEM_BF16;
template <>
inline constexpr tandem_dtype dtype_of<Fp16> = TANDEM_FP16;
template <>
inline constexpr tandem_dtype dtype_of<float> = TANDEM_FP32;
template <>
inline constexpr tandem_dtype dtype_of<E4m3> = TANDEM_E4M3;
template <>
inline constexpr tandem_dtype dtype_of<std::int8_t> = TANDEM_INT8;

/// A type that has a dtype, const or not.
template <typename T>
concept Element = std::same_as<decltype(dtype_of<std::remove_const_t<T>>), const tandem_dtype>;

/// An element type of outputs.
template <typename T>
concept MutableElement = Element<T> && !std::is_const_v<T>;

struct Shape {
  std::int64_t batch = 1, sequence = 1, heads = 1, head_dim = 1;
};

/// In elements. The last dimension is contiguous.
struct Strides {
  std::int64_t batch, sequence, heads;
};

/// A borrowed tensor, in host or device memory. Tensor<const T> is what is read, Tensor<T> what is written.
template <Element T>
struct Tensor {
  T* data = nullptr;
  Shape shape = {.batch = 0, .sequence = 0, .heads = 0, .head_dim = 0};
  Strides strides = {};

  /// Contiguous in the order batch, sequence, heads, head dim.
  static constexpr Tensor bshd(T* data, Shape s) {
    const std::int64_t row = s.heads * s.head_dim;
    return {data, s, {.batch = s.sequence * row, .sequence = row, .heads = s.head_dim}};
  }
  /// Contiguous in the order batch, heads, sequence, head dim.
  static constexpr Tensor bhsd(T* data, Shape s) {
    const std::int64_t head = s.sequence * s.head_dim;
    return {data, s, {.batch = s.heads * head, .sequence = s.head_dim, .heads = head}};
  }

  constexpr operator Tensor<const T>() const requires MutableElement<T> { return {data, shape, strides}; }

  /// As the C interface takes it, which never writes through an input.
  tandem_tensor c_tensor() const {
    return {const_cast<std::remove_const_t<T>*>(data),
            dtype_of<std::remove_const_t<T>>,
            {shape.batch, shape.sequence, shape.heads, shape.head_dim},
            {strides.batch, strides.sequence, strides.heads, 1}};
  }
};

/// Which keys a query sees. Query i stands at position i + (sk - sq): the last one sees the last key.
class Mask {
 public:
  static constexpr Mask full() { return {TANDEM_MASK_FULL, 0, 0}; }
  static constexpr Mask causal() { return {TANDEM_MASK_CAUSAL, 0, 0}; }
  /// `left` keys before the query's position and `right` after it; TANDEM_UNLIMITED for all.
  static constexpr Mask window(std::int64_t left, std::int64_t right) {
    return {TANDEM_MASK_WINDOW, left, right};
  }
  /// The same, of which a query sees only the keys in its own position's chunk of so many.
  constexpr Mask in_chunks(std::int64_t positions) const {
    Mask cut = *this;
    cut.mask_.chunk = positions;
    return cut;
  }
  constexpr const tandem_mask& c_mask() const { return mask_; }

 private:
  constexpr Mask(tandem_mask_kind kind, std::int64_t left, std::int64_t right)
      : mask_{sizeof(tandem_mask), kind, left, right, 0} {}
  tandem_mask mask_;
};

/// OK, or why not. Converts to true where it is OK.
class [[nodiscard]] Status {
 public:
  Status() = default;
  /// Of a call that this thread has just made.
  explicit Status(tandem_status code) : code_(code), message_(code == TANDEM_OK ? "" : tandem_last_error()) {}

  explicit operator bool() const { return code_ == TANDEM_OK; }
  tandem_status code() const { return code_; }
  const char* name() const { return tandem_status_name(code_); }
  /// Which argument, what it was, what is allowed; empty where it is OK.
  const std::string& message() const { return message_; }

 private:
  tandem_status code_ = TANDEM_OK;
  std::string message_;
};

/// What a workspace on the host can be made of: std::vector<WorkspaceBlock> has the alignment that it needs.
struct alignas(256) WorkspaceBlock {
  std::byte bytes[256];
};

}  // namespace tandem

#endif  // TANDEM_TENSOR_HPP
