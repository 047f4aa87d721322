// SPDX-License-Identifier: Apache-2.0
// State is a value (DESIGN section 1): what decoding keeps between steps, as a list of named tensors whose first axis
// is the batch. Beam search, sessions and checkpoints handle any state without knowing what made it.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

namespace palimpsest::attention {

class State {
 public:
  bool contains(const std::string& name) const;
  /// Throws an internal error where the name is absent.
  const at::Tensor& get(const std::string& name) const;
  void set(const std::string& name, at::Tensor tensor);

  const std::vector<std::pair<std::string, at::Tensor>>& tensors() const { return tensors_; }
  int64_t bytes() const;
  /// Rows of the batch, in the given order (int64 [B']); may repeat and drop.
  State select(const at::Tensor& rows) const;
  State to(const at::Device& device) const;

 private:
  std::vector<std::pair<std::string, at::Tensor>> tensors_;
};

}  // namespace palimpsest::attention
