// The kernel that appends and rotates ahead of the forward, on the software Hopper: what draws seldom have
// together.
#include <gtest/gtest.h>
#include <vector>

#include "apps/sim/forward_sim.h"
#include "cpu/varlen.h"
#include "forward/plan.h"
#include "tests/support/compare.h"
#include "tests/support/varlen_case.h"

namespace tandem {
namespace {

using test::KeyLayout;
using test::VarlenCase;
using test::VarlenTensors;

hw::sim::Report simulate(const core::ForwardProblem& problem) {
  return sim::simulate_forward(problem, *forward::choose_variant(problem), sim::Machine());
}

/// More sequences than a warp looks at at a time, some of which append nothing or ask nothing.
VarlenCase many_sequences(KeyLayout keys) {
  VarlenCase c;
  for (std::int64_t i = 0; i < 70; ++i) {
    c.k_lens.push_back(1 + i * 11 % 13);
    c.q_lens.push_back(i % 3);
    c.new_lens.push_back(i * 7 % c.k_lens.back());
  }
  c.keys = keys;
  c.q_heads = 4, c.kv_heads = 2;
  c.mask = core::Mask::causal();
  return c;
}

void expect_equal_to_the_oracle(const VarlenCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  const VarlenTensors tensors(c);
  const hw::sim::Report report = simulate(tensors.problem());
  ASSERT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(tensors.cache_failure(), "");
  const test::VarlenValues values = test::varlen_values(tensors);
  const test::Comparison o = test::compare(values.result.o, values.standard.o, values.reference.o);
  EXPECT_TRUE(o) << "o: " << o;
}

TEST(AppendOnSim, KeysAreTurnedAndValuesAreNot) {
  for (const KeyLayout keys : {KeyLayout::entries, KeyLayout::paged})
    for (const bool interleaved : {false, true}) {
      VarlenCase c = many_sequences(keys);
      c.rotary_dim = interleaved ? 64 : 32;
      c.interleaved = c.rotary_of_dtype = interleaved;
      expect_equal_to_the_oracle(c);
    }
}

TEST(AppendOnSim, NewTokensInEntriesComeBehindQueriesThatAreTurned) {
  for (const KeyLayout keys : {KeyLayout::entries, KeyLayout::paged}) {
    VarlenCase c;
    c.q_lens = {3, 1, 4}, c.k_lens = {40, 50, 33}, c.new_lens = {5, 5, 5};
    c.new_packed = false;
    c.keys = keys;
    c.q_heads = 4, c.kv_heads = 2;
    c.mask = core::Mask::causal();
    c.rotary_dim = 32;
    expect_equal_to_the_oracle(c);
  }
}

/// Lengths, entries and pages that do not exist, and more new keys than a sequence has room for.
void make_wild(VarlenTensors& t) {
  for (std::size_t i = 13; i < 23; ++i) t.cu_seqlens_new[i] = t.cu_seqlens_new[23];
  t.seqused_k[1] = 1'000'000, t.seqused_k[2] = -1'000'000, t.seqused_k[4] = INT32_MAX;
  if (t.setup.keys == KeyLayout::paged) {
    t.page_table[static_cast<std::size_t>(5 * t.pages_per_sequence)] = INT32_MAX;
    t.page_table[static_cast<std::size_t>(8 * t.pages_per_sequence)] = -7;
    return;
  }
  t.leftpad.assign(t.seqused_k.size(), 0);
  t.leftpad[10] = INT32_MAX, t.leftpad[11] = INT32_MIN;
  for (std::size_t i = 0; i < t.seqused_k.size(); ++i) t.batch_index.push_back(static_cast<std::int32_t>(i));
  t.batch_index[5] = INT32_MAX, t.batch_index[8] = -3,
  t.batch_index[9] = static_cast<std::int32_t>(t.k.view().shape[0]);
}

/// Slots of unused pages are read where lengths are wild.
void name_unused_pages(VarlenTensors& t) {
  for (std::int32_t& page : t.page_table)
    if (page < 0) page = -1;
}

// The same goes to the same places as on the CPU, and nowhere else.
TEST(AppendOnSim, WildNumbersLeadNowhere) {
  for (const KeyLayout keys : {KeyLayout::entries, KeyLayout::paged}) {
    const VarlenCase c = many_sequences(keys);
    SCOPED_TRACE(testing::Message() << c);
    VarlenTensors on_sim(c), on_cpu(c);
    make_wild(on_sim), make_wild(on_cpu);
    name_unused_pages(on_sim), name_unused_pages(on_cpu);
    const hw::sim::Report report = simulate(on_sim.problem());
    ASSERT_TRUE(report.ok()) << report.text();
    cpu::append(on_cpu.problem());
    EXPECT_TRUE(test::same_bytes(on_sim.k, on_cpu.k));
    EXPECT_TRUE(test::same_bytes(on_sim.v, on_cpu.v));
  }
}

TEST(AppendOnSim, NewTokensOfListsThatDoNotAscendStayInTheCache) {
  for (const KeyLayout keys : {KeyLayout::entries, KeyLayout::paged}) {
    VarlenCase c;
    c.q_lens = {4, 4, 4, 4}, c.k_lens = {64, 64, 64, 64}, c.new_lens = {10, 10, 10, 10};
    c.new_packed = true, c.keys = keys;
    SCOPED_TRACE(testing::Message() << c);
    VarlenTensors tensors(c);
    name_unused_pages(tensors);
    tensors.cu_seqlens_new = {0, 100, 200, 5, 43}, tensors.seqused_k = {0, 0, 0, 0};
    const hw::sim::Report report = simulate(tensors.problem());
    EXPECT_TRUE(report.ok()) << report.text();
  }
}

// Queries beyond their bound are left out, and so is what their rotation would write.
TEST(AppendOnSim, BoundsOfQueriesHold) {
  VarlenCase c = many_sequences(KeyLayout::entries);
  c.rotary_dim = 32;
  const VarlenTensors tensors(c);
  core::ForwardProblem problem = tensors.problem();
  problem.varlen.max_seqlen_q = 1;
  const hw::sim::Report report = simulate(problem);
  ASSERT_TRUE(report.ok()) << report.text();
  EXPECT_EQ(tensors.cache_failure(), "");
}

}  // namespace
}  // namespace tandem
