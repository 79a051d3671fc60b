#include "tests/support/decode_case.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/dtype.h"
#include "tests/support/normal_numbers.h"

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

/// Of a tensor of values with the rows of that shape.
std::array<std::int64_t, 4> value_shape(const DecodeCase& c, std::array<std::int64_t, 4> shape) {
  shape[3] = c.value_columns();
  if (c.values_in_keys) shape[0] = 0;
  return shape;
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

/// Of a contiguous cache nothing.
void share_pages(DecodeTensors& t) {
  const DecodeCase& c = t.setup;
  const auto slot = [&](std::int64_t b, std::int64_t i) -> std::int32_t& {
    const std::int64_t row = c.batch_index ? t.batch_index[static_cast<std::size_t>(b)] : b;
    return t.page_table[static_cast<std::size_t>(row * t.page_table_stride + i)];
  };
  c.for_each_sharing([&](std::int64_t b, std::int64_t first, std::int64_t shared) {
    for (std::int64_t i = 0; i < shared / c.page_size; ++i) slot(b, i) = slot(first, i);
  });
}

/// What is shared but has places of each sequence's own: in pages that are not full of it, or in entries.
void copy_prefixes(DecodeTensors& t) {
  const DecodeCase& c = t.setup;
  c.for_each_sharing([&](std::int64_t b, std::int64_t first, std::int64_t shared) {
    for (std::int64_t s = 0; s < shared; ++s) {
      const auto from = t.place(first, s), to = t.place(b, s);
      for (std::int64_t h = 0; h < c.kv_heads; ++h) {
        for (std::int64_t e = 0; e < c.head_dim; ++e)
          t.k_cache.set(to.page, to.row, h, e, static_cast<float>(t.k_cache.at(from.page, from.row, h, e)));
        for (std::int64_t e = 0; e < c.value_columns(); ++e)
          t.v_cache.set(to.page, to.row, h, e, static_cast<float>(t.v_cache.at(from.page, from.row, h, e)));
      }
    }
  });
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
  share_pages(t);
}

std::array<std::int64_t, 4> scale_shape(const DecodeCase& c) {
  const DecodeCase::EightBit& own = c.eight_bit;
  if (!own.on || !own.scaled) return {0, 0, 0, 1};
  if (!own.per_token) return {own.by_sequence ? c.batch() : 1, 1, own.by_head ? c.kv_heads : 1, 1};
  const auto [pages, rows, heads, columns] = cache_shape(c);
  return {pages, rows, heads, 1};
}

/// Integers have to be large, and scales as much smaller. Without scales they stay small, or one key would
/// outweigh all others.
float size_of_elements(const DecodeCase::EightBit& own) { return own.int8 && own.scaled ? 32 : 1; }

/// Scales of sequences; those of tokens come with them.
void fill_scales(DecodeTensors& t, Random& random) {
  const DecodeCase::EightBit& own = t.setup.eight_bit;
  if (!own.on || !own.scaled || own.per_token) return;
  std::uniform_real_distribution<float> scale(0.25f, 2.f);
  for (std::int64_t b = 0; b < (own.by_sequence ? t.setup.batch() : 1); ++b)
    for (std::int64_t h = 0; h < (own.by_head ? t.setup.kv_heads : 1); ++h)
      for (HostTensor* scales : {&t.k_scale, &t.v_scale})
        scales->set(b, 0, h, 0, scale(random) / size_of_elements(own));
}

/// Also the tokens' own scales. `next`: gives elements.
template <typename Next>
void fill_cache(DecodeTensors& t, Random& random, Next&& next) {
  const DecodeCase& c = t.setup;
  const float size = size_of_elements(c.eight_bit);
  std::uniform_real_distribution<float> scale(0.1f / size, 2.f / size);
  std::vector<float> row_of_k(static_cast<std::size_t>(c.head_dim)),
      row_of_v(static_cast<std::size_t>(c.values_in_keys ? 0 : c.value_columns()));
  fill_scales(t, random);
  for (std::int64_t b = 0; b < c.batch(); ++b)
    for (std::int64_t s = 0; s < c.length(b); ++s) {
      const auto [page, row] = t.place(b, s);
      for (std::int64_t h = 0; h < c.kv_heads; ++h) {
        for (std::size_t e = 0; e < std::max(row_of_k.size(), row_of_v.size()); ++e) {
          if (e < row_of_k.size()) row_of_k[e] = next();
          if (e < row_of_v.size()) row_of_v[e] = next();
        }
        t.k_cache.set_row(page, row, h, row_of_k);
        if (!c.values_in_keys) t.v_cache.set_row(page, row, h, row_of_v);
      }
      for (std::int64_t h = 0; c.eight_bit.per_token && h < c.kv_heads; ++h)
        for (HostTensor* scales : {&t.k_scale, &t.v_scale}) scales->set(page, row, h, 0, scale(random));
    }
}

void fill_cache(DecodeTensors& t, Random& random) {
  const float size = size_of_elements(t.setup.eight_bit);
  if (t.setup.nearly_normal) return fill_cache(t, random, NormalNumbers(random(), size));
  std::normal_distribution<float> normal(0.f, size);
  fill_cache(t, random, [&] { return normal(random); });
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

/// Between rows of slopes there are others.
constexpr std::int64_t spare_slopes = 2;

std::vector<float> draw_slopes(const DecodeCase& c) {
  Random random(c.seed + 4);
  const std::int64_t rows = !c.slopes ? 0 : c.slopes_by_sequence ? c.batch() : 1;
  std::vector<float> slopes;
  for (std::int64_t i = 0; i < rows * (c.q_heads + spare_slopes); ++i)
    slopes.push_back(i % 5 == 3 ? -0.01f : std::exp2(-static_cast<float>(random() % 9)));
  return slopes;
}

std::vector<std::uint64_t> draw_tree(const DecodeCase& c) {
  Random random(c.seed + 5);
  std::vector<std::uint64_t> words(c.tree ? static_cast<std::size_t>(c.batch() * c.q_len) : 0);
  for (std::uint64_t& word : words) word = random() % 6 == 0 ? 0 : random() | random();
  return words;
}

}  // namespace

std::int64_t DecodeCase::length(std::int64_t b) const {
  return std::clamp<std::int64_t>(lengths[static_cast<std::size_t>(b)], 0, capacity - new_len);
}

std::ostream& operator<<(std::ostream& out, const DecodeCase& c) {
  out << core::name_of(c.dtype) << " sq" << c.q_len << " h" << c.q_heads << "/" << c.kv_heads << " d"
      << c.head_dim;
  if (c.value_dim > 0) out << "/" << c.value_dim << (c.values_in_keys ? " in the keys" : "");
  out << " new " << c.new_len << " lengths";
  for (const std::int32_t length : c.lengths) out << " " << length;
  out << " of " << c.capacity;
  if (c.page_size > 0) out << " pages of " << c.page_size;
  if (c.batch_index) out << " indexed";
  if (c.rotary_dim > 0)
    out << " rotary " << c.rotary_dim << (c.interleaved ? " interleaved " : " halves ")
        << core::name_of(c.rotary_dtype);
  out << " left " << c.mask.left << " right " << c.mask.right << " chunk " << c.mask.chunk << " scale "
      << c.scale << " softcap " << c.softcap;
  if (c.split_size > 0) out << " split " << c.split_size;
  for (std::size_t g = 0; g < c.prefix_lengths.size(); ++g)
    out << " [" << c.prefix_sequences[g] << ", " << c.prefix_sequences[g + 1] << ") share "
        << c.prefix_lengths[g];
  if (c.kernel != TANDEM_DECODE_AUTO) out << " kernel " << c.kernel;
  if (c.block_m > 0 || c.block_n > 0) out << " tile " << c.block_m << " x " << c.block_n;
  if (c.eight_bit.on)
    out << " 8 bits " << (c.eight_bit.per_token ? "per token" : "") << (c.eight_bit.scaled ? "" : "unscaled")
        << (c.eight_bit.by_sequence ? " by sequence" : "") << (c.eight_bit.by_head ? " by head" : "")
        << (c.eight_bit.int8 ? " int8" : "") << (c.eight_bit.hadamard ? " hadamard" : "");
  if (c.slopes) out << (c.slopes_by_sequence ? " slopes by sequence" : " slopes");
  return out << (c.tree ? " tree" : "") << (c.qv ? " qv" : "") << (c.lse ? " lse" : "")
             << (c.sinks ? " sinks" : "") << " seed " << c.seed;
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

void draw_chunks_slopes_and_tree(DecodeCase& c, Random& random) {
  const std::uint64_t which = 1 + random() % 7;
  if ((which & 1) != 0)
    c.mask.chunk = 1 + static_cast<std::int64_t>(random() % (random() % 2 == 0 ? 20 : 200));
  c.slopes = (which & 2) != 0, c.slopes_by_sequence = random() % 2 == 0;
  c.tree = (which & 4) != 0;
}

void draw_eight_bit_cache(DecodeCase& c, Random& random) {
  c.eight_bit = {.on = true, .per_token = random() % 2 == 0, .scaled = true};
  c.eight_bit.int8 = random() % 2 == 0;
  c.eight_bit.hadamard = std::has_single_bit(static_cast<std::uint64_t>(c.head_dim)) && random() % 2 == 0;
  if (c.eight_bit.per_token) return;
  c.eight_bit.scaled = random() % 4 != 0;
  c.eight_bit.by_sequence = random() % 2 == 0;
  c.eight_bit.by_head = random() % 2 == 0;
}

void give_second_part(DecodeCase& c, std::int64_t value_dim) { c.value_dim = value_dim, c.qv = true; }

void put_values_into_keys(DecodeCase& c, std::int64_t value_dim) {
  c.value_dim = value_dim, c.values_in_keys = true;
  if (c.new_len > 0 || c.rotary_dim > c.head_dim) c.rotary_dim = 0;
}

DecodeTensors::DecodeTensors(const DecodeCase& c)
    : setup(c),
      q(c.dtype, {c.batch(), c.q_len, c.q_heads, c.head_dim}, c.q),
      qv(c.dtype, {c.qv ? c.batch() : 0, c.q_len, c.q_heads, c.value_columns()}, c.q),
      k_cache(c.cache_dtype(), cache_shape(c), c.cache),
      v_cache(c.cache_dtype(), value_shape(c, cache_shape(c)), c.cache),
      k_new(c.dtype, {c.batch(), c.new_len, c.kv_heads, c.head_dim}, c.added),
      v_new(c.dtype, value_shape(c, {c.batch(), c.new_len, c.kv_heads, c.head_dim}), c.added),
      o(c.dtype, {c.batch(), c.q_len, c.q_heads, c.value_columns()}, c.o),
      lse(TANDEM_FP32, {c.batch(), c.q_len, c.q_heads, 1}, c.lse_layout),
      cos(c.rotary_dtype, {1, 1, table_positions(c), c.rotary_dim / 2}, {.row_gap = 0}),
      sin(c.rotary_dtype, {1, 1, table_positions(c), c.rotary_dim / 2}, {.row_gap = 0}),
      k_scale(TANDEM_FP32, scale_shape(c), c.lse_layout),
      v_scale(TANDEM_FP32, scale_shape(c), c.lse_layout),
      sinks(draw_sinks(c)),
      slopes(draw_slopes(c)),
      tree(draw_tree(c)) {
  Random random(c.seed);
  q.fill_random(c.nearly_normal, random());
  qv.fill_random(c.nearly_normal, c.seed + 6, 0.5f);
  k_new.fill_random(c.nearly_normal, random());
  v_new.fill_random(c.nearly_normal, random());
  fill_tables(*this, table_positions(c));
  if (c.batch_index) {
    batch_index.resize(static_cast<std::size_t>(rows_of(c)));
    std::iota(batch_index.begin(), batch_index.end(), 0);
    std::shuffle(batch_index.begin(), batch_index.end(), random);
    batch_index.resize(static_cast<std::size_t>(c.batch()));
  }
  fill_page_table(*this, random);
  fill_cache(*this, random);
  copy_prefixes(*this);
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
  if (setup.qv) p.qv = qv.view();
  p.k_cache = k_cache.view();
  p.v_cache = values().view();
  p.v_cache.shape[3] = setup.value_columns();
  if (setup.new_len > 0) {
    p.k_new = k_new.view();
    p.v_new = new_values().view();
    p.v_new.shape[3] = setup.value_columns();
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
  p.scale = setup.scale > 0 ? setup.scale : 1.0f / std::sqrt(static_cast<float>(p.key_columns()));
  p.softcap = setup.softcap;
  p.split_size = setup.split_size;
  p.kernel = setup.kernel;
  p.block_m = setup.block_m, p.block_n = setup.block_n;
  p.sinks = setup.sinks ? sinks.data() : nullptr;
  if (setup.slopes) p.slopes = {slopes.data(), setup.slopes_by_sequence ? setup.q_heads + spare_slopes : 0};
  if (setup.tree) p.tree = tree.data();
  if (!setup.prefix_lengths.empty())
    p.prefixes = {static_cast<std::int64_t>(setup.prefix_lengths.size()), setup.prefix_sequences.data(),
                  setup.prefix_lengths.data()};
  if (setup.eight_bit.on && setup.eight_bit.scaled)
    p.scales.k = k_scale.view(), p.scales.v = v_scale.view(), p.scales.per_token = setup.eight_bit.per_token;
  p.scales.hadamard = setup.eight_bit.hadamard, p.scales.seed = setup.seed;
  return p;
}

void multiply_key(DecodeTensors& t, std::int64_t b, std::int64_t token, double factor) {
  const auto [page, row] = t.place(b, token);
  for (std::int64_t h = 0; h < t.setup.kv_heads; ++h)
    for (std::int64_t d = 0; d < t.setup.head_dim; ++d)
      t.k_cache.set(page, row, h, d, static_cast<float>(factor * t.k_cache.at(page, row, h, d)));
}

void grow_keys(DecodeTensors& t, int block, double growth) {
  for (std::int64_t b = 0; b < t.setup.batch(); ++b)
    for (std::int64_t token = 0; token < t.setup.length(b); ++token)
      multiply_key(t, b, token, std::pow(growth, static_cast<double>(token / block)));
}

void make_scores_equal(DecodeTensors& t, float q_value, float k_value) {
  const DecodeCase& c = t.setup;
  t.q.fill(0), t.qv.fill(0);
  for (std::int64_t b = 0; b < c.batch(); ++b) {
    for (std::int64_t s = 0; s < c.q_len; ++s)
      for (std::int64_t h = 0; h < c.q_heads; ++h) t.q.set(b, s, h, c.head_dim - 1, q_value);
    for (std::int64_t position = 0; position < c.length(b); ++position) {
      const auto [page, row] = t.place(b, position);
      for (std::int64_t h = 0; h < c.kv_heads; ++h) {
        const float value = position < c.length(b) / 2 ? 1.f : 0.f;
        for (std::int64_t e = 0; e < c.value_columns() && !c.values_in_keys; ++e)
          t.v_cache.set(page, row, h, e, value);
        for (std::int64_t e = 0; e < c.head_dim; ++e)
          t.k_cache.set(page, row, h, e, e == c.head_dim - 1 ? k_value : c.values_in_keys ? value : 0.f);
      }
    }
  }
}

DecodeArgs::DecodeArgs(const DecodeTensors& t)
    : mask(to_c(t.setup.mask)), study{sizeof(study),  TANDEM_OVERLAP_AUTO, TANDEM_TURN_AUTO,
                                      t.setup.kernel, t.setup.block_m,     t.setup.block_n} {
  const core::DecodeProblem problem = t.problem();
  cache = {sizeof(cache),      problem.k_cache,           problem.v_cache,
           problem.page_table, problem.page_table_stride, problem.pages_per_sequence,
           problem.lengths,    problem.batch_index};
  const core::Rotary& r = problem.rotary;
  rotary = {sizeof(rotary), r.cos, r.sin, r.dtype, r.positions, r.dim, r.interleaved};
  args.struct_size = sizeof(args);
  args.q = problem.q;
  args.qv = problem.qv;
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
  args.alibi_slopes = problem.slopes.data, args.alibi_stride = problem.slopes.stride;
  args.tree = problem.tree;
  const core::SharedPrefixes& shared = problem.prefixes;
  prefixes = {sizeof(prefixes), shared.groups, shared.cu_sequences, shared.lengths};
  if (shared.given()) args.prefixes = &prefixes;
  const core::CacheScales& own = problem.scales;
  scales = {sizeof(scales), own.k, own.v, own.per_token ? 1 : 0, own.seed, own.hadamard ? 1 : 0};
  if (own.k.data != nullptr || own.hadamard) args.scales = &scales;
}

Allowance allowance_of(const DecodeCase& c) {
  // A token's own scale is multiplied into its probability, which is rounded then, also where it is 1: of a
  // row with one key that counts, all of the result. Scales also leave few keys of a row that count, and the
  // rounding of their probabilities moves all of it, as that of a query does behind a Hadamard matrix.
  return {.relative = c.eight_bit.per_token && c.dtype == TANDEM_FP16 ? 2e-4 : 0,
          .alike = c.eight_bit.hadamard || c.eight_bit.per_token ? c.value_columns() : 1,
          .rounded_to = c.dtype};
}

Allowance allowance_of_lse(const DecodeCase& c) {
  // Queries are rounded ahead of a Hadamard matrix, and behind it, where kernels have fp16: of a few rows the
  // two errors of the standard implementation may cancel.
  return {.noise = c.eight_bit.hadamard && c.dtype == TANDEM_BF16 ? 4e-4 : 0};
}

}  // namespace tandem::test
