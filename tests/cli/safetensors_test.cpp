#include "safetensors.h"

#include <chrono>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "failure.h"

namespace tandem::cli {
namespace {

using testing::HasSubstr;

/// What parse_header complains about, or "" if it accepts; fails on any other exit code.
std::string complaint(const std::string& json, std::uint64_t data_bytes) {
  try {
    parse_header(json, data_bytes);
    return "";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code, Exit::bad_input);
    return failure.what();
  }
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}";
}

TEST(SafetensorsHeader, ReadsTensorsAndMetadata) {
  const Header header =
      parse_header("{\"__metadata__\":{\"made\":\"here\"}," + tensor("b", "BF16", "[2,3]", "[8,20]") + "," +
                       tensor("a", "F32", "[2]", "[0,8]") + "}   ",
                   20);
  EXPECT_EQ(header.metadata, (Metadata{{"made", "here"}}));
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors.at("b").dtype, "BF16");
  EXPECT_EQ(header.tensors.at("b").shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(header.tensors.at("b").begin, 8u);
  EXPECT_EQ(header.tensors.at("b").end, 20u);
}

TEST(SafetensorsHeader, AcceptsScalarsAndEmptyTensors) {
  EXPECT_EQ(
      complaint("{" + tensor("s", "F32", "[]", "[0,4]") + "," + tensor("e", "F16", "[0,5]", "[4,4]") + "}",
                4),
      "");
  EXPECT_EQ(complaint("{}", 0), "");
}

TEST(SafetensorsHeader, OfManyTensorsIsReadInTheirTime) {
  const auto seconds_for = [](int tensors) {
    std::string json = "{";
    for (int i = 0; i < tensors; ++i)
      json += (i == 0 ? "" : ",") + tensor("t" + std::to_string(i), "F32", "[0]", "[0,0]");
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(complaint(json + "}", 0), "");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  seconds_for(1000);
  EXPECT_LT(seconds_for(40'000), 40 * seconds_for(4'000) + 0.1) << "ten times as many";
}

struct Refused {
  const char* name;
  std::string json;
  std::uint64_t data_bytes;
  const char* complaint;
};

void PrintTo(const Refused& refused, std::ostream* out) { *out << refused.complaint; }

class RefusedHeader : public testing::TestWithParam<Refused> {};

TEST_P(RefusedHeader, SaysWhy) {
  const Refused& refused = GetParam();
  EXPECT_THAT(complaint(refused.json, refused.data_bytes), HasSubstr(refused.complaint)) << refused.json;
}

INSTANTIATE_TEST_SUITE_P(
    Safetensors, RefusedHeader,
    testing::Values(
        Refused{"NotJson", "{\"a\":", 0, "not JSON"},  //
        Refused{"BadUtf8", "{\"\xff\":1}", 0, "not JSON"},
        Refused{"NotAnObject", "[1,2]", 0, "not a JSON object"},
        Refused{"DeepNesting", std::string(100'000, '['), 0, "nests deeper"},
        Refused{"TensorNotAnObject", "{\"a\":3}", 0, "'a' is not described"},
        Refused{"NoDtype", "{\"a\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4, "'a' has no 'dtype'"},
        Refused{"UnknownDtype", "{" + tensor("a", "F7", "[1]", "[0,4]") + "}", 4,
                "'a' has the unknown dtype 'F7'"},
        Refused{"ShapeNotAnArray", "{" + tensor("a", "F32", "4", "[0,4]") + "}", 4,
                "'a' has no array 'shape'"},
        Refused{"NegativeExtent", "{" + tensor("a", "F32", "[-1]", "[0,4]") + "}", 4,
                "'a' has -1 in 'shape'"},
        Refused{"FractionalExtent", "{" + tensor("a", "F32", "[1.5]", "[0,4]") + "}", 4,
                "'a' has 1.5 in 'shape'"},
        Refused{"OverflowingShape", "{" + tensor("a", "F32", "[4294967296,4294967296]", "[0,4]") + "}", 4,
                "too large"},
        Refused{"OneOffset", "{" + tensor("a", "F32", "[1]", "[0]") + "}", 4, "'a' has not two data_offsets"},
        Refused{"ReversedOffsets", "{" + tensor("a", "F32", "[1]", "[4,0]") + "}", 4, "wrong order"},
        Refused{"PastTheEnd", "{" + tensor("a", "F32", "[2]", "[0,8]") + "}", 4, "truncated"},
        Refused{"SizeMismatch", "{" + tensor("a", "F32", "[2]", "[0,4]") + "}", 4, "take 8 bytes"},
        Refused{"Overlap",
                "{" + tensor("a", "F32", "[2]", "[0,8]") + "," + tensor("b", "F32", "[1]", "[4,8]") + "}", 8,
                "'b' begins at byte 4, overlapping"},
        Refused{"Gap",
                "{" + tensor("a", "F32", "[1]", "[0,4]") + "," + tensor("b", "F32", "[1]", "[8,12]") + "}",
                12, "'b' begins at byte 8, leaving a gap"},
        Refused{"DataLeftOver", "{" + tensor("a", "F32", "[1]", "[0,4]") + "}", 8, "end at byte 4"},
        Refused{"DuplicateName",
                "{" + tensor("a", "F32", "[0]", "[0,0]") + "," + tensor("a", "F32", "[0]", "[0,0]") + "}", 0,
                "'a' twice"},
        Refused{"DuplicateKey",
                "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F16\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
                "'dtype' twice"},
        Refused{"MetadataNotStrings", "{\"__metadata__\":{\"a\":1}}", 0, "not a string"}),
    [](const auto& info) { return info.param.name; });

/// A random number of small edits; what comes out is mostly broken, sometimes valid.
std::string mutated(std::string text, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  for (std::size_t edit = 0, edits = 1 + below(4); edit < edits && !text.empty(); ++edit) {
    const std::size_t at = below(text.size());
    switch (below(5)) {
      case 0:
        text[at] = static_cast<char>(below(256));
        break;
      case 1:
        text[at] = "0123456789[]{},:\"-e."[below(20)];
        break;
      case 2:
        text.erase(at, 1 + below(8));
        break;
      case 3:
        text.insert(at, text.substr(below(text.size()), 1 + below(24)));
        break;
      default:
        text.resize(at);
    }
  }
  return text;
}

TEST(SafetensorsHeader, MutatedHeadersAreAcceptedConsistentOrRefused) {
  const std::string valid = "{\"__metadata__\":{\"mask\":\"full\"}," +
                            tensor("q", "F16", "[1,2,2,8]", "[0,64]") + "," +
                            tensor("k", "F32", "[1,2,2,8]", "[64,192]") + "}";
  const std::uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string json = mutated(valid, random);
    try {
      std::uint64_t covered = 0;
      for (const auto& [name, entry] : parse_header(json, 192).tensors) covered += entry.end - entry.begin;
      ASSERT_EQ(covered, 192u) << "seed " << seed << ": " << json;
      ++accepted;
    } catch (const Failure& failure) {
      ASSERT_EQ(failure.code, Exit::bad_input) << "seed " << seed << ": " << json;
    }
  }
  EXPECT_GT(accepted, 0) << "seed " << seed << ": mutations are too wild to test anything";
}

}  // namespace
}  // namespace tandem::cli
