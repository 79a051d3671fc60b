// What a step has to do, by the words of tandem.h: values of its sequences, of its result and of its cache.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <sstream>

#include "core/dtype.h"
#include "core/hadamard.h"
#include "tests/support/decode_case.h"

namespace tandem::test {
namespace {

double rounded(tandem_dtype dtype, double value) {
  const auto narrow = static_cast<float>(value);
  if (dtype == TANDEM_BF16) return static_cast<float>(core::Bf16::from(narrow));
  if (dtype == TANDEM_FP16) return static_cast<float>(core::Fp16::from(narrow));
  return narrow;
}

/// A row times H diag(signs) / sqrt(d), by the words of tandem.h: element i, j of H is -1 where i and j have
/// an odd number of bits in common.
std::vector<double> times_hadamard(const std::vector<double>& row, std::uint64_t seed) {
  std::vector<double> product(row.size()), changed = row;
  for (std::size_t j = 0; j < row.size(); ++j)
    if (core::changes_sign(seed, static_cast<int>(j))) changed[j] = -row[j];
  for (std::size_t i = 0; i < row.size(); ++i) {
    for (std::size_t j = 0; j < row.size(); ++j)
      product[i] += __builtin_parityll(i & j) != 0 ? -changed[j] : changed[j];
    product[i] /= std::sqrt(static_cast<double>(row.size()));
  }
  return product;
}

/// What an 8-bit cache makes of a new token's row, in plain words: divided by the scale, which for a token of
/// its own (given 0) is the least power of two that brings the largest to 448 or less, or of integers the
/// largest / 127, rounded, multiplied.
void quantise(const DecodeCase& c, std::vector<double>& row, double given) {
  double largest = 0, scale = given;
  for (const double x : row) largest = std::max(largest, std::abs(x));
  if (given == 0 && c.eight_bit.int8) {
    scale = largest == 0 ? 1 : static_cast<float>(largest) * (1 / 127.f);
  } else if (given == 0) {
    scale = largest == 0 ? 1 : std::exp2(std::ceil(std::log2(largest / 448)));
  }
  for (double& x : row) {
    const float divided = static_cast<float>(x) * (1.f / static_cast<float>(scale));
    x = scale * (c.eight_bit.int8 ? static_cast<float>(core::Int8::from(divided))
                                  : static_cast<float>(core::E4m3::from(divided)));
  }
}

/// Row [b, s, h] rotated as position `position`: pairs are complex numbers, times e^(i angle).
std::vector<double> rotated(const DecodeTensors& t, const HostTensor& tensor, const std::int64_t (&at)[3],
                            std::int64_t position) {
  const DecodeCase& c = t.setup;
  std::vector<double> row(static_cast<std::size_t>(c.head_dim));
  tensor.get_row(at[0], at[1], at[2], row);
  if (c.rotary_dim == 0) return row;
  const std::int64_t half = c.rotary_dim / 2,
                     s = std::clamp<std::int64_t>(position, 0, t.cos.view().shape[2] - 1);
  for (std::int64_t i = 0; i < half; ++i) {
    double& re = row[static_cast<std::size_t>(c.interleaved ? 2 * i : i)];
    double& im = row[static_cast<std::size_t>(c.interleaved ? 2 * i + 1 : half + i)];
    const std::complex<double> product =
        std::complex(re, im) * std::complex(t.cos.at(0, 0, s, i), t.sin.at(0, 0, s, i));
    re = product.real(), im = product.imag();
  }
  return row;
}

/// A query or key as the cache has keys.
std::vector<double> as_keys_are(const DecodeCase& c, const std::vector<double>& row) {
  return c.eight_bit.hadamard ? times_hadamard(row, c.seed) : row;
}

/// The queries of sequence b as its keys are; `round`: to the dtype of q before a
/// Hadamard matrix comes, as a standard implementation does.
std::vector<double> queries_of(const DecodeTensors& t, std::int64_t b, bool round) {
  const DecodeCase& c = t.setup;
  std::vector<double> rows;
  for (std::int64_t i = 0; i < c.q_len; ++i)
    for (std::int64_t h = 0; h < c.q_heads; ++h) {
      std::vector<double> row = rotated(t, t.q, {b, i, h}, c.length(b) + c.new_len - c.q_len + i);
      for (double& x : row) x = round ? rounded(c.dtype, x) : x;
      row = as_keys_are(c, row);
      rows.insert(rows.end(), row.begin(), row.end());
      for (std::int64_t e = 0; c.qv && e < c.value_columns(); ++e) rows.push_back(t.qv.at(b, i, h, e));
    }
  return rows;
}

/// A HostTensor of one sequence's rows.
HostTensor dense(tandem_dtype dtype, const std::array<std::int64_t, 4>& shape,
                 const std::vector<double>& values) {
  HostTensor tensor(dtype, shape);
  const double* value = values.data();
  std::vector<float> row(static_cast<std::size_t>(shape[3]));
  for (std::int64_t s = 0; s < shape[1]; ++s)
    for (std::int64_t h = 0; h < shape[2]; ++h) {
      for (float& x : row) x = static_cast<float>(*value++);
      tensor.set_row(0, s, h, row);
    }
  return tensor;
}

void append_to(ForwardValues& all, const ForwardValues& one) {
  all.o.insert(all.o.end(), one.o.begin(), one.o.end());
  all.lse.insert(all.lse.end(), one.lse.begin(), one.lse.end());
}

/// Whether query number `query` of sequence `b`, whose keys are so many, sees the key.
bool sees(const core::DecodeProblem& p, std::int64_t b, std::int64_t query, std::int64_t keys,
          std::int64_t key) {
  const std::int64_t first = keys - p.q_len(), position = first + query, chunk = p.mask.chunk;
  if (p.mask.left != core::Mask::unlimited && key < position - p.mask.left) return false;
  if (p.mask.right != core::Mask::unlimited && key > position + p.mask.right) return false;
  if (chunk > 0 && (position < 0 || key / chunk != position / chunk)) return false;
  const std::uint64_t word = p.tree == nullptr ? 0 : p.tree[b * p.q_len() + query];
  return key < first || word == 0 || (word >> (key - first) & 1) != 0;
}

/// One query row of sequence `b` in plain_decode; returns its log-sum-exp.
double plain_row(const core::DecodeProblem& p, std::int64_t b, const SequenceValues& s, std::int64_t row,
                 double* o) {
  const std::int64_t d = p.key_columns(), dv = p.value_dim(), query = row / p.q_heads(),
                     head = row % p.q_heads() / p.group();
  const double sink = p.sinks == nullptr ? 0 : std::exp(static_cast<double>(p.sinks[row % p.q_heads()]));
  const std::int64_t position = s.keys - p.q_len() + query;
  const double slope = p.slopes.given() ? p.slopes.of(b, row % p.q_heads()) : 0;
  std::vector<double> weights(static_cast<std::size_t>(s.keys), 0.0);
  double sum = sink;
  for (std::int64_t key = 0; key < s.keys; ++key) {
    if (!sees(p, b, query, s.keys, key)) continue;
    double score = 0;
    for (std::int64_t e = 0; e < d; ++e) score += s.q[row * d + e] * s.k[(key * p.kv_heads() + head) * d + e];
    score *= static_cast<double>(p.scale);
    if (p.softcap > 0) score = p.softcap * std::tanh(score / p.softcap);
    score -= slope * static_cast<double>(std::abs(position - key));
    sum += weights[static_cast<std::size_t>(key)] = std::exp(score);
  }
  std::fill_n(o, dv, 0.0);
  for (std::int64_t key = 0; key < s.keys; ++key)
    for (std::int64_t e = 0; e < dv && weights[static_cast<std::size_t>(key)] > 0; ++e)
      o[e] += weights[static_cast<std::size_t>(key)] / sum * s.v[(key * p.kv_heads() + head) * dv + e];
  return std::log(sum);
}

}  // namespace

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
  s.q = queries_of(*this, b, /*round=*/false);
  std::vector<double> k, v;
  for (std::int64_t key = 0; key < s.keys; ++key)
    for (std::int64_t h = 0; h < setup.kv_heads; ++h) {
      const Place at = place(b, key);
      k.resize(static_cast<std::size_t>(setup.head_dim));
      v.resize(static_cast<std::size_t>(setup.value_columns()));
      if (key >= length) {
        k = rotated(*this, k_new, {b, key - length, h}, key);
        new_values().get_row(b, key - length, h, v);
        for (std::vector<double>* row : {&k, &v})
          for (double& x : *row) x = rounded(setup.dtype, x);
        if (setup.eight_bit.on) {
          k = as_keys_are(setup, k);
          quantise(setup, k, setup.eight_bit.per_token ? 0 : scale(k_scale, b, at, h));
          quantise(setup, v, setup.eight_bit.per_token ? 0 : scale(v_scale, b, at, h));
        }
      } else {
        k_cache.get_row(at.page, at.row, h, k);
        values().get_row(at.page, at.row, h, v);
        const double k_unit = scale(k_scale, b, at, h), v_unit = scale(v_scale, b, at, h);
        for (double& x : k) x *= k_unit;
        for (double& x : v) x *= v_unit;
      }
      s.k.insert(s.k.end(), k.begin(), k.end());
      if (setup.qv) s.k.insert(s.k.end(), v.begin(), v.end());
      s.v.insert(s.v.end(), v.begin(), v.end());
    }
  return s;
}

