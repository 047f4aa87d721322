// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/train/run_model.h"

#include <set>

#include "palimpsest/checkpoint/model_folder.h"
#include "palimpsest/core/error.h"
#include "palimpsest/nn/loss.h"
#include "palimpsest/nn/shapes.h"

namespace palimpsest::train {

namespace {

const std::set<std::string> kInputs = {
    "input_ids", "attention_mask", "token_type_ids", "decoder_input_ids", "decoder_attention_mask",
    "labels",    "memory",         "reset",          "step_weights"};

/// The inputs, checked and with a step axis.
class Steps {
 public:
  Steps(const TensorMap& inputs, const models::BartModel& model) : inputs_(inputs), model_(model) {
    for (const auto& [name, tensor] : inputs) {
      if (kInputs.count(name) == 0) {
        const std::string nearest = nearest_name(name, kInputs);
        throw input_error(fmt::format("unknown input \"{}\"", name), "",
                          nearest.empty() ? "see palimpsest run --help" : fmt::format("did you mean \"{}\"?", nearest));
      }
    }
    if (inputs.count("input_ids") == 0) throw input_error("the inputs lack \"input_ids\"");
    if (inputs.count("token_type_ids") != 0)
      throw input_error("BART has no token types", "token_type_ids", "leave it out");
    const at::Tensor& ids = inputs.at("input_ids");
    if (ids.dim() != 2 && ids.dim() != 3) throw input_error("must be [B, L] or [T, B, L]", "input_ids");
    stacked_ = ids.dim() == 3;
    count_ = stacked_ ? ids.size(0) : 1;
    batch_ = ids.size(stacked_ ? 1 : 0);
  }

  bool stacked() const { return stacked_; }
  int64_t count() const { return count_; }
  int64_t batch() const { return batch_; }
  bool has(const std::string& name) const { return inputs_.count(name) != 0; }

  /// Step t of an integer input, [B, ...]; undefined where the input is absent.
  at::Tensor integers(const std::string& name, int64_t t, int64_t lowest = 0) const {
    if (!has(name)) return {};
    at::Tensor all = inputs_.at(name);
    if (all.is_floating_point()) throw input_error("must hold integers", name);
    const int64_t axes = (name == "reset" ? 1 : 2) + (stacked_ ? 1 : 0);
    if (all.dim() != axes || (stacked_ && all.size(0) != count_) || all.size(stacked_ ? 1 : 0) != batch_) {
      throw input_error(fmt::format("has shape {}, which does not fit {} steps of {} lanes",
                                    nn::shape_text(all.sizes()), count_, batch_),
                        name);
    }
    const at::Tensor step = (stacked_ ? all[t] : all).to(at::kLong);
    if (name.find("ids") != std::string::npos || name == "labels") {
      const bool bad = step.numel() > 0 && (step.ge(model_.config().vocab_size).any().item<bool>() ||
                                            (step.lt(lowest) & step.ne(nn::kIgnore)).any().item<bool>() ||
                                            (lowest == 0 && name != "labels" && step.lt(0).any().item<bool>()));
      if (bad)
        throw input_error(fmt::format("an id is outside the vocabulary of {}", model_.config().vocab_size),
                          fmt::format("{}, step {}", name, t));
    }
    return step;
  }
  at::Tensor mask(const std::string& name, int64_t t) const {
    const at::Tensor step = integers(name, t);
    return step.defined() ? step.ne(0) : at::Tensor();
  }
  at::Tensor reset(int64_t t) const {
    const at::Tensor step = integers("reset", t);
    return step.defined() ? step.ne(0) : at::Tensor();
  }

