// SPDX-License-Identifier: Apache-2.0
// ABC_RD: each token goes into one slot, drawn at random (ABC section 3; ALGORITHMS 1.2). Anew at each training step;
// else a hash of its place, so that streaming and the whole sequence agree.
#include "palimpsest/core/random.h"

#include <limits>

#include "palimpsest/attention/slots.h"

namespace palimpsest::attention {

namespace {

class RandomSlots : public SlotMechanism {
 public:
  RandomSlots(Use use, int64_t slots, int64_t heads, bool mean, uint64_t key)
      : SlotMechanism(use), slots_(slots), heads_(heads), mean_(mean), key_(key) {}

 protected:
  Control control(const AttentionInput& in, const at::Tensor& position) const override {
    at::Tensor slot;  // [B or 1, H, S]
    if (in.training) {
      slot = at::randint(slots_, {in.key.size(0), heads_, in.key.size(2)}, position.options());
    } else {
      const at::Tensor at_cpu = position.to(at::kCPU).contiguous();
      slot = at::empty({position.size(0), heads_, position.size(1)}, at::kLong);
      const auto from = at_cpu.accessor<int64_t, 2>();
      auto to = slot.accessor<int64_t, 3>();
      for (int64_t row = 0; row < position.size(0); ++row) {
        for (int64_t head = 0; head < heads_; ++head) {
          for (int64_t i = 0; i < position.size(1); ++i)
            to[row][head][i] = Random(random_key(key_, head, from[row][i])).below(slots_);
        }
      }
      slot = slot.to(position.device());
    }
    const at::Tensor chosen = slot.unsqueeze(-1).eq(at::arange(slots_, slot.options()));  // [B or 1, H, S, n]
    const auto options = in.key.options().requires_grad(false);
    if (!mean_) return {chosen.to(options.dtype()), {}, SlotWriting::kAdditive};
    const at::Tensor none = at::full(chosen.sizes(), -std::numeric_limits<double>::infinity(), options);
    return {none.masked_fill(chosen, 0), {}, SlotWriting::kRunning};
  }

 private:
  int64_t slots_, heads_;
  bool mean_;
  uint64_t key_;
};

}  // namespace

MechanismKind random_mechanism() {
  return {"random",
          "random:n[,mean][,seed=N]",
          "n slots, each token added to one at random (ABC_RD); mean: divided by their number",
          {"random:8", "random:5,mean"},
          [](MechanismArguments& read, const MechanismPlace& place) {
            const int64_t slots = read.size("", 1, 1 << 20);
            const bool mean = read.flag("mean");
            const auto seed = static_cast<uint64_t>(read.size_or("seed", 0, 0));
            return std::make_shared<RandomSlots>(place.use, slots, place.heads, mean, random_key(seed, place.layer));
          }};
}

}  // namespace palimpsest::attention
