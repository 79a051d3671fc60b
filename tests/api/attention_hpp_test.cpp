#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <span>
#include <vector>

#include <tandem/attention.hpp>

// The inside has namespaces of its own in tandem; both have to fit into one program.
#include "core/decode_problem.h"
#include "core/problem.h"
#include "forward/launch.h"
#include "tests/api/request.h"

/// A 16-bit type of the caller's own.
struct OwnBfloat {
  std::uint16_t bits;
};
template <>
inline constexpr tandem_dtype tandem::dtype_of<OwnBfloat> = TANDEM_BF16;

namespace tandem::test {
namespace {

constexpr Shape shape{.batch = 2, .sequence = 3, .heads = 4, .head_dim = 8};

static_assert(Element<const Bf16> && Element<Fp16> && Element<float> && Element<OwnBfloat>);
static_assert(!Element<double> && !Element<int>);
static_assert(std::is_convertible_v<Tensor<float>, Tensor<const float>>);
static_assert(!std::is_convertible_v<Tensor<const float>, Tensor<float>>);
static_assert(!std::is_convertible_v<Tensor<Bf16>, Tensor<const Fp16>>);
static_assert(MutableElement<float> && !MutableElement<const float>, "an output cannot be const");
/// Whether Tokens can say that sequences append different numbers of tokens.
template <typename Tokens>
concept MayBePacked = requires(Tokens tokens) {
  tokens.cu_seqlens;
};
static_assert(MayBePacked<AppendedTokens<float>>);
static_assert(!MayBePacked<decltype(DecodeOptions<float>::append)::value_type>,
              "a decoding step appends as many tokens to every sequence, and can't be told otherwise");

TEST(CppTensor, LayoutsPlaceElementsWhereTheirNamesSay) {
  const tandem_tensor bshd = Tensor<const float>::bshd(nullptr, shape).c_tensor();
  const tandem_tensor bhsd = Tensor<const float>::bhsd(nullptr, shape).c_tensor();
  EXPECT_THAT(bshd.shape, ::testing::ElementsAre(2, 3, 4, 8));
  EXPECT_THAT(bhsd.shape, ::testing::ElementsAre(2, 3, 4, 8));
  EXPECT_THAT(bshd.stride, ::testing::ElementsAre(3 * 4 * 8, 4 * 8, 8, 1));
  EXPECT_THAT(bhsd.stride, ::testing::ElementsAre(4 * 3 * 8, 8, 3 * 8, 1));
}

TEST(CppTensor, CarriesTheDtypeOfItsElements) {
  EXPECT_EQ(Tensor<Bf16>().c_tensor().dtype, TANDEM_BF16);
  EXPECT_EQ(Tensor<const Fp16>().c_tensor().dtype, TANDEM_FP16);
  EXPECT_EQ(Tensor<float>().c_tensor().dtype, TANDEM_FP32);
  EXPECT_EQ(Tensor<const OwnBfloat>().c_tensor().dtype, TANDEM_BF16);
}

TEST(CppMask, IsTheMaskOfTheCInterface) {
  EXPECT_EQ(Mask::full().c_mask().kind, TANDEM_MASK_FULL);
  EXPECT_EQ(Mask::causal().c_mask().kind, TANDEM_MASK_CAUSAL);
  const tandem_mask window = Mask::window(3, TANDEM_UNLIMITED).c_mask();
  EXPECT_EQ(window.kind, TANDEM_MASK_WINDOW);
  EXPECT_EQ(window.window_left, 3);
  EXPECT_EQ(window.window_right, TANDEM_UNLIMITED);
}

/// Tensors of a C call, as C++ sees them.
template <typename T>
Tensor<T> typed(const tandem_tensor& t) {
  return {static_cast<T*>(t.data),
          {.batch = t.shape[0], .sequence = t.shape[1], .heads = t.shape[2], .head_dim = t.shape[3]},
          {.batch = t.stride[0], .sequence = t.stride[1], .heads = t.stride[2]}};
}

TEST(CppForward, PassesEveryOptionOn) {
  Request c_call, cpp_call;
  c_call.args.backend = TANDEM_BACKEND_REFERENCE;
  c_call.mask = Mask::window(2, 1).c_mask();
  c_call.args.scale = 0.5f;
  c_call.args.softcap = 2.0f;
  ASSERT_EQ(c_call.run(), TANDEM_OK) << tandem_last_error();

  const tandem_forward_args& args = cpp_call.args;
  const Status status = attention_forward(typed<const float>(args.q), typed<float>(args.k),
                                          typed<const float>(args.v), typed<float>(args.o),
                                          {.mask = Mask::window(2, 1),
                                           .scale = 0.5f,
                                           .softcap = 2.0f,
                                           .lse = typed<float>(args.lse),
                                           .backend = TANDEM_BACKEND_REFERENCE});
  ASSERT_TRUE(status) << status.message();
  EXPECT_EQ(status.code(), TANDEM_OK);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(cpp_call.tensors.o.values(), c_call.tensors.o.values());
  EXPECT_EQ(cpp_call.tensors.lse.values(), c_call.tensors.lse.values());
}

TEST(CppForward, PassesOnWhatIsAskedForStudy) {
  Request request;
  const auto q = typed<const float>(request.args.q), k = typed<const float>(request.args.k),
             v = typed<const float>(request.args.v);
  const auto o = typed<float>(request.args.o);
  request.study.overlap = TANDEM_OVERLAP_THREE_STAGE;
  request.study.turn = TANDEM_TURN_PINGPONG;
  const ForwardOptions options{.backend = TANDEM_BACKEND_REFERENCE, .study = &request.study};
  detail::ForwardCall call;
  detail::fill<float>(call, q, k, v, o, options);
  EXPECT_EQ(call.args.study, &request.study);
  EXPECT_TRUE(attention_forward(q, k, v, o, options))
      << "backends without stages and turns ignore both: " << tandem_last_error();
}

TEST(CppForward, AsksForTheWorkspaceThatItNeeds) {
  Request request;
  const auto q = typed<const float>(request.args.q), k = typed<const float>(request.args.k),
             v = typed<const float>(request.args.v);
  const auto o = typed<float>(request.args.o);
  ForwardOptions options{.backend = TANDEM_BACKEND_CPU};
  std::size_t bytes = 0;
  ASSERT_TRUE(attention_forward_workspace(q, k, v, o, options, bytes));
  EXPECT_EQ(attention_forward(q, k, v, o, options).code(), TANDEM_WORKSPACE_TOO_SMALL);
  std::vector<WorkspaceBlock> workspace(bytes / sizeof(WorkspaceBlock) + 1);
  options.workspace = std::as_writable_bytes(std::span(workspace)).first(bytes);
  EXPECT_TRUE(attention_forward(q, k, v, o, options));
}

/// The cache of a C call, as C++ sees it.
Cache<float> typed_cache(const tandem_cache& cache) {
  return {.k = typed<float>(cache.k),
          .v = typed<float>(cache.v),
          .lengths = cache.lengths,
          .page_table = PageTable{cache.page_table, cache.pages_per_sequence, cache.page_table_stride},
          .batch_index = cache.batch_index};
}

TEST(CppDecode, PassesEveryOptionOn) {
  for (const bool interleaved : {false, true}) {
    DecodeCase c = small_step();
    c.interleaved = c.qv = interleaved;
    DecodeRequest c_call(c), cpp_call(c);
    c_call.args.backend = TANDEM_BACKEND_REFERENCE;
    c_call.mask = Mask::window(9, 1).c_mask();
    c_call.args.scale = 0.5f;
    c_call.args.softcap = 2.0f;
    const std::uint64_t tree[64] = {1, 3, 1};
    const float slopes[] = {0.1f, 0.2f, -0.3f, 0.4f};
    c_call.args.alibi_slopes = slopes, c_call.args.tree = tree;
    ASSERT_EQ(c_call.run(), TANDEM_OK) << tandem_last_error();

    const tandem_decode_args& args = cpp_call.args;
    const auto* cos = static_cast<const float*>(cpp_call.rotary.cos);
    const auto* sin = static_cast<const float*>(cpp_call.rotary.sin);
    const auto make = interleaved ? Rotary::interleaved<const float> : Rotary::halves<const float>;
    const Status status = attention_decode(
        typed<const float>(args.q), typed_cache(cpp_call.cache), typed<float>(args.o),
        {.append = NewTokens<float>{typed<float>(args.k_new), typed<const float>(args.v_new)},
         .rotary = make(cos, sin, cpp_call.rotary.positions, cpp_call.rotary.dim),
         .mask = Mask::window(9, 1),
         .scale = 0.5f,
         .softcap = 2.0f,
         .lse = typed<float>(args.lse),
         .sinks = args.sinks,
         .alibi_slopes = slopes,
         .tree = tree,
         .qv = typed<const float>(args.qv),
         .backend = TANDEM_BACKEND_REFERENCE});
    ASSERT_TRUE(status) << status.message();
    EXPECT_EQ(cpp_call.tensors.o.values(), c_call.tensors.o.values());
    EXPECT_EQ(cpp_call.tensors.lse.values(), c_call.tensors.lse.values());
    EXPECT_EQ(cpp_call.tensors.cache_failure(DecodeTensors(c)), "");
  }
}

TEST(CppDecode, PrefixesReachTheLibrary) {
  DecodeRequest request;
  const std::int64_t groups = request.args.q.shape[0] + 1;
  const Status status = attention_decode(
      typed<const float>(request.args.q), typed_cache(request.cache), typed<float>(request.args.o),
      {.prefixes = SharedPrefixes(groups, request.cache.lengths, request.cache.lengths)});
  EXPECT_THAT(status.message(), ::testing::HasSubstr("prefixes.groups is " + std::to_string(groups)));
}

TEST(CppDecode, SplitSizeKernelAndStepReachTheLibrary) {
  DecodeRequest request;
  const auto q = typed<const float>(request.args.q);
  const auto o = typed<float>(request.args.o);
  const Cache<float> cache = typed_cache(request.cache);
  const auto words = [&](const DecodeOptions<float>& options) {
    return attention_decode(q, cache, o, options).message();
  };
  EXPECT_THAT(words({.split_size = 65}), ::testing::HasSubstr("split_size is 65"));
  store(request.study.kernel, 7);
  EXPECT_THAT(words({.study = &request.study}), ::testing::HasSubstr("study.kernel is 7"));
}

TEST(CppDecode, AsksForTheWorkspaceAndThePlanThatItNeeds) {
  DecodeRequest request;
  const auto q = typed<const float>(request.args.q);
  const auto o = typed<float>(request.args.o);
  const Cache<float> cache = typed_cache(request.cache);
  DecodeOptions<float> options{.backend = TANDEM_BACKEND_CPU};
  std::size_t bytes = 0, plan_bytes = 17;
  ASSERT_TRUE(attention_decode_workspace(q, cache, o, options, bytes));
  EXPECT_EQ(attention_decode(q, cache, o, options).code(), TANDEM_WORKSPACE_TOO_SMALL);
  std::vector<WorkspaceBlock> workspace(bytes / sizeof(WorkspaceBlock) + 1);
  options.workspace = std::as_writable_bytes(std::span(workspace)).first(bytes);
  EXPECT_TRUE(attention_decode_plan_size(q, cache, o, options, plan_bytes));
  EXPECT_EQ(plan_bytes, 0u);
  EXPECT_TRUE(attention_decode_plan(q, cache, o, options, {}));
  EXPECT_TRUE(attention_decode(q, cache, o, options));
}

TEST(CppForward, PackedSequencesEqualCallsOfTheirOwn) {
  constexpr std::int64_t d = 8, lengths[] = {3, 5};
  std::vector<float> q(8 * d), k(8 * d), v(8 * d), together(8 * d), alone(8 * d);
  for (std::size_t i = 0; i < q.size(); ++i) {
    q[i] = static_cast<float>(i % 7) - 3.f, k[i] = static_cast<float>(i % 5) - 2.f;
    v[i] = static_cast<float>(i);
  }
  const auto run = [d](float* q_row, float* k_row, float* v_row, float* o_row, std::int64_t rows,
                       ForwardOptions options) {
    const Shape rows_shape{.batch = 1, .sequence = rows, .heads = 1, .head_dim = d};
    const auto view = [&](float* x) { return Tensor<float>::bshd(x, rows_shape); };
    std::size_t bytes = 0;
    options.backend = TANDEM_BACKEND_CPU;
    ASSERT_TRUE(
        attention_forward_workspace(view(q_row), view(k_row), view(v_row), view(o_row), options, bytes));
    std::vector<WorkspaceBlock> workspace(bytes / sizeof(WorkspaceBlock) + 1);
    options.workspace = std::as_writable_bytes(std::span(workspace));
    std::size_t plan_bytes = 17;
    ASSERT_TRUE(
        attention_forward_plan_size(view(q_row), view(k_row), view(v_row), view(o_row), options, plan_bytes));
    EXPECT_EQ(plan_bytes, 0U);
    ASSERT_TRUE(attention_forward_plan(view(q_row), view(k_row), view(v_row), view(o_row), options, {}));
    ASSERT_TRUE(attention_forward(view(q_row), view(k_row), view(v_row), view(o_row), options));
  };
  static constexpr std::int32_t cu_seqlens[] = {0, 3, 8};
  run(q.data(), k.data(), v.data(), together.data(), 8,
      {.mask = Mask::causal(),
       .varlen = Varlen{.batch = 2, .cu_seqlens_q = cu_seqlens, .cu_seqlens_k = cu_seqlens}});
  std::int64_t begin = 0;
  for (const std::int64_t rows : lengths) {
    const std::int64_t at = begin * d;
    run(q.data() + at, k.data() + at, v.data() + at, alone.data() + at, rows, {.mask = Mask::causal()});
    begin += rows;
  }
  EXPECT_EQ(together, alone);
}

TEST(CppForward, SplitSizeOfVariableLengthsReachesTheLibrary) {
  float row[16] = {}, out[16] = {};
  const Shape shape{.batch = 1, .sequence = 1, .heads = 1, .head_dim = 16};
  const auto x = Tensor<const float>::bshd(row, shape);
  const Status status = attention_forward(x, x, x, Tensor<float>::bshd(out, shape),
                                          {.varlen = Varlen{.batch = 1, .split_size = 65}});
  EXPECT_THAT(status.message(), ::testing::HasSubstr("varlen.split_size is 65"));
}

// What is appended in the call is attended to as if it had been there, rotated as a decoding step does it.
TEST(CppForward, AppendsAndRotatesAsADecodingStepDoes) {
  constexpr std::int64_t capacity = 9, s_new = 2, d = 16;
  std::vector<float> q(2 * s_new * d), k_new(q.size()), v_new(q.size()), tables(capacity * d / 2);
  std::vector<float> k(2 * capacity * d), v(k.size());
  float next = 0;
  for (std::vector<float>* values : {&q, &k_new, &v_new, &tables, &k, &v})
    for (float& value : *values) value = std::sin(next += 0.7f);
  std::vector<float> k_step = k, v_step = v, o(q.size()), o_step(q.size());
  static constexpr std::int32_t used[] = {3, 7}, tokens[] = {0, 2, 4}, entries[] = {1, 0};
  const Shape cache{.batch = 2, .sequence = capacity, .heads = 1, .head_dim = d},
      added{.batch = 2, .sequence = s_new, .heads = 1, .head_dim = d},
      packed{.batch = 1, .sequence = 2 * s_new, .heads = 1, .head_dim = d};
  const Rotary rotary = Rotary::halves(tables.data(), tables.data() + 5, capacity - 2, d);
  std::vector<WorkspaceBlock> workspace(1000);
  const std::span<std::byte> lent(workspace.data()->bytes, workspace.size() * sizeof(WorkspaceBlock));
  ForwardOptions options{
      .mask = Mask::causal(),
      .backend = TANDEM_BACKEND_CPU,
      .varlen = Varlen{
          .batch = 2, .cu_seqlens_q = tokens, .seqused_k = used, .rotary = rotary, .batch_index = entries}};
  const Caches<float> caches{Tensor<float>::bshd(k.data(), cache), Tensor<float>::bshd(v.data(), cache)};
  const AppendedTokens<float> fresh{Tensor<float>::bshd(k_new.data(), packed),
                                    Tensor<float>::bshd(v_new.data(), packed), tokens};
  std::size_t bytes = 17;
  ASSERT_TRUE(attention_forward_append_plan_size(Tensor<float>::bshd(q.data(), packed), caches, fresh,
                                                 Tensor<float>::bshd(o.data(), packed), options, bytes));
  EXPECT_EQ(bytes, 0U);
  ASSERT_TRUE(attention_forward_append_plan(Tensor<float>::bshd(q.data(), packed), caches, fresh,
                                            Tensor<float>::bshd(o.data(), packed), options, {}));
  ASSERT_TRUE(attention_forward_append_workspace(Tensor<float>::bshd(q.data(), packed), caches, fresh,
                                                 Tensor<float>::bshd(o.data(), packed), options, bytes));
  ASSERT_LE(bytes, lent.size());
  options.workspace = lent.first(bytes);
  const Status status = attention_forward_append(Tensor<float>::bshd(q.data(), packed), caches, fresh,
                                                 Tensor<float>::bshd(o.data(), packed), options);
  ASSERT_TRUE(status) << status.message();
  const Status step = attention_decode(Tensor<float>::bshd(q.data(), added),
                                       Cache<float>{.k = Tensor<float>::bshd(k_step.data(), cache),
                                                    .v = Tensor<float>::bshd(v_step.data(), cache),
                                                    .lengths = used,
                                                    .batch_index = entries},
                                       Tensor<float>::bshd(o_step.data(), added),
                                       {.append = NewTokens<float>{Tensor<float>::bshd(k_new.data(), added),
                                                                   Tensor<float>::bshd(v_new.data(), added)},
                                        .rotary = rotary,
                                        .mask = Mask::causal(),
                                        .backend = TANDEM_BACKEND_CPU,
                                        .workspace = lent});
  ASSERT_TRUE(step) << step.message();
  EXPECT_EQ(k, k_step);
  EXPECT_EQ(v, v_step);
  EXPECT_EQ(o, o_step);
}

TEST(CppForward, FailsWithAStatusThatKeepsItsWords) {
  Request request;
  const Status status =
      attention_forward(typed<const float>(request.args.q), typed<const float>(request.args.k),
                        typed<const float>(request.args.v), typed<float>(request.args.o), {.scale = -1});
  tandem_forward(nullptr, nullptr, 0, nullptr);  // another failure on this thread
  EXPECT_FALSE(status);
  EXPECT_EQ(status.code(), TANDEM_INVALID_ARGUMENT);
  EXPECT_STREQ(status.name(), "TANDEM_INVALID_ARGUMENT");
  EXPECT_THAT(status.message(), ::testing::HasSubstr("scale is -1"));
}

}  // namespace
}  // namespace tandem::test
