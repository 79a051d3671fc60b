// Every way to call tandem_backward wrongly: its status, the words of its message, and outputs left alone.
#include <cstddef>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "tests/api/mistake.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;
using Args = tandem_backward_args;
using Field = tandem_tensor Args::*;

constexpr std::int64_t huge = std::int64_t{1} << 62;

using Mistake = test::Mistake<BackwardRequest>;

class BackwardMistakes : public ::testing::TestWithParam<Mistake> {};

TEST_P(BackwardMistakes, AreNamedAndLeaveTheOutputsAlone) { expect_refused(GetParam()); }

std::vector<Mistake> option_mistakes() {
  return {
      {"StructAWordShortOfTheFirst",
       [](BackwardRequest& r) { r.args.struct_size = offsetof(Args, sinks) - 8; },
       {"args->struct_size is ", "less than that of the first version"}},
      {"Deterministic",
       [](BackwardRequest& r) { r.args.deterministic = 2; },
       {"deterministic is 2", "0 or 1"}},
      {"DeterministicNegative",
       [](BackwardRequest& r) { r.args.deterministic = -1; },
       {"deterministic is -1"}},
  };
}

/// Tensors by their name in messages.
struct Tensor {
  std::string name;
  Field field;
};

const std::vector<Tensor>& tensors() {
  static const std::vector<Tensor> all = {
      {"q", &Args::q},       {"k", &Args::k},       {"v", &Args::v},   {"o", &Args::o},   {"lse", &Args::lse},
      {"dout", &Args::dout}, {"dlse", &Args::dlse}, {"dq", &Args::dq}, {"dk", &Args::dk}, {"dv", &Args::dv}};
  return all;
}

bool is_statistic(const Tensor& t) { return t.name == "lse" || t.name == "dlse"; }
bool is_output(const Tensor& t) { return t.name == "dq" || t.name == "dk" || t.name == "dv"; }
bool may_be_null(const Tensor& t) { return t.name == "dlse"; }

/// What can be wrong with any tensor, for each of them.
std::vector<Mistake> tensor_mistakes() {
  std::vector<Mistake> mistakes;
  for (const Tensor& t : tensors()) {
    const auto add = [&](const char* what, const std::function<void(tandem_tensor&)>& make,
                         std::vector<std::string> words) {
      mistakes.push_back({what + std::string("Of_") + t.name,
                          [make, field = t.field](BackwardRequest& r) { make(r.args.*field); },
                          std::move(words)});
    };
    if (t.name != "q")
      add("Dtype", [](tandem_tensor& x) { x.dtype = TANDEM_FP16; },
          {t.name + ".dtype is 2 (fp16)", is_statistic(t) ? "TANDEM_FP32" : "q.dtype is 3 (fp32)"});
    for (int i = 0; i < 3; ++i) {
      const bool own = t.name == "q" || (t.name == "k" && i > 0);  // what the others are compared with
      if (!own)
        add(("Shape" + std::to_string(i)).c_str(), [i](tandem_tensor& x) { x.shape[i] = 9; },
            {t.name + ".shape[" + std::to_string(i) + "]", "is 9", "which is"});
    }
    add("NegativeLength", [](tandem_tensor& x) { x.shape[1] = -1; },
        {t.name + ".shape[1] (sequence length) is -1"});
    if (!is_statistic(t))
      add("LastStride", [](tandem_tensor& x) { x.stride[3] = 2; }, {t.name + ".stride[3] (head dim) is 2"});
    else
      add("Columns", [](tandem_tensor& x) { x.shape[3] = 16; }, {t.name + ".shape[3] is 16", "has to be 1"});
    add("Offsets", [](tandem_tensor& x) { x.stride[1] = huge; }, {t.name + ".stride [", "63 bits"});
    add("Alignment", [](tandem_tensor& x) { x.data = static_cast<char*>(x.data) + 1; },
        {t.name + ".data is 0x", "not aligned"});
    if (!may_be_null(t)) add("Null", [](tandem_tensor& x) { x.data = nullptr; }, {t.name + ".data is NULL"});
    if (is_output(t)) {
      add("Broadcast", [](tandem_tensor& x) { x.stride[2] = 0; }, {t.name + ".stride is [", "distinct"});
      mistakes.push_back({"InPlaceOf_" + t.name,
                          [field = t.field](BackwardRequest& r) { (r.args.*field).data = r.args.k.data; },
                          {t.name + ".data is 0x", "overlap those of k", "memory of its own"}});
    }
  }
  return mistakes;
}

