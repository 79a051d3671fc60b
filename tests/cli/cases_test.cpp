#include "cases.h"

#include <gtest/gtest.h>
#include <set>

#include "element.h"

namespace tandem::cli {
namespace {

TEST(RandomCall, FollowsFromItsSeedAlone) {
  const Call first = random_call(7, TANDEM_BACKEND_CPU), again = random_call(7, TANDEM_BACKEND_CPU);
  EXPECT_EQ(described(first), described(again));
  EXPECT_EQ(first.q.storage, again.q.storage);
  EXPECT_EQ(first.v.storage, again.v.storage);
  EXPECT_NE(described(first), described(random_call(8, TANDEM_BACKEND_CPU)));
}

TEST(RandomCall, CoversDtypesMasksLengthsAndGroups) {
  std::set<int> dtypes, masks;
  std::set<std::int64_t> head_dims;
  int no_queries = 0, no_keys = 0, longer_queries = 0, grouped = 0, many_keys = 0, padded = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Call call = random_call(seed, TANDEM_BACKEND_CPU);
    dtypes.insert(call.q.dtype);
    masks.insert(call.mask.kind);
    head_dims.insert(call.q.shape[3]);
    no_queries += call.q.shape[1] == 0;
    no_keys += call.k.shape[1] == 0;
    longer_queries += call.q.shape[1] > call.k.shape[1];
    grouped += call.q.shape[2] > call.k.shape[2];
    many_keys += call.k.shape[1] > 256;
    padded += call.o_layout.row_padding > 0;
  }
  EXPECT_EQ(dtypes.size(), 3u);
  EXPECT_EQ(masks.size(), 3u);
  EXPECT_GT(head_dims.size(), 20u);
  for (const int count : {no_queries, no_keys, longer_queries, grouped, many_keys, padded})
    EXPECT_GT(count, 3);
}

TEST(RandomCall, ForHopperKeepsToItsDtypesAndStrides) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Call call = random_call(seed, TANDEM_BACKEND_HOPPER);
    EXPECT_NE(call.q.dtype, TANDEM_FP32);
    for (const HostTensor* tensor : {&call.q, &call.k, &call.v}) {
      for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(tensor->stride[i] % 8, 0) << described(call);
      EXPECT_TRUE(tensor->padding_untouched()) << "what lies between the elements has to be NaN";
    }
  }
}

}  // namespace
}  // namespace tandem::cli
