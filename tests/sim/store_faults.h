// What tests of faults of asynchronous stores share.
#pragma once

#include "tests/sim/faults.h"

namespace tandem {

/// One block that stores tile `a` to a matrix of 128 x 64; or several that add it, as 64 x 32 fp32, to sums.
class StoreFaults : public Faults {
 protected:
  static constexpr std::size_t sums = 64 * 32;

  StoreFaults() : sums_(sums + 4) {
    const auto address = reinterpret_cast<std::uintptr_t>(sums_.data());
    sum_ = sums_.data() + (16 - address % 16) % 16 / 4;
    sum_map_ = hw::sim::encode_tensor_map({.address = sum_,
                                           .dims = {32, 64, 1, 1},
                                           .stride_bytes = {128, 128, 128},
                                           .box = {32, 64, 1, 1},
                                           .element_bytes = 4});
    config_.buffers = {Buffer{tensor_, 2 * tile_bytes, "output", true},
                       Buffer{sum_, sums * sizeof(float), "sums", true},
                       Buffer{&counter_, sizeof counter_, "counter", true}};
  }

  static void prepare() {
    fill_tiles();
    hw::fence_async_proxy();
    hw::sync_block();
  }
  void start_store(int row = 0) const { hw::store_box(map_, {0, row, 0, 0}, shared().a); }
  void store(int row = 0) const {
    start_store(row);
    hw::commit_stores();
  }
  void add() const {
    hw::reduce_add_box(sum_map_, {0, 0, 0, 0}, shared().a);
    hw::commit_stores();
  }
  static void overwrite() { shared().a[9][9] = 1; }
  const std::uint32_t* output() const { return reinterpret_cast<const std::uint32_t*>(tensor_); }
  /// The how-many-th block to run the calling thread's is.
  int turn() {
    const auto found = std::find(turns_.begin(), turns_.end(), hw::block_index());
    const auto turn = static_cast<int>(found - turns_.begin());
    if (found == turns_.end()) turns_.push_back(hw::block_index());
    return turn;
  }

  hw::TensorMap sum_map_;
  std::vector<float> sums_;
  float* sum_;
  std::uint32_t counter_ = 0;
  std::vector<std::uint32_t> turns_;
};

}  // namespace tandem
