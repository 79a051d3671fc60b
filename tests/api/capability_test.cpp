// GPUs that are not Hopper are refused by name. No such GPU is needed: the check takes what the driver
// reports.
#include "hw/cuda/capability.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::hw {
namespace {

using testing::HasSubstr;

TEST(Capability, HopperIsAccepted) { EXPECT_TRUE(check_capability(0, 9, 0).ok()); }

TEST(Capability, OlderAndNewerGpusAreRefusedAndNamed) {
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {9, 1}, {10, 0}, {12, 0}}) {
    const core::Status status = check_capability(3, major, minor);
    EXPECT_EQ(status.code(), TANDEM_NO_DEVICE);
    EXPECT_THAT(status.message(), HasSubstr("CUDA device 3 has compute capability " + std::to_string(major) +
                                            "." + std::to_string(minor)));
    EXPECT_THAT(status.message(), HasSubstr("Hopper, 9.0"));
  }
}

}  // namespace
}  // namespace tandem::hw
