// SPDX-License-Identifier: Apache-2.0
// `palimpsest run`: the model on tensors of a file, for checking parity.
#include "apps/command.h"
#include "apps/model_flags.h"
#include "palimpsest/checkpoint/safetensors.h"
#include "palimpsest/core/log.h"
#include "palimpsest/train/run_model.h"

namespace palimpsest::app {

namespace {
struct RunOptions {
  ModelFlags model;
  std::string inputs, outputs;
  std::vector<std::string> also;
  static void fields(auto& o, auto&& field) {
    field("model", o.model, "");
    field("inputs", o.inputs,
          "safetensors file: input_ids, attention_mask, reset, memory, decoder_input_ids, decoder_attention_mask, "
          "labels, step_weights; a leading axis is several segments in a row");
    field("outputs", o.outputs, "safetensors file to write: hidden, memory, logits, step_losses");
    field("also", o.also, "more outputs: hidden_states.N, slots.N, gate, attentions.N, grad.NAME, grad.*, grad.memory");
  }
};

int run(const RunOptions& options) {
  require("--inputs", options.inputs);
  require("--outputs", options.outputs);
  const auto folder = load(options.model);
  const auto file = checkpoint::Safetensors::open(options.inputs);
  train::TensorMap inputs;
  for (const auto& info : file.tensors()) inputs[info.name] = file.tensor(info.name).to(device_of(options.model));
  train::TensorMap outputs;
  try {
    outputs = train::run_model(*folder.model, inputs, options.also);
  } catch (const Error& e) {
    throw e.within(options.inputs);
  }
  std::vector<std::pair<std::string, at::Tensor>> list(outputs.begin(), outputs.end());
  checkpoint::save_safetensors(options.outputs, list);
  for (const auto& [name, tensor] : list)
    spdlog::info("{:<24} {} {}", name, nn::dtype_name(tensor.scalar_type()), nn::shape_text(tensor.sizes()));
  return 0;
}
}  // namespace

Command run_command() {
  return {"run", "the model on given tensors, for checking parity",
          "palimpsest run --model DIR --inputs in.safetensors --outputs out.safetensors --also gate,grad.memory "
          "--dtype float64",
          [](CLI::App& app) {
            auto options = std::make_shared<RunOptions>();
            options_to_flags(*options, app);
            return [options] { return run(*options); };
          }};
}

}  // namespace palimpsest::app
