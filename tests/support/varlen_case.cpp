#include "tests/support/varlen_case.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <numeric>
#include <sstream>

#include "core/dtype.h"
#include "cpu/forward.h"
#include "cpu/varlen.h"
#include "tests/support/feature_case.h"
#include "tests/support/forward_case.h"
#include "tests/support/oracle.h"
#include "tests/support/varlen_places.h"

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

/// Of an entry: padding and keys.
std::vector<std::int64_t> rows_of_keys(const VarlenCase& c) {
  std::vector<std::int64_t> rows = c.k_lens;
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] += c.padding_of(i);
  return rows;
}

/// Rows of a tensor behind the last sequence's, which nobody may touch.
constexpr std::int64_t spare_rows = 3;
/// Slopes of nobody's behind a sequence's.
constexpr std::int64_t spare_slopes = 2;

Shape q_shape(const VarlenCase& c, std::int64_t columns) {
  if (c.q_packed) return {1, total(c.q_lens) + spare_rows, c.q_heads, columns};
  return {count(c), longest(c.q_lens), c.q_heads, columns};
}

Shape k_shape(const VarlenCase& c, std::int64_t columns) {
  switch (c.keys) {
    case KeyLayout::packed:
      return {1, total(c.k_lens) + spare_rows, c.kv_heads, columns};
    case KeyLayout::entries:
      return {count(c) + (c.batch_index ? 2 : 0), longest(rows_of_keys(c)) + spare_rows, c.kv_heads, columns};
    default:
      return {count(c) * slots(c) + 1, c.page_size, c.kv_heads, columns};
  }
}

Shape new_shape(const VarlenCase& c, std::int64_t columns) {
  if (!c.appends()) return {1, 0, c.kv_heads, columns};
  if (c.new_packed) return {1, total(c.new_lens) + spare_rows, c.kv_heads, columns};
  return {count(c), c.new_lens.front(), c.kv_heads, columns};
}

std::int64_t table_positions(const VarlenCase& c) {
  if (c.rotary_dim == 0 || c.rotary_rows > 0) return c.rotary_rows;
  return std::max<std::int64_t>(1, longest(rows_of_keys(c)) - 1);
}
Shape table_shape(const VarlenCase& c) { return {1, 1, table_positions(c), c.rotary_dim / 2}; }

std::vector<std::int32_t> cumulated(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int32_t> sums(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), sums.begin() + 1);
  return sums;
}

/// Where rotary embedding sees a key: its row of the entry.
std::int64_t position_of(const VarlenCase& c, std::int64_t sequence, std::int64_t key) {
  return c.padding_of(static_cast<std::size_t>(sequence)) + key;
}

/// A row as position `position` has it: pairs are complex numbers, times e^(i angle).
std::vector<double> rotated(const VarlenTensors& t, const HostTensor& tensor, Place at, std::int64_t head,
                            std::int64_t position) {
  const VarlenCase& c = t.setup;
  std::vector<double> row(static_cast<std::size_t>(c.head_dim));
  tensor.get_row(at.entry, at.row, head, row);
  const std::int64_t half = c.rotary_dim / 2,
                     s = std::clamp<std::int64_t>(position, 0,
                                                  std::max<std::int64_t>(1, table_positions(c)) - 1);
  for (std::int64_t i = 0; i < half; ++i) {
    double& re = row[static_cast<std::size_t>(c.interleaved ? 2 * i : i)];
    double& im = row[static_cast<std::size_t>(c.interleaved ? 2 * i + 1 : half + i)];
    const std::complex<double> product =
        std::complex(re, im) * std::complex(t.cos.at(0, 0, s, i), t.sin.at(0, 0, s, i));
    re = product.real(), im = product.imag();
  }
  return row;
}

/// Angles as a model has them: position * 10000^(-pair / pairs).
void fill_tables(VarlenTensors& t) {
  const std::int64_t half = t.setup.rotary_dim / 2;
  for (std::int64_t s = 0; s < table_positions(t.setup); ++s)
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(s) * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
      t.cos.set(0, 0, s, i, static_cast<float>(std::cos(angle)));
      t.sin.set(0, 0, s, i, static_cast<float>(std::sin(angle)));
    }
}

