// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/attention/state.h"

#include "palimpsest/core/error.h"

namespace palimpsest::attention {

bool State::contains(const std::string& name) const {
  for (const auto& [key, tensor] : tensors_) {
    if (key == name) return true;
  }
  return false;
}

const at::Tensor& State::get(const std::string& name) const {
  for (const auto& [key, tensor] : tensors_) {
    if (key == name) return tensor;
  }
  throw internal_error(fmt::format("the state has no tensor \"{}\"", name));
}

void State::set(const std::string& name, at::Tensor tensor) {
  for (auto& [key, old] : tensors_) {
    if (key == name) {
      old = std::move(tensor);
      return;
    }
  }
  tensors_.emplace_back(name, std::move(tensor));
}

int64_t State::bytes() const {
  int64_t total = 0;
  for (const auto& [key, tensor] : tensors_) total += static_cast<int64_t>(tensor.nbytes());
  return total;
}

State State::select(const at::Tensor& rows) const {
  State chosen;
  for (const auto& [key, tensor] : tensors_) chosen.set(key, tensor.index_select(0, rows));
  return chosen;
}

State State::to(const at::Device& device) const {
  State moved;
  for (const auto& [key, tensor] : tensors_) moved.set(key, tensor.to(device));
  return moved;
}

}  // namespace palimpsest::attention
