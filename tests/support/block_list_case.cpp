#include "tests/support/block_list_case.h"

namespace tandem::test {

std::ostream& operator<<(std::ostream& out, const BlockListCase& c) {
  if (!c.given()) return out;
  return out << " lists " << c.q_block << "x" << c.k_block << (c.each_entry ? " each entry" : "")
             << (c.each_head ? " each head" : "") << " of seed " << c.seed;
}

BlockListCase draw_block_list(Random& random, std::int64_t unit) {
  const auto block = [&] { return unit * static_cast<std::int64_t>(1 + random() % 3); };
  return {block(), block(), random() % 2 == 0, random() % 2 == 0, random()};
}

BlockListArrays::BlockListArrays(const BlockListCase& c, const ListedShape& shape)
    : setup_(c), heads_(shape.heads) {
  if (!c.given()) return;
  Random random(c.seed);
  const std::int64_t key_blocks = (shape.k_len + c.k_block - 1) / c.k_block;
  slots_ = key_blocks + static_cast<std::int64_t>(random() % 3);
  rows_of_list_ = (shape.q_len + c.q_block - 1) / c.q_block;
  const std::int64_t lists = (c.each_entry ? shape.batch : 1) * (c.each_head ? shape.heads : 1);
  for (std::int64_t row = 0; row < lists * rows_of_list_; ++row) {
    const std::uint64_t in_four = random() % 5;  // so many blocks of four are listed
    const std::size_t begin = blocks_.size();
    for (std::int64_t block = 0; block < key_blocks; ++block)
      if (random() % 4 < in_four) blocks_.push_back(static_cast<std::int32_t>(block));
    counts_.push_back(static_cast<std::int32_t>(blocks_.size() - begin));
    blocks_.resize(begin + static_cast<std::size_t>(slots_), static_cast<std::int32_t>(key_blocks - 1));
  }
}

core::BlockList BlockListArrays::view() const {
  if (!setup_.given()) return {};
  const std::int64_t of_entry = rows_of_list_ * (setup_.each_head ? heads_ : 1);
  return {setup_.q_block,
          setup_.k_block,
          counts_.data(),
          blocks_.data(),
          slots_,
          setup_.each_entry ? of_entry : 0,
          setup_.each_head ? rows_of_list_ : 0};
}

BlockListArrays BlockListArrays::of_entries(std::span<const std::size_t> which) const {
  if (!setup_.each_entry) return *this;
  BlockListArrays own = *this;
  own.counts_.clear(), own.blocks_.clear();
  const core::BlockList all = view();
  for (const std::size_t entry : which) {
    const std::int64_t first = static_cast<std::int64_t>(entry) * all.batch_stride;
    own.counts_.insert(own.counts_.end(), all.counts + first, all.counts + first + all.batch_stride);
    own.blocks_.insert(own.blocks_.end(), all.blocks + first * slots_,
                       all.blocks + (first + all.batch_stride) * slots_);
  }
  return own;
}

}  // namespace tandem::test
