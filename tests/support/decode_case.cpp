#include "tests/support/decode_case.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <numeric>
#include <sstream>

#include "core/dtype.h"

namespace tandem::test {
namespace {

std::int64_t pages_per_sequence(const DecodeCase& c) {
  return c.page_size > 0 ? c.capacity / c.page_size : 1;
}

/// Rows of the page table, or entries: as many as sequences, and two more where an index may leave some out.
std::int64_t rows_of(const DecodeCase& c) { return c.batch() + (c.batch_index ? 2 : 0); }

std::array<std::int64_t, 4> cache_shape(const DecodeCase& c) {
  if (c.page_size == 0) return {rows_of(c), c.capacity, c.kv_heads, c.head_dim};
  return {c.batch() * pages_per_sequence(c) + 3, c.page_size, c.kv_heads, c.head_dim};
}

/// Angles as a model has them: position * 10000^(-pair / pairs).
void fill_tables(DecodeTensors& t, std::int64_t positions) {
  const std::int64_t half = t.setup.rotary_dim / 2;
  for (std::int64_t s = 0; s < positions; ++s)
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(s) * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
      t.cos.set(0, 0, s, i, static_cast<float>(std::cos(angle)));
      t.sin.set(0, 0, s, i, static_cast<float>(std::sin(angle)));
    }
}

std::int64_t table_positions(const DecodeCase& c) {
  // One fewer than there may be, so that the last position takes the nearest row.
  return c.rotary_dim == 0 ? 0 : std::max<std::int64_t>(1, c.capacity - 1);
}

/// Pages in random order for what is in use; any number elsewhere.
void fill_page_table(DecodeTensors& t, Random& random) {
  const DecodeCase& c = t.setup;
  if (c.page_size == 0) return;
  const std::int64_t slots = pages_per_sequence(c);
  t.page_table_stride = slots + static_cast<std::int64_t>(random() % 4);
  t.page_table.resize(static_cast<std::size_t>(rows_of(c) * t.page_table_stride));
  for (std::int32_t& slot : t.page_table) slot = static_cast<std::int32_t>(random());
  std::vector<std::int32_t> pages(static_cast<std::size_t>(cache_shape(c)[0]));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random);
  for (std::int64_t b = 0; b < c.batch(); ++b) {
    const std::int64_t row = c.batch_index ? t.batch_index[static_cast<std::size_t>(b)] : b;
    const std::int64_t used = (c.length(b) + c.new_len + c.page_size - 1) / c.page_size;
    for (std::int64_t slot = 0; slot < used; ++slot) {
      t.page_table[static_cast<std::size_t>(row * t.page_table_stride + slot)] = pages.back();
      pages.pop_back();
    }
  }
}

std::array<std::int64_t, 4> scale_shape(const DecodeCase& c) {
  const DecodeCase::EightBit& own = c.eight_bit;
  if (!own.on || !own.scaled) return {0, 0, 0, 1};
  if (!own.per_token) return {own.by_sequence ? c.batch() : 1, 1, own.by_head ? c.kv_heads : 1, 1};
  const auto [pages, rows, heads, columns] = cache_shape(c);
  return {pages, rows, heads, 1};
}

/// Scales of sequences; those of tokens come with them.
void fill_scales(DecodeTensors& t, Random& random) {
  const DecodeCase::EightBit& own = t.setup.eight_bit;
  if (!own.on || !own.scaled || own.per_token) return;
  std::uniform_real_distribution<float> scale(0.25f, 2.f);
  for (std::int64_t b = 0; b < (own.by_sequence ? t.setup.batch() : 1); ++b)
    for (std::int64_t h = 0; h < (own.by_head ? t.setup.kv_heads : 1); ++h)
      for (HostTensor* scales : {&t.k_scale, &t.v_scale}) scales->set(b, 0, h, 0, scale(random));
}