namespace {

/// A token's key or value of one head, and how far it may be from what the step had to append.
struct AppendedRow {
  const HostTensor& cache;
  double scale;
  DecodeTensors::Place at;
  std::int64_t head;
  const double* expected;
  double relative, absolute;

  void check(const char* what, std::int64_t columns, std::ostream& failure) const {
    for (std::int64_t e = 0; e < columns; ++e) {
      const double is = cache.at(at.page, at.row, head, e) * scale;
      if (!(std::abs(is - expected[e]) <= relative * std::abs(expected[e]) + absolute))
        failure << what << " in page " << at.page << " row " << at.row << " head " << head << " column " << e
                << " is " << is << ", not " << expected[e] << "; ";
    }
  }
  /// Makes it what it was before the step.
  void put_back(HostTensor& now, const HostTensor& before, std::int64_t columns) const {
    for (std::int64_t e = 0; e < columns; ++e) now.copy_element(before, {at.page, at.row, head, e});
  }
};

}  // namespace

std::string DecodeTensors::cache_failure(const DecodeTensors& before) const {
  // What was appended is compared, and then put back to what it was, so that the rest compares as bytes.
  struct {
    HostTensor k_cache, v_cache, k_scale, v_scale;
  } now{k_cache, v_cache, k_scale, v_scale};
  double unit = setup.dtype == TANDEM_BF16 ? 0x1p-7 : setup.dtype == TANDEM_FP16 ? 0x1p-10 : 0x1p-22;
  double least = 1e-6;
  const bool next_of_8_bits = setup.eight_bit.on && (setup.rotary_dim > 0 || setup.eight_bit.hadamard);
  if (next_of_8_bits && !setup.eight_bit.int8) unit = 0x1p-3, least = 0x1p-8;
  const std::int64_t d = setup.head_dim, dv = setup.values_in_keys ? 0 : setup.value_columns();
  std::ostringstream failure;
  for (std::int64_t b = 0; setup.new_len > 0 && b < setup.batch(); ++b) {
    const SequenceValues expected = before.sequence(b);
    for (std::int64_t key = setup.length(b); key < expected.keys; ++key)
      for (std::int64_t h = 0; h < setup.kv_heads; ++h) {
        const Place at = place(b, key);
        const std::int64_t row = key * setup.kv_heads + h;
        const double k_unit = scale(k_scale, b, at, h);
        const AppendedRow k{k_cache,
                            k_unit,
                            at,
                            h,
                            &expected.k[row * before.problem().key_columns()],
                            unit,
                            next_of_8_bits && setup.eight_bit.int8 ? 1.01 * k_unit : least},
            v{v_cache, scale(v_scale, b, at, h), at, h, &expected.v[row * setup.value_columns()], 0, 0};
        k.check("the key", d, failure), k.put_back(now.k_cache, before.k_cache, d);
        v.check("the value", dv, failure), v.put_back(now.v_cache, before.v_cache, dv);
        if (!setup.eight_bit.per_token) continue;
        k.put_back(now.k_scale, before.k_scale, 1), v.put_back(now.v_scale, before.v_scale, 1);
      }
  }
  if (!same_bytes(now.k_cache, before.k_cache)) failure << "keys were written that were not to be; ";
  if (!same_bytes(now.v_cache, before.v_cache)) failure << "values were written that were not to be; ";
  if (!same_bytes(now.k_scale, before.k_scale) || !same_bytes(now.v_scale, before.v_scale))
    failure << "scales were written that were not to be; ";
  return failure.str().substr(0, 1000);
}