std::vector<Mistake> shape_mistakes() {
  return {
      {"HeadDim",
       [](BackwardRequest& r) { r.args.q.shape[3] = 12; },
       {"q.shape[3] (head dim) is 12", "multiple of 8"}},
      {"HeadDimOfV",
       [](BackwardRequest& r) { r.args.v.shape[3] = 8; },
       {"v.shape[3] (head dim) is 8", "which is 16"}},
      {"HeadsThatDoNotDivide",
       [](BackwardRequest& r) {
         for (const Field field : {&Args::k, &Args::v, &Args::dk, &Args::dv}) (r.args.*field).shape[2] = 3;
       },
       {"q.shape[2] (heads) is 4", "not a multiple of k.shape[2] (heads), which is 3"}},
      {"SinksOfNothing",
       [](BackwardRequest& r) { r.args.sinks = nullptr; },
       {"sinks is NULL, but dsinks is not", "dsinks NULL"}},
      {"MisalignedSinks",
       [](BackwardRequest& r) {
         r.args.sinks = reinterpret_cast<const float*>(reinterpret_cast<std::uintptr_t>(r.args.sinks) + 2);
       },
       {"sinks is 0x", "not aligned"}},
      {"DsinksInPlace",
       [](BackwardRequest& r) { r.args.dsinks = const_cast<float*>(r.args.sinks); },
       {"dsinks is 0x", "overlap those of sinks"}},
      {"DsinksAreDq",
       [](BackwardRequest& r) { r.args.dsinks = static_cast<float*>(r.args.dq.data); },
       {"dsinks is 0x", "overlap those of dq"}},
      {"OutputsInOnePlace",
       [](BackwardRequest& r) { r.args.dv.data = r.args.dk.data; },
       {"dv.data is 0x", "overlap those of dk"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Common, BackwardMistakes, ::testing::ValuesIn(common_mistakes<BackwardRequest>()),
                         by_name);
INSTANTIATE_TEST_SUITE_P(Mask, BackwardMistakes, ::testing::ValuesIn(mask_mistakes<BackwardRequest>()),
                         by_name);
INSTANTIATE_TEST_SUITE_P(Factor, BackwardMistakes, ::testing::ValuesIn(factor_mistakes<BackwardRequest>()),
                         by_name);
INSTANTIATE_TEST_SUITE_P(Option, BackwardMistakes, ::testing::ValuesIn(option_mistakes()), by_name);
INSTANTIATE_TEST_SUITE_P(Tensor, BackwardMistakes, ::testing::ValuesIn(tensor_mistakes()), by_name);
INSTANTIATE_TEST_SUITE_P(Shape, BackwardMistakes, ::testing::ValuesIn(shape_mistakes()), by_name);

TEST(BackwardErrors, NullArguments) {
  EXPECT_EQ(tandem_backward(nullptr, nullptr, 0, nullptr), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("args is NULL"));
  BackwardRequest request;
  EXPECT_EQ(tandem_backward_workspace(&request.args, nullptr), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("bytes is NULL"));
}

TEST(BackwardErrors, WorkspaceThatDoesNotFit) {
  BackwardRequest request;
  EXPECT_EQ(tandem_backward(&request.args, nullptr, 0, nullptr), TANDEM_WORKSPACE_TOO_SMALL);
  EXPECT_THAT(tandem_last_error(), HasSubstr("tandem_backward_workspace"));
  EXPECT_EQ(tandem_backward(&request.args, nullptr, request.workspace_bytes(), nullptr),
            TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("workspace is NULL"));
  EXPECT_EQ(tandem_backward(&request.args, reinterpret_cast<std::byte*>(request.workspace.data()) + 16,
                            request.workspace_bytes(), nullptr),
            TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("not aligned to 256"));
  EXPECT_TRUE(request.outputs_untouched());
}

TEST(BackwardErrors, AutoNeedsSomethingToFollow) {
  BackwardRequest request(small_backward(), TANDEM_BACKEND_AUTO);
  tandem_backward_args& a = request.args;
  std::size_t bytes = 17;
  a.q.data = nullptr;
  EXPECT_EQ(tandem_backward_workspace(&a, &bytes), TANDEM_OK) << "k is there: " << tandem_last_error();
  bytes = 17;
  for (tandem_tensor* tensor : {&a.k, &a.v, &a.o, &a.lse, &a.dout, &a.dlse, &a.dq, &a.dk, &a.dv})
    tensor->data = nullptr;
  a.sinks = a.dsinks = nullptr;
  EXPECT_EQ(tandem_backward_workspace(&request.args, &bytes), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("q.data is NULL"));
  EXPECT_EQ(bytes, 17u);
}

}  // namespace
}  // namespace tandem::test
