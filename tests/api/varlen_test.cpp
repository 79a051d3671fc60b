// Variable lengths through the C interface, on the CPU: each sequence as if it were called alone.
#include <algorithm>
#include <cstdint>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <tandem/tandem.h>

#include "core/mask.h"
#include "tests/api/mistake.h"
#include "tests/support/compare.h"
#include "tests/support/forward_case.h"
#include "tests/support/varlen_batch.h"
#include "tests/support/varlen_call.h"
#include "tests/support/varlen_case.h"

namespace tandem {
namespace {

using test::KeyLayout;
using test::VarlenCase;
using test::VarlenTensors;
using ::testing::HasSubstr;

/// A case through the C interface.
struct Call : test::VarlenCall {
  Call(const VarlenTensors& tensors, tandem_backend backend)
      : VarlenCall(tensors.problem(), test::to_c(tensors.setup.mask), backend) {}

  tandem_status run() const {
    std::size_t bytes = 0;
    if (const tandem_status status = tandem_forward_workspace(&args, &bytes); status != TANDEM_OK)
      return status;
    struct alignas(256) Block {
      std::byte bytes[256];
    };
    std::vector<Block> workspace(bytes / sizeof(Block) + 1);
    return tandem_forward(&args, workspace.data(), bytes, nullptr);
  }
};

VarlenCase draw_case(std::uint64_t seed) {
  test::Random random(seed);
  VarlenCase c = test::draw_varlen_case(random, {40, 50});
  static constexpr tandem_dtype dtypes[] = {TANDEM_BF16, TANDEM_FP16, TANDEM_FP32};
  c.dtype = dtypes[random() % 3];
  c.head_dim = 8 * static_cast<std::int64_t>(1 + random() % 9);
  c.rotary_dim = std::min(c.rotary_dim, c.head_dim / 16 * 16);
  c.page_size = 1 + static_cast<std::int64_t>(random() % 20);
  if (random() % 3 == 0) c.softcap = 5.f;
  c.split_size = 64 * static_cast<std::int64_t>(random() % 3);
  if (random() % 3 == 0)
    c.blocks = test::draw_block_list(random, 1 + static_cast<std::int64_t>(random() % 30));
  return c;
}

class VarlenBackend : public testing::TestWithParam<tandem_backend> {};

INSTANTIATE_TEST_SUITE_P(Backends, VarlenBackend,
                         testing::Values(TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE), [](const auto& info) {
                           return info.param == TANDEM_BACKEND_CPU ? "cpu" : "reference";
                         });

TEST_P(VarlenBackend, EachSequenceEqualsItsOracle) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const VarlenCase c = draw_case(seed);
    SCOPED_TRACE(testing::Message() << c << " draw " << seed);
    const VarlenTensors tensors(c);
    ASSERT_EQ(Call(tensors, GetParam()).run(), TANDEM_OK) << tandem_last_error();
    const test::VarlenValues values = test::varlen_values(tensors);
    const test::Comparison o = test::compare(values.result.o, values.standard.o, values.reference.o);
    EXPECT_TRUE(o) << "o: " << o;
    EXPECT_TRUE(test::others_untouched(tensors));
    EXPECT_EQ(tensors.cache_failure(), "");
    if (c.lse) {
      const test::Comparison lse =
          test::compare(values.result.lse, values.standard.lse, values.reference.lse);
      EXPECT_TRUE(lse) << "lse: " << lse;
    }
    if (HasFailure()) return;
  }
}

// With a split size or without, since sequences run one after another.
TEST_P(VarlenBackend, TheBitsOfASequenceAreTheSameAloneInAnyBatchAndWithAnyBounds) {
  for (std::uint64_t seed = 1; seed <= 40 && !HasFailure(); ++seed) {
    test::Random random(seed);
    const VarlenCase c = draw_case(seed);
    SCOPED_TRACE(testing::Message() << c << " draw " << seed);
    const VarlenTensors all(c);
    ASSERT_EQ(Call(all, GetParam()).run(), TANDEM_OK) << tandem_last_error();
    std::vector<std::size_t> which(c.q_lens.size());
    std::iota(which.begin(), which.end(), std::size_t{0});
    std::shuffle(which.begin(), which.end(), random);
    which.resize(1 + random() % which.size());
    const VarlenTensors some = test::sequences_of(all, which);
    Call call(some, GetParam());
    if (random() % 2 == 0) call.varlen.max_seqlen_q = *std::ranges::max_element(some.setup.q_lens);
    if (random() % 2 == 0) call.varlen.max_seqlen_k = *std::ranges::max_element(some.setup.k_lens) + 7;
    ASSERT_EQ(call.run(), TANDEM_OK) << tandem_last_error();
    for (std::size_t i = 0; i < which.size(); ++i)
      EXPECT_TRUE(test::bits_of(some, i) == test::bits_of(all, which[i])) << "sequence " << which[i];
  }
}

