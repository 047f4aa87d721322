// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <optional>
#include <set>

#include "palimpsest/core/error.h"
#include "palimpsest/core/options.h"

namespace palimpsest::train {

double learning_rate_at(const OptimizerOptions& options, int64_t step, int64_t max_steps) {
  if (step < options.warmup_steps)
    return options.learning_rate * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  const double length = static_cast<double>(std::max<int64_t>(1, max_steps - options.warmup_steps));
  const double done = std::min(1.0, static_cast<double>(step - options.warmup_steps) / length);
  double share = 1;
  if (options.lr_scheduler_type == "linear") share = 1 - done;
  if (options.lr_scheduler_type == "cosine") share = 0.5 * (1 + std::cos(std::numbers::pi * done));
  return options.learning_rate * (options.min_learning_rate_ratio + (1 - options.min_learning_rate_ratio) * share);
}

int64_t ParameterGroup::count() const {
  int64_t total = 0;
  for (const auto& [name, tensor] : parameters) total += tensor.numel();
  return total;
}

std::vector<ParameterGroup> parameter_groups(const torch::nn::Module& module) {
  std::vector<ParameterGroup> groups = {{"weights (decayed)", true, true, {}},
                                        {"biases, norms, positions, slots", false, true, {}},
                                        {"frozen", false, false, {}}};
  std::set<const void*> seen;
  for (const auto& entry : module.named_parameters()) {
    if (!seen.insert(entry.value().unsafeGetTensorImpl()).second) continue;
    const bool position = entry.key().find("embed_positions") != std::string::npos || entry.key().starts_with("wpe.");
    const bool decays = entry.value().dim() == 2 && !position;
    const size_t group = !entry.value().requires_grad() ? 2 : decays ? 0 : 1;
    groups[group].parameters.emplace_back(entry.key(), entry.value());
  }
  if (groups.back().parameters.empty()) groups.pop_back();
  return groups;
}

AdamW::AdamW(std::vector<ParameterGroup> groups, const OptimizerOptions& options) : options_(options) {
  check_choice("lr_scheduler_type", options.lr_scheduler_type, {"constant", "linear", "cosine"});
  for (const auto& group : groups) {
    if (!group.trained) continue;
    for (const auto& [name, parameter] : group.parameters) {
      entries_.push_back({name, parameter, at::zeros_like(parameter), at::zeros_like(parameter),
                          at::zeros({}, at::TensorOptions(at::kFloat).device(parameter.device())), group.decays});
    }
  }
}

double AdamW::step(double learning_rate, const std::function<double(double)>& agree) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const Entry& entry : entries_) {
    if (entry.parameter.grad().defined()) gradients.push_back(entry.parameter.grad());
  }
  if (gradients.empty()) return 0;
  double norm = at::stack(at::_foreach_norm(gradients)).norm().item<double>();
  if (agree) norm = agree(norm);
  if (!std::isfinite(norm))
    throw internal_error("the gradient is not finite", "training", "lower learning_rate, or set max_grad_norm");
  std::optional<at::Tensor> divisor;
  if (options_.max_grad_norm > 0 && norm > options_.max_grad_norm) {
    const double factor = (norm + 1e-6) / options_.max_grad_norm;
    if (gradients.front().scalar_type() == at::kFloat) {
      // The kernel divides gradients on its way through them: clipping takes no pass of its own.
      divisor = at::full({}, factor, gradients.front().options());
    } else {
      at::_foreach_mul_(gradients, 1 / factor);
    }
  }
  for (const bool decays : {true, false}) {
    std::vector<at::Tensor> parameters, grads, averages, squares, steps;
    for (const Entry& entry : entries_) {
      if (entry.decays != decays || !entry.parameter.grad().defined()) continue;
      parameters.push_back(entry.parameter);
      grads.push_back(entry.parameter.grad());
      averages.push_back(entry.exp_avg);
      squares.push_back(entry.exp_avg_sq);
      steps.push_back(entry.steps);
    }
    if (parameters.empty()) continue;
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(parameters, grads, averages, squares, {}, steps, learning_rate, options_.adam_beta1,
                      options_.adam_beta2, decays ? options_.weight_decay : 0.0, options_.adam_epsilon, false, false,
                      divisor);
  }
  return norm;
}

void AdamW::zero_grad() {
  for (Entry& entry : entries_) entry.parameter.mutable_grad() = at::Tensor();
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::state() const {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const Entry& entry : entries_) {
    tensors.emplace_back("exp_avg." + entry.name, entry.exp_avg);
    tensors.emplace_back("exp_avg_sq." + entry.name, entry.exp_avg_sq);
    tensors.emplace_back("step." + entry.name, entry.steps);
  }
  return tensors;
}

void AdamW::load(const std::vector<std::pair<std::string, at::Tensor>>& state, const std::string& source) {
  const std::map<std::string, at::Tensor> given(state.begin(), state.end());
  for (Entry& entry : entries_) {
    for (auto& [kind, tensor] : {std::pair<std::string, at::Tensor&>{"exp_avg.", entry.exp_avg},
                                 {"exp_avg_sq.", entry.exp_avg_sq},
                                 {"step.", entry.steps}}) {
      const auto found = given.find(kind + entry.name);
      if (found == given.end() || found->second.sizes() != tensor.sizes()) {
        throw input_error(fmt::format("the optimiser's state lacks {}{} or has it in another shape", kind, entry.name),
                          source, "resume with the options that the run was started with");
      }
      tensor.copy_(found->second);
    }
  }
}

}  // namespace palimpsest::train
