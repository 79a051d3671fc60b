// Decoding steps whose sequences share prefixes, on the software Hopper: a kernel's tiles have queries of
// several sequences, and the result is that of each sequence alone, by the oracle.
#include <algorithm>
#include <gtest/gtest.h>
#include <ostream>
#include <string>
#include <vector>

#include "apps/sim/decode_sim.h"
#include "apps/sim/prefix_sim.h"
#include "decode/plan.h"
#include "tests/sim/coverage.h"
#include "tests/sim/prefix_draws.h"
#include "tests/sim/workspace.h"
#include "tests/support/compare.h"
#include "tests/support/decode_reference.h"

namespace tandem {
namespace {

using decode::DecodeVariant;
using test::DecodeCase;
using test::DecodeTensors;

/// Runs the step, in a workspace whose counters are zero and which otherwise holds NaN and wild numbers.
void run(const core::DecodeProblem& problem, const DecodeTensors& tensors, const sim::Machine& machine) {
  const auto shared = api::shared_prefixes_of(problem);
  ASSERT_TRUE(shared.has_value());
  test::Workspace memory;
  const std::span<std::byte> workspace = memory.of(api::shared_workspace_bytes(problem, *shared));
  std::ranges::fill(workspace.subspan(decode::counter_bytes), std::byte{0xff});
  const hw::sim::Report report =
      sim::simulate_shared(problem, *shared, workspace, tensors.page_table, machine);
  ASSERT_TRUE(report.ok()) << report.text();
  EXPECT_TRUE(std::ranges::all_of(workspace.first(decode::counter_bytes), [](std::byte b) {
    return b == std::byte{0};
  })) << "counters of other steps";
}

void expect_correct(const DecodeTensors& after, const DecodeTensors& before) {
  const DecodeCase& c = after.setup;
  const cpu::ReferenceValues reference = test::reference_of(after, before);
  const test::ForwardValues standard = test::standard_decode(before);
  const test::Comparison o = test::compare(after.o.values(), standard.o, reference.o);
  EXPECT_TRUE(o) << "o: " << o;
  EXPECT_TRUE(after.o.guards_intact());
  EXPECT_EQ(after.cache_failure(before), "");
  if (!c.lse) return;
  const test::Comparison lse = test::compare(after.lse.values(), standard.lse, reference.lse);
  EXPECT_TRUE(lse) << "lse: " << lse;
  EXPECT_TRUE(after.lse.guards_intact());
}

struct Step {
  const DecodeVariant& variant;
  DecodeCase c;

