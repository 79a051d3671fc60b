// What tandem_forward promises where nothing is wrong.
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <sstream>
#include <sys/mman.h>

#include "tests/api/plain_row.h"
#include "tests/api/request.h"
#include "tests/support/compare.h"

namespace tandem::test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

TEST(Forward, FasterBackendAgreesWithTheReferenceForAnyLayoutAndMask) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const auto up_to = [&](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(1, most)(random);
  };
  for (int i = 0; i < 100; ++i) {
    ForwardCase c{.dtype = TANDEM_FP32, .batch = up_to(3), .q_len = up_to(40), .k_len = up_to(40)};
    c.kv_heads = up_to(3);
    c.q_heads = c.kv_heads * up_to(3);
    c.head_dim = 8 * up_to(32);
    if (up_to(3) == 1) c.value_dim = 8 * up_to(32);
    c.mask = random_mask(random, c.q_len, c.k_len);
    c.q = random_input_layout(random), c.k = random_input_layout(random), c.v = random_input_layout(random);
    c.o = random_layout(random), c.lse_layout = random_layout(random);
    c.seed = random();
    std::ostringstream description;
    description << c;
    SCOPED_TRACE(description.str());

    Request fast(c), reference(c);
    fast.args.backend = TANDEM_BACKEND_AUTO;
    reference.args.backend = TANDEM_BACKEND_REFERENCE;
    ASSERT_EQ(fast.run(), TANDEM_OK) << tandem_last_error();
    ASSERT_EQ(reference.run(), TANDEM_OK) << tandem_last_error();
    const auto o = fast.tensors.o.values(), expected = reference.tensors.o.values();
    for (std::size_t j = 0; j < o.size(); ++j) ASSERT_NEAR(o[j], expected[j], 1e-4);
    EXPECT_TRUE(fast.tensors.o.guards_intact() && fast.tensors.lse.guards_intact());
  }
}

TEST(Forward, ValuesMayHaveMoreOrFewerColumnsThanKeys) {
  for (const auto& [head_dim, value_dim] : {std::pair{192, 128}, {64, 128}, {8, 256}, {256, 8}}) {
    ForwardCase c{.dtype = TANDEM_FP32, .batch = 2, .q_len = 20, .k_len = 150, .q_heads = 4, .kv_heads = 2};
    c.head_dim = head_dim, c.value_dim = value_dim, c.mask = core::Mask::causal();
    for (const tandem_backend backend : {TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE}) {
      SCOPED_TRACE(testing::Message() << c);
      Request request(c, backend);
      ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
      for (std::int64_t i = 0; i < c.q_len; ++i) {
        const PlainRow plain = plain_row(request.tensors, 1, i, 3, 0,
                                         [&](std::int64_t key) { return key <= i + c.k_len - c.q_len; });
        ASSERT_NEAR(request.tensors.lse.at(1, i, 3, 0), plain.lse, 1e-4);
        for (std::int64_t e = 0; e < value_dim; ++e)
          ASSERT_NEAR(request.tensors.o.at(1, i, 3, e), plain.o[static_cast<std::size_t>(e)], 1e-4);
      }
      EXPECT_TRUE(request.tensors.o.guards_intact());
    }
  }
}

class EmptyProblem : public ::testing::TestWithParam<tandem_backend> {
 protected:
  Request empty(const ForwardCase& c) { return Request(c, GetParam()); }
};

