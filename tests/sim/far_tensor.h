// Tensors whose elements lie further apart than 32 bits reach, in memory that is mapped but mostly not there.
#pragma once

#include <array>
#include <cstring>
#include <new>
#include <sys/mman.h>

#include "core/dtype.h"
#include "tests/support/host_tensor.h"

namespace tandem::test {

/// A copy of a tensor with another stride of one dimension, so that its last index lies beyond 2^31 elements.
/// A dimension of one index stays as it is.
class FarTensor {
 public:
  FarTensor(const HostTensor& near, int dim) : tensor_(near.view()) {
    constexpr std::int64_t far = std::int64_t{1} << 31;
    if (tensor_.shape[dim] > 1) tensor_.stride[dim] = far / (tensor_.shape[dim] - 1) / 16 * 16 + 16;
    std::int64_t last = tensor_.shape[3];
    for (int i = 0; i < 3; ++i) last += (tensor_.shape[i] - 1) * tensor_.stride[i];
    bytes_ = static_cast<std::size_t>(last) * core::size_of(tensor_.dtype);
    tensor_.data =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (tensor_.data == MAP_FAILED) throw std::bad_alloc();
    copy(near.view(), tensor_);
  }
  ~FarTensor() { munmap(tensor_.data, bytes_); }
  FarTensor(const FarTensor&) = delete;
  FarTensor& operator=(const FarTensor&) = delete;

  const core::Tensor& view() const { return tensor_; }
  /// Brings the elements back.
  void copy_to(HostTensor& near) const { copy(tensor_, near.view()); }

 private:
  static void copy(const core::Tensor& from, const core::Tensor& to) {
    const std::size_t size = core::size_of(from.dtype);
    const auto row = [size](const core::Tensor& t, const std::array<std::int64_t, 3>& at) {
      const std::int64_t offset = at[0] * t.stride[0] + at[1] * t.stride[1] + at[2] * t.stride[2];
      return static_cast<std::byte*>(t.data) + offset * static_cast<std::int64_t>(size);
    };
    for (std::int64_t b = 0; b < from.shape[0]; ++b)
      for (std::int64_t s = 0; s < from.shape[1]; ++s)
        for (std::int64_t h = 0; h < from.shape[2]; ++h)
          std::memcpy(row(to, {b, s, h}), row(from, {b, s, h}),
                      static_cast<std::size_t>(from.shape[3]) * size);
  }

  core::Tensor tensor_;
  std::size_t bytes_ = 0;
};

}  // namespace tandem::test
