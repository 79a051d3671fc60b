// tandem check: random calls against the float64 oracle.
#include <chrono>
#include <iostream>
#include <memory>
#include <random>

#include "backward_cases.h"
#include "backward_verify.h"
#include "cases.h"
#include "decode_cases.h"
#include "decode_verify.h"
#include "options.h"
#include "report.h"
#include "verify.h"

namespace tandem::cli {
namespace {

struct CheckOptions {
  std::uint64_t seed = 0;
  int cases = 200;
  std::string backend = "auto";
  double time_limit = 60;
  bool decode = false, backward = false;
  std::string kernel = "auto";
  StudyOptions study;
};

struct Tally {
  int done = 0, failed = 0;
  double worst_rmse_ratio = 0, worst_max_ratio = 0;  ///< ours over the standard implementation's

  void add(const Verdict& verdict) {
    ++done;
    failed += !verdict.complaint.empty();
    if (verdict.standard.rmse == 0 || verdict.standard.max_abs == 0) return;
    worst_rmse_ratio = std::max(worst_rmse_ratio, verdict.error.rmse / verdict.standard.rmse);
    worst_max_ratio = std::max(worst_max_ratio, verdict.error.max_abs / verdict.standard.max_abs);
  }
};

/// One case: what it is, and how it went.
struct Trial {
  std::string description;
  Verdict verdict;
};

Trial try_forward(Place& place, const Call& call) {
  PreparedCall prepared(place, call);
  prepared.enqueue();
  return {described(call), verify(call, prepared.fetch())};
}

Trial try_decode(Place& place, DecodeCall call, const CheckOptions& options) {
  call.kernel = parse_decode_kernel(options.kernel);
  PreparedDecode prepared(place, call);
  prepared.enqueue();
  return {described(call), verify(call, prepared.fetch())};
}

Trial try_backward(Place& place, const BackwardCall& call) {
  PreparedBackward prepared(place, call);
  prepared.enqueue();
  return {described(call), verify(call, prepared.fetch())};
}

/// Case of a seed. Kernels for study have no cap on the scores, so where one is asked for no case has.
Call make_case(std::uint64_t seed, tandem_backend backend, const StudyOptions& study) {
  Call call = random_call(seed, backend);
  if (study.asks()) {
    call.study = study.c_study();
    call.softcap = 0;
  }
  return call;
}

Trial try_case(Place& place, std::uint64_t seed, tandem_backend backend, const CheckOptions& options) {
  if (options.decode) return try_decode(place, random_step(seed, backend), options);
  if (options.backward) return try_backward(place, random_backward(seed, backend));
  return try_forward(place, make_case(seed, backend, options.study));
}

void report_failure(std::uint64_t seed, const Trial& trial, tandem_backend backend,
                    const CheckOptions& options) {
  std::cout << "FAILED  " << trial.description << "\n  " << trial.verdict.complaint
            << "\n  replay: tandem check " << (options.decode ? "--decode " : "")
            << (options.backward ? "--backward " : "")
            << (options.kernel != "auto" ? "--kernel " + options.kernel + " " : "") << "--backend "
            << name_of(backend) << options.study.arguments() << " --cases 1 --seed " << seed << std::endl;
}

Exit run_check(const CheckOptions& options) {
  using Clock = std::chrono::steady_clock;
  const tandem_backend backend = resolve_backend(parse_backend(options.backend), TANDEM_BF16);
  const std::unique_ptr<Place> place = make_place(backend);
  std::cout << "backend " << name_of(backend) << ", seed " << options.seed << ", at most " << options.cases
            << " cases in " << general(options.time_limit, 6) << " s" << std::endl;
  Tally tally;
  Progress progress(static_cast<std::size_t>(options.cases));
  const Clock::time_point begin = Clock::now();
  const auto seconds = [begin] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  for (int i = 0; i < options.cases && (i == 0 || seconds() < options.time_limit); ++i) {
    const std::uint64_t seed = options.seed + static_cast<std::uint64_t>(i);
    progress.show(static_cast<std::size_t>(i), "seed " + std::to_string(seed));
    const Trial trial = try_case(*place, seed, backend, options);
    tally.add(trial.verdict);
    if (trial.verdict.complaint.empty()) continue;
    progress.clear();
    report_failure(seed, trial, backend, options);
  }
  progress.clear();
  std::cout << tally.done - tally.failed << " of " << tally.done << " cases within tolerance, "
            << fixed(seconds(), 1) << " s; at worst " << fixed(tally.worst_rmse_ratio, 2)
            << " times the RMSE and " << fixed(tally.worst_max_ratio, 2)
            << " times the largest error of a standard implementation\n";
  return tally.failed == 0 ? Exit::ok : Exit::check_failed;
}

}  // namespace

void add_check(CLI::App& app, Exit& result) {
  CLI::App* command =
      app.add_subcommand("check", "Run random calls and compare them with the float64 oracle");
  const auto options = std::make_shared<CheckOptions>();
  command
      ->add_option("--seed", options->seed,
                   "Seed of the first case; case i uses seed + i (default: random, printed)")
      ->check(seed_validator())
      ->type_name("INTEGER");
  command->add_option("--cases", options->cases, "Number of cases")
      ->check(CLI::Range(1, 1'000'000'000))
      ->capture_default_str();
  command
      ->add_option("--backend", options->backend, "What is checked; auto: hopper where it can run, else cpu")
      ->check(backend_validator())
      ->type_name("BACKEND")
      ->capture_default_str();
  add_study_options(*command, options->study);
  command->add_option("--time-limit", options->time_limit, "Start no further case after this many seconds")
      ->check(positive_number())
      ->type_name("NUMBER")
      ->capture_default_str();
  CLI::Option* decode =
      command->add_flag("--decode", options->decode, "Check decoding steps against caches instead");
  CLI::Option* backward = command->add_flag("--backward", options->backward, "Check backward calls instead");
  for (const char* name : {"--decode", "--overlap", "--turn"}) backward->excludes(command->get_option(name));
  command->add_option("--kernel", options->kernel, "Which kernel of --decode, for study")
      ->needs(decode)
      ->check(CLI::IsMember({"auto", "plain", "shared_p", "register_p"}))
      ->capture_default_str();
  command->footer(
      "Tolerance against the oracle: RMSE at most 1.1 times that of a standard implementation in the same\n"
      "precision, largest error at most twice its largest plus 1e-5; lse within 1e-4 (relative above 1) "
      "or\n"
      "twice the standard one's error; nothing written outside the outputs, nor in a cache outside the new\n"
      "tokens. A failing case prints the command that replays it. Exit code 1 if any "
      "failed.");
  command->callback([options, command, &result] {
    if (command->count("--seed") == 0) options->seed = std::random_device{}();
    result = run_check(*options);
  });
}

}  // namespace tandem::cli
