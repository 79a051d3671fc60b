// The Hopper forward against the oracle: random problems, every compiled variant, long sequences.
#include "cpu/forward.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <gtest/gtest.h>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "forward/plan.h"
#include "tests/gpu/device_forward.h"
#include "tests/support/compare.h"
#include "tests/support/standard.h"

namespace tandem::test {
namespace {

using forward::ForwardVariant;
using forward::MaskKind;

template <typename T, std::size_t count>
T one_of(Random& random, const T (&values)[count]) {
  return values[random() % count];
}

/// Around the edges of tiles (64, 128, 176, 192 rows), tiny, and a few tiles long.
std::int64_t random_length(Random& random) {
  static constexpr std::int64_t lengths[] = {0,   1,   2,   7,   16,  33,  63,  64,  65,  79,  80,  81,  100,
                                             127, 128, 129, 175, 176, 177, 191, 192, 193, 255, 257, 300, 420};
  return one_of(random, lengths);
}

std::int64_t random_head_dim(Random& random) {
  static constexpr std::int64_t common[] = {64, 128, 256, 8, 40, 72, 80, 96, 192};
  return random() % 4 == 0 ? 8 + 8 * static_cast<std::int64_t>(random() % 32) : one_of(random, common);
}

/// Groups of any size; the larger, the fewer queries, as where heads are packed.
void draw_heads(ForwardCase& c, Random& random) {
  static constexpr std::int64_t groups[] = {1, 1, 1, 1, 1, 2, 3, 3, 4, 6, 16, 64};
  const std::int64_t group = one_of(random, groups);
  c.kv_heads = static_cast<std::int64_t>(1 + random() % 3);
  c.q_heads = c.kv_heads * group;
  if (group >= 4) c.q_len = std::min(c.q_len, static_cast<std::int64_t>(1 + random() % 400) / group);
}

/// Cheap enough for the oracle on the CPU.
void limit_work(ForwardCase& c) {
  const auto work = [&] { return c.batch * c.q_heads * c.q_len * c.k_len * c.head_dim; };
  constexpr std::int64_t limit = 30'000'000;
  if (work() > limit) c.batch = 1;
  if (work() > limit) c.q_heads = c.kv_heads;
  if (work() > limit) c.q_heads = c.kv_heads = 1;
}

/// Keys and values may be shared along any dimension. Queries are not along the sequence: rows that are all
/// the same have too few different errors to compare.
void draw_broadcasts(ForwardCase& c, Random& random) {
  c.q.broadcast[0] = random() % 10 == 0;
  for (Layout* layout : {&c.k, &c.v}) {
    for (bool& broadcast : layout->broadcast) broadcast = random() % 10 == 0;
  }
}

/// Rows of 8-bit tensors begin at multiples of 16 bytes.
void align_rows(ForwardCase& c) {
  const int gap = 16 + static_cast<int>((16 - c.head_dim % 16) % 16);
  for (Layout* layout : {&c.q, &c.k, &c.v}) layout->row_gap = gap;
  if (c.eight_bit.v_transposed) c.v.row_gap = 16;
}

ForwardCase random_case(std::uint64_t seed) {
  Random random(seed);
  ForwardCase c;
  c.seed = seed;
  c.dtype = random() % 2 == 0 ? TANDEM_BF16 : TANDEM_FP16;
  c.batch = static_cast<std::int64_t>(1 + random() % 3);
  c.q_len = random_length(random);
  c.k_len = random_length(random);
  draw_heads(c, random);
  c.head_dim = random_head_dim(random);
  c.mask = random_mask(random, c.q_len, c.k_len);
  c.scale = random() % 4 == 0 ? 0.2f : 0.0f;
  c.softcap = random() % 4 == 0 ? static_cast<float>(2 + random() % 40) : 0.0f;
  c.lse = random() % 4 != 0;
  for (Layout* layout : {&c.q, &c.k, &c.v, &c.o}) *layout = random_tma_layout(random);
  draw_broadcasts(c, random);
  c.lse_layout = random_layout(random);  // written with ordinary stores, so that any strides will do
  limit_work(c);
  if (random() % 3 == 0) {
    draw_eight_bit(c, random);
    align_rows(c);
  } else if (random() % 4 == 0) {
    c.value_dim = 8 * static_cast<std::int64_t>(1 + random() % 16);
  } else if (random() % 10 == 0) {
    c.head_dim = 264 + 8 * static_cast<std::int64_t>(random() % 32);
  }
  return c;
}

bool is_packed(const ForwardCase& c) {
  const core::ForwardProblem problem = shapes_of(c);
  return forward::tiling_of(problem, *forward::choose_variant(problem)).packing.heads() > 1;
}

/// The default stream, one that does not wait for it, and the thread's own.
cudaStream_t stream_for(std::uint64_t seed, const Stream& own) {
  const cudaStream_t streams[] = {nullptr, own.get(), cudaStreamPerThread};
  return streams[seed % std::size(streams)];
}

TEST_F(HopperForward, RandomProblemsMatchTheOracle) {
  // Another seed: --gtest_random_seed.
  const auto first = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
  constexpr int cases = 400;
  std::vector<std::string> failures(cases);
#pragma omp parallel
  {
    const Stream own;
#pragma omp for schedule(dynamic)
    for (int i = 0; i < cases; ++i) {
      const std::uint64_t seed = first + static_cast<std::uint64_t>(i);
      try {
        failures[static_cast<std::size_t>(i)] = failure_of(random_case(seed), stream_for(seed, own));
      } catch (const std::exception& error) {
        failures[static_cast<std::size_t>(i)] = error.what();
      }
    }
  }
  int packed = 0;
  for (int i = 0; i < cases; ++i) {
    const ForwardCase c = random_case(first + static_cast<std::uint64_t>(i));
    packed += is_packed(c) ? 1 : 0;
    EXPECT_EQ(failures[static_cast<std::size_t>(i)], "") << c;
  }
  EXPECT_GT(packed, cases / 8) << "too few problems with packed heads";
}

// ---- Variants

std::string name_of(const ForwardVariant& v) {
  static constexpr const char* overlaps[] = {"serial", "two_stage", "three_stage"};
  static constexpr const char* operands[] = {"bf16", "fp16", "e4m3", "int8"};
  static constexpr const char* layouts[] = {"", "_v_rows", "_v_columns"};
  const std::string output = v.is_8_bit() ? std::string("_to_") + operands[static_cast<int>(v.output)] : "";
  return operands[static_cast<int>(v.operand)] + output + layouts[static_cast<int>(v.values)] +
         (v.fp16_scores ? "_fp16_scores" : "") + (v.value_terms == 2 ? "_two_terms_d" : "_d") +
         std::to_string(v.head_dim) + (v.has_narrow_values() ? "_" + std::to_string(v.value_dim) : "") +
         (v.mask == MaskKind::prefix ? "_prefix_" : "_band_") + (v.block_sparse ? "sparse_" : "") +
         (v.softcap ? "softcap_" : "") + overlaps[static_cast<int>(v.overlap)] +
         (v.turn == forward::TurnPolicy::free ? "_free_" : "_pingpong_") + std::to_string(v.block_m) + "x" +
         std::to_string(v.block_n);
}

class EveryVariant : public HopperForward, public testing::WithParamInterface<forward::Candidate> {};
bool for_study(const forward::Candidate& candidate) { return candidate.on_request; }

std::vector<forward::Candidate> built_candidates(bool study) {
  std::vector<forward::Candidate> chosen;
  for (const forward::Candidate& candidate : forward::all_candidates()) {
    const ForwardVariant& v = candidate.variant;
    if (v.lengths == forward::Lengths::varlen) continue;  // tests of their own
    if (for_study(candidate) == study) chosen.push_back(candidate);
  }
  return chosen;
}

std::string test_name(const testing::TestParamInfo<forward::Candidate>& info) {
  return name_of(info.param.variant);
}

INSTANTIATE_TEST_SUITE_P(Built, EveryVariant, testing::ValuesIn(built_candidates(false)), test_name);
INSTANTIATE_TEST_SUITE_P(ForStudy, EveryVariant, testing::ValuesIn(built_candidates(true)), test_name);

/// More than two tiles of queries and three blocks of keys, ragged, and a request for the variant.
ForwardCase case_for(const forward::Candidate& candidate) {
  const ForwardVariant& v = candidate.variant;
  ForwardCase c;
  c.dtype = v.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  c.q_len = 2 * v.block_m + 17;
  c.k_len = 3 * v.block_n + 5;
  c.overlap = static_cast<tandem_overlap>(TANDEM_OVERLAP_SERIAL + static_cast<int>(v.overlap));
  c.turn = v.turn == forward::TurnPolicy::free ? TANDEM_TURN_FREE : TANDEM_TURN_PINGPONG;
  c.block_m = v.block_m, c.block_n = v.block_n;
  c.q_heads = 2;
  c.head_dim = v.head_dim;
  if (v.has_narrow_values()) c.value_dim = v.value_dim;
  c.softcap = v.softcap ? 5.f : 0.f;
  if (v.block_sparse) {
    c.k_len = 1300;
    c.blocks = {.q_block = 256, .k_block = 128, .each_entry = true, .each_head = true};
  }
  if (v.is_8_bit()) {
    c.dtype = v.operand == hw::Operand::int8 ? TANDEM_INT8 : TANDEM_E4M3;
    c.eight_bit = {.output = v.output == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16,
                   .v_transposed = v.values == forward::ValueLayout::columns,
                   .v_terms = v.value_terms,
                   .amplitude = v.fp16_scores ? 8.f : 0.f,
                   .q = {true, 50, 1},
                   .k = {false, 128, 1},
                   .v = {true, 256, 1}};
    align_rows(c);
  }
  return c;
}

void expect_served_by(const ForwardVariant& v, const ForwardCase& c) {
  const ForwardVariant* chosen = forward::choose_variant(ForwardTensors(c).problem());
  ASSERT_NE(chosen, nullptr) << c;
  ASSERT_EQ(*chosen, v) << "chosen is " << name_of(*chosen) << " for " << c;
  EXPECT_EQ(failure_of(c), "") << c;
}

/// Masks that the variant is built for.
std::vector<core::Mask> masks_for(const forward::Candidate& candidate) {
  const bool bands = candidate.variant.mask == forward::MaskKind::band;
  std::vector<core::Mask> masks;
  if (!bands || for_study(candidate))
    masks = {core::Mask::full(), core::Mask::causal(), core::Mask{core::Mask::unlimited, 90}};
  if (bands) masks.insert(masks.end(), {core::Mask{150, 40}, core::Mask{30, core::Mask::unlimited}});
  return masks;
}

TEST_P(EveryVariant, MatchesTheOracle) {
  ForwardCase c = case_for(GetParam());
  for (const core::Mask mask : masks_for(GetParam())) {
    c.mask = mask;
    expect_served_by(GetParam().variant, c);
  }
}

TEST_P(EveryVariant, PadsSmallerHeadDims) {
  ForwardCase c = case_for(GetParam());
  c.head_dim -= 24;
  if (c.value_dim > 0) c.value_dim -= 24;
  c.kv_heads = 2;
  if (c.is_8_bit()) align_rows(c);
  c.mask = masks_for(GetParam()).front();
  expect_served_by(GetParam().variant, c);
}

TEST_P(EveryVariant, PacksTheHeadsOfAGroup) {
  const ForwardVariant& variant = GetParam().variant;
  if (variant.block_sparse) GTEST_SKIP() << "heads with lists of their own have tiles of their own";
  ForwardCase c = case_for(GetParam());
  c.mask = masks_for(GetParam()).front();
  c.batch = c.kv_heads = 1;
  for (const int group : {4, 32}) {
    c.q_heads = group;
    c.q_len = variant.block_m / group + 3;  // two tiles, the last one not full
    ASSERT_TRUE(is_packed(c)) << c;
    expect_served_by(variant, c);
  }
}

// ---- Long sequences, on sampled rows

/// The problem of one query: its row, and of K and V only the keys that it sees, under no mask.
core::ForwardProblem row_problem(const core::ForwardProblem& p, std::int64_t b, std::int64_t i,
                                 std::int64_t h) {
  const core::KeyRange keys = p.mask.visible_keys(i, p.q_len(), p.k_len());
  const auto part = [](core::Tensor t, std::int64_t batch, core::KeyRange rows, std::int64_t head) {
    t.data = core::row_of<std::uint16_t>(t, batch, rows.begin, head);
    t.shape[0] = t.shape[2] = 1;
    t.shape[1] = rows.end - rows.begin;
    return t;
  };
  core::ForwardProblem row = p;
  row.q = row.o = part(p.q, b, {i, i + 1}, h);
  row.k = part(p.k, b, keys, h / p.group());
  row.v = part(p.v, b, keys, h / p.group());
  row.mask = core::Mask::full();
  return row;
}

void expect_sampled_rows_match(const ForwardCase& c) {
  ForwardTensors tensors(c);
  const DeviceForward device(tensors);
  device.run();
  device.read_outputs(tensors);
  constexpr int samples = 160;
  Pool o, lse;
#pragma omp parallel for schedule(dynamic)
  for (int sample = 0; sample < samples; ++sample) {
    Random random(c.seed + static_cast<std::uint64_t>(sample));
    const auto below = [&](std::int64_t bound) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
    };
    const std::int64_t b = below(c.batch), h = below(c.q_heads);
    const std::int64_t i = sample == 0 ? 0 : sample == 1 ? c.q_len - 1 : below(c.q_len);
    const core::ForwardProblem row = row_problem(tensors.problem(), b, i, h);
    std::vector<double> values;
    for (std::int64_t e = 0; e < c.head_dim; ++e) values.push_back(tensors.o.at(b, i, h, e));
    const cpu::ReferenceValues reference = cpu::reference_values(row);
    const ForwardValues standard = standard_forward(row);
#pragma omp critical
    {
      o.add(values, standard.o, reference.o);
      lse.add({tensors.lse.at(b, i, h, 0)}, standard.lse, reference.lse);
    }
  }
  const Comparison o_comparison = compare(o.result, o.standard, o.reference, allowance_of_o(c.dtype));
  EXPECT_TRUE(o_comparison) << c << " o: " << o_comparison;
  const Comparison lse_comparison =
      compare(lse.result, lse.standard, lse.reference, allowance_of_lse(c.dtype));
  EXPECT_TRUE(lse_comparison) << c << " lse: " << lse_comparison;
  EXPECT_TRUE(tensors.o.guards_intact() && tensors.lse.guards_intact()) << c;
}

ForwardCase long_case(std::int64_t q_len, std::int64_t k_len, std::int64_t head_dim, core::Mask mask) {
  ForwardCase c;
  c.q_len = q_len, c.k_len = k_len, c.head_dim = head_dim, c.mask = mask;
  c.q_heads = 2;
  return c;
}

TEST_F(HopperForward, LongSequencesMatchTheOracleOnSampledRows) {
  expect_sampled_rows_match(long_case(4133, 4133, 128, core::Mask::causal()));
  expect_sampled_rows_match(long_case(4096, 4096, 128, core::Mask::full()));
  expect_sampled_rows_match(long_case(2000, 9000, 64, core::Mask{1000, 200}));
  expect_sampled_rows_match(long_case(5000, 1000, 64, core::Mask::causal()));  // most queries see nothing
  expect_sampled_rows_match(long_case(3000, 3000, 256, core::Mask::causal()));
}

TEST_F(HopperForward, AMillionEqualKeysWeighTheSame) {
  for (const std::int64_t k_len : {std::int64_t{1} << 17, std::int64_t{1} << 20}) {
    for (const float k_value : {125.f, 6176.f}) {
      ForwardCase c;
      c.q_len = 2, c.k_len = k_len, c.scale = 1;
      ForwardTensors tensors(c);
      make_scores_equal(tensors, 8, k_value);
      SCOPED_TRACE(testing::Message() << c << " scores of " << 8 * k_value);
      const DeviceForward device(tensors);
      device.run();
      device.read_outputs(tensors);
      const std::vector<double> halves(tensors.o.values().size(), 0.5);
      EXPECT_LE(largest_difference(tensors.o.values(), halves), 3e-3);
      const std::vector<double> lse(tensors.lse.values().size(),
                                    8 * k_value + std::log(static_cast<double>(k_len)));
      EXPECT_LE(largest_difference(tensors.lse.values(), lse), lse_tolerance);
    }
  }
}

TEST_F(HopperForward, LongSequencesWithACommonOffsetMatchTheOracle) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const float offset : {0.f, 50.f, 9792.f}) {
      ForwardCase c;
      c.q_len = 16, c.k_len = 1 << 17, c.head_dim = head_dim;
      ForwardTensors tensors(c);
      offset_scores(tensors, std::sqrt(static_cast<float>(head_dim)), offset);
      SCOPED_TRACE(testing::Message() << c << " offset " << offset);
      const DeviceForward device(tensors);
      device.run();
      device.read_outputs(tensors);
      const cpu::ReferenceValues reference = cpu::reference_values(tensors.problem());
      const ForwardValues standard = standard_forward(tensors.problem());
      const Comparison o = compare(tensors.o.values(), standard.o, reference.o);
      EXPECT_TRUE(o) << o;
      EXPECT_LE(largest_difference(tensors.lse.values(), reference.lse), lse_tolerance);
    }
  }
}

TEST_F(HopperForward, ManyHeadsMatchTheOracleOnSampledRows) {
  // Several rounds of the persistent grid.
  for (const core::Mask mask : {core::Mask::full(), core::Mask::causal()}) {
    ForwardCase c = long_case(777, 1024, 128, mask);
    c.batch = 3, c.q_heads = 24, c.kv_heads = 6, c.dtype = TANDEM_FP16;
    expect_sampled_rows_match(c);
  }
}

}  // namespace
}  // namespace tandem::test
