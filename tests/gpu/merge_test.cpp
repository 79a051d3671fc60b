// The Hopper merge against the oracle: random parts of every dtype, many rows, and what users rely on:
// streams, CUDA graphs.
#include "cpu/merge.h"

#include <gtest/gtest.h>
#include <string>

#include "merge/variant.h"
#include "tests/gpu/device.h"
#include "tests/support/merge_case.h"

namespace tandem::test {
namespace {

class HopperMerge : public testing::Test {
 protected:
  void SetUp() override {
    static const std::string why = why_no_hopper();
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

/// Copies of all cells of a merge's tensors, guards included.
class DeviceMerge {
 public:
  explicit DeviceMerge(const MergeTensors& host)
      : o_parts_(host.o_parts.storage()),
        lse_parts_(host.lse_parts.storage()),
        o_(host.o.storage()),
        lse_(host.lse.storage()),
        args_(to_c(host.problem(host.o_parts.view_at(o_parts_.data()),
                                host.lse_parts.view_at(lse_parts_.data()), host.o.view_at(o_.data()),
                                host.lse.view_at(lse_.data())))) {}

  void run(cudaStream_t stream = nullptr) const {
    ASSERT_EQ(tandem_merge(&args_, stream), TANDEM_OK) << tandem_last_error();
  }
  void write(const MergeTensors& host) {
    o_parts_.write(host.o_parts.storage());
    lse_parts_.write(host.lse_parts.storage());
  }
  void read(MergeTensors& host) const {
    o_.read(host.o.storage());
    lse_.read(host.lse.storage());
  }

 private:
  DeviceMemory o_parts_, lse_parts_, o_, lse_;
  tandem_merge_args args_;
};

std::string failure_of(const MergeTensors& after) {
  const cpu::ReferenceValues reference = cpu::reference_merge_values(after.problem());
  return merge_failure(after, {reference.o, reference.lse});
}

TEST_F(HopperMerge, RandomPartsOfEveryDtypeMatchTheOracle) {
  // Another seed: --gtest_random_seed.
  const auto first = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
  const Stream stream;
  for (const merge::MergeVariant& variant : merge::all_variants())
    for (std::uint64_t i = 0; i < 40; ++i) {
      MergeCase c = random_merge_case(first + i);
      c.in = variant.in, c.out = variant.out;
      MergeTensors t(c);
      const DeviceMerge device(t);
      device.run(stream.get());
      device.read(t);
      ASSERT_EQ(failure_of(t), "") << c;
    }
}

TEST_F(HopperMerge, ManyRowsOfManyPartsMatchTheOracle) {
  for (const MergeCase& c :
       {MergeCase{.parts = 133, .batch = 5, .length = 64, .heads = 16, .head_dim = 128},
        MergeCase{.parts = 2, .batch = 2, .length = 4096, .heads = 3, .head_dim = 512}}) {
    MergeTensors t(c);
    const DeviceMerge device(t);
    device.run();
    device.read(t);
    ASSERT_EQ(failure_of(t), "") << c;
  }
}

TEST_F(HopperMerge, AReplayedGraphReadsThePartsAnew) {
  MergeTensors t({.parts = 4, .length = 33, .heads = 5, .head_dim = 64});
  DeviceMerge device(t);
  const Stream stream;
  const Graph graph(stream, [&](cudaStream_t s) { device.run(s); });
  t.o_parts.fill_normal(8);
  t.lse_parts.fill_normal(9, 4);
  device.write(t);
  graph.replay();
  device.read(t);
  EXPECT_EQ(failure_of(t), "");
}

}  // namespace
}  // namespace tandem::test
