// SPDX-License-Identifier: Apache-2.0
// A shared workspace (LUNA and kin as ABC reads them; ALGORITHMS 1.2): what a token writes is how much the slots of the
// layer before ask for it, phi = softmax over tokens of (P Wq)(x Wk)^T / sqrt(D). The first layer asks with learned
// slots; each hands on LN(P + sum phi x).
#include <cmath>
#include <limits>

#include "palimpsest/attention/slots.h"
#include "palimpsest/core/error.h"
#include "palimpsest/nn/layers.h"
#include "palimpsest/nn/shapes.h"

namespace palimpsest::attention {

namespace {

constexpr double kEpsilon = 1e-5;

/// The slots that the first layer asks with, [n, E].
struct FirstSlots : torch::nn::Module {
  FirstSlots(int64_t slots, int64_t width, const at::TensorOptions& options) {
    weight = register_parameter("weight", at::empty({slots, width}, options));
  }
  at::Tensor weight;
};

class Workspace : public SlotMechanism {
 public:
  Workspace(MechanismArguments& read, const MechanismPlace& place)
      : SlotMechanism(place.use), heads_(place.heads), slots_(read.size("", 1, 1 << 20)) {
    const auto map = [&](const char* name) {
      return register_module(
          name, std::make_shared<nn::Linear>(place.width, place.width, place.options, /*with_bias=*/false));
    };
    q_proj_ = map("q_proj");
    k_proj_ = map("k_proj");
    const auto make = [&] { return std::make_shared<FirstSlots>(slots_, place.width, place.options); };
    first_ =
        place.shared == nullptr
            ? register_module("first", make())
            : std::dynamic_pointer_cast<FirstSlots>(place.shared->get(fmt::format("workspace_{}_first", slots_), make));
  }

  std::string refusal() const override { return causal() ? "its slots are made of the whole text" : ""; }

  void initialize(uint64_t seed, const std::string& name) override {
    const at::NoGradGuard no_grad;
    const double std = 1 / std::sqrt(static_cast<double>(q_proj_->weight.size(1)));
    nn::fill_normal(q_proj_->weight, std, seed, name + ".q_proj");
    nn::fill_normal(k_proj_->weight, std, seed, name + ".k_proj");
    nn::fill_normal(first_->weight, 1, seed, "workspace_first");
  }

 protected:
  bool needs_positions() const override { return false; }

  Control control(const AttentionInput& in, const at::Tensor& /*position*/) const override {
    const int64_t batch = in.key.size(0);
    at::Tensor tokens = in.tokens;
    if (in.key_mask.defined()) tokens = tokens.masked_fill(in.key_mask.logical_not().unsqueeze(-1), 0);
    const bool handed_on = in.carry != nullptr && in.carry->slots.defined() && in.carry->slots.size(1) == slots_;
    const at::Tensor before = handed_on ? in.carry->slots : first_->weight.unsqueeze(0).expand({batch, -1, -1});
    const at::Tensor asked = nn::split_heads(q_proj_->forward(before), heads_);  // [B, H, n, D]
    const at::Tensor given = nn::split_heads(k_proj_->forward(tokens), heads_);  // [B, H, S, D]
    const double scale = 1 / std::sqrt(static_cast<double>(asked.size(3)));
    const at::Tensor s = at::matmul(given, asked.transpose(2, 3)) * scale;  // [B, H, S, n]
    if (in.carry != nullptr) in.carry->slots = next_slots(before, s, tokens, in.key_mask);
    return {s, {}, SlotWriting::kRunning};
  }

 private:
  at::Tensor next_slots(const at::Tensor& before, const at::Tensor& s, const at::Tensor& tokens,
                        const at::Tensor& key_mask) const {
    at::Tensor logits = s;
    if (key_mask.defined())
      logits = logits.masked_fill(key_mask.logical_not().view({key_mask.size(0), 1, key_mask.size(1), 1}),
                                  -std::numeric_limits<double>::infinity());
    const at::Tensor none = logits.eq(-std::numeric_limits<double>::infinity()).all(2, true);
    const at::Tensor phi = at::softmax(logits.masked_fill(none, 0), 2).masked_fill(none, 0);
    const at::Tensor taken = at::matmul(phi.transpose(2, 3), nn::split_heads(tokens, heads_));  // [B, H, n, D]
    return at::layer_norm(before + nn::join_heads(taken), {before.size(2)}, {}, {}, kEpsilon);
  }

  int64_t heads_, slots_;
  std::shared_ptr<nn::Linear> q_proj_, k_proj_;
  std::shared_ptr<FirstSlots> first_;
};

}  // namespace

MechanismKind workspace_mechanism() {
  return {
      "workspace",
      "workspace:n",
      "n slots that ask the tokens for what they hold, and are handed on from layer to layer",
      {"workspace:5"},
      [](MechanismArguments& read, const MechanismPlace& place) { return std::make_shared<Workspace>(read, place); }};
}

}  // namespace palimpsest::attention
