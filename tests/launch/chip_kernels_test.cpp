// Which kernels a library has: those of its groups, and those for study once their file enters them.
#include "launch/chip_kernels.h"

#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::launch {
namespace {

struct Variant {
  int number;
  friend constexpr bool operator==(const Variant&, const Variant&) = default;
};

struct Best;
struct Study;
struct Family : Groups<Best, Study> {
  using Variant = launch::Variant;
  static constexpr const char* name = "the kernel of this test";
};
struct Best {
  using Family = launch::Family;
};
struct Study {
  using Family = launch::Family;
  static constexpr bool for_study = true;
};

constexpr int handles[3] = {};
constexpr std::array best{ChipKernel<Family>{{1}, 0, &handles[0]}, ChipKernel<Family>{{2}, 0, &handles[1]}};
constexpr std::array study{ChipKernel<Family>{{3}, 0, &handles[2]}};

}  // namespace

template <>
ChipTable<Best> chip_kernels<Best>() {
  return best;
}
template <>
ChipTable<Study> chip_kernels<Study>() {
  return study;
}

namespace {

TEST(ChipKernels, ThoseForStudyAreThereOnceTheirFileHasEnteredThem) {
  EXPECT_EQ(find_chip_kernel<Family>({2})->handle, &handles[1]);
  EXPECT_TRUE(check_linked<Family>({2}).ok());

  EXPECT_EQ(find_chip_kernel<Family>({3}), nullptr);
  const core::Status without = check_linked<Family>({3});
  EXPECT_EQ(without.code(), TANDEM_UNSUPPORTED);
  EXPECT_THAT(std::string(without.message()), testing::AllOf(testing::HasSubstr("the kernel of this test"),
                                                             testing::HasSubstr("libtandem_study")));

  const Enter<Study> enter;
  ASSERT_NE(find_chip_kernel<Family>({3}), nullptr);
  EXPECT_EQ(find_chip_kernel<Family>({3})->handle, &handles[2]);
  EXPECT_TRUE(check_linked<Family>({3}).ok());
}

TEST(ChipKernels, SelectedOnesKeepTheirOrder) {
  constexpr auto odd = selected([] { return std::array{1, 2, 3, 5}; }, [](int i) { return i % 2 == 1; });
  static_assert(odd == std::array{1, 3, 5});
}

}  // namespace
}  // namespace tandem::launch
