#include "tests/support/varlen_batch.h"

#include <algorithm>
#include <bit>

#include "tests/support/varlen_places.h"

namespace tandem::test {

VarlenTensors sequences_of(const VarlenTensors& all, const std::vector<std::size_t>& which) {
  VarlenCase c = all.setup;
  for (auto lengths :
       {&VarlenCase::q_lens, &VarlenCase::k_lens, &VarlenCase::new_lens, &VarlenCase::padding}) {
    (c.*lengths).clear();
    for (const std::size_t i : which)
      if (!(all.setup.*lengths).empty()) (c.*lengths).push_back((all.setup.*lengths)[i]);
  }
  c.rotary_rows = all.cos.view().shape[2], ++c.seed;
  VarlenTensors own(c);
  const auto copy = [](HostTensor& to, Place at, const HostTensor& from, Place source) {
    for (std::int64_t h = 0; h < from.view().shape[2]; ++h)
      for (std::int64_t e = 0; e < from.view().shape[3]; ++e)
        to.set(at.entry, at.row, h, e, static_cast<float>(from.at(source.entry, source.row, h, e)));
  };
  const auto source_of = [&which](std::int64_t sequence) {
    return static_cast<std::int64_t>(which[static_cast<std::size_t>(sequence)]);
  };
  const auto word = [](const VarlenTensors& t, Place at) {
    return static_cast<std::size_t>(at.entry * t.q.view().shape[1] + at.row);
  };
  for_each_row(own.setup.q_lens, [&](std::int64_t i, std::int64_t row) {
    const Place to = q_place(own, i, row), from = q_place(all, source_of(i), row);
    copy(own.q, to, all.q, from);
    if (c.tree) own.tree[word(own, to)] = all.tree[word(all, from)];
  });
  for_each_row(c.k_lens, [&](std::int64_t i, std::int64_t row) {
    const auto own_index = static_cast<std::size_t>(i);
    const std::int64_t added = row - (c.k_lens[own_index] - c.new_len(own_index));
    const bool is_new = added >= 0;
    const Place to = is_new ? new_place(own, i, added) : k_place(own, i, row);
    const Place from = is_new ? new_place(all, source_of(i), added) : k_place(all, source_of(i), row);
    copy(is_new ? own.k_new : own.k, to, is_new ? all.k_new : all.k, from);
    copy(is_new ? own.v_new : own.v, to, is_new ? all.v_new : all.v, from);
  });
  const std::size_t rows = c.slopes && c.slopes_by_sequence ? which.size() : 0;
  const std::size_t row_slopes = all.slopes.size() / all.setup.q_lens.size();
  for (std::size_t i = 0; i < rows; ++i)
    std::copy_n(all.slopes.data() + which[i] * row_slopes, row_slopes, own.slopes.data() + i * row_slopes);
  own.blocks = all.blocks.of_entries(which);
  own.sinks = all.sinks;
  if (!c.slopes_by_sequence) own.slopes = all.slopes;
  return own;
}

std::vector<std::uint64_t> bits_of(const VarlenTensors& t, std::size_t sequence) {
  std::vector<std::uint64_t> bits;
  const auto i = static_cast<std::int64_t>(sequence);
  for (std::int64_t row = 0; row < t.setup.q_lens[sequence]; ++row) {
    const Place at = q_place(t, i, row);
    for (std::int64_t h = 0; h < t.setup.q_heads; ++h) {
      for (std::int64_t e = 0; e < t.setup.value_columns(); ++e)
        bits.push_back(std::bit_cast<std::uint64_t>(t.o.at(at.entry, at.row, h, e)));
      if (t.setup.lse) bits.push_back(std::bit_cast<std::uint64_t>(t.lse.at(at.entry, at.row, h, 0)));
    }
  }
  return bits;
}

}  // namespace tandem::test
