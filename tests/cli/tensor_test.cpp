#include "tensor.h"

#include <gtest/gtest.h>
#include <numeric>

#include "element.h"
#include "failure.h"

namespace tandem::cli {
namespace {

const Layout padded{{2, 0, 1, 3}, 8, 16};

TEST(HostTensor, DenseValuesSurviveEveryLayout) {
  const Shape shape{2, 3, 4, 8};
  std::vector<float> values(2 * 3 * 4 * 8);
  std::iota(values.begin(), values.end(), 0.0f);
  for (const Layout& layout : {Layout::bshd(), Layout::bhsd(), padded}) {
    const HostTensor tensor = HostTensor::from_dense(TANDEM_BF16, shape, layout, values);
    EXPECT_EQ(tensor.to_dense(), values);
  }
}

TEST(HostTensor, StridesFollowTheOrderOfDimensions) {
  const HostTensor tensor = HostTensor::poisoned(TANDEM_FP16, {2, 3, 4, 8}, padded);
  EXPECT_EQ(tensor.stride, (Shape{3 * 16, 16, 2 * 3 * 16, 1}));
  EXPECT_EQ(tensor.view(nullptr).data, static_cast<void*>(static_cast<char*>(nullptr) + 32));
}

TEST(HostTensor, SeesAWriteOutsideItsElementsButNotInside) {
  HostTensor tensor = HostTensor::poisoned(TANDEM_FP16, {2, 3, 4, 8}, padded);
  tensor.assign_dense(std::vector<float>(2 * 3 * 4 * 8, 1.0f));
  EXPECT_TRUE(tensor.padding_untouched());
  const std::size_t past_first_row = (16 + 8) * size_of(TANDEM_FP16);
  for (const std::size_t at : {std::size_t{0}, past_first_row, tensor.storage.size() - 1}) {
    HostTensor broken = tensor;
    broken.storage[at] = std::byte{0};
    EXPECT_FALSE(broken.padding_untouched()) << "byte " << at;
  }
}

TEST(HostTensor, RefusesSizesThatOverflow) {
  const std::int64_t large = std::int64_t{1} << 40;
  EXPECT_THROW(HostTensor::poisoned(TANDEM_BF16, {large, large, 1, 8}, Layout::bshd()), Failure);
  EXPECT_THROW(HostTensor::poisoned(TANDEM_BF16, {-1, 1, 1, 8}, Layout::bshd()), Failure);
}

}  // namespace
}  // namespace tandem::cli
