// tandem quantize, run as a user runs it.
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "element.h"
#include "safetensors.h"
#include "tensor.h"
#include "tests/cli/process.h"

namespace tandem::test {
namespace {

using cli::HostTensor;
using cli::SafetensorsFile;
using testing::HasSubstr;

constexpr std::int64_t tokens = 150, heads = 2, columns = 64;

/// The same of each name.
std::vector<float> save(const std::string& path, const std::vector<std::string>& names) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> values(tokens * heads * columns);
  for (float& value : values) value = normal(random);
  const auto x =
      HostTensor::from_dense(TANDEM_FP32, {1, tokens, heads, columns}, cli::Layout::bshd(), values);
  std::vector<cli::NamedTensor> named;
  for (const std::string& name : names)
    named.push_back({name, "F32", {1, tokens, heads, columns}, x.storage});
  cli::write_safetensors(path, named, {});
  return values;
}

float of_e4m3(std::byte byte) {
  const int bits = std::to_integer<int>(byte), exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return bits >= 128 ? -magnitude : magnitude;
}

std::vector<float> loaded(const SafetensorsFile& file, const std::string& name) {
  const cli::TensorEntry& entry = file.header().tensors.at(name);
  const std::vector<std::byte> bytes = file.read(entry);
  std::vector<float> values;
  if (entry.dtype == "F8_E4M3") {
    for (const std::byte byte : bytes) values.push_back(of_e4m3(byte));
  } else {
    values.resize(bytes.size() / sizeof(float));
    cli::decode(TANDEM_FP32, bytes.data(), values);
  }
  return values;
}

class Quantize : public testing::Test {
 protected:
  Outcome quantize(std::vector<std::string> more) {
    more.insert(more.begin(), {"quantize", in, "-o", out});
    return run_tool(more);
  }
  ScratchFolder scratch;
  std::string in = scratch.file("in.safetensors"), out = scratch.file("out.safetensors");
};

TEST_F(Quantize, WritesEachTensorAndItsScalesForAllLayers) {
  const std::vector<float> x = save(in, {"l.0.q", "l.0.k", "l.0.v", "l.1.q", "l.1.k", "l.1.v"});
  const Outcome done = quantize({"--q", "l.{}.q", "--k", "l.{}.k", "--v", "l.{}.v"});
  ASSERT_EQ(done.exit_code, 0) << done;
  EXPECT_THAT(done.out, HasSubstr("l.1.v"));
  const SafetensorsFile file(out);
  EXPECT_EQ(file.header().tensors.size(), 12u);
  EXPECT_EQ(file.header().tensors.at("l.1.k").dtype, "F8_E4M3");
  EXPECT_EQ(file.header().tensors.at("l.1.k_scale").shape, (std::vector<std::int64_t>{1, 2, heads}));
  const std::vector<float> bits = loaded(file, "l.1.k"), scale = loaded(file, "l.1.k_scale");
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t token = i / (heads * columns), head = i / columns % heads;
    const float back = bits[i] * scale[token / 128 * heads + head];
    ASSERT_NEAR(back, x[i], std::fabs(x[i]) / 16 + 1e-4) << "element " << i;
  }
}

TEST_F(Quantize, ValuesByColumnAndOneScaleForAllTokens) {
  save(in, {"q", "k", "v"});
  const Outcome done = quantize({"--by-column", "--block", "0", "--hadamard"});
  ASSERT_EQ(done.exit_code, 0) << done;
  const SafetensorsFile file(out);
  EXPECT_EQ(file.header().tensors.at("v").shape, (std::vector<std::int64_t>{1, columns, heads, 160}));
  EXPECT_EQ(file.header().tensors.at("v_scale").shape, (std::vector<std::int64_t>{1, 1, heads}));
  EXPECT_EQ(file.header().metadata.at("hadamard"), "1");
  EXPECT_NE(loaded(file, "q"), loaded(file, "v"));
}

TEST_F(Quantize, IntegersAndTwoTerms) {
  const std::vector<float> x = save(in, {"q", "k", "v"});
  const Outcome done = quantize({"--int8", "--by-column", "--terms", "2"});
  ASSERT_EQ(done.exit_code, 0) << done;
  const SafetensorsFile file(out);
  EXPECT_EQ(file.header().tensors.at("k").dtype, "I8");
  EXPECT_EQ(file.header().tensors.at("v").dtype, "F8_E4M3");
  EXPECT_EQ(file.header().tensors.at("v").shape, (std::vector<std::int64_t>{1, 2 * columns, heads, 160}));
  const std::vector<std::byte> bits = file.read(file.header().tensors.at("k"));
  const std::vector<float> scale = loaded(file, "k_scale");
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t token = i / (heads * columns), head = i / columns % heads;
    const float unit = scale[token / 128 * heads + head];
    const float back = static_cast<float>(std::to_integer<std::int8_t>(bits[i])) * unit;
    ASSERT_NEAR(back, x[i], 0.501f * unit) << "element " << i;
  }
  EXPECT_EQ(quantize({"--terms", "2"}).exit_code, 2) << "by key there is one";
}

