// A tensor in host memory that notices what happens outside its elements.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <random>
#include <span>
#include <vector>

#include "core/problem.h"

namespace tandem::test {

using Random = std::mt19937_64;

/// How the rows of a tensor lie in memory. The head dim is contiguous always.
struct Layout {
  std::array<int, 3> order = {0, 1, 2};  ///< batch (0), sequence (1), heads (2), from outermost to innermost
  int row_gap = 8;                       ///< poison cells after each row
  std::array<bool, 3> reversed = {};     ///< negative stride of batch, sequence, heads
  std::array<bool, 3> broadcast = {};    ///< stride 0 of batch, sequence, heads; for inputs
};

std::ostream& operator<<(std::ostream& out, const Layout& layout);

/// Any layout for an output: every order, gaps of any size, negative strides.
Layout random_layout(Random& random);
/// The same for an input, with strides of 0 too.
Layout random_input_layout(Random& random);
/// A layout that TMA can take: positive strides that are multiples of 16 bytes.
Layout random_tma_layout(Random& random);

/// A tensor whose cells around and between the rows hold a NaN pattern: a read out of place poisons the
/// result, a write out of place breaks the pattern. The elements hold the same pattern until they are filled,
/// so that an element which was never written compares as NaN.
class HostTensor {
 public:
  HostTensor(tandem_dtype dtype, const std::array<std::int64_t, 4>& shape, const Layout& layout = {});

  HostTensor(const HostTensor& other);
  HostTensor(HostTensor&&) = default;
  HostTensor& operator=(HostTensor&&) = default;

  /// Strides of dimensions of size 1 are 0, as validation leaves them.
  core::Tensor view() const;
  /// The view of a copy of `storage()` that starts at `base`, for example in device memory.
  core::Tensor view_at(void* base) const;
  /// All cells with their guards, to copy to a device and back. Its address is a multiple of 256.
  std::span<std::byte> storage() { return {cells_, bytes_}; }
  std::span<const std::byte> storage() const { return {cells_, bytes_}; }

  double at(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t i) const;
  void set(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t i, float value);
  /// Elements [b, s, h, 0] and on: as many as there are.
  void set_row(std::int64_t b, std::int64_t s, std::int64_t h, std::span<const float> values);
  void get_row(std::int64_t b, std::int64_t s, std::int64_t h, std::span<double> values) const;
  /// The bits of one element of a tensor of the same shape, layout and dtype.
  void copy_element(const HostTensor& from, const std::array<std::int64_t, 4>& at);
  /// Elements in the order b, s, h, d.
  std::vector<double> values() const;

  void fill(float value);
  void fill_normal(std::uint64_t seed, float deviation = 1.0f);
  /// With NormalNumbers, in a tenth of the time.
  void fill_nearly_normal(std::uint64_t seed, float deviation = 1.0f);
  /// One of the two.
  void fill_random(bool nearly_normal, std::uint64_t seed, float deviation = 1.0f);
  /// Poisons every cell, elements too: outputs before a call.
  void poison();
  /// True while every cell outside the elements holds its pattern.
  bool guards_intact() const;
  /// True while every cell holds the pattern: nothing at all was written.
  bool untouched() const;

 private:
  template <typename Visit>
  void for_each_row(Visit visit) const;
  void allocate();
  std::byte* cell(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t i) const;

  std::vector<std::byte> memory_;
  std::byte* cells_ = nullptr;
  std::size_t bytes_ = 0;
  std::int64_t base_ = 0;  // cell of element [0, 0, 0, 0]
  core::Tensor tensor_{};
};

/// The same in every cell, guards too.
inline bool same_bytes(const HostTensor& a, const HostTensor& b) {
  const std::span<const std::byte> own = a.storage(), other = b.storage();
  return own.size() == other.size() && std::memcmp(own.data(), other.data(), own.size()) == 0;
}

}  // namespace tandem::test
