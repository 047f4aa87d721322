// SPDX-License-Identifier: Apache-2.0
// What a token writes depends on its position alone: a learned matrix (ABC section 3; ALGORITHMS 1.2). The causal form
// is the same sum, over the tokens so far.
#include <cmath>

#include "palimpsest/attention/slots.h"
#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"
#include "palimpsest/nn/layers.h"

namespace palimpsest::attention {

namespace {

/// weight [H or 1, n, max]
struct Projection : torch::nn::Module {
  Projection(int64_t heads, int64_t slots, int64_t longest, const at::TensorOptions& options) {
    weight = register_parameter("weight", at::empty({heads, slots, longest}, options));
  }
  at::Tensor weight;
};

class Linformer : public SlotMechanism {
 public:
  Linformer(MechanismArguments& read, const MechanismPlace& place) : SlotMechanism(place.use) {
    const int64_t slots = read.size("", 1, 1 << 20);
    longest_ = read.size_or("max", 2048, 1, 1 << 24);
    const int64_t heads = read.flag("share_heads") ? 1 : place.heads;
    const bool over_layers = read.flag("share_layers");
    occupancy_ = read.flag("occupancy");
    const auto make = [&](const std::string& name) {
      const auto fresh = [&] { return std::make_shared<Projection>(heads, slots, longest_, place.options); };
      if (over_layers && place.shared != nullptr) {
        const auto key = fmt::format("linformer_{}_{}_{}_{}", slots, longest_, heads, name);
        return std::dynamic_pointer_cast<Projection>(place.shared->get(key, fresh));
      }
      return register_module(name, fresh());
    };
    projection_ = make("projection");
    if (read.flag("separate_kv")) value_projection_ = make("value_projection");
  }

  int64_t longest() const override { return longest_; }

  void initialize(uint64_t seed, const std::string& name) override {
    for (const auto& [projection, side] : {std::pair(projection_, 0), std::pair(value_projection_, 1)}) {
      if (!projection) continue;
      const at::NoGradGuard no_grad;
      const double bound = 1 / std::sqrt(static_cast<double>(projection->weight.size(1)));
      nn::fill_uniform(projection->weight, bound, seed, fmt::format("{}.{}", name, side));
    }
  }

 protected:
  bool hides_empty() const override { return occupancy_; }

  Control control(const AttentionInput& /*input*/, const at::Tensor& position) const override {
    if (position.numel() > 0) {
      const int64_t last = position.max().item<int64_t>();
      if (last >= longest_) {
        throw usage_error(fmt::format("{} tokens, but linformer was made for {}", last + 1, longest_), "--attention",
                          "give a shorter text, or make it with a larger max= (its matrix has a column a position)");
      }
    }
    const auto columns = [&](const Projection& projection) {
      const at::Tensor by_place = projection.weight.permute({2, 0, 1});  // [max, H or 1, n]
      return by_place.index_select(0, position.reshape({-1}))
          .view({position.size(0), position.size(1), by_place.size(1), by_place.size(2)})
          .transpose(1, 2);  // [B or 1, H or 1, S, n]
    };
    return {columns(*projection_), value_projection_ ? columns(*value_projection_) : at::Tensor(),
            SlotWriting::kAdditive};
  }

 private:
  int64_t longest_ = 0;
  bool occupancy_ = false;
  std::shared_ptr<Projection> projection_, value_projection_;
};

}  // namespace

MechanismKind linformer_mechanism() {
  return {
      "linformer",
      "linformer:n[,max=2048][,share_heads][,share_layers][,separate_kv][,occupancy]",
      "n slots; what a token writes depends on its position, up to max",
      {"linformer:6,max=2048", "linformer:4,max=2048,share_heads,separate_kv", "linformer:5,max=2048,occupancy"},
      [](MechanismArguments& read, const MechanismPlace& place) { return std::make_shared<Linformer>(read, place); }};
}

}  // namespace palimpsest::attention
