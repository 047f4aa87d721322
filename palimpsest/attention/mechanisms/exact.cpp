// SPDX-License-Identifier: Apache-2.0
// As many slots as tokens, each written by one (ABC section 3: the identity). Softmax attention by the slot reader: a
// reference, quadratic in the length.
#include "palimpsest/attention/slots.h"

namespace palimpsest::attention {

namespace {

class Exact : public SlotMechanism {
 public:
  explicit Exact(Use use) : SlotMechanism(use) {}
  bool is_bounded() const override { return false; }

  Parts step(const AttentionInput& next, State& state, const std::string& name) const override {
    // A slot more for each token: the slots are the keys themselves, written one after another.
    const std::string place = name + ".written";
    const at::Tensor more = next.key_mask.defined()
                                ? next.key_mask
                                : at::ones({next.key.size(0), next.key.size(2)}, next.key.options().dtype(at::kBool));
    const at::Tensor key = state.append(name + ".key", next.key, 2);
    const at::Tensor value = state.append(name + ".value", next.value, 2);
    return {dense_part(next.query, key, value, {.key_mask = state.append(place, more, 1), .causal = true})};
  }

 protected:
  Control control(const AttentionInput& in, const at::Tensor& /*position*/) const override {
    const at::Tensor one = at::eye(in.key.size(2), in.key.options().requires_grad(false));
    return {one.unsqueeze(0).unsqueeze(0), {}, SlotWriting::kAdditive};
  }
};

}  // namespace

MechanismKind exact_mechanism() {
  return {"exact",
          "exact",
          "a slot for each token: softmax attention by the slot reader, a reference",
          {"exact"},
          [](MechanismArguments&, const MechanismPlace& place) { return std::make_shared<Exact>(place.use); }};
}

}  // namespace palimpsest::attention
