// Wrong calls: what is spoiled in a valid one, and what the error has to say.
#pragma once

#include <cstddef>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <tandem/tandem.h>

#include "tests/api/request.h"

namespace tandem::test {

/// `Call`: a request, or a struct of arguments.
template <typename Call>
struct Mistake {
  std::string name;
  std::function<void(Call&)> make;
  std::vector<std::string> words;  ///< the argument, its value, what is allowed
  tandem_status status = TANDEM_INVALID_ARGUMENT;
};

template <typename Call>
void PrintTo(const Mistake<Call>& mistake, std::ostream* out) {
  *out << mistake.name;
}

/// The last parameter of INSTANTIATE_TEST_SUITE_P.
inline constexpr auto by_name = [](const auto& info) { return info.param.name; };

/// That `run` says so of the call, once it is spoiled.
template <typename Call, typename Run>
void expect_refused(const Mistake<Call>& mistake, Call& call, Run&& run) {
  mistake.make(call);
  EXPECT_EQ(run(), mistake.status);
  for (const std::string& words : mistake.words)
    EXPECT_THAT(tandem_last_error(), ::testing::HasSubstr(words));
}
template <typename Request>
void expect_refused(const Mistake<Request>& mistake, Request&& request = Request()) {
  expect_refused(mistake, request, [&request] { return request.run(); });
  EXPECT_TRUE(request.outputs_untouched());
}

template <typename Call>
auto& args_of(Call& call) {
  if constexpr (requires { call.args; }) {
    return call.args;
  } else {
    return call;
  }
}

/// What can be wrong with any operation's arguments.
template <typename Call>
std::vector<Mistake<Call>> common_mistakes() {
  using Args = std::remove_reference_t<decltype(args_of(std::declval<Call&>()))>;
  return {
      {"StructSizeOfZero", [](Call& c) { args_of(c).struct_size = 0; }, {"args->struct_size is 0", "sizeof"}},
      {"StructOlderThanTheFirst",
       [](Call& c) { args_of(c).struct_size = 16; },
       {"args->struct_size is 16", "less than that of the first version"}},
      {"StructOfALaterVersion",
       [](Call& c) { args_of(c).struct_size += 8; },
       {"args->struct_size is " + std::to_string(sizeof(Args) + 8), tandem_version()},
       TANDEM_UNSUPPORTED},
      {"StructSizeNeverSet",
       [](Call& c) { args_of(c).struct_size = ~std::size_t{0}; },
       {"18446744073709551615"},
       TANDEM_UNSUPPORTED},
      {"Backend", [](Call& c) { store(args_of(c).backend, 17); }, {"backend is 17", "TANDEM_BACKEND_AUTO"}},
      {"BackendNegative", [](Call& c) { store(args_of(c).backend, -1); }, {"backend is -1"}},
  };
}

/// With the masks, scales and caps of attention.
template <typename Request>
std::vector<Mistake<Request>> mask_mistakes() {
  return {
      {"MaskWithoutItsSize",
       [](Request& r) { r.mask.struct_size = 0; },
       {"mask->struct_size is 0", "sizeof"}},
      {"MaskOlderThanTheFirst",
       [](Request& r) { r.mask.struct_size = 24; },
       {"mask->struct_size is 24", "sizeof"}},
      {"MaskOfALaterVersion",
       [](Request& r) { r.mask.struct_size += 8; },
       {"mask->struct_size is " + std::to_string(sizeof(tandem_mask) + 8), tandem_version()},
       TANDEM_UNSUPPORTED},
      {"MaskKind", [](Request& r) { store(r.mask.kind, 3); }, {"mask.kind is 3", "TANDEM_MASK_FULL"}},
      {"FullMaskWithWindow",
       [](Request& r) {
         r.mask = {sizeof(tandem_mask), TANDEM_MASK_FULL, 4, 0, 0};
       },
       {"mask.window_left is 4", "TANDEM_MASK_FULL", "set it to 0"}},
      {"CausalMaskWithWindow",
       [](Request& r) {
         r.mask = {sizeof(tandem_mask), TANDEM_MASK_CAUSAL, 0, -1, 0};
       },
       {"mask.window_right is -1", "TANDEM_MASK_CAUSAL", "set it to 0"}},
      {"WindowLeft",
       [](Request& r) {
         r.mask = {sizeof(tandem_mask), TANDEM_MASK_WINDOW, -2, 0, 0};
       },
       {"mask.window_left is -2", "0 or more", "TANDEM_UNLIMITED"}},
      {"WindowRight",
       [](Request& r) {
         r.mask = {sizeof(tandem_mask), TANDEM_MASK_WINDOW, 0, -7, 0};
       },
       {"mask.window_right is -7", "0 or more", "TANDEM_UNLIMITED"}},
      {"Chunk", [](Request& r) { r.mask.chunk = -5; }, {"mask.chunk is -5", "no chunks"}},
  };
}

template <typename Request>
std::vector<Mistake<Request>> factor_mistakes() {
  constexpr float infinity = std::numeric_limits<float>::infinity(),
                  nan = std::numeric_limits<float>::quiet_NaN();
  return {
      {"ScaleNegative", [](Request& r) { r.args.scale = -0.5f; }, {"scale is -0.5", "> 0"}},
      {"ScaleInfinite", [](Request& r) { r.args.scale = infinity; }, {"scale is inf", "finite"}},
      {"ScaleNaN", [](Request& r) { r.args.scale = nan; }, {"scale is nan", "finite"}},
      {"SoftcapNegative", [](Request& r) { r.args.softcap = -30; }, {"softcap is -30", "> 0"}},
      {"SoftcapInfinite", [](Request& r) { r.args.softcap = infinity; }, {"softcap is inf", "finite"}},
      {"SoftcapNaN", [](Request& r) { r.args.softcap = nan; }, {"softcap is nan", "finite"}},
      {"ScaleTooLarge", [](Request& r) { r.args.scale = 2.4e38f; }, {"scale is 2.4e+38", "at most 2.3e+38"}},
      {"SoftcapTooLarge",
       [](Request& r) { r.args.softcap = 3e38f; },
       {"softcap is 3e+38", "at most 2.3e+38"}},
      {"SoftcapTooSmallForTheScale",
       [](Request& r) { r.args.scale = 2, r.args.softcap = 1e-39f; },
       {"softcap is 1e-39 with scale 2", "finite"}},
  };
}

}  // namespace tandem::test
