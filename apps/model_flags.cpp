// SPDX-License-Identifier: Apache-2.0
#include "apps/model_flags.h"

#include <filesystem>

#include "palimpsest/core/log.h"

namespace palimpsest::app {

void require(const char* flag, const std::string& value) {
  if (value.empty()) throw usage_error(fmt::format("{} is required", flag), "command line", "see --help");
}

at::Device device_of(const ModelFlags& flags) { return checkpoint::device_named(flags.device); }

checkpoint::ModelFolder load(const ModelFlags& flags, std::optional<memory::MemoryOptions> memory) {
  require("--model", flags.model);
  checkpoint::LoadOptions options;
  options.device = device_of(flags);
  options.allow_missing = flags.allow_missing;
  options.memory = std::move(memory);
  // Stored half floats are widened by default: on CPUs without half-float units they are slower, not faster.
  options.widen = true;
  const bool int8 = flags.dtype == "int8";
  if (int8 && options.device != at::kCPU)
    throw usage_error("--dtype int8 is for the CPU", "command line", "give --device cpu, or another --dtype");
  if (!flags.dtype.empty()) options.dtype = int8 ? at::kFloat : nn::dtype_of(flags.dtype);
  auto folder = checkpoint::load_model(flags.model, options);
  const Json own = folder.model->config_json().value("palimpsest", Json::object());
  if (int8) folder.model->quantize();
  spdlog::info("{}: {}, {}, {}", std::filesystem::path(flags.model).lexically_normal().string(),
               fmt::format("{}, {}", folder.model->family(),
                           own.contains("memory") ? "memory " + own.value("memory", "") : "no memory"),
               int8 ? "int8 (decoding)" : nn::dtype_name(folder.model->dtype()), flags.device);
  return folder;
}

}  // namespace palimpsest::app
