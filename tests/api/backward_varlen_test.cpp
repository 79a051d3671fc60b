// Gradients of variable lengths through the C interface and the C++ one: what they are, and what is refused.
#include <cstddef>
#include <gtest/gtest.h>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <tandem/attention.hpp>

#include "tests/api/mistake.h"
#include "tests/support/varlen_backward_case.h"

namespace tandem::test {
namespace {

/// Three small sequences, every dimension different, with gradients of lse and of sinks.
VarlenBackwardCase small_varlen_backward() {
  VarlenBackwardCase c{.each = small_backward()};
  c.q_rows = {3, 0, 7}, c.k_rows = {5, 4, 9}, c.used = {5, 4, 6};
  return c;
}

struct HoldsVarlenBackwardTensors {
  VarlenBackwardTensors tensors;
};

/// The arguments of a call, over tensors with poisoned outputs.
struct VarlenRequest : HoldsVarlenBackwardTensors, BackwardArgs {
  explicit VarlenRequest(const VarlenBackwardCase& c = small_varlen_backward(),
                         tandem_backend backend = TANDEM_BACKEND_CPU)
      : HoldsVarlenBackwardTensors{VarlenBackwardTensors(c)},
        BackwardArgs(tensors.problem(), tensors.setup.each) {
    args.backend = backend;
    std::size_t bytes = 0;
    if (tandem_backward_workspace(&args, &bytes) == TANDEM_OK)
      workspace.resize(bytes / sizeof(WorkspaceBlock) + 1);
  }

  tandem_status run() { return tandem_backward(&args, workspace.data(), workspace_bytes(), nullptr); }
  std::size_t workspace_bytes() const { return workspace.size() * sizeof(WorkspaceBlock); }
  bool outputs_untouched() const {
    return tensors.dq.untouched() && tensors.dk.untouched() && tensors.dv.untouched() &&
           tensors.dsinks.untouched();
  }

