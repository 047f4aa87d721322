// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/checkpoint/model_folder.h"

#include <ATen/Context.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <regex>
#include <set>

#include "palimpsest/checkpoint/safetensors.h"
#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/options.h"

namespace fs = std::filesystem;

namespace palimpsest::checkpoint {

std::string Task::text() const { return distance > 1 ? fmt::format("{}:{}", name, distance) : name; }

bool Training::has(const std::string& name) const {
  for (const Task& task : tasks) {
    if (task.text() == name) return true;
  }
  return false;
}

const Task& Training::task(const std::string& name) const {
  std::string known;
  for (const Task& task : tasks) {
    if (task.text() == name) return task;
    known += (known.empty() ? "" : ", ") + task.text();
  }
  throw usage_error(fmt::format("the model was not trained for the task \"{}\"", name), "--task",
                    known.empty() ? "it names no tasks: a stock model is asked with generate" : "its tasks: " + known);
}

namespace {

/// Module names and the names of the Hugging Face (and the MemBART authors') files. First match wins.
const std::vector<std::pair<std::regex, std::string>>& name_table() {
  static const std::vector<std::pair<std::regex, std::string>> table = {
      {std::regex(R"(shared\.weight)"), "model.shared.weight"},
      {std::regex(R"((encoder|decoder)_embeddings\.(.*))"), "model.$1.$2"},
      {std::regex(R"((encoder|decoder)_layers_(\d+)\.(.*))"), "model.$1.layers.$2.$3"},
      {std::regex(R"(memory\.layers_(\d+)\.self_attn\.(.*))"), "model.encoder.layers.$1.self_attn.mem_$2"},
      {std::regex(R"(memory\.layers_(\d+)\.(.*))"), "model.encoder.layers.$1.mem_$2"},
      {std::regex(R"(memory\.(.*))"), "model.encoder.$1"},
  };
  return table;
}

const std::string kPrefix = "model.";
const std::string kEmbedding = "model.shared.weight";
/// Names under which the one tied embedding may stand in a file.
const std::set<std::string> kEmbeddingAliases = {kEmbedding, "model.encoder.embed_tokens.weight",
                                                 "model.decoder.embed_tokens.weight", "lm_head.weight"};

}  // namespace

std::string file_name_of(const std::string& module_name) {
  for (const auto& [pattern, replacement] : name_table()) {
    if (std::regex_match(module_name, pattern)) return std::regex_replace(module_name, pattern, replacement);
  }
  return module_name;
}

std::vector<std::pair<std::string, at::Tensor>> named_tensors(const models::BartModel& model) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& entry : model.named_parameters()) tensors.emplace_back(file_name_of(entry.key()), entry.value());
  for (const auto& entry : model.named_buffers()) tensors.emplace_back(file_name_of(entry.key()), entry.value());
  return tensors;
}

void fill_model(models::BartModel& model, const std::map<std::string, at::Tensor>& tensors, const std::string& source,
                const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> given;  // under their full names
  for (const auto& [name, tensor] : tensors) {
    const bool bare = name.rfind("encoder.", 0) == 0 || name.rfind("decoder.", 0) == 0 || name.rfind("shared.", 0) == 0;
    std::string full = bare ? kPrefix + name : name;
    if (kEmbeddingAliases.count(full) != 0) {
      if (full != kEmbedding && given.count(kEmbedding) != 0) continue;
      full = kEmbedding;
    }
    given.emplace(full, tensor);
  }
  std::vector<std::string> missing, misshapen;
  for (auto& [name, parameter] : named_tensors(model)) {
    const auto found = given.find(name);
    if (found == given.end()) {
      if (name == "final_logits_bias") {
        parameter.zero_();
      } else {
        missing.push_back(name);
      }
      continue;
    }
    const at::Tensor value = found->second;
    given.erase(found);
    if (value.sizes() != parameter.sizes()) {
      misshapen.push_back(
          fmt::format("{} is {}, expected {}", name, nn::shape_text(value.sizes()), nn::shape_text(parameter.sizes())));
      continue;
    }
    // set_data keeps the module's handle and the map's bytes: nothing is copied where type and device agree.
    parameter.set_data(value.to(options.device, options.dtype.value_or(value.scalar_type())));
  }
  const auto list = [](const std::vector<std::string>& names) {
    std::string text;
    for (size_t i = 0; i < names.size() && i < 20; ++i) text += (text.empty() ? "" : ", ") + names[i];
    return names.size() > 20 ? text + fmt::format(" and {} more", names.size() - 20) : text;
  };
  std::vector<std::string> unexpected;
  for (const auto& [name, tensor] : given) unexpected.push_back(name);
  std::string problem;
  const auto add = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty())
      problem += fmt::format("{}{} {} tensor{}: {}", problem.empty() ? "" : "; ", names.size(), what,
                             names.size() > 1 ? "s" : "", list(names));
  };
  add("mis-shaped", misshapen);
  if (!options.allow_missing) {
    add("missing", missing);
    add("unexpected", unexpected);
  }
  if (!problem.empty()) {
    throw input_error(problem, source,
                      misshapen.empty()
                          ? "give --allow-missing to initialise what is missing and drop what is unexpected"
                          : "config.json and weights must belong together");
  }
  if (!missing.empty()) spdlog::warn("initialised with seed {}: {}", options.seed, list(missing));
  if (!unexpected.empty()) spdlog::warn("dropped: {}", list(unexpected));
}

