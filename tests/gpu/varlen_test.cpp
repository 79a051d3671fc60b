// Variable lengths on Hopper against the oracle of each sequence: random batches of every variant, graphs
// that read lengths anew, bits that do not depend on the batch.
#include <algorithm>
#include <gtest/gtest.h>
#include <iterator>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "cpu/forward.h"
#include "tests/gpu/device_forward.h"
#include "tests/support/compare.h"
#include "tests/support/varlen_batch.h"
#include "tests/support/varlen_call.h"
#include "tests/support/varlen_case.h"

namespace tandem::test {
namespace {

std::span<const std::byte> bytes_of(const std::vector<std::int32_t>& words) {
  return std::as_bytes(std::span(words));
}

/// As a caller says them; 0: not known.
struct Bounds {
  std::int64_t queries = 0, keys = 0;
};

struct BoundedCall : VarlenCall {
  BoundedCall(const core::ForwardProblem& p, const tandem_mask& mask, const Bounds& bounds)
      : VarlenCall(p, mask, TANDEM_BACKEND_HOPPER) {
    if (!p.blocks.given()) varlen.max_seqlen_q = bounds.queries;
    varlen.max_seqlen_k = bounds.keys;
  }
};

/// Copies of all that a problem of variable lengths points to, and its workspace.
class DeviceVarlen {
 public:
  explicit DeviceVarlen(const VarlenTensors& host, const Bounds& bounds = {})
      : q_(host.q.storage()),
        k_(host.k.storage()),
        v_(host.v.storage()),
        o_(host.o.storage()),
        lse_(host.lse.storage()),
        cu_seqlens_q_(bytes_of(host.cu_seqlens_q)),
        cu_seqlens_k_(bytes_of(host.cu_seqlens_k)),
        seqused_k_(bytes_of(host.seqused_k)),
        page_table_(bytes_of(host.page_table)),
        sinks_(std::as_bytes(std::span(host.sinks))),
        slopes_(std::as_bytes(std::span(host.slopes))),
        tree_(std::as_bytes(std::span(host.tree))),
        k_new_(host.k_new.storage()),
        v_new_(host.v_new.storage()),
        cos_(host.cos.storage()),
        sin_(host.sin.storage()),
        cu_seqlens_new_(bytes_of(host.cu_seqlens_new)),
        leftpad_(bytes_of(host.leftpad)),
        batch_index_(bytes_of(host.batch_index)),
        list_counts_(std::as_bytes(host.blocks.counts())),
        list_blocks_(std::as_bytes(host.blocks.numbers())),
        call_(problem_of(host), to_c(host.setup.mask), bounds),
        workspace_(workspace_bytes()) {}

  void run(cudaStream_t stream = nullptr) const {
    ASSERT_EQ(tandem_forward(&call_.args, workspace_.data(), workspace_.bytes(), stream), TANDEM_OK)
        << tandem_last_error();
  }
  /// Memory for the plan that this call and others of its lengths share.
  DeviceMemory memory_of_plan() const {
    std::size_t bytes = 0;
    EXPECT_EQ(tandem_forward_plan_size(&call_.args, &bytes), TANDEM_OK) << tandem_last_error();
    EXPECT_GT(bytes, 0U);
    return DeviceMemory(bytes);
  }
  void make_plan(const DeviceMemory& plan, cudaStream_t stream = nullptr) const {
    ASSERT_EQ(tandem_forward_plan(&call_.args, plan.data(), plan.bytes(), stream), TANDEM_OK)
        << tandem_last_error();
  }
  void use_plan(const DeviceMemory& plan) { call_.args.plan = plan.data(); }
  void read(VarlenTensors& host) const {
    o_.read(host.o.storage());
    lse_.read(host.lse.storage());
    k_.read(host.k.storage());
    v_.read(host.v.storage());
  }
  void write_lengths(const VarlenTensors& host) {
    cu_seqlens_q_.write(bytes_of(host.cu_seqlens_q));
    seqused_k_.write(bytes_of(host.seqused_k));
  }