  std::vector<WorkspaceBlock> workspace;
};

using Mistake = test::Mistake<VarlenRequest>;

class BackwardOfVariableLengths : public ::testing::TestWithParam<tandem_backend> {};

std::string name_of(const ::testing::TestParamInfo<tandem_backend>& info) {
  static constexpr const char* names[] = {"automatic", "cpu", "hopper", "reference"};
  return names[info.param];
}

INSTANTIATE_TEST_SUITE_P(Backends, BackwardOfVariableLengths,
                         ::testing::Values(TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE, TANDEM_BACKEND_AUTO),
                         name_of);

TEST_P(BackwardOfVariableLengths, EachSequenceEqualsItsOracle) {
  const auto first = std::random_device()();
  for (std::uint64_t seed = first; seed < first + std::uint64_t{30} && !HasFailure(); ++seed) {
    static constexpr tandem_dtype dtypes[] = {TANDEM_BF16, TANDEM_FP16, TANDEM_FP32};
    VarlenRequest request(random_varlen_backward_case(seed, dtypes[seed % 3], 60), GetParam());
    SCOPED_TRACE(::testing::Message()
                 << "seed " << seed << ": " << ::testing::PrintToString(request.tensors.setup));
    if (seed % 2 == 0)  // as callers say it that know no bounds
      for (std::int64_t* bound : {&request.varlen.max_seqlen_q, &request.varlen.max_seqlen_k})
        if (request.tensors.setup.max_seqlen_q == 0 && request.tensors.setup.max_seqlen_k == 0) *bound = 0;
    ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
    EXPECT_EQ(failure_of(request.tensors, VarlenBackwardExpected(request.tensors)), "");
  }
}

TEST_P(BackwardOfVariableLengths, OfKeysWithoutQueryHeadsGradientsAreZero) {
  VarlenRequest request(small_varlen_backward(), GetParam());
  for (tandem_tensor* tensor : {&request.args.q, &request.args.o, &request.args.lse, &request.args.dout,
                                &request.args.dlse, &request.args.dq})
    tensor->shape[2] = 0;
  ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
  const VarlenBackwardTensors& t = request.tensors;
  for (const HostTensor* output : {&t.dk, &t.dv}) {
    for (std::size_t i = 0; i < t.alone.size(); ++i)
      for (std::int64_t key = 0; key < t.setup.k_len(i); ++key)
        EXPECT_EQ(output->at(0, t.k_place(i).row + key, 1, 7), 0);
    EXPECT_TRUE(output->guards_intact());
  }
  EXPECT_TRUE(t.dq.untouched() && t.dsinks.untouched());
}

TEST_P(BackwardOfVariableLengths, WithoutSequencesOnlyTheGradientsOfSinksAreWritten) {
  VarlenBackwardCase c = small_varlen_backward();
  c.q_rows = c.k_rows = c.used = {};
  VarlenRequest request(c, GetParam());
  ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
  const VarlenBackwardTensors& t = request.tensors;
  EXPECT_TRUE(t.dq.untouched() && t.dk.untouched() && t.dv.untouched());
  for (std::int64_t h = 0; h < 4; ++h) EXPECT_EQ(t.dsinks.at(0, 0, 0, h), 0);
}

TEST(BackwardVarlen, TheWorkspaceQueryReadsNoLengths) {
  VarlenRequest request;
  std::size_t bytes = 0, blind = 0;
  ASSERT_EQ(tandem_backward_workspace(&request.args, &bytes), TANDEM_OK);
  const auto* nowhere = reinterpret_cast<const std::int32_t*>(64);
  request.varlen.cu_seqlens_q = request.varlen.cu_seqlens_k = request.varlen.seqused_k = nowhere;
  ASSERT_EQ(tandem_backward_workspace(&request.args, &blind), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(blind, bytes);
}

TEST(BackwardVarlen, AnOlderHeadersCallHasNone) {
  BackwardRequest request, expected;
  request.args.struct_size = offsetof(tandem_backward_args, varlen);
  request.args.varlen = reinterpret_cast<const tandem_varlen*>(64);  // what lies behind its struct
  ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
  ASSERT_EQ(expected.run(), TANDEM_OK);
  EXPECT_TRUE(same_bytes(request.tensors.dq, expected.tensors.dq));
}

template <typename T>
Tensor<T> typed(const tandem_tensor& t) {
  return {static_cast<T*>(t.data),
          {.batch = t.shape[0], .sequence = t.shape[1], .heads = t.shape[2], .head_dim = t.shape[3]},
          {.batch = t.stride[0], .sequence = t.stride[1], .heads = t.stride[2]}};
}

TEST(BackwardVarlen, AreAnOptionInCpp) {
  VarlenRequest c_call, cpp_call;
  ASSERT_EQ(c_call.run(), TANDEM_OK) << tandem_last_error();
  const tandem_backward_args& a = cpp_call.args;
  const tandem_varlen& lengths = cpp_call.varlen;
  BackwardOptions options = {.dlse = typed<const float>(a.dlse),
                             .sinks = a.sinks,
                             .dsinks = a.dsinks,
                             .varlen = Varlen{.batch = lengths.batch,
                                              .cu_seqlens_q = lengths.cu_seqlens_q,
                                              .cu_seqlens_k = lengths.cu_seqlens_k,
                                              .seqused_k = lengths.seqused_k,
                                              .max_seqlen_q = 7},
                             .backend = TANDEM_BACKEND_CPU};
  const BackwardInputs<float> in = {typed<const float>(a.q),   typed<const float>(a.k),
                                    typed<const float>(a.v),   typed<const float>(a.o),
                                    typed<const float>(a.lse), typed<const float>(a.dout)};
  const Gradients<float> out = {typed<float>(a.dq), typed<float>(a.dk), typed<float>(a.dv)};
  std::size_t bytes = 0;
  ASSERT_TRUE(attention_backward_workspace(in, out, options, bytes)) << tandem_last_error();
  std::vector<WorkspaceBlock> workspace(bytes / sizeof(WorkspaceBlock) + 1);
  options.workspace = std::as_writable_bytes(std::span(workspace)).first(bytes);
  const Status status = attention_backward(in, out, options);
  ASSERT_TRUE(status) << status.message();
  const VarlenBackwardTensors &x = cpp_call.tensors, &y = c_call.tensors;
  EXPECT_TRUE(same_bytes(x.dq, y.dq) && same_bytes(x.dk, y.dk) && same_bytes(x.dv, y.dv) &&
              same_bytes(x.dsinks, y.dsinks));
}

class BackwardMistakesOfVariableLengths : public ::testing::TestWithParam<Mistake> {};

TEST_P(BackwardMistakesOfVariableLengths, AreNamedAndLeaveTheOutputsAlone) { expect_refused(GetParam()); }

std::int32_t numbers[16] = {};

/// What the forward takes and the backward does not.
std::vector<Mistake> unserved() {
  static const tandem_rotary rotary{};
  std::vector<Mistake> all = {
      {"PageTable",
       [](VarlenRequest& r) { r.varlen.page_table = numbers; },
       {"varlen.page_table is given", "no pages", "gather", "varlen.cu_seqlens_k", "pass NULL"}},
      {"KNew",
       [](VarlenRequest& r) { r.varlen.k_new = r.varlen.v_new = r.args.k; },
       {"varlen.k_new is given", "as a part of k", "pass NULL"}},
      {"VNew", [](VarlenRequest& r) { r.varlen.v_new = r.args.v; }, {"varlen.v_new is given", "pass NULL"}},
      {"CuSeqlensKNew",
       [](VarlenRequest& r) { r.varlen.cu_seqlens_k_new = numbers; },
       {"varlen.cu_seqlens_k_new is given", "pass NULL"}},
      {"Rotary",
       [](VarlenRequest& r) { r.varlen.rotary = &rotary; },
       {"varlen.rotary is given", "no rotary embedding", "turned before", "pass NULL"}},
      {"LeftpadK",
       [](VarlenRequest& r) { r.varlen.leftpad_k = numbers; },
       {"varlen.leftpad_k is given", "no padding", "varlen.cu_seqlens_k", "pass NULL"}},
      {"BatchIndex",
       [](VarlenRequest& r) { r.varlen.batch_index = numbers; },
       {"varlen.batch_index is given", "gather", "pass NULL"}},
      {"SplitSize",
       [](VarlenRequest& r) { r.varlen.split_size = 128; },
       {"varlen.split_size is 128", "it has to be 0"}},
      {"SplitSizeThatNobodyHas",
       [](VarlenRequest& r) { r.varlen.split_size = -3; },
       {"varlen.split_size is -3", "it has to be 0"}},
  };
  for (Mistake& mistake : all) mistake.status = TANDEM_UNSUPPORTED;
  all.push_back({"StructOfALaterVersion",
                 [](VarlenRequest& r) { r.varlen.struct_size += 8; },
                 {"varlen->struct_size is ", tandem_version()},
                 TANDEM_UNSUPPORTED});
  return all;
}

std::vector<Mistake> mistakes() {
  return {
      {"Size", [](VarlenRequest& r) { r.varlen.struct_size = 0; }, {"varlen->struct_size is 0", "sizeof"}},
      {"Batch", [](VarlenRequest& r) { r.varlen.batch = -1; }, {"varlen.batch is -1", "from 0"}},
      {"BoundOfQueries",
       [](VarlenRequest& r) { r.varlen.max_seqlen_q = -1; },
       {"varlen.max_seqlen_q is -1", "from 0 (not known)"}},
      {"BoundOfKeys",
       [](VarlenRequest& r) { r.varlen.max_seqlen_k = -7; },
       {"varlen.max_seqlen_k is -7", "from 0 (not known)"}},
      {"EntriesOfQueries",
       [](VarlenRequest& r) { r.varlen.cu_seqlens_q = nullptr; },
       {"q.shape[0] (batch) is 1; it has to be 3, an entry for each sequence"}},
      {"EntriesOfKeys",
       [](VarlenRequest& r) { r.varlen.cu_seqlens_k = nullptr; },
       {"k.shape[0] (batch) is 1; it has to be 3, an entry for each sequence"}},
      {"PackedQueriesOfTwo",
       [](VarlenRequest& r) {
         for (tandem_tensor* t : {&r.args.q, &r.args.o, &r.args.lse, &r.args.dout, &r.args.dlse, &r.args.dq})
           t->shape[0] = 2;
       },
       {"q.shape[0] (batch) is 2; it has to be 1, since sequences are packed"}},
      {"RowsOfDq",
       [](VarlenRequest& r) { --r.args.dq.shape[1]; },
       {"dq.shape[1] (sequence length) is", "q.shape"}},
      {"RowsOfLse", [](VarlenRequest& r) { ++r.args.lse.shape[1]; }, {"lse.shape[1] (sequence length) is"}},
      {"RowsOfDv",
       [](VarlenRequest& r) { --r.args.dv.shape[1]; },
       {"dv.shape[1] (sequence length) is", "k.shape"}},
      {"Alignment",
       [](VarlenRequest& r) {
         r.varlen.seqused_k =
             reinterpret_cast<const std::int32_t*>(reinterpret_cast<std::uintptr_t>(numbers) + 2);
       },
       {"varlen.seqused_k is 0x", "not aligned"}},
      {"LengthsAreWritten",
       [](VarlenRequest& r) { r.varlen.cu_seqlens_q = static_cast<const std::int32_t*>(r.args.dk.data); },
       {"overlap", "varlen.cu_seqlens_q"}},
      {"Chunk", [](VarlenRequest& r) { r.mask.chunk = 64; }, {"mask.chunk is not 0"}, TANDEM_UNSUPPORTED},
  };
}

INSTANTIATE_TEST_SUITE_P(Unserved, BackwardMistakesOfVariableLengths, ::testing::ValuesIn(unserved()),
                         by_name);
INSTANTIATE_TEST_SUITE_P(Wrong, BackwardMistakesOfVariableLengths, ::testing::ValuesIn(mistakes()), by_name);

}  // namespace
}  // namespace tandem::test
