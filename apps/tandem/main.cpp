#include <iostream>
#include <new>

#include "options.h"

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

int fail(Exit code, const std::string& message) {
  std::cout.flush();
  std::cerr << "tandem: " << message << "\n";
  return static_cast<int>(code);
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
  tandem::cli::add_check(app, result);
  tandem::cli::add_bench(app, result);
  tandem::cli::add_info(app, result);
  tandem::cli::add_sim(app, result);
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) return fail(Exit::usage, "a subcommand is missing; see tandem --help");
    return static_cast<int>(result);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(Exit::usage);
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
