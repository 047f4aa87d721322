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

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 20; ++i) text += (text.empty() ? "" : ", ") + printable(names[i]);
  return names.size() > 20 ? text + fmt::format(" and {} more", names.size() - 20) : text;
}

using Tensors = std::map<std::string, at::Tensor>;

/// The tensors of a file under their full names: prefix added, buffers of other programs left out, the tied table under
/// the names of `own` (the model's) alone.
Tensors full_names(const NameTable& table, const std::set<std::string>& own, const Tensors& tensors,
                   LoadReport& report) {
  std::set<std::string> expected = own;
  expected.insert(table.tied.begin(), table.tied.end());
  Tensors given;
  for (const auto& [name, tensor] : tensors) {
    std::string full = table.full_name_of(name);
    if (std::regex_match(full, table.ignored)) continue;
    if (expected.count(full) == 0) full = name;
    if (full != name) report.renamed.emplace_back(name, full);
    given[full] = tensor;
  }
  at::Tensor tied;
  for (const std::string& name : table.tied) {
    if (given.count(name) != 0 && !tied.defined()) tied = given.at(name);
    if (own.count(name) == 0) given.erase(name);
  }
  for (const std::string& name : table.tied) {
    // A model with tables of their own takes the one that is there for those that are not (the file tied them).
    if (tied.defined() && own.count(name) != 0) given.emplace(name, tied);
  }
  return given;
}

/// What of a file goes where in a model. Only names and shapes are looked at, so a model on the meta device will do.
struct Matched {
  std::vector<std::pair<std::string, at::Tensor>> found;  ///< module tensors' file names and their values
  std::vector<std::string> zeroed, missing, unexpected;
  LoadReport report;
};

/// Throws the input error that lists everything that does not fit.
Matched match(const models::Model& model, const Tensors& tensors, const std::string& source,
              const LoadOptions& options) {
  Matched matched;
  LoadReport& report = matched.report;
  const NameTable& table = name_table(model.family());
  const auto parameters = named_tensors(model);
  std::set<std::string> own;
  for (const auto& [name, parameter] : parameters) own.insert(name);
  Tensors given = full_names(table, own, tensors, report);
  std::vector<std::string> misshapen;
  const auto is_of_change = [&](const std::string& name) {
    return (options.memory && NameTable::of_memory(name)) ||
           (!options.attention.empty() && NameTable::of_mechanism(name));
  };
  for (const auto& [name, parameter] : parameters) {
    const bool may_be_new = is_of_change(name);
    const auto found = given.find(name);
    if (found == given.end()) {
      if (std::find(table.optional.begin(), table.optional.end(), name) != table.optional.end()) {
        matched.zeroed.push_back(name);
      } else {
        (may_be_new ? report.initialised : matched.missing).push_back(name);
      }
      continue;
    }
    const at::Tensor value = found->second;
    given.erase(found);
    if (value.sizes() == parameter.sizes() && value.is_floating_point()) {
      matched.found.emplace_back(name, value);
    } else if (may_be_new) {
      report.initialised.push_back(name);
    } else {
      misshapen.push_back(fmt::format("{} is {}{}, expected {}", name, value.is_floating_point() ? "" : "integers ",
                                      nn::shape_text(value.sizes()), nn::shape_text(parameter.sizes())));
    }
  }
  for (const auto& [name, tensor] : given) (is_of_change(name) ? report.dropped : matched.unexpected).push_back(name);
  std::string problem;
  const auto add = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty())
      problem += fmt::format("{}{} {} tensor{}: {}", problem.empty() ? "" : "; ", names.size(), what,
                             names.size() > 1 ? "s" : "", list_of(names));
  };
  add("mis-shaped", misshapen);
  if (!options.allow_missing) {
    add("missing", matched.missing);
    add("unexpected", matched.unexpected);
  }
  if (problem.empty()) return matched;
  throw input_error(problem, source,
                    misshapen.empty() ? "give --allow-missing to initialise what is missing and drop what is unexpected"
                                      : "config.json and weights must belong together");
}

