// SPDX-License-Identifier: Apache-2.0
// A band: the W newest tokens, itself among them, or W/2 on either side (ABC section 3; ALGORITHMS 1.2).
#include "palimpsest/attention/pattern.h"

namespace palimpsest::attention {

namespace {

class Window : public Pattern {
 public:
  Window(Use use, int64_t width) : Pattern(use), width_(width) {}
  std::string refusal() const override {
    return use_ == Use::kCross ? "a window lies around a token's own place, and a source has none" : "";
  }

 protected:
  at::Tensor visible(const at::Tensor& query, const at::Tensor& key) const override {
    const at::Tensor distance = query - key;
    return causal() ? distance.ge(0).logical_and(distance.lt(width_)) : distance.abs().le(width_ / 2);
  }
  std::optional<Fold> fold() const override { return band_fold(causal() ? width_ - 1 : width_ / 2, !causal()); }
  int64_t newest() const override { return width_; }

 private:
  int64_t width_;
};

}  // namespace

MechanismKind window_mechanism() {
  return {"window",
          "window:W",
          "a band: the W newest tokens in causal use, W/2 on either side in an encoder",
          {"window:8", "window:1", "window:33"},
          [](MechanismArguments& read, const MechanismPlace& place) {
            return std::make_shared<Window>(place.use, read.size("", 1));
          }};
}

}  // namespace palimpsest::attention