TEST_P(EmptyProblem, WithoutQueriesBatchOrHeadsWritesNothingAndNeedsNoMemory) {
  for (int dimension = 0; dimension < 3; ++dimension) {
    Request request = empty(small_case());
    for (tandem_tensor* tensor : {&request.args.q, &request.args.o, &request.args.lse})
      tensor->shape[dimension] = 0;
    if (dimension == 0) request.args.k.shape[0] = request.args.v.shape[0] = 0;
    if (dimension == 2) request.args.k.shape[2] = request.args.v.shape[2] = 0;
    request.args.q.data = request.args.o.data = nullptr;
    std::size_t bytes = 17;
    EXPECT_EQ(tandem_forward_workspace(&request.args, &bytes), TANDEM_OK) << tandem_last_error();
    EXPECT_EQ(bytes, 0u);
    EXPECT_EQ(tandem_forward(&request.args, nullptr, 0, nullptr), TANDEM_OK) << tandem_last_error();
    EXPECT_TRUE(request.outputs_untouched());
  }
}

TEST_P(EmptyProblem, WithoutKeysGivesZerosAndMinusInfinity) {
  ForwardCase c = small_case();
  c.k_len = 0;
  Request request = empty(c);
  request.args.k.data = request.args.v.data = nullptr;
  ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
  for (double value : request.tensors.o.values()) EXPECT_EQ(value, 0);
  for (double value : request.tensors.lse.values()) EXPECT_EQ(value, -infinity);
  EXPECT_TRUE(request.tensors.o.guards_intact() && request.tensors.lse.guards_intact());
}

