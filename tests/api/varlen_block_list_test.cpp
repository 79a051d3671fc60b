// Block lists of variable lengths through the C interface, on the CPU: each sequence with its own rows, as if
// it were called alone.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <tandem/attention.hpp>

#include "tests/api/mistake.h"
#include "tests/support/varlen_batch.h"
#include "tests/support/varlen_call.h"
#include "tests/support/varlen_places.h"

namespace tandem::test {
namespace {

constexpr std::size_t most_workspace = std::size_t{1} << 24;

struct Call : VarlenCall {
  Call(const VarlenTensors& tensors, tandem_backend backend)
      : VarlenCall(tensors.problem(), to_c(tensors.setup.mask), backend) {}

  tandem_status run() const {
    static std::vector<WorkspaceBlock> workspace(most_workspace / sizeof(WorkspaceBlock));
    return tandem_forward(&args, workspace.data(), most_workspace, nullptr);
  }
};

class VarlenBlockList : public testing::TestWithParam<tandem_backend> {};

INSTANTIATE_TEST_SUITE_P(Backends, VarlenBlockList,
                         testing::Values(TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE));

VarlenCase draw_case(std::uint64_t seed) {
  Random random(seed);
  VarlenCase c = draw_varlen_case(random, {30, 60});
  c.dtype = TANDEM_FP32, c.head_dim = 16, c.lse = true, c.rotary_dim = 0;
  c.new_lens.clear();
  c.blocks = draw_block_list(random, 1 + static_cast<std::int64_t>(random() % 30));
  return c;
}

/// One sequence in a call of fixed lengths, with its own rows of the list; o and lse are written to copies.
struct Alone {
  std::vector<float> q, k, v, o, lse;
  tandem_block_list list;

  Alone(const VarlenTensors& t, std::int64_t i) : list(to_c(t.blocks.view())) {
    const VarlenCase& c = t.setup;
    const auto sequence = static_cast<std::size_t>(i);
    const auto copy = [](std::vector<float>& to, const HostTensor& from, Place at) {
      for (std::int64_t h = 0; h < from.view().shape[2]; ++h)
        for (std::int64_t e = 0; e < from.view().shape[3]; ++e)
          to.push_back(static_cast<float>(from.at(at.entry, at.row, h, e)));
    };
    for (std::int64_t row = 0; row < c.q_lens[sequence]; ++row) copy(q, t.q, q_place(t, i, row));
    for (std::int64_t row = 0; row < c.k_lens[sequence]; ++row)
      copy(k, t.k, k_place(t, i, row)), copy(v, t.v, k_place(t, i, row));
    o.resize(static_cast<std::size_t>(c.q_lens[sequence] * c.q_heads * c.value_columns()));
    lse.resize(static_cast<std::size_t>(c.q_lens[sequence] * c.q_heads));
    list.counts += i * list.batch_stride, list.blocks += i * list.batch_stride * list.slots;
    list.batch_stride = 0;
  }

