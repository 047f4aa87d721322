// SPDX-License-Identifier: Apache-2.0
#include "apps/model_flags.h"

#include <filesystem>

#include "palimpsest/core/log.h"

namespace palimpsest::app {

void require(const char* flag, const std::string& value) {
  if (value.empty()) throw usage_error(fmt::format("{} is required", flag), "command line", "see --help");
}

at::Device device_of(const ModelFlags& flags) { return checkpoint::device_named(flags.device); }

std::string description(const models::Model& model) {
  const Json own = model.config_json().value("palimpsest", Json::object());
  std::string text = model.family();
  const std::string memory = own.value("memory", "none");
  text += memory == "none" ? ", no memory" : ", memory " + memory;
  for (const auto& [key, what] :
       {std::pair("attention", "attention"), std::pair("decoder_attention", "decoder attention"),
        std::pair("cross_attention", "cross attention"), std::pair("positions", "positions")})
    if (own.contains(key)) text += fmt::format(", {} {}", what, own.at(key).get<std::string>());
  return text;
}

checkpoint::ModelFolder load(const ModelFlags& flags, std::optional<memory::MemoryOptions> memory) {
  require("--model", flags.model);
  checkpoint::LoadOptions options;
  options.device = device_of(flags);
  options.allow_missing = flags.allow_missing;
  options.memory = std::move(memory);
  options.attention = flags.texts.given();
  // Stored half floats are widened by default: on CPUs without half-float units they are slower, not faster.
  options.widen = true;
  const bool int8 = flags.dtype == "int8";
  if (int8 && options.device != at::kCPU)
    throw usage_error("--dtype int8 is for the CPU", "command line", "give --device cpu, or another --dtype");
  if (!flags.dtype.empty()) options.dtype = int8 ? at::kFloat : nn::dtype_of(flags.dtype);
  auto folder = checkpoint::load_model(flags.model, options);
  if (int8) folder.model->quantize();
  spdlog::info("{}: {}, {}, {}", std::filesystem::path(flags.model).lexically_normal().string(),
               description(*folder.model), int8 ? "int8 (decoding)" : nn::dtype_name(folder.model->dtype()),
               flags.device);
  if (!folder.report.initialised.empty()) {
    spdlog::warn("what the attention mechanisms learn is not in the folder and starts at random: {} tensors",
                 folder.report.initialised.size());
  }
  return folder;
}

}  // namespace palimpsest::app