/// Two sequences in entries that append.
VarlenCase appending() {
  VarlenCase c;
  c.dtype = TANDEM_FP32;
  c.q_lens = {3, 5}, c.k_lens = {7, 6}, c.new_lens = {3, 5};
  c.keys = KeyLayout::entries;
  return c;
}

/// A mistake in a valid call, and what the error has to say.
struct Spoiled {
  const char* message;
  void (*make)(Call& call);
};

void expect_each_is_refused(std::span<const Spoiled> mistakes, const VarlenCase& c) {
  for (const Spoiled& mistake : mistakes) {
    SCOPED_TRACE(mistake.message);
    const VarlenTensors tensors(c);
    Call call(tensors, TANDEM_BACKEND_CPU);
    test::expect_refused<Call>({mistake.message, mistake.make, {mistake.message}}, call,
                               [&] { return call.run(); });
    EXPECT_TRUE(tensors.o.untouched());
  }
}

constexpr std::int64_t beyond_lengths = std::int64_t{1} << 31;

TEST(Varlen, MistakesOfAppendingAreNamed) {
  static std::int32_t number = 0;
  const Spoiled mistakes[] = {
      {"varlen.seqused_k is NULL", [](Call& call) { call.varlen.seqused_k = nullptr; }},
      {"varlen.k_new.dtype", [](Call& call) { call.varlen.k_new.dtype = TANDEM_BF16; }},
      {"varlen.k_new.shape[2]", [](Call& call) { call.varlen.k_new.shape[2] = 2; }},
      {"varlen.v_new.shape[1]", [](Call& call) { call.varlen.v_new.shape[1] -= 1; }},
      {"varlen.k_new.shape[0] (batch) is 1; it has to be 2",
       [](Call& call) { call.varlen.cu_seqlens_k_new = nullptr; }},
      {"varlen.k_new.shape[1] (sequence length) is 2147483648; it has to be at most 2147483647, since "
       "varlen.cu_seqlens_k_new is NULL",
       [](Call& call) {
         for (tandem_tensor* t : {&call.varlen.k_new, &call.varlen.v_new})
           t->shape[0] = 2, t->shape[1] = beyond_lengths;
         call.varlen.cu_seqlens_k_new = nullptr;
       }},
      {"overlap", [](Call& call) { call.varlen.k_new.data = call.args.k.data; }},
      {"q.shape[2] (heads) is 0, less than k.shape[2] (heads)",
       [](Call& call) { call.args.q.shape[2] = call.args.o.shape[2] = call.args.lse.shape[2] = 0; }},
      {"varlen.leftpad_k",
       [](Call& call) {
         call.varlen.leftpad_k =
             reinterpret_cast<const std::int32_t*>(reinterpret_cast<std::uintptr_t>(&number) + 1);
       }},
  };
  expect_each_is_refused(mistakes, appending());
}

