// SPDX-License-Identifier: Apache-2.0
// A model is a Hugging Face folder (DESIGN section 4): config.json with a `palimpsest` object, model.safetensors,
// tokenizer files. docs/format.md lists every key and tensor name.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "palimpsest/checkpoint/tensor_names.h"
#include "palimpsest/models/bart.h"
#include "palimpsest/text/tokenizer.h"

namespace palimpsest::checkpoint {

/// One thing the model was trained to write, asked for by the decoder's first token.
struct Task {
  std::string name;      ///< recall | next | denoise | current
  int64_t start_id = 0;  ///< the decoder's start token
  int64_t distance = 0;  ///< of recall: how many segments back
  /// "recall", or "recall:2" from the second distance on.
  std::string text() const;
};

/// What the `palimpsest` object says beside the architecture.
struct Training {
  int64_t segment = 0;      ///< tokens a segment had, 0 where unknown
  std::vector<Task> tasks;  ///< empty for a stock model
  /// The task of this name ("recall", "recall:2", "next", …); a usage error that names the model's tasks where it has
  /// none.
  const Task& task(const std::string& name) const;
  bool has(const std::string& name) const;
};

/// What loading did besides reading; names are those of files.
struct LoadReport {
  std::vector<std::string> initialised;                      ///< not in the file
  std::vector<std::string> dropped;                          ///< in the file, not in the model
  std::vector<std::pair<std::string, std::string>> renamed;  ///< name in the file, full name
  std::vector<std::string> resized;                          ///< tables that got more rows
};

/// A loaded folder.
struct ModelFolder {
  std::string path;
  Json config;  ///< config.json with what the options changed
  Training training;
  std::shared_ptr<models::Model> model;
  LoadReport report;
  int64_t weight_bytes = 0;  ///< of the parameters as loaded, tied ones once

  /// The model as a BART, which most commands need; a usage error for another family.
  std::shared_ptr<models::BartModel> bart() const;
  /// The folder's tokenizer, read when first asked for; null where it has none.
  std::shared_ptr<const text::Tokenizer> tokenizer() const;
  /// The same; an input error where there is none.
  const text::Tokenizer& need_tokenizer() const;

 private:
  mutable std::shared_ptr<const text::Tokenizer> tokenizer_;
};

struct LoadOptions {
  std::optional<at::ScalarType> dtype = {};  ///< of the parameters; unset: as stored
  bool widen = false;                        ///< with dtype unset: stored half floats become float32
  at::Device device = at::kCPU;
  bool allow_missing = false;  ///< initialise missing tensors (listed in a warning) instead of failing
  uint64_t seed = 0;           ///< of those
  /// Another memory than the folder's: its tensors are initialised, or dropped for "none" (ALGORITHMS 3.2).
  std::optional<memory::MemoryOptions> memory = {};
  models::MemoryInit memory_init = models::MemoryInit::kRandom;
  /// Other mechanisms and positions than the folder's: values of the `palimpsest` object's keys. What new mechanisms
  /// learn is initialised, what the old ones had learned dropped.
  std::map<std::string, std::string> attention = {};
  int64_t vocab_size = 0;  ///< rows that the vocabulary shall have at least
};

/// "cpu" or "cuda"; a usage error for anything else, and where the machine has no CUDA device.
at::Device device_named(const std::string& name);

/// "random" or "copy"; a usage error for anything else.
models::MemoryInit memory_init_named(const std::string& name);

/// Opens a folder. Weights are views of a memory map where dtype and device allow it: nothing is read before it is
/// used, and nothing is held twice. All missing, unexpected and mis-shaped tensors are named in one input error.
ModelFolder load_model(const std::string& path, const LoadOptions& options = {});

/// Reads the two parts of a config.json.
Training training_from_json(const Json& config, const std::string& source);

struct SaveOptions {
  std::optional<at::ScalarType> dtype = {};  ///< of the weights; unset: as the parameters are
  /// A config.json whose other keys are kept (what a folder said that the model does not know).
  Json base_config = Json::object();
  /// The same for generation_config.json; empty: written from the config's ids.
  Json generation_config = Json::object();
  /// Weights of more bytes are cut into several files with an index; 0: one file.
  int64_t max_shard_bytes = 0;
};

/// Writes config.json, model.safetensors, tokenizer files and generation_config.json into `folder`, which must exist.
void save_model(const std::string& folder, const models::Model& model, const Training& training,
                const text::Tokenizer* tokenizer, const SaveOptions& options = {});

/// Fills a model from tensors under file names, with or without the family's prefix, and says what it did. `source`
/// stands in the error. Of the options it heeds dtype, device, allow_missing, seed, memory, memory_init and attention.
LoadReport fill_model(models::Model& model, const std::map<std::string, at::Tensor>& tensors, const std::string& source,
                      const LoadOptions& options);

}  // namespace palimpsest::checkpoint
