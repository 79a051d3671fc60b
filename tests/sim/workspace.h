// A decode workspace for tests.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace tandem::test {

/// Memory that lives as long as a workspace does: zeroed once, for calls of any shape.
class Workspace {
 public:
  /// At least `bytes`; what was there stays.
  std::span<std::byte> of(std::size_t bytes) {
    if (bytes > blocks_.size() * sizeof(Block)) blocks_.resize(bytes / sizeof(Block) + 1);
    return {blocks_.data()->bytes, bytes};
  }

 private:
  struct alignas(256) Block {
    std::byte bytes[256] = {};
  };
  std::vector<Block> blocks_;
};

}  // namespace tandem::test