TEST_P(EmptyProblem, TensorsWithoutElementsHaveAnyStrides) {
  constexpr std::int64_t odd[] = {0, -3, 7, 0};
  Request no_queries = empty(small_case()), no_keys = empty(small_case());
  for (tandem_tensor* tensor : {&no_queries.args.q, &no_queries.args.o, &no_queries.args.lse}) {
    tensor->shape[1] = 0;
    std::copy_n(odd, 4, tensor->stride);
  }
  for (tandem_tensor* tensor : {&no_keys.args.k, &no_keys.args.v}) {
    tensor->shape[1] = 0;
    std::copy_n(odd, 4, tensor->stride);
  }
  EXPECT_EQ(no_queries.run(), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(no_keys.run(), TANDEM_OK) << tandem_last_error();
}

INSTANTIATE_TEST_SUITE_P(OnTheHost, EmptyProblem,
                         ::testing::Values(TANDEM_BACKEND_AUTO, TANDEM_BACKEND_CPU,
                                           TANDEM_BACKEND_REFERENCE));

TEST(Forward, LeavesLseAloneWhereItIsNotWanted) {
  Request request;
  request.args.lse = {};
  request.args.lse.shape[0] = -99;  // ignored with all the rest
  ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
  EXPECT_TRUE(request.tensors.lse.untouched());
  EXPECT_FALSE(request.tensors.o.untouched());
}

TEST(Forward, ScaleOfZeroIsOneOverTheRootOfTheHeadDim) {
  Request automatic, given;
  given.args.scale = 0.25f;
  ASSERT_EQ(automatic.run(), TANDEM_OK);
  ASSERT_EQ(given.run(), TANDEM_OK);
  EXPECT_EQ(automatic.tensors.o.values(), given.tensors.o.values());
}

TEST(Forward, IgnoresStridesOfDimensionsOfSizeOne) {
  ForwardCase c = small_case();
  c.batch = c.q_len = c.k_len = 1;
  Request plain(c), odd(c);
  for (tandem_tensor* tensor : {&odd.args.q, &odd.args.k, &odd.args.v, &odd.args.o, &odd.args.lse}) {
    tensor->stride[0] = std::numeric_limits<std::int64_t>::min();
    tensor->stride[1] = std::numeric_limits<std::int64_t>::max();
  }
  odd.args.lse.stride[3] = -77;
  ASSERT_EQ(plain.run(), TANDEM_OK) << tandem_last_error();
  ASSERT_EQ(odd.run(), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(plain.tensors.o.values(), odd.tensors.o.values());
  EXPECT_EQ(plain.tensors.lse.values(), odd.tensors.lse.values());
}

TEST(Forward, TakesPackedQkvAndWritesBetweenThem) {
  // One buffer: rows of q, k, v and o of each token, side by side.
  constexpr std::int64_t tokens = 7, heads = 2, head_dim = 8, row = heads * head_dim;
  std::vector<float> packed(tokens * 4 * row), separate(tokens * row);
  for (std::size_t i = 0; i < packed.size(); ++i) packed[i] = std::sin(static_cast<float>(i));
  const auto part = [&](int which) {
    return tandem_tensor{&packed[static_cast<std::size_t>(which * row)],
                         TANDEM_FP32,
                         {1, tokens, heads, head_dim},
                         {0, 4 * row, head_dim, 1}};
  };
  Request request;
  request.args.q = part(0), request.args.k = part(1), request.args.v = part(2), request.args.o = part(3);
  request.args.lse = {};
  const std::vector<float> before = packed;
  request.args.o = {separate.data(), TANDEM_FP32, {1, tokens, heads, head_dim}, {0, row, head_dim, 1}};
  request.args.backend = TANDEM_BACKEND_REFERENCE;
  ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(packed, before);
  request.args.o = part(3);
  ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t i = 0; i < row; ++i) {
      const auto token = static_cast<std::size_t>(t), at = static_cast<std::size_t>(i);
      EXPECT_EQ(packed[token * 4 * row + 3 * row + at], separate[token * row + at]);
    }
}

/// Zeroed pages that cost memory only where they are touched.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                   0)) {}
  ~SparseMemory() { munmap(data_, bytes_); }
  SparseMemory(const SparseMemory&) = delete;
  bool mapped() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

/// Calls visit(row of a, row of b) for each row of two bf16 tensors of one shape.
template <typename Visit>
void for_each_row(const tandem_tensor& a, const tandem_tensor& b, Visit visit) {
  for (std::int64_t batch = 0; batch < a.shape[0]; ++batch)
    for (std::int64_t s = 0; s < a.shape[1]; ++s)
      for (std::int64_t h = 0; h < a.shape[2]; ++h)
        visit(core::row_of<Bf16>(a, batch, s, h), core::row_of<Bf16>(b, batch, s, h));
}

TEST(Forward, TakesOffsetsBeyondFourBytes) {
  ForwardCase c = small_case();
  c.dtype = TANDEM_BF16;
  Request near(c), far(c);
  constexpr std::int64_t stride = (std::int64_t{1} << 32) + 64;  // elements from one batch entry to the next
  const SparseMemory memory(4 * c.batch * stride * sizeof(Bf16));
  if (!memory.mapped()) GTEST_SKIP() << "no address space for tensors of this extent";
  auto* cells = static_cast<Bf16*>(memory.data());
  const std::size_t row_bytes = static_cast<std::size_t>(c.head_dim) * sizeof(Bf16);
  for (tandem_tensor* tensor : {&far.args.q, &far.args.k, &far.args.v, &far.args.o}) {
    const tandem_tensor source = *tensor;
    tensor->data = cells;
    tensor->stride[0] = stride;
    for_each_row(source, *tensor, [&](const Bf16* from, Bf16* to) { std::memcpy(to, from, row_bytes); });
    cells += c.batch * stride;
  }
  ASSERT_EQ(near.run(), TANDEM_OK) << tandem_last_error();
  ASSERT_EQ(far.run(), TANDEM_OK) << tandem_last_error();
  for_each_row(near.args.o, far.args.o,
               [&](const Bf16* a, const Bf16* b) { EXPECT_EQ(std::memcmp(a, b, row_bytes), 0); });
}

TEST(Forward, KeepsTheLastErrorThroughCallsThatSucceed) {
  Request good, bad;
  bad.args.scale = -1;
  ASSERT_EQ(bad.run(), TANDEM_INVALID_ARGUMENT);
  const std::string words = tandem_last_error();
  ASSERT_EQ(good.run(), TANDEM_OK);
  EXPECT_EQ(tandem_last_error(), words);
}

}  // namespace
}  // namespace tandem::test
