// SPDX-License-Identifier: Apache-2.0
// `palimpsest inspect`: what is in a safetensors file, a model folder, a checkpoint or a session; exit 2 where it is
// broken.
//
// A report is built by sections. Each looks for one thing in a folder and adds what it finds to the JSON and to the
// lines for people; to show more, write a section and put it into kSections.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "apps/command.h"
#include "palimpsest/checkpoint/model_folder.h"
#include "palimpsest/checkpoint/safetensors.h"
#include "palimpsest/core/log.h"
#include "palimpsest/models/gpt2.h"
#include "palimpsest/serve/session.h"
#include "palimpsest/text/tokenizer.h"

namespace fs = std::filesystem;

namespace palimpsest::app {

namespace {

struct InspectOptions {
  bool json = false;
  static void fields(auto& o, auto&& field) { field("json", o.json, "print one JSON object"); }
};

/// What is said about a path: once for machines, once for people.
struct Report {
  Json json = Json::object();
  std::vector<std::string> lines;

  void heading(const std::string& text) {
    if (!lines.empty()) lines.emplace_back();
    lines.push_back(text);
  }
};

int64_t element_count(const checkpoint::TensorInfo& info) {
  int64_t count = 1;
  for (const int64_t size : info.shape) count *= size;  // known to fit: the reader checked it
  return count;
}

Json tensor_json(const checkpoint::TensorInfo& info) {
  return {{"name", info.name}, {"dtype", info.dtype}, {"shape", info.shape}, {"bytes", info.bytes()}};
}

/// A row per tensor, and totals.
void add_tensor_table(const checkpoint::TensorSet& set, Report& report) {
  std::vector<std::vector<std::string>> rows = {{"name", "dtype", "shape", "bytes"}};
  int64_t values = 0;
  for (const auto& name : set.names()) {
    const checkpoint::TensorInfo& info = set.info(name);
    rows.push_back({printable(name), info.dtype, fmt::format("[{}]", fmt::join(info.shape, ", ")),
                    format_count(static_cast<int64_t>(info.bytes()))});
    values += element_count(info);
  }
  std::vector<size_t> widths(4);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    report.lines.push_back(fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>{}}", row[0], widths[0], row[1], widths[1], row[2],
                                       widths[2], row[3], widths[3]));
  }
  const int64_t bytes = static_cast<int64_t>(set.bytes());
  report.lines.push_back(fmt::format(
      "{} {}, {} values, {} bytes ({})", format_count(static_cast<int64_t>(set.names().size())),
      set.names().size() == 1 ? "tensor" : "tensors", format_count(values), format_count(bytes), format_bytes(bytes)));
}

void add_tensors(const std::string& path, Report& report) {
  const auto set = checkpoint::TensorSet::open(path);
  Json tensors = Json::array();
  for (const auto& name : set.names()) tensors.push_back(tensor_json(set.info(name)));
  report.json["tensors"] = std::move(tensors);
  report.json["metadata"] = set.metadata();
  for (const auto& file : set.files()) report.heading(file.path());
  add_tensor_table(set, report);
  for (const auto& [key, value] : set.metadata()) {
    report.lines.push_back(fmt::format("metadata {}: {}", printable(key), printable(value)));
  }
}

/// "key: value" for each member, the inner ones of objects below "key.".
void add_members(const Json& object, const std::string& prefix, Report& report) {
  for (const auto& [key, value] : object.items()) {
    const std::string name = prefix + printable(key);
    if (value.is_object() && !value.empty()) {
      add_members(value, name + ".", report);
    } else if (value.is_array() && value.size() > 16) {
      report.lines.push_back(fmt::format("{}: a list of {}", name, format_count(static_cast<int64_t>(value.size()))));
    } else {
      const std::string text =
          value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
      report.lines.push_back(fmt::format("{}: {}", name, printable(text)));
    }
  }
}

/// A conversation: all of it is read, so that a damaged one is noticed.
void add_session(const std::string& path, Report& report) {
  const auto session = serve::Session::load(path);
  report.heading("session");
  report.json["session"] = {{"turns", session.now().turns},
                            {"tokens", session.now().tokens},
                            {"context_tokens", session.now().context.size()},
                            {"memory_bytes", session.now().memory.bytes()},
                            {"rewinds", session.past()},
                            {"model", session.fingerprint()}};
  add_members(report.json["session"], "", report);
}

