// SPDX-License-Identifier: Apache-2.0
// The S newest tokens and the last of each stride before (Sparse Transformer; ALGORITHMS 1.2). The state grows.
#include "palimpsest/attention/pattern.h"

namespace palimpsest::attention {

namespace {

class Strided : public Pattern {
 public:
  Strided(Use use, int64_t stride) : Pattern(use), stride_(stride) {}
  std::string refusal() const override { return causal() ? "" : "it looks back from each token, so it is causal"; }

 protected:
  at::Tensor visible(const at::Tensor& query, const at::Tensor& key) const override {
    const at::Tensor distance = query - key;
    return distance.ge(0).logical_and(distance.lt(stride_).logical_or(key.remainder(stride_).eq(stride_ - 1)));
  }

 private:
  int64_t stride_;
};

}  // namespace

MechanismKind strided_mechanism() {
  return {"strided",
          "strided:S",
          "the S newest tokens, and the last of each S before them; the state grows",
          {"strided:5"},
          [](MechanismArguments& read, const MechanismPlace& place) {
            return std::make_shared<Strided>(place.use, read.size("", 1));
          }};
}

}  // namespace palimpsest::attention