/// Also the tokens' own scales.
void fill_cache(DecodeTensors& t, Random& random) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> scale(0.1f, 2.f);
  const DecodeCase& c = t.setup;
  fill_scales(t, random);
  for (std::int64_t b = 0; b < c.batch(); ++b)
    for (std::int64_t s = 0; s < c.length(b); ++s) {
      const auto [page, row] = t.place(b, s);
      for (std::int64_t h = 0; h < c.kv_heads; ++h)
        for (std::int64_t e = 0; e < c.head_dim; ++e) {
          t.k_cache.set(page, row, h, e, normal(random));
          t.v_cache.set(page, row, h, e, normal(random));
        }
      for (std::int64_t h = 0; c.eight_bit.per_token && h < c.kv_heads; ++h)
        for (HostTensor* scales : {&t.k_scale, &t.v_scale}) scales->set(page, row, h, 0, scale(random));
    }
}

std::vector<float> draw_sinks(const DecodeCase& c) {
  Random random(c.seed + 3);
  std::normal_distribution<float> normal(1.f, 2.f);
  std::vector<float> sinks(c.sinks ? static_cast<std::size_t>(c.q_heads) : 0);
  for (float& sink : sinks) sink = normal(random);
  if (sinks.size() > 1) sinks[1] = 200.f;
  if (sinks.size() > 2) sinks[2] = -std::numeric_limits<float>::infinity();
  return sinks;
}

double rounded(tandem_dtype dtype, double value) {
  const auto narrow = static_cast<float>(value);
  if (dtype == TANDEM_BF16) return static_cast<float>(core::Bf16::from(narrow));
  if (dtype == TANDEM_FP16) return static_cast<float>(core::Fp16::from(narrow));
  return narrow;
}

/// What an 8-bit cache makes of a new token's row, in plain words: divided by the scale, which for a token of
/// its own (given 0) is the least power of two that brings the largest to 448 or less, rounded, multiplied.
double quantise(tandem_dtype dtype, std::vector<double>& row, double given) {
  double largest = 0, scale = given;
  for (double& x : row) x = rounded(dtype, x), largest = std::max(largest, std::abs(x));
  if (given == 0) scale = largest == 0 ? 1 : std::exp2(std::ceil(std::log2(largest / 448)));
  for (double& x : row)
    x = static_cast<float>(core::E4m3::from(static_cast<float>(x) * (1.f / static_cast<float>(scale)))) *
        scale;
  return scale;
}

/// Row [b, s, h] rotated as position `position`: pairs are complex numbers, times e^(i angle).
std::vector<double> rotated(const DecodeTensors& t, const HostTensor& tensor, const std::int64_t (&at)[3],
                            std::int64_t position) {
  const DecodeCase& c = t.setup;
  std::vector<double> row;
  for (std::int64_t e = 0; e < c.head_dim; ++e) row.push_back(tensor.at(at[0], at[1], at[2], e));
  if (c.rotary_dim == 0) return row;
  const std::int64_t half = c.rotary_dim / 2,
                     s = std::clamp<std::int64_t>(position, 0, table_positions(c) - 1);
  for (std::int64_t i = 0; i < half; ++i) {
    double& re = row[static_cast<std::size_t>(c.interleaved ? 2 * i : i)];
    double& im = row[static_cast<std::size_t>(c.interleaved ? 2 * i + 1 : half + i)];
    const std::complex<double> product =
        std::complex(re, im) * std::complex(t.cos.at(0, 0, s, i), t.sin.at(0, 0, s, i));
    re = product.real(), im = product.imag();
  }
  return row;
}

/// A HostTensor of one sequence's rows.
HostTensor dense(tandem_dtype dtype, const std::array<std::int64_t, 4>& shape,
                 const std::vector<double>& values) {
  HostTensor tensor(dtype, shape);
  const double* value = values.data();
  for (std::int64_t s = 0; s < shape[1]; ++s)
    for (std::int64_t h = 0; h < shape[2]; ++h)
      for (std::int64_t e = 0; e < shape[3]; ++e) tensor.set(0, s, h, e, static_cast<float>(*value++));
  return tensor;
}

