// Memory that runs out at any allocation of a call leaves its outputs and caches as they were.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <new>
#include <vector>

#include <tandem/tandem.h>

#include "tests/api/request.h"
#include "tests/support/varlen_backward_case.h"
#include "tests/support/varlen_call.h"
#include "tests/support/varlen_case.h"

namespace {

/// How many times this thread may allocate; negative: without end.
thread_local std::int64_t allocations_left = -1;

}  // namespace

#ifndef __SANITIZE_ADDRESS__  // which has operators of its own

// Not inline: GCC would see free() without the malloc() that belongs to it.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  if (void* const memory = std::malloc(std::max<std::size_t>(bytes, 1))) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

#endif

namespace tandem::test {
namespace {

/// Two sequences, of which the second needs more memory, with everything that writes or allocates.
struct VarlenRequest {
  static VarlenCase setup(KeyLayout keys) {
    VarlenCase c;
    c.dtype = TANDEM_FP32;
    c.q_lens = {3, 9}, c.k_lens = {7, 30}, c.keys = keys;
    if (keys != KeyLayout::packed) c.new_lens = {3, 9};
    c.rotary_dim = 32;
    return c;
  }

  VarlenTensors tensors;
  VarlenCall call;
  std::vector<WorkspaceBlock> workspace;

  VarlenRequest(KeyLayout keys, tandem_backend backend)
      : tensors(setup(keys)), call(tensors.problem(), to_c(core::Mask::full()), backend) {
    std::size_t bytes = 0;
    EXPECT_EQ(tandem_forward_workspace(&call.args, &bytes), TANDEM_OK) << tandem_last_error();
    workspace.resize(bytes / sizeof(WorkspaceBlock) + 1);
  }
  tandem_status run() {
    return tandem_forward(&call.args, workspace.data(), workspace.size() * sizeof(WorkspaceBlock), nullptr);
  }
  bool outputs_untouched() const {
    const VarlenTensors fresh(tensors.setup);
    return tensors.o.untouched() && tensors.lse.untouched() && same_bytes(tensors.k, fresh.k) &&
           same_bytes(tensors.v, fresh.v);
  }
};

struct HoldsVarlenBackwardTensors {
  VarlenBackwardTensors tensors;
};

struct VarlenBackwardRequest : HoldsVarlenBackwardTensors, BackwardArgs {
  static VarlenBackwardCase setup() {
    VarlenBackwardCase c{.each = small_backward()};
    c.q_rows = {3, 7}, c.k_rows = {5, 9}, c.used = {5, 6};
    return c;
  }

  std::vector<WorkspaceBlock> workspace;

  explicit VarlenBackwardRequest(tandem_backend backend)
      : HoldsVarlenBackwardTensors{VarlenBackwardTensors(setup())},
        BackwardArgs(tensors.problem(), tensors.setup.each) {
    args.backend = backend;
    std::size_t bytes = 0;
    EXPECT_EQ(tandem_backward_workspace(&args, &bytes), TANDEM_OK) << tandem_last_error();
    workspace.resize(bytes / sizeof(WorkspaceBlock) + 1);
  }
  tandem_status run() {
    return tandem_backward(&args, workspace.data(), workspace.size() * sizeof(WorkspaceBlock), nullptr);
  }
  bool outputs_untouched() const {
    return tensors.dq.untouched() && tensors.dk.untouched() && tensors.dv.untouched() &&
           tensors.dsinks.untouched();
  }
};

/// `fewest`: allocations that the call is known to make.
template <typename MakeRequest>
void expect_all_or_nothing(const MakeRequest& make_request, std::int64_t fewest) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends the process where new fails";
#endif
  for (std::int64_t allocations = 0;; ++allocations) {
    SCOPED_TRACE(allocations);
    auto request = make_request();
    allocations_left = allocations;
    const tandem_status status = request.run();
    allocations_left = -1;
    if (status == TANDEM_OK) {
      EXPECT_GE(allocations, fewest);
      return;
    }
    ASSERT_EQ(status, TANDEM_OUT_OF_MEMORY) << tandem_last_error();
    EXPECT_THAT(tandem_last_error(), ::testing::StartsWith("host memory ran out; use fewer tokens"));
    ASSERT_TRUE(request.outputs_untouched());
  }
}

class Allocations : public ::testing::TestWithParam<tandem_backend> {};

INSTANTIATE_TEST_SUITE_P(Backends, Allocations,
                         ::testing::Values(TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE),
                         [](const auto& info) {
                           return info.param == TANDEM_BACKEND_CPU ? "cpu" : "reference";
                         });

TEST_P(Allocations, OfAForwardAllComeBeforeItsOutputs) {
  expect_all_or_nothing([] { return Request(small_case(), GetParam()); },
                        GetParam() == TANDEM_BACKEND_CPU ? 0 : 5);
}

TEST_P(Allocations, OfVariableLengthsAllComeBeforeOutputsAndCaches) {
  for (const KeyLayout keys : {KeyLayout::packed, KeyLayout::entries, KeyLayout::paged}) {
    SCOPED_TRACE(static_cast<int>(keys));
    expect_all_or_nothing([keys] { return VarlenRequest(keys, GetParam()); },
                          keys == KeyLayout::paged ? 3 : 1);
  }
}

TEST_P(Allocations, OfADecodingStepAllComeBeforeOutputsAndCaches) {
  struct Step : DecodeRequest {
    Step() { args.backend = GetParam(); }
  };
  expect_all_or_nothing([] { return Step(); }, GetParam() == TANDEM_BACKEND_CPU ? 0 : 5);
}

TEST_P(Allocations, OfGradientsAllComeBeforeThem) {
  expect_all_or_nothing([] { return VarlenBackwardRequest(GetParam()); },
                        GetParam() == TANDEM_BACKEND_CPU ? 0 : 18);
}

}  // namespace
}  // namespace tandem::test
