// SPDX-License-Identifier: Apache-2.0
// Slots are the means of clusters of keys, and of the values of the same tokens (ABC section 3; ALGORITHMS 1.2):
// Lloyd's algorithm for each head, from n keys at even distances. Assignments are constants of the gradient.
#include <limits>

#include "palimpsest/attention/slots.h"

namespace palimpsest::attention {

namespace {

class Cluster : public SlotMechanism {
 public:
  Cluster(Use use, int64_t slots, int64_t rounds) : SlotMechanism(use), slots_(slots), rounds_(rounds) {}
  std::string refusal() const override { return causal() ? "clusters are made of the whole text" : ""; }
  bool content_decides() const override { return true; }

 protected:
  Control control(const AttentionInput& in, const at::Tensor& /*position*/) const override {
    const at::NoGradGuard no_grad;
    at::Tensor key = in.key.detach();
    const int64_t batch = key.size(0), length = key.size(2);
    at::Tensor real = in.key_mask;
    if (real.defined()) key = key.masked_fill(real.logical_not().view({batch, 1, length, 1}), 0);
    const at::Tensor own = assign(key, real);  // [B, H, S]
    const at::Tensor chosen = own.unsqueeze(-1).eq(at::arange(slots_, own.options()));
    return {at::full(chosen.sizes(), -std::numeric_limits<double>::infinity(), key.options()).masked_fill(chosen, 0),
            {},
            SlotWriting::kRunning};
  }

 private:
  /// The cluster of each key, [B, H, S].
  at::Tensor assign(const at::Tensor& key, const at::Tensor& real) const {
    const int64_t batch = key.size(0), heads = key.size(1), length = key.size(2);
    const auto whole = key.options().dtype(at::kLong);
    if (length == 0) return at::zeros({batch, heads, 0}, whole);
    // Place i of n of the real tokens, in their order.
    const at::Tensor count = real.defined() ? real.sum(1, true) : at::full({batch, 1}, length, whole);  // [B, 1]
    const at::Tensor order = real.defined() ? std::get<1>(real.to(at::kByte).sort(true, 1, true))
                                            : at::arange(length, whole).unsqueeze(0).expand({batch, length});
    const at::Tensor place =
        at::div(at::arange(slots_, whole).unsqueeze(0) * count, slots_, "floor").clamp(0, length - 1);
    const at::Tensor first = order.gather(1, place).view({batch, 1, slots_, 1});
    at::Tensor centre = key.gather(2, first.expand({batch, heads, slots_, key.size(3)}));  // [B, H, n, D]
    at::Tensor own;
    for (int64_t round = 0; round <= rounds_; ++round) {
      // |k - c|^2 without |k|^2, which all clusters share; the lowest index wins a tie.
      const at::Tensor far = centre.square().sum(-1).unsqueeze(2) - 2 * at::matmul(key, centre.transpose(2, 3));
      own = far.argmin(-1);
      if (round == rounds_) break;
      at::Tensor member = own.unsqueeze(-1).eq(at::arange(slots_, whole)).to(key.scalar_type());  // [B, H, S, n]
      if (real.defined()) member = member * real.to(key.scalar_type()).view({batch, 1, length, 1});
      const at::Tensor size = member.sum(2).unsqueeze(-1);  // [B, H, n, 1]
      centre = at::where(size.gt(0), at::matmul(member.transpose(2, 3), key) / size.clamp_min(1), centre);
    }
    return own;
  }

  int64_t slots_, rounds_;
};

}  // namespace

MechanismKind cluster_mechanism() {
  return {"cluster",
          "cluster:n[,rounds=10]",
          "n slots, each the mean of a cluster of keys and of their values",
          {"cluster:6"},
          [](MechanismArguments& read, const MechanismPlace& place) {
            const int64_t slots = read.size("", 1, 1 << 20);
            return std::make_shared<Cluster>(place.use, slots, read.size_or("rounds", 10, 0, 1000));
          }};
}

}  // namespace palimpsest::attention
