#include "tensor.h"

#include <cstring>
#include <utility>

#include "element.h"
#include "failure.h"

namespace tandem::cli {
namespace {

constexpr std::byte poison{0xff};

/// Calls visit(index of the row in b, s, h order, byte offset of its first element) for every row.
template <typename Visit>
void for_each_row(const HostTensor& tensor, Visit visit) {
  if (tensor.shape[3] == 0) return;
  const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
  std::int64_t row = 0;
  for (std::int64_t b = 0; b < tensor.shape[0]; ++b) {
    for (std::int64_t s = 0; s < tensor.shape[1]; ++s) {
      for (std::int64_t h = 0; h < tensor.shape[2]; ++h) {
        const std::int64_t element =
            tensor.offset + b * tensor.stride[0] + s * tensor.stride[1] + h * tensor.stride[2];
        visit(static_cast<std::size_t>(row++), static_cast<std::size_t>(element * size));
      }
    }
  }
}

}  // namespace

std::int64_t checked_product(std::int64_t a, std::int64_t b) {
  std::int64_t product;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) {
    throw Failure(Exit::usage, "a tensor of " + std::to_string(a) + " x " + std::to_string(b) +
                                   " elements is too large; choose a smaller shape");
  }
  return product;
}

std::int64_t count_of(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count = checked_product(count, extent);
  return count;
}

HostTensor HostTensor::poisoned(tandem_dtype dtype, const Shape& shape, const Layout& layout) {
  HostTensor tensor{dtype, shape, {}, layout.guard, {}};
  std::int64_t pitch = 1;
  for (int i = 3; i >= 0; --i) {
    const auto dimension = static_cast<std::size_t>(layout.order[static_cast<std::size_t>(i)]);
    tensor.stride[dimension] = pitch;
    pitch = checked_product(pitch, shape[dimension]);
    if (i == 3) pitch += layout.row_padding;
  }
  const std::int64_t elements = pitch + 2 * layout.guard;
  tensor.storage.assign(
      static_cast<std::size_t>(checked_product(elements, static_cast<std::int64_t>(size_of(dtype)))), poison);
  return tensor;
}

HostTensor HostTensor::from_dense(tandem_dtype dtype, const Shape& shape, const Layout& layout,
                                  std::span<const float> values) {
  HostTensor tensor = poisoned(dtype, shape, layout);
  tensor.assign_dense(values);
  return tensor;
}

tandem_tensor HostTensor::view(void* base) const {
  tandem_tensor result{};
  result.data = static_cast<std::byte*>(base) + offset * static_cast<std::int64_t>(size_of(dtype));
  result.dtype = dtype;
  for (std::size_t i = 0; i < 4; ++i) {
    result.shape[i] = shape[i];
    result.stride[i] = stride[i];
  }
  return result;
}

std::span<const std::byte> HostTensor::row(std::int64_t b, std::int64_t s, std::int64_t h) const {
  const std::size_t size = size_of(dtype);
  const std::int64_t element = offset + b * stride[0] + s * stride[1] + h * stride[2];
  return std::span(storage).subspan(static_cast<std::size_t>(element) * size,
                                    static_cast<std::size_t>(shape[3]) * size);
}

std::span<std::byte> HostTensor::row(std::int64_t b, std::int64_t s, std::int64_t h) {
  const std::span<const std::byte> row = std::as_const(*this).row(b, s, h);
  return {const_cast<std::byte*>(row.data()), row.size()};
}

std::vector<float> HostTensor::to_dense() const {
  std::vector<float> values(static_cast<std::size_t>(count_of(shape)));
  const auto columns = static_cast<std::size_t>(shape[3]);
  for_each_row(*this, [&](std::size_t row, std::size_t at) {
    decode(dtype, storage.data() + at, std::span(values).subspan(row * columns, columns));
  });
  return values;
}

void HostTensor::assign_dense(std::span<const float> values) {
  const auto columns = static_cast<std::size_t>(shape[3]);
  for_each_row(*this, [&](std::size_t row, std::size_t at) {
    encode(dtype, values.subspan(row * columns, columns), storage.data() + at);
  });
}

bool HostTensor::padding_untouched() const {
  std::vector<std::byte> copy = storage;
  const std::size_t row_bytes = static_cast<std::size_t>(shape[3]) * size_of(dtype);
  for_each_row(*this, [&](std::size_t, std::size_t at) {
    std::memset(copy.data() + at, static_cast<int>(poison), row_bytes);
  });
  for (const std::byte byte : copy) {
    if (byte != poison) return false;
  }
  return true;
}

HostTensor means(const HostTensor& tensor) {
  const auto [b, s, h, d] = tensor.shape;
  const std::vector<float> x = tensor.to_dense();
  std::vector<double> sums(static_cast<std::size_t>(b * h * d));
  const auto of_entry = static_cast<std::size_t>(h * d), tokens = static_cast<std::size_t>(s);
  for (std::size_t i = 0; i < x.size(); ++i)
    sums[i / (tokens * of_entry) * of_entry + i % of_entry] += static_cast<double>(x[i]);
  std::vector<float> mean(sums.size());
  for (std::size_t i = 0; i < mean.size(); ++i)
    mean[i] = s == 0 ? 0.f : static_cast<float>(sums[i] / static_cast<double>(s));
  return HostTensor::from_dense(TANDEM_FP32, {b, 1, h, d}, Layout::bshd(), mean);
}

}  // namespace tandem::cli
