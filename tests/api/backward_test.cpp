// What tandem_backward and attention_backward promise where nothing is wrong.
#include <gtest/gtest.h>
#include <limits>
#include <random>

#include "tests/api/request.h"

namespace tandem::test {
namespace {

constexpr tandem_backend host_backends[] = {TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE};

TEST(Backward, FasterBackendAgreesWithTheReferenceForAnyLayoutAndMask) {
  const auto seed = std::random_device()();
  for (std::uint64_t i = 0; i < 60; ++i) {
    const BackwardCase c = random_backward_case(seed + i, TANDEM_FP32, 40);
    SCOPED_TRACE(::testing::PrintToString(c));
    BackwardRequest fast(c, TANDEM_BACKEND_AUTO), reference(c, TANDEM_BACKEND_REFERENCE);
    ASSERT_EQ(fast.run(), TANDEM_OK) << tandem_last_error();
    ASSERT_EQ(reference.run(), TANDEM_OK) << tandem_last_error();
    for (HostTensor BackwardTensors::*output :
         {&BackwardTensors::dq, &BackwardTensors::dk, &BackwardTensors::dv}) {
      const auto values = (fast.tensors.*output).values(), expected = (reference.tensors.*output).values();
      for (std::size_t j = 0; j < values.size(); ++j)
        ASSERT_NEAR(values[j], expected[j], 1e-4 * (1 + std::abs(expected[j])));
      EXPECT_TRUE((fast.tensors.*output).guards_intact());
    }
  }
}

TEST(Backward, WithoutBatchOrHeadsWritesNothingAndNeedsNoMemory) {
  for (const tandem_backend backend : host_backends)
    for (const int dimension : {0, 2}) {
      BackwardRequest request(small_backward(), backend);
      tandem_backward_args& a = request.args;
      for (tandem_tensor* tensor : {&a.q, &a.k, &a.v, &a.o, &a.lse, &a.dout, &a.dlse, &a.dq, &a.dk, &a.dv})
        tensor->shape[dimension] = 0;
      a.q.data = a.dq.data = nullptr, a.dsinks = nullptr;
      std::size_t bytes = 17;
      EXPECT_EQ(tandem_backward_workspace(&a, &bytes), TANDEM_OK) << tandem_last_error();
      EXPECT_EQ(bytes, 0u);
      EXPECT_EQ(tandem_backward(&a, nullptr, 0, nullptr), TANDEM_OK) << tandem_last_error();
      EXPECT_TRUE(request.outputs_untouched());
    }
}

TEST(Backward, WithoutHeadsAnyLengthTakesNoTime) {
  for (const tandem_backend backend : {TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE, TANDEM_BACKEND_AUTO}) {
    BackwardRequest request(small_backward(), backend);
    tandem_backward_args& a = request.args;
    for (tandem_tensor* tensor : {&a.q, &a.k, &a.v, &a.o, &a.lse, &a.dout, &a.dlse, &a.dq, &a.dk, &a.dv})
      tensor->shape[1] = std::int64_t{1} << 40, tensor->shape[2] = 0;
    a.dsinks = nullptr;
    EXPECT_EQ(tandem_backward(&a, nullptr, 0, nullptr), TANDEM_OK) << tandem_last_error();
    EXPECT_TRUE(request.outputs_untouched());
  }
}

TEST(Backward, WithoutQueriesOrWithoutKeysGradientsAreZero) {
  for (const tandem_backend backend : {TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE, TANDEM_BACKEND_AUTO})
    for (std::int64_t ForwardCase::*length : {&ForwardCase::q_len, &ForwardCase::k_len}) {
      BackwardCase c = small_backward();
      c.forward.*length = 0;
      BackwardRequest request(c, backend);
      tandem_backward_args& a = request.args;
      for (tandem_tensor* tensor : {&a.q, &a.k, &a.v, &a.o, &a.dout, &a.dq})  // what is empty has no memory
        if (tensor->shape[1] == 0) tensor->data = nullptr;
      std::size_t bytes = 17;
      EXPECT_EQ(tandem_backward_workspace(&a, &bytes), TANDEM_OK) << tandem_last_error();
      ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
      for (const HostTensor* output : {&request.tensors.dq, &request.tensors.dk, &request.tensors.dv}) {
        for (const double value : output->values()) EXPECT_EQ(value, 0);
        EXPECT_TRUE(output->guards_intact());
      }
    }
}

TEST(Backward, OfKeysWithoutQueryHeadsGradientsAreZero) {
  for (const tandem_backend backend : {TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE, TANDEM_BACKEND_AUTO})
    for (const bool empty : {true, false}) {
      BackwardRequest request(small_backward(), backend);
      tandem_backward_args& a = request.args;
      for (tandem_tensor* tensor : {&a.q, &a.o, &a.lse, &a.dout, &a.dlse, &a.dq}) {
        tensor->shape[2] = 0;
        if (empty) tensor->data = nullptr;
      }
      std::size_t bytes = 17;
      EXPECT_EQ(tandem_backward_workspace(&a, &bytes), TANDEM_OK) << tandem_last_error();
      ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
      for (const HostTensor* output : {&request.tensors.dk, &request.tensors.dv}) {
        for (const double value : output->values()) EXPECT_EQ(value, 0);
        EXPECT_TRUE(output->guards_intact());
      }
      EXPECT_TRUE(request.tensors.dq.untouched());
      EXPECT_TRUE(request.tensors.dsinks.untouched());
    }
}

TEST(Backward, WorkspaceQueryReadsNoDataAndIsExact) {
  BackwardRequest request;
  tandem_backward_args& a = request.args;
  std::size_t bytes = 0, blind = 0;
  ASSERT_EQ(tandem_backward_workspace(&a, &bytes), TANDEM_OK);
  for (tandem_tensor* tensor : {&a.q, &a.k, &a.v, &a.o, &a.lse, &a.dout, &a.dq, &a.dk, &a.dv})
    tensor->data = nullptr;
  ASSERT_EQ(tandem_backward_workspace(&a, &blind), TANDEM_OK);
  EXPECT_EQ(blind, bytes);
  BackwardRequest exact;
  EXPECT_EQ(tandem_backward(&exact.args, exact.workspace.data(), bytes - 1, nullptr),
            TANDEM_WORKSPACE_TOO_SMALL);
  EXPECT_TRUE(exact.outputs_untouched());
  EXPECT_EQ(tandem_backward(&exact.args, exact.workspace.data(), bytes, nullptr), TANDEM_OK);
}

TEST(Backward, DlseThatIsNotGivenIsZero) {
  BackwardCase without = small_backward();
  without.dlse = false;
  BackwardRequest absent(without), zero;
  zero.tensors.dlse.fill(0);
  ASSERT_EQ(absent.run(), TANDEM_OK);
  ASSERT_EQ(zero.run(), TANDEM_OK);
  EXPECT_EQ(absent.tensors.dq.values(), zero.tensors.dq.values());
  EXPECT_EQ(absent.tensors.dk.values(), zero.tensors.dk.values());
}

template <typename T>
Tensor<T> typed(const tandem_tensor& t) {
  return {static_cast<T*>(t.data),
          {.batch = t.shape[0], .sequence = t.shape[1], .heads = t.shape[2], .head_dim = t.shape[3]},
          {.batch = t.stride[0], .sequence = t.stride[1], .heads = t.stride[2]}};
}

TEST(CppBackward, PassesEveryOptionOn) {
  BackwardCase c = small_backward();
  c.forward.mask = {2, 1};
  c.forward.scale = 0.5f;
  c.forward.softcap = 2.0f;
  c.deterministic = true;
  BackwardRequest c_call(c, TANDEM_BACKEND_REFERENCE), cpp_call(c);
  ASSERT_EQ(c_call.run(), TANDEM_OK) << tandem_last_error();

  const tandem_backward_args& a = cpp_call.args;
  const BackwardInputs<float> inputs{.q = typed<const float>(a.q),
                                     .k = typed<const float>(a.k),
                                     .v = typed<const float>(a.v),
                                     .o = typed<const float>(a.o),
                                     .lse = typed<const float>(a.lse),
                                     .dout = typed<const float>(a.dout)};
  const Gradients<float> gradients{typed<float>(a.dq), typed<float>(a.dk), typed<float>(a.dv)};
  const BackwardOptions options{.mask = Mask::window(2, 1),
                                .scale = 0.5f,
                                .softcap = 2.0f,
                                .dlse = typed<const float>(a.dlse),
                                .deterministic = true,
                                .sinks = a.sinks,
                                .dsinks = a.dsinks,
                                .backend = TANDEM_BACKEND_REFERENCE};
  std::size_t bytes = 17;
  ASSERT_TRUE(attention_backward_workspace<float>(inputs, gradients, options, bytes));
  EXPECT_EQ(bytes, 0u);
  const Status status = attention_backward(inputs, gradients, options);
  ASSERT_TRUE(status) << status.message();
  for (HostTensor BackwardTensors::*output :
       {&BackwardTensors::dq, &BackwardTensors::dk, &BackwardTensors::dv, &BackwardTensors::dsinks})
    EXPECT_EQ((cpp_call.tensors.*output).values(), (c_call.tensors.*output).values());
}

TEST(Backward, SinksAreReadOnlyWhereTheirGradientsAreWanted) {
  BackwardRequest with, without;
  without.args.dsinks = nullptr;
  without.args.sinks = reinterpret_cast<const float*>(std::uintptr_t{1});
  ASSERT_EQ(with.run(), TANDEM_OK) << tandem_last_error();
  ASSERT_EQ(without.run(), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(with.tensors.dq.values(), without.tensors.dq.values());
  EXPECT_EQ(with.tensors.dv.values(), without.tensors.dv.values());
  EXPECT_EQ(with.tensors.dsinks_failure(), "");
  EXPECT_TRUE(without.tensors.dsinks.untouched());
}

TEST(Backward, OfNothingSinksHaveGradientsOfZero) {
  for (std::int64_t ForwardCase::*size : {&ForwardCase::batch, &ForwardCase::q_len}) {
    BackwardCase c = small_backward();
    c.forward.*size = 0;
    BackwardRequest request(c);
    ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
    for (const double gradient : request.tensors.dsinks.values()) EXPECT_EQ(gradient, 0);
  }
}

}  // namespace
}  // namespace tandem::test
