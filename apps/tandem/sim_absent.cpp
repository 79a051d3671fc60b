// tandem sim where the software Hopper is not built.
#include "options.h"

namespace tandem::cli {

void add_sim(CLI::App& app, Exit&) {
  app.add_subcommand("sim", "Run a Hopper kernel on the software Hopper (not in this build)")
      ->allow_extras()
      ->callback([] {
        throw Failure(
            Exit::unavailable,
            "this build has no software Hopper; configure with -DTANDEM_SIM=ON (needs Boost.Context)");
      });
}

}  // namespace tandem::cli
