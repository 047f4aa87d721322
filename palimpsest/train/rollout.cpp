// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/train/rollout.h"

#include <torch/csrc/autograd/autograd.h>

namespace palimpsest::train {

namespace {

using memory::Memory;

Memory as_leaf(const Memory& memory) {
  return memory.slots.defined() ? Memory{memory.slots.detach().requires_grad_(true)} : Memory{};
}

Memory values_of(const Memory& memory) { return memory.slots.defined() ? Memory{memory.slots.detach()} : Memory{}; }

RolloutResult plain(const Rollout& rollout, int64_t carry) {
  const Memory start = as_leaf(rollout.start);
  Memory memory = start;
  RolloutResult result;
  at::Tensor total;
  for (int64_t t = 0; t < rollout.steps; ++t) {
    const StepOutput output = rollout.step(t, memory);
    if (output.loss.defined()) total = total.defined() ? total + output.loss : output.loss;
    memory = output.memory;
    if (t + 1 == carry) result.carried = values_of(memory);
  }
  if (total.defined()) {
    if (rollout.before_last_backward) rollout.before_last_backward();
    total.backward();
  }
  if (start.slots.defined()) result.memory_gradient = start.slots.grad();
  return result;
}

RolloutResult replayed(const Rollout& rollout, int64_t carry) {
  std::vector<Memory> before = {values_of(rollout.start)};  // M_0 .. M_{T-1}
  if (rollout.start.slots.defined()) {
    const at::NoGradGuard no_grad;
    for (int64_t t = 0; t + 1 < rollout.steps; ++t) before.push_back(rollout.write(t, before.back()));
  }
  before.resize(static_cast<size_t>(rollout.steps));
  RolloutResult result;
  if (carry < rollout.steps) result.carried = before[static_cast<size_t>(carry)];
  at::Tensor gradient;  // of what follows with respect to M_{t+1}
  for (int64_t t = rollout.steps - 1; t >= 0; --t) {
    const Memory memory = as_leaf(before[static_cast<size_t>(t)]);
    const StepOutput output = rollout.step(t, memory);
    if (t + 1 == rollout.steps && carry == rollout.steps) result.carried = values_of(output.memory);
    // One backward pass from both ends: the loss, and the memory written with the gradient that came back to it.
    torch::autograd::variable_list roots, slopes;
    if (output.loss.defined()) {
      roots.push_back(output.loss);
      slopes.emplace_back();
    }
    if (gradient.defined()) {
      roots.push_back(output.memory.slots);
      slopes.push_back(gradient);
    }
    if (!roots.empty()) {
      if (t == 0 && rollout.before_last_backward) rollout.before_last_backward();
      torch::autograd::backward(roots, slopes);
    }
    gradient = memory.slots.defined() ? memory.slots.grad() : at::Tensor();
    before[static_cast<size_t>(t)] = {};
  }
  result.memory_gradient = gradient;
  return result;
}

}  // namespace

RolloutResult backpropagate(const Rollout& rollout) {
  const int64_t carry = rollout.carry > 0 ? rollout.carry : rollout.steps;
  return rollout.replay && rollout.steps > 1 ? replayed(rollout, carry) : plain(rollout, carry);
}

}  // namespace palimpsest::train
