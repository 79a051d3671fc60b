// TMA of the software Hopper against plain code: boxes, strides, swizzles, out-of-bounds fill.
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "hw/hw.h"
#include "hw/sim/machine.h"

namespace tandem {
namespace {

using hw::Swizzle;
using hw::sim::LaunchConfig;
using hw::sim::Policy;
using hw::sim::Report;
using hw::sim::TensorMapSpec;

struct Shared {
  alignas(1024) std::uint16_t box[2 * 3 * 24 * 64];
  hw::Barrier full;
};

/// A tensor of distinct elements with gaps between its rows, and a map of it.
struct Source {
  std::uint64_t dims[4];
  std::uint64_t strides[4];  // in elements
  std::vector<std::uint16_t> memory;
  TensorMapSpec spec{};

  Source(std::array<std::uint64_t, 4> size, std::array<std::uint32_t, 4> box, Swizzle swizzle) {
    std::uint64_t stride = 1;
    for (int i = 0; i < 4; ++i) {
      dims[i] = size[i];
      strides[i] = stride;
      stride = (stride * size[i] + 15) / 8 * 8;
      spec.dims[i] = size[i];
      spec.box[i] = box[i];
    }
    memory.resize(stride + 8);
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::uint16_t>(i * 40503 + 1);
    spec.address = base();
    for (int i = 0; i < 3; ++i) spec.stride_bytes[i] = 2 * strides[i + 1];
    spec.swizzle = swizzle;
  }
  const std::uint16_t* base() const {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    return memory.data() + ((address + 15) / 16 * 16 - address) / 2;
  }
  std::uint16_t at(std::int64_t d, std::int64_t s, std::int64_t h, std::int64_t b) const {
    const std::int64_t index[4] = {d, s, h, b};
    std::int64_t offset = 0;
    for (int i = 0; i < 4; ++i) {
      if (index[i] < 0 || index[i] >= static_cast<std::int64_t>(dims[i])) return 0;
      offset += index[i] * static_cast<std::int64_t>(strides[i]);
    }
    return base()[offset];
  }
};

/// Where element `column` of a box's row lies, by the ISA's description of the swizzle modes: the 16-byte
/// chunk's number within a row of the pattern is XORed with the number of the 128-byte line, modulo 8, 4
/// or 2.
std::size_t place(std::size_t row, std::size_t column, std::size_t row_bytes, Swizzle swizzle) {
  const std::size_t byte = row * row_bytes + 2 * column;
  std::size_t line = byte / 128, chunk = byte % 128 / 16;
  if (swizzle == Swizzle::bytes128) chunk ^= line % 8;
  if (swizzle == Swizzle::bytes64) chunk ^= line % 4;
  if (swizzle == Swizzle::bytes32) chunk ^= line % 2;
  return (line * 128 + chunk * 16 + byte % 16) / 2;
}

/// Loads one box and returns shared memory as the consumer sees it.
std::vector<std::uint16_t> load(const Source& source, hw::BoxOrigin origin, Policy policy, Report* report) {
  const hw::TensorMap map = hw::sim::encode_tensor_map(source.spec);
  const auto* box = source.spec.box;
  const std::uint32_t elements = box[0] * box[1] * box[2] * box[3];
  std::vector<std::uint16_t> seen(elements);
  LaunchConfig config;
  config.threads = 32;
  config.shared_bytes = sizeof(Shared);
  config.policy = policy;
  *report = hw::sim::launch(config, [&] {
    auto& shared = hw::shared_memory<Shared>();
    if (hw::thread_index() == 0) {
      hw::barrier_init(shared.full, 1);
      hw::fence_barrier_init();
    }
    hw::sync_block();
    if (hw::thread_index() == 0) {
      hw::prefetch_map(map);
      hw::barrier_arrive_expecting(shared.full, 2 * elements);
      hw::load_box(shared.box, map, shared.full, origin);
    }
    hw::barrier_wait(shared.full, 0);
    for (std::uint32_t i = hw::thread_index(); i < elements; i += 32) seen[i] = shared.box[i];
  });
  return seen;
}

using Case = std::tuple<Policy, Swizzle>;
class Tma : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, Tma,
                         testing::Combine(testing::Values(Policy::eager, Policy::late, Policy::random),
                                          testing::Values(Swizzle::none, Swizzle::bytes32, Swizzle::bytes64,
                                                          Swizzle::bytes128)));

TEST_P(Tma, BoxesLandInTheirSwizzleWithZerosOutOfBounds) {
  const auto [policy, swizzle] = GetParam();
  const std::uint32_t columns = swizzle == Swizzle::bytes32 ? 16 : swizzle == Swizzle::bytes64 ? 32 : 64;
  const Source source({88, 37, 5, 2}, {columns, 24, 3, 2}, swizzle);
  std::mt19937 random(1);
  for (int repeat = 0; repeat < 6; ++repeat) {
    const auto draw = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
    const hw::BoxOrigin origin{8 * draw(-3, 11), draw(-10, 40), draw(-2, 5), draw(-1, 2)};
    Report report;
    const auto seen = load(source, origin, policy, &report);
    ASSERT_TRUE(report.ok()) << report.text();
    std::size_t row = 0;
    for (int b = 0; b < 2; ++b) {
      for (int h = 0; h < 3; ++h) {
        for (int s = 0; s < 24; ++s, ++row) {
          for (int d = 0; d < static_cast<int>(columns); ++d) {
            ASSERT_EQ(seen[place(row, d, 2 * columns, swizzle)],
                      source.at(origin.d + d, origin.s + s, origin.h + h, origin.b + b))
                << "d " << d << " s " << s << " h " << h << " b " << b << " of the box at " << origin.d << ' '
                << origin.s << ' ' << origin.h << ' ' << origin.b;
          }
        }
      }
    }
  }
}

TEST(TensorMaps, AreRefusedAsTheDriverRefusesThem) {
  Source source({64, 16, 1, 1}, {64, 8, 1, 1}, Swizzle::bytes128);
  const auto refused = [&](auto&& change) {
    TensorMapSpec spec = source.spec;
    change(spec);
    EXPECT_THROW(hw::sim::encode_tensor_map(spec), std::invalid_argument);
  };
  EXPECT_NO_THROW(hw::sim::encode_tensor_map(source.spec));
  refused([](auto& s) { s.address = static_cast<const char*>(s.address) + 2; });
  refused([](auto& s) { s.stride_bytes[0] += 2; });
  refused([](auto& s) { s.box[0] = 72; });  // beyond the swizzle's span
  refused([](auto& s) { s.box[0] = 4; });   // no 16 bytes
  refused([](auto& s) { s.box[1] = 257; });
  refused([](auto& s) { s.dims[2] = 0; });
  refused([](auto& s) { s.stride_bytes[2] = std::uint64_t{1} << 40; });
}

}  // namespace
}  // namespace tandem
