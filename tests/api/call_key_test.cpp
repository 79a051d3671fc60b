// Keys of calls: two calls share one exactly if they mean the same.
#include "api/call_key.h"

#include <cstring>
#include <gtest/gtest.h>
#include <vector>

namespace tandem::test {
namespace {

using api::key_of;
using api::Workspace;
using core::CallKey;

/// A call with all the structs that it may have. Their numbers are of no meaning to a key.
struct Forward {
  tandem_forward_args args{};
  tandem_mask mask{};
  tandem_varlen varlen{};
  tandem_rotary rotary{};
  tandem_scales scales{};
  tandem_block_list block_list{};

  Forward() {
    args.struct_size = sizeof(args), args.backend = TANDEM_BACKEND_HOPPER;
    mask.struct_size = sizeof(mask), varlen.struct_size = sizeof(varlen), rotary.struct_size = sizeof(rotary);
    scales.struct_size = sizeof(scales), block_list.struct_size = sizeof(block_list);
    args.mask = &mask, args.varlen = &varlen, args.scales = &scales, varlen.rotary = &rotary;
    args.block_list = &block_list;
  }
  template <typename Visit>
  void for_each_struct(Visit visit) {
    visit(args), visit(mask), visit(varlen), visit(rotary), visit(scales), visit(block_list);
  }
};

struct Backward {
  tandem_backward_args args{};
  tandem_mask mask{};
  tandem_varlen varlen{};
  tandem_rotary rotary{};

  Backward() {
    args.struct_size = sizeof(args), args.backend = TANDEM_BACKEND_HOPPER, mask.struct_size = sizeof(mask);
    varlen.struct_size = sizeof(varlen), rotary.struct_size = sizeof(rotary);
    args.mask = &mask, args.varlen = &varlen, varlen.rotary = &rotary;
  }
  template <typename Visit>
  void for_each_struct(Visit visit) {
    visit(args), visit(mask), visit(varlen), visit(rotary);
  }
};

struct Decode {
  tandem_decode_args args{};
  tandem_cache cache{};
  tandem_rotary rotary{};
  tandem_mask mask{};
  tandem_cache_scales scales{};
  tandem_shared_prefixes prefixes{};

  Decode() {
    args.struct_size = sizeof(args), args.backend = TANDEM_BACKEND_HOPPER;
    cache.struct_size = sizeof(cache), rotary.struct_size = sizeof(rotary), mask.struct_size = sizeof(mask);
    scales.struct_size = sizeof(scales), prefixes.struct_size = sizeof(prefixes);
    args.cache = &cache, args.rotary = &rotary, args.mask = &mask, args.scales = &scales;
    args.prefixes = &prefixes;
  }
  template <typename Visit>
  void for_each_struct(Visit visit) {
    visit(args), visit(cache), visit(rotary), visit(mask), visit(scales), visit(prefixes);
  }
};

/// Whether the 8 bytes are the address of one of the call's structs, which a test can't change at will.
template <typename Call>
bool is_address_in(Call& call, const unsigned char* bytes) {
  std::uintptr_t number;
  std::memcpy(&number, bytes, sizeof(number));
  const auto begin = reinterpret_cast<std::uintptr_t>(&call);
  return number >= begin && number < begin + sizeof(call);
}

template <typename Call>
class CallKeys : public testing::Test {};
using Calls = testing::Types<Forward, Backward, Decode>;
TYPED_TEST_SUITE(CallKeys, Calls);

TYPED_TEST(CallKeys, AreTheSameWhereverTheStructsLie) {
  TypeParam one, other;
  CallKey a, b;
  ASSERT_TRUE(key_of(&one.args, {nullptr, 0}, &a) && key_of(&other.args, {nullptr, 0}, &b));
  EXPECT_TRUE(a == b);
  EXPECT_EQ(a.hash(), b.hash());
}

TYPED_TEST(CallKeys, DifferInEveryByteOfEveryStruct) {
  TypeParam call;
  CallKey own;
  ASSERT_TRUE(key_of(&call.args, {nullptr, 0}, &own));
  call.for_each_struct([&](auto& fields) {
    auto* bytes = reinterpret_cast<unsigned char*>(&fields);
    for (std::size_t i = 0; i < sizeof(fields); ++i) {
      if (is_address_in(call, bytes + i / 8 * 8)) continue;
      // The size and the backend come first; study is a struct that calls with a key don't have.
      bytes[i] ^= 0x40;
      CallKey changed;
      const bool is_key = key_of(&call.args, {nullptr, 0}, &changed);
      EXPECT_FALSE(is_key && changed == own) << "byte " << i << " of a struct of " << sizeof(fields);
      bytes[i] ^= 0x40;
    }
  });
}

TYPED_TEST(CallKeys, DifferWithTheWorkspaceAndWithoutAStruct) {
  TypeParam call;
  CallKey own, changed;
  ASSERT_TRUE(key_of(&call.args, {nullptr, 0}, &own));
  for (const Workspace workspace : {Workspace{nullptr, 1}, Workspace{&call, 0}}) {
    CallKey key;
    ASSERT_TRUE(key_of(&call.args, workspace, &key));
    EXPECT_FALSE(key == own);
  }
  call.args.mask = nullptr;
  ASSERT_TRUE(key_of(&call.args, {nullptr, 0}, &changed));
  EXPECT_FALSE(changed == own);
}

TYPED_TEST(CallKeys, AreOfHopperAndOfThisVersionsStructsAlone) {
  CallKey key;
  const decltype(TypeParam().args)* none = nullptr;
  EXPECT_FALSE(key_of(none, {nullptr, 0}, &key));
  for (const tandem_backend backend : {TANDEM_BACKEND_AUTO, TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE}) {
    TypeParam call;
    call.args.backend = backend;
    EXPECT_FALSE(key_of(&call.args, {nullptr, 0}, &key)) << backend;
  }
  TypeParam call;
  call.for_each_struct([&](auto& fields) {
    for (const std::size_t size : {sizeof(fields) - 8, sizeof(fields) + 8}) {
      fields.struct_size = size;
      EXPECT_FALSE(key_of(&call.args, {nullptr, 0}, &key)) << size;
      fields.struct_size = sizeof(fields);
    }
  });
}

TEST(CallKeysOfForward, AreNotOfCallsForStudy) {
  Forward call;
  const tandem_study study{};
  call.args.study = &study;
  CallKey key;
  EXPECT_FALSE(key_of(&call.args, {nullptr, 0}, &key));
  Decode step;
  step.args.study = &study;
  EXPECT_FALSE(key_of(&step.args, {nullptr, 0}, &key));
}

}  // namespace
}  // namespace tandem::test
