// SPDX-License-Identifier: Apache-2.0
// `palimpsest demo`: trains a small MemBART on real text while you watch, then shows what its memory of fixed size
// holds.
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "apps/command.h"
#include "apps/demo_recipe.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/log.h"
#include "palimpsest/data/token_stream.h"
#include "palimpsest/train/trainer.h"

namespace fs = std::filesystem;

namespace palimpsest::app {

namespace {

struct DemoFlags {
  std::string text, other, model, output_dir;
  bool quick = false, json = false;
  int64_t seed = 0, max_steps = 0, segments = 2000, stream_tokens = 200000;
  static void fields(auto& o, auto&& field) {
    field("text", o.text, "train on this file instead of the King James Bible (package bible-kjv)");
    field("other", o.other, "text of another kind, never trained on, instead of the fortunes of Debian");
    field("quick", o.quick, "train nothing: use the model that lies in the project");
    field("model", o.model, "train nothing: use this model folder");
    field("output_dir", o.output_dir,
          "where the run is kept, and from where an interrupted one goes on; empty: runs/demo, and a name of its own "
          "for another text or seed");
    field("seed", o.seed, "of everything random");
    field("max_steps", o.max_steps, "train that many steps; 0: as the recipe says");
    field("segments", o.segments, "segments of each text that are measured, about");
    field("stream_tokens", o.stream_tokens, "tokens of the long text that is read at the end");
    field("json", o.json, "the table as JSON");
  }
};

/// A text as the demo reads it, and how it is called in the table.
struct Source {
  data::CorpusOptions corpus;
  std::string name;
};

Source bible(const std::string& folder) {
  const std::string path = (fs::path(folder) / "bible.txt").string();
  if (!fs::exists(path)) {
    std::FILE* pipe = ::popen("PATH=$PATH:/usr/games bible -f gen1:1-rev22:21 </dev/null 2>/dev/null", "r");
    std::string text;
    char buffer[1 << 16];
    for (size_t n; pipe != nullptr && (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
    if (pipe != nullptr) ::pclose(pipe);
    if (text.size() < 1000000) {
      throw input_error("the King James Bible of the package bible-kjv is not there", "command bible",
                        "apt-get install bible-kjv, or name a text of your own: make demo TEXT=book.txt");
    }
    write_file_atomically(path, text);
  }
  // Each line starts with its reference ("Gen1:1 "): a border where the chapter changes, and not part of the text.
  return {{.data = {path}, .document = "change=^(\\S+):\\d+ ", .strip = "^\\S+ "}, "the King James Bible"};
}

Source other_text(const DemoFlags& flags) {
  if (!flags.other.empty()) return {{.data = {flags.other}}, flags.other};
  const std::string folder = "/usr/share/games/fortunes/";
  Source source{{.data = {}, .document = "file", .strip = "^%$"}, "fortunes"};
  for (const char* file : {"literature", "people", "science"}) {
    if (fs::exists(folder + file)) source.corpus.data.push_back(folder + file);
  }
  if (source.corpus.data.empty()) {
    throw input_error("the fortunes of Debian are not there", folder,
                      "apt-get install fortunes, or name a text of another kind: make demo OTHER=book.txt");
  }
  return source;
}

/// What is measured: documents, and a maker that knows their spans.
struct Measured {
  train::EvalData data;
  train::BatchMaker maker;
  std::string name;
  int64_t segments = 0;  ///< first segments of each document; 0: all
};

Measured measured(std::shared_ptr<const data::Corpus> corpus, std::vector<data::Span> spans,
                  const train::TrainOptions& recipe, const checkpoint::Training& training, const train::SpecialIds& ids,
                  const std::string& name) {
  // Another document's memory needs several documents: a single text is read as 16 pieces.
  spans = data::cut_for_lanes(std::move(spans), 16, nullptr);
  train::TaskOptions tasks = recipe.tasks;
  tasks.decoder_mask_rate = 0;
  train::EvalData data{std::move(corpus), std::move(spans), data::segment_plan(recipe.segments)};
  train::BatchMaker maker(data.corpus, data.spans, data.plan, tasks, training.tasks, ids, 0);
  return {std::move(data), std::move(maker), name};
}

class Demo {
 public:
  explicit Demo(const DemoFlags& flags) : flags_(flags) {
    if (!flags_.output_dir.empty()) return;
    flags_.output_dir = "runs/demo";
    if (!flags_.text.empty()) flags_.output_dir += "-" + fs::path(flags_.text).stem().string();
    if (flags_.seed != 0) flags_.output_dir += fmt::format("-seed-{}", flags_.seed);
  }

  int run() {
    watch_interrupts();
    fs::create_directories(flags_.output_dir);
    train::TrainOptions recipe = demo_recipe();
    const Source text = flags_.text.empty() ? bible(flags_.output_dir) : Source{{.data = {flags_.text}}, flags_.text};
    recipe.corpus = text.corpus;
    recipe.output_dir = flags_.output_dir;
    recipe.seed = flags_.seed;
    if (flags_.max_steps > 0) recipe.max_steps = flags_.max_steps;
    const Source other = other_text(flags_);  // before anything long: what is missing is said at once

    std::shared_ptr<const data::Corpus> corpus;
    data::Split split;
    if (flags_.quick || !flags_.model.empty()) {
      const std::string path = flags_.model.empty() ? shipped_model_folder() : flags_.model;
      folder_ = checkpoint::load_model(path, {.dtype = at::kFloat});
      if (!folder_.tokenizer()) throw input_error("the model folder has no tokenizer", path);
      if (folder_.training.segment > 0) recipe.segments.segment = folder_.training.segment;
      corpus = data::prepare_corpus(text.corpus, *folder_.tokenizer(), "");
      split = data::split_corpus(*corpus, recipe.split);
      spdlog::info("using {} as it is; {}", fs::proximate(path).string(), split.description);
    } else if (!train_model(recipe, text.name)) {
      return 1;
    } else {
      corpus = data::prepare_corpus(text.corpus, *folder_.tokenizer(), "");
      split = data::split_corpus(*corpus, recipe.split);
    }
    ids_ = train::SpecialIds::of(*folder_.model, folder_.tokenizer().get());

    std::vector<Measured> rows;
    rows.push_back(measured(corpus, split.held_out, recipe, folder_.training, ids_, "held-out documents"));
    auto other_corpus = data::prepare_corpus(other.corpus, *folder_.tokenizer(), "");
    rows.push_back(
        measured(other_corpus, data::whole_documents(*other_corpus), recipe, folder_.training, ids_, other.name));
    for (Measured& row : rows)
      row.segments = std::max<int64_t>(2, flags_.segments / static_cast<int64_t>(row.data.spans.size()));
    if (!flags_.json) title(recipe, text.name);
    for (const data::Span& span : split.held_out) table_["held_out"].push_back(corpus->name(span.document));
    for (Measured& row : rows) measure(row);
    constant_cost(text, recipe.segments.segment);
    if (flags_.json) {
      print_json(table_);
    } else {
      example();
      goodbye();
    }
    return interrupted() ? 1 : 0;
  }

 private:
  /// False where it was interrupted.
  bool train_model(const train::TrainOptions& recipe, const std::string& name) {
    spdlog::info("training a vocabulary and a MemBART on {}, from scratch; Ctrl-C keeps what was trained", name);
    const auto started = std::chrono::steady_clock::now();
    train::TrainHooks hooks;
    hooks.interrupted = interrupted;
    hooks.on_evaluation = [&](int64_t step, const Json& line) {
      const double minutes = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count() / 60;
      for (const auto& [task, values] : line.at("eval").items()) {
        if (!values.contains("recovered")) continue;
        const double share = 100 * values["recovered"].get<double>();
        spdlog::info("  step {:>5}  {:>4.1f} min  {}: {:>5.1f} % given back  |{:<40}|", step, minutes, task, share,
                     std::string(static_cast<size_t>(share * 0.4), '#'));
      }
    };
    train::Trainer trainer(recipe, hooks);
    spdlog::info("chance is about {:.1f} %; {} parameters",
                 100.0 / static_cast<double>(trainer.tokenizer()->vocab_size()),
                 format_count(nn::parameter_count(trainer.model())));
    const int64_t first = trainer.steps_done();
    if (first >= trainer.options().max_steps)
      spdlog::info("already trained; remove {} to train anew", recipe.output_dir);
    const Json summary = trainer.run();
    const std::string path = summary["checkpoint"];
    if (summary["interrupted"].get<bool>()) {
      spdlog::info("interrupted at step {}: {} holds what was trained; make demo goes on from there",
                   summary["steps"].get<int64_t>(), path);
      return false;
    }
    spdlog::info("trained {} steps in {}", summary["steps"].get<int64_t>() - first,
                 format_seconds(summary["train_runtime"]));
    folder_ = checkpoint::load_model(path, {.dtype = at::kFloat});
    return true;
  }

  void title(const train::TrainOptions& recipe, const std::string& name) {
    const int64_t slots = folder_.bart()->config().memory.slots;
    print_line("");
    print_line(
        fmt::format("What a memory of {} slots ({}) holds of segments of {} tokens. Vocabulary {}, trained on {}.",
                    slots, format_bytes(folder_.bart()->fresh_memory(1).bytes()), recipe.segments.segment,
                    folder_.tokenizer()->vocab_size(), name));
    print_line(
        "Share given back of the segment before, by greedy decoding from (current segment, memory), exact position:");
    print_line("");
    print_line(
        fmt::format("  {:<36} {:>9} {:>9} {:>9} {:>10} {:>9}", "", "kept", "reset", "another's", "segments", "whole"));
  }

  void measure(const Measured& row) {
    for (const auto& task : folder_.training.tasks) {
      if (task.name == "current") continue;
      Json entry = {{"text", row.name}, {"task", task.text()}};
      std::vector<double> shares, perplexities;
      for (const train::Carry carry : {train::Carry::kKeep, train::Carry::kReset, train::Carry::kOther}) {
        const train::WalkOptions walk{.carry = carry, .batch = 64, .max_segments = row.segments, .stop = interrupted};
        if (task.name == "recall") {
          auto report = evaluate_recall(*folder_.bart(), row.data, row.maker, task, ids_, folder_.tokenizer().get(),
                                        walk, carry == train::Carry::kKeep && shown_.empty() ? 64 : 0);
          shares.push_back(report.share());
          entry[carry_name(carry)] = report.to_json();
          if (carry == train::Carry::kKeep && shown_.empty()) shown_ = std::move(report.examples);
        } else {
          const auto report =
              evaluate_loss(*folder_.bart(), row.data, row.maker, task, folder_.tokenizer().get(), walk);
          perplexities.push_back(report.total.perplexity());
          entry[carry_name(carry)] = report.to_json();
        }
      }
      table_["rows"].push_back(entry);
      if (flags_.json) continue;
      const std::string label = task.text() == "recall" ? row.name : fmt::format("{}, {}", row.name, task.text());
      if (task.name == "recall") {
        print_line(fmt::format("  {:<36} {:>7.1f} % {:>7.1f} % {:>7.1f} % {:>10} {:>7.1f} %", label, 100 * shares[0],
                               100 * shares[1], 100 * shares[2], entry["keep"]["segments"].get<int64_t>(),
                               100.0 * entry["keep"]["exact_segments"].get<double>() /
                                   std::max(1.0, entry["keep"]["segments"].get<double>())));
      } else {
        print_line(fmt::format("  {:<36} {:>9.2f} {:>9.2f} {:>9.2f}   (perplexity)", label, perplexities[0],
                               perplexities[1], perplexities[2]));
      }
    }
  }

  /// Reads a long text and compares its start with its end.
  void constant_cost(const Source& text, int64_t segment) {
    const at::NoGradGuard no_grad;
    data::TokenStream stream({.data = text.corpus.data, .document = "file", .strip = text.corpus.strip},
                             data::tokenize_with(*folder_.tokenizer()));
    memory::Memory memory = folder_.bart()->fresh_memory(1);
    struct Point {
      int64_t tokens, resident;
      double seconds;
    };
    std::vector<Point> points;
    std::vector<double> lately;
    data::StreamedTokens tokens;
    int64_t read = 0;
    const int64_t window = std::max<int64_t>(segment, flags_.stream_tokens / 20);
    int64_t next = 2 * window;  // the first window warms up
    Progress progress("reading a long text", flags_.stream_tokens, "tokens");
    while (read < flags_.stream_tokens && stream.next(segment, tokens) && !interrupted()) {
      if (tokens.ids.empty()) continue;
      const auto started = std::chrono::steady_clock::now();
      const at::Tensor ids =
          at::tensor(std::vector<int64_t>(tokens.ids.begin(), tokens.ids.end()), at::kLong).unsqueeze(0);
      memory = folder_.bart()->encode({.ids = ids, .memory = memory}).memory;
      lately.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count());
      read += static_cast<int64_t>(tokens.ids.size());
      progress.update(std::min(read, flags_.stream_tokens));
      if (read >= next || read >= flags_.stream_tokens) {
        std::nth_element(lately.begin(), lately.begin() + static_cast<std::ptrdiff_t>(lately.size() / 2), lately.end());
        points.push_back({read, resident_bytes().now, lately[lately.size() / 2]});
        lately.clear();
        next = read + window;
      }
    }
    progress.clear();
    if (points.empty()) return;
    table_["state_bytes"] = memory.bytes();
    for (const Point* point : {&points.front(), &points.back()}) {
      table_["stream"].push_back(
          {{"tokens", point->tokens}, {"segment_seconds", point->seconds}, {"resident_bytes", point->resident}});
    }
    if (flags_.json) return;
    print_line("");
    print_line(fmt::format(
        "State carried from segment to segment: {} bytes, whatever was read. One long text, read on and on:",
        memory.bytes()));
    for (const auto& [label, point] : {std::pair{"at the start", points.front()}, {"at the end", points.back()}}) {
      print_line(fmt::format("  {:<12} {:>9} tokens read   {:>7.2f} ms a segment   {:>9} resident", label,
                             format_count(point.tokens), 1000 * point.seconds, format_bytes(point.resident)));
    }
  }

  void example() {
    if (shown_.empty()) return;
    // The median of those kept for showing: neither the best nor the worst.
    std::sort(shown_.begin(), shown_.end(), [](const auto& a, const auto& b) { return a.share < b.share; });
    const auto& shown = shown_[shown_.size() / 2];
    print_line("");
    print_line(fmt::format("One example, neither the best nor the worst of {} ({:.0f} % given back):", shown_.size(),
                           100 * shown.share));
    const auto quoted = [](std::string text) {
      std::replace(text.begin(), text.end(), '\n', ' ');
      return "\"" + text + "\"";
    };
    print_line("  it read, then put away:   " + quoted(shown.reference));
    print_line("  it is reading now:        " + quoted(shown.current));
    print_line("  the memory gives back:    " + quoted(shown.given));
  }

  void goodbye() {
    print_line("");
    print_line("Go on with your own text:");
    print_line("  make demo TEXT=book.txt OTHER=letters.txt      the same on other texts");
    print_line("  build/palimpsest train recipes/recall.toml --data book.txt --output-dir runs/book");
    print_line(
        fmt::format("  build/palimpsest stream --model {} book.txt --recall", fs::proximate(folder_.path).string()));
  }

  DemoFlags flags_;
  checkpoint::ModelFolder folder_;
  train::SpecialIds ids_;
  std::vector<train::RecallReport::Example> shown_;
  Json table_ = Json::object();
};

}  // namespace

Command demo_command() {
  return {"demo", "train a small memory on real text and show what it holds", "palimpsest demo --text book.txt",
          [](CLI::App& app) {
            auto flags = std::make_shared<DemoFlags>();
            options_to_flags(*flags, app);
            return [flags] { return Demo(*flags).run(); };
          },
          /*long_work=*/true};
}

}  // namespace palimpsest::app
