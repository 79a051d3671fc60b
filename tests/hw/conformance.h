// The verbs' conformance: what every machine behind hw.h has to do, against plain code.
//
// A test program supplies its machine before it includes any of these headers:
//
//   namespace tandem::test::machine {
//   struct Mode;                     // a way of running kernels, printable; every test runs in each of
//   modes() std::vector<Mode> modes(); std::string why_unusable();      // "" if kernels can run here
//   template <typename T>
//   class Buffer {                   // an array that kernels can reach
//     explicit Buffer(const std::vector<T>& values);
//     T* data() const;
//     std::vector<T> read() const;
//   };
//   hw::TensorMap encode(const MapRequest& request);
//   template <typename Body>
//   void run(const Mode& mode, int blocks, const Body& body);  // to its end; fails the test on a fault
//   }
//
// A Body is a kernel over the verbs: a struct of its arguments with `threads` (a block), `Shared` (the
// block's shared memory) and `TANDEM_DEVICE void operator()() const`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "hw/hw.h"
#include "tests/hw/map_request.h"

namespace tandem::test {

/// For bodies that need no shared memory.
struct NoShared {};

class Conformance : public testing::TestWithParam<machine::Mode> {
 protected:
  void SetUp() override {
    if (const std::string why = machine::why_unusable(); !why.empty()) GTEST_SKIP() << why;
  }
  template <typename Body>
  void run(const Body& body, int blocks = 1) const {
    machine::run(GetParam(), blocks, body);
  }
};

/// Outputs before a call: NaN as floating point.
template <typename T>
std::vector<T> poisoned(std::size_t count) {
  std::vector<T> values(count);
  std::memset(values.data(), 0xff, count * sizeof(T));
  return values;
}

/// Element by element, with the first difference in words; matrices as rows of `columns`.
template <typename T>
void expect_equal(const std::vector<T>& result, const std::vector<T>& expected, std::size_t columns) {
  ASSERT_EQ(result.size(), expected.size());
  std::size_t differences = 0, first = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (result[i] == expected[i]) continue;
    if (differences++ == 0) first = i;
  }
  EXPECT_EQ(differences, 0u) << "of " << expected.size() << " elements, the first at row " << first / columns
                             << ", column " << first % columns << ": " << +result[first] << " instead of "
                             << +expected[first];
}

/// Where TANDEM_GOLDEN_DIR names a folder, keeps a result there as raw little-endian words in `name`.bin.
/// Only for results that plain code bounds but does not determine; the others are the same on every machine.
template <typename T>
void keep_golden(const std::string& name, const std::vector<T>& values) {
  const char* folder = std::getenv("TANDEM_GOLDEN_DIR");
  if (folder == nullptr) return;
  std::filesystem::create_directories(folder);
  std::ofstream file(std::filesystem::path(folder) / (name + ".bin"), std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(T)));
  ASSERT_TRUE(file.good()) << "TANDEM_GOLDEN_DIR is " << folder << ", where " << name
                           << ".bin can't be written";
}

/// Place of element (row, column) in a panel of 64 columns with the 128-byte swizzle, in elements.
TANDEM_DEVICE constexpr int place_in_panel(int row, int column) {
  return row * 64 + (column / 8 ^ row % 8) * 8 + column % 8;
}

/// The tensor map of a dense rows x columns matrix, for boxes of `box_rows` x 64.
inline MapRequest matrix_request(const void* address, int rows, int columns, int box_rows) {
  const auto r = static_cast<std::uint64_t>(rows), c = static_cast<std::uint64_t>(columns);
  return {address, {c, r, 1, 1}, {2 * c, 16, 16}, {64, static_cast<std::uint32_t>(box_rows), 1, 1}};
}

}  // namespace tandem::test
