// tandem attend, run as a user runs it.
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <sstream>

#include "element.h"
#include "safetensors.h"
#include "tensor.h"
#include "tests/cli/process.h"

namespace tandem::test {
namespace {

using cli::HostTensor;
using cli::Layout;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Tensors = std::vector<std::pair<std::string, HostTensor>>;

void save(const std::string& path, const Tensors& tensors, const Layout& layout = Layout::bshd()) {
  std::vector<cli::NamedTensor> named;
  for (const auto& [name, tensor] : tensors) {
    std::vector<std::int64_t> shape;
    for (const int dimension : layout.order)
      shape.push_back(tensor.shape[static_cast<std::size_t>(dimension)]);
    named.push_back({name, tensor.dtype == TANDEM_FP32 ? "F32" : "BF16", shape, tensor.storage});
  }
  cli::write_safetensors(path, named, {{"from", "a test"}});
}

std::vector<float> loaded(const std::string& path, const std::string& name, tandem_dtype dtype) {
  const cli::SafetensorsFile file(path);
  const std::vector<std::byte> bytes = file.read(file.header().tensors.at(name));
  std::vector<float> values(bytes.size() / cli::size_of(dtype));
  cli::decode(dtype, bytes.data(), values);
  return values;
}

HostTensor normal(const cli::Shape& shape, tandem_dtype dtype, unsigned seed,
                  const Layout& layout = Layout::bshd()) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(static_cast<std::size_t>(cli::count_of(shape)));
  for (float& value : values) value = distribution(random);
  return HostTensor::from_dense(dtype, shape, layout, values);
}

/// q, k and v of two queries, three keys, one kv head; fp32.
Tensors small(const Layout& layout = Layout::bshd()) {
  return {{"q", normal({1, 2, 2, 8}, TANDEM_FP32, 1, layout)},
          {"k", normal({1, 3, 1, 8}, TANDEM_FP32, 2, layout)},
          {"v", normal({1, 3, 1, 8}, TANDEM_FP32, 3, layout)}};
}

class Attend : public testing::Test {
 protected:
  Outcome attend(std::vector<std::string> more) {
    more.insert(more.begin(), {"attend", in});
    return run_tool(more);
  }
  void write_bytes(const std::string& content) { std::ofstream(in, std::ios::binary) << content; }
  std::string bytes() {
    std::ifstream stream(in, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  ScratchFolder scratch;
  std::string in = scratch.file("in.safetensors"), out = scratch.file("out.safetensors");
};

TEST_F(Attend, EightBitsAreNearTheOriginalsButNotEqualToThem) {
  save(in, {{"q", normal({1, 70, 2, 64}, TANDEM_FP32, 1)},
            {"k", normal({1, 150, 1, 64}, TANDEM_FP32, 2)},
            {"v", normal({1, 150, 1, 64}, TANDEM_FP32, 3)}});
  const Outcome whole = attend({"-o", out, "--lse"});
  ASSERT_EQ(whole.exit_code, 0) << whole;
  const std::vector<float> expected = loaded(out, "o", TANDEM_FP32);
  const Outcome rounded = attend({"-o", out, "--fp8", "--check"});
  ASSERT_EQ(rounded.exit_code, 0) << rounded;
  const std::vector<float> o = loaded(out, "o", TANDEM_FP32);
  float largest = 0;
  for (std::size_t i = 0; i < o.size(); ++i) largest = std::max(largest, std::fabs(o[i] - expected[i]));
  EXPECT_LT(largest, 0.2f);
  EXPECT_GT(largest, 1e-3f);
}

TEST_F(Attend, FinerModesOfEightBitsAreNearer) {
  save(in, {{"q", normal({1, 70, 2, 64}, TANDEM_FP32, 1)},
            {"k", normal({1, 150, 1, 64}, TANDEM_FP32, 2)},
            {"v", normal({1, 150, 1, 64}, TANDEM_FP32, 3)}});
  ASSERT_EQ(attend({"-o", out}).exit_code, 0);
  const std::vector<float> expected = loaded(out, "o", TANDEM_FP32);
  std::vector<float> errors;
  for (const std::string mode : {"--fp8", "--fp8=balanced", "--fp8=accurate"}) {
    const Outcome rounded = attend({"-o", out, mode});
    ASSERT_EQ(rounded.exit_code, 0) << rounded;
    const std::vector<float> o = loaded(out, "o", TANDEM_FP32);
    float squares = 0;
    for (std::size_t i = 0; i < o.size(); ++i) squares += (o[i] - expected[i]) * (o[i] - expected[i]);
    errors.push_back(std::sqrt(squares / static_cast<float>(o.size())));
  }
  EXPECT_LT(1.2f * errors[1], errors[0]);
  EXPECT_LT(2 * errors[2], errors[1]);
  EXPECT_EQ(attend({"-o", out, "--fp8=best"}).exit_code, 2);
}

/// What the table of a call with --check and one layer has as the RMSE against the oracle.
double rmse_of_oracle(const Outcome& outcome) {
  std::istringstream row(outcome.out.substr(outcome.out.find("\n-") + 1));
  std::vector<std::string> cells(7);  // layer, shape, keys, dtype, backend, largest error, RMSE
  for (std::string& cell : cells) row >> cell;
  return std::stod(cells[6]);
}

TEST_F(Attend, CheckShowsWhatEightBitsCostAndDoesNotJudgeIt) {
  save(in, {{"q", normal({1, 70, 2, 64}, TANDEM_BF16, 1)},
            {"k", normal({1, 150, 1, 64}, TANDEM_BF16, 2)},
            {"v", normal({1, 150, 1, 64}, TANDEM_BF16, 3)}});
  const Outcome whole = attend({"--check"}), fast = attend({"--check", "--fp8"}),
                accurate = attend({"--check", "--fp8=accurate"});
  for (const Outcome& outcome : {whole, fast, accurate}) ASSERT_EQ(outcome.exit_code, 0) << outcome;
  EXPECT_GT(rmse_of_oracle(fast), 2 * rmse_of_oracle(accurate)) << fast << accurate;
  EXPECT_GT(rmse_of_oracle(accurate), 1.2 * rmse_of_oracle(whole)) << accurate << whole;
  EXPECT_THAT(whole.out, AllOf(HasSubstr("ok"), Not(HasSubstr("not judged"))));
  EXPECT_THAT(fast.out, AllOf(HasSubstr("not judged"), Not(HasSubstr("ok"))));
}

/// Every other column has a mean, of which 8 bits would be lost.
HostTensor biased(HostTensor x) {
  std::vector<float> values = x.to_dense();
  for (std::size_t i = 0; i < values.size(); i += 2) values[i] += 8;
  x.assign_dense(values);
  return x;
}

TEST_F(Attend, MeansAreTakenOff8BitsAndComeBackInBothOutputs) {
  save(in, {{"q", normal({2, 70, 2, 64}, TANDEM_FP32, 1)},
            {"k", biased(normal({2, 150, 1, 64}, TANDEM_FP32, 2))},
            {"v", biased(normal({2, 150, 1, 64}, TANDEM_FP32, 3))}});
  ASSERT_EQ(attend({"-o", out, "--lse"}).exit_code, 0);
  const std::vector<float> o = loaded(out, "o", TANDEM_FP32), lse = loaded(out, "lse", TANDEM_FP32);
  const auto errors_of = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"-o", out, "--lse", "--fp8"});
    const Outcome rounded = attend(options);
    EXPECT_EQ(rounded.exit_code, 0) << rounded;
    const auto largest = [&](const std::vector<float>& expected, const char* name) {
      const std::vector<float> own = loaded(out, name, TANDEM_FP32);
      float error = 0;
      for (std::size_t i = 0; i < own.size(); ++i) error = std::max(error, std::fabs(own[i] - expected[i]));
      return error;
    };
    return std::pair(largest(o, "o"), largest(lse, "lse"));
  };
  const auto [of_o, of_lse] = errors_of({"--means"});
  EXPECT_LT(of_o, 0.2f);
  EXPECT_LT(of_lse, 0.2f);
  EXPECT_GT(errors_of({}).first, 2 * of_o) << "bits of v go to its mean";
}

