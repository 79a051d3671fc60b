// Random numbers for the elements of tensors, cheap to draw.
#pragma once

#include <cstdint>

namespace tandem::test {

/// Numbers that are nearly normal: sums of eight that are uniform. None is beyond 4.9 deviations. The
/// standard library's cost as much as a small kernel on the software Hopper.
class NormalNumbers {
 public:
  explicit NormalNumbers(std::uint64_t seed, float deviation = 1.f)
      : state_(seed), factor_(deviation * 0x1.3988e2p-16f) {}

  float operator()() {
    const std::uint64_t fields = pairs_of(next()) + pairs_of(next());
    const auto sum = static_cast<std::int32_t>(fields + (fields >> 32));
    return static_cast<float>(sum - 8 * 0x8000 + 4) * factor_;  // + 4: a field's mean is 0x8000 - 1/2
  }

 private:
  /// Four fields of 16 bits, added to two of 32.
  static std::uint64_t pairs_of(std::uint64_t word) {
    constexpr std::uint64_t low = 0x0000ffff0000ffff;
    return (word & low) + (word >> 16 & low);
  }
  /// SplitMix64. Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  std::uint64_t state_;
  float factor_;  ///< of a sum, whose deviation is 2^16 * sqrt(8 / 12)
};

}  // namespace tandem::test
