// Variable lengths on Hopper against the oracle of each sequence: random batches of every variant, graphs
// that read lengths anew, bits that do not depend on the batch.
#include <algorithm>
#include <gtest/gtest.h>
#include <iterator>
#include <numeric>
#include <vector>

#include "cpu/forward.h"
#include "tests/gpu/device_varlen.h"
#include "tests/support/compare.h"
#include "tests/support/varlen_batch.h"
#include "tests/support/varlen_call.h"
#include "tests/support/varlen_case.h"

namespace tandem::test {
namespace {

TEST_F(HopperVarlen, EachSequenceEqualsItsOracle) {
  // Another seed: --gtest_random_seed.
  const auto first = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
  const Stream stream;
  for (std::uint64_t seed = first; seed < first + 100 && !HasFailure(); ++seed) {
    const VarlenCase c = random_case(seed);
    SCOPED_TRACE(testing::Message() << c << " draw " << seed);
    VarlenTensors tensors(c);
    const DeviceVarlen device(tensors);
    device.run(seed % 2 == 0 ? stream.get() : nullptr);
    device.read(tensors);
    EXPECT_EQ(failure_of(tensors), "");
  }
}

// What nobody lists is NaN for the kernel alone.
TEST_F(HopperVarlen, ListedSequencesEqualTheirOracle) {
  const auto first = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
  for (std::uint64_t seed = first; seed < first + 60 && !HasFailure(); ++seed) {
    VarlenCase c = random_case(seed);
    Random random(seed);
    for (std::int64_t& length : c.k_lens) length += static_cast<std::int64_t>(random() % 3 * 128);
    c.blocks = draw_block_list(random, 128);
    SCOPED_TRACE(testing::Message() << c << " draw " << seed);
    VarlenTensors tensors(c);
    spoil_unlisted(tensors);
    DeviceVarlen device(tensors);
    device.run();
    device.read(tensors);
    const VarlenValues values = varlen_values(tensors);
    EXPECT_TRUE(compare(values.result.o, values.standard.o, values.reference.o));
    if (c.lse) {
      EXPECT_TRUE(compare(values.result.lse, values.standard.lse, values.reference.lse));
    }
    EXPECT_TRUE(others_untouched(tensors));
  }
}

// Few and small, so that sanitizers get through them too.
TEST_F(HopperVarlen, SmallBatchesOfEveryVariantEqualTheirOracle) {
  std::uint64_t seed = 0;
  struct HeadDims {
    std::int64_t keys, values;
  };
  for (const auto [head_dim, value_dim] :
       {HeadDims{64, 64}, {96, 96}, {128, 128}, {192, 192}, {192, 128}, {256, 256}}) {
    for (const bool causal : {true, false}) {
      for (const float softcap : {0.f, 20.f}) {
        VarlenCase c;
        c.seed = ++seed;
        c.q_lens = {3, 140, 0}, c.k_lens = {130, 200, 5};
        c.keys = static_cast<KeyLayout>(seed % 3);
        c.head_dim = head_dim;
        c.mask = causal ? core::Mask::causal() : core::Mask{50, 20};
        c.softcap = softcap;
        c.slopes = !causal, c.slopes_by_sequence = softcap > 0;
        c.tree = !causal && head_dim < 256;
        if (!causal && softcap == 0 && head_dim < 256) c.mask = {core::Mask::unlimited, 0, 70};
        if (value_dim != head_dim)
          c.value_dim = value_dim;
        else if (c.keys != KeyLayout::packed)
          c.new_lens = {3, 100, 0}, c.rotary_dim = head_dim / (causal ? 1 : 2);
        c.interleaved = softcap > 0;
        SCOPED_TRACE(testing::Message() << c);
        VarlenTensors tensors(c);
        const DeviceVarlen device(tensors);
        device.run();
        device.read(tensors);
        EXPECT_EQ(failure_of(tensors), "");
      }
    }
  }
}

// Captured with short sequences, replayed with long ones: the grid and the launch depend on bounds only.
TEST_F(HopperVarlen, AGraphReadsLengthsAnewAtEveryReplay) {
  VarlenCase c;
  c.keys = KeyLayout::entries;
  c.q_lens = {1, 300, 0, 40}, c.k_lens = {500, 300, 20, 900};
  c.mask = core::Mask::causal();
  VarlenTensors long_ones(c), short_ones(c);
  short_ones.cu_seqlens_q = {0, 1, 2, 3, 4};
  short_ones.seqused_k = {1, 2, 3, 4};
  DeviceVarlen device(long_ones);
  device.write_lengths(short_ones);
  const Stream stream;
  const Graph graph(stream, [&](cudaStream_t s) { device.run(s); });
  graph.replay();
  device.write_lengths(long_ones);
  graph.replay();
  device.read(long_ones);
  EXPECT_EQ(failure_of(long_ones), "");
}

TEST_F(HopperVarlen, ManySequencesAndALongOneEqualTheirOracle) {
  VarlenCase c;
  c.head_dim = 128;
  c.keys = KeyLayout::paged;
  c.page_size = 64;
  c.q_heads = 4;
  c.mask = core::Mask::causal();
  for (std::int64_t i = 0; i < 200; ++i) c.q_lens.push_back(1 + i % 5), c.k_lens.push_back(10 + 3 * i);
  c.q_lens.push_back(700), c.k_lens.push_back(3000);
  VarlenTensors tensors(c);
  const DeviceVarlen device(tensors);
  device.run();
  device.read(tensors);
  EXPECT_EQ(failure_of(tensors), "");
}

TEST_F(HopperVarlen, FewQueriesAloneAndBesidePromptsEqualTheirOracle) {
  struct Step {
    std::int64_t most_queries;
    std::vector<std::int64_t> prompts;
  };
  // Four rows a query: alone, they fill tiles of 8, 16 and 32.
  for (const Step& step : {Step{2, {}}, {4, {}}, {8, {}}, {8, {700, 9}}})
    for (const std::int64_t head_dim : {64, 128, 256})
      for (const tandem_dtype dtype : {TANDEM_BF16, TANDEM_FP16}) {
        VarlenCase c = steps_of(head_dim, step.most_queries, step.prompts);
        c.dtype = dtype;
        SCOPED_TRACE(testing::Message() << c);
        VarlenTensors tensors(c);
        const DeviceVarlen device(tensors, {.queries = step.prompts.empty() ? step.most_queries : 0});
        device.run();
        device.read(tensors);
        EXPECT_EQ(failure_of(tensors), "");
      }
}

/// A step whose kernel finds sequences without a list: some have no queries, some no keys.
VarlenCase packed_step(std::int64_t head_dim, std::int64_t sequences, std::int64_t most_queries,
                       std::int64_t most_keys) {
  VarlenCase c;
  c.head_dim = head_dim;
  c.keys = sequences % 2 == 0 ? KeyLayout::paged : KeyLayout::entries;
  c.page_size = 64;
  c.q_heads = 8, c.kv_heads = 2;
  c.mask = core::Mask::causal();
  for (std::int64_t i = 0; i < sequences; ++i) {
    c.q_lens.push_back(i % 7 == 3 ? 0 : 1 + i % most_queries);
    c.k_lens.push_back(i % 11 == 5 ? 0 : most_keys - i * 13 % (most_keys / 2));
  }
  return c;
}

TEST_F(HopperVarlen, FewQueriesWithoutAListEqualTheirOracle) {
  struct Step {
    std::int64_t sequences, most_queries, most_keys, split_size;
  };
  // Parts of long streams, streams that blocks know, more of these than there is room for, and drafts.
  for (const Step& step :
       {Step{3, 1, 9000, 0}, Step{60, 1, 500, 0}, Step{151, 1, 300, 0}, Step{150, 1, 900, 0},
        Step{20, 4, 900, 0}, Step{21, 8, 1500, 0}, Step{20, 1, 900, 128}, Step{20, 8, 900, 128}})
    for (const std::int64_t head_dim : {64, 128, 256})
      for (const tandem_dtype dtype : {TANDEM_BF16, TANDEM_FP16}) {
        VarlenCase c = packed_step(head_dim, step.sequences, step.most_queries, step.most_keys);
        c.dtype = dtype, c.split_size = step.split_size;
        SCOPED_TRACE(testing::Message() << c);
        VarlenTensors tensors(c);
        const DeviceVarlen device(tensors, {.queries = step.most_queries});
        device.run();
        device.read(tensors);
        EXPECT_EQ(failure_of(tensors), "");
      }
}

/// Prompts and sequences of few queries, whose keys are split at multiples of a split size.
VarlenCase bits_case(std::uint64_t seed) {
  VarlenCase c = random_case(seed);
  Random random(seed + 1);
  const auto draw = [&random](std::int64_t most) {
    return 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
  };
  c.q_lens.clear(), c.k_lens.clear(), c.new_lens.clear(), c.padding.clear();
  c.batch_index = false, c.q_packed = c.new_packed = true;
  if (c.keys == KeyLayout::packed && random() % 2 == 0) c.keys = KeyLayout::paged;
  for (std::int64_t i = 0, count = 2 + draw(20); i < count; ++i) {
    c.q_lens.push_back(random() % 4 == 0 ? draw(200) : draw(32 / (c.q_heads / c.kv_heads)));
    c.k_lens.push_back(c.q_lens.back() + draw(random() % 4 == 0 ? 5000 : 800));
  }
  if (c.keys != KeyLayout::packed && random() % 2 == 0) c.new_lens = c.q_lens;
  if (random() % 2 == 0) c.mask.chunk = 0, c.slopes = c.tree = false;
  c.split_size = std::int64_t{64} << random() % 5;
  return c;
}

// Alone, tiles of few queries have other rows, and the forward other tiles were it free to choose.
TEST_F(HopperVarlen, WithASplitSizeBitsAreTheSameAloneInAnyBatchAndWithAnyBounds) {
  const auto first = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
  const auto run = [](VarlenTensors& tensors, const Bounds& bounds) {
    const DeviceVarlen device(tensors, bounds);
    device.run();
    device.read(tensors);
  };
  for (std::uint64_t seed = first; seed < first + 12 && !HasFailure(); ++seed) {
    const VarlenCase c = bits_case(seed);
    SCOPED_TRACE(testing::Message() << c << " draw " << seed);
    Random random(seed);
    VarlenTensors all(c);
    run(all, {});
    EXPECT_EQ(failure_of(all), "");
    for (int i = 0; i < 4; ++i) {
      std::vector<std::size_t> which(c.q_lens.size());
      std::iota(which.begin(), which.end(), std::size_t{0});
      std::shuffle(which.begin(), which.end(), random);
      // One alone; those of at most so many queries; some.
      const std::int64_t most = i == 1 ? 1 : i == 2 ? 32 * c.kv_heads / c.q_heads : 500;
      std::erase_if(which, [&](std::size_t s) { return c.q_lens[s] > most; });
      if (which.empty()) continue;
      if (i % 3 == 0) which.resize(i == 0 ? 1 : 1 + random() % which.size());
      VarlenTensors some = sequences_of(all, which);
      run(some,
          {std::ranges::max(some.setup.q_lens), random() % 2 == 0 ? 0 : std::ranges::max(some.setup.k_lens)});
      for (std::size_t j = 0; j < which.size(); ++j)
        EXPECT_TRUE(bits_of(some, j) == bits_of(all, which[j]))
            << "sequence " << which[j] << " in batch " << i;
    }
  }
}

// With a workspace, keys are split where queries are few.
TEST_F(HopperVarlen, FewQueriesOnManyKeysEqualTheOracle) {
  const auto first = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
  static constexpr std::int64_t head_dims[] = {64, 96, 128, 192, 256, 40};
  int split = 0;
  for (std::uint64_t seed = first; seed < first + 24 && !HasFailure(); ++seed) {
    Random random(seed);
    ForwardCase c;
    c.seed = seed;
    c.dtype = random() % 2 == 0 ? TANDEM_BF16 : TANDEM_FP16;
    c.q_len = 1 + static_cast<std::int64_t>(random() % 140),
    c.k_len = 1024 + static_cast<std::int64_t>(random() % 6000);
    c.batch = 1 + static_cast<std::int64_t>(random() % 2),
    c.kv_heads = 1 + static_cast<std::int64_t>(random() % 2);
    c.q_heads = c.kv_heads << random() % 3;
    c.head_dim = head_dims[seed % std::size(head_dims)];
    if (c.head_dim == 192 && random() % 2 == 0) c.value_dim = 128;
    if (random() % 2 == 0) c.mask = core::Mask::causal();
    SCOPED_TRACE(testing::Message() << c);
    ForwardTensors tensors(c);
    DeviceForward device(tensors);
    std::size_t bytes = 0;
    ASSERT_EQ(tandem_forward_workspace(&device.args(), &bytes), TANDEM_OK) << tandem_last_error();
    split += bytes > 0 ? 1 : 0;  // or dispatch has one kernel for the quickest
    const DeviceMemory workspace(std::max<std::size_t>(bytes, 1));
    ASSERT_EQ(tandem_forward(&device.args(), workspace.data(), bytes, nullptr), TANDEM_OK)
        << tandem_last_error();
    device.read_outputs(tensors);
    const cpu::ReferenceValues reference = cpu::reference_values(tensors.problem());
    const ForwardValues standard = standard_forward(tensors.problem());
    const Comparison o = compare(tensors.o.values(), standard.o, reference.o);
    EXPECT_TRUE(o) << "o: " << o;
    const Comparison lse = compare(tensors.lse.values(), standard.lse, reference.lse);
    EXPECT_TRUE(lse) << "lse: " << lse;
  }
  EXPECT_GE(split, 12);
}

}  // namespace
}  // namespace tandem::test
