#include "draw.h"

#include <array>
#include <vector>

namespace tandem::cli {

std::int64_t between(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

bool one_in(Random& random, int n) { return between(random, 1, n) == 1; }

Layout random_layout(Random& random) {
  constexpr std::array<int, 4> orders[] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {1, 0, 2, 3}, {2, 0, 1, 3}};
  return {one_of(random, orders), one_in(random, 2) ? 8 * between(random, 1, 4) : 0, 64};
}

HostTensor random_tensor(Random& random, tandem_dtype dtype, const Shape& shape, float magnitude) {
  std::normal_distribution<float> normal(0, magnitude);
  std::vector<float> values(static_cast<std::size_t>(count_of(shape)));
  for (float& value : values) value = normal(random);
  return HostTensor::from_dense(dtype, shape, random_layout(random), values);
}

tandem_dtype random_dtype(Random& random, tandem_backend backend) {
  constexpr tandem_dtype dtypes[] = {TANDEM_BF16, TANDEM_FP16, TANDEM_FP32};
  return dtypes[between(random, 0, backend == TANDEM_BACKEND_HOPPER ? 1 : 2)];
}

}  // namespace tandem::cli