/// Puts what was matched into a model of the same config, and initialises the rest.
LoadReport fill(models::Model& model, Matched matched, const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  LoadReport& report = matched.report;
  std::map<std::string, at::Tensor> parameters;
  for (auto& [name, tensor] : named_tensors(model)) parameters.emplace(name, tensor);
  for (const auto& name : matched.zeroed) parameters.at(name).zero_();
  // set_data keeps the module's handle and the map's bytes: nothing is copied where type and device agree.
  for (const auto& [name, value] : matched.found)
    parameters.at(name).set_data(value.to(options.device, options.dtype.value_or(value.scalar_type())));
  if (!report.initialised.empty()) {
    const NameTable& table = name_table(model.family());
    const std::set<std::string> names(report.initialised.begin(), report.initialised.end());
    model.initialize_new(
        [&](const std::string& module_name) { return names.count(table.file_name_of(module_name)) != 0; },
        options.memory_init, options.seed);
  }
  if (!matched.missing.empty()) spdlog::warn("initialised with seed {}: {}", options.seed, list_of(matched.missing));
  if (!matched.unexpected.empty()) spdlog::warn("dropped: {}", list_of(matched.unexpected));
  report.initialised.insert(report.initialised.end(), matched.missing.begin(), matched.missing.end());
  report.dropped.insert(report.dropped.end(), matched.unexpected.begin(), matched.unexpected.end());
  return report;
}

}  // namespace