 private:
  const TensorMap& inputs_;
  const models::BartModel& model_;
  bool stacked_ = false;
  int64_t count_ = 1, batch_ = 0;
};

at::Tensor zero_padding(const at::Tensor& rows, const at::Tensor& mask) {
  return mask.defined() ? rows.masked_fill(mask.logical_not().unsqueeze(-1), 0) : rows;
}

}  // namespace

TensorMap run_model(models::BartModel& model, const TensorMap& inputs, const std::vector<std::string>& also) {
  const Steps steps(inputs, model);
  const auto options = model.shared->weight.options().requires_grad(false);
  const bool with_gradients =
      std::any_of(also.begin(), also.end(), [](const std::string& name) { return name.rfind("grad.", 0) == 0; });
  const std::set<std::string> wanted(also.begin(), also.end());
  const at::AutoGradMode mode(with_gradients);
  if (with_gradients && !steps.has("labels")) throw input_error("gradients need \"labels\" among the inputs", "--also");

  memory::Memory memory = model.fresh_memory(steps.batch());
  if (steps.has("memory")) {
    if (!memory.slots.defined()) throw input_error("the model has no memory", "memory", "leave it out");
    const at::Tensor& given = inputs.at("memory");
    if (given.sizes() != memory.slots.sizes()) {
      throw input_error(
          fmt::format("has shape {}, expected {}", nn::shape_text(given.sizes()), nn::shape_text(memory.slots.sizes())),
          "memory");
    }
    memory.slots = given.to(options).clone();
  }
  at::Tensor start = memory.slots;
  if (with_gradients) {
    for (auto& parameter : model.parameters()) {
      parameter.requires_grad_(true);
      parameter.mutable_grad() = at::Tensor();
    }
    if (start.defined()) start.requires_grad_(true);
  }
  at::Tensor weights = at::ones({steps.count()}, at::kDouble);
  if (steps.has("step_weights")) {
    weights = inputs.at("step_weights").to(at::kDouble);
    if (weights.dim() != 1 || weights.size(0) != steps.count())
      throw input_error(fmt::format("must be [{}]", steps.count()), "step_weights");
  }

  std::map<std::string, std::vector<at::Tensor>> collected;
  at::Tensor total;
  for (int64_t t = 0; t < steps.count(); ++t) {
    models::EncodeInput input;
    input.ids = steps.integers("input_ids", t);
    input.mask = steps.mask("attention_mask", t);
    input.memory = memory;
    input.reset = steps.reset(t);
    if (!wanted.empty()) {
      input.observe = [&](const std::string& name, const at::Tensor& value) {
        if (wanted.count(name) != 0) collected[name].push_back(value.detach());
      };
    }
    const models::EncoderOutput encoded = model.encode(input);
    memory = encoded.memory;
    collected["hidden"].push_back(zero_padding(encoded.hidden.detach(), input.mask));
    if (memory.slots.defined()) collected["memory"].push_back(memory.slots.detach());

    const at::Tensor labels = steps.integers("labels", t, nn::kIgnore);
    at::Tensor decoder_ids = steps.integers("decoder_input_ids", t);
    if (!decoder_ids.defined() && labels.defined()) {
      decoder_ids = nn::shift_right(labels, model.config().decoder_start_token_id, model.config().pad_token_id);
    }
    if (!decoder_ids.defined()) continue;
    const at::Tensor decoder_mask = steps.mask("decoder_attention_mask", t);
    const at::Tensor logits = model.logits(model.decode(decoder_ids, decoder_mask, encoded));
    collected["logits"].push_back(zero_padding(logits.detach(), decoder_mask));
    if (!labels.defined()) continue;
    if (labels.sizes() != decoder_ids.sizes()) throw input_error("must have the shape of decoder_input_ids", "labels");
    const nn::TargetLoss loss = nn::target_loss(logits, labels);
    const at::Tensor mean = loss.nll / std::max<int64_t>(1, loss.targets);
    collected["step_losses"].push_back(mean.detach());
    const at::Tensor part = mean * weights[t].item<double>();
    total = total.defined() ? total + part : part;
  }

  TensorMap outputs;
  for (const auto& [name, values] : collected)
    outputs[name] = steps.stacked() || name == "step_losses" ? at::stack(values) : values.front();
  if (with_gradients) {
    total.backward();
    for (const auto& [name, tensor] : checkpoint::named_tensors(model)) {
      const std::string bare = name.rfind("model.", 0) == 0 ? name.substr(6) : name;
      for (const std::string& key : {name, bare}) {
        if (wanted.count("grad." + key) != 0 ||
            (wanted.count("grad.*") != 0 && key == name && tensor.requires_grad())) {
          outputs["grad." + key] = tensor.grad().defined() ? tensor.grad() : at::zeros_like(tensor);
        }
      }
    }
    if (wanted.count("grad.memory") != 0 && start.defined()) outputs["grad.memory"] = start.grad();
  }
  for (const std::string& name : also) {
    if (name != "grad.*" && outputs.count(name) == 0) {
      throw usage_error(
          fmt::format("the model has no \"{}\"", name), "--also",
          "give hidden_states.N, slots.N, attentions.N, gate, grad.memory, grad.* or grad.NAME with a tensor's name");
    }
  }
  return outputs;
}

}  // namespace palimpsest::train
