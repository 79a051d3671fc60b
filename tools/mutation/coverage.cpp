// Writes down which code each test executes: linked to a test program whose kernels are compiled with
// -fsanitize-coverage=trace-pc (tools/mutation/coverage.py).
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <gtest/gtest.h>
#include <vector>

extern "C" {
extern char __executable_start, etext;
void __sanitizer_cov_trace_pc();
}

namespace {

// Never destroyed: destructors of the program come here too.
std::vector<unsigned char>& executed() {
  static auto& bytes = *new std::vector<unsigned char>(&etext - &__executable_start);
  return bytes;
}
std::vector<std::uint32_t>& places() {
  static auto& list = *new std::vector<std::uint32_t>;
  return list;
}

/// A line for each test: its name, milliseconds, whether it passed, and the places that it came to.
class Writer : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { forget(); }
  void OnTestEnd(const testing::TestInfo& test) override {
    static std::FILE* out = std::fopen(std::getenv("TANDEM_COVERAGE"), "w");
    std::fprintf(out, "%s.%s %lld %d", test.test_suite_name(), test.name(),
                 static_cast<long long>(test.result()->elapsed_time()), test.result()->Passed());
    for (const std::uint32_t place : places()) std::fprintf(out, " %x", place);
    std::fprintf(out, "\n");
    std::fflush(out);
    forget();
  }
  static void forget() {
    for (const std::uint32_t place : places()) executed()[place] = 0;
    places().clear();
  }
};

[[maybe_unused]] const bool entered = [] {
  places().reserve(1 << 20);
  testing::UnitTest::GetInstance()->listeners().Append(new Writer);
  return true;
}();

}  // namespace

void __sanitizer_cov_trace_pc() {
  const auto place =
      static_cast<std::uint32_t>(static_cast<char*>(__builtin_return_address(0)) - &__executable_start);
  unsigned char& is_executed = executed()[place];
  if (is_executed == 0) is_executed = 1, places().push_back(place);
}
