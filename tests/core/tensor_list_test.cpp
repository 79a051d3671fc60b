// What the lists of a problem's tensors say: everything that it has, and nothing else, with its role.
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "tests/support/decode_case.h"
#include "tests/support/forward_case.h"

namespace tandem::test {
namespace {

using core::Role;

struct Entry {
  std::string address_name;
  Role role;
  const void* data;
  friend bool operator==(const Entry&, const Entry&) = default;
};

void PrintTo(const Entry& entry, std::ostream* out) {
  *out << entry.address_name << " role " << static_cast<int>(entry.role) << " at " << entry.data;
}

std::vector<Entry> entries(const core::TensorList& list) {
  std::vector<Entry> all;
  for (const core::ListedTensor& t : list) all.push_back({t.address_name(), t.role, t.region.data});
  return all;
}

TEST(TensorList, OfAForwardHasLseOnlyWhereItIsWanted) {
  ForwardCase c;
  for (const bool lse : {true, false}) {
    c.lse = lse;
    const ForwardTensors tensors(c);
    const core::ForwardProblem p = tensors.problem();
    std::vector<Entry> expected = {{"q.data", Role::input, p.q.data},
                                   {"k.data", Role::input, p.k.data},
                                   {"v.data", Role::input, p.v.data},
                                   {"o.data", Role::output, p.o.data}};
    if (lse) expected.push_back({"lse.data", Role::output, p.lse.data});
    EXPECT_EQ(entries(tensors_of(p)), expected);
  }
}

TEST(TensorList, OfAStepThatAppendsSaysThatTheCacheIsUpdated) {
  DecodeCase c{.new_len = 2, .capacity = 16, .page_size = 8, .batch_index = true, .rotary_dim = 16};
  const DecodeTensors tensors(c);
  const core::DecodeProblem p = tensors.problem();
  const std::vector<Entry> expected = {{"q.data", Role::input, p.q.data},
                                       {"k_new.data", Role::input, p.k_new.data},
                                       {"v_new.data", Role::input, p.v_new.data},
                                       {"cache.lengths", Role::input, p.lengths},
                                       {"cache.batch_index", Role::input, p.batch_index},
                                       {"cache.page_table", Role::input, p.page_table},
                                       {"rotary.cos", Role::input, p.rotary.cos},
                                       {"rotary.sin", Role::input, p.rotary.sin},
                                       {"cache.k.data", Role::updated, p.k_cache.data},
                                       {"cache.v.data", Role::updated, p.v_cache.data},
                                       {"o.data", Role::output, p.o.data},
                                       {"lse.data", Role::output, p.lse.data}};
  EXPECT_EQ(entries(tensors_of(p)), expected);
}

TEST(TensorList, ArraysOfAStepReachAsFarAsItReads) {
  DecodeCase c{.capacity = 16, .page_size = 8, .batch_index = true, .rotary_dim = 16};
  c.lengths = {3, 9, 5};
  const DecodeTensors tensors(c);
  core::DecodeProblem p = tensors.problem();
  // Elements' bytes, rows, and how many a row has.
  const auto extent_of = [&p](const std::string& name) {
    for (const core::ListedTensor& t : tensors_of(p))
      if (t.address_name() == name)
        return std::vector{t.region.element_bytes, t.region.shape[3], t.region.shape[4]};
    return std::vector<std::int64_t>{};
  };
  EXPECT_EQ(extent_of("cache.lengths"), (std::vector<std::int64_t>{4, 1, 3}));
  EXPECT_EQ(extent_of("cache.batch_index"), (std::vector<std::int64_t>{4, 1, 3}));
  EXPECT_EQ(extent_of("cache.page_table"), (std::vector<std::int64_t>{4, 1, p.pages_per_sequence}))
      << "of which rows there are, the batch index alone knows";
  const auto rotary_bytes = static_cast<std::int64_t>(core::size_of(p.rotary.dtype));
  for (const char* name : {"rotary.cos", "rotary.sin"})
    EXPECT_EQ(extent_of(name), (std::vector<std::int64_t>{rotary_bytes, p.rotary.positions, 8})) << name;
  p.batch_index = nullptr;
  EXPECT_EQ(extent_of("cache.page_table"), (std::vector<std::int64_t>{4, 3, p.pages_per_sequence}));
}

TEST(TensorList, OfAStepThatReadsOnlyHasNothingElse) {
  const DecodeTensors tensors(DecodeCase{.lse = false});
  const core::DecodeProblem p = tensors.problem();
  const std::vector<Entry> expected = {{"q.data", Role::input, p.q.data},
                                       {"cache.lengths", Role::input, p.lengths},
                                       {"cache.k.data", Role::input, p.k_cache.data},
                                       {"cache.v.data", Role::input, p.v_cache.data},
                                       {"o.data", Role::output, p.o.data}};
  EXPECT_EQ(entries(tensors_of(p)), expected);
}

}  // namespace
}  // namespace tandem::test