/// What is wrong with one cache; `unit`: of a rounding.
std::string failure_of_cache(const HostTensor& now, const HostTensor& expected, const HostTensor& before,
                             double unit) {
  const core::Tensor view = now.view();
  HostTensor others(view.dtype, {view.shape[0], view.shape[1], view.shape[2], view.shape[3]});
  std::ranges::copy(now.storage(), others.storage().begin());
  std::ostringstream failure;
  for (std::int64_t b = 0; b < view.shape[0]; ++b)
    for (std::int64_t s = 0; s < view.shape[1]; ++s)
      for (std::int64_t h = 0; h < view.shape[2]; ++h)
        for (std::int64_t e = 0; e < view.shape[3]; ++e) {
          const double wanted = expected.at(b, s, h, e), found = now.at(b, s, h, e);
          if (std::isnan(wanted) || !std::isnan(before.at(b, s, h, e))) continue;  // not appended
          if (!(std::abs(found - wanted) <= unit * std::abs(wanted) + (unit > 0 ? 1e-6 : 0)))
            failure << "[" << b << ", " << s << ", " << h << ", " << e << "] is " << found << ", not "
                    << wanted << "; ";
          others.copy_element(before, {b, s, h, e});
        }
  if (!same_bytes(others, before)) failure << "others were written; ";
  return failure.str().substr(0, 600);
}

void fill_row(HostTensor& tensor, Place at, Random& random) {
  std::normal_distribution<float> normal;
  const core::Tensor view = tensor.view();
  std::vector<float> row(static_cast<std::size_t>(view.shape[3]));
  for (std::int64_t h = 0; h < view.shape[2]; ++h) {
    for (float& x : row) x = normal(random);
    tensor.set_row(at.entry, at.row, h, row);
  }
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
  out << core::name_of(c.dtype) << " h" << c.q_heads << "/" << c.kv_heads << " d" << c.head_dim;
  if (c.value_dim > 0) out << " dv" << c.value_dim;
  out << " sq x sk";
  for (std::size_t i = 0; i < c.q_lens.size(); ++i) out << " " << c.q_lens[i] << "x" << c.k_lens[i];
  out << (c.q_packed ? " q packed" : " q entries") << ", keys " << layouts[static_cast<int>(c.keys)];
  if (c.keys == KeyLayout::paged) out << " by " << c.page_size;
  const auto list = [&out](const char* name, const std::vector<std::int64_t>& numbers) {
    if (!numbers.empty()) out << name;
    for (const std::int64_t number : numbers) out << " " << number;
  };
  list(c.new_packed ? " new packed" : " new", c.new_lens);
  list(" padding", c.padding);
  if (c.rotary_dim > 0)
    out << " rotary " << c.rotary_dim << (c.interleaved ? " interleaved " : " halves ")
        << (c.rotary_of_dtype ? "of the dtype" : "fp32");
  return out << " left " << c.mask.left << " right " << c.mask.right << " chunk " << c.mask.chunk
             << " softcap " << c.softcap << (c.lse ? " lse" : "") << (c.sinks ? " sinks" : "")
             << (c.slopes ? c.slopes_by_sequence ? " slopes by sequence" : " slopes" : "")
             << (c.tree ? " tree" : "") << (c.batch_index ? " indexed" : "") << c.blocks << " split "
             << c.split_size << " seed " << c.seed;
}

/// Entries that stand somewhere, new keys, angles.
void draw_caches(Random& random, VarlenCase& c) {
  if (c.keys == KeyLayout::packed) return;
  if (c.keys == KeyLayout::entries) {
    c.batch_index = random() % 3 == 0;
    if (random() % 3 == 0)
      for (std::size_t i = 0; i < c.k_lens.size(); ++i)
        c.padding.push_back(static_cast<std::int64_t>(random() % 40));
  }
  if (random() % 2 == 0) return;
  c.new_packed = random() % 2 == 0;
  const auto fixed = static_cast<std::int64_t>(random() % 20);
  for (std::size_t i = 0; i < c.k_lens.size(); ++i) {
    if (!c.new_packed) c.k_lens[i] = std::max(c.k_lens[i], fixed);
    // As many as there are queries is the usual thing.
    const std::int64_t drawn = random() % 2 == 0 ? c.q_lens[i] : static_cast<std::int64_t>(random() % 50);
    c.new_lens.push_back(c.new_packed ? std::min(drawn, c.k_lens[i]) : fixed);
  }
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
  if (random() % 3 == 0)
    c.mask.chunk = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(2 * blocks.block_n));
  draw_caches(random, c);
  if (random() % 3 == 0) c.rotary_dim = 16 * static_cast<std::int64_t>(1 + random() % 4);
  c.interleaved = random() % 2 == 0;
  c.rotary_of_dtype = random() % 2 == 0;
  c.slopes = random() % 3 == 0, c.slopes_by_sequence = random() % 2 == 0;
  c.tree = random() % 3 == 0;
  return c;
}

