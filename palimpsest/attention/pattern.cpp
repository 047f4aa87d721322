// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/attention/pattern.h"

#include "palimpsest/core/error.h"

namespace palimpsest::attention {

namespace {

/// Dense attention under a mask of positions; position -1 is padding. query [B or 1, L], key [B or 1, S]. `padded`:
/// keys may hold padding, whatever its numbers are.
std::shared_ptr<const Part> masked_part(const AttentionInput& in, const at::Tensor& key, const at::Tensor& value,
                                        const at::Tensor& query_at, const at::Tensor& key_at, const at::Tensor& visible,
                                        bool padded) {
  const at::Tensor real = key_at.ge(0).unsqueeze(1).logical_and(query_at.ge(0).unsqueeze(-1));
  const at::Tensor shown = visible.logical_and(real).unsqueeze(1);  // [B or 1, 1, L, S]
  at::Tensor key_mask;
  if (padded) key_mask = key_at.ge(0);
  return dense_part(in.query, key, value, {.key_mask = key_mask, .mask = shown});
}

}  // namespace

Parts Pattern::own_parts(const AttentionInput& in) const {
  const int64_t length = in.query.size(2);
  if (const auto blocks = fold(); blocks && length > blocks->block) {
    return {folded_part(in.query, in.key, in.value,
                        {.fold = *blocks,
                         .visible = [self = shared_from_this(), this](const at::Tensor& q,
                                                                      const at::Tensor& k) { return visible(q, k); },
                         .key_mask = in.key_mask,
                         .all_visible = fold_is_full()})};
  }
  at::Tensor position = token_positions(in.key_mask, 1, length, in.query.device());
  if (in.key_mask.defined()) position = position.masked_fill(in.key_mask.logical_not(), -1);
  const at::Tensor shown = visible(position.unsqueeze(-1), position.unsqueeze(1));
  return {masked_part(in, in.key, in.value, position, position, shown, in.key_mask.defined())};
}

at::Tensor Pattern::sees(int64_t length) const {
  const at::Tensor position = at::arange(length, at::kLong);
  return visible(position.view({-1, 1}), position.view({1, -1})).expand({length, length});
}

Parts Pattern::step(const AttentionInput& next, State& state, const std::string& name) const {
  if (newest() < 0) {
    // All keys are kept, and their positions from the first padding on.
    const int64_t before = state.length(name + ".key"), count = next.key.size(2), batch = next.key.size(0);
    const at::Tensor key = state.append(name + ".key", next.key, 2);
    const at::Tensor value = state.append(name + ".value", next.value, 2);
    const std::string place = name + ".position";
    at::Tensor position;  // [B or 1, before + L]
    if (!next.key_mask.defined() && !state.contains(place)) {
      position = at::arange(before + count, next.key.options().dtype(at::kLong)).unsqueeze(0);
    } else {
      if (!state.contains(place) && before > 0) {
        state.append(place,
                     at::arange(before, next.key.options().dtype(at::kLong)).unsqueeze(0).expand({batch, before}), 1);
      }
      at::Tensor read = at::zeros({batch}, next.key.options().dtype(at::kLong));
      if (before > 0) read = state.get(place).amax(1).add(1);
      at::Tensor added = token_positions(next.key_mask, batch, count, next.key.device()) + read.unsqueeze(1);
      if (next.key_mask.defined()) added = added.masked_fill(next.key_mask.logical_not(), -1);
      position = state.append(place, added, 1);
    }
    const at::Tensor query_at = position.narrow(1, before, count);
    return {masked_part(next, key, value, query_at, position, visible(query_at.unsqueeze(-1), position.unsqueeze(1)),
                        state.contains(place))};
  }
  const auto kept = KeptKeys(state, name, first(), newest()).take(next);
  return {masked_part(next, kept.key, kept.value, kept.query, kept.position,
                      visible(kept.query.unsqueeze(-1), kept.position.unsqueeze(1)), next.key_mask.defined())};
}

KeptKeys::Keys KeptKeys::take(const AttentionInput& next) {
  const at::NoGradGuard no_grad;
  const int64_t batch = next.key.size(0), heads = next.key.size(1), count = next.key.size(2), width = next.key.size(3);
  const int64_t columns = first_ + room_;
  const auto whole = next.key.options().dtype(at::kLong);
  if (!state_.contains(name_ + ".next")) {
    for (const char* part : {".key", ".value"})
      state_.set(name_ + part, at::zeros({batch, heads, columns + 1, width}, next.key.options()));
    state_.set(name_ + ".next", at::zeros({batch}, whole));
  }
  const at::Tensor before = state_.get(name_ + ".next");  // [B]
  at::Tensor query = token_positions(next.key_mask, batch, count, next.key.device()) + before.unsqueeze(1);
  if (next.key_mask.defined()) query = query.masked_fill(next.key_mask.logical_not(), -1);

  // Column r of the newest holds the last position p < before with p mod room = r, that of the first ones itself.
  at::Tensor position;
  {
    const at::Tensor end = before.unsqueeze(1);  // [B, 1]
    const at::Tensor early = at::arange(first_, whole).unsqueeze(0);
    at::Tensor in_first = at::where(early < end, early, at::full({}, -1, whole));
    if (room_ > 0) {
      const at::Tensor column = at::arange(room_, whole).unsqueeze(0);
      const at::Tensor last = end - 1 - (end - 1 - column).remainder(room_);
      // What lies among the first ones is not counted again.
      in_first = at::cat({in_first, at::where(last >= first_, last, at::full({}, -1, whole))}, 1);
    }
    position = at::cat({in_first.expand({batch, columns}), query}, 1);
  }
  const auto with_new = [&](const char* part, const at::Tensor& more) {
    return at::cat({state_.get(name_ + part).narrow(2, 0, columns), more}, 2);
  };
  Keys result{with_new(".key", next.key), with_new(".value", next.value), position, query};

  // Written after it was read: earlier ones of the new tokens still see what the later ones push out.
  const at::Tensor after = query.amax(1).add(1).maximum(before);
  at::Tensor column = at::full_like(query, columns);
  if (room_ > 0) {
    const at::Tensor stays = query.ge(after.unsqueeze(1) - room_).logical_and(query.ge(first_));
    column = at::where(stays, query.remainder(room_) + first_, column);
  }
  column = at::where(query.ge(0).logical_and(query.lt(first_)), query, column);
  const at::Tensor index = column.view({batch, 1, count, 1}).expand({batch, heads, count, width});
  for (const auto& [part, more] : {std::pair(".key", next.key), std::pair(".value", next.value)})
    state_.set(name_ + part, state_.get(name_ + part).scatter(2, index, more));
  state_.set(name_ + ".next", after);
  return result;
}

}  // namespace palimpsest::attention
