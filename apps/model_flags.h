// SPDX-License-Identifier: Apache-2.0
// What every subcommand that opens a model shares: --model, --device, --dtype.
#pragma once

#include <optional>
#include <string>

#include "palimpsest/checkpoint/model_folder.h"
#include "palimpsest/core/options.h"
#include "palimpsest/models/attention_texts.h"

namespace palimpsest::app {

struct ModelFlags {
  std::string model;
  std::string device = "cpu";
  std::string dtype;
  bool allow_missing = false;
  models::AttentionTexts texts;
  static void fields(auto& o, auto&& field) {
    field("model", o.model, "model folder: config.json, model.safetensors, tokenizer");
    field("device", o.device, "cpu | cuda");
    field(
        "dtype", o.dtype,
        "float32 | float64 | bfloat16 | float16 | int8 (weights of decoding in 8 bits, the rest float32); the default "
        "widens stored half floats to float32");
    field("allow-missing", o.allow_missing, "initialise missing tensors instead of refusing the folder");
    models::AttentionTexts::fields(o.texts, field);
  }
};

/// A usage error where a required flag was not given.
void require(const char* flag, const std::string& value);
/// cpu or cuda as a device; a usage error where the machine has none.
at::Device device_of(const ModelFlags& flags);
/// Family, memory, mechanisms and positions in a line.
std::string description(const models::Model& model);
/// Opens the folder and says its effective type and device.
/// `memory`: another than the folder's.
checkpoint::ModelFolder load(const ModelFlags& flags, std::optional<memory::MemoryOptions> memory = {});

}  // namespace palimpsest::app
