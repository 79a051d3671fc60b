// Runs tests with each instruction set that this machine has, not the best one only.
#pragma once

// clang-format off
#include "cpu/simd_targets.h"
#include <hwy/targets.h>
#include <gtest/gtest.h>
// clang-format on

namespace tandem::test {

template <typename Body>
void on_each_target(Body body) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    body();
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace tandem::test
