// help, info, check and bench, run as a user runs them.
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/process.h"

namespace tandem::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> lines_of(std::istream&& in) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Help, ListsSubcommandsAndExitCodes) {
  const Outcome outcome = run_tool({"--help"});
  EXPECT_EQ(outcome.exit_code, 0);
  for (const char* word : {"attend", "check", "bench", "info", "Exit codes"})
    EXPECT_THAT(outcome.out, HasSubstr(word));
}

TEST(Help, EverySubcommandShowsDefaultsAndAllowedValues) {
  EXPECT_THAT(run_tool({"attend", "--help"}).out, AllOf(HasSubstr("full|causal|window:LEFT,RIGHT"),
                                                        HasSubstr("hopper"), HasSubstr("--tolerance")));
  EXPECT_THAT(run_tool({"bench", "--help"}).out,
              AllOf(HasSubstr("2048"), HasSubstr("paper"), HasSubstr("milliseconds")));
  EXPECT_THAT(run_tool({"check", "--help"}).out, AllOf(HasSubstr("--seed"), HasSubstr("1.1 times")));
  EXPECT_THAT(run_tool({"info", "--help"}).out, HasSubstr("--json"));
}

TEST(Usage, MistakesEndWithTwoAndNameTheMistake) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> mistakes = {
      {{}, "subcommand"},
      {{"attend"}, "FILE"},
      {{"frobnicate"}, "frobnicate"},
      {{"check", "--cases", "0"}, "--cases"},
      {{"check", "--backend", "tpu"}, "tpu"},
      {{"bench", "--mask", "window:3"}, "window:3"},
      {{"bench", "--mask", "window:-2,0"}, "window:-2,0"},
      {{"bench", "--seqlen", "-5"}, "--seqlen"},
      {{"bench", "--overlap", "four-stage"}, "three-stage"},
      {{"check", "--turn", "last"}, "pingpong"},
      {{"bench", "--grid", "paper", "--seqlen", "64"}, "--grid"},
      {{"bench", "--wgmma", "--seqlen", "64"}, "--wgmma"},
      {{"bench", "--decode", "--seqlen", "64"}, "--decode"},
      {{"bench", "--decode", "--host"}, "--decode"},
      {{"bench", "--page-size", "16"}, "--decode"},
      {{"bench", "--decode", "--kernel", "fast"}, "fast"},
      {{"bench", "--decode", "--tokens", "9", "--cache", "8"}, "q.shape[1] (sequence length) is 9"},
      {{"check", "--kernel", "plain"}, "--decode"},
      {{"check", "--decode", "--backward"}, "--backward"},
      {{"bench", "--backward", "--host"}, "--backward"},
      {{"bench", "--deterministic"}, "--backward"},
      {{"bench", "--heads", "6", "--kv-heads", "4", "--seqlen", "8"}, "heads"},
      {{"bench", "--seqlen", "8", "--budget", "nan"}, "--budget"},
      {{"bench", "--seqlen", "8", "--budget", "inf"}, "--budget"},
      {{"check", "--time-limit", "nan"}, "--time-limit"},
      {{"check", "--seed", "18446744073709551616", "--cases", "1"}, "18446744073709551616"},
      {{"check", "--seed", "-1", "--cases", "1"}, "-1"},
      {{"attend", "f", "--scale", "1e-50"}, "--scale"},
      {{"attend", "f", "--scale", "inf"}, "--scale"},
      {{"attend", "f", "--scale", "3e38"}, "scale is 3e+38"},
      {{"attend", "f", "--softcap", "nan"}, "--softcap"},
      {{"attend", "f", "--tolerance", "nan"}, "--tolerance"},
      {{"attend", "f", "-o", "g", "--o-name", "\xff"}, "UTF-8"},
      {{"attend", "f", "-o", "g", "--o-name", "__metadata__"}, "__metadata__"},
      {{"attend", "f", "--o-name", "o"}, "--o-name requires --output"},
      {{"attend", "f", "--lse"}, "--lse requires --output"},
      {{"attend", "f", "-o", "g", "--lse-name", "lse"}, "--lse-name requires --lse"},
      {{"attend", "f", "--tolerance", "1"}, "--tolerance requires --expect"},
      {{"attend", "f", "--chunk", "0"}, "--chunk: '0' is not a whole number from 1 to 2^60"},
      {{"attend", "f", "--chunk", "1.5"}, "whole number"},
      {{"attend", "f", "--chunk", "1152921504606846977"}, "2^60"},
      {{"attend", "f", "--fp8", "--alibi"}, "--alibi excludes --fp8"},
      {{"attend", "f", "--fp8=accurate", "--chunk", "8"}, "--chunk excludes --fp8"},
      {{"quantize", "f", "-o", "g", "--block", "-1"}, "--block: '-1' is not a whole number from 0 to 2^60"},
  };
  for (const auto& [arguments, word] : mistakes) {
    const Outcome outcome = run_tool(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome;
    EXPECT_THAT(outcome.err, AllOf(testing::StartsWith("tandem: "), HasSubstr(word)));
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << "one line: " << outcome;
  }
}