// Without any query the keys are appended all the same.
TEST(Varlen, KeysOfNoQueriesAreAppended) {
  VarlenCase c = appending();
  const VarlenTensors tensors(c);
  Call call(tensors, TANDEM_BACKEND_CPU);
  call.args.q.shape[1] = call.args.o.shape[1] = call.args.lse.shape[1] = 0;
  ASSERT_EQ(call.run(), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(tensors.cache_failure(), "");
}

// Entries have 10 rows: a sequence that claims 9 of them has room for 3 new ones behind 7 only, and one whose
// entry does not exist has keys and values of 0.
TEST(Varlen, WildLengthsAndEntriesStayInTheCaches) {
  VarlenTensors tensors(appending());
  ASSERT_EQ(tensors.k.view().shape[1], 10);
  tensors.seqused_k = {9, -4};
  for (std::int64_t row = 0; row < 10; ++row)
    for (std::int64_t e = 0; e < 64; ++e) tensors.k.set(0, row, 0, e, 1.f), tensors.v.set(0, row, 0, e, 1.f);
  tensors.batch_index = {0, 77};
  Call call(tensors, TANDEM_BACKEND_CPU);
  call.varlen.batch_index = tensors.batch_index.data();
  call.varlen.max_seqlen_k = 0;
  ASSERT_EQ(call.run(), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(tensors.k.at(0, 6, 0, 0), 1);
  EXPECT_EQ(tensors.k.at(0, 7, 0, 0), tensors.k_new.at(0, 0, 0, 0));
  EXPECT_EQ(tensors.k.at(0, 9, 0, 63), tensors.k_new.at(0, 2, 0, 63));
  EXPECT_TRUE(tensors.k.guards_intact());
  for (std::int64_t row = 3; row < 8; ++row) {
    EXPECT_EQ(tensors.o.at(0, row, 0, 0), 0);
    EXPECT_NEAR(tensors.lse.at(0, row, 0, 0), std::log(5.0), 1e-6);  // five keys of score 0
  }
}

/// One query that sees ten of so many rows, which are one row over and over.
struct RowsWithoutEnd {
  std::vector<float> q = std::vector<float>(8, 1.f), k = q, v = std::vector<float>(8, 3.f), o = q;
  float lse = 0;
  std::int32_t cu_seqlens_q[2] = {0, 1}, used = 10, table[64] = {};
  tandem_varlen varlen{};

  tandem_forward_args with(std::int64_t rows) {
    const auto of = [](std::vector<float>& data, std::int64_t count) -> tandem_tensor {
      return {data.data(), TANDEM_FP32, {1, count, 1, 8}, {0, 0, 0, 1}};
    };
    varlen.struct_size = sizeof varlen;
    varlen.batch = 1, varlen.cu_seqlens_q = cu_seqlens_q, varlen.seqused_k = &used;
    tandem_forward_args args{};
    args.struct_size = sizeof args;
    args.q = of(q, 1), args.k = of(k, rows), args.v = of(v, rows), args.o = of(o, 1);
    args.lse = {&lse, TANDEM_FP32, {1, 1, 1, 1}, {}};
    args.varlen = &varlen;
    return args;
  }
};

// Lengths have 32 bits: what a sequence has room for beyond them is never in use.
TEST_P(VarlenBackend, RoomForMoreKeysThanLengthsCanSay) {
  for (const std::int64_t slots : {0, 32, 64}) {  // of pages of 2^26 keys; 0: an entry
    RowsWithoutEnd rows;
    rows.varlen.page_table = slots > 0 ? rows.table : nullptr;
    rows.varlen.page_table_stride = rows.varlen.pages_per_sequence = slots;
    tandem_forward_args args = rows.with(slots > 0 ? 1 << 26 : (std::int64_t{1} << 31) + 10);
    args.backend = GetParam();
    std::size_t bytes = 0;
    ASSERT_EQ(tandem_forward_workspace(&args, &bytes), TANDEM_OK) << tandem_last_error();
    struct alignas(256) Block {
      std::byte bytes[256];
    };
    std::vector<Block> workspace(bytes / sizeof(Block) + 1);
    ASSERT_EQ(tandem_forward(&args, workspace.data(), bytes, nullptr), TANDEM_OK) << tandem_last_error();
    EXPECT_EQ(rows.o[0], 3) << slots;
    EXPECT_NEAR(rows.lse, std::log(10.0) + std::sqrt(8.0), 1e-5) << slots;
  }
}

VarlenCase two_sequences() {
  VarlenCase c;
  c.dtype = TANDEM_FP32;
  c.q_lens = {3, 5}, c.k_lens = {7, 4};
  return c;
}

TEST(Varlen, ASequenceHasTheSameBitsAloneAndInAnyBatch) {
  VarlenCase both = two_sequences(), alone = both;
  both.q_lens = {130, 200}, both.k_lens = {300, 70};
  alone.q_lens = {200}, alone.k_lens = {70};
  const VarlenTensors batch(both), single(alone);
  for (std::int64_t row = 0; row < 200; ++row)
    for (std::int64_t e = 0; e < 64; ++e) {
      const_cast<VarlenTensors&>(single).q.set(0, row, 0, e,
                                               static_cast<float>(batch.q.at(0, 130 + row, 0, e)));
      if (row >= 70) continue;
      const_cast<VarlenTensors&>(single).k.set(0, row, 0, e,
                                               static_cast<float>(batch.k.at(0, 300 + row, 0, e)));
      const_cast<VarlenTensors&>(single).v.set(0, row, 0, e,
                                               static_cast<float>(batch.v.at(0, 300 + row, 0, e)));
    }
  ASSERT_EQ(Call(batch, TANDEM_BACKEND_CPU).run(), TANDEM_OK) << tandem_last_error();
  ASSERT_EQ(Call(single, TANDEM_BACKEND_CPU).run(), TANDEM_OK) << tandem_last_error();
  for (std::int64_t row = 0; row < 200; ++row)
    for (std::int64_t e = 0; e < 64; ++e)
      ASSERT_EQ(batch.o.at(0, 130 + row, 0, e), single.o.at(0, row, 0, e));
}

TEST(Varlen, LengthsBeyondTheTensorsAreClampedToThem) {
  VarlenCase c = two_sequences();
  VarlenTensors tensors(c);
  tensors.cu_seqlens_q = {-5, 3, 1000};  // the second sequence has the rest of q, with its spare rows
  tensors.cu_seqlens_k = {0, 7, 6};      // and no keys
  for (std::int64_t row = 8; row < tensors.q.view().shape[1]; ++row)
    for (std::int64_t e = 0; e < 64; ++e) tensors.q.set(0, row, 0, e, 1.f);
  ASSERT_EQ(Call(tensors, TANDEM_BACKEND_CPU).run(), TANDEM_OK) << tandem_last_error();
  EXPECT_TRUE(tensors.o.guards_intact());
  for (std::int64_t row = 3; row < tensors.q.view().shape[1]; ++row) {
    EXPECT_EQ(tensors.o.at(0, row, 0, 0), 0);
    EXPECT_EQ(tensors.lse.at(0, row, 0, 0), -std::numeric_limits<double>::infinity());
  }
}

/// Outputs and lse of one query that sees `k_len` keys of score 0 and value 1.
std::pair<double, double> beside_sink(std::int64_t k_len, float sink) {
  VarlenCase c;
  c.dtype = TANDEM_FP32;
  c.q_lens = {1}, c.k_lens = {k_len};
  VarlenTensors tensors(c);
  for (std::int64_t e = 0; e < 64; ++e) tensors.q.set(0, 0, 0, e, 0.f);
  for (std::int64_t row = 0; row < k_len; ++row)
    for (std::int64_t e = 0; e < 64; ++e) tensors.v.set(0, row, 0, e, 1.f);
  Call call(tensors, TANDEM_BACKEND_CPU);
  call.args.sinks = &sink;
  EXPECT_EQ(call.run(), TANDEM_OK) << tandem_last_error();
  return {tensors.o.at(0, 0, 0, 0), tensors.lse.at(0, 0, 0, 0)};
}

TEST(Varlen, ASinkIsAKeyWithoutAValue) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_NEAR(beside_sink(3, 0.f).first, 0.75, 1e-6);
  EXPECT_NEAR(beside_sink(3, 0.f).second, std::log(4.0), 1e-6);
  EXPECT_EQ(beside_sink(3, -infinity).first, 1.0);
  EXPECT_EQ(beside_sink(3, 1000.f), std::pair(0.0, 1000.0));
  EXPECT_EQ(beside_sink(0, 2.f), std::pair(0.0, 2.0));
  EXPECT_EQ(beside_sink(0, -infinity).second, -infinity);
}

TEST(Varlen, QueriesBeyondTheirBoundAreLeftOut) {
  const VarlenTensors tensors(two_sequences());
  Call call(tensors, TANDEM_BACKEND_CPU);
  call.varlen.max_seqlen_q = 4;
  ASSERT_EQ(call.run(), TANDEM_OK) << tandem_last_error();
  EXPECT_FALSE(std::isnan(tensors.o.at(0, 3 + 3, 0, 0)));
  EXPECT_TRUE(std::isnan(tensors.o.at(0, 3 + 4, 0, 0)));
}

TEST(Varlen, NoSequencesAreNoError) {
  const VarlenTensors tensors(two_sequences());
  Call call(tensors, TANDEM_BACKEND_CPU);
  call.varlen.batch = 0;
  EXPECT_EQ(call.run(), TANDEM_OK) << tandem_last_error();
  EXPECT_TRUE(tensors.o.untouched());
}

TEST(Varlen, TheHostNeedsNoPlanMakesNoneAndTakesAny) {
  const VarlenTensors tensors(two_sequences());
  Call call(tensors, TANDEM_BACKEND_CPU);
  std::size_t bytes = 17;
  EXPECT_EQ(tandem_forward_plan_size(&call.args, &bytes), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(bytes, 0U);
  EXPECT_EQ(tandem_forward_plan(&call.args, nullptr, 0, nullptr), TANDEM_OK) << tandem_last_error();
  EXPECT_TRUE(tensors.o.untouched());
  call.args.plan = reinterpret_cast<void*>(std::uintptr_t{1});
  EXPECT_EQ(call.run(), TANDEM_OK) << tandem_last_error();
}

TEST(Varlen, MistakesInPlanningAreNamed) {
  EXPECT_EQ(tandem_forward_plan(nullptr, nullptr, 0, nullptr), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("args is NULL"));
  const VarlenTensors tensors(two_sequences());
  Call call(tensors, TANDEM_BACKEND_CPU);
  EXPECT_EQ(tandem_forward_plan_size(&call.args, nullptr), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("bytes is NULL"));
  call.varlen.batch = -1;
  std::size_t bytes = 17;
  EXPECT_EQ(tandem_forward_plan_size(&call.args, &bytes), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("varlen.batch is -1"));
  EXPECT_EQ(bytes, 17U);
}

// Frameworks give NULL as the address of an array without elements: page tables, lengths and indices.
TEST(Varlen, NoSequencesNeedNoArraysOfThem) {
  VarlenCase c = two_sequences();
  c.keys = KeyLayout::paged;
  const VarlenTensors tensors(c);
  for (const bool appends : {false, true}) {
    Call call(tensors, TANDEM_BACKEND_CPU);
    call.varlen.batch = 0;
    call.varlen.page_table = nullptr;
    call.varlen.seqused_k = nullptr;
    if (appends) {
      static const std::int32_t none[1] = {};
      call.varlen.cu_seqlens_k_new = none;
      call.varlen.k_new = call.varlen.v_new = call.args.k;
      call.varlen.k_new.shape[0] = call.varlen.v_new.shape[0] = 1;
      call.varlen.k_new.shape[1] = call.varlen.v_new.shape[1] = 0;
    }
    EXPECT_EQ(call.run(), TANDEM_OK) << tandem_last_error();
    EXPECT_TRUE(tensors.o.untouched());
  }
}

TEST(Varlen, MistakesAreNamedAndLeaveOutputsUntouched) {
  static const std::int32_t numbers[8] = {};
  const Spoiled mistakes[] = {
      {"varlen.batch is -1", [](Call& c) { c.varlen.batch = -1; }},
      {"varlen.batch is 2147483648; it has to be from 0 to 2147483647",
       [](Call& c) { c.varlen.batch = beyond_lengths; }},
      {"varlen.max_seqlen_q is -2", [](Call& c) { c.varlen.max_seqlen_q = -2; }},
      {"varlen.max_seqlen_k is -3", [](Call& c) { c.varlen.max_seqlen_k = -3; }},
      {"varlen.split_size is -64; it has to be a multiple of 64 keys, or 0",
       [](Call& c) { c.varlen.split_size = -64; }},
      {"varlen.split_size is 1152921504606847040; it has to be at most 1152921504606846976",
       [](Call& c) { c.varlen.split_size = (std::int64_t{1} << 60) + 64; }},
      {"varlen.split_size is 100; it has to be a multiple of 64 keys, or 0",
       [](Call& c) { c.varlen.split_size = 100; }},
      {"q.shape[1] (sequence length) is 2147483648; it has to be at most 2147483647, since "
       "varlen.cu_seqlens_q is NULL",
       [](Call& c) {
         for (tandem_tensor* t : {&c.args.q, &c.args.o, &c.args.lse}) t->shape[1] = beyond_lengths;
         c.varlen.cu_seqlens_q = nullptr;
       }},
      {"k.shape[1] (sequence length) is 2147483648; it has to be at most 2147483647, since "
       "varlen.cu_seqlens_k and varlen.seqused_k are NULL",
       [](Call& c) {
         c.args.k.shape[1] = c.args.v.shape[1] = beyond_lengths;
         c.varlen.cu_seqlens_k = nullptr;
       }},
      {"q.shape[0] (batch) is 1; it has to be 2", [](Call& c) { c.varlen.cu_seqlens_q = nullptr; }},
      {"k.shape[0] (batch) is 1; it has to be 2", [](Call& c) { c.varlen.cu_seqlens_k = nullptr; }},
      {"sinks", [](Call& c) { c.args.sinks = static_cast<const float*>(c.args.o.data); }},
      {"both given", [](Call& c) { c.varlen.page_table = numbers; }},
      {"varlen.seqused_k is NULL",
       [](Call& c) { c.varlen.page_table = numbers, c.varlen.cu_seqlens_k = nullptr; }},
      {"varlen.pages_per_sequence is 0",
       [](Call& c) { c.varlen.page_table = c.varlen.seqused_k = numbers, c.varlen.cu_seqlens_k = nullptr; }},
      {"varlen.page_table_stride is -1",
       [](Call& c) {
         c.varlen.page_table = c.varlen.seqused_k = numbers, c.varlen.cu_seqlens_k = nullptr;
         c.varlen.page_table_stride = -1;
       }},
      {"varlen.page_table.stride",
       [](Call& c) {
         c.varlen.page_table = c.varlen.seqused_k = numbers, c.varlen.cu_seqlens_k = nullptr;
         c.varlen.pages_per_sequence = 1;
         c.varlen.page_table_stride = INT64_MAX / 2;  // of words of 4 bytes
       }},
      {"varlen.cu_seqlens_q",
       [](Call& c) {
         c.varlen.cu_seqlens_q =
             reinterpret_cast<const std::int32_t*>(reinterpret_cast<std::uintptr_t>(numbers) + 2);
       }},
      {"varlen->struct_size", [](Call& c) { c.varlen.struct_size = 8; }},
      {"varlen.leftpad_k is given, but keys are packed", [](Call& c) { c.varlen.leftpad_k = numbers; }},
      {"varlen.batch_index is given, but keys are paged",
       [](Call& c) {
         c.varlen.page_table = c.varlen.seqused_k = c.varlen.batch_index = numbers;
         c.varlen.cu_seqlens_k = nullptr;
       }},
      {"varlen.v_new.data is NULL", [](Call& c) { c.varlen.k_new = c.args.k; }},
      {"varlen.cu_seqlens_k too", [](Call& c) { c.varlen.k_new = c.varlen.v_new = c.args.k; }},
      {"rotary.cos is NULL",
       [](Call& c) {
         c.rotary = {sizeof(tandem_rotary), nullptr, numbers, TANDEM_FP32, 1, 16, 0};
         c.varlen.rotary = &c.rotary;
       }},
      {"varlen.rotary.dim is 24",
       [](Call& c) {
         c.rotary = {sizeof(tandem_rotary), numbers, numbers, TANDEM_FP32, 1, 24, 0};
         c.varlen.rotary = &c.rotary;
       }},
      {"varlen.rotary.positions is 2147483648; it has to be at most 2147483647",
       [](Call& c) {
         c.rotary = {sizeof(tandem_rotary), numbers, numbers, TANDEM_FP32, beyond_lengths, 16, 0};
         c.varlen.rotary = &c.rotary;
       }},
      {"varlen.rotary->struct_size", [](Call& c) { c.rotary.struct_size = 8, c.varlen.rotary = &c.rotary; }},
  };
  expect_each_is_refused(mistakes, two_sequences());
}

}  // namespace
}  // namespace tandem
