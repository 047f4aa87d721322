// SPDX-License-Identifier: Apache-2.0
// Back-propagation through time: replay equals plain, and what each keeps in memory (M11, M12, FR-68).
#include "palimpsest/train/rollout.h"

#include <fmt/format.h>

#include <cstdio>
#include <map>

#include "palimpsest/core/random.h"
#include "palimpsest/models/bart.h"
#include "palimpsest/nn/byte_counter.h"
#include "palimpsest/nn/loss.h"
#include "tests/support/tensors.h"

namespace palimpsest::train {
namespace {

using test::expect_close;

struct Sizes {
  int64_t lanes = 3, length = 7, vocab = 31, width = 16, slots = 4, layers = 2;
  double dropout = 0.2;
};

/// A model and a few segments of lanes whose documents begin anew here and there.
class Recurrent {
 public:
  Recurrent(at::ScalarType type, const Sizes& sizes) : sizes_(sizes) {
    models::BartConfig config;
    config.vocab_size = sizes.vocab;
    config.d_model = sizes.width;
    config.encoder_layers = config.decoder_layers = sizes.layers;
    config.encoder_attention_heads = config.decoder_attention_heads = 2;
    config.encoder_ffn_dim = config.decoder_ffn_dim = 2 * sizes.width;
    config.max_position_embeddings = sizes.length;
    config.dropout = sizes.dropout;
    config.attention_dropout = config.activation_dropout = sizes.dropout / 2;
    config.memory = {.kind = "membart", .slots = sizes.slots};
    model = std::make_shared<models::BartModel>(config);
    model->initialize({.style = models::Init::kScaled, .slot_std = 1, .seed = 3});
    model->to(type);
    model->train();
    start.slots = test::randn({sizes.lanes, sizes.slots, sizes.width}, 9, type);
  }

  at::Tensor ids(int64_t t) const {
    Random random(random_key(5, t));
    at::Tensor ids = at::empty({sizes_.lanes, sizes_.length}, at::kLong);
    for (int64_t i = 0; i < ids.numel(); ++i) ids.data_ptr<int64_t>()[i] = random.below(sizes_.vocab);
    return ids;
  }
  models::EncoderOutput encode(int64_t t, const memory::Memory& memory) const {
    at::manual_seed(random_key(11, t));
    at::Tensor reset = at::zeros({sizes_.lanes}, at::kBool);
    if (t % 3 == 2) reset[t % sizes_.lanes] = true;
    return model->encode({.ids = ids(t), .memory = memory, .reset = reset});
  }
  Rollout rollout(int64_t steps, bool replay) const {
    Rollout rollout{.steps = steps, .start = start, .replay = replay};
    rollout.write = [this](int64_t t, const memory::Memory& memory) { return encode(t, memory).memory; };
    rollout.step = [this](int64_t t, const memory::Memory& memory) {
      const auto encoded = encode(t, memory);
      StepOutput output{.loss = {}, .memory = encoded.memory};
      if (without_target.contains(t)) return output;
      const at::Tensor labels = ids(t + 1);
      output.loss =
          nn::target_loss(model->logits(model->decode(nn::shift_right(labels, 2, 1), {}, encoded)), labels).nll *
          (0.01 * static_cast<double>(t + 1));
      return output;
    };
    return rollout;
  }
  /// The gradients of one rollout, by name, with "memory" and the memory carried on.
  std::map<std::string, at::Tensor> gradients(const Rollout& rollout) const {
    for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    const RolloutResult result = backpropagate(rollout);
    std::map<std::string, at::Tensor> all = {{"memory", result.memory_gradient}, {"carried", result.carried.slots}};
    for (const auto& entry : model->named_parameters()) all[entry.key()] = entry.value().grad();
    return all;
  }

  std::shared_ptr<models::BartModel> model;
  memory::Memory start;
  std::map<int64_t, bool> without_target;

