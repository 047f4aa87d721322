// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/train/run_model.h"

#include <set>

#include "palimpsest/checkpoint/tensor_names.h"
#include "palimpsest/core/error.h"
#include "palimpsest/models/bart.h"
#include "palimpsest/models/gpt2.h"
#include "palimpsest/nn/loss.h"
#include "palimpsest/nn/shapes.h"

namespace palimpsest::train {

namespace {

const std::set<std::string> kInputs = {
    "input_ids", "attention_mask", "token_type_ids", "decoder_input_ids", "decoder_attention_mask",
    "labels",    "memory",         "reset",          "step_weights",      "global_attention_mask"};

/// The inputs, checked and with a step axis.
class Steps {
 public:
  Steps(const TensorMap& inputs, const models::Model& model) : inputs_(inputs), model_(model) {
    for (const auto& [name, tensor] : inputs) {
      if (kInputs.count(name) == 0) {
        const std::string nearest = nearest_name(name, kInputs);
        throw input_error(fmt::format("unknown input \"{}\"", name), "",
                          nearest.empty() ? "see palimpsest run --help" : fmt::format("did you mean \"{}\"?", nearest));
      }
    }
    if (inputs.count("input_ids") == 0) throw input_error("the inputs lack \"input_ids\"");
    const bool decoder_only = dynamic_cast<const models::BartModel*>(&model) == nullptr;
    for (const char* name :
         {"reset", "memory", "decoder_input_ids", "decoder_attention_mask", "global_attention_mask"}) {
      if (decoder_only && inputs.count(name) != 0)
        throw input_error(fmt::format("a {} model has no \"{}\"", model.family(), name), name, "leave it out");
    }
    if (inputs.count("token_type_ids") != 0)
      throw input_error(fmt::format("a {} model has no token types", model.family()), "token_type_ids", "leave it out");
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
      const bool bad = step.numel() > 0 && (step.ge(model_.vocab_size()).any().item<bool>() ||
                                            (step.lt(lowest) & step.ne(nn::kIgnore)).any().item<bool>() ||
                                            (lowest == 0 && name != "labels" && step.lt(0).any().item<bool>()));
      if (bad)
        throw input_error(fmt::format("an id is outside the vocabulary of {}", model_.vocab_size()),
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
  const models::Model& model_;
  bool stacked_ = false;
  int64_t count_ = 1, batch_ = 0;
};

at::Tensor zero_padding(const at::Tensor& rows, const at::Tensor& mask) {
  return mask.defined() ? rows.masked_fill(mask.logical_not().unsqueeze(-1), 0) : rows;
}

/// What the steps of one family give: named outputs, one entry a step.
using Collected = std::map<std::string, std::vector<at::Tensor>>;

/// One run of all steps: collects outputs and the weighted loss.
class Run {
 public:
  Run(const Steps& steps, const TensorMap& inputs, std::set<std::string> wanted)
      : steps_(steps), wanted_(std::move(wanted)), weights_(at::ones({steps.count()}, at::kDouble)) {
    if (!steps.has("step_weights")) return;
    weights_ = inputs.at("step_weights").to(at::kDouble);
    if (weights_.dim() != 1 || weights_.size(0) != steps.count())
      throw input_error(fmt::format("must be [{}]", steps.count()), "step_weights");
  }

  const Steps& steps() const { return steps_; }
  void put(const std::string& name, const at::Tensor& value) { collected_[name].push_back(value.detach()); }
  memory::Observer observer() {
    if (wanted_.empty()) return {};
    return [this](const std::string& name, const at::Tensor& value) {
      if (wanted_.count(name) != 0) put(name, value);
    };
  }
  /// The observer for rows that a mask hides some of.
  memory::Observer observer(const at::Tensor& mask) {
    if (wanted_.empty()) return {};
    return [this, mask](const std::string& name, const at::Tensor& value) {
      if (wanted_.count(name) == 0) return;
      const bool of_rows = name.find("hidden_states.") != std::string::npos;
      put(name, of_rows ? zero_padding(value, mask) : value);
    };
  }
  /// logits [B, S, V] and what they should foretell, labels [B, S].
  void add_loss(int64_t t, const at::Tensor& logits, const at::Tensor& labels) {
    const nn::TargetLoss loss = nn::target_loss(logits, labels);
    const at::Tensor mean = loss.nll / std::max<int64_t>(1, loss.targets);
    put("step_losses", mean);
    const at::Tensor part = mean * weights_[t].item<double>();
    total_ = total_.defined() ? total_ + part : part;
  }
  const at::Tensor& total() const { return total_; }
  TensorMap outputs() const {
    TensorMap outputs;
    for (const auto& [name, values] : collected_)
      outputs[name] = steps_.stacked() || name == "step_losses" ? at::stack(values) : values.front();
    return outputs;
  }

 private:
  const Steps& steps_;
  std::set<std::string> wanted_;
  at::Tensor weights_, total_;
  Collected collected_;
};

void run_encoder_decoder(const models::BartModel& model, memory::Memory memory, Run& run) {
  const Steps& steps = run.steps();
  for (int64_t t = 0; t < steps.count(); ++t) {
    models::EncodeInput input;
    input.ids = steps.integers("input_ids", t);
    input.mask = steps.mask("attention_mask", t);
    input.global_mask = steps.mask("global_attention_mask", t);
    input.memory = memory;
    input.reset = steps.reset(t);
    input.observe = run.observer(input.mask);
    const models::EncoderOutput encoded = model.encode(input);
    memory = encoded.memory;
    run.put("hidden", zero_padding(encoded.hidden, input.mask));
    if (memory.slots.defined()) run.put("memory", memory.slots);

    const at::Tensor labels = steps.integers("labels", t, nn::kIgnore);
    at::Tensor decoder_ids = steps.integers("decoder_input_ids", t);
    if (!decoder_ids.defined() && labels.defined()) {
      decoder_ids = nn::shift_right(labels, model.config().decoder_start_token_id, model.config().pad_token_id);
    }
    if (!decoder_ids.defined()) continue;
    const at::Tensor decoder_mask = steps.mask("decoder_attention_mask", t);
    const at::Tensor logits =
        model.logits(model.decode(decoder_ids, decoder_mask, encoded, nullptr, run.observer(decoder_mask)));
    run.put("logits", zero_padding(logits, decoder_mask));
    if (!labels.defined()) continue;
    if (labels.sizes() != decoder_ids.sizes()) throw input_error("must have the shape of decoder_input_ids", "labels");
    run.add_loss(t, logits, labels);
  }
}

void run_decoder(const models::Gpt2Model& model, Run& run) {
  const Steps& steps = run.steps();
  for (int64_t t = 0; t < steps.count(); ++t) {
    const at::Tensor ids = steps.integers("input_ids", t), mask = steps.mask("attention_mask", t);
    const at::Tensor hidden = model.forward(ids, mask, nullptr, run.observer(mask));
    const at::Tensor logits = model.logits(hidden);
    run.put("hidden", zero_padding(hidden, mask));
    run.put("logits", zero_padding(logits, mask));
    const at::Tensor labels = steps.integers("labels", t, nn::kIgnore);
    if (!labels.defined()) continue;
    if (labels.sizes() != ids.sizes()) throw input_error("must have the shape of input_ids", "labels");
    const int64_t last = std::max<int64_t>(0, ids.size(1) - 1);
    run.add_loss(t, logits.narrow(1, 0, last), labels.narrow(1, ids.size(1) - last, last));
  }
}

}  // namespace

TensorMap run_model(models::Model& model, const TensorMap& inputs, const std::vector<std::string>& also) {
  const Steps steps(inputs, model);
  const bool with_gradients =
      std::any_of(also.begin(), also.end(), [](const std::string& name) { return name.rfind("grad.", 0) == 0; });
  const std::set<std::string> wanted(also.begin(), also.end());
  const at::AutoGradMode mode(with_gradients);
  if (with_gradients && !steps.has("labels")) throw input_error("gradients need \"labels\" among the inputs", "--also");
  if (with_gradients) {
    for (auto& parameter : model.parameters()) {
      parameter.requires_grad_(true);
      parameter.mutable_grad() = at::Tensor();
    }
  }

  Run run(steps, inputs, wanted);
  at::Tensor start;  // the memory before the first step
  if (const auto* bart = dynamic_cast<models::BartModel*>(&model)) {
    memory::Memory memory = bart->fresh_memory(steps.batch());
    if (steps.has("memory")) {
      if (!memory.slots.defined()) throw input_error("the model has no memory", "memory", "leave it out");
      const at::Tensor& given = inputs.at("memory");
      if (given.sizes() != memory.slots.sizes()) {
        throw input_error(fmt::format("has shape {}, expected {}", nn::shape_text(given.sizes()),
                                      nn::shape_text(memory.slots.sizes())),
                          "memory");
      }
      memory.slots = given.to(memory.slots.options()).clone();
    }
    start = memory.slots;
    if (with_gradients && start.defined()) start.requires_grad_(true);
    run_encoder_decoder(*bart, memory, run);
  } else {
    run_decoder(dynamic_cast<models::Gpt2Model&>(model), run);
  }

  TensorMap outputs = run.outputs();
  if (with_gradients) {
    run.total().backward();
    const std::string& prefix = checkpoint::name_table(model.family()).prefix;
    for (const auto& [name, tensor] : checkpoint::named_tensors(model)) {
      const std::string bare = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
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
      throw usage_error(fmt::format("the model has no \"{}\"", name), "--also",
                        "give hidden_states.N, decoder_hidden_states.N, slots.N, attentions.N, gate, grad.memory, "
                        "grad.* or grad.NAME with a tensor's name");
    }
  }
  return outputs;
}

}  // namespace palimpsest::train