TEST_F(Quantize, QueriesHaveTheBestScaleOfEachToken) {
  const std::vector<float> x = save(in, {"q", "k", "v"});
  std::vector<double> error;
  for (const bool best : {false, true}) {
    const Outcome done =
        quantize(best ? std::vector<std::string>{"--best-q-scales"} : std::vector<std::string>{});
    ASSERT_EQ(done.exit_code, 0) << done;
    const SafetensorsFile file(out);
    EXPECT_EQ(file.header().metadata.at("q_block"), best ? "1" : "128");
    const std::int64_t block = best ? 1 : 128, blocks = (tokens + block - 1) / block;
    EXPECT_EQ(file.header().tensors.at("q_scale").shape, (std::vector<std::int64_t>{1, blocks, heads}));
    EXPECT_EQ(file.header().tensors.at("k_scale").shape, (std::vector<std::int64_t>{1, 2, heads}));
    const std::vector<float> bits = loaded(file, "q"), scale = loaded(file, "q_scale");
    error.push_back(0);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t token = i / (heads * columns), head = i / columns % heads;
      const float back = bits[i] * scale[token / static_cast<std::size_t>(block) * heads + head];
      error.back() += std::pow(static_cast<double>(back - x[i]), 2);
    }
  }
  EXPECT_LT(error[1], 0.92 * error[0]);
  EXPECT_EQ(quantize({"--best-q-scales", "--int8"}).exit_code, 2) << "of integers there is one";
}

TEST_F(Quantize, MeansOfKeysAndValuesAreTakenOffAndWritten) {
  const std::vector<float> x = save(in, {"l.0.q", "l.0.k", "l.0.v"});
  const Outcome done = quantize({"--q", "l.{}.q", "--k", "l.{}.k", "--v", "l.{}.v", "--int8", "--means"});
  ASSERT_EQ(done.exit_code, 0) << done;
  const SafetensorsFile file(out);
  EXPECT_EQ(file.header().tensors.size(), 9u);
  EXPECT_NE(file.header().metadata.at("means"), "none");
  EXPECT_EQ(file.header().tensors.at("l.0.v_shift").shape, (std::vector<std::int64_t>{1, heads, columns}));
  EXPECT_EQ(file.header().tensors.at("l.0.q_dot_k_shift").shape,
            (std::vector<std::int64_t>{1, tokens, heads}));
  const std::vector<float> mean = loaded(file, "l.0.k_shift"), dots = loaded(file, "l.0.q_dot_k_shift");
  EXPECT_EQ(loaded(file, "l.0.v_shift"), mean) << "of the same numbers";
  const std::vector<std::byte> bits = file.read(file.header().tensors.at("l.0.k"));
  const std::vector<float> scale = loaded(file, "l.0.k_scale");
  std::vector<double> sum(mean.size()), dot(dots.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t token = i / (heads * columns), head = i / columns % heads, of_entry = i % sum.size();
    const float unit = scale[token / 128 * heads + head];
    const float back = static_cast<float>(std::to_integer<std::int8_t>(bits[i])) * unit + mean[of_entry];
    ASSERT_NEAR(back, x[i], 0.501f * unit) << "element " << i;
    sum[of_entry] += static_cast<double>(x[i]);
    dot[token * heads + head] += static_cast<double>(x[i]) * static_cast<double>(mean[of_entry]);
  }
  for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(sum[i] / tokens, mean[i], 1e-6) << i;
  for (std::size_t i = 0; i < dot.size(); ++i) ASSERT_NEAR(dot[i], dots[i], 1e-5) << i;
}

TEST_F(Quantize, NamesWhatIsMissing) {
  save(in, {"q", "k"});
  const Outcome refused = quantize({});
  EXPECT_EQ(refused.exit_code, 3) << refused;
  EXPECT_THAT(refused.err, HasSubstr("'v'"));
  EXPECT_EQ(run_tool({"quantize", in, "-o", in}).exit_code, 2);
}

TEST_F(Quantize, RefusesToWriteTwoTensorsOfOneName) {
  save(in, {"q", "k", "v", "q_scale", "k_shift"});
  for (const auto& [name, options] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"q", {"--k", "q"}},
           {"q_scale", {"--v", "q_scale"}},
           {"k_shift", {"--v", "k_shift", "--means"}}}) {
    const Outcome refused = quantize(options);
    EXPECT_EQ(refused.exit_code, 2) << refused;
    EXPECT_THAT(refused.err, HasSubstr("two tensors '" + name + "'"));
    EXPECT_EQ(refused.out, "") << "no layer was run";
  }
  EXPECT_EQ(quantize({"--v", "k_shift"}).exit_code, 0) << "without means there is no shift";
}

TEST_F(Quantize, AnInputThatHasTheNameOfTheUnfinishedOutputIsNotRemoved) {
  in = out + ".partial";
  save(in, {"q", "k", "v"});
  const Outcome refused = quantize({});
  EXPECT_EQ(refused.exit_code, 2) << refused;
  EXPECT_EQ(SafetensorsFile(in).header().tensors.size(), 3u);
}

}  // namespace
}  // namespace tandem::test
