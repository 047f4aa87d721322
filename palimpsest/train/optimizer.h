// SPDX-License-Identifier: Apache-2.0
// AdamW with decay groups, learning-rate schedules, and clipping of the global norm.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::train {

struct OptimizerOptions {
  double learning_rate = 1e-3;
  double adam_beta1 = 0.9, adam_beta2 = 0.98, adam_epsilon = 1e-8;
  double weight_decay = 0.01;
  double max_grad_norm = 1.0;
  int64_t warmup_steps = 200;
  std::string lr_scheduler_type = "linear";
  double min_learning_rate_ratio = 0;
  static void fields(auto& o, auto&& field) {
    field("learning_rate", o.learning_rate, "peak learning rate");
    field("adam_beta1", o.adam_beta1, "decay of the gradient's moving average");
    field("adam_beta2", o.adam_beta2, "decay of the squared gradient's moving average");
    field("adam_epsilon", o.adam_epsilon, "added to the root of the squared gradient");
    field("weight_decay", o.weight_decay,
          "decoupled decay of weight matrices (never of biases, norms, embeddings' positions or slots)");
    field("max_grad_norm", o.max_grad_norm, "gradients are scaled down to this global norm; 0: never");
    field("warmup_steps", o.warmup_steps, "steps over which the learning rate rises linearly from 0");
    field("lr_scheduler_type", o.lr_scheduler_type,
          "after the warm-up: constant | linear | cosine (to 0 at max_steps)");
    field("min_learning_rate_ratio", o.min_learning_rate_ratio, "the schedule ends at this share of the peak");
  }
};

/// The learning rate of optimiser step `step` (from 0) out of `max_steps`.
double learning_rate_at(const OptimizerOptions& options, int64_t step, int64_t max_steps);

/// One row of the list printed at the start.
struct ParameterGroup {
  std::string name;
  bool decays = false;
  bool trained = true;
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  int64_t count() const;
};
/// Tied tensors appear once. Decay: weight matrices of linear maps and the word embedding. None: biases, norms,
/// position tables, slot biases. Those that require no gradient are a third group, which is not trained.
std::vector<ParameterGroup> parameter_groups(const torch::nn::Module& module);

/// AdamW on ATen's fused kernel.
class AdamW {
 public:
  AdamW(std::vector<ParameterGroup> groups, const OptimizerOptions& options);
  /// Clips, then updates with `learning_rate`; returns the gradient's norm before clipping. Parameters without a
  /// gradient stay as they are (no decay either). `agree` turns the norm into the one that all processes take: its last
  /// bits depend on the number of threads.
  double step(double learning_rate, const std::function<double(double)>& agree = {});
  void zero_grad();
  /// "exp_avg.NAME", "exp_avg_sq.NAME", "step.NAME".
  std::vector<std::pair<std::string, at::Tensor>> state() const;
  /// Throws an input error where a tensor is missing or of another shape.
  void load(const std::vector<std::pair<std::string, at::Tensor>>& state, const std::string& source);

 private:
  struct Entry {
    std::string name;
    at::Tensor parameter, exp_avg, exp_avg_sq, steps;
    bool decays;
  };
  std::vector<Entry> entries_;
  OptimizerOptions options_;
};

}  // namespace palimpsest::train
