// SPDX-License-Identifier: Apache-2.0
// Blocks of `rate` tokens become one slot each (Compressive Transformer as ABC reads it; ALGORITHMS 1.2). Causal: the
// newest `window` tokens as they are, then the newest `slots` whole blocks of what came before. An encoder or a
// decoder's source: all blocks, the last perhaps short.
#include "palimpsest/attention/pattern.h"
#include "palimpsest/nn/layers.h"

namespace palimpsest::attention {

namespace {

/// What each place of a block counts, [H, rate]; starts as the mean.
struct Taps : torch::nn::Module {
  Taps(int64_t heads, int64_t rate, const at::TensorOptions& options) {
    weight = register_parameter("weight", at::empty({heads, rate}, options));
  }
  at::Tensor weight;
};

class Compressive : public Mechanism {
 public:
  Compressive(MechanismArguments& read, const MechanismPlace& place) : Mechanism(place.use) {
    window_ = read.size_or("window", 128, 1);
    slots_ = read.size_or("slots", 32, 1, 1 << 20);
    rate_ = read.size_or("rate", 4, 1, 1 << 20);
    whole_tail_ = read.choice("tail_divisor", {"count", "rate"}) == "rate";
    if (read.choice("by", {"mean", "conv"}) == "conv")
      taps_ = register_module("taps", std::make_shared<Taps>(place.heads, rate_, place.options));
  }

  void initialize(uint64_t /*seed*/, const std::string& /*name*/) override {
    const at::NoGradGuard no_grad;
    if (taps_) taps_->weight.fill_(1.0 / static_cast<double>(rate_));
  }

  Parts own_parts(const AttentionInput& in) const override {
    if (!causal()) {
      const Source blocks = source(in);
      return {dense_part(in.query, blocks.key, blocks.value, {.key_mask = blocks.key_mask})};
    }
    const int64_t length = in.query.size(2);
    const at::Tensor whole = token_positions(in.key_mask, 1, length, in.query.device());
    const at::Tensor at = in.key_mask.defined() ? whole.masked_fill(in.key_mask.logical_not(), -1) : whole;
    const at::Tensor distance = at.unsqueeze(-1) - at.unsqueeze(1);
    const auto band = band_fold(window_ - 1, false);
    Parts made;
    if (length > band.block) {
      made.push_back(
          folded_part(in.query, in.key, in.value, {.fold = band, .visible = near(), .key_mask = in.key_mask}));
    } else {
      const at::Tensor shown = near()(at.unsqueeze(-1), at.unsqueeze(1))
                                   .logical_and(at.ge(0).unsqueeze(1))
                                   .logical_and(at.ge(0).unsqueeze(-1));
      made.push_back(dense_part(in.query, in.key, in.value, {.key_mask = in.key_mask, .mask = shown.unsqueeze(1)}));
    }
    const int64_t blocks = length / rate_;
    if (blocks > 0) {
      const auto [key, value] = compressed(in, blocks);
      // A query's blocks lie within `slots` of the newest that has left its window.
      const int64_t key_block = std::max<int64_t>(1, (slots_ + 1) / 2), block = key_block * rate_;
      const int64_t back = slots_ + (window_ + rate_ - 1) / rate_ + 1;
      if (length > block + window_) {
        made.push_back(folded_part(in.query, key, value,
                                   {.fold = {block, (back + key_block - 1) / key_block, 0},
                                    .visible = [self = shared_from_this(), this](
                                                   const at::Tensor& q, const at::Tensor& k) { return readable(q, k); },
                                    .key_mask = in.key_mask,
                                    .key_block = key_block}));
      } else {
        const at::Tensor index = at::arange(blocks, at.options()).view({1, 1, blocks});
        made.push_back(dense_part(in.query, key, value, {.mask = readable(at.unsqueeze(-1), index).unsqueeze(1)}));
      }
    }
    return made;
  }