bool config_section(const fs::path& folder, Report& report) {
  const fs::path file = folder / "config.json";
  if (!fs::exists(file)) return false;
  const Json config = read_json(file.string());
  if (!config.is_object()) throw input_error("a JSON object was expected", file.string());
  Json summary = Json::object();
  for (const char* key : {"model_type", "architectures", "palimpsest"}) {
    if (config.contains(key)) summary[key] = config[key];
  }
  report.heading(file.string());
  add_members(summary, "", report);
  if (!config.contains("palimpsest")) report.lines.emplace_back("no \"palimpsest\" object: a stock model");
  report.json["config"] = std::move(summary);
  return true;
}

/// What the config makes: parameters, and what one conversation or stream keeps between segments. Built on the meta
/// device, so that it costs nothing; a family that is not known is passed over, its tensors are shown all the same.
bool model_section(const fs::path& folder, Report& report) {
  const fs::path file = folder / "config.json";
  if (!fs::exists(file)) return false;
  const Json config = read_json(file.string());
  std::shared_ptr<models::Model> model;
  try {
    model = models::make_model(config, file.string(), at::TensorOptions().device(at::kMeta));
  } catch (const Error& error) {
    report.lines.push_back(fmt::format("not a model that this version runs: {}", error.problem()));
    return true;
  }
  Json json = {
      {"family", model->family()}, {"parameters", nn::parameter_count(*model)}, {"vocab_size", model->vocab_size()}};
  if (const auto* bart = dynamic_cast<const models::BartModel*>(model.get())) {
    const auto& sizes = bart->config();
    const int64_t memory = bart->fresh_memory(1).bytes();
    const int64_t per_token = 2 * sizes.decoder_layers * sizes.d_model * 4;
    json["memory"] = sizes.memory.text();
    json["memory_parameters"] = bart->memory ? nn::parameter_count(*bart->memory) : 0;
    json["state_bytes"] = memory;
    // Other mechanisms keep less, and most of them no more however long the text is.
    if (bart->cross_attention->dense()) json["source_bytes_per_token"] = per_token;
    if (bart->decoder_attention->dense()) json["decode_bytes_per_token"] = per_token;
    json["attention_parameters"] = nn::parameter_count(*bart->encoder_attention) +
                                   nn::parameter_count(*bart->decoder_attention) +
                                   nn::parameter_count(*bart->cross_attention);
    json["max_position_embeddings"] = sizes.max_position_embeddings;
  } else if (const auto* gpt2 = dynamic_cast<const models::Gpt2Model*>(model.get())) {
    if (gpt2->attention->dense())
      json["decode_bytes_per_token"] = 2 * gpt2->config().n_layer * gpt2->config().n_embd * 4;
    json["attention_parameters"] = nn::parameter_count(*gpt2->attention);
    json["max_position_embeddings"] = gpt2->config().n_positions;
  }
  report.heading("model (bytes of a session in float32)");
  add_members(json, "", report);
  report.json["model"] = std::move(json);
  return true;
}

bool tensor_section(const fs::path& folder, Report& report) {
  if (!fs::exists(folder / "model.safetensors") && !fs::exists(folder / "model.safetensors.index.json")) return false;
  add_tensors(folder.string(), report);
  return true;
}

/// Tensor files beside the model's: of the optimizer, say. Each is opened, so that a broken one is noticed.
bool other_tensor_section(const fs::path& folder, Report& report) {
  Json files = Json::array();
  std::vector<fs::path> paths;
  const bool has_index = fs::exists(folder / "model.safetensors.index.json");
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".safetensors") || name == "model.safetensors" || (has_index && name.starts_with("model-")))
      continue;
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    const auto set = checkpoint::TensorSet::open(path.string());
    files.push_back({{"file", path.filename().string()}, {"tensors", set.names().size()}, {"bytes", set.bytes()}});
    if (files.size() == 1) report.heading("other tensor files");
    report.lines.push_back(fmt::format("{}: {} tensors, {}", printable(path.filename().string()), set.names().size(),
                                       format_bytes(static_cast<int64_t>(set.bytes()))));
  }
  if (!files.empty()) report.json["other_tensor_files"] = std::move(files);
  return !paths.empty();
}

