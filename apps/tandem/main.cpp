#include <iostream>
#include <new>

#include "options.h"
#include "report.h"

namespace {

using tandem::cli::Exit;

constexpr const char* exit_codes =
    "Exit codes:\n"
    "  0  done\n"
    "  1  a result is outside its tolerance\n"
    "  2  wrong command line\n"
    "  3  an input file is missing, damaged, or holds the wrong tensors\n"
    "  4  the backend is not built, has no device, or does not serve this\n"
    "  5  anything else: output not written, out of memory, device error\n";

Exit fail(Exit code, const std::string& message) {
  std::cout.flush();
  std::cerr << "tandem: " << tandem::cli::printable(message) << "\n";
  return code;
}

/// In one line, with the place of the help.
Exit fail(const CLI::App& app, const CLI::ParseError& error) {
  std::string help = "tandem";
  for (const CLI::App* command : app.get_subcommands()) help += " " + command->get_name();
  return fail(Exit::usage, std::string(error.what()) + "; see " + help + " --help");
}

/// Parses, and with that runs the subcommand, which leaves its code in `result`.
Exit run(CLI::App& app, int argc, char** argv, const Exit& result) {
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) return fail(Exit::usage, "a subcommand is missing; see tandem --help");
    return result;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return fail(app, error);
    app.exit(error);  // prints the help or the version
    return Exit::ok;
  } catch (const tandem::cli::Failure& failure) {
    return fail(failure.code, failure.what());
  } catch (const std::bad_alloc&) {
    return fail(Exit::other, "out of memory; choose smaller shapes or fewer layers");
  } catch (const std::length_error&) {
    return fail(Exit::other, "out of memory; choose smaller shapes or fewer layers");
  } catch (const std::exception& error) {
    return fail(Exit::other, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Exit result = Exit::ok;
  CLI::App app("Tandem: exact attention, O = softmax(scale QK^T + mask) V, on NVIDIA Hopper and on the CPU.",
               "tandem");
  app.set_version_flag("--version", std::string("tandem ") + tandem_version());
  app.footer(exit_codes);
  app.require_subcommand(0, 1);  // none is refused below: CLI11 would not name a misspelt one
  tandem::cli::add_attend(app, result);
  tandem::cli::add_quantize(app, result);
  tandem::cli::add_check(app, result);
  tandem::cli::add_bench(app, result);
  tandem::cli::add_info(app, result);
  tandem::cli::add_sim(app, result);
  Exit code = run(app, argc, argv, result);
  if (!std::cout.flush() && (code == Exit::ok || code == Exit::check_failed))
    code = fail(Exit::other, "can't write all of the output to stdout");
  return static_cast<int>(code);
}