VarlenTensors::VarlenTensors(const VarlenCase& c)
    : setup(c),
      q(c.dtype, q_shape(c, c.head_dim)),
      k(c.dtype, k_shape(c, c.head_dim)),
      v(c.dtype, k_shape(c, c.value_columns())),
      o(c.dtype, q_shape(c, c.value_columns())),
      lse(TANDEM_FP32, q_shape(c, 1)),
      k_new(c.dtype, new_shape(c, c.head_dim)),
      v_new(c.dtype, new_shape(c, c.value_columns())),
      cos(c.rotary_of_dtype ? c.dtype : TANDEM_FP32, table_shape(c), {.row_gap = 0}),
      sin(c.rotary_of_dtype ? c.dtype : TANDEM_FP32, table_shape(c), {.row_gap = 0}),
      cu_seqlens_q(cumulated(c.q_lens)),
      k_before_(c.dtype, k_shape(c, c.head_dim)),
      v_before_(c.dtype, k_shape(c, c.value_columns())),
      k_after_(c.dtype, k_shape(c, c.head_dim)),
      v_after_(c.dtype, k_shape(c, c.value_columns())),
      rotated_q_(TANDEM_FP32, q_shape(c, c.head_dim)),
      rounded_q_(c.dtype, q_shape(c, c.head_dim)) {
  Random random(c.seed);
  if (!c.q_packed) {
    // Entries are as long as the tensor: a sequence of fewer queries has none behind them.
    setup.q_lens.assign(c.q_lens.size(), longest(c.q_lens));
  }
  if (c.keys == KeyLayout::packed) cu_seqlens_k = cumulated(c.k_lens);
  for (std::size_t i = 0; c.keys != KeyLayout::packed && i < c.k_lens.size(); ++i) {
    keys_.push_back(static_cast<std::int32_t>(c.padding_of(i) + c.k_lens[i]));
    seqused_k.push_back(keys_.back() - static_cast<std::int32_t>(c.new_len(i)));
  }
  leftpad.assign(c.padding.begin(), c.padding.end());
  if (c.appends() && c.new_packed) cu_seqlens_new = cumulated(c.new_lens);
  if (c.batch_index) {
    batch_index.resize(c.k_lens.size() + 2);
    std::iota(batch_index.begin(), batch_index.end(), 0);
    std::shuffle(batch_index.begin(), batch_index.end(), random);
    batch_index.resize(c.k_lens.size());
  }
  if (c.keys == KeyLayout::paged) {
    pages_per_sequence = slots(c);
    page_table.resize(static_cast<std::size_t>(count(c) * pages_per_sequence));
    std::iota(page_table.begin(), page_table.end(), 0);
    std::shuffle(page_table.begin(), page_table.end(), random);
  }
  for_each_row(setup.q_lens,
               [&](std::int64_t i, std::int64_t row) { fill_row(q, q_place(*this, i, row), random); });
  fill_tables(*this);
  fill_keys(random);
  rotate_queries();
  // Of the scores' size, with one far beyond and one of no weight.
  std::normal_distribution<float> normal;
  for (std::int64_t h = 0; c.sinks && h < c.q_heads; ++h)
    sinks.push_back(h == 1   ? 200.f
                    : h == 2 ? -std::numeric_limits<float>::infinity()
                             : 2.f + 3.f * normal(random));
  const std::int64_t rows_of_slopes = !c.slopes ? 0 : c.slopes_by_sequence ? count(c) : 1;
  for (std::int64_t i = 0; i < rows_of_slopes * (c.q_heads + spare_slopes); ++i)
    slopes.push_back(draw_slope(i, random));
  const core::Tensor queries = q.view();
  for (std::int64_t i = 0; c.tree && i < queries.shape[0] * queries.shape[1]; ++i)
    tree.push_back(draw_tree_word(random));
  blocks = BlockListArrays(c.blocks, {count(c), c.q_heads, longest(setup.q_lens), longest(c.k_lens)});
  if (c.keys != KeyLayout::paged) return;
  // Slots of pages that are not in use may hold anything.
  for (std::int64_t i = 0; i < count(c); ++i) {
    const std::int64_t used = (c.k_lens[static_cast<std::size_t>(i)] + c.page_size - 1) / c.page_size;
    for (std::int64_t slot = used; slot < pages_per_sequence; ++slot)
      page_table[static_cast<std::size_t>(i * pages_per_sequence + slot)] =
          -1 - static_cast<std::int32_t>(random() % 9);
  }
}

