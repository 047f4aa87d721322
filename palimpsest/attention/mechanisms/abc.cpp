// SPDX-License-Identifier: Apache-2.0
// ABC_MLP: what a token writes is learned from the token (ABC section 3.2; ALGORITHMS 1.4): alpha = g(x W), a slot the
// mean of all tokens weighted by it. One W for all layers of a kind.
#include <limits>

#include "palimpsest/attention/slots.h"
#include "palimpsest/core/error.h"
#include "palimpsest/nn/layers.h"

namespace palimpsest::attention {

namespace {

constexpr double kTiny = 1e-6;

class AbcMlp : public SlotMechanism {
 public:
  AbcMlp(MechanismArguments& read, const MechanismPlace& place)
      : SlotMechanism(place.use), heads_(place.heads), slots_(read.size("", 1, 1 << 20)) {
    normalizer_ = read.choice("normalizer", {"running", "frozen", "none"});
    activation_ = read.choice("activation", {"exp", "softplus", "relu", "sigmoid", "elu+1"});
    const bool untied = read.flag("untied");
    const auto make = [&] {
      return std::make_shared<nn::Linear>(place.width, heads_ * slots_, place.options, /*with_bias=*/false);
    };
    control_ =
        untied || place.shared == nullptr
            ? register_module("control", make())
            : std::dynamic_pointer_cast<nn::Linear>(place.shared->get(fmt::format("abc_{}_control", slots_), make));
  }

  void initialize(uint64_t seed, const std::string& name) override {
    const at::NoGradGuard no_grad;
    nn::fill_normal(control_->weight, 0.02, seed, name + ".control");
  }

  at::Tensor learned_control(const AttentionInput& in) const override {
    at::Tensor tokens = in.tokens;
    if (in.key_mask.defined()) tokens = tokens.masked_fill(in.key_mask.logical_not().unsqueeze(-1), 0);
    return nn::split_heads(control_->forward(tokens), heads_);  // [B, H, S, n]
  }

  /// A rectified control leaves out what is below 0.
  bool content_decides() const override { return activation_ == "relu"; }

 protected:
  bool needs_positions() const override { return false; }

  Control control(const AttentionInput& in, const at::Tensor& /*position*/) const override {
    const at::Tensor s = in.control.defined() ? in.control : learned_control(in);
    const SlotWriting writing = normalizer_ == "none"     ? SlotWriting::kAdditive
                                : normalizer_ == "frozen" ? SlotWriting::kFrozen
                                                          : SlotWriting::kRunning;
    if (activation_ == "exp") return {writing == SlotWriting::kAdditive ? at::exp(s) : s, {}, writing};
    const at::Tensor alpha = activation_ == "softplus"  ? at::softplus(s)
                             : activation_ == "relu"    ? at::relu(s)
                             : activation_ == "sigmoid" ? at::sigmoid(s)
                                                        : at::elu(s) + 1;
    if (writing == SlotWriting::kAdditive) return {alpha, {}, writing};
    // Below kTiny a token writes nothing: its logarithm has no end.
    return {alpha.clamp_min(kTiny).log().masked_fill(alpha.le(kTiny), -std::numeric_limits<double>::infinity()),
            {},
            writing};
  }

 private:
  int64_t heads_, slots_;
  std::string normalizer_, activation_;
  std::shared_ptr<nn::Linear> control_;
};

}  // namespace

MechanismKind abc_mechanism() {
  return {"abc",
          "abc:n[,normalizer=running|frozen|none][,activation=exp|softplus|relu|sigmoid|elu+1][,untied]",
          "n slots; what a token writes is learned from the token (ABC_MLP)",
          {"abc:6", "abc:5,normalizer=frozen", "abc:4,normalizer=none,activation=sigmoid", "abc:4,activation=softplus",
           "abc:4,activation=relu", "abc:4,activation=elu+1,untied"},
          [](MechanismArguments& read, const MechanismPlace& place) { return std::make_shared<AbcMlp>(read, place); }};
}

}  // namespace palimpsest::attention
