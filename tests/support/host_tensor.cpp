#include "tests/support/host_tensor.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/dtype.h"
#include "tests/support/element.h"
#include "tests/support/normal_numbers.h"

namespace tandem::test {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::int64_t margin = 128;  // guard cells before and after all rows; keeps rows aligned for TMA

/// Read as bf16, fp16 or, twice, fp32 it is a NaN; as e4m3 both halves are; of integers -128, which nobody
/// writes.
std::uint16_t pattern_of(tandem_dtype dtype) {
  if (dtype == TANDEM_INT8) return 0x8080;
  return dtype == TANDEM_E4M3 ? 0x7f7f : 0x7fd5;
}

void write_pattern(std::byte* to, std::size_t size, std::uint16_t pattern) {
  for (; size >= 2; size -= 2, to += 2) std::memcpy(to, &pattern, 2);
  std::memcpy(to, &pattern, size);
}

/// Whether it begins with the pattern, and goes on as it began.
bool holds_pattern(const std::byte* bytes, std::size_t size, std::uint16_t pattern) {
  if (std::memcmp(bytes, &pattern, std::min<std::size_t>(2, size)) != 0) return false;
  return size <= 2 || std::memcmp(bytes, bytes + 2, size - 2) == 0;
}

void load_all(const std::byte* from, tandem_dtype dtype, std::span<double> values) {
  with_element(dtype, [&](auto element) {
    for (double& value : values) {
      std::memcpy(&element, from, sizeof element);
      value = static_cast<float>(element);
      from += sizeof element;
    }
  });
}

/// Stores what `next` gives, so many times.
template <typename Next>
void store_all(std::byte* to, tandem_dtype dtype, std::int64_t count, Next&& next) {
  with_element(dtype, [&](auto element) {
    for (; count > 0; --count) {
      element = decltype(element)::from(next());
      std::memcpy(to, &element, sizeof element);
      to += sizeof element;
    }
  });
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Layout& l) {
  static constexpr char dims[] = "bsh";
  for (const int dim : l.order) out << (l.broadcast[dim] ? "0" : l.reversed[dim] ? "-" : "") << dims[dim];
  return out << "+" << l.row_gap;
}

Layout random_tma_layout(Random& random) {
  Layout layout;
  std::shuffle(layout.order.begin(), layout.order.end(), random);
  layout.row_gap = static_cast<int>(random() % 4) * 8;
  return layout;
}

Layout random_layout(Random& random) {
  Layout layout = random_tma_layout(random);
  layout.row_gap = static_cast<int>(random() % 20);
  for (bool& reversed : layout.reversed) reversed = random() % 4 == 0;
  return layout;
}

Layout random_input_layout(Random& random) {
  Layout layout = random_layout(random);
  for (bool& broadcast : layout.broadcast) broadcast = random() % 8 == 0;
  return layout;
}

HostTensor::HostTensor(tandem_dtype dtype, const std::array<std::int64_t, 4>& shape, const Layout& layout) {
  tensor_.dtype = dtype;
  std::copy(shape.begin(), shape.end(), tensor_.shape);
  tensor_.stride[3] = 1;
  std::int64_t cells = shape[3] + layout.row_gap;
  base_ = margin;
  for (int place = 2; place >= 0; --place) {
    const int dim = layout.order[place];
    const std::int64_t size = shape[dim];
    if (size <= 1 || layout.broadcast[dim]) continue;  // stride stays 0
    tensor_.stride[dim] = layout.reversed[dim] ? -cells : cells;
    if (layout.reversed[dim]) base_ += (size - 1) * cells;
    cells *= size;
  }
  bytes_ = static_cast<std::size_t>(cells + 2 * margin) * core::size_of(dtype);
  allocate();
  poison();
}

HostTensor::HostTensor(const HostTensor& other)
    : bytes_(other.bytes_), base_(other.base_), tensor_(other.tensor_) {
  allocate();
  std::memcpy(cells_, other.cells_, bytes_);
}

void HostTensor::allocate() {
  memory_.resize(bytes_ + alignment);
  void* start = memory_.data();
  std::size_t space = memory_.size();
  cells_ = static_cast<std::byte*>(std::align(alignment, bytes_, start, space));
}

core::Tensor HostTensor::view_at(void* base) const {
  core::Tensor view = tensor_;
  view.data = static_cast<std::byte*>(base) + static_cast<std::size_t>(base_) * core::size_of(tensor_.dtype);
  return view;
}

core::Tensor HostTensor::view() const { return view_at(cells_); }

std::byte* HostTensor::cell(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t i) const {
  const std::int64_t at = base_ + b * tensor_.stride[0] + s * tensor_.stride[1] + h * tensor_.stride[2] + i;
  return cells_ + static_cast<std::size_t>(at) * core::size_of(tensor_.dtype);
}

template <typename Visit>
void HostTensor::for_each_row(Visit visit) const {
  for (std::int64_t b = 0; b < tensor_.shape[0]; ++b)
    for (std::int64_t s = 0; s < tensor_.shape[1]; ++s)
      for (std::int64_t h = 0; h < tensor_.shape[2]; ++h) visit(cell(b, s, h, 0));
}

double HostTensor::at(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t i) const {
  double value;
  load_all(cell(b, s, h, i), tensor_.dtype, {&value, 1});
  return value;
}

void HostTensor::set(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t i, float value) {
  store_all(cell(b, s, h, i), tensor_.dtype, 1, [value] { return value; });
}

void HostTensor::set_row(std::int64_t b, std::int64_t s, std::int64_t h, std::span<const float> values) {
  auto value = values.begin();
  store_all(cell(b, s, h, 0), tensor_.dtype, std::ssize(values), [&] { return *value++; });
}

void HostTensor::get_row(std::int64_t b, std::int64_t s, std::int64_t h, std::span<double> values) const {
  load_all(cell(b, s, h, 0), tensor_.dtype, values);
}

void HostTensor::copy_element(const HostTensor& from, const std::array<std::int64_t, 4>& at) {
  std::memcpy(cell(at[0], at[1], at[2], at[3]), from.cell(at[0], at[1], at[2], at[3]),
              core::size_of(tensor_.dtype));
}

std::vector<double> HostTensor::values() const {
  const auto columns = static_cast<std::size_t>(tensor_.shape[3]);
  const std::int64_t rows = tensor_.shape[0] * tensor_.shape[1] * tensor_.shape[2];
  std::vector<double> values(static_cast<std::size_t>(rows) * columns);
  double* row = values.data();
  for_each_row([&](const std::byte* at) { load_all(at, tensor_.dtype, {row, columns}), row += columns; });
  return values;
}

void HostTensor::fill(float value) {
  for_each_row(
      [&](std::byte* at) { store_all(at, tensor_.dtype, tensor_.shape[3], [value] { return value; }); });
}

void HostTensor::fill_normal(std::uint64_t seed, float deviation) {
  Random random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  for_each_row(
      [&](std::byte* at) { store_all(at, tensor_.dtype, tensor_.shape[3], [&] { return normal(random); }); });
}

void HostTensor::fill_nearly_normal(std::uint64_t seed, float deviation) {
  NormalNumbers normal(seed, deviation);
  for_each_row([&](std::byte* at) { store_all(at, tensor_.dtype, tensor_.shape[3], normal); });
}

void HostTensor::fill_random(bool nearly_normal, std::uint64_t seed, float deviation) {
  nearly_normal ? fill_nearly_normal(seed, deviation) : fill_normal(seed, deviation);
}

void HostTensor::poison() { write_pattern(cells_, bytes_, pattern_of(tensor_.dtype)); }

bool HostTensor::untouched() const { return holds_pattern(cells_, bytes_, pattern_of(tensor_.dtype)); }

bool HostTensor::guards_intact() const {
  const HostTensor others(*this);
  const std::size_t row = static_cast<std::size_t>(tensor_.shape[3]) * core::size_of(tensor_.dtype);
  others.for_each_row([&](std::byte* at) { write_pattern(at, row, pattern_of(tensor_.dtype)); });
  return others.untouched();
}

}  // namespace tandem::test
