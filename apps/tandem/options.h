// Spelling of the options that several subcommands share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include <tandem/study.h>
#include <tandem/tandem.h>

#include "failure.h"

namespace tandem::cli {

/// Each subcommand adds itself to `app` and, when it is chosen, leaves its exit code in `result`.
void add_attend(CLI::App& app, Exit& result);
void add_check(CLI::App& app, Exit& result);
void add_bench(CLI::App& app, Exit& result);
void add_info(CLI::App& app, Exit& result);
void add_sim(CLI::App& app, Exit& result);
void add_quantize(CLI::App& app, Exit& result);

/// "full", "causal", "window:LEFT,RIGHT". Throws a usage Failure.
tandem_mask parse_mask(const std::string& text);
std::string spelled(const tandem_mask& mask);
tandem_dtype parse_dtype(const std::string& text);
tandem_backend parse_backend(const std::string& text);

/// Validators that also tell the allowed values in --help.
CLI::Validator mask_validator();
CLI::Validator dtype_validator();
CLI::Validator backend_validator();
/// Finite numbers that a float holds; above 0, also as a float.
CLI::Validator positive_number();
CLI::Validator number_from_zero();
/// Whole numbers from `least` to 2^60, which is as long as the library's tensors are.
CLI::Validator whole_number_from(std::int64_t least);
/// Whole numbers below 2^64.
CLI::Validator seed_validator();

/// Which Hopper kernel is asked for, as users spell it.
struct StudyOptions {
  std::string overlap = "auto", turn = "auto";

  tandem_study c_study() const;
  bool asks() const { return overlap != "auto" || turn != "auto"; }
  /// " --overlap two-stage --turn free", or "" where nothing is asked for.
  std::string arguments() const;
};
/// --overlap and --turn.
void add_study_options(CLI::App& command, StudyOptions& options);

/// The commit that the tool was built from, "" if unknown.
std::string built_commit();

}  // namespace tandem::cli
