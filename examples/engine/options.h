// SPDX-License-Identifier: Apache-2.0
//
// What the engine serves, and the command line that says it.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace engine {

struct Options {
  std::string backend = "cpu";
  std::int64_t requests = 16, arrivals = 3, prompt = 60, output = 12;
  std::int64_t pages = 9, page_size = 16;
  std::int64_t budget = 96, chunk = 48, drafts = 3;
  std::int64_t heads = 8, kv_heads = 2, head_dim = 64;
  std::int64_t repeats = 3, seed = 1;
  std::string csv;

  /// Pages that one sequence may have: its longest prompt, output and drafts.
  std::int64_t slots() const { return (prompt + output + 2 * drafts + 2 + page_size - 1) / page_size; }
  /// More positions than that, no sequence has.
  std::int64_t positions() const { return slots() * page_size; }
};

inline constexpr const char* help =
    R"(usage: engine [OPTION...]

Serves random requests with continuous batching over a paged cache. Each step is one call of Tandem's forward over
sequences of different lengths, which appends the step's keys and values, rotates them and the queries, and attends:
chunks of prompts beside decoding sequences, whose drafts are verified. Where pages run out, the youngest request
loses its own and starts anew. Every token's output is checked against float64 attention. Beside it, the same step runs
as two calls, one for prompts and one decoding step. A plan made once a step is not in the times: layers share it.

  --backend B     cpu or hopper (where this program was built with CUDA) [cpu]
  --requests N    requests in all [16]
  --arrivals N    requests that arrive in a step, at most [3]
  --prompt N      tokens of a prompt, at most [60]
  --output N      tokens to generate for a request, at most [12]
  --pages N       pages of the pool [9]
  --page-size N   tokens of a page: a power of two from 16 on [16]
  --budget N      tokens of a step, at most [96]
  --chunk N       tokens of a prompt that a step takes, at most [48]
  --drafts N      drafted tokens that a step verifies of each sequence: 0 to 7 [3]
  --heads N       query heads [8]
  --kv-heads N    key/value heads [2]
  --head-dim N    a multiple of 16 up to 256 [64]
  --repeats N     times that a step is measured; 0: not at all [3]
  --seed N        of all that is random [1]
  --csv FILE      writes a row for each step: plot.py draws them
  --help          prints this

Exit code 1 if an output is wrong, 2 for a wrong command line.
)";

[[noreturn]] inline void complain(const std::string& what) {
  std::fprintf(stderr, "engine: %s; --help says what there is\n", what.c_str());
  std::exit(2);
}

inline std::int64_t number_from(const char* name, const char* text, std::int64_t least) {
  char* end = nullptr;
  errno = 0;
  const long long number = std::strtoll(text, &end, 10);
  if (*text == '\0' || *end != '\0' || errno != 0 || number < least || number > 1'000'000'000)
    complain(std::string(name) + " is " + text + "; it has to be a number from " + std::to_string(least) +
             " on");
  return number;
}

inline Options options_from(int count, char** words) {
  Options options;
  const struct {
    const char* name;
    std::int64_t* number;
    std::int64_t least;
  } numbers[] = {{"--requests", &options.requests, 1}, {"--arrivals", &options.arrivals, 1},
                 {"--prompt", &options.prompt, 1},     {"--output", &options.output, 1},
                 {"--pages", &options.pages, 1},       {"--page-size", &options.page_size, 1},
                 {"--budget", &options.budget, 1},     {"--chunk", &options.chunk, 1},
                 {"--drafts", &options.drafts, 0},     {"--heads", &options.heads, 1},
                 {"--kv-heads", &options.kv_heads, 1}, {"--head-dim", &options.head_dim, 16},
                 {"--repeats", &options.repeats, 0},   {"--seed", &options.seed, 0}};
  for (int i = 1; i < count; ++i) {
    const std::string name = words[i];
    if (name == "--help" || name == "-h") {
      std::fputs(help, stdout);
      std::exit(0);
    }
    if (i + 1 == count) complain(name + " has no value, or is not known");
    const char* value = words[++i];
    bool known = name == "--backend" || name == "--csv";
    if (name == "--backend") options.backend = value;
    if (name == "--csv") options.csv = value;
    for (const auto& own : numbers)
      if (name == own.name) *own.number = number_from(own.name, value, own.least), known = true;
    if (!known) complain(name + " is not known");
  }
  if (options.backend != "cpu" && options.backend != "hopper") complain("--backend is " + options.backend);
  if (options.drafts > 7) complain("--drafts is more than 7");
  if (options.budget < options.drafts + 1) complain("--budget has no room for one sequence's drafts");
  if (options.pages < options.slots())
    complain("--pages is less than the longest request needs, " + std::to_string(options.slots()));
  return options;
}

}  // namespace engine
