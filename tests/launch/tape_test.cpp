// What is enqueued for a call that is made again, on a machine of the test's own.
#include "launch/tape.h"

#include <cstring>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tandem::launch {
namespace {

struct Arguments {
  alignas(64) std::uint64_t words[20];
};

struct Machine {
  int device = 1;
  std::set<const void*> out_of_reach = {};
  std::string refused = "";  ///< the kernel that can't be enqueued
  mutable std::vector<std::pair<std::string, std::uint64_t>> enqueued = {};

  int ordinal() const { return device; }
  bool reaches(const void* address) const { return !out_of_reach.contains(address); }
  core::Status enqueue(const char* name, const hw::Launch& launch, const void* arguments) const {
    Arguments own;
    std::memcpy(&own, arguments, sizeof(own));
    enqueued.emplace_back(name, own.words[0] * 1000 + static_cast<std::uint64_t>(launch.blocks));
    return name == refused ? core::Status(TANDEM_DEVICE_ERROR, name) : core::Status();
  }
};

core::CallKey key(std::uint64_t number) {
  core::CallKey key;
  key.add(number);
  return key;
}

core::TensorList memory(void* first, void* second) {
  core::TensorList list;
  for (void* data : {first, second})
    list.add_array("x", core::Role::input, core::Region::of(data, 1, 1, 8, 0));
  return list;
}

int x, y;

/// As a launcher does in passing.
void record_two_kernels(std::uint64_t number) {
  recording->open(1, memory(&x, &y));
  for (const char* name : {"first", "second"}) {
    Arguments arguments{};
    arguments.words[0] = number++;
    recording->add(name, {&x, 7, 128, 0, true}, &arguments, sizeof(arguments));
  }
}

void record(Tapes& tapes, std::uint64_t number, bool ok = true) {
  tapes.begin(key(number));
  record_two_kernels(number);
  tapes.end(ok);
}

TEST(Tapes, ACallThatIsMadeAgainEnqueuesTheSame) {
  Tapes tapes;
  record(tapes, 5);
  record(tapes, 8);
  EXPECT_EQ(recording, nullptr);
  const Tape* tape = tapes.find(key(5));
  ASSERT_NE(tape, nullptr);
  const Machine machine;
  ASSERT_TRUE(tape->holds(machine));
  ASSERT_TRUE(tape->play(machine).ok());
  const decltype(machine.enqueued) expected = {{"first", 5007}, {"second", 6007}};
  EXPECT_EQ(machine.enqueued, expected);
}

TEST(Tapes, HoldOnTheirDeviceAndForMemoryInReachOnly) {
  Tapes tapes;
  record(tapes, 5);
  const Tape& tape = *tapes.find(key(5));
  EXPECT_FALSE(tape.holds(Machine{.device = 0}));
  EXPECT_FALSE(tape.holds(Machine{.out_of_reach = {&y}}));
  EXPECT_TRUE(tape.holds(Machine{.out_of_reach = {&tape}}));
}

TEST(Tapes, ACallThatNeedsNoDeviceIsNotDoneAgain) {
  Tapes tapes;
  tapes.begin(key(5));
  tapes.end(true);
  EXPECT_FALSE(tapes.find(key(5))->holds(Machine()));
}

TEST(Tapes, OtherCallsAndThoseThatFailedAreNotFound) {
  Tapes tapes;
  EXPECT_EQ(tapes.find(key(5)), nullptr);
  record(tapes, 5, /*ok=*/false);
  EXPECT_EQ(tapes.find(key(5)), nullptr);
  record(tapes, 5);
  EXPECT_EQ(tapes.find(key(6)), nullptr);
  record(tapes, 5, /*ok=*/false);
  EXPECT_EQ(tapes.find(key(5)), nullptr) << "an older call's tape is gone";
}

TEST(Tapes, OfMoreCallsThanTheyHoldTheLastOnesAreRight) {
  Tapes tapes;
  for (std::uint64_t i = 0; i < 5000; ++i) record(tapes, i);
  std::size_t found = 0;
  for (std::uint64_t i = 0; i < 5000; ++i) {
    const Tape* tape = tapes.find(key(i));
    if (tape == nullptr) continue;
    ++found;
    const Machine machine;
    ASSERT_TRUE(tape->play(machine).ok());
    ASSERT_EQ(machine.enqueued.front().second, i * 1000 + 7);
  }
  EXPECT_GE(found, 200u);
}

TEST(Tapes, AFailedLaunchEndsTheCall) {
  Tapes tapes;
  record(tapes, 5);
  const Machine machine{.refused = "first"};
  EXPECT_EQ(tapes.find(key(5))->play(machine).code(), TANDEM_DEVICE_ERROR);
  EXPECT_EQ(machine.enqueued.size(), 1u);
}

}  // namespace
}  // namespace tandem::launch
