// What the software Hopper wrote, against the oracle.
#pragma once

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/forward_case.h"
#include "tests/support/oracle.h"
#include "tests/support/standard.h"

namespace tandem::test {

/// o, and lse where the case has one, by the tolerance rule of 16 bits. `problem`: over these tensors, with
/// what a case does not say.
inline void expect_near_oracle(const core::ForwardProblem& problem, const ForwardTensors& tensors) {
  const cpu::ReferenceValues reference = oracle_values(problem);
  const ForwardValues standard = standard_forward(problem);
  const Comparison o = compare(tensors.o.values(), standard.o, reference.o);
  EXPECT_TRUE(o) << "o: " << o;
  if (!tensors.setup.lse) return;
  const Comparison lse = compare(tensors.lse.values(), standard.lse, reference.lse);
  EXPECT_TRUE(lse) << "lse: " << lse;
}

}  // namespace tandem::test