LoadReport fill_model(models::Model& model, const std::map<std::string, at::Tensor>& tensors, const std::string& source,
                      const LoadOptions& options) {
  return fill(model, match(model, tensors, source, options), options);
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

models::MemoryInit memory_init_named(const std::string& name) {
  check_choice("--memory-init", name, {"random", "copy"});
  return name == "copy" ? models::MemoryInit::kCopy : models::MemoryInit::kRandom;
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

namespace {

/// Tables that config.json calls tied but whose copies in the file differ are not tied, as in the reference. True where
/// the config was changed.
bool heed_untied_copies(Json& config, const Tensors& tensors, const std::string& path) {
  if (config.contains("tie_word_embeddings") && config["tie_word_embeddings"] == false) return false;
  const NameTable& table = name_table(config.at("model_type").get<std::string>());
  std::string first_name;
  at::Tensor first;
  for (const std::string& name : table.tied) {
    for (const std::string& spelt : {name, name.starts_with(table.prefix) ? name.substr(table.prefix.size()) : name}) {
      const auto found = tensors.find(spelt);
      if (found == tensors.end()) continue;
      if (!first.defined()) {
        first = found->second;
        first_name = spelt;
      } else if (first.data_ptr() != found->second.data_ptr() &&
                 !(first.sizes() == found->second.sizes() && first.equal(found->second))) {
        spdlog::warn("{}: config.json ties {} and {}, but they differ: each is used where it belongs", path, first_name,
                     spelt);
        config["tie_word_embeddings"] = false;
        return true;
      }
      break;
    }
  }
  return false;
}

/// Every tensor under its name, and under the names that the metadata calls aliases of it.
Tensors read_tensors(const TensorSet& file) {
  Tensors tensors;
  for (const auto& name : file.names()) tensors[name] = file.tensor(name);
  for (const auto& [alias, name] : file.metadata()) {
    if (tensors.count(alias) == 0 && file.contains(name)) tensors[alias] = tensors.at(name);
  }
  return tensors;
}

/// A copy of `table` [V, ..] (or [1, V]) with `rows` rows; new ones are drawn like new weights, of a bias 0.
at::Tensor with_rows(const at::Tensor& table, int64_t rows, double std, uint64_t seed, const std::string& name) {
  const int64_t axis = table.size(0) == 1 ? 1 : 0;
  auto shape = table.sizes().vec();
  shape[static_cast<size_t>(axis)] = rows;
  at::Tensor wider = at::zeros(shape, table.options());
  if (axis == 0) nn::fill_normal(wider, std, seed, name);
  wider.narrow(axis, 0, table.size(axis)).copy_(table);
  return wider;
}

/// Gives the vocabulary's tables more rows where the caller asks for them; true where it did.
bool widen_vocabulary(ModelFolder& folder, Tensors& tensors, const LoadOptions& options) {
  const int64_t rows = json_int(folder.config, "vocab_size", folder.path);
  if (options.vocab_size <= rows) return false;
  folder.config["vocab_size"] = options.vocab_size;
  const NameTable& table = name_table(folder.config.at("model_type").get<std::string>());
  std::vector<std::string> names = table.tied;
  names.insert(names.end(), table.optional.begin(), table.optional.end());
  for (auto& [name, tensor] : tensors) {
    if (std::find(names.begin(), names.end(), table.full_name_of(name)) == names.end()) continue;
    tensor = with_rows(tensor, options.vocab_size, 0.02, options.seed, name);
    folder.report.resized.push_back(name);
  }
  return true;
}

}  // namespace

std::shared_ptr<models::BartModel> ModelFolder::bart() const {
  auto model_as_bart = std::dynamic_pointer_cast<models::BartModel>(model);
  if (!model_as_bart) {
    throw usage_error(fmt::format("this needs an encoder-decoder, the folder holds a {} model", model->family()), path,
                      "give a BART or MemBART folder");
  }
  return model_as_bart;
}

std::shared_ptr<const text::Tokenizer> ModelFolder::tokenizer() const {
  if (tokenizer_) return tokenizer_;
  for (const char* name : {"tokenizer.json", "vocab.json", "encoder.json", "vocab.txt"}) {
    if (!fs::exists(fs::path(path) / name)) continue;
    auto loaded = text::Tokenizer::load(path);
    if (loaded->vocab_size() > model->vocab_size()) {
      throw input_error(fmt::format("the tokenizer has {} entries, the model's embedding only {} rows",
                                    loaded->vocab_size(), model->vocab_size()),
                        path, "put the tokenizer that the model was trained with into the folder");
    }
    tokenizer_ = std::move(loaded);
    break;
  }
  return tokenizer_;
}

const text::Tokenizer& ModelFolder::need_tokenizer() const {
  if (const auto loaded = tokenizer()) return *loaded;
  throw input_error("the model folder has no tokenizer", path,
                    "put tokenizer.json, or vocab.json and merges.txt, into it");
}

ModelFolder load_model(const std::string& path, const LoadOptions& options) {
  if (!fs::is_directory(path)) {
    throw input_error("is not a model folder", path, "a model is a folder with config.json and model.safetensors");
  }
  const std::string config_path = (fs::path(path) / "config.json").string();
  if (!fs::exists(config_path))
    throw input_error("the folder has no config.json", path,
                      "give a model folder, or a checkpoint-STEP folder of a run");
  ModelFolder folder;
  folder.path = path;
  folder.config = read_json(config_path);
  folder.training = training_from_json(folder.config, config_path);
  if (options.memory) {
    folder.config.erase("memory_len");
    Json& own = folder.config["palimpsest"];
    if (!own.contains("format")) own["format"] = 1;
    own["memory"] = options.memory->text();
  }
  for (const auto& [key, text] : options.attention) {
    Json& own = folder.config["palimpsest"];
    if (!own.contains("format")) own["format"] = 1;
    own[key] = text;
  }
  // On the meta device a model costs nothing: what is wrong is refused before the weights are opened, and sizes that do
  // not fit the weights before anything is allocated.
  const at::TensorOptions meta = at::TensorOptions().device(at::kMeta);
  auto plan = models::make_model(folder.config, config_path, meta);
  const TensorSet file = TensorSet::open(path);
  Tensors tensors = read_tensors(file);
  const bool untied = heed_untied_copies(folder.config, tensors, path);
  const bool wider = widen_vocabulary(folder, tensors, options);
  if (untied || wider) plan = models::make_model(folder.config, config_path, meta);
  Matched matched = match(*plan, tensors, path, options);
  at::ScalarType stored = at::kFloat;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.is_floating_point()) stored = tensor.scalar_type();
  }
  LoadOptions effective = options;
  if (!effective.dtype) effective.dtype = options.widen && at::isReducedFloatingType(stored) ? at::kFloat : stored;
  // at::empty reserves addresses and touches no page; the file's own bytes are then put in its place.
  folder.model =
      models::make_model(folder.config, config_path, at::TensorOptions(*effective.dtype).device(options.device));
  for (const Task& task : folder.training.tasks) {
    if (task.start_id < 0 || task.start_id >= folder.model->vocab_size()) {
      throw input_error(fmt::format("the start token of the task {} is {}, outside the vocabulary of {}", task.text(),
                                    task.start_id, folder.model->vocab_size()),
                        config_path);
    }
  }
  if (options.allow_missing) folder.model->initialize({.std = folder.model->init_std(), .seed = options.seed});
  LoadReport report = fill(*folder.model, std::move(matched), effective);
  report.resized = folder.report.resized;
  folder.report = std::move(report);
  folder.model->eval();
  for (const auto& [name, tensor] : named_tensors(*folder.model))
    folder.weight_bytes += static_cast<int64_t>(tensor.nbytes());
  return folder;
}

namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// model.safetensors, or model-00001-of-0000N.safetensors and an index.
void save_tensors(const fs::path& folder, const NamedTensors& tensors, int64_t max_bytes) {
  std::vector<NamedTensors> shards(1);
  int64_t in_shard = 0, total = 0;
  for (const auto& entry : tensors) {
    const auto bytes = static_cast<int64_t>(entry.second.nbytes());
    if (max_bytes > 0 && !shards.back().empty() && in_shard + bytes > max_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(entry);
    in_shard += bytes;
    total += bytes;
  }
  if (shards.size() == 1) {
    save_safetensors((folder / "model.safetensors").string(), tensors, {{"format", "pt"}});
    return;
  }
  Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", Json::object()}};
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    save_safetensors((folder / file).string(), shards[i], {{"format", "pt"}});
    for (const auto& [name, tensor] : shards[i]) index["weight_map"][name] = file;
  }
  write_json((folder / "model.safetensors.index.json").string(), index);
}

}  // namespace

void save_model(const std::string& folder, const models::Model& model, const Training& training,
                const text::Tokenizer* tokenizer, const SaveOptions& options) {
  const fs::path root(folder);
  const auto dtype = options.dtype;
  Json json = options.base_config;
  json.erase("palimpsest");
  json.erase("torch_dtype");  // the older name of dtype
  json.erase("memory_len");   // the authors' name for the memory
  const Json own_config = model.config_json();
  for (const auto& [key, value] : own_config.items()) json[key] = value;
  json["dtype"] = nn::dtype_name(dtype.value_or(model.dtype()));
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
  Json generation = options.generation_config;
  for (const char* key : {"bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"}) {
    if (!generation.contains(key) && json.contains(key) && !json.at(key).is_null()) generation[key] = json.at(key);
  }
  write_json((root / "generation_config.json").string(), generation);
  auto tensors = named_tensors(model);
  for (auto& [name, tensor] : tensors) {
    tensor = tensor.detach();
    if (dtype) tensor = tensor.to(*dtype);
  }
  save_tensors(folder, tensors, options.max_shard_bytes);
  if (tokenizer != nullptr) tokenizer->save(folder);
}

}  // namespace palimpsest::checkpoint
