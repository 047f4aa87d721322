// SPDX-License-Identifier: Apache-2.0
// Every gap-th token of the past, W of them (ABC section 3; ALGORITHMS 1.2): token t reads t, t - gap, …
#include "palimpsest/attention/pattern.h"

namespace palimpsest::attention {

namespace {

class Dilated : public Pattern {
 public:
  Dilated(Use use, int64_t width, int64_t gap) : Pattern(use), width_(width), gap_(gap) {}
  std::string refusal() const override { return causal() ? "" : "it looks back from each token, so it is causal"; }

 protected:
  at::Tensor visible(const at::Tensor& query, const at::Tensor& key) const override {
    const at::Tensor distance = query - key;
    return distance.ge(0).logical_and(distance.lt(width_ * gap_)).logical_and(distance.remainder(gap_).eq(0));
  }
  std::optional<Fold> fold() const override { return band_fold((width_ - 1) * gap_, false); }
  int64_t newest() const override { return (width_ - 1) * gap_ + 1; }

 private:
  int64_t width_, gap_;
};

}  // namespace

MechanismKind dilated_mechanism() {
  return {"dilated",
          "dilated:window=W,gap=G",
          "W tokens of the past, each G before the next",
          {"dilated:window=4,gap=3", "dilated:window=8,gap=1"},
          [](MechanismArguments& read, const MechanismPlace& place) {
            const int64_t width = read.size("window", 1, 1 << 20);
            return std::make_shared<Dilated>(place.use, width, read.size("gap", 1, 1 << 20));
          }};
}

}  // namespace palimpsest::attention