TEST(Help, DeterministicPromisesNoMoreThanEveryBackwardCallKeeps) {
  const std::string help = run_tool({"bench", "--help"}).out;
  const std::size_t option = help.find("--deterministic");
  ASSERT_NE(option, std::string::npos);
  EXPECT_NE(help.find("with it or", option), std::string::npos) << help;
}

TEST(Usage, OutputThatStdoutDoesNotTakeEndsWithFive) {
  const std::vector<std::vector<std::string>> commands = {{"--help"},
                                                          {"info"},
                                                          {"bench", "--backend", "cpu", "--seqlen", "8"},
                                                          {"check", "--cases", "1", "--seed", "1"}};
  for (const std::vector<std::string>& command : commands) {
    const Outcome outcome = run_tool_with_full_stdout(command);
    EXPECT_EQ(outcome.exit_code, 5) << outcome;
    EXPECT_THAT(outcome.err, HasSubstr("stdout"));
  }
}

TEST(Help, SubcommandsNameTheSameOptionsAlike) {
  if (run_tool({"sim", "--variants"}).exit_code == 4) GTEST_SKIP() << "built without the software Hopper";
  const std::string bench = run_tool({"bench", "--help"}).out, sim = run_tool({"sim", "--help"}).out;
  for (const char* option :
       {"--batch ", "--heads ", "--kv-heads ", "--seqlen ", "--seqlen-k ", "--head-dim ", "--mask "}) {
    EXPECT_THAT(bench, HasSubstr(option));
    EXPECT_THAT(sim, HasSubstr(option));
  }
}