void append_to(ForwardValues& all, const ForwardValues& one) {
  all.o.insert(all.o.end(), one.o.begin(), one.o.end());
  all.lse.insert(all.lse.end(), one.lse.begin(), one.lse.end());
}

/// One query row of plain_decode; returns its log-sum-exp.
double plain_row(const core::DecodeProblem& p, const SequenceValues& s, std::int64_t row, double* o) {
  const std::int64_t d = p.head_dim(), query = row / p.q_heads(), head = row % p.q_heads() / p.group();
  const double sink = p.sinks == nullptr ? 0 : std::exp(static_cast<double>(p.sinks[row % p.q_heads()]));
  const std::int64_t position = s.keys - p.q_len() + query;
  std::vector<double> weights(static_cast<std::size_t>(s.keys), 0.0);
  double sum = sink;
  for (std::int64_t key = 0; key < s.keys; ++key) {
    const bool left = p.mask.left == core::Mask::unlimited || key >= position - p.mask.left;
    const bool right = p.mask.right == core::Mask::unlimited || key <= position + p.mask.right;
    if (!left || !right) continue;
    double score = 0;
    for (std::int64_t e = 0; e < d; ++e) score += s.q[row * d + e] * s.k[(key * p.kv_heads() + head) * d + e];
    score *= static_cast<double>(p.scale);
    if (p.softcap > 0) score = p.softcap * std::tanh(score / p.softcap);
    sum += weights[static_cast<std::size_t>(key)] = std::exp(score);
  }
  std::fill_n(o, d, 0.0);
  for (std::int64_t key = 0; key < s.keys; ++key)
    for (std::int64_t e = 0; e < d && weights[static_cast<std::size_t>(key)] > 0; ++e)
      o[e] += weights[static_cast<std::size_t>(key)] / sum * s.v[(key * p.kv_heads() + head) * d + e];
  return std::log(sum);
}

}  // namespace

std::int64_t DecodeCase::length(std::int64_t b) const {
  return std::clamp<std::int64_t>(lengths[static_cast<std::size_t>(b)], 0, capacity - new_len);
}

std::ostream& operator<<(std::ostream& out, const DecodeCase& c) {
  out << core::name_of(c.dtype) << " sq" << c.q_len << " h" << c.q_heads << "/" << c.kv_heads << " d"
      << c.head_dim << " new " << c.new_len << " lengths";
  for (const std::int32_t length : c.lengths) out << " " << length;
  out << " of " << c.capacity;
  if (c.page_size > 0) out << " pages of " << c.page_size;
  if (c.batch_index) out << " indexed";
  if (c.rotary_dim > 0)
    out << " rotary " << c.rotary_dim << (c.interleaved ? " interleaved " : " halves ")
        << core::name_of(c.rotary_dtype);
  out << " left " << c.mask.left << " right " << c.mask.right << " scale " << c.scale << " softcap "
      << c.softcap;
  if (c.split_size > 0) out << " split " << c.split_size;
  if (c.kernel != TANDEM_DECODE_AUTO) out << " kernel " << c.kernel;
  if (c.eight_bit.on)
    out << " 8 bits " << (c.eight_bit.per_token ? "per token" : "") << (c.eight_bit.scaled ? "" : "unscaled")
        << (c.eight_bit.by_sequence ? " by sequence" : "") << (c.eight_bit.by_head ? " by head" : "");
  return out << (c.lse ? " lse" : "") << (c.sinks ? " sinks" : "") << " seed " << c.seed;
}

