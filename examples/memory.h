// SPDX-License-Identifier: Apache-2.0
//
// Memory of the backend, and bf16 numbers on the host, for examples. Device memory needs EXAMPLE_CUDA and the
// CUDA runtime.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include <tandem/attention.hpp>
#ifdef EXAMPLE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace example {

/// Whether Hopper can be used, and this program reach its memory.
inline bool hopper_usable() {
#ifdef EXAMPLE_CUDA
  tandem_info info{};
  info.struct_size = sizeof info;
  return tandem_get_info(&info) == TANDEM_OK && info.hopper_usable != 0;
#else
  return false;
#endif
}

/// Where memory is made: to be set before any is.
inline bool on_device = false;

/// Ends the program where a call has failed.
inline void require(const tandem::Status& status) {
  if (status) return;
  std::fprintf(stderr, "%s: %s\n", status.name(), status.message().c_str());
  std::exit(1);
}

/// Zeroed memory of the backend.
template <typename T>
class Array {
 public:
  explicit Array(std::size_t size) : size_(size) {
    const std::size_t bytes = std::max<std::size_t>(1, size * sizeof(T));
#ifdef EXAMPLE_CUDA
    if (on_device) {
      void* memory = nullptr;
      if (cudaMalloc(&memory, bytes) != cudaSuccess || cudaMemset(memory, 0, bytes) != cudaSuccess)
        std::abort();
      data_ = static_cast<T*>(memory);
      return;
    }
#endif
    data_ = static_cast<T*>(::operator new(bytes, alignment));
    std::memset(static_cast<void*>(data_), 0, bytes);
  }
  explicit Array(const std::vector<T>& values) : Array(values.size()) { write(values); }
  ~Array() {
    if (data_ == nullptr) return;
#ifdef EXAMPLE_CUDA
    if (on_device) {
      cudaFree(data_);
      return;
    }
#endif
    ::operator delete(data_, alignment);
  }
  Array(Array&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  /// The first values.size() elements.
  void write(const std::vector<T>& values) { copy(data_, values.data(), values.size()); }
  std::vector<T> read() const {
    std::vector<T> values(size_);
    copy(values.data(), data_, size_);
    return values;
  }

 private:
  static constexpr std::align_val_t alignment{256};

  void copy(T* to, const T* from, std::size_t count) const {
    if (count == 0) return;
#ifdef EXAMPLE_CUDA
    if (on_device) {  // waits for what was enqueued before
      if (cudaMemcpy(to, from, count * sizeof(T), cudaMemcpyDefault) != cudaSuccess) std::abort();
      return;
    }
#endif
    std::memcpy(static_cast<void*>(to), from, count * sizeof(T));
  }

  T* data_ = nullptr;
  std::size_t size_;
};

inline float value_of(tandem::Bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

/// Rounded to the nearest, even in the middle. Not of NaN.
inline tandem::Bf16 bf16_of(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  tandem::Bf16 rounded{};
  rounded.bits = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  return rounded;
}

}  // namespace example
