// Block lists: which keys each query sees by them, and what is refused.
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <random>

#include "tests/api/mistake.h"
#include "tests/api/plain_row.h"
#include "tests/api/request.h"

namespace tandem::test {
namespace {

class BlockList : public ::testing::TestWithParam<tandem_backend> {};

INSTANTIATE_TEST_SUITE_P(Backends, BlockList,
                         ::testing::Values(TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE));

/// Blocks of any size, below and above what a backend takes at a time.
ForwardCase draw_case(std::uint64_t seed) {
  Random random(seed);
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  ForwardCase c{
      .dtype = TANDEM_FP32, .batch = 2, .softcap = below(3) == 0 ? 2.f : 0.f, .lse = true, .seed = seed};
  c.q_len = 1 + below(200), c.k_len = 1 + below(500);
  c.kv_heads = 1 + below(2), c.q_heads = c.kv_heads * (1 + below(3)), c.head_dim = 8 * (1 + below(6));
  c.mask = random_mask(random, c.q_len, c.k_len);
  c.blocks = draw_block_list(random, below(2) == 0 ? 1 + below(20) : 1 + below(150));
  return c;
}

TEST_P(BlockList, EachQuerySeesTheListedBlocksAlone) {
  const auto first = std::random_device()();
  for (std::uint64_t seed = first; seed < std::uint64_t{first} + 15; ++seed) {
    const ForwardCase c = draw_case(seed);
    SCOPED_TRACE(::testing::Message() << c);
    Request request(c, GetParam());
    ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
    const tandem_block_list& list = request.block_list;
    for (std::int64_t b = 0; b < c.batch; ++b)
      for (std::int64_t i = 0; i < c.q_len; ++i)
        for (std::int64_t h = 0; h < c.q_heads; ++h) {
          const std::int64_t row = b * list.batch_stride + h * list.head_stride + i / list.q_block;
          const core::KeyRange keys = c.mask.visible_keys(i, c.q_len, c.k_len);
          const PlainRow plain = plain_row(request.tensors, b, i, h, 0, [&](std::int64_t key) {
            bool listed = false;
            for (std::int64_t slot = 0; slot < list.counts[row]; ++slot)
              listed = listed || list.blocks[row * list.slots + slot] == key / list.k_block;
            return listed && key >= keys.begin && key < keys.end;
          });
          if (std::isinf(plain.lse)) {
            ASSERT_EQ(request.tensors.lse.at(b, i, h, 0), plain.lse) << b << " " << i << " " << h;
            ASSERT_EQ(request.tensors.o.at(b, i, h, 0), 0);
            continue;
          }
          ASSERT_NEAR(request.tensors.lse.at(b, i, h, 0), plain.lse, 2e-5 * (1 + std::abs(plain.lse)))
              << b << " " << i << " " << h;
          for (std::int64_t e = 0; e < c.head_dim; ++e)
            ASSERT_NEAR(request.tensors.o.at(b, i, h, e), plain.o[static_cast<std::size_t>(e)], 1e-4);
        }
  }
}

TEST_P(BlockList, OfAllBlocksIsNone) {
  ForwardCase c{.dtype = TANDEM_FP32, .q_len = 70, .k_len = 300, .q_heads = 4, .kv_heads = 2};
  c.mask = core::Mask::causal();
  Request plain(c, GetParam()), listed(c, GetParam());
  const std::int32_t count = 5, blocks[] = {0, 1, 2, 3, 4};
  listed.block_list = {sizeof(tandem_block_list), 1000, 64, &count, blocks, 5, 0, 0};
  listed.args.block_list = &listed.block_list;
  for (Request* request : {&plain, &listed}) ASSERT_EQ(request->run(), TANDEM_OK) << tandem_last_error();
  EXPECT_THAT(listed.tensors.o.values(),
              ::testing::Pointwise(::testing::DoubleNear(1e-6), plain.tensors.o.values()));
}

TEST_P(BlockList, OfCppIsThatOfC) {
  ForwardCase c{.dtype = TANDEM_FP32, .batch = 2, .q_len = 30, .k_len = 90, .q_heads = 2};
  c.blocks = {.q_block = 8, .k_block = 16, .each_entry = true, .each_head = true};
  Request request(c, GetParam()), other(c, GetParam());
  ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
  const tandem_block_list& list = other.block_list;
  const auto typed = [](const tandem_tensor& t) {
    return Tensor<float>{static_cast<float*>(t.data),
                         {t.shape[0], t.shape[1], t.shape[2], t.shape[3]},
                         {t.stride[0], t.stride[1], t.stride[2]}};
  };
  const Status status = attention_forward<float>(
      typed(other.args.q), typed(other.args.k), typed(other.args.v), typed(other.args.o),
      {.backend = GetParam(),
       .block_list = tandem::BlockList{.q_block = list.q_block,
                                       .k_block = list.k_block,
                                       .counts = list.counts,
                                       .blocks = list.blocks,
                                       .slots = list.slots,
                                       .batch_stride = list.batch_stride,
                                       .head_stride = list.head_stride},
       .workspace = std::as_writable_bytes(std::span(other.workspace))});
  ASSERT_TRUE(status) << status.message();
  EXPECT_EQ(other.tensors.o.values(), request.tensors.o.values());
}

TEST_P(BlockList, GoesWithSinksSlopesChunksAndATree) {
  ForwardCase c{.dtype = TANDEM_FP32, .batch = 2, .q_len = 20, .k_len = 90, .q_heads = 4, .kv_heads = 2};
  c.mask.chunk = 40;
  c.blocks = {.q_block = 7, .k_block = 16, .each_entry = true, .each_head = true, .seed = 5};
  Request request(c, GetParam());
  const float sinks[] = {0, 1, -1, 2}, slopes[] = {0.1f, 0.2f, 0, 0.3f};
  std::vector<std::uint64_t> words;
  for (int i = 0; i < 40; ++i) words.push_back(0x5555555555555555u << (i % 2) | std::uint64_t{1} << i % 20);
  request.args.sinks = sinks, request.args.alibi_slopes = slopes, request.args.tree = words.data();
  ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
  const core::BlockList list = request.tensors.blocks.view();
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t i = 0; i < 20; ++i)
      for (std::int64_t h = 0; h < 4; ++h) {
        const PlainRow plain = plain_row(request.tensors, b, i, h, slopes[h], [&](std::int64_t key) {
          const std::int64_t draft = key - 70;
          return key / 40 == (i + 70) / 40 && list.shows(b, h, i, key) &&
                 (draft < 0 || (words[static_cast<std::size_t>(b * 20 + i)] >> draft) % 2 == 1);
        });
        const double sink = std::exp(static_cast<double>(sinks[h])), keys = std::exp(plain.lse);
        ASSERT_NEAR(request.tensors.lse.at(b, i, h, 0), std::log(sink + keys), 1e-4) << b << i << h;
        for (std::int64_t e = 0; e < c.head_dim; ++e)
          ASSERT_NEAR(request.tensors.o.at(b, i, h, e),
                      plain.o[static_cast<std::size_t>(e)] * keys / (keys + sink), 1e-4);
      }
}

// Keys and values of other blocks may hold anything, and so may numbers behind a row's count.
TEST_P(BlockList, NothingOfAnUnlistedBlockReachesTheOutput) {
  ForwardCase c{.dtype = TANDEM_FP32, .q_len = 3, .k_len = 300};
  Request request(c, GetParam());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t key = 100; key < 200; ++key)
    for (std::int64_t e = 0; e < c.head_dim; ++e)
      request.tensors.k.set(0, key, 0, e, nan), request.tensors.v.set(0, key, 0, e, nan);
  const std::int32_t counts[] = {2, 3, -7}, blocks[] = {0, 2, INT32_MIN, 0, 1, 2, 0, 1, 2};
  request.block_list = {sizeof(tandem_block_list), 1, 100, counts, blocks, 3, 0, 0};
  request.args.block_list = &request.block_list;
  ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
  EXPECT_FALSE(std::isnan(request.tensors.o.at(0, 0, 0, 0)));
  EXPECT_TRUE(std::isnan(request.tensors.o.at(0, 1, 0, 0)));
  EXPECT_EQ(request.tensors.o.at(0, 2, 0, 0), 0) << "a count below 0 is none";
}