 private:
  core::ForwardProblem problem_of(const VarlenTensors& host) const {
    core::ForwardProblem p = host.problem();
    p.q = host.q.view_at(q_.data()), p.k = host.k.view_at(k_.data()), p.v = host.v.view_at(v_.data());
    p.o = host.o.view_at(o_.data());
    if (host.setup.lse) p.lse = host.lse.view_at(lse_.data());
    const auto moved = [](const std::int32_t*& words, const DeviceMemory& to) {
      if (words != nullptr) words = reinterpret_cast<const std::int32_t*>(to.data());
    };
    moved(p.varlen.cu_seqlens_q, cu_seqlens_q_), moved(p.varlen.cu_seqlens_k, cu_seqlens_k_);
    moved(p.varlen.seqused_k, seqused_k_), moved(p.varlen.page_table, page_table_);
    moved(p.varlen.cu_seqlens_k_new, cu_seqlens_new_), moved(p.varlen.leftpad_k, leftpad_);
    moved(p.varlen.batch_index, batch_index_);
    if (p.varlen.appends()) {
      p.varlen.k_new = host.k_new.view_at(k_new_.data());
      p.varlen.v_new = host.v_new.view_at(v_new_.data());
    }
    if (p.varlen.rotates()) {
      p.varlen.rotary.cos = host.cos.view_at(cos_.data()).data;
      p.varlen.rotary.sin = host.sin.view_at(sin_.data()).data;
    }
    if (p.sinks != nullptr) p.sinks = reinterpret_cast<const float*>(sinks_.data());
    if (p.tree != nullptr) p.tree = reinterpret_cast<const std::uint64_t*>(tree_.data());
    if (p.slopes.given()) p.slopes.data = reinterpret_cast<const float*>(slopes_.data());
    if (p.blocks.given()) moved(p.blocks.counts, list_counts_), moved(p.blocks.blocks, list_blocks_);
    return p;
  }
  std::size_t workspace_bytes() const {
    std::size_t bytes = 0;
    EXPECT_EQ(tandem_forward_workspace(&call_.args, &bytes), TANDEM_OK) << tandem_last_error();
    return bytes;
  }

