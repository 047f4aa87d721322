// SPDX-License-Identifier: Apache-2.0
// Tokens that all others read and that read all (Longformer, BigBird, ETC as ABC reads them, section 3;
// ALGORITHMS 1.2), alone or beside a window. No key is counted twice.
#include "palimpsest/attention/pattern.h"
#include "palimpsest/core/error.h"

namespace palimpsest::attention {

namespace {

/// The first n tokens and the newest: what can be streamed.
class FirstTokens : public Pattern {
 public:
  FirstTokens(int64_t first, int64_t window) : Pattern(Use::kCausal), first_(first), window_(window) {}

  Parts own_parts(const AttentionInput& in) const override {
    const int64_t length = in.query.size(2);
    const Fold band = band_fold(std::max<int64_t>(window_ - 1, 0), false);
    if (length <= band.block + first_) return Pattern::own_parts(in);
    // The window without the first tokens, and the first tokens for everyone.
    at::Tensor at = token_positions(in.key_mask, 1, length, in.query.device());
    if (in.key_mask.defined()) at = at.masked_fill(in.key_mask.logical_not(), -1);
    const int64_t batch = in.query.size(0);
    Parts made;
    if (window_ > 0) {
      const auto near = [first = first_, window = window_](const at::Tensor& q, const at::Tensor& k) {
        return k.ge(first).logical_and((q - k).ge(0)).logical_and((q - k).lt(window));
      };
      made.push_back(folded_part(in.query, in.key, in.value, {.fold = band, .visible = near, .key_mask = in.key_mask}));
    }
    // Places of the first tokens: where rows are padded, each row's own.
    at::Tensor key = in.key.narrow(2, 0, std::min(first_, length)), value = in.value.narrow(2, 0, key.size(2));
    at::Tensor key_at = at.narrow(1, 0, key.size(2)), key_mask;
    if (in.key_mask.defined()) {
      const at::Tensor order = std::get<1>(in.key_mask.to(at::kByte).sort(true, 1, true)).narrow(1, 0, key.size(2));
      const at::Tensor index =
          order.view({batch, 1, key.size(2), 1}).expand({batch, in.key.size(1), key.size(2), in.key.size(3)});
      key = in.key.gather(2, index);
      value = in.value.gather(2, index);
      key_at = at.gather(1, order);
      key_mask = key_at.ge(0);
    }
    const at::Tensor shown = key_at.unsqueeze(1).le(at.unsqueeze(-1)).logical_and(key_at.unsqueeze(1).ge(0));
    made.push_back(dense_part(in.query, key, value, {.key_mask = key_mask, .mask = shown.unsqueeze(1)}));
    return made;
  }

 protected:
  at::Tensor visible(const at::Tensor& query, const at::Tensor& key) const override {
    const at::Tensor distance = query - key;
    return distance.ge(0).logical_and(key.lt(first_).logical_or(distance.lt(window_)));
  }
  int64_t newest() const override { return window_; }
  int64_t first() const override { return first_; }

 private:
  int64_t first_, window_;
};

/// Global tokens in an encoder or a source.
class GlobalTokens : public Mechanism {
 public:
  GlobalTokens(Use use, int64_t first, std::vector<int64_t> places, bool by_mask, int64_t window)
      : Mechanism(use), first_(first), places_(std::move(places)), by_mask_(by_mask), window_(window) {}

  std::string refusal() const override {
    if (causal()) return "of these a stream can only keep the first tokens: global:first=n";
    return use_ == Use::kCross && window_ > 0 ? "a window lies around a token's own place, and a source has none" : "";
  }

  Parts own_parts(const AttentionInput& in) const override {
    const int64_t length = in.query.size(2);
    const at::Tensor global = chosen(in);  // [B, L]
    const at::Tensor local = global.logical_not();
    Parts made;
    if (window_ > 0) {
      const int64_t half = window_ / 2;
      const auto near = [half](const at::Tensor& q, const at::Tensor& k) { return (q - k).abs().le(half); };
      made.push_back(folded_part(
          in.query, in.key, in.value,
          {.fold = band_fold(half, true), .visible = near, .key_mask = in.key_mask, .readers = local, .read = local}));
    }
    const auto [places, valid] = gathered(global);  // [B, G]
    if (places.size(1) == 0) {
      if (made.empty()) made.push_back(nothing(in));
      return made;
    }
    const at::Tensor index =
        places.view({places.size(0), 1, places.size(1), 1}).expand({-1, in.key.size(1), -1, in.key.size(3)});
    at::Tensor readers = local;
    if (in.key_mask.defined()) readers = readers.logical_and(in.key_mask);
    made.push_back(dense_part(
        in.query, in.key.gather(2, index), in.value.gather(2, index),
        {.key_mask = valid, .mask = readers.view({-1, 1, length, 1}).expand({-1, 1, length, places.size(1)})}));
    made.push_back(rows_part(in.query, in.key, in.value, places, valid, {.key_mask = in.key_mask}));
    return made;
  }

