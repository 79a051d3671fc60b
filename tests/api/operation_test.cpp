// The order in which any operation is checked and run, with an operation of the test's own.
#include "api/operation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <stdexcept>
#include <string>

#include "api/short_list.h"

namespace tandem::test {

struct Args {
  bool right, served, idle;
  tandem_backend backend = TANDEM_BACKEND_CPU;
};
struct Problem {
  bool served, idle;
};
core::TensorList tensors_of(const Problem&) { return {}; }

namespace {

using core::Status;
using ::testing::HasSubstr;

constexpr std::size_t needed = 512;
int runs = 0;

constexpr api::Backend<Problem> backend = {
    .supports = [](const Problem& p) { return p.served ? Status() : Status(TANDEM_UNSUPPORTED, "unserved"); },
    .workspace =
        [](const Problem& p) {
          EXPECT_TRUE(p.served) << "asked of a problem that the backend doesn't serve";
          EXPECT_FALSE(p.idle) << "asked of a problem that writes nothing";
          return needed;
        },
    .run =
        [](const Problem& p, void*, void*) {
          EXPECT_TRUE(p.served && !p.idle);
          ++runs;
          return Status();
        }};

constexpr api::Operation<Args, Problem> operation_of(bool (*runs_without)(const Problem&)) {
  api::Backend<Problem> cpu = backend;
  cpu.runs_without = runs_without;
  return {.validate =
              [](const Args* args, bool, Problem* problem) {
                *problem = {args->served, args->idle};
                return args->right ? Status() : Status(TANDEM_INVALID_ARGUMENT, "wrong");
              },
          .writes_nothing = [](const Problem& p) { return p.idle; },
          .workspace = {"workspace", "workspace_bytes", "the_query"},
          .reference = backend,
          .cpu = cpu,
          .on_hopper = nullptr};
}

constexpr auto operation = operation_of(nullptr);

struct alignas(256) Room {
  std::byte bytes[needed];
};

Status run(const Args& args, std::size_t lent) {
  const auto room = std::make_unique<Room>();
  return api::run(operation, &args, {lent == 0 ? nullptr : room.get(), lent}, nullptr);
}

TEST(Operation, ArgumentsBackendWorkspaceAreCheckedInThisOrder) {
  runs = 0;
  EXPECT_THAT(run({.right = false, .served = false, .idle = false}, 0).message(), HasSubstr("wrong"));
  EXPECT_THAT(run({.right = true, .served = false, .idle = false}, 0).message(), HasSubstr("unserved"));
  EXPECT_THAT(run({.right = true, .served = false, .idle = false}, needed).message(), HasSubstr("unserved"));
  EXPECT_EQ(run({.right = true, .served = true, .idle = false}, needed - 1).code(),
            TANDEM_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(runs, 0);
  EXPECT_TRUE(run({.right = true, .served = true, .idle = false}, needed).ok());
  EXPECT_EQ(runs, 1);
}

TEST(Operation, WhatWritesNothingNeedsNoWorkspaceAndIsNotRun) {
  runs = 0;
  EXPECT_TRUE(run({.right = true, .served = true, .idle = true}, 0).ok());
  EXPECT_EQ(run({.right = true, .served = false, .idle = true}, 0).code(), TANDEM_UNSUPPORTED);
  EXPECT_EQ(runs, 0);
}

TEST(Operation, AQueryNamesWhatIsWrongWithTheCallFirst) {
  std::size_t bytes = 17;
  Args args{.right = true, .served = false, .idle = false};
  EXPECT_EQ(api::query_workspace(operation, &args, &bytes).code(), TANDEM_UNSUPPORTED);
  EXPECT_EQ(api::query_workspace(operation, &args, nullptr).code(), TANDEM_UNSUPPORTED);
  EXPECT_EQ(bytes, 17u);
  args.served = true;
  EXPECT_THAT(api::query_workspace(operation, &args, nullptr).message(), HasSubstr("bytes is NULL"));
  EXPECT_TRUE(api::query_workspace(operation, &args, &bytes).ok());
  EXPECT_EQ(bytes, needed);
  args.idle = true;
  EXPECT_TRUE(api::query_workspace(operation, &args, &bytes).ok());
  EXPECT_EQ(bytes, 0u);
}

TEST(Operation, ABackendMayDoWithoutAnyWorkspaceButNotWithTooLittle) {
  static constexpr auto tolerant = operation_of([](const Problem&) { return true; });
  runs = 0;
  const Args args{.right = true, .served = true, .idle = false};
  EXPECT_TRUE(api::run(tolerant, &args, {nullptr, 0}, nullptr).ok());
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(api::run(tolerant, &args, {nullptr, needed - 1}, nullptr).code(), TANDEM_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(runs, 1);
}

TEST(Operation, AutoFollowsTheFirstTensorThatHasElementsAndAnAddress) {
  int empty = 0, first = 0, second = 0;
  const auto of = [](int* data, std::int64_t rows) {
    return core::Region::of(data, sizeof(int), rows, 1, 1);
  };
  core::TensorList list;
  EXPECT_EQ(api::followed_address(list), nullptr);
  list.add("empty", core::Role::input, of(&empty, 0));
  list.add("not given", core::Role::input, of(nullptr, 2));
  EXPECT_EQ(api::followed_address(list), nullptr);
  list.add_array("first", core::Role::input, of(&first, 2));
  list.add("second", core::Role::output, of(&second, 2));
  EXPECT_EQ(api::followed_address(list), &first);
}

TEST(Operation, AutoNamesWhatToSetWhereNothingHasAnAddress) {
  core::TensorList list;
  list.add("empty", core::Role::input, core::Region::of(nullptr, 4, 0, 1, 1));
  list.add("keys", core::Role::input, core::Region::of(nullptr, 4, 2, 1, 1));
  tandem_backend chosen = TANDEM_BACKEND_AUTO;
  EXPECT_THAT(api::choose_backend(list, /*idle=*/false, &chosen).message(), HasSubstr("keys.data is NULL"));
  EXPECT_EQ(chosen, TANDEM_BACKEND_AUTO);
  EXPECT_TRUE(api::choose_backend(list, /*idle=*/true, &chosen).ok());
  EXPECT_EQ(chosen, TANDEM_BACKEND_CPU);
}

// c_api.cpp takes a length_error for memory that ran out.
TEST(ShortList, OneThingTooManyIsADefectAndNotAWantOfMemory) {
  api::ShortList<int> list;
  for (int i = 0; i < 40; ++i) list.push_back(i);
  try {
    list.push_back(40);
    FAIL() << "41 elements";
  } catch (const std::length_error&) {
    FAIL() << "a length_error";
  } catch (const std::logic_error& defect) {
    EXPECT_STREQ(defect.what(), "a ShortList is too short");
  }
}

}  // namespace
}  // namespace tandem::test
