// Which forward passes of a few queries are decoding steps, and what their steps have.
#include <gtest/gtest.h>
#include <optional>
#include <utility>

#include "decode/few_queries.h"
#include "tests/support/forward_case.h"

namespace tandem::test {
namespace {

TEST(FewQueries, AreAStepUpToLimits) {
  ForwardCase base;
  base.head_dim = 128, base.k_len = 3000, base.q_heads = 8;
  const auto is_step = [](const ForwardCase& c) { return decode::step_of(shapes_of(c)).has_value(); };
  ForwardCase c = base;
  c.q_len = 128;
  EXPECT_TRUE(is_step(c)) << "1024 rows of a key/value head";
  c.q_len = 129;
  EXPECT_FALSE(is_step(c));
  c = base, c.k_len = 1;
  EXPECT_TRUE(is_step(c));
  c.batch = 4, c.k_len = 1 << 28;
  EXPECT_TRUE(is_step(c)) << "2^30 keys of all";
  c.batch = 5;
  EXPECT_FALSE(is_step(c));
  for (const int tile : {64, 128}) {
    c = base, c.block_n = tile;
    EXPECT_FALSE(is_step(c));
  }
  c = base, c.overlap = TANDEM_OVERLAP_SERIAL;
  EXPECT_FALSE(is_step(c));
  core::ForwardProblem p = shapes_of(base);
  p.varlen.given = true;
  EXPECT_FALSE(decode::step_of(p).has_value());
  const float sink = 0;
  p = shapes_of(base), p.sinks = &sink;
  EXPECT_FALSE(decode::step_of(p).has_value());
}

TEST(FewQueries, AStepHasTheForwardsTensors) {
  ForwardCase c;
  c.head_dim = 128, c.k_len = 3000, c.q_heads = 8, c.q_len = 2, c.batch = 3, c.softcap = 7, c.scale = 0.5f;
  c.mask = {100, 3};
  const ForwardTensors t(c);
  const core::ForwardProblem p = t.problem();
  const std::optional<core::DecodeProblem> step = decode::step_of(p);
  ASSERT_TRUE(step.has_value());
  for (const auto& [own, of] : {std::pair{step->q, p.q},
                                {step->k_cache, p.k},
                                {step->v_cache, p.v},
                                {step->o, p.o},
                                {step->lse, p.lse}})
    EXPECT_EQ(own.data, of.data);
  EXPECT_EQ(step->mask.left, 100);
  EXPECT_EQ(step->mask.right, 3);
  EXPECT_EQ(step->softcap, 7);
  EXPECT_EQ(step->scale, 0.5f);
  EXPECT_EQ(step->kernel, TANDEM_DECODE_AUTO);
  EXPECT_FALSE(step->appends() || step->paged());
}

}  // namespace
}  // namespace tandem::test