  tandem_status run(const Call& whole, const VarlenTensors& t, std::int64_t i) {
    const VarlenCase& c = t.setup;
    const std::int64_t q_len = c.q_lens[static_cast<std::size_t>(i)],
                       k_len = c.k_lens[static_cast<std::size_t>(i)];
    Call call(t, whole.args.backend);
    call.args.varlen = nullptr, call.args.block_list = &list;
    call.args.q = core::contiguous(q.data(), c.dtype, {1, q_len, c.q_heads, c.head_dim});
    call.args.k = core::contiguous(k.data(), c.dtype, {1, k_len, c.kv_heads, c.head_dim});
    call.args.v = core::contiguous(v.data(), c.dtype, {1, k_len, c.kv_heads, c.value_columns()});
    call.args.o = core::contiguous(o.data(), c.dtype, {1, q_len, c.q_heads, c.value_columns()});
    call.args.lse = core::contiguous(lse.data(), TANDEM_FP32, {1, q_len, c.q_heads, 1});
    if (call.args.alibi_slopes != nullptr)
      call.args.alibi_slopes += i * call.args.alibi_stride, call.args.alibi_stride = 0;
    if (call.args.tree != nullptr)
      call.args.tree += q_place(t, i, 0).entry * t.q.view().shape[1] + q_place(t, i, 0).row;
    return call.run();
  }
};

TEST_P(VarlenBlockList, GivesASequenceTheBitsOfACallOfItsOwn) {
  const auto first = std::random_device()();
  for (std::uint64_t seed = first; seed < std::uint64_t{first} + 20 && !HasFailure(); ++seed) {
    const VarlenCase c = draw_case(seed);
    SCOPED_TRACE(testing::Message() << c << " draw " << seed);
    const VarlenTensors tensors(c);
    const Call whole(tensors, GetParam());
    ASSERT_EQ(whole.run(), TANDEM_OK) << tandem_last_error();
    EXPECT_TRUE(others_untouched(tensors));
    for (std::size_t i = 0; i < c.q_lens.size(); ++i) {
      if (tensors.setup.q_lens[i] == 0) continue;
      const auto sequence = static_cast<std::int64_t>(i);
      Alone alone(tensors, sequence);
      ASSERT_EQ(alone.run(whole, tensors, sequence), TANDEM_OK) << tandem_last_error();
      auto o = alone.o.begin(), lse = alone.lse.begin();
      for (std::int64_t row = 0; row < tensors.setup.q_lens[i]; ++row) {
        const Place at = q_place(tensors, sequence, row);
        for (std::int64_t h = 0; h < c.q_heads; ++h) {
          for (std::int64_t e = 0; e < c.value_columns(); ++e)
            ASSERT_EQ(tensors.o.at(at.entry, at.row, h, e), *o++) << i << " " << row << " " << h;
          ASSERT_EQ(tensors.lse.at(at.entry, at.row, h, 0), *lse++) << i << " " << row << " " << h;
        }
      }
    }
  }
}

TEST_P(VarlenBlockList, NothingUnlistedReachesTheOutput) {
  for (std::uint64_t seed = 1; seed <= 20 && !HasFailure(); ++seed) {
    const VarlenCase c = draw_case(seed);
    SCOPED_TRACE(testing::Message() << c << " draw " << seed);
    VarlenTensors tensors(c), spoilt(c);
    spoil_unlisted(spoilt);
    ASSERT_EQ(Call(tensors, GetParam()).run(), TANDEM_OK) << tandem_last_error();
    ASSERT_EQ(Call(spoilt, GetParam()).run(), TANDEM_OK) << tandem_last_error();
    for (std::size_t i = 0; i < c.q_lens.size(); ++i)
      EXPECT_TRUE(bits_of(tensors, i) == bits_of(spoilt, i)) << "sequence " << i;
  }
}

/// Two sequences of 3 and 5 queries on 7 and 4 keys; blocks of 2 queries and 2 keys.
VarlenCase two_sequences() {
  VarlenCase c;
  c.dtype = TANDEM_FP32, c.head_dim = 16;
  c.q_lens = {3, 5}, c.k_lens = {7, 4};
  c.blocks = {.q_block = 2, .k_block = 2, .each_entry = true};
  return c;
}

/// The log of how many keys of score 0 query `row` of q saw.
double keys_seen(const VarlenTensors& t, std::int64_t row) { return std::exp(t.lse.at(0, row, 0, 0)); }

/// q of zeros, so that all scores are 0.
void make_scores_0(VarlenTensors& t) {
  for (std::int64_t row = 0; row < t.q.view().shape[1]; ++row)
    for (std::int64_t e = 0; e < t.setup.head_dim; ++e) t.q.set(0, row, 0, e, 0.f);
}

// q has 11 rows, 3 of no sequence. Without a bound a sequence may have them all: 6 rows of the list, of which
// those behind its own queries may hold anything.
TEST_P(VarlenBlockList, RowsCountFromASequencesFirstQuery) {
  VarlenTensors tensors(two_sequences());
  make_scores_0(tensors);
  constexpr std::int32_t wild = std::numeric_limits<std::int32_t>::max();
  const std::int32_t counts[] = {1, 2, wild, wild, wild, wild, 2, 0, 1, wild, wild, wild};
  const std::int32_t blocks[] = {3, 9, 0, 1, 9, 9, 9, 9, 9, 9, 9, 9,   // of the first sequence
                                 0, 1, 9, 9, 1, 9, 9, 9, 9, 9, 9, 9};  // and of the second
  Call call(tensors, GetParam());
  ASSERT_EQ(tensors.q.view().shape[1], 11);
  call.varlen.max_seqlen_q = 0;
  call.block_list = {sizeof(tandem_block_list), 2, 2, counts, blocks, 2, 6, 0};
  ASSERT_EQ(call.run(), TANDEM_OK) << tandem_last_error();
  const double seen[] = {1, 1, 4, 4, 4, 0, 0, 2};  // block 3 of 7 keys has one
  for (std::int64_t row = 0; row < 8; ++row) EXPECT_NEAR(keys_seen(tensors, row), seen[row], 1e-5) << row;
}

TEST_P(VarlenBlockList, OfABoundHasAsManyRowsAsItNeeds) {
  const VarlenTensors tensors(two_sequences());
  const std::int32_t counts[4] = {}, blocks[1] = {};
  Call call(tensors, GetParam());
  // Two rows a sequence are four in all: behind them may stand what the call writes.
  call.varlen.max_seqlen_q = 4;
  call.block_list = {sizeof(tandem_block_list), 2, 2, counts, blocks, 0, 2, 0};
  ASSERT_EQ(call.run(), TANDEM_OK) << tandem_last_error();
  // As many as q has rows would overlap o.
  std::vector<float> memory(tensors.o.storage().size() / sizeof(float) + 64);
  auto* numbers = reinterpret_cast<std::int32_t*>(memory.data());
  call.args.o = core::contiguous(memory.data() + 4, TANDEM_FP32, {1, 11, 1, 16});
  call.block_list.counts = numbers;
  EXPECT_EQ(call.run(), TANDEM_OK) << tandem_last_error();
  call.varlen.max_seqlen_q = 0;
  expect_refused<Call>({"Rows", [](Call&) {}, {"o.data is 0x", "overlap those of block_list.counts"}}, call,
                       [&] { return call.run(); });
}

TEST_P(VarlenBlockList, WildNumbersAndLengthsStayInTheTensors) {
  VarlenTensors tensors(two_sequences());
  tensors.cu_seqlens_q = {-5, 3, 1000}, tensors.cu_seqlens_k = {0, 7, 6};
  constexpr std::int32_t low = std::numeric_limits<std::int32_t>::min(), high = -(low + 1);
  const std::int32_t counts[] = {high, low, 2, 1, high, 3};
  const std::int32_t blocks[] = {low, -1, high, 0, 9, 7, high, high, 3, 2, 1, 0, 5, 5, 5, 0, 1, 2};
  Call call(tensors, GetParam());
  call.block_list = {sizeof(tandem_block_list), 2, 2, counts, blocks, 3, 3, 0};
  ASSERT_EQ(call.run(), TANDEM_OK) << tandem_last_error();
  EXPECT_TRUE(tensors.o.guards_intact() && tensors.lse.guards_intact());
}

TEST_P(VarlenBlockList, OfCppIsThatOfC) {
  VarlenCase c = two_sequences();
  c.lse = false;
  const VarlenTensors tensors(c), other(c);
  ASSERT_EQ(Call(tensors, GetParam()).run(), TANDEM_OK) << tandem_last_error();
  const auto typed = [](const tandem_tensor& t) {
    return Tensor<float>{static_cast<float*>(t.data),
                         {t.shape[0], t.shape[1], t.shape[2], t.shape[3]},
                         {t.stride[0], t.stride[1], t.stride[2]}};
  };
  const core::ForwardProblem p = other.problem();
  std::vector<WorkspaceBlock> workspace(most_workspace / sizeof(WorkspaceBlock));
  const Status status =
      attention_forward<float>(typed(p.q), typed(p.k), typed(p.v), typed(p.o),
                               {.backend = GetParam(),
                                .varlen = Varlen{.batch = 2,
                                                 .cu_seqlens_q = p.varlen.cu_seqlens_q,
                                                 .cu_seqlens_k = p.varlen.cu_seqlens_k,
                                                 .max_seqlen_q = 5},
                                .block_list = tandem::BlockList{.q_block = 2,
                                                                .k_block = 2,
                                                                .counts = p.blocks.counts,
                                                                .blocks = p.blocks.blocks,
                                                                .slots = p.blocks.slots,
                                                                .batch_stride = p.blocks.batch_stride},
                                .workspace = std::as_writable_bytes(std::span(workspace))});
  ASSERT_TRUE(status) << status.message();
  for (const std::size_t i : {0, 1}) EXPECT_TRUE(bits_of(other, i) == bits_of(tensors, i)) << i;
}

TEST(VarlenBlockListMistakes, AreNamed) {
  const VarlenTensors tensors(two_sequences());
  const Mistake<Call> mistakes[] = {
      {"QueryBlock", [](Call& c) { c.block_list.q_block = 0; }, {"block_list.q_block is 0", "from 1 to"}},
      {"BatchStride", [](Call& c) { c.block_list.batch_stride = -1; }, {"block_list.batch_stride is -1"}},
      {"NoCounts", [](Call& c) { c.block_list.counts = nullptr; }, {"block_list.counts is NULL"}},
      {"Lengths", [](Call& c) { c.varlen.max_seqlen_q = -1; }, {"varlen.max_seqlen_q is -1"}}};
  for (const Mistake<Call>& mistake : mistakes) {
    SCOPED_TRACE(mistake.name);
    Call call(tensors, TANDEM_BACKEND_CPU);
    expect_refused<Call>(mistake, call, [&] { return call.run(); });
    EXPECT_TRUE(tensors.o.untouched());
  }
}

}  // namespace
}  // namespace tandem::test