at::Device device_named(const std::string& name) {
  if (name == "cpu") return at::kCPU;
  check_choice("--device", name, {"cpu", "cuda"});
  if (!at::hasCUDA()) {
    throw usage_error("--device cuda, but no CUDA device can be used", "",
                      "use --device cpu, or a CUDA build of LibTorch on a machine with a GPU");
  }
  return at::Device(at::kCUDA, 0);
}

Training training_from_json(const Json& config, const std::string& source) {
  Training training;
  if (!config.contains("palimpsest")) return training;
  const Json& own = config.at("palimpsest");
  const std::string place = source + ", \"palimpsest\"";
  if (!own.is_object()) throw input_error("\"palimpsest\" must be an object", source);
  if (own.contains("segment")) {
    training.segment = json_int(own, "segment", place);
    if (training.segment < 1 || training.segment > 1 << 24)
      throw input_error("\"segment\" must be a positive length", place);
  }
  if (own.contains("tasks")) {
    if (!own.at("tasks").is_array()) throw input_error("\"tasks\" must be a list", place);
    for (const Json& entry : own.at("tasks")) {
      Task task{json_string(entry, "name", place), json_int(entry, "start_id", place), 0};
      if (entry.contains("distance")) task.distance = json_int(entry, "distance", place);
      training.tasks.push_back(task);
    }
  }
  return training;
}

ModelFolder load_model(const std::string& path, const LoadOptions& options) {
  if (!fs::is_directory(path)) {
    throw input_error("is not a model folder", path, "a model is a folder with config.json and model.safetensors");
  }
  const std::string config_path = (fs::path(path) / "config.json").string();
  if (!fs::exists(config_path))
    throw input_error("the folder has no config.json", path,
                      "give a model folder, or a checkpoint-STEP folder of a run");
  const Json json = read_json(config_path);
  ModelFolder folder;
  folder.path = path;
  folder.config = models::BartConfig::from_json(json, config_path);
  folder.training = training_from_json(json, config_path);
  for (const Task& task : folder.training.tasks) {
    if (task.start_id < 0 || task.start_id >= folder.config.vocab_size) {
      throw input_error(fmt::format("the start token of the task {} is {}, outside the vocabulary of {}", task.text(),
                                    task.start_id, folder.config.vocab_size),
                        config_path);
    }
  }
  const TensorSet file = TensorSet::open(path);
  std::map<std::string, at::Tensor> tensors;
  at::ScalarType stored = at::kFloat;
  for (const auto& name : file.names()) {
    tensors[name] = file.tensor(name);
    if (tensors[name].is_floating_point()) stored = tensors[name].scalar_type();
  }
  LoadOptions effective = options;
  if (!effective.dtype) effective.dtype = stored;
  // at::empty reserves addresses and touches no page; the file's own bytes are then put in its place.
  folder.model =
      std::make_shared<models::BartModel>(folder.config, at::TensorOptions(*effective.dtype).device(options.device));
  if (options.allow_missing) folder.model->initialize({.std = folder.config.init_std, .seed = options.seed});
  fill_model(*folder.model, tensors, path, effective);
  folder.model->eval();
  for (const auto& [name, tensor] : named_tensors(*folder.model))
    folder.weight_bytes += static_cast<int64_t>(tensor.nbytes());
  for (const char* name : {"tokenizer.json", "vocab.json", "encoder.json"}) {
    if (fs::exists(fs::path(path) / name)) {
      folder.tokenizer = text::Tokenizer::load(path);
      break;
    }
  }
  if (folder.tokenizer && folder.tokenizer->vocab_size() > folder.config.vocab_size) {
    throw input_error(fmt::format("the tokenizer has {} entries, the model's embedding only {} rows",
                                  folder.tokenizer->vocab_size(), folder.config.vocab_size),
                      path, "put the tokenizer that the model was trained with into the folder");
  }
  return folder;
}

void save_model(const std::string& folder, const models::BartModel& model, const Training& training,
                const text::Tokenizer* tokenizer, std::optional<at::ScalarType> dtype) {
  const fs::path root(folder);
  Json json = model.config().to_json();
  json["dtype"] = nn::dtype_name(dtype.value_or(model.shared->weight.scalar_type()));
  if (!training.tasks.empty()) {
    Json& own = json["palimpsest"];
    if (!own.contains("format")) own["format"] = 1;
    if (training.segment > 0) own["segment"] = training.segment;
    for (const Task& task : training.tasks) {
      Json entry = {{"name", task.name}, {"start_id", task.start_id}};
      if (tokenizer != nullptr) entry["start_token"] = tokenizer->token_of(static_cast<int32_t>(task.start_id));
      if (task.distance > 0) entry["distance"] = task.distance;
      own["tasks"].push_back(entry);
    }
  }
  write_json((root / "config.json").string(), json);
  const auto& config = model.config();
  write_json((root / "generation_config.json").string(), {{"bos_token_id", config.bos_token_id},
                                                          {"pad_token_id", config.pad_token_id},
                                                          {"eos_token_id", config.eos_token_id},
                                                          {"decoder_start_token_id", config.decoder_start_token_id}});
  auto tensors = named_tensors(model);
  for (auto& [name, tensor] : tensors) {
    tensor = tensor.detach();
    if (dtype) tensor = tensor.to(*dtype);
  }
  save_safetensors((root / "model.safetensors").string(), tensors, {{"format", "pt"}});
  if (tokenizer != nullptr) tokenizer->save(folder);
}

}  // namespace palimpsest::checkpoint