DecodeCase random_decode_case(std::uint64_t seed, tandem_dtype dtype, std::int64_t head_dim) {
  Random random(seed);
  const auto one_of = [&](std::initializer_list<std::int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  DecodeCase c;
  c.seed = seed, c.dtype = dtype, c.head_dim = head_dim;
  c.q_len = one_of({1, 1, 1, 2, 3, 4, 8});
  c.kv_heads = one_of({1, 1, 2, 3});
  c.q_heads = c.kv_heads * one_of({1, 2, 3, 4, 5, 8, 16});
  c.new_len = random() % 2 == 0 ? 0 : one_of({1, 1, c.q_len, 3, 9});
  c.page_size = one_of({0, 0, 1, 4, 16, 64, 128, 256});
  const std::int64_t unit = c.page_size > 0 ? c.page_size : 1;
  c.capacity = (one_of({20, 70, 130, 300, 500}) + unit - 1) / unit * unit;
  c.lengths.clear();
  for (std::int64_t b = one_of({1, 2, 3, 5}); b > 0; --b) {
    const auto fits = static_cast<std::uint64_t>(c.capacity - c.new_len + 1);
    const auto length = static_cast<std::int32_t>(random() % fits);
    c.lengths.push_back(
        static_cast<std::int32_t>(one_of({length, length, length, length, 0, c.capacity, -7})));
  }
  c.batch_index = random() % 3 == 0;
  if (random() % 2 == 0) c.rotary_dim = random() % 2 == 0 ? head_dim / 16 * 16 : 16;
  c.interleaved = random() % 2 == 0;
  if (random() % 3 == 0) c.rotary_dtype = dtype;
  if (head_dim < 16) c.rotary_dim = 0;
  const auto side = [&] {
    return random() % 3 == 0 ? core::Mask::unlimited : static_cast<std::int64_t>(random() % 200);
  };
  if (const auto kind = random() % 4; kind == 1)
    c.mask = core::Mask::causal();
  else if (kind == 2)
    c.mask = {side(), random() % 2 == 0 ? 0 : side()};
  c.scale = random() % 4 == 0 ? 0.3f : 0.0f;
  c.softcap = random() % 4 == 0 ? 5.0f : 0.0f;
  c.split_size = random() % 3 == 0 ? one_of({64, 128, 256}) : 0;
  c.lse = random() % 4 != 0;
  for (Layout* layout : {&c.q, &c.cache, &c.added, &c.o, &c.lse_layout}) *layout = random_tma_layout(random);
  c.sinks = random() % 3 == 0;
  return c;
}

void draw_eight_bit_cache(DecodeCase& c, Random& random) {
  c.eight_bit = {.on = true, .per_token = random() % 2 == 0, .scaled = true};
  if (c.eight_bit.per_token) return;
  c.eight_bit.scaled = random() % 4 != 0;
  c.eight_bit.by_sequence = random() % 2 == 0;
  c.eight_bit.by_head = random() % 2 == 0;
}

DecodeTensors::DecodeTensors(const DecodeCase& c)
    : setup(c),
      q(c.dtype, {c.batch(), c.q_len, c.q_heads, c.head_dim}, c.q),
      k_cache(c.cache_dtype(), cache_shape(c), c.cache),
      v_cache(c.cache_dtype(), cache_shape(c), c.cache),
      k_new(c.dtype, {c.batch(), c.new_len, c.kv_heads, c.head_dim}, c.added),
      v_new(c.dtype, {c.batch(), c.new_len, c.kv_heads, c.head_dim}, c.added),
      o(c.dtype, {c.batch(), c.q_len, c.q_heads, c.head_dim}, c.o),
      lse(TANDEM_FP32, {c.batch(), c.q_len, c.q_heads, 1}, c.lse_layout),
      cos(c.rotary_dtype, {1, 1, table_positions(c), c.rotary_dim / 2}, {.row_gap = 0}),
      sin(c.rotary_dtype, {1, 1, table_positions(c), c.rotary_dim / 2}, {.row_gap = 0}),
      k_scale(TANDEM_FP32, scale_shape(c), c.lse_layout),
      v_scale(TANDEM_FP32, scale_shape(c), c.lse_layout),
      sinks(draw_sinks(c)) {
  Random random(c.seed);
  q.fill_normal(random());
  k_new.fill_normal(random());
  v_new.fill_normal(random());
  fill_tables(*this, table_positions(c));
  if (c.batch_index) {
    batch_index.resize(static_cast<std::size_t>(rows_of(c)));
    std::iota(batch_index.begin(), batch_index.end(), 0);
    std::shuffle(batch_index.begin(), batch_index.end(), random);
    batch_index.resize(static_cast<std::size_t>(c.batch()));
  }
  fill_page_table(*this, random);
  fill_cache(*this, random);
}

DecodeTensors::Place DecodeTensors::place(std::int64_t b, std::int64_t position) const {
  const std::int64_t row = setup.batch_index ? batch_index[static_cast<std::size_t>(b)] : b;
  if (setup.page_size == 0) return {row, position};
  const std::int64_t slot = row * page_table_stride + position / setup.page_size;
  return {page_table[static_cast<std::size_t>(slot)], position % setup.page_size};
}

core::DecodeProblem DecodeTensors::problem() const {
  core::DecodeProblem p{};
  p.q = q.view();
  p.k_cache = k_cache.view();
  p.v_cache = v_cache.view();
  if (setup.new_len > 0) {
    p.k_new = k_new.view();
    p.v_new = v_new.view();
  }
  p.o = o.view();
  if (setup.lse) p.lse = lse.view();
  p.page_table = setup.page_size > 0 ? page_table.data() : nullptr;
  p.lengths = setup.lengths.data();
  p.batch_index = setup.batch_index ? batch_index.data() : nullptr;
  p.page_table_stride = page_table_stride;
  p.pages_per_sequence = pages_per_sequence(setup);
  if (setup.rotary_dim > 0)
    p.rotary = {cos.view().data,        sin.view().data,  setup.rotary_dtype,
                table_positions(setup), setup.rotary_dim, setup.interleaved};
  p.mask = setup.mask;
  p.scale = setup.scale > 0 ? setup.scale : 1.0f / std::sqrt(static_cast<float>(setup.head_dim));
  p.softcap = setup.softcap;
  p.split_size = setup.split_size;
  p.kernel = setup.kernel;
  p.sinks = setup.sinks ? sinks.data() : nullptr;
  if (setup.eight_bit.on && setup.eight_bit.scaled)
    p.scales = {k_scale.view(), v_scale.view(), setup.eight_bit.per_token};
  return p;
}

double DecodeTensors::scale(const HostTensor& scales, std::int64_t b, const Place& at,
                            std::int64_t head) const {
  const DecodeCase::EightBit& own = setup.eight_bit;
  if (!own.on || !own.scaled) return 1;
  if (own.per_token) return scales.at(at.page, at.row, head, 0);
  return scales.at(own.by_sequence ? b : 0, 0, own.by_head ? head : 0, 0);
}

SequenceValues DecodeTensors::sequence(std::int64_t b) const {
  const std::int64_t length = setup.length(b);
  SequenceValues s{length + setup.new_len, {}, {}, {}};
  for (std::int64_t i = 0; i < setup.q_len; ++i)
    for (std::int64_t h = 0; h < setup.q_heads; ++h)
      for (const double value : rotated(*this, q, {b, i, h}, s.keys - setup.q_len + i)) s.q.push_back(value);
  for (std::int64_t key = 0; key < s.keys; ++key)
    for (std::int64_t h = 0; h < setup.kv_heads; ++h) {
      const Place at = place(b, key);
      std::vector<double> k(static_cast<std::size_t>(setup.head_dim)), v = k;
      if (key >= length) {
        k = rotated(*this, k_new, {b, key - length, h}, key);
        for (std::size_t e = 0; e < v.size(); ++e)
          v[e] = v_new.at(b, key - length, h, static_cast<std::int64_t>(e));
        if (setup.eight_bit.on) {
          quantise(setup.dtype, k, setup.eight_bit.per_token ? 0 : scale(k_scale, b, at, h));
          quantise(setup.dtype, v, setup.eight_bit.per_token ? 0 : scale(v_scale, b, at, h));
        }
        for (double& x : k) x = setup.eight_bit.on ? x : rounded(setup.dtype, x);
      } else {
        for (std::size_t e = 0; e < v.size(); ++e) {
          const auto column = static_cast<std::int64_t>(e);
          k[e] = k_cache.at(at.page, at.row, h, column) * scale(k_scale, b, at, h);
          v[e] = v_cache.at(at.page, at.row, h, column) * scale(v_scale, b, at, h);
        }
      }
      s.k.insert(s.k.end(), k.begin(), k.end());
      s.v.insert(s.v.end(), v.begin(), v.end());
    }
  return s;
}

std::string DecodeTensors::cache_failure(const DecodeTensors& before) const {
  // What was appended is compared, and then put back to what it was, so that the rest compares as bytes.
  DecodeTensors now(setup);
  std::ranges::copy(k_cache.storage(), now.k_cache.storage().begin());
  std::ranges::copy(v_cache.storage(), now.v_cache.storage().begin());
  std::ranges::copy(k_scale.storage(), now.k_scale.storage().begin());
  std::ranges::copy(v_scale.storage(), now.v_scale.storage().begin());
  double unit = setup.dtype == TANDEM_BF16 ? 0x1p-7 : setup.dtype == TANDEM_FP16 ? 0x1p-10 : 0x1p-22;
  double least = 1e-6;
  if (setup.eight_bit.on && setup.rotary_dim > 0) unit = 0x1p-3, least = 0x1p-8;  // the next number of 8 bits
  std::ostringstream failure;
  for (std::int64_t b = 0; b < setup.batch(); ++b) {
    const SequenceValues expected = before.sequence(b);
    for (std::int64_t key = setup.length(b); key < expected.keys; ++key)
      for (std::int64_t h = 0; h < setup.kv_heads; ++h)
        for (std::int64_t e = 0; e < setup.head_dim; ++e) {
          const auto [page, row] = place(b, key);
          const auto at = static_cast<std::size_t>((key * setup.kv_heads + h) * setup.head_dim + e);
          const double k = k_cache.at(page, row, h, e) * scale(k_scale, b, {page, row}, h),
                       v = v_cache.at(page, row, h, e) * scale(v_scale, b, {page, row}, h);
          if (!(std::abs(k - expected.k[at]) <= unit * std::abs(expected.k[at]) + least) ||
              v != expected.v[at])
            failure << "sequence " << b << " token " << key << " head " << h << " column " << e << " is " << k
                    << ", " << v << ", not " << expected.k[at] << ", " << expected.v[at] << "; ";
          now.k_cache.copy_element(before.k_cache, {page, row, h, e});
          now.v_cache.copy_element(before.v_cache, {page, row, h, e});
          if (!setup.eight_bit.per_token || e > 0) continue;
          now.k_scale.copy_element(before.k_scale, {page, row, h, 0});
          now.v_scale.copy_element(before.v_scale, {page, row, h, 0});
        }
  }
  const auto same = [](const HostTensor& a, const HostTensor& b) {
    return std::memcmp(a.storage().data(), b.storage().data(), a.storage().size()) == 0;
  };
  if (!same(now.k_cache, before.k_cache)) failure << "keys were written that were not to be; ";
  if (!same(now.v_cache, before.v_cache)) failure << "values were written that were not to be; ";
  if (!same(now.k_scale, before.k_scale) || !same(now.v_scale, before.v_scale))
    failure << "scales were written that were not to be; ";
  return failure.str().substr(0, 1000);
}

void make_scores_equal(DecodeTensors& t, float q_value, float k_value) {
  const DecodeCase& c = t.setup;
  t.q.fill(0);
  for (std::int64_t b = 0; b < c.batch(); ++b) {
    for (std::int64_t s = 0; s < c.q_len; ++s)
      for (std::int64_t h = 0; h < c.q_heads; ++h) t.q.set(b, s, h, 0, q_value);
    for (std::int64_t position = 0; position < c.length(b); ++position) {
      const auto [page, row] = t.place(b, position);
      for (std::int64_t h = 0; h < c.kv_heads; ++h) {
        for (std::int64_t e = 0; e < c.head_dim; ++e) {
          t.k_cache.set(page, row, h, e, e == 0 ? k_value : 0.f);
          t.v_cache.set(page, row, h, e, position < c.length(b) / 2 ? 1.f : 0.f);
        }
      }
    }
  }
}

DecodeArgs::DecodeArgs(const DecodeTensors& t)
    : mask(to_c(t.setup.mask)),
      study{sizeof(study), TANDEM_OVERLAP_AUTO, TANDEM_TURN_AUTO, t.setup.kernel, 0, 0} {
  const core::DecodeProblem problem = t.problem();
  cache = {sizeof(cache),      problem.k_cache,           problem.v_cache,
           problem.page_table, problem.page_table_stride, problem.pages_per_sequence,
           problem.lengths,    problem.batch_index};
  const core::Rotary& r = problem.rotary;
  rotary = {sizeof(rotary), r.cos, r.sin, r.dtype, r.positions, r.dim, r.interleaved};
  args.struct_size = sizeof(args);
  args.q = problem.q;
  args.cache = &cache;
  args.k_new = problem.k_new;
  args.v_new = problem.v_new;
  if (r.cos != nullptr) args.rotary = &rotary;
  args.o = problem.o;
  args.lse = problem.lse;
  args.mask = &mask;
  args.scale = t.setup.scale;
  args.softcap = t.setup.softcap;
  args.split_size = t.setup.split_size;
  args.study = &study;
  args.sinks = problem.sinks;
  scales = {sizeof(scales), problem.scales.k, problem.scales.v, problem.scales.per_token ? 1 : 0};
  if (problem.scales.k.data != nullptr) args.scales = &scales;
}

Allowance allowance_of(const DecodeCase& c) {
  // A token's own scale is multiplied into its probability, which is rounded then, also where it is 1.
  return {.noise = c.eight_bit.per_token && c.dtype == TANDEM_FP16 ? 1e-4 : 0};
}

ForwardValues standard_decode(const DecodeTensors& t) {
  const core::DecodeProblem p = t.problem();
  const tandem_dtype cached =
      p.eight_bit() ? TANDEM_FP32 : p.dtype();  // what 8 bits stand for is not rounded
  ForwardValues all;
  for (std::int64_t b = 0; b < p.batch(); ++b) {
    const SequenceValues s = t.sequence(b);
    const HostTensor q = dense(p.dtype(), {1, p.q_len(), p.q_heads(), p.head_dim()}, s.q),
                     k = dense(cached, {1, s.keys, p.kv_heads(), p.head_dim()}, s.k),
                     v = dense(cached, {1, s.keys, p.kv_heads(), p.head_dim()}, s.v);
    append_to(all, standard_forward({.q = q.view(),
                                     .k = k.view(),
                                     .v = v.view(),
                                     .o = p.o,  // its dtype
                                     .lse = {},
                                     .mask = p.mask,
                                     .scale = p.scale,
                                     .softcap = p.softcap,
                                     .sinks = p.sinks}));
  }
  return all;
}

ForwardValues plain_decode(const DecodeTensors& t) {
  const core::DecodeProblem p = t.problem();
  ForwardValues all;
  for (std::int64_t b = 0; b < p.batch(); ++b) {
    const SequenceValues s = t.sequence(b);
    const std::int64_t rows = p.q_len() * p.q_heads(), d = p.head_dim();
    ForwardValues one{std::vector<double>(static_cast<std::size_t>(rows * d)), {}};
    for (std::int64_t row = 0; row < rows; ++row) one.lse.push_back(plain_row(p, s, row, &one.o[row * d]));
    append_to(all, one);
  }
  return all;
}

}  // namespace tandem::test
