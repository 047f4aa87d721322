// SPDX-License-Identifier: Apache-2.0
// State is a value (DESIGN section 1): what decoding keeps between steps, as a list of named tensors whose first axis
// is the batch. Beam search, sessions and checkpoints handle any state without knowing what made it.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

namespace palimpsest::attention {

/// Whether selecting `rows` leaves a batch of `count` rows as it is.
bool keeps_order(const std::vector<int64_t>& rows, int64_t count);

class State {
 public:
  bool contains(const std::string& name) const;
  /// Throws an internal error where the name is absent.
  at::Tensor get(const std::string& name) const;
  void set(const std::string& name, at::Tensor tensor);

  /// Adds `more` at the end of the named tensor's `axis` (not the first) and gives the whole. Room is kept for what
  /// comes next, so that a run of appends copies each row a few times at most. No autograd.
  at::Tensor append(const std::string& name, const at::Tensor& more, int64_t axis);
  /// Size of the axis that `append` grows; 0 where the name is absent.
  int64_t length(const std::string& name) const;

  int64_t bytes() const;  ///< with the room kept
  /// Rows of the batch, in the given order; may repeat and drop. Nothing is copied where the order stays.
  State select(const std::vector<int64_t>& rows) const;
  State to(const at::Device& device) const;

 private:
  struct Entry {
    std::string name;
    at::Tensor buffer;             ///< axes 1 and `axis` swapped where it grows: rows of one step lie together
    int64_t axis = 0, length = 0;  ///< 0: fixed
    at::Tensor value() const;
  };
  const Entry* find(const std::string& name) const;

  std::vector<Entry> entries_;
};

}  // namespace palimpsest::attention