  void check(const sim::Machine& machine) const {
    const DecodeTensors before(c), after(c);
    const auto shared = api::shared_prefixes_of(before.problem());
    ASSERT_TRUE(shared.has_value());
    ASSERT_EQ(*shared->variant, variant);
    ASSERT_NO_FATAL_FAILURE(run(after.problem(), after, machine));
    expect_correct(after, before);
  }
  friend std::ostream& operator<<(std::ostream& out, const Step& step) { return out << step.c; }
};

class PrefixOnSim : public testing::TestWithParam<DecodeVariant> {};

INSTANTIATE_TEST_SUITE_P(Variants, PrefixOnSim,
                         testing::ValuesIn(sim::decode_variants(decode::Queries::sharing)),
                         test::test_name<DecodeVariant>);

TEST_P(PrefixOnSim, EachSequenceEqualsItsOracleUnderEveryPolicy) {
  test::for_each_run("sim_prefix_test --gtest_filter=Variants/PrefixOnSim", 6, [](std::uint64_t seed) {
    return Step{GetParam(), test::draw_prefix_case(GetParam(), seed)};
  });
}

sim::Machine machine_of(int multiprocessors) {
  sim::Machine machine;
  machine.multiprocessors = multiprocessors;
  return machine;
}

/// Five sequences of one prompt, which ends within a block and a page.
DecodeCase one_prompt() {
  DecodeCase c;
  c.q_heads = 4, c.kv_heads = 1, c.capacity = 512, c.page_size = 16;
  c.lengths = {300, 301, 330, 410, 299};
  c.prefix_sequences = {0, 5}, c.prefix_lengths = {299};
  c.mask = core::Mask::causal();
  return c;
}

void expect_equal_to_the_oracle(const DecodeCase& c, int multiprocessors = 3) {
  const auto shared = api::shared_prefixes_of(DecodeTensors(c).problem());
  ASSERT_TRUE(shared.has_value());
  Step{*shared->variant, c}.check(machine_of(multiprocessors));
}

TEST(PrefixOnSim, ServesOnePromptOfAllSequences) { expect_equal_to_the_oracle(one_prompt()); }

/// What a list has, in words: keys and queries of each entry, and the keys before its own.
std::string list_of(const DecodeCase& c) {
  const DecodeTensors tensors(c);
  const core::DecodeProblem problem = tensors.problem();
  const auto shared = api::shared_prefixes_of(problem);
  test::Workspace memory;
  const std::span<std::byte> workspace = memory.of(api::shared_workspace_bytes(problem, *shared));
  const sim::Machine machine = machine_of(2);
  EXPECT_TRUE(sim::simulate_shared(problem, *shared, workspace, tensors.page_table, machine).ok());
  const std::int32_t* list =
      api::launches_of(problem, *shared, machine.multiprocessors, workspace.data()).list.arguments.list;
  std::string words;
  for (int i = 0; i < list[0]; ++i) {
    const std::int32_t* entry = list + core::listed_header + core::listed_sequence_words * i;
    words += std::to_string(entry[0]) + " by " + std::to_string(entry[1]);
    words += entry[3] == core::shared_prefix ? "; " : " from " + std::to_string(entry[3]) + "; ";
  }
  return words;
}

/// As many queries as tiles have rows for, and whole blocks: what remains is the sequences'.
TEST(PrefixOnSim, ReadsAPrefixOnceForATileOfQueries) {
  DecodeCase c = one_prompt();
  EXPECT_EQ(list_of(c),
            "256 by 5; 300 by 1 from 256; 301 by 1 from 256; 330 by 1 from 256; 410 by 1 from 256; "
            "299 by 1 from 256; ");
  c.prefix_sequences = {0, 2, 5}, c.prefix_lengths = {299, 128};
  EXPECT_EQ(list_of(c).substr(0, 24), "256 by 2; 128 by 3; 300 ");
  c = one_prompt();
  c.q_heads = 16;  // 4 sequences' rows are a tile
  EXPECT_EQ(list_of(c).substr(0, 22), "256 by 4; 256 by 1; 30");
  c.prefix_lengths = {63};  // less than a block
  EXPECT_EQ(list_of(c).substr(0, 14), "300 by 1 from ");
  c.prefix_sequences = {0, 1}, c.prefix_lengths = {299};  // a sequence alone
  EXPECT_EQ(list_of(c).substr(0, 16), "300 by 1 from 0;");
}

TEST(PrefixOnSim, ServesAPrefixThatIsAllOfEachSequence) {
  DecodeCase c = one_prompt();
  c.lengths = {256, 256, 256, 256, 256}, c.prefix_lengths = {256};
  expect_equal_to_the_oracle(c);
}

TEST(PrefixOnSim, CountsASinkOnce) {
  DecodeCase c = one_prompt();
  c.sinks = true;
  expect_equal_to_the_oracle(c);
}

/// Several queries of a sequence see different ends: none of them may be in what is shared.
TEST(PrefixOnSim, LeavesOutOfAPrefixWhatTheFirstQueryDoesNotSee) {
  DecodeCase c = one_prompt();
  c.q_len = 4, c.lengths = {256, 256, 256, 257, 259}, c.prefix_lengths = {256};
  expect_equal_to_the_oracle(c);
}

/// More groups and sequences than a warp has lanes.
TEST(PrefixOnSim, ServesMoreGroupsThanLanes) {
  DecodeCase c = one_prompt();
  c.q_heads = 1, c.capacity = 128, c.lengths.clear();
  c.prefix_sequences.clear(), c.prefix_lengths.clear();
  for (std::int32_t g = 0; g < 40; ++g) {
    c.prefix_sequences.push_back(2 * g + 1), c.prefix_lengths.push_back(g % 3 == 0 ? 20 : 64 + g);
    for (int i = 0; i < 2; ++i) c.lengths.push_back(70 + g);
  }
  c.prefix_sequences.push_back(81), c.lengths.insert(c.lengths.end(), {90, 12});
  expect_equal_to_the_oracle(c);
}

/// The shortest sequence of a group says how much of a prefix counts, wherever it stands.
TEST(PrefixOnSim, ServesAGroupOfMoreSequencesThanLanes) {
  DecodeCase c = one_prompt();
  c.q_heads = 1, c.capacity = 192, c.lengths.assign(40, 150), c.lengths[36] = 70;
  c.prefix_sequences = {0, 40}, c.prefix_lengths = {149};
  expect_equal_to_the_oracle(c);
}

/// Runs one_prompt with groups that the device says otherwise than it should.
void expect_equal_with(const std::vector<std::int32_t>& sequences, const std::vector<std::int32_t>& lengths) {
  const DecodeTensors before(one_prompt()), after(one_prompt());
  core::DecodeProblem problem = after.problem();
  problem.prefixes = {static_cast<std::int64_t>(lengths.size()), sequences.data(), lengths.data()};
  ASSERT_NO_FATAL_FAILURE(run(problem, after, machine_of(3)));
  expect_correct(after, before);
}

/// Whatever it says, no sequence is left out, and nothing is written twice or out of place.
TEST(PrefixOnSim, TakesBoundariesThatDoNotAscend) {
  expect_equal_with({3, -7, 4, 2, 90, 5}, {64, 1 << 30, 200, 130, 299});
  // Those of the next lanes' groups lie before the ends of the first ones'.
  std::vector<std::int32_t> sequences(36, 4), lengths(35, 130);
  sequences[0] = 0, sequences[33] = 2, sequences[34] = sequences[35] = 5, lengths[0] = 299;
  expect_equal_with(sequences, lengths);
}

/// Those kernels are asked for what only others have: each sequence is read for itself then.
TEST(PrefixOnSim, LeavesToOthersWhatItDoesNotServe) {
  const auto is_left = [](const auto& change) {
    DecodeCase c = one_prompt();
    change(c);
    const DecodeTensors tensors(c);
    return !api::shared_prefixes_of(tensors.problem()).has_value();
  };
  EXPECT_FALSE(is_left([](DecodeCase&) {}));
  EXPECT_TRUE(is_left([](DecodeCase& c) { c.prefix_lengths.clear(); }));
  EXPECT_TRUE(is_left([](DecodeCase& c) { c.mask.left = 100; }));
  EXPECT_TRUE(is_left([](DecodeCase& c) { c.mask.chunk = 64; }));
  EXPECT_TRUE(is_left([](DecodeCase& c) { c.slopes = true; }));
  EXPECT_TRUE(is_left([](DecodeCase& c) { c.tree = true; }));
  EXPECT_TRUE(is_left([](DecodeCase& c) { c.split_size = 64; }));
  EXPECT_TRUE(is_left([](DecodeCase& c) { c.kernel = TANDEM_DECODE_PLAIN; }));
  EXPECT_TRUE(is_left([](DecodeCase& c) { c.block_m = 8; }));
  EXPECT_TRUE(is_left([](DecodeCase& c) { c.head_dim = 264; }));
  EXPECT_TRUE(is_left([](DecodeCase& c) { test::put_values_into_keys(c, 32); }));
  EXPECT_TRUE(is_left([](DecodeCase& c) { c.value_dim = 32; }));
  EXPECT_TRUE(is_left([](DecodeCase& c) { c.q_heads = 33; }));  // two sequences' rows need two tiles
  EXPECT_TRUE(is_left([](DecodeCase& c) { c.new_len = 1, c.batch_index = true; }));
  EXPECT_TRUE(is_left([](DecodeCase& c) { c.q_len = 2, c.q.order = {1, 0, 2}; }));
}

void count_features(test::Coverage& coverage, const DecodeCase& c, const DecodeVariant& variant) {
  const std::string kind = "all";
  bool alone = false, empty = false, whole = false, off_page = false, off_block = false, tiles = false;
  std::int64_t in_groups = 0;
  c.for_each_sharing([&](std::int64_t b, std::int64_t first, std::int64_t shared) {
    ++in_groups;
    const std::int64_t block = variant.block_n;
    whole = whole || (shared == c.length(b) && shared > block);
    off_page = off_page || (c.page_size > 1 && shared > block && shared % c.page_size != 0);
    off_block = off_block || (shared > block && shared % block != 0);
    tiles = tiles || (shared > block && (b - first) * c.q_len * c.q_heads / c.kv_heads >= variant.query_rows);
  });
  for (std::size_t g = 0; g < c.prefix_lengths.size(); ++g) {
    const std::int32_t own = c.prefix_sequences[g + 1] - c.prefix_sequences[g];
    alone = alone || own == 1, empty = empty || own == 0;
  }
  coverage.count(kind, "a group of one", alone);
  coverage.count(kind, "an empty group", empty);
  coverage.count(kind, "a prefix that is a whole sequence", whole);
  coverage.count(kind, "a prefix that ends within a page", off_page);
  coverage.count(kind, "a prefix that ends within a block", off_block);
  coverage.count(kind, "a group of several tiles", tiles);
  coverage.count(kind, "sequences in no group", in_groups < c.batch());
  coverage.count(kind, "several groups", c.prefix_lengths.size() > 1);
  coverage.count(kind, "more sequences than lanes", c.batch() > 32);
  coverage.count(kind, "appended", c.new_len > 0);
  coverage.count(kind, "rotated", c.rotary_dim > 0);
  coverage.count(kind, "several queries", c.q_len > 1);
  coverage.count(kind, "a mask to the right", c.mask.right < 3);
  coverage.count(kind, "sinks", c.sinks);
  coverage.count(kind, "softcap", c.softcap > 0);
  coverage.count(kind, "no pages", c.page_size == 0);
  coverage.count(kind, "indexed", c.batch_index);
}

TEST(PrefixDraws, HaveEveryFeature) {
  test::Coverage coverage;
  test::for_each_draw("EachSequenceEqualsItsOracleUnderEveryPolicy",
                      sim::decode_variants(decode::Queries::sharing),
                      [&](const DecodeVariant& v, std::uint64_t seed) {
                        count_features(coverage, test::draw_prefix_case(v, seed), v);
                      });
  EXPECT_EQ(coverage.missing(), "") << coverage;
}

}  // namespace
}  // namespace tandem
