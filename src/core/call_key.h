// CallKey: all that a call's meaning depends on beside what its memory holds, as words. Two calls with one
// key mean the same, so what one was found to be need not be found again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tandem::core {

class CallKey {
 public:
  /// The bytes of a struct as they are: fields that it gets later are in them. Addresses count as numbers,
  /// those of structs have to be null. False where there is no more room; the key is of no use then.
  template <typename Struct>
  bool add(const Struct& fields) {
    static_assert(sizeof(Struct) % sizeof(std::uint64_t) == 0);
    constexpr std::size_t count = sizeof(Struct) / sizeof(std::uint64_t);
    if (count > words_.size() - size_) return false;
    std::memcpy(words_.data() + size_, &fields, sizeof(Struct));
    size_ += count;
    return true;
  }

  /// Four sums side by side: a single chain of multiplications would take longer than all else here.
  std::uint64_t hash() const {
    std::uint64_t sums[4] = {size_, 1, 2, 3};
    for (std::size_t i = 0; i < size_; ++i) sums[i % 4] = (sums[i % 4] ^ words_[i]) * 0x9e3779b97f4a7c15u;
    std::uint64_t hash = 0;
    for (const std::uint64_t sum : sums) hash = (hash ^ (sum >> 29)) * 0x9e3779b97f4a7c15u;
    return hash >> 32;
  }

  friend bool operator==(const CallKey& a, const CallKey& b) {
    return a.size_ == b.size_ &&
           std::memcmp(a.words_.data(), b.words_.data(), a.size_ * sizeof(std::uint64_t)) == 0;
  }

  CallKey() {}
  CallKey(const CallKey& other) { *this = other; }
  CallKey& operator=(const CallKey& other) {
    size_ = other.size_;
    std::memcpy(words_.data(), other.words_.data(), size_ * sizeof(std::uint64_t));
    return *this;
  }

 private:
  std::array<std::uint64_t, 192> words_;  // the first size_ are written
  std::size_t size_ = 0;
};

}  // namespace tandem::core