  DeviceMemory q_, k_, v_, o_, lse_, cu_seqlens_q_, cu_seqlens_k_, seqused_k_, page_table_, sinks_, slopes_,
      tree_, k_new_, v_new_, cos_, sin_, cu_seqlens_new_, leftpad_, batch_index_, list_counts_, list_blocks_;
  BoundedCall call_;
  DeviceMemory workspace_;
};

/// "" if the case's outputs are right.
std::string failure_of(const VarlenTensors& tensors) {
  const VarlenValues values = varlen_values(tensors);
  std::ostringstream failure;
  if (const Comparison o = compare(values.result.o, values.standard.o, values.reference.o); !o)
    failure << "o: " << o;
  if (!others_untouched(tensors)) failure << " rows of no sequence were written";
  failure << tensors.cache_failure();
  if (tensors.setup.lse)
    if (const Comparison lse = compare(values.result.lse, values.standard.lse, values.reference.lse); !lse)
      failure << " lse: " << lse;
  return failure.str();
}

class HopperVarlen : public HopperForward {};

VarlenCase random_case(std::uint64_t seed) {
  Random random(seed);
  VarlenCase c = draw_varlen_case(random, {128, 128, 6});
  static constexpr std::int64_t head_dims[] = {64, 96, 128, 192, 256, 8, 40, 80, 136};
  c.dtype = random() % 2 == 0 ? TANDEM_BF16 : TANDEM_FP16;
  c.head_dim = head_dims[seed % std::size(head_dims)];
  if (c.head_dim > 192) c.mask.chunk = 0, c.tree = false;
  c.rotary_dim = std::min(c.rotary_dim, c.head_dim / 16 * 16);
  if (random() % 4 == 0) c.softcap = static_cast<float>(2 + random() % 40);
  if (c.head_dim > 128 && c.head_dim <= 192 && !c.appends() && random() % 2 == 0)
    c.value_dim = 8 * static_cast<std::int64_t>(1 + random() % 16);
  return c;
}

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

/// Sequences of few queries, which run decode's body, over pages of 64.
VarlenCase steps_of(std::int64_t head_dim, std::int64_t most_queries, std::vector<std::int64_t> prompts) {
  VarlenCase c;
  c.head_dim = head_dim;
  c.keys = KeyLayout::paged;
  c.page_size = 64;
  c.q_heads = 8, c.kv_heads = 2;
  c.mask = core::Mask::causal();
  for (std::int64_t i = 0; i < 20; ++i)
    c.q_lens.push_back(1 + i % most_queries), c.k_lens.push_back(20 + 97 * i);
  c.q_lens.push_back(1), c.k_lens.push_back(5000);
  for (const std::int64_t length : prompts) c.q_lens.push_back(length), c.k_lens.push_back(length + 300);
  c.new_lens = c.q_lens;
  c.rotary_dim = 32;
  return c;
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

/// The same lengths and entries with other numbers.
VarlenCase next_layer(VarlenCase c) {
  if (!c.batch_index) ++c.seed;  // by which entries are drawn
  return c;
}

/// Two layers that share a plan; the first runs again, with what the second one leaves in the plan.
void expect_layers_to_share_a_plan(const VarlenCase& c, const Bounds& bounds = {}) {
  VarlenTensors one(c), two(next_layer(c)), again(c);
  DeviceVarlen first(one, bounds), second(two, bounds), third(again, bounds);
  const DeviceMemory plan = first.memory_of_plan();
  first.make_plan(plan);
  for (auto& [layer, tensors] : {std::pair<DeviceVarlen&, VarlenTensors&>{first, one},
                                 {second, two},
                                 {third, again}}) {
    layer.use_plan(plan);
    layer.run();
    layer.read(tensors);
    EXPECT_EQ(failure_of(tensors), "");
  }
}

TEST_F(HopperVarlen, LayersShareAPlan) {
  const auto first = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
  for (std::uint64_t seed = first; seed < first + 30 && !HasFailure(); ++seed) {
    const VarlenCase c = random_case(seed);
    SCOPED_TRACE(testing::Message() << c << " draw " << seed);
    expect_layers_to_share_a_plan(c);
  }
}

// Lists of sequences of few queries, counters of their parts, and both beside tiles.
TEST_F(HopperVarlen, LayersShareThePlanOfFewQueries) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const std::vector<std::int64_t>& prompts : {std::vector<std::int64_t>{}, {700, 9}}) {
      VarlenCase c = steps_of(head_dim, 8, prompts);
      SCOPED_TRACE(testing::Message() << c);
      expect_layers_to_share_a_plan(c, {.queries = prompts.empty() ? 8 : 0});
      c.new_lens.clear(), c.rotary_dim = 0;  // alone, a step: its plan has counters only
      expect_layers_to_share_a_plan(c, {.queries = prompts.empty() ? 8 : 0});
    }
  }
}

// Captured with short sequences, replayed with long ones.
TEST_F(HopperVarlen, AGraphMakesThePlanOfItsLayersAnewAtEveryReplay) {
  VarlenCase c;
  c.keys = KeyLayout::entries;
  c.q_lens = {1, 300, 0, 40, 1}, c.k_lens = {500, 300, 20, 900, 3000};
  c.mask = core::Mask::causal();
  VarlenTensors one(c), two(next_layer(c)), short_ones(c);
  short_ones.cu_seqlens_q = {0, 1, 2, 3, 4, 5};
  short_ones.seqused_k = {1, 2, 3, 4, 5};
  DeviceVarlen first(one), second(two);
  const DeviceMemory plan = first.memory_of_plan();
  first.write_lengths(short_ones);
  const Stream stream;
  const Graph graph(stream, [&](cudaStream_t s) {
    first.make_plan(plan, s);
    first.use_plan(plan), second.use_plan(plan);
    first.run(s), second.run(s);
  });
  graph.replay();
  first.write_lengths(one);
  graph.replay();
  first.read(one), second.read(two);
  EXPECT_EQ(failure_of(one), "");
  EXPECT_EQ(failure_of(two), "");
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