void VarlenTensors::fill_keys(Random& random) {
  for_each_row(setup.k_lens, [&](std::int64_t i, std::int64_t row) {
    const auto sequence = static_cast<std::size_t>(i);
    const std::int64_t added = row - (setup.k_lens[sequence] - setup.new_len(sequence));
    const Place to = k_place(*this, i, row);
    if (added < 0) {
      fill_row(k, to, random);
      fill_row(v, to, random);
      return;
    }
    const Place from = new_place(*this, i, added);
    fill_row(k_new, from, random);
    fill_row(v_new, from, random);
    for (std::int64_t h = 0; h < setup.kv_heads; ++h) {
      const std::vector<double> key = rotated(*this, k_new, from, h, position_of(setup, i, row));
      for (std::int64_t e = 0; e < setup.head_dim; ++e)
        k_after_.set(to.entry, to.row, h, e, static_cast<float>(key[static_cast<std::size_t>(e)]));
      for (std::int64_t e = 0; e < setup.value_columns(); ++e)
        v_after_.set(to.entry, to.row, h, e, static_cast<float>(v_new.at(from.entry, from.row, h, e)));
    }
  });
  for_each_row(setup.k_lens, [&](std::int64_t i, std::int64_t row) {
    const auto sequence = static_cast<std::size_t>(i);
    if (row >= setup.k_lens[sequence] - setup.new_len(sequence)) return;
    const Place at = k_place(*this, i, row);
    for (std::int64_t h = 0; h < setup.kv_heads; ++h) {
      for (std::int64_t e = 0; e < setup.head_dim; ++e) k_after_.copy_element(k, {at.entry, at.row, h, e});
      for (std::int64_t e = 0; e < setup.value_columns(); ++e)
        v_after_.copy_element(v, {at.entry, at.row, h, e});
    }
  });
  std::ranges::copy(k.storage(), k_before_.storage().begin());
  std::ranges::copy(v.storage(), v_before_.storage().begin());
}

void VarlenTensors::rotate_queries() {
  for_each_row(setup.q_lens, [&](std::int64_t i, std::int64_t row) {
    const auto sequence = static_cast<std::size_t>(i);
    const Place at = q_place(*this, i, row);
    const std::int64_t key = setup.k_lens[sequence] - setup.q_lens[sequence] + row;
    for (std::int64_t h = 0; h < setup.q_heads; ++h) {
      const std::vector<double> values = rotated(*this, q, at, h, position_of(setup, i, key));
      for (std::int64_t e = 0; e < setup.head_dim; ++e)
        for (HostTensor* tensor : {&rotated_q_, &rounded_q_})
          tensor->set(at.entry, at.row, h, e, static_cast<float>(values[static_cast<std::size_t>(e)]));
    }
  });
}

core::ForwardProblem VarlenTensors::attended(bool queries_rounded) const {
  core::ForwardProblem p = problem();
  p.q = queries_rounded ? rounded_q_.view() : rotated_q_.view();
  p.k = k_after_.view(), p.v = v_after_.view();
  p.varlen.k_new = p.varlen.v_new = {};
  p.varlen.cu_seqlens_k_new = nullptr;
  p.varlen.rotary = {};
  if (!keys_.empty()) p.varlen.seqused_k = keys_.data();
  return p;
}

