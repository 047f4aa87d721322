// SPDX-License-Identifier: Apache-2.0
// How a subcommand of the program is described: one file per subcommand, one line in commands.def.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "palimpsest/core/error.h"
#include "palimpsest/core/json.h"
#include "palimpsest/core/options.h"

namespace palimpsest::app {

/// Flags that every subcommand has.
struct CommonOptions {
  int64_t threads = 0;
  bool quiet = false;
  bool verbose = false;
  bool no_progress_bar = false;
  static void fields(auto& o, auto&& field) {
    field("threads", o.threads, "threads for all work; 0: OMP_NUM_THREADS, else one per core");
    field("quiet", o.quiet, "print warnings and results only");
    field("verbose", o.verbose, "print more about what is done");
    field("no-progress-bar", o.no_progress_bar, "never draw a progress bar");
  }
};

/// What a subcommand is: `setup` adds its flags to `app` and returns what runs once they are parsed
/// (the result is the exit code; errors are thrown).
struct Command {
  std::string name, summary, example;
  std::function<std::function<int()>(CLI::App& app)> setup;
  bool long_work = false;  ///< started with threads that wait patiently, see be_patient in main.cpp
};

/// A line of results, to stdout. Everything else goes to stderr (core/log.h).
void print_line(const std::string& line);
void print_json(const Json& json);

/// True once Ctrl-C (SIGINT) or SIGTERM was received; the first one asks long work to stop at the next
/// safe place, the second one ends the program. Call watch_interrupts() first.
void watch_interrupts();
bool interrupted();

}  // namespace palimpsest::app
