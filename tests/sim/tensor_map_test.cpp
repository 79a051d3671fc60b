// What TMA can take of a tensor, at its limits and one beyond, and what its maps are told.
#include "hw/tensor_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <tuple>
#include <vector>

namespace tandem::test {
namespace {

using core::Tensor;

std::string message_of(const Tensor& tensor) { return std::string(hw::check_tensor("x", tensor).message()); }

Tensor tensor_of(tandem_dtype dtype) { return {nullptr, dtype, {2, 3, 5, 64}, {64 * 5 * 3, 64 * 5, 64, 1}}; }

constexpr tandem_dtype all_dtypes[] = {TANDEM_BF16, TANDEM_FP16, TANDEM_FP32, TANDEM_E4M3, TANDEM_INT8};

std::vector<std::uint64_t> dims_of(const hw::TensorMapRequest& map) {
  return {map.dims, map.dims + map.rank};
}
std::vector<std::uint64_t> strides_of(const hw::TensorMapRequest& map) {
  return {map.stride_bytes, map.stride_bytes + map.rank - 1};
}
std::vector<std::uint32_t> box_of(const hw::TensorMapRequest& map) { return {map.box, map.box + map.rank}; }

std::int64_t bytes_of(tandem_dtype dtype) {
  return dtype == TANDEM_FP32 ? 4 : dtype == TANDEM_E4M3 || dtype == TANDEM_INT8 ? 1 : 2;
}

TEST(CheckTensor, AddressesAreMultiplesOf16Bytes) {
  for (std::uintptr_t address = 4096; address <= 4096 + 32; ++address) {
    Tensor t = tensor_of(TANDEM_BF16);
    t.data = reinterpret_cast<void*>(address);
    const core::Status status = hw::check_tensor("x", t);
    EXPECT_EQ(status.ok(), address % 16 == 0) << address;
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), TANDEM_INVALID_ARGUMENT);
    EXPECT_THAT(status.message(), testing::HasSubstr("x.data"));
    EXPECT_THAT(status.message(), testing::HasSubstr("modulo 16 is " + std::to_string(address % 16) + ";"));
  }
}

TEST(CheckTensor, StridesAreMultiplesOf16BytesBelow2To40) {
  for (const tandem_dtype dtype : all_dtypes)
    for (int i = 0; i < 3; ++i) {
      const std::int64_t unit = 16 / bytes_of(dtype), most = (std::int64_t{1} << 40) / bytes_of(dtype);
      for (const auto& [stride, good] : std::vector<std::pair<std::int64_t, bool>>{{0, true},
                                                                                   {unit, true},
                                                                                   {unit - 1, unit == 1},
                                                                                   {unit + 1, unit == 1},
                                                                                   {3 * unit, true},
                                                                                   {unit / 2, false},
                                                                                   {most - unit, true},
                                                                                   {most, false},
                                                                                   {most + unit, false},
                                                                                   {-unit, false},
                                                                                   {-1, false}}) {
        Tensor t = tensor_of(dtype);
        t.stride[i] = stride;
        const std::string name = "x.stride[" + std::to_string(i) + "] is " + std::to_string(stride) + ";";
        EXPECT_EQ(message_of(t).find(name) == std::string::npos, good) << stride << ": " << message_of(t);
        EXPECT_EQ(message_of(t).empty(), good) << stride << ": " << message_of(t);
        if (!good) {
          EXPECT_THAT(message_of(t),
                      testing::HasSubstr("multiples of " + std::to_string(unit) + " elements"));
        }
        t.shape[i] = 1;
        EXPECT_EQ(message_of(t), "") << "nobody steps over one";
        t.shape[i] = 2;
        EXPECT_EQ(message_of(t).empty(), good) << "but over two";
        t.shape[(i + 1) % 4] = 0;
        EXPECT_EQ(message_of(t), "") << "nothing is loaded";
      }
    }
}

TEST(CheckTensor, DimensionsAreAtMost2To28) {
  for (int i = 0; i < 3; ++i) {
    Tensor t = tensor_of(TANDEM_BF16);
    t.shape[i] = 1 << 28;
    EXPECT_EQ(message_of(t), "");
    t.shape[i] += 1;
    EXPECT_THAT(message_of(t), testing::HasSubstr("x.shape[" + std::to_string(i) + "] is 268435457; "));
  }
}

TEST(TensorMap, OfOneHeadHasPositionsInFrontOfHeads) {
  for (const tandem_dtype dtype : all_dtypes) {
    Tensor t = tensor_of(dtype);
    t.data = reinterpret_cast<void*>(4096);
    const std::uint64_t bytes = static_cast<std::uint64_t>(bytes_of(dtype));
    const std::uint32_t columns = dtype == TANDEM_FP32 ? 32 : 64;  // 8-bit elements count in pairs
    const hw::TensorMapRequest map = hw::tensor_map_request(t, {48});
    EXPECT_EQ(map.address, t.data);
    EXPECT_THAT(dims_of(map), testing::ElementsAre(bytes == 1 ? 32 : 64, 3, 5, 2));
    EXPECT_THAT(strides_of(map), testing::ElementsAre(64 * 5 * bytes, 64 * bytes, 64 * 5 * 3 * bytes));
    EXPECT_THAT(box_of(map), testing::ElementsAre(columns, 48, 1, 1));
    EXPECT_EQ(map.swizzle, dtype == TANDEM_FP32 ? hw::Swizzle::none : hw::Swizzle::bytes128);
  }
}

