// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/attention/mechanism_stack.h"

#include <algorithm>

#include "palimpsest/core/error.h"

namespace palimpsest::attention {

MechanismStack::MechanismStack(const std::string& text, Use use, int64_t layers, int64_t width, int64_t heads,
                               const at::TensorOptions& options)
    : text_(text.empty() ? "dense" : text), use_(use), width_(width), heads_(heads) {
  const std::vector<std::string> texts = mechanism_texts(text_, layers);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const MechanismPlace place{
        .use = use, .width = width, .heads = heads, .layer = layer, .options = options, .shared = this};
    auto made = make_mechanism(texts[static_cast<size_t>(layer)], place);
    mechanisms_.push_back(register_module("layers_" + std::to_string(layer), std::move(made)));
  }
}

std::shared_ptr<torch::nn::Module> MechanismStack::get(
    const std::string& name, const std::function<std::shared_ptr<torch::nn::Module>()>& make) {
  auto& module = shared_[name];
  if (!module) module = register_module("shared_" + name, make());
  return module;
}

bool MechanismStack::dense() const {
  return std::all_of(mechanisms_.begin(), mechanisms_.end(), [](const auto& each) { return each->reads_all(); });
}

std::string MechanismStack::no_stream() const {
  for (const auto& mechanism : mechanisms_) {
    if (std::string why = mechanism->no_stream(); !why.empty()) return why;
  }
  return {};
}

bool MechanismStack::bounded() const {
  return std::all_of(mechanisms_.begin(), mechanisms_.end(), [](const auto& each) { return each->is_bounded(); });
}

int64_t MechanismStack::longest() const {
  int64_t least = 0;
  for (const auto& mechanism : mechanisms_) {
    const int64_t own = mechanism->longest();
    if (own > 0 && (least == 0 || own < least)) least = own;
  }
  return least;
}

void MechanismStack::initialize(uint64_t seed, const std::string& name) {
  for (size_t layer = 0; layer < mechanisms_.size(); ++layer)
    mechanisms_[layer]->initialize(seed, fmt::format("{}.layers_{}", name, layer));
}

void MechanismStack::initialize(const std::function<bool(const std::string& parameter)>& chosen, uint64_t seed,
                                const std::string& name) {
  const auto own = named_parameters();
  if (own.is_empty()) return;
  const at::NoGradGuard no_grad;
  // What stays may lie in a file's map: the new values are made elsewhere.
  MechanismStack fresh(text_, use_, static_cast<int64_t>(mechanisms_.size()), width_, heads_,
                       own.front().value().options().requires_grad(false));
  fresh.initialize(seed, name);
  const auto made = fresh.named_parameters();
  for (const auto& entry : own) {
    if (chosen(entry.key())) entry.value().copy_(made[entry.key()]);
  }
}

}  // namespace palimpsest::attention