std::string VarlenTensors::cache_failure() const {
  const double unit = setup.dtype == TANDEM_BF16 ? 0x1p-7 : setup.dtype == TANDEM_FP16 ? 0x1p-10 : 0x1p-22;
  std::string failure;
  if (const std::string keys = failure_of_cache(k, k_after_, k_before_, unit); !keys.empty())
    failure += "keys: " + keys;
  if (const std::string values = failure_of_cache(v, v_after_, v_before_, 0); !values.empty())
    failure += "values: " + values;
  return failure;
}

core::ForwardProblem VarlenTensors::problem() const {
  core::ForwardProblem p{};
  p.q = q.view(), p.k = k.view(), p.v = v.view(), p.o = o.view();
  if (setup.lse) p.lse = lse.view();
  p.mask = setup.mask;
  p.scale = 1.0f / std::sqrt(static_cast<float>(setup.head_dim));
  p.softcap = setup.softcap;
  if (setup.sinks) p.sinks = sinks.data();
  if (setup.tree) p.tree = tree.data();
  if (setup.slopes) p.slopes = {slopes.data(), setup.slopes_by_sequence ? setup.q_heads + spare_slopes : 0};
  p.blocks = blocks.view();
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
  if (setup.appends()) p.varlen.k_new = k_new.view(), p.varlen.v_new = v_new.view();
  p.varlen.cu_seqlens_k_new = pointer(cu_seqlens_new);
  p.varlen.leftpad_k = pointer(leftpad);
  p.varlen.batch_index = pointer(batch_index);
  p.varlen.split_size = setup.split_size;
  if (setup.rotary_dim > 0)
    p.varlen.rotary = {cos.view().data,        sin.view().data,  cos.view().dtype,
                       table_positions(setup), setup.rotary_dim, setup.interleaved};
  return p;
}

std::int64_t spoil_unlisted(VarlenTensors& t) {
  const VarlenCase& c = t.setup;
  const core::BlockList list = t.blocks.view();
  const std::int64_t group = c.q_heads / c.kv_heads;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto listed = [&](std::int64_t i, std::int64_t kv, std::int64_t key) {
    for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h)
      for (std::int64_t q = 0; q < c.q_lens[static_cast<std::size_t>(i)]; q += list.q_block)
        if (list.shows(i, h, q, key)) return true;
    return false;
  };
  std::int64_t spoilt = 0;
  for_each_row(c.k_lens, [&](std::int64_t i, std::int64_t key) {
    const auto sequence = static_cast<std::size_t>(i);
    if (key >= c.k_lens[sequence] - c.new_len(sequence)) return;
    const Place at = k_place(t, i, key);
    for (std::int64_t kv = 0; kv < c.kv_heads; ++kv) {
      if (listed(i, kv, key)) continue;
      ++spoilt;
      for (std::int64_t e = 0; e < c.head_dim; ++e) t.k.set(at.entry, at.row, kv, e, nan);
      for (std::int64_t e = 0; e < c.value_columns(); ++e) t.v.set(at.entry, at.row, kv, e, nan);
    }
  });
  return spoilt;
}

VarlenValues varlen_values(const VarlenTensors& t) {
  VarlenValues values;
  cpu::SequenceMemory exact_memory(t.attended(false)), rounded_memory(t.attended(true));
  for (std::int64_t i = 0; i < count(t.setup); ++i) {
    const cpu::SequenceProblem exact(t.attended(false), i, exact_memory),
        rounded(t.attended(true), i, rounded_memory);
    const cpu::ReferenceValues reference = oracle_values(exact.problem());
    const ForwardValues standard = standard_forward(rounded.problem());
    append(values.reference.o, reference.o), append(values.reference.lse, reference.lse);
    append(values.standard.o, standard.o), append(values.standard.lse, standard.lse);
  }
  for_each_row(t.setup.q_lens, [&](std::int64_t i, std::int64_t row) {
    const Place at = q_place(t, i, row);
    for (std::int64_t h = 0; h < t.setup.q_heads; ++h) {
      for (std::int64_t e = 0; e < t.setup.value_columns(); ++e)
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

VarlenCase paged_case(std::vector<std::int64_t> q_lens, std::vector<std::int64_t> k_lens) {
  VarlenCase c;
  c.q_lens = std::move(q_lens), c.k_lens = std::move(k_lens);
  c.keys = KeyLayout::paged;
  c.q_heads = 4, c.kv_heads = 1;
  c.mask = core::Mask::causal();
  return c;
}

}  // namespace tandem::test
