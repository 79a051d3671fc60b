// What the steps that decode's tests draw have: no feature of the interface may be missing.
#include "tests/sim/decode_draws.h"

#include "apps/sim/decode_sim.h"
#include "decode/plan.h"
#include "tests/sim/coverage.h"

namespace tandem {
namespace {

using decode::DecodeVariant;
using test::Coverage;
using test::DecodeCase;

struct Draw {
  const DecodeVariant& variant;
  std::uint64_t seed;
  DecodeCase c = test::draw_case(variant, seed);

  std::int64_t rows() const { return c.q_heads / c.kv_heads * c.q_len; }
  std::int64_t keys(std::int64_t b) const { return c.length(b) + c.new_len; }
  template <typename Has>
  bool any_sequence(const Has& has) const {
    for (std::int64_t b = 0; b < c.batch(); ++b) {
      if (has(b)) return true;
    }
    return false;
  }
  /// Whether some row of some sequence is masked so: has(first key that it sees, past key, keys).
  template <typename Has>
  bool any_row(const Has& has) const {
    return any_sequence([&](std::int64_t b) {
      for (std::int64_t token = 0; token < c.q_len; ++token) {
        const auto seen = c.mask.visible_keys(token, c.q_len, keys(b));
        if (has(seen.begin, seen.end, keys(b))) return true;
      }
      return false;
    });
  }
};

/// Features of one algorithm, and those that are the same code for all.
struct Rows {
  Coverage& coverage;
  std::string kind;
  void count(const std::string& feature, bool has) const { coverage.count(kind, feature, has); }
  void count_for_all(const std::string& feature, bool has) const { coverage.count("all", feature, has); }
};

void count_mask(const Rows& rows, const Draw& draw) {
  const core::Mask& mask = draw.c.mask;
  const bool causal = mask.left == core::Mask::unlimited && mask.right == 0;
  const bool bites = draw.any_row([](auto begin, auto end, auto) { return begin > 0 && begin < end; });
  const bool several_row_tiles = draw.rows() > draw.variant.query_rows;
  rows.count("mask full", mask.is_full());
  rows.count("mask causal, several queries", causal && draw.c.q_len > 1);
  rows.count("window that bites", bites);
  rows.count("window that bites, several queries", bites && draw.c.q_len > 1);
  rows.count("several row tiles", several_row_tiles);
  rows.count("several row tiles with a mask that bites",
             several_row_tiles && draw.any_row([](auto begin, auto end, auto keys) {
               return begin < end && (begin > 0 || end < keys);
             }));
  rows.count("a row sees no key", draw.any_row([](auto begin, auto end, auto) { return begin >= end; }));
}

void count_lengths(const Rows& rows, const Draw& draw) {
  const DecodeCase& c = draw.c;
  const auto length = [&](std::int64_t b) { return c.lengths[static_cast<std::size_t>(b)]; };
  rows.count_for_all("empty sequence", draw.any_sequence([&](auto b) { return draw.keys(b) == 0; }));
  rows.count_for_all("negative length", draw.any_sequence([&](auto b) { return length(b) < 0; }));
  rows.count_for_all("length above the capacity",
                     draw.any_sequence([&](auto b) { return length(b) > c.capacity; }));
  for (const int by : {-1, 0, 1}) {
    rows.count_for_all(by < 0    ? "keys one short of a block"
                       : by == 0 ? "keys at a block's end"
                                 : "keys one beyond it",
                       draw.any_sequence([&](auto b) {
                         return draw.keys(b) > 1 && (draw.keys(b) - by) % draw.variant.block_n == 0;
                       }));
  }
  rows.count("keys at a block's end or next to it", draw.any_sequence([&](auto b) {
    return draw.keys(b) > 1 && (draw.keys(b) + 1) % draw.variant.block_n <= 2;
  }));
  rows.count_for_all("one sequence", c.batch() == 1);
  rows.count_for_all("2 to 32 sequences", c.batch() > 1 && c.batch() <= 32);
  rows.count_for_all("33 to 128 sequences", c.batch() > 32 && c.batch() <= 128);
  rows.count_for_all("more than 128 sequences", c.batch() > 128);
}

void count_splits(const Rows& rows, const Draw& draw) {
  const DecodeCase& c = draw.c;
  const std::int64_t most_merged = draw.variant.query_rows <= 32 ? 16 : 8;
  for (const std::int64_t size : {64, 128, 256})
    rows.count_for_all("splits of " + std::to_string(size), c.split_size == size);
  const auto more_than = [&](std::int64_t size, std::int64_t parts) {
    return draw.any_sequence([&](auto b) { return draw.keys(b) > parts * size; });
  };
  if (draw.variant.has_fixed_splits()) {
    rows.count("a sequence in several fixed splits", c.split_size > 0 && more_than(c.split_size, 1));
    rows.count("more fixed splits than merged at once",
               c.split_size > 0 && more_than(c.split_size, most_merged));
  }
  rows.count("more shares than merged at once", c.split_size == 0 &&
                                                    test::multiprocessors_of(draw.seed) > most_merged &&
                                                    more_than(draw.variant.block_n, most_merged));
}

void count_cache(const Rows& rows, const Draw& draw) {
  const DecodeCase& c = draw.c;
  rows.count_for_all("no pages", c.page_size == 0);
  for (const std::int64_t size : {1, 4, 16, 64, 128, 256})
    rows.count_for_all("pages of " + std::to_string(size), c.page_size == size);
  rows.count_for_all("batch index", c.batch_index);
  rows.count_for_all("batch index, pages", c.batch_index && c.page_size > 0);
  rows.count("no new token", c.new_len == 0);
  rows.count("one new token", c.new_len == 1);
  rows.count("several new tokens", c.new_len > 1);
  rows.count_for_all("new tokens on both sides of a page's edge",
                     c.page_size > 1 && c.new_len > 1 && draw.any_sequence([&](auto b) {
                       return c.length(b) % c.page_size + c.new_len > c.page_size;
                     }));
  rows.count_for_all("new tokens on both sides of a block's edge",
                     c.new_len > 1 && draw.any_sequence([&](auto b) {
                       return c.length(b) % draw.variant.block_n + c.new_len > draw.variant.block_n;
                     }));
}

void count_options(const Rows& rows, const Draw& draw) {
  const DecodeCase& c = draw.c;
  rows.count("one query", c.q_len == 1);
  rows.count("several queries", c.q_len > 1);
  for (const std::int64_t queries : {1, 2, 3, 4, 8})
    rows.count_for_all("queries " + std::to_string(queries), c.q_len == queries);
  rows.count("one head a group", c.q_heads == c.kv_heads);
  rows.count_for_all("a group that fills its row tile", draw.rows() == draw.variant.query_rows);
  rows.count_for_all("several key/value heads", c.kv_heads > 1);
  rows.count_for_all("no rotary tables", c.rotary_dim == 0);
  rows.count_for_all("rotary tables of fp32", c.rotary_dim > 0 && c.rotary_dtype == TANDEM_FP32);
  rows.count_for_all("rotary tables of 16 bits", c.rotary_dim > 0 && c.rotary_dtype == c.dtype);
  rows.count_for_all("rotary halves", c.rotary_dim > 0 && !c.interleaved);
  rows.count_for_all("rotary pairs", c.rotary_dim > 0 && c.interleaved);
  rows.count_for_all("rotary over a part of the head", c.rotary_dim > 0 && c.rotary_dim < c.head_dim);
  rows.count_for_all("rotary, new tokens", c.rotary_dim > 0 && c.new_len > 0);
  rows.count("softcap", c.softcap > 0);
  rows.count("softcap with a mask", c.softcap > 0 && !c.mask.is_full());
  rows.count_for_all("scale given", c.scale > 0);
  rows.count("lse", c.lse);
  rows.count("no lse", !c.lse);
  rows.count("sinks", c.sinks);
  rows.count("no sinks", !c.sinks);
  if (draw.variant.has_fixed_splits())
    rows.count("sinks, several fixed splits", c.sinks && c.split_size > 0 && draw.any_sequence([&](auto b) {
      return draw.keys(b) > c.split_size;
    }));
  rows.count_for_all("sinks, a row sees no key",
                     c.sinks && draw.any_row([](auto begin, auto end, auto) { return begin >= end; }));
}

/// Of an 8-bit cache.
void count_elements(const Rows& rows, const Draw& draw) {
  const DecodeCase::EightBit& own = draw.c.eight_bit;
  for (const bool int8 : {false, true}) {
    const std::string name = int8 ? "int8" : "e4m3";
    for (const bool per_token : {false, true})
      rows.count(name + (per_token ? ", scales of tokens" : ", scales of sequences and heads"),
                 own.int8 == int8 && own.per_token == per_token);
    rows.count(name + ", a Hadamard matrix", own.int8 == int8 && own.hadamard);
    rows.count(name + ", a Hadamard matrix, new tokens",
               own.int8 == int8 && own.hadamard && draw.c.new_len > 0);
    rows.count(name + ", a Hadamard matrix, rotary",
               own.int8 == int8 && own.hadamard && draw.c.rotary_dim > 0);
  }
  rows.count_for_all("a Hadamard matrix of fewer columns than the kernel's",
                     own.hadamard && draw.c.head_dim < draw.variant.head_dim);
}

/// Of values that lie in the keys.
void count_values_in_keys(Coverage& coverage, const Draw& draw) {
  const DecodeCase& c = draw.c;
  const auto count = [&coverage](const std::string& feature, bool has) {
    coverage.count("values in keys", feature, has);
  };
  count("as built", c.head_dim == draw.variant.head_dim && c.value_dim == draw.variant.value_dim);
  count("fewer columns of keys", c.head_dim < draw.variant.head_dim);
  count("fewer columns of values", c.value_dim < draw.variant.value_dim);
  count("new tokens", c.new_len > 0);
  count("keys end within a block",
        draw.any_sequence([&](auto b) { return draw.keys(b) % draw.variant.block_n != 0; }));
  count("several row tiles", draw.rows() > draw.variant.query_rows);
  count("rotary of queries", c.rotary_dim > 0);
  count("a sequence in several fixed splits",
        c.split_size > 0 && draw.any_sequence([&](auto b) { return draw.keys(b) > c.split_size; }));
}

/// Of queries of two parts.
void count_second_part(Coverage& coverage, const Draw& draw) {
  const DecodeCase& c = draw.c;
  const auto count = [&coverage](const std::string& feature, bool has) {
    coverage.count("two-part queries", feature, has);
  };
  count("new tokens", c.new_len > 0);
  count("rotary, new tokens", c.rotary_dim > 0 && c.new_len > 0);
  count("pages", c.page_size > 0);
  count("keys end within a block",
        draw.any_sequence([&](auto b) { return draw.keys(b) % draw.variant.block_n != 0; }));
  count("several row tiles", draw.rows() > draw.variant.query_rows);
}

TEST(DecodeDraws, HaveEveryFeatureForEveryAlgorithm) {
  static constexpr const char* kinds[] = {"plain", "shared-p", "register-p", "8 bits", "paired"};
  Coverage coverage;
  const auto count = [&](const DecodeVariant& v, std::uint64_t seed) {
    const Rows rows{coverage, kinds[static_cast<int>(v.algorithm)]};
    const Draw draw{v, seed};
    count_mask(rows, draw);
    count_lengths(rows, draw);
    count_splits(rows, draw);
    count_cache(rows, draw);
    count_options(rows, draw);
    if (v.two_part_keys) {
      count_second_part(coverage, draw);
    } else if (v.values_in_keys()) {
      count_values_in_keys(coverage, draw);
    }
    if (v.eight_bit()) count_elements(rows, draw);
  };
  test::for_each_draw("EqualsTheOracleUnderEveryPolicy", sim::decode_variants(), count);
  std::cout << coverage;
  EXPECT_EQ(coverage.missing(), "");
}

}  // namespace
}  // namespace tandem
