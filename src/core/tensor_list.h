// TensorList: all memory that a call reads or writes, with its roles. From it come the checks of memory,
// which pointers have to be reachable, and what the simulator lets a kernel touch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <tandem/tandem.h>

#include "core/dtype.h"

namespace tandem::core {

using Tensor = tandem_tensor;

/// A tensor whose elements follow one another.
constexpr Tensor contiguous(void* data, tandem_dtype dtype, const std::array<std::int64_t, 4>& shape) {
  const auto& [b, s, h, d] = shape;
  return {data, dtype, {b, s, h, d}, {s * h * d, h * d, d, 1}};
}

/// Elements in memory: `shape` of them, `stride` elements apart.
struct Region {
  static constexpr int dimensions = 5;  ///< of parts and a tensor's four

  void* data;
  std::int64_t shape[dimensions], stride[dimensions];
  std::int64_t element_bytes;

  static constexpr Region of(const Tensor& t) { return of_parts(t, 1, 0); }
  /// `parts` tensors, `stride` elements apart, of which the first is given.
  static constexpr Region of_parts(const Tensor& t, std::int64_t parts, std::int64_t stride) {
    return {t.data,
            {parts, t.shape[0], t.shape[1], t.shape[2], t.shape[3]},
            {parts == 1 ? 0 : stride, t.stride[0], t.stride[1], t.stride[2], t.stride[3]},
            static_cast<std::int64_t>(size_of(t.dtype))};
  }
  /// `rows` rows of `columns` contiguous elements, `row_stride` apart.
  static constexpr Region of(const void* data, std::int64_t element_bytes, std::int64_t rows,
                             std::int64_t columns, std::int64_t row_stride) {
    return {const_cast<void*>(data),
            {1, 1, 1, rows, columns},
            {0, 0, 0, rows == 1 ? 0 : row_stride, 1},
            element_bytes};
  }
  static constexpr Region of(const void* data, std::size_t bytes) {
    return of(data, 1, 1, static_cast<std::int64_t>(bytes), 0);
  }
};

/// What a call does with memory.
enum class Role {
  input,   ///< reads it
  output,  ///< writes it, before anything reads it
  updated  ///< writes parts of it; what else is there may be read and stays
};

/// A tensor of a call, or an array that the caller passes as a plain address.
struct ListedTensor {
  const char* name;  ///< as callers know it: "q", "cache.k"
  Role role;
  Region region;
  bool is_array;

  /// The caller's name of its address.
  std::string address_name() const { return is_array ? name : std::string(name) + ".data"; }
};

/// Those that a call has. Tensors that are not wanted or not given (data == nullptr where that means none)
/// are not in it.
class TensorList {
 public:
  void add(const char* name, Role role, const Tensor& tensor) {
    add({name, role, Region::of(tensor), false});
  }
  void add(const char* name, Role role, const Region& region) { add({name, role, region, false}); }
  void add_array(const char* name, Role role, const Region& region) { add({name, role, region, true}); }

  const ListedTensor* begin() const { return all_.data(); }
  const ListedTensor* end() const { return all_.data() + count_; }

 private:
  void add(const ListedTensor& tensor) { all_.at(count_++) = tensor; }

  std::array<ListedTensor, 24> all_;
  std::size_t count_ = 0;
};

}  // namespace tandem::core
