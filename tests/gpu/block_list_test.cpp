// Block lists beside sinks, chunks, slopes and trees on Hopper, against the oracle. Lists alone are among the
// forward's tests.
#include <gtest/gtest.h>
#include <ostream>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "forward/plan.h"
#include "tests/gpu/device_forward.h"
#include "tests/support/feature_case.h"
#include "tests/support/oracle.h"
#include "tests/support/standard.h"

namespace tandem::test {
namespace {

struct ListedCase {
  ForwardCase c;
  FeatureCase features;
};
std::ostream& operator<<(std::ostream& out, const ListedCase& listed) {
  return out << listed.c << listed.features;
}

/// A few tiles of queries on some blocks of keys, with what kernels of its head dim know.
ListedCase draw_listed(std::uint64_t seed) {
  Random random(seed);
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  ListedCase listed{{.q_len = 1 + below(300), .k_len = 1 + below(1200), .head_dim = 8 * (1 + below(32))},
                    draw_features(random)};
  auto& [c, features] = listed;
  c.seed = seed;
  c.dtype = below(2) == 0 ? TANDEM_BF16 : TANDEM_FP16;
  c.batch = 1 + below(2), c.kv_heads = 1 + below(2), c.q_heads = c.kv_heads * (1 + below(2));
  if (features.tree && below(3) != 0) c.q_len = 1 + below(64);
  c.mask = random_mask(random, c.q_len, c.k_len);
  if (below(3) == 0) c.mask.chunk = 1 + below(500);
  if (c.head_dim > 192) features.tree = false, c.mask.chunk = 0;
  if (!features.any() && c.mask.chunk == 0) features.sinks = true;
  c.softcap = below(2) == 0 ? 10.f : 0.f;
  for (Layout* layout : {&c.q, &c.k, &c.v, &c.o, &c.lse_layout}) *layout = random_tma_layout(random);
  c.blocks = draw_block_list(random, 128);
  return listed;
}

/// Adds the case's rows to the pools. "" if nothing but them was written. What nobody lists is NaN for the
/// kernel alone.
std::string run(const ListedCase& listed, Pool& o, Pool& lse) {
  const ForwardTensors unspoilt(listed.c);
  ForwardTensors tensors(listed.c);
  core::ForwardProblem right = unspoilt.problem();
  const FeatureArrays arrays(listed.features, right);
  arrays.give(right);
  spoil_unlisted(tensors);

  const DeviceForward device(tensors);
  const DeviceMemory sinks(std::as_bytes(std::span(arrays.sinks))),
      slopes(std::as_bytes(std::span(arrays.slopes))), tree(std::as_bytes(std::span(arrays.tree)));
  tandem_forward_args args = device.args();
  if (listed.features.sinks) args.sinks = reinterpret_cast<const float*>(sinks.data());
  if (listed.features.slopes) {
    args.alibi_slopes = reinterpret_cast<const float*>(slopes.data());
    args.alibi_stride = arrays.slope_stride;
  }
  if (listed.features.tree) args.tree = reinterpret_cast<const std::uint64_t*>(tree.data());
  std::size_t bytes = 0;
  if (tandem_forward_workspace(&args, &bytes) != TANDEM_OK) return tandem_last_error();
  const DeviceMemory workspace(bytes);
  if (tandem_forward(&args, workspace.data(), workspace.bytes(), nullptr) != TANDEM_OK)
    return tandem_last_error();
  device.read_outputs(tensors);

  const cpu::ReferenceValues reference = oracle_values(right);
  const ForwardValues standard = standard_forward(right);
  o.add(tensors.o.values(), standard.o, reference.o);
  lse.add(tensors.lse.values(), standard.lse, reference.lse);
  return tensors.o.guards_intact() && tensors.lse.guards_intact() ? "" : "cells outside were written";
}

const forward::ForwardVariant* variant_of(const ListedCase& listed) {
  const ForwardTensors tensors(listed.c);
  core::ForwardProblem problem = tensors.problem();
  const FeatureArrays arrays(listed.features, problem);
  arrays.give(problem);
  return forward::choose_variant(forward::for_kernels(problem));
}

class HopperListed : public HopperForward {};

TEST_F(HopperListed, BesideFeaturesEqualTheOracleAndSeeNothingUnlisted) {
  // Another seed: --gtest_random_seed.
  const auto first = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
  std::set<const forward::ForwardVariant*> served;
  for (std::uint64_t seed = first; seed < first + 160 && !HasFailure(); ++seed) {
    const ListedCase listed = draw_listed(seed);
    SCOPED_TRACE(testing::Message() << listed);
    served.insert(variant_of(listed));
    Pool o, lse;
    // Several of few rows, whose rounding errors are judged together.
    const std::int64_t runs = listed.c.q_len * listed.c.q_heads * listed.c.batch < 200 ? 4 : 1;
    for (std::int64_t i = 0; i < runs; ++i) {
      ListedCase own = listed;
      own.c.seed += static_cast<std::uint64_t>(i) * 1'000'003;
      ASSERT_EQ(run(own, o, lse), "");
    }
    const Comparison of_o = compare(o.result, o.standard, o.reference, allowance_of_o(listed.c.dtype));
    EXPECT_TRUE(of_o) << "o: " << of_o;
    const Comparison of_lse =
        compare(lse.result, lse.standard, lse.reference, allowance_of_lse(listed.c.dtype));
    EXPECT_TRUE(of_lse) << "lse: " << of_lse;
  }
  EXPECT_GE(served.size(), 15u) << "of 16 kernels";
}

}  // namespace
}  // namespace tandem::test
