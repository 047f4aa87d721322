// SPDX-License-Identifier: Apache-2.0
// Every token reads every other, or every earlier one.
#include "palimpsest/attention/mechanism.h"

namespace palimpsest::attention {

namespace {

class Dense : public Mechanism {
 public:
  explicit Dense(Use use) : Mechanism(use) {}

  Parts own_parts(const AttentionInput& in) const override {
    return {dense_part(in.query, in.key, in.value, {.key_mask = in.key_mask, .causal = causal()})};
  }

  Parts step(const AttentionInput& next, State& state, const std::string& name) const override {
    const int64_t before = state.length(name + ".key"), batch = next.key.size(0), count = next.key.size(2);
    const at::Tensor key = state.append(name + ".key", next.key, 2);
    const at::Tensor value = state.append(name + ".value", next.value, 2);
    // The mask is kept from the first padding on.
    const std::string place = name + ".mask";
    at::Tensor mask;
    if (next.key_mask.defined() || state.contains(place)) {
      const auto all = next.key.options().dtype(at::kBool);
      if (!state.contains(place) && before > 0) state.append(place, at::ones({batch, before}, all), 1);
      mask = state.append(place, next.key_mask.defined() ? next.key_mask : at::ones({batch, count}, all), 1);
    }
    return {dense_part(next.query, key, value, {.key_mask = mask, .causal = true})};
  }

  Source source(const AttentionInput& in) const override { return {in.key, in.value, in.key_mask}; }

  at::Tensor sees(int64_t length) const override {
    const at::Tensor all = at::ones({length, length}, at::kBool);
    return causal() ? all.tril() : all;
  }
  bool is_bounded() const override { return false; }
  bool reads_all() const override { return true; }
};

}  // namespace

MechanismKind dense_mechanism() {
  return {"dense",
          "dense",
          "every token reads every other, or every earlier one",
          {"dense"},
          [](MechanismArguments&, const MechanismPlace& place) { return std::make_shared<Dense>(place.use); }};
}

}  // namespace palimpsest::attention
