// SPDX-License-Identifier: Apache-2.0
// `palimpsest train`: trains from a recipe or flags, or resumes.
#include <filesystem>

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

int run(TrainFlags& flags, const CLI::App& app) {
  train::TrainOptions options;
  if (!flags.recipe.empty()) {
    options_from_toml(options, flags.recipe);
    // Paths in a recipe are meant from the recipe's folder where they do not exist from here.
    for (auto& path : options.corpus.data) {
      const auto beside = std::filesystem::path(flags.recipe).parent_path() / path;
      if (!std::filesystem::exists(path) && std::filesystem::exists(beside)) path = beside.string();
    }
  }
  options_from_json(options, flags_given(app), "command line");
  if (flags.print_config) {
    print_line(options_to_toml(options));
    return 0;
  }
  watch_interrupts();
  if (flags.dry_run) options.resume = false;
  train::TrainHooks hooks;
  hooks.interrupted = interrupted;
  hooks.on_evaluation = [](int64_t step, const Json& line) {
    for (const auto& [task, values] : line.at("eval").items()) {
      const std::string recovered = values.contains("recovered")
                                        ? fmt::format(", {:.1f} % given back", 100 * values["recovered"].get<double>())
                                        : "";
      spdlog::info("step {:>6}  held out, {}: loss {:.3f}{}", step, task, values["loss"].get<double>(), recovered);
    }
  };
  train::Trainer trainer(options, hooks);
  if (flags.dry_run) {
    print_line(trainer.describe(3));
    return 0;
  }
  const Json summary = trainer.run();
  if (flags.json) {
    print_json(summary);
  } else {
    print_line(fmt::format("{} steps in {}, {:.2f} steps/s, loss {:.4f}, peak memory {}, {} parameters",
                           summary["steps"].get<int64_t>(), format_seconds(summary["train_runtime"]),
                           summary["train_steps_per_second"].get<double>(), summary["train_loss"].get<double>(),
                           format_bytes(summary["peak_bytes"]), format_count(summary["parameters"])));
    print_line(
        fmt::format("{}checkpoint: {}",
                    summary["interrupted"].get<bool>() ? "interrupted; the same command goes on from here. " : "",
                    summary["checkpoint"].get<std::string>()));
  }
  return 0;
}

}  // namespace

Command train_command() {
  return {"train", "train a model through its memory, or resume",
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
