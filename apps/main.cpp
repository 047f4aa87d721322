// SPDX-License-Identifier: Apache-2.0
// The `palimpsest` program: parses, runs one subcommand, turns errors into messages and exit codes.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <vector>

#include "apps/command.h"
#include "palimpsest/core/log.h"
#include "palimpsest/core/threads.h"
#include "palimpsest/core/version.h"

namespace palimpsest::app {

#define COMMAND(name) Command name##_command();
#include "apps/commands.def"
#undef COMMAND

namespace {

std::vector<Command> all_commands() {
  std::vector<Command> commands;
#define COMMAND(name) commands.push_back(name##_command());
#include "apps/commands.def"
#undef COMMAND
  return commands;
}

volatile std::sig_atomic_t signals_seen = 0;
void count_signal(int) {
  signals_seen = signals_seen + 1;
  if (signals_seen > 1) ::_exit(130);
}

/// CLI11 says which flag is wrong; the nearest known one is ours to add.
Error explain(const CLI::ParseError& error, const CLI::App& program) {
  const CLI::App* app = &program;
  if (!program.get_subcommands().empty()) app = program.get_subcommands().front();
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  std::vector<std::string> known;
  for (const auto* option : app->get_options()) {
    for (const auto& name : option->get_lnames()) known.push_back(name);
  }
  for (const auto* command : app->get_subcommands([](const CLI::App*) { return true; }))
    known.push_back(command->get_name());
  std::string problem = error.what(),
              fix = fmt::format("see palimpsest {}--help", app == &program ? "" : app->get_name() + " ");
  const std::vector<std::string> unknown = app->remaining();
  for (const auto& word : unknown) {
    std::string name = word.substr(std::min(word.find_first_not_of('-'), word.size()));
    name = name.substr(0, name.find('='));
    problem = word.rfind("-", 0) == 0 ? fmt::format("unknown flag {}", word)
                                      : fmt::format("unexpected argument \"{}\"", word);
    const std::string nearest = nearest_name(name, known);
    if (!nearest.empty()) fix = fmt::format("did you mean {}{}?", word.rfind("-", 0) == 0 ? "--" : "", nearest);
    break;
  }
  return usage_error(problem, "command line", fix);
}

/// By default torch's OpenMP threads spin for milliseconds at the end of every parallel region. Where another process
/// wants the core that costs more than the work: 2 threads on 2 busy cores were 10 times slower than one. A short spin
/// is as fast on an idle machine. The runtime reads this when it is loaded, so long work starts the program once more
/// (0.3 s).
void be_patient(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  ::setenv("GOMP_SPINCOUNT", "3000", 1);
  ::execv("/proc/self/exe", argv);  // returns only where it cannot: then all goes on as it is
}

int run(int argc, char** argv) {
  CLI::App program{"Transformers with a memory of fixed size."};
  program.name("palimpsest");
  program.set_version_flag("--version", version_text());
  program.require_subcommand(1);
  program.footer("Results go to stdout, talk to stderr. Exit codes: 0 ok, 1 failed, 2 bad usage or input.");
  auto common = std::make_shared<CommonOptions>();
  std::function<int()> chosen;
  for (const Command& command : all_commands()) {
    CLI::App* app = program.add_subcommand(command.name, command.summary);
    app->footer("example: " + command.example);
    auto body = command.setup(*app);
    options_to_flags(*common, *app);
    app->final_callback([&chosen, body, argv, patient = command.long_work] {
      if (patient) be_patient(argv);
      chosen = body;
    });
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return program.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return program.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return program.exit(version);
  } catch (const CLI::ParseError& error) {
    throw explain(error, program);
  }
  start_logging(common->quiet ? -1 : common->verbose ? 1 : 0);
  if (common->no_progress_bar || common->quiet) Progress::hide_all();
  set_thread_count(static_cast<int>(common->threads));
  return chosen();
}

}  // namespace

void print_line(const std::string& line) { std::cout << line << '\n'; }
void print_json(const Json& json) { std::cout << json.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n'; }

void watch_interrupts() {
  struct sigaction action{};
  action.sa_handler = count_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}
bool interrupted() { return signals_seen > 0; }

}  // namespace palimpsest::app

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  try {
    const int code = palimpsest::app::run(argc, argv);
    std::cout.flush();
    return code;
  } catch (const palimpsest::Error& error) {
    std::cout.flush();
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s\n",
                 palimpsest::internal_error("out of memory", "", "use a smaller batch or a shorter input").what());
    return 1;
  } catch (const std::exception& error) {
    // Of a library: the first line says what happened, the rest is its own backtrace.
    const std::string text = error.what();
    std::fprintf(stderr, "%s\n", palimpsest::internal_error(text.substr(0, text.find('\n'))).what());
    return 1;
  }
}
