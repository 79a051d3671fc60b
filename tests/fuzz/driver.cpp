// The part of libFuzzer that GCC lacks: runs each input of a corpus, then mutated ones until the time is
// over. Every input follows from the seed and its number, which are printed where one ends the process. With
// --least it also tells whether each feature of the calls was compared (features.h).
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sanitizer/common_interface_defs.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "tests/fuzz/features.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

/// A fuzzer's own finding aborts; the sanitizer has to see that too, to tell how it is replayed.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "handle_abort=1";
}
/// So it has what UndefinedBehaviorSanitizer finds, which ends the process in a way of its own.
extern "C" __attribute__((visibility("default"))) const char* __ubsan_default_options() {
  return "abort_on_error=1:print_stacktrace=1";
}

namespace {

using Input = std::vector<std::uint8_t>;

struct Options {
  double seconds = 60;
  std::uint64_t seed = std::random_device()();
  std::uint64_t only = 0;    ///< the number of one input to run alone; 0: all
  std::uint64_t inputs = 0;  ///< so many, however long they take; 0: as many as there is time for
  std::uint64_t least = 0;   ///< calls with each feature that have to be compared
  std::string corpus;
};

std::uint64_t current_seed = 0, current_number = 0;

void tell_how_to_replay() {
  std::fprintf(stderr, "fuzz: replay with --seed %llu --only %llu\n",
               static_cast<unsigned long long>(current_seed),
               static_cast<unsigned long long>(current_number));
}

/// One input takes milliseconds; one that does not end has to be replayed too.
constexpr unsigned longest_seconds = 100;

void end_what_lasts(int /*signal*/) {
  std::fprintf(stderr, "fuzz: an input takes more than %u seconds\n", longest_seconds);
  std::abort();
}

std::vector<Input> read_corpus(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Input> inputs;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

class Mutation {
 public:
  explicit Mutation(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  /// One small change.
  void change(Input& input, const Input& other) {
    const std::size_t at = below(input.size());
    switch (below(7)) {
      case 0:
        if (!input.empty()) input[at] ^= static_cast<std::uint8_t>(1u << below(8));
        break;
      case 1:
        if (!input.empty()) input[at] = static_cast<std::uint8_t>(below(256));
        break;
      case 2:
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), static_cast<std::uint8_t>(below(256)));
        break;
      case 3:
        input.erase(input.begin() + static_cast<std::ptrdiff_t>(at),
                    input.begin() + static_cast<std::ptrdiff_t>(std::min(input.size(), at + below(8))));
        break;
      case 4:  // digits, brackets and the like, which texts are made of
        if (!input.empty()) input[at] = static_cast<std::uint8_t>("0123456789[]{},:\"-e.\\"[below(21)]);
        break;
      case 5: {  // a piece of itself or of another
        const Input& from = below(2) == 0 ? input : other;
        const std::size_t begin = below(from.size()), count = std::min(below(32), from.size() - begin);
        const Input piece(from.begin() + static_cast<std::ptrdiff_t>(begin),
                          from.begin() + static_cast<std::ptrdiff_t>(begin + count));
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), piece.begin(), piece.end());
        break;
      }
      default:
        if (below(8) == 0) input.resize(at);
    }
  }

 private:
  std::mt19937_64 random_;
};

/// The first inputs are the corpus; others are mutated from it, or of random bytes.
Input make_input(const std::vector<Input>& corpus, std::uint64_t seed, std::uint64_t number) {
  if (number <= corpus.size()) return corpus[number - 1];
  Mutation mutation(seed * 0x9e3779b97f4a7c15u + number);
  Input input = corpus[mutation.below(corpus.size())];
  if (mutation.below(4) == 0) {
    input.resize(mutation.below(400));
    for (std::uint8_t& byte : input) byte = static_cast<std::uint8_t>(mutation.below(256));
  }
  const Input& other = corpus[mutation.below(corpus.size())];
  for (std::size_t changes = 1 + mutation.below(6); changes > 0; --changes) mutation.change(input, other);
  return input;
}

bool parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--", 0) != 0) {
      options->corpus = word;
    } else if (i + 1 == argc) {
      return false;
    } else if (word == "--seconds") {
      options->seconds = std::atof(argv[++i]);
    } else if (word == "--seed") {
      options->seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--only") {
      options->only = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--inputs") {
      options->inputs = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--least") {
      options->least = std::strtoull(argv[++i], nullptr, 10);
    } else {
      return false;
    }
  }
  return !options->corpus.empty();
}

/// Prints in how many of the calls that were compared each feature was; whether all are in enough of them.
bool are_all_reached(std::uint64_t least) {
  bool all = !tandem::fuzz::features().empty();
  for (const auto& [name, calls] : tandem::fuzz::features()) {
    std::printf("%8llu %s%s\n", static_cast<unsigned long long>(calls), name.c_str(),
                calls < least ? " <- too few" : "");
    all = all && calls >= least;
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, &options)) {
    std::fprintf(stderr, "usage: %s [--seconds N] [--inputs N] [--least N] [--seed N] [--only N] CORPUS\n",
                 argv[0]);
    return 2;
  }
  const std::vector<Input> corpus = read_corpus(options.corpus);
  if (corpus.empty()) {
    std::fprintf(stderr, "%s is empty\n", options.corpus.c_str());
    return 2;
  }
  __sanitizer_set_death_callback(tell_how_to_replay);
  std::signal(SIGALRM, end_what_lasts);
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const auto is_over = [&] {
    if (options.inputs > 0) return current_number > options.inputs;
    return std::chrono::duration<double>(Clock::now() - start).count() > options.seconds;
  };
  current_seed = options.seed;
  current_number = options.only > 0 ? options.only : 1;
  do {
    const Input input = make_input(corpus, options.seed, current_number);
    alarm(longest_seconds);
    LLVMFuzzerTestOneInput(input.data(), input.size());
    ++current_number;
  } while (options.only == 0 && (current_number <= corpus.size() || !is_over()));
  std::printf("%llu inputs, seed %llu: nothing found\n", static_cast<unsigned long long>(current_number - 1),
              static_cast<unsigned long long>(options.seed));
  return options.least == 0 || are_all_reached(options.least) ? 0 : 1;
}