  Parts step(const AttentionInput& next, State& state, const std::string& name) const override {
    const at::NoGradGuard no_grad;
    const int64_t batch = next.key.size(0), heads = next.key.size(1), width = next.key.size(3),
                  count = next.key.size(2);
    const auto kept = KeptKeys(state, name, 0, window_).take(next);
    const at::Tensor at = kept.query;  // [B, L]
    const auto band = near()(at.unsqueeze(-1), kept.position.unsqueeze(1));
    const at::Tensor real = kept.position.ge(0);
    const at::Tensor shown = band.logical_and(real.unsqueeze(1)).logical_and(at.ge(0).unsqueeze(-1));
    Parts made = {dense_part(next.query, kept.key, kept.value,
                             {.key_mask = next.key_mask.defined() ? real : at::Tensor(), .mask = shown.unsqueeze(1)})};

    // Block j lies in column j mod room; the last column takes what is padding. `room`: blocks that may be read, those
    // whose tokens have not left the window, and the one that is being filled.
    const int64_t room = slots_ + (window_ + rate_ - 1) / rate_ + 2;
    const auto whole = at.options();
    const std::string place = name + ".block";  // the block that is being filled, [B]
    if (!state.contains(place)) {
      for (const char* side : {".block_key", ".block_value"})
        state.set(name + side, at::zeros({batch, heads, room + 1, width}, next.key.options()));
      state.set(place, at::zeros({batch}, whole));
    }
    const at::Tensor filling = state.get(place).unsqueeze(1);  // [B, 1]
    // The columns of old blocks, then the new ones: `filling` itself, gone on with, and those behind it.
    const int64_t added = (count + rate_ - 1) / rate_ + 1;
    const at::Tensor column = at::arange(room, whole).unsqueeze(0);
    const at::Tensor old = filling - 1 - (filling - 1 - column).remainder(room);  // [B, room]
    const at::Tensor fresh = filling + at::arange(added, whole).unsqueeze(0);     // [B, added]
    const at::Tensor into = at::where(at.ge(0), at::div(at, rate_, "floor") - filling, at::full({}, added, whole));
    const at::Tensor tap = at.clamp_min(0).remainder(rate_);  // [B, L]
    const auto spread = [&](const at::Tensor& index, int64_t columns) {
      return index.view({batch, 1, columns, 1}).expand({batch, heads, columns, width});
    };
    const at::Tensor partial = spread(filling.remainder(room), 1);
    at::Tensor blocks[2];
    for (const int side : {0, 1}) {
      const std::string entry = name + (side == 0 ? ".block_key" : ".block_value");
      const at::Tensor before = state.get(entry);
      at::Tensor rows = side == 0 ? next.key : next.value;
      if (next.key_mask.defined()) rows = rows.masked_fill(next.key_mask.logical_not().view({batch, 1, count, 1}), 0);
      if (taps_) {
        rows = rows * taps_->weight.index_select(1, tap.view({-1})).view({heads, batch, count, 1}).transpose(0, 1);
      } else {
        rows = rows / static_cast<double>(rate_);
      }
      at::Tensor grown = at::zeros({batch, heads, added + 1, width}, rows.options());
      grown.narrow(2, 0, 1).copy_(before.gather(2, partial));
      grown.scatter_add_(2, spread(into, count), rows);
      grown = grown.narrow(2, 0, added);
      blocks[side] = at::cat({before.narrow(2, 0, room), grown}, 2);
      // What the tokens up to here reached stays; of more new blocks than there is room for, the newest.
      const at::Tensor reached = at::div(at, rate_, "floor").amax(1, true).maximum(filling);  // [B, 1]
      const at::Tensor stays = fresh.le(reached).logical_and(fresh.gt(reached - room));
      const at::Tensor to = at::where(stays, fresh.remainder(room), at::full({}, room, whole));
      state.set(entry, before.scatter(2, spread(to, added), grown));
    }
    // A block that is full makes room for the next one, which starts at 0.
    const at::Tensor end = at.amax(1).add(1);
    const at::Tensor next_block =
        at::where(end.gt(0), at::div(end, rate_, "floor"), filling.squeeze(1)).maximum(filling.squeeze(1));
    const at::Tensor starts = end.gt(0).logical_and(end.remainder(rate_).eq(0)).view({batch, 1, 1, 1});
    const at::Tensor target = spread(next_block.unsqueeze(1).remainder(room), 1);
    for (const char* side : {".block_key", ".block_value"}) {
      const at::Tensor now = state.get(name + side);
      state.set(name + side, now.scatter(2, target, now.gather(2, target).masked_fill(starts, 0)));
    }
    state.set(place, next_block);
    const at::Tensor index = at::cat({at::where(old.ge(0), old, at::full({}, 1 << 30, whole)), fresh}, 1);
    made.push_back(dense_part(next.query, blocks[0], blocks[1],
                              {.mask = readable(at.unsqueeze(-1), index.unsqueeze(1)).unsqueeze(1)}));
    return made;
  }

