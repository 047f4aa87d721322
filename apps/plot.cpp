// SPDX-License-Identifier: Apache-2.0
// `palimpsest plot`: curves of runs and of evaluations, overlaid, and heat maps of a memory at work, as SVG and PNG
// (gnuplot).
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "apps/command.h"
#include "apps/gnuplot.h"
#include "apps/model_flags.h"
#include "apps/plot_eval.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/log.h"

namespace fs = std::filesystem;

namespace palimpsest::app {

namespace {

struct PlotFlags {
  std::vector<std::string> runs, evals;
  ModelFlags model;
  std::string file, out;
  int64_t segment = 0, max_segments = 64;
  static void fields(auto& o, auto&& field) {
    field("model", o.model, "");
    field("file", o.file, "with --model: a text whose reading is shown: gates, what tokens and slots looked at");
    field("out", o.out, "folder for the pictures; empty: RUN/plots of the first run, or ./plots");
    field("segment", o.segment, "tokens of a segment; 0: as trained");
    field("max_segments", o.max_segments, "first segments of the text that are read");
  }
};

/// One quantity over the steps of each run; a run without it is left out.
struct Curve {
  const char* name;
  const char* title;
  bool logarithmic;
  std::function<Json(const Json& line)> value;  ///< null where a line has none
};

Json member(const Json& line, const char* key) { return line.contains(key) ? line.at(key) : Json(); }

const std::vector<Curve>& curves() {
  static const std::vector<Curve> all = {
      {"loss", "training loss", false, [](const Json& line) { return member(line, "loss"); }},
      {"perplexity", "held-out perplexity", true,
       [](const Json& line) {
         if (!line.contains("eval")) return Json();
         double total = 0, targets = 0;
         for (const auto& [task, values] : line.at("eval").items()) {
           if (!values.is_object() || !values.contains("loss") || !values.contains("targets")) continue;
           total += values.at("loss").get<double>() * values.at("targets").get<double>();
           targets += values.at("targets").get<double>();
         }
         return targets > 0 ? Json(std::exp(total / targets)) : Json();
       }},
      {"recovered", "share given back of held-out segments", false,
       [](const Json& line) {
         if (!line.contains("eval")) return Json();
         for (const auto& [task, values] : line.at("eval").items()) {
           if (values.is_object() && values.contains("recovered")) return values.at("recovered");
         }
         return Json();
       }},
      {"learning_rate", "learning rate", false, [](const Json& line) { return member(line, "learning_rate"); }},
      {"gradient_norm", "gradient norm", true, [](const Json& line) { return member(line, "grad_norm"); }},
      {"memory_gradient", "norm of the loss's gradient with respect to the memory", true,
       [](const Json& line) {
         return line.contains("memory_gradient") ? member(line.at("memory_gradient"), "norm") : Json();
       }},
  };
  return all;
}

std::vector<Json> metrics_of(const std::string& run) {
  const std::string path = (fs::path(run) / "metrics.jsonl").string();
  std::ifstream in(path);
  if (!in) throw input_error("the run has no metrics.jsonl", run, "name a folder that palimpsest train wrote");
  std::vector<Json> lines;
  int64_t number = 1;
  for (std::string line; std::getline(in, line); ++number) {
    Json json = Json::parse(line, nullptr, false);
    if (json.is_discarded() || !json.is_object() || !json.contains("step")) {
      // The last line of a run that was killed, or that is writing now.
      if (in.peek() == std::ifstream::traits_type::eof()) break;
      throw input_error("is not a line of metrics", fmt::format("{}, line {}", path, number));
    }
    lines.push_back(std::move(json));
  }
  return lines;
}

void plot_runs(const std::vector<std::string>& runs, const fs::path& folder) {
  std::vector<std::vector<Json>> metrics;
  for (const auto& run : runs) metrics.push_back(metrics_of(run));
  for (const Curve& curve : curves()) {
    std::string plots, data;
    int64_t block = 0;
    for (size_t i = 0; i < runs.size(); ++i) {
      std::string points;
      for (const Json& line : metrics[i]) {
        const Json value = curve.value(line);
        if (value.is_number() && (!curve.logarithmic || value.get<double>() > 0))
          points += fmt::format("{} {}\n", line.at("step").get<int64_t>(), value.get<double>());
      }
      if (points.empty()) continue;
      data += fmt::format("$run{} << END\n{}END\n", block, points);
      plots += fmt::format("{}$run{} using 1:2 with lines linewidth 2 title {} noenhanced", plots.empty() ? "" : ", ",
                           block, quoted(fs::path(runs[i]).lexically_normal().string()));
      ++block;
    }
    if (plots.empty()) continue;
    draw(folder, curve.name,
         data + fmt::format("set title {}\nset xlabel 'step'\nset grid\nset key outside below\n{}plot {}\n",
                            quoted(curve.title), curve.logarithmic ? "set logscale y\n" : "", plots));
  }
}

/// A matrix [rows, columns] as a picture; row 0 at the top.
void heat_map(const fs::path& folder, const std::string& name, const at::Tensor& matrix, const std::string& title,
              const std::string& rows, const std::string& columns) {
  std::string data;
  const at::Tensor m = matrix.to(at::kDouble).contiguous();
  for (int64_t i = 0; i < m.size(0); ++i) {
    for (int64_t j = 0; j < m.size(1); ++j) data += fmt::format("{} ", m[i][j].item<double>());
    data += "\n";
  }
  draw(folder, name,
       fmt::format("$map << END\n{}END\nset title {}\nset xlabel {}\nset ylabel {}\nset yrange [{}:-0.5]\n"
                   "set xrange [-0.5:{}]\nset palette defined (0 'white', 1 '#08306b')\nset cbrange [0:*]\n"
                   "plot $map matrix with image notitle\n",
                   data, quoted(title), quoted(columns), quoted(rows), static_cast<double>(m.size(0)) - 0.5,
                   static_cast<double>(m.size(1)) - 0.5));
}

/// Gates over a document, and what was looked at in its last whole segment.
void plot_memory(const PlotFlags& flags, const fs::path& folder) {
  const at::NoGradGuard no_grad;
  const auto loaded = load(flags.model);
  const auto model = loaded.bart();
  if (!model->memory) throw usage_error("the model has no memory to look at", flags.model.model);
  const auto ids = loaded.need_tokenizer().encode_ids(read_file(flags.file));
  const int64_t segment = flags.segment > 0             ? flags.segment
                          : loaded.training.segment > 0 ? loaded.training.segment
                                                        : model->config().max_position_embeddings;
  const int64_t slots = model->config().memory.slots;
  std::vector<at::Tensor> gates, moved;
  std::map<std::string, at::Tensor> last;
  memory::Memory memory = model->fresh_memory(1);
  for (int64_t first = 0; first < static_cast<int64_t>(ids.size()) && first / segment < flags.max_segments;
       first += segment) {
    const int64_t end = std::min<int64_t>(static_cast<int64_t>(ids.size()), first + segment);
    const std::vector<int64_t> row(ids.begin() + first, ids.begin() + end);
    std::map<std::string, at::Tensor> seen;
    models::EncodeInput input;
    input.ids = at::tensor(row, at::kLong).unsqueeze(0);
    input.memory = memory;
    input.observe = [&](const std::string& name, const at::Tensor& value) { seen[name] = value; };
    const auto encoded = model->encode(input);
    if (seen.count("gate") != 0) gates.push_back(seen.at("gate").view({slots}));
    moved.push_back((encoded.memory.slots - memory.slots).norm(2, -1).view({slots}));
    memory = encoded.memory;
    if (end - first == segment) last = std::move(seen);
  }
  if (moved.empty()) throw input_error("the text is empty", flags.file);
  if (!gates.empty())
    heat_map(folder, "gate", at::stack(gates), "gate: share of the new in each slot", "segment", "slot");
  heat_map(folder, "written", at::stack(moved), "how far each slot moved", "segment", "slot");
  if (last.empty()) return;
  const int64_t layers = model->config().encoder_layers;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string reads = fmt::format("attentions.{}", layer), writes = fmt::format("slot_attentions.{}", layer),
                      asks = fmt::format("memory_attentions.{}", layer);
    // MemBART's tokens see [slots; tokens] in one softmax; a Memformer reads its slots apart.
    if (model->config().memory.is_memformer()) {
      if (last.count(asks) != 0)
        heat_map(folder, fmt::format("read_{}", layer), last.at(asks)[0].mean(0),
                 fmt::format("layer {}: which slots each token reads", layer), "token", "slot");
      continue;
    }
    heat_map(folder, fmt::format("read_{}", layer), last.at(reads)[0].mean(0).narrow(1, 0, slots),
             fmt::format("layer {}: which slots each token reads", layer), "token", "slot");
    heat_map(folder, fmt::format("wrote_{}", layer), last.at(writes)[0].mean(0).narrow(1, 0, segment),
             fmt::format("layer {}: which tokens each slot reads", layer), "slot", "token");
  }
  if (last.count("slot_attentions") != 0)
    heat_map(folder, "wrote", last.at("slot_attentions")[0].mean(0).narrow(1, 0, segment),
             "which tokens each slot reads", "slot", "token");
}

int run(const PlotFlags& flags) {
  const int kinds = (flags.runs.empty() ? 0 : 1) + (flags.evals.empty() ? 0 : 1) + (flags.model.model.empty() ? 0 : 1);
  if (kinds != 1) {
    throw usage_error(
        "give run folders, or files of eval --json, or a model and a text", "command line",
        "palimpsest plot RUN…, palimpsest plot --eval A.json… or palimpsest plot --model DIR --file TEXT");
  }
  if (!flags.model.model.empty()) require("--file", flags.file);
  const fs::path folder = !flags.out.empty()   ? fs::path(flags.out)
                          : flags.runs.empty() ? fs::path("plots")
                                               : fs::path(flags.runs.front()) / "plots";
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) throw input_error("cannot make the folder: " + code.message(), folder.string());
  if (!flags.runs.empty()) plot_runs(flags.runs, folder);
  if (!flags.evals.empty()) plot_evals(flags.evals, folder);
  if (!flags.model.model.empty()) plot_memory(flags, folder);
  return 0;
}

}  // namespace

Command plot_command() {
  return {"plot", "curves of runs and evaluations, overlaid, and heat maps of a memory at work, as SVG and PNG",
          "palimpsest plot runs/one runs/two --out plots", [](CLI::App& app) {
            auto flags = std::make_shared<PlotFlags>();
            app.add_option("RUN", flags->runs, "folders of runs");
            app.add_option("--eval", flags->evals, "files that eval --json printed, drawn together");
            options_to_flags(*flags, app);
            return [flags] { return run(*flags); };
          }};
}

}  // namespace palimpsest::app
