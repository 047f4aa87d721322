// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/attention/slots.h"

#include <limits>

#include "palimpsest/core/error.h"

namespace palimpsest::attention {

namespace {

constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();

/// Rows of axis 2 that are padding become `value`.
at::Tensor without_padding(const at::Tensor& x, const at::Tensor& key_mask, double value) {
  if (!key_mask.defined() || !x.defined()) return x;
  return x.masked_fill(key_mask.logical_not().view({key_mask.size(0), 1, key_mask.size(1), 1}), value);
}

}  // namespace

SlotScan SlotMechanism::scan(const AttentionInput& in, const at::Tensor& position, SlotState start) const {
  Control made = control(in, position);
  const int64_t batch = in.key.size(0), heads = in.key.size(1), length = in.key.size(2);
  const bool additive = made.writing == SlotWriting::kAdditive;
  const auto whole = [&](const at::Tensor& weights) {
    if (!weights.defined()) return weights;
    const at::Tensor all = weights.expand({batch, heads, length, weights.size(3)});
    return without_padding(all, in.key_mask, additive ? 0 : kNegativeInfinity);
  };
  SlotScan result{.query = in.query,
                  .key = without_padding(in.key, in.key_mask, 0),
                  .value = without_padding(in.value, in.key_mask, 0),
                  .control = whole(made.weights),
                  .value_control = whole(made.value_weights),
                  .writing = made.writing,
                  .start = std::move(start)};
  if (!result.start.defined() && !hides_empty()) {
    result.start =
        SlotState::empty(batch, heads, made.weights.size(3), in.key.size(3), in.key.options(), /*readable=*/true);
  }
  return result;
}

Source SlotMechanism::source(const AttentionInput& in) const {
  const int64_t batch = in.key.size(0), length = in.key.size(2);
  const at::Tensor position = token_positions(in.key_mask, 1, length, in.key.device());
  SlotScan written = scan(in, position, {});
  const auto phi = [&](const at::Tensor& control) {
    if (written.writing == SlotWriting::kAdditive) return control;
    // A slot is the mean of the tokens, weighted by the exponential of their controls: none of it where all are -inf.
    const at::Tensor none = control.eq(kNegativeInfinity).all(2, true);
    return at::softmax(control.masked_fill(none, 0), 2).masked_fill(none, 0);
  };
  const at::Tensor of_keys = phi(written.control);
  const at::Tensor of_values = written.value_control.defined() ? phi(written.value_control) : of_keys;
  Source made{
      at::matmul(of_keys.transpose(2, 3), written.key), at::matmul(of_values.transpose(2, 3), written.value), {}};
  if (hides_empty()) {
    made.key_mask = of_keys.ne(0).any(2);  // [B, H, n]
    if (written.value_control.defined()) made.key_mask = made.key_mask.logical_or(of_values.ne(0).any(2));
  } else if (in.key_mask.defined()) {
    made.key_mask =
        in.key_mask.any(1, true).expand({batch, made.key.size(2)});  // a text of padding alone gives nothing
  }
  return made;
}

Parts SlotMechanism::own_parts(const AttentionInput& in) const {
  if (!causal()) {
    const Source slots = source(in);
    return {dense_part(in.query, slots.key, slots.value, {.key_mask = slots.key_mask})};
  }
  return {slot_scan_part(scan(in, token_positions(in.key_mask, 1, in.key.size(2), in.key.device()), {}))};
}

Parts SlotMechanism::step(const AttentionInput& next, State& state, const std::string& name) const {
  const int64_t batch = next.key.size(0), length = next.key.size(2);
  at::Tensor position;
  if (needs_positions()) {
    const std::string place = name + ".next";
    const at::Tensor before =
        state.contains(place) ? state.get(place) : at::zeros({batch}, next.key.options().dtype(at::kLong));
    position = token_positions(next.key_mask, batch, length, next.key.device()) + before.unsqueeze(1);
    state.set(place, next.key_mask.defined() ? before + next.key_mask.sum(1) : before + length);
  }
  SlotState start;
  if (state.contains(name + ".mass"))
    start = {state.get(name + ".mass"), state.get(name + ".key"), state.get(name + ".value")};
  const SlotScan written = scan(next, position, std::move(start));
  const SlotState end = slot_scan_end(written);
  state.set(name + ".mass", end.mass);
  state.set(name + ".key", end.key);
  state.set(name + ".value", end.value);
  return {slot_scan_part(written)};
}

at::Tensor SlotMechanism::sees(int64_t length) const {
  const at::Tensor all = at::ones({length, length}, at::kBool);
  return causal() ? all.tril() : all;
}

}  // namespace palimpsest::attention
