#include "tests/support/varlen_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/dtype.h"
#include "cpu/forward.h"
#include "cpu/varlen.h"
#include "tests/support/forward_case.h"

namespace tandem::test {
namespace {

using Shape = std::array<std::int64_t, 4>;

std::int64_t total(const std::vector<std::int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}
std::int64_t longest(const std::vector<std::int64_t>& lengths) {
  return std::max<std::int64_t>(1, *std::max_element(lengths.begin(), lengths.end()));
}
std::int64_t count(const VarlenCase& c) { return static_cast<std::int64_t>(c.q_lens.size()); }
std::int64_t slots(const VarlenCase& c) { return (longest(c.k_lens) + c.page_size - 1) / c.page_size; }

/// Rows of a tensor behind the last sequence's, which nobody may touch.
constexpr std::int64_t spare_rows = 3;

Shape q_shape(const VarlenCase& c, std::int64_t columns) {
  if (c.q_packed) return {1, total(c.q_lens) + spare_rows, c.q_heads, columns};
  return {count(c), longest(c.q_lens), c.q_heads, columns};
}

Shape k_shape(const VarlenCase& c) {
  switch (c.keys) {
    case KeyLayout::packed:
      return {1, total(c.k_lens) + spare_rows, c.kv_heads, c.head_dim};
    case KeyLayout::entries:
      return {count(c), longest(c.k_lens) + spare_rows, c.kv_heads, c.head_dim};
    default:
      return {count(c) * slots(c) + 1, c.page_size, c.kv_heads, c.head_dim};
  }
}

std::vector<std::int32_t> cumulated(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int32_t> sums(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), sums.begin() + 1);
  return sums;
}

struct Place {
  std::int64_t entry, row;
};
Place q_place(const VarlenTensors& t, std::int64_t sequence, std::int64_t row) {
  if (!t.setup.q_packed) return {sequence, row};
  return {0, t.cu_seqlens_q[static_cast<std::size_t>(sequence)] + row};
}
Place k_place(const VarlenTensors& t, std::int64_t sequence, std::int64_t row) {
  if (t.setup.keys == KeyLayout::packed) return {0, t.cu_seqlens_k[static_cast<std::size_t>(sequence)] + row};
  if (t.setup.keys == KeyLayout::entries) return {sequence, row};
  const std::int64_t slot = sequence * t.pages_per_sequence + row / t.setup.page_size;
  return {t.page_table[static_cast<std::size_t>(slot)], row % t.setup.page_size};
}

template <typename Visit>
void for_each_row(const std::vector<std::int64_t>& lengths, Visit visit) {
  for (std::size_t i = 0; i < lengths.size(); ++i)
    for (std::int64_t row = 0; row < lengths[i]; ++row) visit(static_cast<std::int64_t>(i), row);
}

void fill_row(HostTensor& tensor, Place at, Random& random) {
  std::normal_distribution<float> normal;
  const core::Tensor view = tensor.view();
  for (std::int64_t h = 0; h < view.shape[2]; ++h)
    for (std::int64_t e = 0; e < view.shape[3]; ++e) tensor.set(at.entry, at.row, h, e, normal(random));
}

void append(std::vector<double>& to, const std::vector<double>& values) {
  to.insert(to.end(), values.begin(), values.end());
}

std::int64_t draw_length(Random& random, int block) {
  switch (random() % 6) {
    case 0:
      return static_cast<std::int64_t>(random() % 3);
    case 1:
      return block * static_cast<std::int64_t>(1 + random() % 2) + static_cast<std::int64_t>(random() % 3) -
             1;
    default:
      return static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(3 * block));
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const VarlenCase& c) {
  static constexpr const char* layouts[] = {"packed", "entries", "paged"};
  out << core::name_of(c.dtype) << " h" << c.q_heads << "/" << c.kv_heads << " d" << c.head_dim << " sq x sk";
  for (std::size_t i = 0; i < c.q_lens.size(); ++i) out << " " << c.q_lens[i] << "x" << c.k_lens[i];
  out << (c.q_packed ? " q packed" : " q entries") << ", keys " << layouts[static_cast<int>(c.keys)];
  if (c.keys == KeyLayout::paged) out << " by " << c.page_size;
  return out << " left " << c.mask.left << " right " << c.mask.right << " softcap " << c.softcap
             << (c.lse ? " lse" : "") << (c.sinks ? " sinks" : "") << " seed " << c.seed;
}

VarlenCase draw_varlen_case(Random& random, const VarlenBlocks& blocks) {
  VarlenCase c;
  c.seed = random();
  const std::uint64_t sequences = 1 + random() % static_cast<std::uint64_t>(blocks.most_sequences);
  for (std::uint64_t i = 0; i < sequences; ++i) {
    c.q_lens.push_back(draw_length(random, blocks.block_m));
    c.k_lens.push_back(draw_length(random, blocks.block_n));
  }
  c.q_packed = random() % 4 != 0;
  c.keys = static_cast<KeyLayout>(random() % 3);
  c.page_size = std::int64_t{16} << random() % 5;
  c.kv_heads = 1 + static_cast<std::int64_t>(random() % 2);
  c.q_heads = c.kv_heads << random() % 3;
  c.mask = random_mask(random, longest(c.q_lens), longest(c.k_lens));
  c.lse = random() % 4 != 0;
  c.sinks = random() % 3 == 0;
  return c;
}

VarlenTensors::VarlenTensors(const VarlenCase& c)
    : setup(c),
      q(c.dtype, q_shape(c, c.head_dim)),
      k(c.dtype, k_shape(c)),
      v(c.dtype, k_shape(c)),
      o(c.dtype, q_shape(c, c.head_dim)),
      lse(TANDEM_FP32, q_shape(c, 1)),
      cu_seqlens_q(cumulated(c.q_lens)) {
  Random random(c.seed);
  if (!c.q_packed) {
    // Entries are as long as the tensor: a sequence of fewer queries has none behind them.
    setup.q_lens.assign(c.q_lens.size(), longest(c.q_lens));
  }
  if (c.keys == KeyLayout::packed) cu_seqlens_k = cumulated(c.k_lens);
  if (c.keys != KeyLayout::packed) seqused_k.assign(c.k_lens.begin(), c.k_lens.end());
  if (c.keys == KeyLayout::paged) {
    pages_per_sequence = slots(c);
    page_table.resize(static_cast<std::size_t>(count(c) * pages_per_sequence));
    std::iota(page_table.begin(), page_table.end(), 0);
    std::shuffle(page_table.begin(), page_table.end(), random);
  }
  for_each_row(setup.q_lens,
               [&](std::int64_t i, std::int64_t row) { fill_row(q, q_place(*this, i, row), random); });
  for_each_row(setup.k_lens, [&](std::int64_t i, std::int64_t row) {
    fill_row(k, k_place(*this, i, row), random);
    fill_row(v, k_place(*this, i, row), random);
  });
  // Of the scores' size, with one far beyond and one of no weight.
  std::normal_distribution<float> normal;
  for (std::int64_t h = 0; c.sinks && h < c.q_heads; ++h)
    sinks.push_back(h == 1   ? 200.f
                    : h == 2 ? -std::numeric_limits<float>::infinity()
                             : 2.f + 3.f * normal(random));
  if (c.keys != KeyLayout::paged) return;
  // Slots of pages that are not in use may hold anything.
  for (std::int64_t i = 0; i < count(c); ++i) {
    const std::int64_t used = (c.k_lens[static_cast<std::size_t>(i)] + c.page_size - 1) / c.page_size;
    for (std::int64_t slot = used; slot < pages_per_sequence; ++slot)
      page_table[static_cast<std::size_t>(i * pages_per_sequence + slot)] =
          -1 - static_cast<std::int32_t>(random() % 9);
  }
}

core::ForwardProblem VarlenTensors::problem() const {
  core::ForwardProblem p{};
  p.q = q.view(), p.k = k.view(), p.v = v.view(), p.o = o.view();
  if (setup.lse) p.lse = lse.view();
  p.mask = setup.mask;
  p.scale = 1.0f / std::sqrt(static_cast<float>(setup.head_dim));
  p.softcap = setup.softcap;
  if (setup.sinks) p.sinks = sinks.data();
  const auto pointer = [](const std::vector<std::int32_t>& words) {
    return words.empty() ? nullptr : words.data();
  };
  p.varlen = {.given = true,
              .sequences = count(setup),
              .cu_seqlens_q = setup.q_packed ? cu_seqlens_q.data() : nullptr,
              .cu_seqlens_k = pointer(cu_seqlens_k),
              .seqused_k = pointer(seqused_k),
              .page_table = pointer(page_table),
              .page_table_stride = pages_per_sequence,
              .pages_per_sequence = pages_per_sequence,
              .max_seqlen_q = longest(setup.q_lens),
              .max_seqlen_k = longest(setup.k_lens)};
  return p;
}

VarlenValues varlen_values(const VarlenTensors& t) {
  VarlenValues values;
  for (std::int64_t i = 0; i < count(t.setup); ++i) {
    const cpu::SequenceProblem sequence(t.problem(), i);
    const cpu::ReferenceValues reference = cpu::reference_values(sequence.problem());
    const ForwardValues standard = standard_forward(sequence.problem());
    append(values.reference.o, reference.o), append(values.reference.lse, reference.lse);
    append(values.standard.o, standard.o), append(values.standard.lse, standard.lse);
  }
  for_each_row(t.setup.q_lens, [&](std::int64_t i, std::int64_t row) {
    const Place at = q_place(t, i, row);
    for (std::int64_t h = 0; h < t.setup.q_heads; ++h) {
      for (std::int64_t e = 0; e < t.setup.head_dim; ++e)
        values.result.o.push_back(t.o.at(at.entry, at.row, h, e));
      values.result.lse.push_back(t.lse.at(at.entry, at.row, h, 0));
    }
  });
  return values;
}

bool others_untouched(const VarlenTensors& t) {
  if (!t.o.guards_intact() || !t.lse.guards_intact()) return false;
  if (!t.setup.q_packed) return true;
  const std::int64_t past = total(t.setup.q_lens);
  for (std::int64_t row = past; row < past + spare_rows; ++row)
    for (std::int64_t h = 0; h < t.setup.q_heads; ++h)
      if (!std::isnan(t.o.at(0, row, h, 0)) || !std::isnan(t.lse.at(0, row, h, 0))) return false;
  return true;
}

}  // namespace tandem::test
