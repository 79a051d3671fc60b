// Every decode variant on the software Hopper: random steps, all policies, against the oracle.
//
// TANDEM_SIM_RUNS sets how many steps each test draws; TANDEM_SIM_SEED replays a single one.
#include "cpu/decode.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <gtest/gtest.h>
#include <string>

#include "apps/sim/decode_sim.h"
#include "decode/plan.h"
#include "tests/support/compare.h"
#include "tests/support/decode_case.h"

namespace tandem {
namespace {

using decode::Algorithm;
using decode::DecodeVariant;
using hw::sim::Policy;
using test::DecodeCase;
using test::DecodeTensors;

std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// Memory that lives as long as a workspace does: zeroed once, for calls of any shape.
class Workspace {
 public:
  /// At least `bytes`; what was there stays.
  std::span<std::byte> of(std::size_t bytes) {
    if (bytes > blocks_.size() * sizeof(Block)) blocks_.resize(bytes / sizeof(Block) + 1);
    return {blocks_.data()->bytes, bytes};
  }

 private:
  struct alignas(256) Block {
    std::byte bytes[256] = {};
  };
  std::vector<Block> blocks_;
};

/// A step that the variant serves: groups that fill a row tile, or one and a bit of the next.
DecodeCase draw_case(const DecodeVariant& variant, std::uint64_t seed) {
  const auto dtype = variant.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  DecodeCase c = test::random_decode_case(seed, dtype, variant.head_dim);
  test::Random random(seed + 77);
  const auto most_rows = static_cast<std::uint64_t>(variant.columns + variant.columns / 4);
  const std::int64_t group = 1 + static_cast<std::int64_t>(random() % most_rows) / c.q_len;
  c.kv_heads = std::min<std::int64_t>(c.kv_heads, 2);
  c.q_heads = c.kv_heads * group;
  if (variant.algorithm == Algorithm::plain && c.lengths.size() > 3) c.lengths.resize(3);
  return c;
}

/// Runs the step and returns its tensors; a fault fails the test.
DecodeTensors run(const DecodeVariant& variant, const DecodeCase& c, Workspace& workspace,
                  const sim::Machine& machine, std::span<std::int32_t> plan = {}) {
  DecodeTensors tensors(c);
  core::DecodeProblem problem = tensors.problem();
  problem.plan = plan.empty() ? nullptr : plan.data();
  const sim::DecodeMemory memory{workspace.of(decode::workspace_bytes(problem, variant)), tensors.page_table,
                                 plan};
  const hw::sim::Report report = sim::simulate_decode(problem, variant, memory, machine);
  EXPECT_TRUE(report.ok()) << report.text();
  return tensors;
}

void expect_correct(const DecodeTensors& after, const DecodeTensors& before) {
  const DecodeCase& c = after.setup;
  const cpu::ReferenceValues reference = cpu::reference_decode_values(before.problem());
  const test::ForwardValues standard = test::standard_decode(before);
  const test::Comparison o = test::compare(after.o.values(), standard.o, reference.o);
  EXPECT_TRUE(o) << "o: " << o;
  EXPECT_TRUE(after.o.guards_intact());
  EXPECT_EQ(after.cache_failure(before), "");
  if (!c.lse) {
    EXPECT_TRUE(after.lse.untouched());
    return;
  }
  const test::Comparison lse = test::compare(after.lse.values(), standard.lse, reference.lse);
  EXPECT_TRUE(lse) << "lse: " << lse;
  EXPECT_TRUE(after.lse.guards_intact());
}

std::vector<std::byte> bytes_of(const test::HostTensor& tensor) {
  return {tensor.storage().begin(), tensor.storage().end()};
}

class DecodeOnSim : public testing::TestWithParam<DecodeVariant> {
 protected:
  Workspace workspace_;
};

std::string test_name(const testing::TestParamInfo<DecodeVariant>& info) {
  std::string name = sim::name_of(info.param);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Variants, DecodeOnSim, testing::ValuesIn(sim::decode_variants()), test_name);

TEST_P(DecodeOnSim, EqualsTheOracleUnderEveryPolicy) {
  const std::uint64_t runs = number_from_environment("TANDEM_SIM_RUNS", 4);
  const std::uint64_t only = number_from_environment("TANDEM_SIM_SEED", 0);
  const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
  for (std::uint64_t seed = only != 0 ? only : 1; seed <= (only != 0 ? only : runs); ++seed) {
    const DecodeCase c = draw_case(GetParam(), seed);
    const DecodeTensors before(c);
    for (const Policy policy : {Policy::eager, Policy::late, Policy::random}) {
      sim::Machine machine;
      machine.policy = policy;
      machine.seed = seed;
      machine.multiprocessors = 1 + static_cast<int>(seed % 4);
      machine.replay = "TANDEM_SIM_SEED=" + std::to_string(seed) +
                       " bin/sim_decode_test --gtest_filter=Variants/DecodeOnSim." + test;
      SCOPED_TRACE(testing::Message()
                   << c << "\npolicy " << hw::sim::name_of(policy) << "\nreplay: " << machine.replay);
      expect_correct(run(GetParam(), c, workspace_, machine), before);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace tandem
