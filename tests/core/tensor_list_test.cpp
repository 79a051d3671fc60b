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
