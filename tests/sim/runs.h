// The seeds and policies under which a test runs a kernel of the software Hopper.
#pragma once

#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <gtest/gtest.h>
#include <string>
#include <type_traits>

#include "apps/sim/machine.h"

namespace tandem::test {

inline std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// A variant's name as GoogleTest takes it.
template <typename Variant>
std::string test_name(const testing::TestParamInfo<Variant>& info) {
  std::string name = sim::name_of(info.param);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

/// How many problems each test draws: $TANDEM_SIM_RUNS, or a few.
inline std::uint64_t drawn_runs() { return number_from_environment("TANDEM_SIM_RUNS", 4); }

/// The seed of a test's `number`th draw. `test` names the variant too, as GoogleTest does
/// ("EqualsTheOracle/bf16_d64"), so that each variant draws problems of its own. Below it stands the number.
inline std::uint64_t seed_of(const std::string& test, std::uint64_t number) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : test) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash << 16 | number;
}
inline std::uint64_t number_of(std::uint64_t seed) { return seed & 0xffff; }

/// The number of the first one: $TANDEM_SIM_FIRST, for draws that no run has seen.
inline std::uint64_t first_run() { return number_from_environment("TANDEM_SIM_FIRST", 1); }

/// The policy of a test's `number`th draw: each in turn, so that as many problems as runs are drawn. Tests
/// begin with different ones.
inline hw::sim::Policy policy_of(std::uint64_t seed) {
  using hw::sim::Policy;
  static constexpr Policy policies[] = {Policy::eager, Policy::late, Policy::random};
  return policies[((seed >> 16) + number_of(seed)) % 3];
}

/// Calls `problem_of(seed)` for each draw's seed, and `problem.check(machine)` of what it returns (printable)
/// under the draw's policy, on 1 to `most_multiprocessors`; ends at the first failure. $TANDEM_SIM_RUNS says
/// how many draws, $TANDEM_SIM_FIRST from which on, $TANDEM_SIM_SEED which one alone. `suite`: the running
/// test's, for the command that replays it, as in "sim_forward_test --gtest_filter=Variants/ForwardOnSim".
template <typename ProblemOf>
void for_each_run(const std::string& suite, std::uint64_t most_multiprocessors, const ProblemOf& problem_of) {
  const std::uint64_t only = number_from_environment("TANDEM_SIM_SEED", 0);
  const std::uint64_t first = only != 0 ? only : first_run();
  const std::uint64_t end = first + (only != 0 ? 1 : drawn_runs());
  const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
  for (std::uint64_t number = first; number < end && !testing::Test::HasFailure(); ++number) {
    const std::uint64_t seed = seed_of(test, number);
    const auto problem = problem_of(seed);
    sim::Machine machine;
    machine.policy = policy_of(seed);
    machine.seed = seed;
    machine.multiprocessors = 1 + static_cast<int>(seed % most_multiprocessors);
    machine.replay = "TANDEM_SIM_SEED=" + std::to_string(number) + " bin/" + suite + "." + test;
    SCOPED_TRACE(testing::Message() << problem << "\npolicy " << hw::sim::name_of(machine.policy)
                                    << "\nreplay: " << machine.replay);
    problem.check(machine);
  }
}

/// Calls `visit(variant, seed)` for all that a test draws, for each of its variants: of a test that counts
/// what is drawn.
template <typename Variants, typename Visit>
void for_each_draw(const std::string& test, const Variants& variants, const Visit& visit) {
  std::size_t place = 0;
  for (const auto& variant : variants) {
    const std::string name =
        test + "/" + test_name<std::remove_cvref_t<decltype(variant)>>({variant, place++});
    for (std::uint64_t number = 1; number <= drawn_runs(); ++number) visit(variant, seed_of(name, number));
  }
}

}  // namespace tandem::test