void add_tokenizer(const std::string& path, Report& report) {
  const auto tokenizer = text::Tokenizer::load(path);
  Json added = Json::object();
  for (const auto& token : tokenizer->added_tokens()) added[token.content] = token.id;
  report.json["tokenizer"] = {
      {"vocab_size", tokenizer->vocab_size()}, {"added_tokens", added}, {"fingerprint", tokenizer->fingerprint()}};
  report.heading("tokenizer");
  add_members(report.json["tokenizer"], "", report);
}

bool tokenizer_section(const fs::path& folder, Report& report) {
  const auto has = [&](const char* name) { return fs::exists(folder / name); };
  const bool present = has("tokenizer.json") || (has("vocab.json") && has("merges.txt")) ||
                       (has("encoder.json") && has("vocab.bpe")) || has("vocab.txt");
  if (present) add_tokenizer(folder.string(), report);
  return present;
}

bool trainer_section(const fs::path& folder, Report& report) {
  const fs::path file = folder / "trainer_state.json";
  if (!fs::exists(file)) return false;
  Json state = read_json(file.string());
  if (!state.is_object()) throw input_error("a JSON object was expected", file.string());
  report.heading(file.string());
  add_members(state, "", report);
  report.json["trainer_state"] = std::move(state);
  return true;
}

/// A run's checkpoints, by step.
bool checkpoint_section(const fs::path& folder, Report& report) {
  std::vector<std::pair<int64_t, std::string>> checkpoints;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string(), prefix = "checkpoint-";
    const std::string step = name.starts_with(prefix) ? name.substr(prefix.size()) : "";
    const bool is_number =
        !step.empty() && step.size() < 18 && step.find_first_not_of("0123456789") == std::string::npos;
    if (entry.is_directory() && is_number) checkpoints.emplace_back(std::stoll(step), name);
  }
  if (checkpoints.empty()) return false;
  std::sort(checkpoints.begin(), checkpoints.end());
  report.heading("checkpoints");
  for (const auto& [step, name] : checkpoints) {
    report.json["checkpoints"].push_back(name);
    report.lines.push_back(name);
  }
  return true;
}

/// Looks for one thing in a folder; false where it is not there.
using Section = bool (*)(const fs::path& folder, Report& report);
constexpr Section kSections[] = {config_section,    model_section,   tensor_section,    other_tensor_section,
                                 tokenizer_section, trainer_section, checkpoint_section};

void inspect_folder(const std::string& path, Report& report) {
  bool found = false;
  for (const Section section : kSections) found |= section(path, report);
  if (found) return;
  throw input_error(
      "nothing in this folder is known", path,
      "give a model folder (config.json, model.safetensors), a run or checkpoint folder, or a .safetensors file");
}

void inspect_file(const std::string& path, Report& report) {
  const fs::path folder = fs::path(path).parent_path();
  const std::string name = fs::path(path).filename().string();
  if (name == "config.json" && config_section(folder, report)) return;
  if (name == "trainer_state.json" && trainer_section(folder, report)) return;
  const auto tokenizer_files = {"tokenizer.json", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe", "vocab.txt"};
  const bool is_tokenizer = std::find(tokenizer_files.begin(), tokenizer_files.end(), name) != tokenizer_files.end();
  if (is_tokenizer) return add_tokenizer(path, report);
  add_tensors(path, report);
  if (report.json["metadata"].contains(serve::Session::kKey)) add_session(path, report);
}

int inspect(const std::string& path, const InspectOptions& options) {
  Report report;
  if (fs::is_directory(path)) {
    inspect_folder(path, report);
  } else {
    inspect_file(path, report);
  }
  if (options.json) {
    print_json(report.json);
  } else {
    for (const auto& line : report.lines) print_line(line);
  }
  return 0;
}

}  // namespace

Command inspect_command() {
  return {
      .name = "inspect",
      .summary =
          "Show what is in a safetensors file, a model folder, a checkpoint or a session; exit 2 where it is broken.",
      .example = "palimpsest inspect runs/latest/checkpoint-1000 --json",
      .setup = [](CLI::App& app) -> std::function<int()> {
        auto options = std::make_shared<InspectOptions>();
        auto path = std::make_shared<std::string>();
        app.add_option("PATH", *path,
                       "a .safetensors file, an index of shards, a tokenizer.json, a session, or a folder")
            ->required();
        options_to_flags(*options, app);
        return [options, path] { return inspect(*path, *options); };
      }};
}

}  // namespace palimpsest::app