TEST_P(BlockList, NumbersOfNoBlockAreNone) {
  ForwardCase c{.dtype = TANDEM_FP32, .q_len = 2, .k_len = 50};
  Request request(c, GetParam());
  const std::int32_t counts[] = {2, INT32_MAX}, blocks[] = {-1, INT32_MAX, 0, 4};
  request.block_list = {sizeof(tandem_block_list), 1, INT32_MAX, counts, blocks, 2, 0, 0};
  request.args.block_list = &request.block_list;
  ASSERT_EQ(request.run(), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(request.tensors.o.at(0, 0, 0, 0), 0);
  EXPECT_NE(request.tensors.o.at(0, 1, 0, 0), 0) << "its first block has all keys";
}

/// A call with a list, whose mistake is made in it.
Mistake<Request> in_list(const char* name, std::function<void(tandem_block_list&)> make,
                         std::vector<std::string> words, tandem_status status = TANDEM_INVALID_ARGUMENT) {
  return {name, [make](Request& r) { make(r.block_list); }, std::move(words), status};
}

class BlockListMistakes : public ::testing::TestWithParam<Mistake<Request>> {};

INSTANTIATE_TEST_SUITE_P(
    All, BlockListMistakes,
    ::testing::Values(
        in_list("StructSize", [](tandem_block_list& l) { l.struct_size = 8; },
                {"block_list->struct_size is 8"}),
        in_list(
            "LaterVersion", [](tandem_block_list& l) { l.struct_size += 8; },
            {"block_list->struct_size is 72"}, TANDEM_UNSUPPORTED),
        in_list("QueryBlock", [](tandem_block_list& l) { l.q_block = 0; },
                {"block_list.q_block is 0", "from 1 to"}),
        in_list("KeyBlock", [](tandem_block_list& l) { l.k_block = -3; },
                {"block_list.k_block is -3", "from 1 to"}),
        in_list("Slots", [](tandem_block_list& l) { l.slots = -1; }, {"block_list.slots is -1", "from 0 to"}),
        in_list("ManySlots", [](tandem_block_list& l) { l.slots = INT64_MAX; },
                {"block_list.slots is 92", "2147483647"}),
        in_list("BatchStride", [](tandem_block_list& l) { l.batch_stride = -1; },
                {"block_list.batch_stride is -1"}),
        in_list("HeadStride", [](tandem_block_list& l) { l.head_stride = INT64_MIN; },
                {"block_list.head_stride is -9"}),
        in_list("NoCounts", [](tandem_block_list& l) { l.counts = nullptr; }, {"block_list.counts is NULL"}),
        in_list("NoBlocks", [](tandem_block_list& l) { l.blocks = nullptr; }, {"block_list.blocks is NULL"}),
        in_list("Misaligned",
                [](tandem_block_list& l) {
                  l.counts =
                      reinterpret_cast<const std::int32_t*>(reinterpret_cast<const std::byte*>(l.counts) + 2);
                },
                {"block_list.counts is 0x", "not aligned"}),
        Mistake<Request>{
            "Memory",
            [](Request& r) { r.block_list.blocks = static_cast<const std::int32_t*>(r.args.o.data); },
            {"o.data is 0x", "overlap those of block_list.blocks"}}),
    by_name);

TEST_P(BlockListMistakes, AreNamedAndLeaveOutputsUntouched) {
  ForwardCase c = small_case();
  c.blocks = {.q_block = 2, .k_block = 2};
  expect_refused(GetParam(), Request(c));
}

TEST(BlockListMistakes, EightBitInputsHaveNone) {
  ForwardCase c = small_case();
  c.dtype = TANDEM_E4M3, c.blocks = {.q_block = 2, .k_block = 2};
  expect_refused(
      Mistake<Request>{"EightBit", [](Request&) {}, {"block_list is given", "8-bit"}, TANDEM_UNSUPPORTED},
      Request(c));
}

}  // namespace
}  // namespace tandem::test