  Source source(const AttentionInput& in) const override {
    const auto [places, valid] = gathered(chosen(in));
    const at::Tensor index =
        places.view({places.size(0), 1, places.size(1), 1}).expand({-1, in.key.size(1), -1, in.key.size(3)});
    return {in.key.gather(2, index), in.value.gather(2, index), valid};
  }

  at::Tensor sees(int64_t length) const override {
    const at::Tensor at = at::arange(length, at::kLong);
    const at::Tensor global = by_mask_ ? at::zeros({length}, at::kBool) : is_global(at);
    if (use_ == Use::kCross) return global.unsqueeze(0).expand({length, length});
    at::Tensor seen = global.unsqueeze(0).logical_or(global.unsqueeze(1));
    if (window_ > 0) seen = seen.logical_or((at.unsqueeze(1) - at.unsqueeze(0)).abs().le(window_ / 2));
    return seen;
  }

 private:
  at::Tensor is_global(const at::Tensor& position) const {
    at::Tensor global = position.lt(first_);
    for (const int64_t place : places_) global = global.logical_or(position.eq(place));
    return global;
  }

  /// [B, L] bool, padding left out.
  at::Tensor chosen(const AttentionInput& in) const {
    const int64_t batch = in.key.size(0), length = in.key.size(2);
    at::Tensor global;
    if (by_mask_) {
      global =
          in.global_mask.defined() ? in.global_mask : at::zeros({batch, length}, in.key.options().dtype(at::kBool));
    } else {
      global = is_global(token_positions(in.key_mask, batch, length, in.key.device()));
    }
    return in.key_mask.defined() ? global.logical_and(in.key_mask) : global;
  }

  /// The places of what is true, and which of them are: [B, G], G the most in a row.
  static std::pair<at::Tensor, at::Tensor> gathered(const at::Tensor& chosen) {
    const int64_t most = chosen.numel() > 0 ? chosen.sum(1).max().item<int64_t>() : 0;
    const at::Tensor order = std::get<1>(chosen.to(at::kByte).sort(/*stable=*/true, 1, /*descending=*/true));
    const at::Tensor places = order.narrow(1, 0, most).contiguous();
    return {places, chosen.gather(1, places)};
  }

  static std::shared_ptr<const Part> nothing(const AttentionInput& in) {
    return dense_part(in.query, in.key.narrow(2, 0, 0), in.value.narrow(2, 0, 0));
  }

  int64_t first_;
  std::vector<int64_t> places_;
  bool by_mask_;
  int64_t window_;
};

}  // namespace

MechanismKind global_mechanism() {
  return {"global",
          "global:first=n|at=0;5;9|mask[,window=W]",
          "tokens that all others read and that read all, alone or beside a window",
          {"global:first=3,window=8", "global:first=4", "global:at=0;5;11,window=6", "global:at=2;7"},
          [](MechanismArguments& read, const MechanismPlace& place) -> std::shared_ptr<Mechanism> {
            const int64_t first = read.size_or("first", 0, 1, 1 << 24);
            std::vector<int64_t> places;
            if (read.has("at")) places = read.list("at");
            const bool by_mask = read.flag("mask");
            if ((first > 0) + !places.empty() + by_mask != 1)
              read.fail("which tokens are global?", "give one of first=n, at=0;5;9 and mask");
            const int64_t window = read.size_or("window", 0, 1);
            if (place.use == Use::kCausal && first > 0) return std::make_shared<FirstTokens>(first, window);
            return std::make_shared<GlobalTokens>(place.use, first, std::move(places), by_mask, window);
          }};
}

}  // namespace palimpsest::attention