  Source source(const AttentionInput& in) const override {
    const int64_t length = in.key.size(2), blocks = (length + rate_ - 1) / rate_;
    auto [key, value] = compressed(in, blocks);
    const at::Tensor count =
        in.key_mask.defined() ? in.key_mask.sum(1, true) : at::full({1, 1}, length, in.key.options().dtype(at::kLong));
    const at::Tensor begin = at::arange(blocks, count.options()).unsqueeze(0) * rate_;  // [1, k]
    if (!whole_tail_) {
      const at::Tensor held = (count - begin).clamp(1, rate_).to(key.scalar_type());  // [B or 1, k]
      const at::Tensor wider = (static_cast<double>(rate_) / held).view({held.size(0), 1, blocks, 1});
      key = key * wider;
      value = value * wider;
    }
    return {key, value, begin.lt(count).expand({in.key.size(0), blocks})};
  }

  at::Tensor sees(int64_t length) const override {
    if (!causal()) return at::ones({length, length}, at::kBool);
    const at::Tensor at = at::arange(length, at::kLong);
    return near()(at.view({-1, 1}), at.view({1, -1}))
        .logical_or(readable(at.view({-1, 1}), at::div(at, rate_, "floor").view({1, -1})));
  }

 private:
  VisibleAt near() const {
    return [window = window_](const at::Tensor& query, const at::Tensor& key) {
      const at::Tensor distance = query - key;
      return distance.ge(0).logical_and(distance.lt(window));
    };
  }

  /// Whether the query at a position reads a block: all of it has left the window, and it is among the newest.
  at::Tensor readable(const at::Tensor& query, const at::Tensor& block) const {
    const at::Tensor ready = at::div((query - window_ + 1).clamp_min(0), rate_, "floor");
    return block.lt(ready).logical_and(block.ge(ready - slots_));
  }

  /// Keys and values of the first `blocks` blocks, [B, H, blocks, D]; missing tokens count as 0.
  std::pair<at::Tensor, at::Tensor> compressed(const AttentionInput& in, int64_t blocks) const {
    const int64_t batch = in.key.size(0), heads = in.key.size(1), length = in.key.size(2), width = in.key.size(3);
    at::Tensor order;
    if (in.key_mask.defined()) {
      order = std::get<1>(in.key_mask.to(at::kByte).sort(true, 1, true))
                  .view({batch, 1, length, 1})
                  .expand({batch, heads, length, width});
    }
    const auto pool = [&](at::Tensor x) {
      if (order.defined()) {
        x = x.masked_fill(in.key_mask.logical_not().view({batch, 1, length, 1}), 0).gather(2, order);
      }
      const int64_t more = blocks * rate_ - length;
      x = more > 0 ? at::constant_pad_nd(x, {0, 0, 0, more}) : x.narrow(2, 0, blocks * rate_);
      x = x.reshape({batch, heads, blocks, rate_, width});
      return taps_ ? (x * taps_->weight.view({1, heads, 1, rate_, 1})).sum(3) : x.mean(3);
    };
    return {pool(in.key), pool(in.value)};
  }

  int64_t window_, slots_, rate_;
  bool whole_tail_;
  std::shared_ptr<Taps> taps_;
};

}  // namespace

MechanismKind compressive_mechanism() {
  return {
      "compressive",
      "compressive:window=128,slots=32,rate=4[,by=mean|conv][,tail_divisor=count|rate]",
      "the newest tokens as they are, and slots of `rate` older tokens each",
      {"compressive:window=6,slots=4,rate=3", "compressive:window=5,slots=3,rate=4,by=conv"},
      [](MechanismArguments& read, const MechanismPlace& place) { return std::make_shared<Compressive>(read, place); }};
}

}  // namespace palimpsest::attention
