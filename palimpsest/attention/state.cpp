// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/attention/state.h"

#include <algorithm>

#include "palimpsest/core/error.h"

namespace palimpsest::attention {

bool keeps_order(const std::vector<int64_t>& rows, int64_t count) {
  if (static_cast<int64_t>(rows.size()) != count) return false;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

at::Tensor State::Entry::value() const { return axis == 0 ? buffer : buffer.narrow(1, 0, length).transpose(1, axis); }

const State::Entry* State::find(const std::string& name) const {
  for (const Entry& entry : entries_) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

bool State::contains(const std::string& name) const { return find(name) != nullptr; }

at::Tensor State::get(const std::string& name) const {
  const Entry* entry = find(name);
  if (entry == nullptr) throw internal_error(fmt::format("the state has no tensor \"{}\"", name));
  return entry->value();
}

void State::set(const std::string& name, at::Tensor tensor) {
  for (Entry& entry : entries_) {
    if (entry.name == name) {
      entry = {name, std::move(tensor)};
      return;
    }
  }
  entries_.push_back({name, std::move(tensor)});
}

at::Tensor State::append(const std::string& name, const at::Tensor& more, int64_t axis) {
  const at::NoGradGuard no_grad;
  const at::Tensor steps = more.transpose(1, axis);  // [B, T, ..]
  auto* entry = const_cast<Entry*>(find(name));
  if (entry == nullptr) {
    entries_.push_back({name, at::Tensor(), axis, 0});
    entry = &entries_.back();
  }
  const int64_t needed = entry->length + steps.size(1);
  // A buffer that another state also holds is not written to: states are values.
  if (!entry->buffer.defined() || entry->buffer.size(1) < needed || entry->buffer.use_count() > 1) {
    constexpr int64_t kRoom = 32;
    auto shape = steps.sizes().vec();
    shape[1] = needed + std::max(kRoom, needed / 2);
    const at::Tensor roomier = at::empty(shape, steps.options());
    if (entry->length > 0) roomier.narrow(1, 0, entry->length).copy_(entry->buffer.narrow(1, 0, entry->length));
    entry->buffer = roomier;
  }
  entry->buffer.narrow(1, entry->length, steps.size(1)).copy_(steps);
  entry->length = needed;
  return entry->value();
}

int64_t State::length(const std::string& name) const {
  const Entry* entry = find(name);
  return entry == nullptr ? 0 : entry->length;
}

int64_t State::bytes() const {
  int64_t total = 0;
  for (const Entry& entry : entries_) total += static_cast<int64_t>(entry.buffer.nbytes());
  return total;
}

State State::select(const std::vector<int64_t>& rows) const {
  State chosen;
  for (const Entry& entry : entries_) {
    chosen.entries_.push_back(entry);
    if (keeps_order(rows, entry.buffer.size(0))) continue;
    if (entry.axis == 0) {
      chosen.entries_.back().buffer =
          entry.buffer.index_select(0, at::tensor(rows, at::kLong).to(entry.buffer.device()));
      continue;
    }
    auto shape = entry.buffer.sizes().vec();
    shape[0] = static_cast<int64_t>(rows.size());
    at::Tensor& buffer = chosen.entries_.back().buffer = at::empty(shape, entry.buffer.options());
    for (size_t i = 0; i < rows.size(); ++i) {
      buffer[static_cast<int64_t>(i)]
          .narrow(0, 0, entry.length)
          .copy_(entry.buffer[rows[i]].narrow(0, 0, entry.length));
    }
  }
  return chosen;
}

State State::to(const at::Device& device) const {
  State moved;
  for (const Entry& entry : entries_) {
    moved.entries_.push_back(entry);
    moved.entries_.back().buffer = entry.buffer.to(device);
  }
  return moved;
}

}  // namespace palimpsest::attention
