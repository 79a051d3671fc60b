// SPDX-License-Identifier: Apache-2.0
//
// An inference engine's serving loop around one call of Tandem a step; --help says what it does. There is no
// model: tokens are random, and what is checked is attention.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "../memory.h"
#include "check.h"
#include "options.h"
#include "scheduler.h"
#include "step.h"

namespace engine {
namespace {

constexpr float tolerance = 0.03f;  // a few roundings of bf16

/// What is known of a step when it is over.
struct Row {
  std::int64_t step, sequences, prompt_tokens, decoded_tokens, keys, free_pages, preempted;
  double one_call_us, two_calls_us;
  float error;  ///< largest, of either way
};

Row run_step(std::int64_t number, const Options& options, Scheduler& scheduler, Backend& backend,
             Oracle& oracle, const std::vector<Share>& shares) {
  const Batch batch = batch_of(options, scheduler, shares);
  Row row{number,
          batch.prompts + batch.decoding,
          batch.prompt_tokens(),
          batch.tokens() - batch.prompt_tokens(),
          batch.keys,
          scheduler.free_pages(),
          scheduler.preempted(),
          0,
          0,
          0};
  const std::vector<float> expected = oracle.outputs(scheduler, shares);
  const auto run = [&](auto call) {
    call(nullptr);
    row.error = std::max(row.error, largest_difference(backend.outputs(), expected), [](float a, float b) {
      return !(b <= a);  // NaN is the largest
    });
    return options.repeats > 0 ? measured_us(call, options.repeats) : 0.0;
  };
  backend.upload(batch);
  backend.plan(batch, nullptr);
  row.one_call_us = run([&](void* stream) { backend.one_call(batch, stream); });
  if (options.repeats > 0) row.two_calls_us = run([&](void* stream) { backend.two_calls(batch, stream); });
  return row;
}

void write_csv(const std::string& path, const std::vector<Row>& rows, const std::string& backend) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) complain("--csv " + path + " can't be written");
  std::fputs(
      "backend,step,sequences,prompt_tokens,decoded_tokens,keys,free_pages,preempted,one_call_us,"
      "two_calls_us\n",
      file);
  for (const Row& r : rows)
    std::fprintf(file, "%s,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%.1f,%.1f\n", backend.c_str(),
                 static_cast<long long>(r.step), static_cast<long long>(r.sequences),
                 static_cast<long long>(r.prompt_tokens), static_cast<long long>(r.decoded_tokens),
                 static_cast<long long>(r.keys), static_cast<long long>(r.free_pages),
                 static_cast<long long>(r.preempted), r.one_call_us, r.two_calls_us);
  std::fclose(file);
}

/// Times of the steps of one kind.
void print_times(const char* kind, const std::vector<Row>& rows, bool (*is_of_it)(const Row&)) {
  double one = 0, two = 0;
  std::size_t steps = 0;
  for (const Row& row : rows)
    if (is_of_it(row)) ++steps, one += row.one_call_us, two += row.two_calls_us;
  if (steps == 0) return;
  const auto count = static_cast<double>(steps);
  std::printf("  %-24s %5zu steps, mean of one call %9.1f us, of two %9.1f us\n", kind, steps, one / count,
              two / count);
}

/// Returns whether every output was right.
bool print_summary(const Options& options, const Scheduler& scheduler, const std::vector<Row>& rows) {
  std::int64_t tokens = 0;
  float worst = 0;
  bool right = true;
  for (const Row& row : rows) {
    tokens += row.prompt_tokens + row.decoded_tokens;
    if (!(row.error <= tolerance)) right = false;
    worst = std::max(worst, row.error);
  }
  std::printf("%s: %lld requests in %zu steps, %lld tokens, %lld preemptions\n", options.backend.c_str(),
              static_cast<long long>(scheduler.finished()), rows.size(), static_cast<long long>(tokens),
              static_cast<long long>(scheduler.preempted()));
  if (options.repeats > 0) {
    print_times("prompts and decoding", rows,
                [](const Row& r) { return r.prompt_tokens > 0 && r.decoded_tokens > 0; });
    print_times("prompts only", rows, [](const Row& r) { return r.decoded_tokens == 0; });
    print_times("decoding only", rows, [](const Row& r) { return r.prompt_tokens == 0; });
  }
  std::printf("every token's output %s the float64 reference's: the largest difference is %g\n",
              right ? "is" : "is NOT", static_cast<double>(worst));
  return right;
}

int serve(const Options& options) {
  Scheduler scheduler(options);
  Backend backend(options);
  Oracle oracle(options, backend.angles());
  std::vector<Row> rows;
  for (std::int64_t step = 1; !scheduler.idle(); ++step) {
    const std::vector<Share> shares = scheduler.next_step();
    if (shares.empty()) continue;  // nothing has arrived
    rows.push_back(run_step(step, options, scheduler, backend, oracle, shares));
    scheduler.finish_step(shares);
    const Row& row = rows.back();
    std::fprintf(stderr, "\rstep %lld: %lld of %lld requests done, %lld sequences, %lld + %lld tokens   ",
                 static_cast<long long>(step), static_cast<long long>(scheduler.finished()),
                 static_cast<long long>(options.requests), static_cast<long long>(row.sequences),
                 static_cast<long long>(row.prompt_tokens), static_cast<long long>(row.decoded_tokens));
  }
  std::fputs("\n", stderr);
  if (!options.csv.empty()) write_csv(options.csv, rows, options.backend);
  return print_summary(options, scheduler, rows) ? 0 : 1;
}

}  // namespace
}  // namespace engine

int main(int count, char** words) {
  const engine::Options options = engine::options_from(count, words);
  example::on_device = options.backend == "hopper";
  if (example::on_device && !example::hopper_usable())
    engine::complain("--backend hopper can't be used here");
  return engine::serve(options);
}