TEST_F(Attend, WithACapOnlyTheMeanOfValuesIsTakenOff) {
  save(in, {{"q", normal({1, 30, 1, 64}, TANDEM_FP32, 1)},
            {"k", normal({1, 40, 1, 64}, TANDEM_FP32, 2)},
            {"v", biased(normal({1, 40, 1, 64}, TANDEM_FP32, 3))}});
  ASSERT_EQ(attend({"-o", out, "--softcap", "5"}).exit_code, 0);
  const std::vector<float> expected = loaded(out, "o", TANDEM_FP32);
  const Outcome rounded = attend({"-o", out, "--softcap", "5", "--fp8", "--means"});
  ASSERT_EQ(rounded.exit_code, 0) << rounded;
  const std::vector<float> o = loaded(out, "o", TANDEM_FP32);
  for (std::size_t i = 0; i < o.size(); ++i) ASSERT_NEAR(o[i], expected[i], 0.2) << i;
  EXPECT_EQ(attend({"-o", out, "--means"}).exit_code, 2) << "of 8 bits only";
}

TEST_F(Attend, OneKeyGivesItsValue) {
  const HostTensor v = normal({1, 1, 1, 8}, TANDEM_FP32, 3);
  save(in,
       {{"q", normal({1, 1, 1, 8}, TANDEM_FP32, 1)}, {"k", normal({1, 1, 1, 8}, TANDEM_FP32, 2)}, {"v", v}});
  const Outcome outcome = attend({"-o", out, "--lse"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome;
  EXPECT_EQ(loaded(out, "o", TANDEM_FP32), v.to_dense());
  EXPECT_EQ(cli::SafetensorsFile(out).header().tensors.at("lse").shape, (std::vector<std::int64_t>{1, 1, 1}));
}

TEST_F(Attend, AnOutputIsAcceptedAsExpectedAndAnotherIsNot) {
  Tensors tensors = small();
  save(in, tensors);
  ASSERT_EQ(attend({"-o", out, "--backend", "reference"}).exit_code, 0);
  tensors.emplace_back("right", HostTensor::from_dense(TANDEM_FP32, {1, 2, 2, 8}, Layout::bshd(),
                                                       loaded(out, "o", TANDEM_FP32)));
  tensors.emplace_back("wrong", normal({1, 2, 2, 8}, TANDEM_FP32, 9));
  save(in, tensors);
  EXPECT_EQ(attend({"--expect", "right"}).exit_code, 0);
  EXPECT_EQ(attend({"--expect", "wrong", "--tolerance", "100"}).exit_code, 0);
  const Outcome wrong = attend({"--expect", "wrong", "-o", out});
  EXPECT_EQ(wrong.exit_code, 1) << wrong;
  EXPECT_THAT(wrong.out, AllOf(HasSubstr("FAILED"), HasSubstr("--tolerance")));
  EXPECT_EQ(attend({"--expect", "right", "--mask", "causal"}).exit_code, 1);
  EXPECT_EQ(attend({"--expect", "right", "--scale", "2"}).exit_code, 1);
  EXPECT_EQ(attend({"--expect", "right", "--softcap", "0.1"}).exit_code, 1);
}

TEST_F(Attend, ChunksAndSlopesChangeTheOutputAsTheOracleSays) {
  save(in, {{"q", normal({1, 30, 6, 16}, TANDEM_FP32, 1)},
            {"k", normal({1, 50, 3, 16}, TANDEM_FP32, 2)},
            {"v", normal({1, 50, 3, 16}, TANDEM_FP32, 3)}});
  std::vector<std::vector<float>> outputs;
  for (const bool chunk : {false, true})
    for (const bool alibi : {false, true}) {
      std::vector<std::string> options = {"-o", out, "--check", "--mask", "causal"};
      if (chunk) options.insert(options.end(), {"--chunk", "16"});
      if (alibi) options.emplace_back("--alibi");
      const Outcome outcome = attend(options);
      ASSERT_EQ(outcome.exit_code, 0) << outcome;
      for (const std::vector<float>& other : outputs) EXPECT_NE(loaded(out, "o", TANDEM_FP32), other);
      outputs.push_back(loaded(out, "o", TANDEM_FP32));
    }
  EXPECT_EQ(attend({"--chunk", "-3"}).exit_code, 2);
}

TEST_F(Attend, LayoutsDescribeTheSameTensors) {
  save(in, small());
  ASSERT_EQ(attend({"-o", out, "--lse"}).exit_code, 0);
  const HostTensor o =
      HostTensor::from_dense(TANDEM_FP32, {1, 2, 2, 8}, Layout::bshd(), loaded(out, "o", TANDEM_FP32));
  save(in, small(Layout::bhsd()), Layout::bhsd());
  const Outcome outcome = attend({"-o", out, "--lse", "--layout", "bhsd"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome;
  HostTensor transposed = HostTensor::poisoned(TANDEM_FP32, {1, 2, 2, 8}, Layout::bhsd());
  transposed.assign_dense(o.to_dense());
  std::vector<float> expected(32);
  cli::decode(TANDEM_FP32, transposed.storage.data(), expected);
  EXPECT_EQ(loaded(out, "o", TANDEM_FP32), expected);
}

TEST_F(Attend, ConvertsToTheDtypeAskedFor) {
  save(in, small());
  ASSERT_EQ(attend({"-o", out, "--dtype", "bf16", "--check"}).exit_code, 0);
  EXPECT_EQ(cli::SafetensorsFile(out).header().tensors.at("o").dtype, "BF16");
}

TEST_F(Attend, ChecksLongSequencesInFp32) {
  constexpr std::int64_t keys = 40'000;
  save(in, {{"q", normal({1, 8, 1, 64}, TANDEM_FP32, 1)},
            {"k", normal({1, keys, 1, 64}, TANDEM_FP32, 2)},
            {"v", normal({1, keys, 1, 64}, TANDEM_FP32, 3)}});
  const Outcome outcome = attend({"--backend", "cpu", "--check"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome;
}

TEST_F(Attend, CheckFindsAWrongResult) {
  save(in, small());
  EXPECT_EQ(attend({"--backend", "cpu", "--check"}).exit_code, 0);
  const Outcome outcome = run_tool_with_wrong_backend({"attend", in, "--backend", "cpu", "--check"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("FAILED"), HasSubstr("oracle")));
}

TEST_F(Attend, BesideNaNInTheInputTheOtherRowsAreJudged) {
  Tensors tensors = small();
  std::vector<float> q = tensors[0].second.to_dense();
  q.back() = std::numeric_limits<float>::quiet_NaN();
  tensors[0].second.assign_dense(q);
  save(in, tensors);
  const Outcome right = attend({"--backend", "cpu", "--check"});
  EXPECT_EQ(right.exit_code, 0) << right;
  EXPECT_LT(rmse_of_oracle(right), 1e-6) << right;
  // The first element is wrong there, the last row NaN.
  const Outcome wrong = run_tool_with_wrong_backend({"attend", in, "--backend", "cpu", "--check"});
  EXPECT_EQ(wrong.exit_code, 1) << wrong;
}

TEST_F(Attend, AnInfiniteValueDoesNotMakeEverythingAsExpected) {
  Tensors tensors = small();
  std::vector<float> v = tensors[2].second.to_dense();
  v.back() = std::numeric_limits<float>::infinity();
  tensors[2].second.assign_dense(v);
  tensors.emplace_back("wrong", normal({1, 2, 2, 8}, TANDEM_FP32, 9));
  save(in, tensors);
  EXPECT_EQ(attend({"--expect", "wrong"}).exit_code, 1);
}

TEST_F(Attend, ServesValuesOfAnotherHeadDim) {
  save(in, {{"q", normal({2, 20, 4, 16}, TANDEM_FP32, 1)},
            {"k", normal({2, 33, 2, 16}, TANDEM_FP32, 2)},
            {"v", normal({2, 33, 2, 24}, TANDEM_FP32, 3)}});
  const Outcome outcome = attend({"-o", out, "--lse", "--check", "--mask", "causal"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome;
  const cli::SafetensorsFile written(out);
  EXPECT_EQ(written.header().tensors.at("o").shape, (std::vector<std::int64_t>{2, 20, 4, 24}));
  EXPECT_EQ(written.header().tensors.at("lse").shape, (std::vector<std::int64_t>{2, 20, 4}));
  const Outcome eight_bit = attend({"--fp8"});
  EXPECT_EQ(eight_bit.exit_code, 4) << eight_bit;
  EXPECT_THAT(eight_bit.err,
              AllOf(HasSubstr("--fp8"), HasSubstr("head dim of --v is 24 and that of --q 16")));
}

TEST_F(Attend, RunsEveryLayerOfARealModelWithinRoundingOfItsOwnOutput) {
  in = TANDEM_MINILM;
  const Outcome outcome = attend({"--q", "layers.{}.q", "--k", "layers.{}.k", "--v", "layers.{}.v",
                                  "--expect", "layers.{}.o", "--check", "--lse", "-o", out});
  ASSERT_EQ(outcome.exit_code, 0) << outcome;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("MiniLM"), HasSubstr("GFLOP/s")));
  const cli::SafetensorsFile written(out);
  EXPECT_EQ(written.header().tensors.size(), 12u);
  EXPECT_EQ(written.header().tensors.at("layers.5.o").shape,
            cli::SafetensorsFile(in).header().tensors.at("layers.5.q").shape);
}

TEST_F(Attend, NamesWithAndWithoutLayerNumbersDoNotMix) {
  in = TANDEM_MINILM;
  const Outcome outcome = attend({"--q", "layers.{}.q", "--k", "layers.0.k", "--v", "layers.{}.v"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome;
  EXPECT_THAT(outcome.err, HasSubstr("layers.0.k"));
}

TEST_F(Attend, MissingTensorsAreNamedWithThoseThatExist) {
  in = TANDEM_MINILM;
  const Outcome outcome = attend({});
  EXPECT_EQ(outcome.exit_code, 3) << outcome;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("no tensor 'q'"), HasSubstr("layers.0.k"), HasSubstr("--q")));
  EXPECT_EQ(attend({"--q", "block.{}.q", "--k", "block.{}.k", "--v", "block.{}.v"}).exit_code, 3);
}

TEST_F(Attend, TensorsThatDoNotFitEachOtherAreTheFilesFault) {
  Tensors tensors = small();
  tensors[1].second = normal({1, 3, 1, 16}, TANDEM_FP32, 2);
  save(in, tensors);
  const Outcome outcome = attend({});
  EXPECT_EQ(outcome.exit_code, 3) << outcome;
  EXPECT_THAT(outcome.err, HasSubstr("k"));
}

TEST_F(Attend, DamagedFilesEndWithThree) {
  EXPECT_EQ(attend({}).exit_code, 3) << "no such file";
  save(in, small());
  const std::string good = bytes();
  const std::vector<std::pair<std::string, std::string>> damaged = {
      {"", "too few"},
      {good.substr(0, 5), "too few"},
      {good.substr(0, 60), "truncated"},
      {good.substr(0, good.size() - 4), "truncated"},
      {good + "more", "holds"},
      {std::string(8, '\xff') + good.substr(8), "header claims"},
      {good.substr(0, 8) + "x" + good.substr(9), "not JSON"},
  };
  for (const auto& [content, complaint] : damaged) {
    write_bytes(content);
    const Outcome outcome = attend({});
    EXPECT_EQ(outcome.exit_code, 3) << outcome;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("in.safetensors"), HasSubstr(complaint)));
  }
}

TEST_F(Attend, RandomlyDamagedFilesNeverCrash) {
  save(in, small());
  const std::string good = bytes();
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int i = 0; i < 40; ++i) {
    std::string content = good;
    content[random() % (i % 2 == 0 ? 300 : content.size())] = static_cast<char>(random());
    if (i % 4 == 3) content.resize(random() % content.size());
    write_bytes(content);
    const Outcome outcome = attend({});
    EXPECT_THAT(outcome.exit_code, testing::AnyOf(0, 3)) << "seed " << seed << ", file " << i << "\n"
                                                         << outcome;
  }
}

TEST_F(Attend, UnwritableOutputEndsWithFiveAndLeavesNothingBehind) {
  save(in, small());
  const Outcome outcome = attend({"-o", "/nonexistent/out.safetensors"});
  EXPECT_EQ(outcome.exit_code, 5) << outcome;
  EXPECT_THAT(outcome.err, HasSubstr("/nonexistent/out.safetensors"));
}

TEST_F(Attend, WhatCanNotBeWrittenIsKnownBeforeTheWork) {
  save(in, small());
  const Outcome outcome = attend({"-o", "/nonexistent/out.safetensors", "--repeats", "1000000"});
  EXPECT_EQ(outcome.exit_code, 5) << outcome;
  EXPECT_EQ(outcome.out, "") << "no layer was run";
}

TEST_F(Attend, TheInputIsNotReplaced) {
  save(in, small());
  const std::string before = bytes();
  std::filesystem::create_symlink(in, out);
  for (const std::string& name : {in, out}) {
    const Outcome outcome = attend({"-o", name});
    EXPECT_EQ(outcome.exit_code, 2) << outcome;
    EXPECT_THAT(outcome.err, HasSubstr("is the input file"));
  }
  EXPECT_EQ(bytes(), before);
}

TEST_F(Attend, AnInputThatHasTheNameOfTheUnfinishedOutputIsNotRemoved) {
  in = out + ".partial";
  save(in, small());
  const std::string before = bytes();
  const Outcome outcome = attend({"-o", out});
  EXPECT_EQ(outcome.exit_code, 2) << outcome;
  EXPECT_THAT(outcome.err, HasSubstr("which is the input file; choose another"));
  EXPECT_EQ(bytes(), before);
}

TEST_F(Attend, RefusesToWriteTwoTensorsOfOneName) {
  Tensors layers;
  for (const std::string number : {"0", "10"})
    for (const auto& [name, tensor] : small()) layers.emplace_back(name + number, tensor);
  save(in, layers);
  const std::vector<std::string> names{"--q", "q{}", "--k", "k{}",      "--v",
                                       "v{}", "-o",  out,   "--o-name", "a{}"};
  std::vector<std::string> with_lse = names;
  with_lse.insert(with_lse.end(), {"--lse", "--lse-name", "a1{}"});
  const Outcome outcome = attend(with_lse);
  EXPECT_EQ(outcome.exit_code, 2) << outcome;
  EXPECT_THAT(outcome.err, HasSubstr("two tensors 'a10'"));
  EXPECT_EQ(outcome.out, "") << "no layer was run";
  EXPECT_EQ(attend(names).exit_code, 0);
}

TEST_F(Attend, APartialFileThatIsALinkIsReplacedNotFollowed) {
  save(in, small());
  const std::string other = scratch.file("other");
  std::ofstream(other) << "mine";
  std::filesystem::create_symlink(other, out + ".partial");
  EXPECT_EQ(attend({"-o", out}).exit_code, 0);
  EXPECT_EQ(std::filesystem::file_size(other), 4u);
  EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(out)));
  EXPECT_FALSE(std::filesystem::exists(out + ".partial"));
}

TEST_F(Attend, WhereItFailsNoPartialFileStays) {
  Tensors tensors = small();
  tensors[1].second = normal({1, 3, 1, 16}, TANDEM_FP32, 2);
  save(in, tensors);
  EXPECT_EQ(attend({"-o", out}).exit_code, 3);
  EXPECT_FALSE(std::filesystem::exists(out + ".partial"));
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST_F(Attend, AShapeTooLargeBesideAZeroIsTheFilesFault) {
  const std::string header =
      R"({"q":{"dtype":"F32","shape":[4611686018427387904,4611686018427387904,0,8],"data_offsets":[0,0]},)"
      R"("k":{"dtype":"F32","shape":[1,1,1,8],"data_offsets":[0,32]},)"
      R"("v":{"dtype":"F32","shape":[1,1,1,8],"data_offsets":[32,64]}})";
  std::string content(8, '\0');
  for (int i = 0; i < 8; ++i)
    content[static_cast<std::size_t>(i)] = static_cast<char>(header.size() >> (8 * i));
  write_bytes(content + header + std::string(64, '\0'));
  const Outcome outcome = attend({});
  EXPECT_EQ(outcome.exit_code, 3) << outcome;
}

TEST_F(Attend, ControlCharactersOfNamesDoNotReachTheTerminal) {
  Tensors tensors = small();
  tensors.emplace_back("evil\x1b[2J\xc2\x9b", normal({1, 1, 1, 8}, TANDEM_FP32, 4));
  save(in, tensors);
  const Outcome missing = attend({"--q", "none"}), found = attend({"--expect", "evil\x1b[2J\xc2\x9b"});
  EXPECT_EQ(missing.exit_code, 3) << missing;
  EXPECT_EQ(found.exit_code, 3) << found;
  for (const std::string& text : {missing.err, found.err}) {
    EXPECT_THAT(text, HasSubstr("evil\\x1b[2J\\xc2\\x9b"));
    EXPECT_EQ(text.find('\x1b'), std::string::npos);
  }
}

TEST_F(Attend, WritesToADeviceWithoutReplacingIt) {
  save(in, small());
  EXPECT_EQ(attend({"-o", "/dev/null"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

}  // namespace
}  // namespace tandem::test