ForwardValues standard_decode(const DecodeTensors& t) {
  const core::DecodeProblem p = t.problem();
  const tandem_dtype cached =
      p.eight_bit() ? TANDEM_FP32 : p.dtype();  // what 8 bits stand for is not rounded
  ForwardValues all;
  for (std::int64_t b = 0; b < p.batch(); ++b) {
    const SequenceValues s = t.sequence(b);
    const HostTensor q = dense(p.dtype(), {1, p.q_len(), p.q_heads(), p.key_columns()},
                               queries_of(t, b, /*round=*/true)),
                     k = dense(cached, {1, s.keys, p.kv_heads(), p.key_columns()}, s.k),
                     v = dense(cached, {1, s.keys, p.kv_heads(), p.value_dim()}, s.v);
    append_to(all, standard_forward({.q = q.view(),
                                     .k = k.view(),
                                     .v = v.view(),
                                     .o = p.o,  // its dtype
                                     .lse = {},
                                     .mask = p.mask,
                                     .scale = p.scale,
                                     .softcap = p.softcap,
                                     .sinks = p.sinks,
                                     .slopes = p.slopes.of_sequence(b),
                                     .tree = p.tree == nullptr ? nullptr : p.tree + b * p.q_len()}));
  }
  return all;
}

ForwardValues plain_decode(const DecodeTensors& t) {
  const core::DecodeProblem p = t.problem();
  ForwardValues all;
  for (std::int64_t b = 0; b < p.batch(); ++b) {
    const SequenceValues s = t.sequence(b);
    const std::int64_t rows = p.q_len() * p.q_heads(), dv = p.value_dim();
    ForwardValues one{std::vector<double>(static_cast<std::size_t>(rows * dv)), {}};
    for (std::int64_t row = 0; row < rows; ++row)
      one.lse.push_back(plain_row(p, b, s, row, &one.o[row * dv]));
    append_to(all, one);
  }
  return all;
}

}  // namespace tandem::test
