// How the tool ends: exit codes, and the exception that carries one to main.
#pragma once

#include <stdexcept>
#include <string>

namespace tandem::cli {

/// Exit codes; scripts rely on them (docs/command-line.md).
enum class Exit : int {
  ok = 0,
  check_failed = 1,  ///< a result is outside its tolerance
  usage = 2,         ///< the command line is wrong
  bad_input = 3,     ///< an input file is missing, damaged, or holds the wrong tensors
  unavailable = 4,   ///< the backend is not built, has no device, or does not serve this
  other = 5          ///< output not written, out of memory, device error
};

struct Failure : std::runtime_error {
  Failure(Exit exit_code, const std::string& message) : std::runtime_error(message), code(exit_code) {}
  Exit code;
};

}  // namespace tandem::cli