TEST(TensorMap, OfSeveralHeadsHasThemInFrontOfPositions) {
  const Tensor t = tensor_of(TANDEM_BF16);
  const hw::TensorMapRequest map = hw::tensor_map_request(t, {64, 4});
  EXPECT_THAT(dims_of(map), testing::ElementsAre(64, 5, 3, 2));
  EXPECT_THAT(strides_of(map), testing::ElementsAre(2 * 64, 2 * 64 * 5, 2 * 64 * 5 * 3));
  EXPECT_THAT(box_of(map), testing::ElementsAre(64, 4, 16, 1));
  EXPECT_THAT(box_of(hw::tensor_map_request(t, {16, 64})), testing::ElementsAre(64, 16, 1, 1))
      << "fewer rows than heads are of one position";
  EXPECT_THAT(box_of(hw::tensor_map_request(t, {16, 16})), testing::ElementsAre(64, 16, 1, 1));
}

TEST(TensorMap, LastBoxesHaveTheColumnsBehindWholeOnes) {
  const Tensor t = tensor_of(TANDEM_BF16);
  for (const auto& [head_dim, columns, last] :
       {std::tuple{64, 64, 0}, {40, 40, 40}, {100, 104, 40}, {112, 112, 48}, {128, 128, 0}, {130, 136, 8}}) {
    EXPECT_EQ(hw::box_columns(head_dim, true), columns) << "steps of 16 bytes";
    const hw::BoxRows box = hw::last_box({64, 4}, columns);
    EXPECT_EQ(box.columns, last) << head_dim;
    EXPECT_THAT(box_of(hw::tensor_map_request(t, box)),
                testing::ElementsAre(last == 0 ? 64 : last, 4, 16, 1));
    EXPECT_THAT(box_of(hw::tensor_map_request(t, {box.rows, 1, false, box.columns})),
                testing::ElementsAre(last == 0 ? 64 : last, 64, 1, 1));
    const hw::TensorMap whole{}, of_last{};
    const hw::Panels panels{whole, of_last, columns};
    for (int column = 0; column < columns; column += 64) {
      EXPECT_TRUE(panels.has(column));
      EXPECT_EQ(panels.has_whole(column), column + 64 <= columns) << head_dim << " at " << column;
    }
    EXPECT_FALSE(panels.has(columns));
  }
  EXPECT_EQ(hw::last_box({64}, hw::Panels::all_columns).columns, 0);
}

TEST(TensorMap, OfPackedRowsWrapsAroundTheAddressSpace) {
  Tensor t = tensor_of(TANDEM_BF16);
  t.shape[0] = 1;
  const hw::TensorMapRequest map = hw::tensor_map_request(t, {64, 1, true});
  EXPECT_EQ(map.rank, 5);
  constexpr std::uint64_t row = 2 * 64 * 5;
  EXPECT_THAT(strides_of(map), testing::ElementsAre(row, 2 * 64, (std::uint64_t{1} << 34) - row, row));
  EXPECT_THAT(box_of(map), testing::ElementsAre(64, 64, 1, 1, 1));
  const hw::BoxCoordinates c = hw::PackedOrigin{0, 1, 2, 2, 3}.coordinates();  // row 1 of rows 1 and 2
  std::uint64_t offset = 0;
  for (int i = 1; i < 5; ++i) offset += static_cast<std::uint64_t>(c.at[i]) * map.stride_bytes[i - 1];
  EXPECT_EQ(offset, 2 * row + 2 * 2 * 64);
  EXPECT_EQ(static_cast<std::uint64_t>(c.at[1]) + 1, map.dims[1]) << "it is the last one in bounds";
}

TEST(TensorMap, OfADimensionOfOneHasAnyValidStride) {
  Tensor t = tensor_of(TANDEM_BF16);
  for (int i = 0; i < 3; ++i) {
    Tensor one = t;
    one.shape[i] = 1, one.stride[i] = 0;
    for (const int heads : {1, 2})
      for (const std::uint64_t stride : strides_of(hw::tensor_map_request(one, {64, heads})))
        EXPECT_TRUE(stride > 0 && stride % 16 == 0) << stride;
    one.shape[i] = 2, one.stride[i] = 0;
    EXPECT_THAT(strides_of(hw::tensor_map_request(one, {64})), testing::Contains(0)) << "shared entries";
  }
}

}  // namespace
}  // namespace tandem::test
