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

/// A loaded folder.
struct ModelFolder {
  std::string path;
  models::BartConfig config;
  Training training;
  std::shared_ptr<models::BartModel> model;
  std::shared_ptr<const text::Tokenizer> tokenizer;  ///< null where the folder has none
  int64_t weight_bytes = 0;                          ///< of the parameters as loaded
};

struct LoadOptions {
  std::optional<at::ScalarType> dtype = {};  ///< of the parameters; unset: as stored
  at::Device device = at::kCPU;
  bool allow_missing = false;  ///< initialise missing tensors (listed in a warning) instead of failing
  uint64_t seed = 0;           ///< of those
};

/// "cpu" or "cuda"; a usage error for anything else, and where the machine has no CUDA device.
at::Device device_named(const std::string& name);

/// Opens a folder. Weights are views of a memory map where dtype and device allow it. All missing, unexpected and
/// mis-shaped tensors are named in one input error.
ModelFolder load_model(const std::string& path, const LoadOptions& options = {});

/// Reads the two parts of a config.json.
Training training_from_json(const Json& config, const std::string& source);

/// Writes config.json, model.safetensors (in `dtype`, or as the parameters are), tokenizer files and
/// generation_config.json into `folder`, which must exist.
void save_model(const std::string& folder, const models::BartModel& model, const Training& training,
                const text::Tokenizer* tokenizer, std::optional<at::ScalarType> dtype = {});

/// Every tensor of a model under its name in the file: parameters first, then buffers. The one table between module
/// names and file names.
std::vector<std::pair<std::string, at::Tensor>> named_tensors(const models::BartModel& model);
/// "memory.layers_0.fc1.weight" -> "model.encoder.layers.0.mem_fc1.weight".
std::string file_name_of(const std::string& module_name);

/// Fills a model from tensors under file names, with or without the "model." prefix. `source` stands in the error.
void fill_model(models::BartModel& model, const std::map<std::string, at::Tensor>& tensors, const std::string& source,
                const LoadOptions& options);

}  // namespace palimpsest::checkpoint
