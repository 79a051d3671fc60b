#include "tests/support/host_tensor.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/dtype.h"

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

bool holds_pattern(const std::byte* bytes, std::size_t size, std::uint16_t pattern) {
  for (std::size_t at = 0; at < size; at += 2) {
    if (std::memcmp(bytes + at, &pattern, std::min<std::size_t>(2, size - at)) != 0) return false;
  }
  return true;
}

double load(const std::byte* from, tandem_dtype dtype) {
  if (dtype == TANDEM_E4M3) return static_cast<float>(core::E4m3{std::to_integer<std::uint8_t>(*from)});
  if (dtype == TANDEM_INT8) return std::to_integer<std::int8_t>(*from);
  if (dtype == TANDEM_FP32) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return dtype == TANDEM_BF16 ? static_cast<float>(core::Bf16{bits}) : static_cast<float>(core::Fp16{bits});
}

void store(std::byte* to, tandem_dtype dtype, float value) {
  if (core::is_8_bit(dtype)) {
    *to = dtype == TANDEM_E4M3 ? std::byte{core::E4m3::from(value).bits}
                               : static_cast<std::byte>(core::Int8::from(value).bits);
    return;
  }
  if (dtype == TANDEM_FP32) {
    std::memcpy(to, &value, sizeof value);
    return;
  }
  const std::uint16_t bits =
      dtype == TANDEM_BF16 ? core::Bf16::from(value).bits : core::Fp16::from(value).bits;
  std::memcpy(to, &bits, sizeof bits);
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
  memory_.resize(bytes_ + alignment);
  void* start = memory_.data();
  std::size_t space = memory_.size();
  cells_ = static_cast<std::byte*>(std::align(alignment, bytes_, start, space));
  poison();
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
void HostTensor::for_each_element(Visit visit) const {
  for (std::int64_t b = 0; b < tensor_.shape[0]; ++b)
    for (std::int64_t s = 0; s < tensor_.shape[1]; ++s)
      for (std::int64_t h = 0; h < tensor_.shape[2]; ++h)
        for (std::int64_t i = 0; i < tensor_.shape[3]; ++i) visit(cell(b, s, h, i));
}

double HostTensor::at(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t i) const {
  return load(cell(b, s, h, i), tensor_.dtype);
}

void HostTensor::set(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t i, float value) {
  store(cell(b, s, h, i), tensor_.dtype, value);
}

void HostTensor::copy_element(const HostTensor& from, const std::array<std::int64_t, 4>& at) {
  std::memcpy(cell(at[0], at[1], at[2], at[3]), from.cell(at[0], at[1], at[2], at[3]),
              core::size_of(tensor_.dtype));
}

std::vector<double> HostTensor::values() const {
  std::vector<double> values;
  for_each_element([&](const std::byte* at) { values.push_back(load(at, tensor_.dtype)); });
  return values;
}

void HostTensor::fill(float value) {
  for_each_element([&](std::byte* at) { store(at, tensor_.dtype, value); });
}

void HostTensor::fill_normal(std::uint64_t seed, float deviation) {
  Random random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  for_each_element([&](std::byte* at) { store(at, tensor_.dtype, normal(random)); });
}

void HostTensor::poison() {
  const std::uint16_t pattern = pattern_of(tensor_.dtype);
  for (std::size_t at = 0; at < bytes_; at += 2)
    std::memcpy(cells_ + at, &pattern, std::min<std::size_t>(2, bytes_ - at));
}

bool HostTensor::untouched() const { return holds_pattern(cells_, bytes_, pattern_of(tensor_.dtype)); }

bool HostTensor::guards_intact() const {
  std::vector<bool> element(bytes_ / core::size_of(tensor_.dtype), false);
  const std::size_t size = core::size_of(tensor_.dtype);
  for_each_element(
      [&](const std::byte* at) { element[static_cast<std::size_t>(at - cells_) / size] = true; });
  for (std::size_t i = 0; i < element.size(); ++i) {
    if (!element[i] && !holds_pattern(cells_ + i * size, size, pattern_of(tensor_.dtype))) return false;
  }
  return true;
}

}  // namespace tandem::test