 private:
  Sizes sizes_;
};

void expect_same(const std::map<std::string, at::Tensor>& actual, const std::map<std::string, at::Tensor>& expected,
                 double tolerance, const std::string& what) {
  for (const auto& [name, tensor] : expected) {
    ASSERT_EQ(actual.at(name).defined(), tensor.defined()) << what << ", " << name;
    if (tensor.defined()) expect_close(actual.at(name), tensor, tolerance, what + ", " + name);
  }
}

TEST(Rollout, M11ReplayEqualsPlainBackPropagationWithDropout) {  // FR-68
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-10}, {at::kFloat, 1e-5}}) {
    const Recurrent recurrent(type, {});
    for (int64_t steps = 1; steps <= 8; ++steps) {
      const auto plain = recurrent.gradients(recurrent.rollout(steps, false));
      const auto replayed = recurrent.gradients(recurrent.rollout(steps, true));
      EXPECT_GT(plain.at("memory").abs().max().item<double>(), 1e-6);
      expect_same(replayed, plain, tolerance, fmt::format("{} steps", steps));
    }
  }
}

TEST(Rollout, StepsWithoutTargetsStillPassGradientsOn) {
  Recurrent recurrent(at::kDouble, {});
  for (const auto& none : {std::map<int64_t, bool>{{0, true}},
                           {{3, true}},
                           {{1, true}, {2, true}},
                           {{0, true}, {1, true}, {2, true}, {3, true}}}) {
    recurrent.without_target = none;
    expect_same(recurrent.gradients(recurrent.rollout(4, true)), recurrent.gradients(recurrent.rollout(4, false)),
                1e-10, fmt::format("{} without", none.size()));
  }
}

TEST(Rollout, CarriesTheMemoryOfAnyStep) {
  const Recurrent recurrent(at::kDouble, {});
  for (int64_t carry = 1; carry <= 4; ++carry) {
    Rollout plain = recurrent.rollout(4, false), replay = recurrent.rollout(4, true);
    plain.carry = replay.carry = carry;
    const at::Tensor expected = recurrent.gradients(recurrent.rollout(carry, false)).at("carried");
    expect_close(recurrent.gradients(plain).at("carried"), expected, 1e-12);
    expect_close(recurrent.gradients(replay).at("carried"), expected, 1e-12);
  }
}

TEST(Rollout, SaysWhenTheLastBackwardPassBegins) {
  const Recurrent recurrent(at::kDouble, {});
  for (const bool replay : {false, true}) {
    Rollout rollout = recurrent.rollout(3, replay);
    int calls = 0;
    rollout.before_last_backward = [&] { ++calls; };
    recurrent.gradients(rollout);
    EXPECT_EQ(calls, 1);
  }
}

TEST(Rollout, ReplayKeepsTheActivationsOfOneStep) {
  const Sizes sizes{.lanes = 4, .length = 48, .vocab = 300, .width = 64, .slots = 16, .layers = 3, .dropout = 0};
  const Recurrent recurrent(at::kFloat, sizes);
  const auto peak = [&](int64_t steps, bool replay) {
    recurrent.gradients(recurrent.rollout(1, false));  // gradients exist in both
    const nn::ByteCounter counter;
    backpropagate(recurrent.rollout(steps, replay));
    return static_cast<double>(counter.peak()) / (1 << 20);
  };
  std::printf("peak MiB of activations: steps, plain, replayed\n");
  double plain = 0, replayed = 0, one = 0;
  for (const int64_t steps : {1, 2, 4, 8}) {
    plain = peak(steps, false);
    replayed = peak(steps, true);
    if (steps == 1) one = plain;
    std::printf("  %lld %8.2f %8.2f\n", static_cast<long long>(steps), plain, replayed);
  }
  EXPECT_GT(plain, 6 * one);
  EXPECT_LT(replayed, 1.5 * one);
}

}  // namespace
}  // namespace palimpsest::train