TEST(Info, JsonSaysWhatIsBuiltAndWhatServes) {
  const Outcome outcome = run_tool({"info", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome;
  const auto info = nlohmann::json::parse(outcome.out);
  EXPECT_GE(info["cpu_threads"].get<int>(), 1);
  EXPECT_NE(info["cpu_simd"], "");
  EXPECT_EQ(info["auto_backend"]["fp32"], "cpu");
  EXPECT_EQ(info["auto_backend"]["bf16"], info["hopper_usable"] ? "hopper" : "cpu");
  EXPECT_EQ(info["hopper_reason"].get<std::string>().empty(), info["hopper_usable"].get<bool>());
}

TEST(Info, TextNamesTheBackendThatServes) {
  const Outcome outcome = run_tool({"info"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("--backend auto, bf16"), HasSubstr("Hopper usable here")));
}

TEST(Hopper, RatesOfTheMatrixUnitsNeedOne) {
  if (nlohmann::json::parse(run_tool({"info", "--json"}).out)["hopper_usable"])
    GTEST_SKIP() << "it can run here";
  const Outcome outcome = run_tool({"bench", "--wgmma"});
  EXPECT_EQ(outcome.exit_code, 4) << outcome;
  EXPECT_THAT(outcome.err, HasSubstr("Hopper GPU"));
  EXPECT_EQ(outcome.out, "");
}

TEST(Hopper, WhereItCantRunAskingForItEndsWithFour) {
  if (nlohmann::json::parse(run_tool({"info", "--json"}).out)["hopper_usable"])
    GTEST_SKIP() << "it can run here";
  for (const char* subcommand : {"check", "bench"})
    for (const bool decode : {false, true}) {
      std::vector<std::string> arguments{subcommand, "--backend", "hopper"};
      if (decode) arguments.push_back("--decode");
      const Outcome outcome = run_tool(arguments);
      EXPECT_EQ(outcome.exit_code, 4) << outcome;
      EXPECT_THAT(outcome.err, HasSubstr("--backend cpu"));
    }
}

TEST(Check, CpuBackendIsWithinToleranceAndPrintsItsSeed) {
  const Outcome outcome = run_tool({"check", "--backend", "cpu", "--seed", "1", "--cases", "40"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("seed 1,"), HasSubstr("40 of 40 cases within tolerance")));
}

TEST(Check, AWrongResultEndsWithOneAndPrintsACommandThatReplaysIt) {
  const Outcome all =
      run_tool_with_wrong_backend({"check", "--backend", "cpu", "--seed", "1", "--cases", "10"});
  ASSERT_EQ(all.exit_code, 1) << all;
  const std::size_t failed = all.out.find("FAILED"), replay = all.out.find("--cases 1 --seed ", failed);
  ASSERT_NE(replay, std::string::npos) << all;
  const std::string seed = std::to_string(std::stoull(all.out.substr(replay + 17)));
  const std::string description = all.out.substr(failed, all.out.find('\n', failed) - failed);
  const Outcome one =
      run_tool_with_wrong_backend({"check", "--backend", "cpu", "--cases", "1", "--seed", seed});
  EXPECT_EQ(one.exit_code, 1);
  EXPECT_THAT(one.out, HasSubstr(description));
}

TEST(Check, DecodingStepsAreWithinTolerance) {
  for (const char* backend : {"cpu", "reference"}) {
    const Outcome outcome =
        run_tool({"check", "--decode", "--backend", backend, "--seed", "1", "--cases", "25"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome;
    EXPECT_THAT(outcome.out, HasSubstr("25 of 25 cases within tolerance"));
  }
}

TEST(Check, BackwardCallsAreWithinTolerance) {
  for (const char* backend : {"cpu", "reference"}) {
    const Outcome outcome =
        run_tool({"check", "--backward", "--backend", backend, "--seed", "1", "--cases", "25"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome;
    EXPECT_THAT(outcome.out, HasSubstr("25 of 25 cases within tolerance"));
  }
}

TEST(Bench, TimesBackwardCallsAsRowsOfTheirOwnKind) {
  const Outcome outcome =
      run_tool({"bench", "--backward", "--deterministic", "--backend", "cpu", "--heads", "2", "--seqlen",
                "64", "--head-dim", "16", "--repeats", "1", "--commit", "abc", "--csv", "-"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("bwd,bf16,16,0,1,2,2,64,64,tandem,"), HasSubstr("full deterministic")));
}

TEST(Check, AWrongStepPrintsACommandThatReplaysIt) {
  const Outcome all = run_tool_with_wrong_backend(
      {"check", "--decode", "--kernel", "plain", "--backend", "cpu", "--seed", "1", "--cases", "4"});
  ASSERT_EQ(all.exit_code, 1) << all;
  EXPECT_THAT(all.out,
              HasSubstr("replay: tandem check --decode --kernel plain --backend cpu --cases 1 --seed "));
}

TEST(Check, WithoutASeedDrawsOneAndPrintsIt) {
  const Outcome outcome = run_tool({"check", "--backend", "cpu", "--cases", "15"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome;
  EXPECT_THAT(outcome.out, HasSubstr("seed "));
}

TEST(Check, StopsAtItsTimeLimit) {
  const Outcome outcome =
      run_tool({"check", "--backend", "cpu", "--cases", "1000000", "--time-limit", "0.5"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome;
  EXPECT_THAT(outcome.out, Not(HasSubstr("1000000 of 1000000")));
}

TEST(Bench, CsvHasTheRecordsColumnsAndOneRowAShape) {
  const ScratchFolder scratch;
  const Outcome outcome = run_tool({"bench",      "--backend",  "cpu",
                                    "--batch",    "1,2",        "--heads",
                                    "4",          "--kv-heads", "2",
                                    "--seqlen",   "33",         "--seqlen-k",
                                    "64",         "--head-dim", "64",
                                    "--mask",     "full",       "causal",
                                    "window:8,0", "--dtype",    "bf16,fp16",
                                    "--repeats",  "1",          "--commit",
                                    "abc",        "--csv",      scratch.file("bench.csv")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome;
  const std::vector<std::string> lines = lines_of(std::ifstream(scratch.file("bench.csv")));
  ASSERT_EQ(lines.size(), 1u + 2 * 3 * 2);
  EXPECT_EQ(lines[0], "kind,dtype,d,causal,b,hq,hk,sq,sk,peer,ms,ms_min,rate,note,commit,clock");
  EXPECT_THAT(lines[1], testing::StartsWith("fwd,bf16,64,0,1,4,2,33,64,tandem,"));
  EXPECT_THAT(lines[1], testing::EndsWith(",\"cpu full\",abc,"));
  EXPECT_THAT(outcome.out, HasSubstr("TFLOP/s"));
}

TEST(Bench, DecodeCsvHasOneRowAStep) {
  const ScratchFolder scratch;
  const Outcome outcome = run_tool({"bench",       "--decode",   "--backend",    "cpu",
                                    "--batch",     "1,2",        "--cache",      "33,64",
                                    "--heads",     "4",          "--kv-heads",   "2",
                                    "--head-dim",  "64",         "--tokens",     "1,3",
                                    "--page-size", "0,16",       "--split-size", "0,64",
                                    "--kernel",    "auto,plain", "--repeats",    "1",
                                    "--commit",    "abc",        "--csv",        scratch.file("decode.csv"),
                                    "--plan"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome;
  const std::vector<std::string> lines = lines_of(std::ifstream(scratch.file("decode.csv")));
  ASSERT_EQ(lines.size(), 1u + 64);
  EXPECT_EQ(lines[0], "kind,dtype,d,b,hq,hk,sq,sk,page,split,kernel,peer,us,us_min,rate,note,commit,clock");
  EXPECT_THAT(lines[1], testing::StartsWith("decode,bf16,64,1,4,2,1,33,0,0,auto,tandem,"));
  EXPECT_THAT(lines[64], testing::StartsWith("decode,bf16,64,2,4,2,3,64,16,64,plain,tandem,"));
  EXPECT_THAT(lines[1], testing::EndsWith(",cpu planned,abc,"));
  EXPECT_THAT(outcome.out, HasSubstr("GB/s"));
}

TEST(Bench, TheNoteSaysWhichKernelWasAskedFor) {
  const Outcome outcome = run_tool({"bench", "--backend", "cpu", "--seqlen", "16", "--repeats", "1", "--csv",
                                    "-", "--overlap", "two-stage", "--turn", "free"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome;
  EXPECT_THAT(outcome.out, HasSubstr("\"cpu full --overlap two-stage --turn free\""));
}

TEST(Check, ReplaysWithTheKernelThatWasAskedFor) {
  const Outcome outcome = run_tool_with_wrong_backend({"check", "--backend", "cpu", "--seed", "1", "--cases",
                                                       "3", "--overlap", "serial", "--turn", "pingpong"});
  ASSERT_EQ(outcome.exit_code, 1) << outcome;
  EXPECT_THAT(outcome.out, HasSubstr("--overlap serial --turn pingpong --cases 1 --seed "));
  EXPECT_THAT(outcome.out, Not(HasSubstr("softcap"))) << "kernels for study have none";
}

TEST(Bench, CsvOnStdoutIsNothingButCsv) {
  const Outcome outcome =
      run_tool({"bench", "--backend", "cpu", "--seqlen", "16,32", "--repeats", "1", "--csv", "-"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome;
  EXPECT_EQ(lines_of(std::istringstream(outcome.out)).size(), 3u) << outcome.out;
}

TEST(Bench, UnwritableCsvEndsWithFive) {
  EXPECT_EQ(
      run_tool({"bench", "--backend", "cpu", "--seqlen", "16", "--csv", "/nonexistent/bench.csv"}).exit_code,
      5);
}

}  // namespace
}  // namespace tandem::test
