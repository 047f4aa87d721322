// SPDX-License-Identifier: Apache-2.0
// `palimpsest train`: trains from a recipe or flags, or resumes.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "apps/command.h"
#include "palimpsest/core/log.h"
#include "palimpsest/train/trainer.h"

namespace palimpsest::app {

namespace {

struct TrainFlags {
  std::string recipe;
  bool print_config = false, dry_run = false, json = false;
  train::TrainOptions options;
};

/// Flags were applied to the defaults while parsing; the recipe comes between the two, so it is read first.
Json flags_given(const CLI::App& app) {
  Json given = Json::object();
  train::TrainOptions fresh;
  auto fields = fields_of(fresh);
  for (auto& field : fields) {
    const CLI::Option* option = app.get_option_no_throw("--" + flag_name(field.name));
    if (option == nullptr || option->count() == 0) continue;
    const auto& results = option->results();
    field.set_text(results.empty() || results.back().empty() ? "true" : results.back(), "--" + flag_name(field.name));
    given[field.name] = field.get();
  }
  return given;
}

volatile std::sig_atomic_t asked_to_save = 0;

/// mpirun passes SIGUSR1 on to all processes, where SIGINT and SIGTERM let it kill them within a second.
void watch_save_requests() {
  struct sigaction action{};
  action.sa_handler = [](int) { asked_to_save = 1; };
  sigaction(SIGUSR1, &action, nullptr);
}

int train_in(const std::shared_ptr<train::Communicator>& processes, const train::TrainOptions& options,
             const TrainFlags& flags) {
  train::TrainHooks hooks;
  hooks.interrupted = [] { return interrupted() || asked_to_save != 0; };
  hooks.on_evaluation = [](int64_t step, const Json& line) {
    for (const auto& [task, values] : line.at("eval").items()) {
      const std::string recovered = values.contains("recovered")
                                        ? fmt::format(", {:.1f} % given back", 100 * values["recovered"].get<double>())
                                        : "";
      spdlog::info("step {:>6}  held out, {}: loss {:.3f}{}", step, task, values["loss"].get<double>(), recovered);
    }
  };
  train::Trainer trainer(options, hooks, processes);
  if (flags.dry_run) {
    if (processes->leads()) print_line(trainer.describe(3));
    return 0;
  }
  const Json summary = trainer.run();
  if (!processes->leads()) return 0;
  if (flags.json) {
    print_json(summary);
  } else {
    print_line(fmt::format("{} steps in {}, {:.2f} steps/s, loss {:.4f}, peak memory {}, {} parameters",
                           summary["steps"].get<int64_t>(), format_seconds(summary["train_runtime"]),
                           summary["train_steps_per_second"].get<double>(), summary["train_loss"].get<double>(),
                           format_bytes(summary["peak_bytes"]), format_count(summary["parameters"])));
    if (summary.contains("best_step")) {
      print_line(fmt::format("best: step {}, {} {:.4f}{}", summary["best_step"].get<int64_t>(),
                             options.metric_for_best_model, summary["best_metric"].get<double>(),
                             summary["stopped_early"].get<bool>() ? "; stopped early" : ""));
    }
    print_line(
        fmt::format("{}checkpoint: {}",
                    summary["interrupted"].get<bool>() ? "interrupted; the same command goes on from here. " : "",
                    summary["checkpoint"].get<std::string>()));
  }
  return 0;
}

int run(TrainFlags& flags, const CLI::App& app) {
  train::TrainOptions options;
  if (!flags.recipe.empty()) {
    options_from_toml(options, flags.recipe);
    // Paths in a recipe are meant from the recipe's folder where they do not exist from here.
    const auto look_beside = [&](std::string& path) {
      const auto beside = std::filesystem::path(flags.recipe).parent_path() / path;
      if (!path.empty() && !std::filesystem::exists(path) && std::filesystem::exists(beside)) path = beside.string();
    };
    for (auto& path : options.corpus.data) look_beside(path);
    look_beside(options.aligned.target);
    look_beside(options.aligned.ref);
  }
  options_from_json(options, flags_given(app), "command line");
  if (flags.print_config) {
    print_line(options_to_toml(options));
    return 0;
  }
  watch_interrupts();
  if (flags.dry_run) options.resume = false;
  watch_save_requests();
  const auto processes = train::connect(
      {.peer_timeout = options.peer_timeout, .asked_to_end = interrupted, .on_loss = [](const Error& error) {
         // The training thread may be anywhere. Files are replaced whole or not at
         // all, so an end at any time leaves the last checkpoint as it was.
         std::fprintf(stderr, "%s\n", error.what());
         ::_exit(error.exit_code());
       }});
  if (processes->size() == 1) return train_in(processes, options, flags);
  if (!processes->leads()) {
    spdlog::set_level(spdlog::level::err);
    Progress::hide_all();
  }
  try {
    return train_in(processes, options, flags);
  } catch (const Error& error) {
    processes->stop_watching();
    if (processes->leads()) throw;
    // What is wrong everywhere is said once, by the first process, at whose end the launcher asks the others to end.
    // An error of this one alone is said after a while.
    for (int i = 0; i < 30; ++i) {
      if (interrupted()) ::_exit(error.exit_code());
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    throw error.within(fmt::format("process {} of {}", processes->rank(), processes->size()));
  }
}

}  // namespace

Command train_command() {
  return {"train", "train a model through its memory, or resume; in several processes with mpirun -n N",
          "palimpsest train recipes/recall.toml --data book.txt --output-dir runs/book",
          [](CLI::App& app) {
            auto flags = std::make_shared<TrainFlags>();
            app.add_option("recipe", flags->recipe, "a TOML file; any of its keys is also a flag");
            app.add_flag("--print-config", flags->print_config, "print the whole effective recipe and stop");
            app.add_flag("--dry-run", flags->dry_run, "show a few items as the model will see them and stop");
            app.add_flag("--json", flags->json, "the summary as JSON");
            options_to_flags(flags->options, app);
            return [flags, &app] { return run(*flags, app); };
          },
          /*long_work=*/true};
}

}  // namespace palimpsest::app
