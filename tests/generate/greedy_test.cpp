// SPDX-License-Identifier: Apache-2.0
// Greedy decoding: equal to decoding without caches, to single rows, and to the reference's goldens.
#include "palimpsest/generate/greedy.h"

#include <limits>

#include "palimpsest/core/error.h"
#include "tests/support/tensors.h"

namespace palimpsest::generate {
namespace {

std::shared_ptr<models::BartModel> make_model() {
  models::BartConfig config;
  config.vocab_size = 30;
  config.d_model = 16;
  config.encoder_layers = config.decoder_layers = 2;
  config.encoder_attention_heads = config.decoder_attention_heads = 2;
  config.encoder_ffn_dim = config.decoder_ffn_dim = 24;
  config.max_position_embeddings = 24;
  config.memory = {.kind = "membart", .slots = 3};
  auto model = std::make_shared<models::BartModel>(config);
  model->initialize({.std = 0.5, .slot_std = 1, .seed = 9});
  model->eval();
  return model;
}

models::EncodeInput some_input(int64_t rows) {
  models::EncodeInput input;
  input.ids = (test::randn({rows, 7}, 4).abs() * 1000).to(at::kLong).remainder(25).add(3);
  return input;
}

TEST(Greedy, EqualsDecodingTheWholePrefixAtEveryStep) {
  const auto model = make_model();
  const at::NoGradGuard no_grad;
  const auto encoded = model->encode(some_input(1));
  const auto cached = greedy(*model, encoded, {.max_new_tokens = 15});
  std::vector<int64_t> prefix = {2};
  double score = 0;
  for (int step = 0; step < 15; ++step) {
    const at::Tensor hidden = model->decode(at::tensor(prefix, at::kLong).unsqueeze(0), {}, encoded);
    const at::Tensor scores = at::log_softmax(model->logits(hidden.select(1, -1)), -1)[0];
    prefix.push_back(scores.argmax().item<int64_t>());
    score += scores.max().item<double>();
    if (prefix.back() == 2) break;
  }
  EXPECT_EQ(cached.sequences[0], std::vector<int64_t>(prefix.begin() + 1, prefix.end()));
  EXPECT_NEAR(cached.scores[0], score, 1e-4);
}

TEST(Greedy, RowsDoNotInfluenceEachOther) {  // FR-84
  const auto model = make_model();
  const at::NoGradGuard no_grad;
  const models::EncodeInput all = some_input(6);
  const auto together = greedy(*model, model->encode(all), {.max_new_tokens = 12});
  for (int64_t row = 0; row < 6; ++row) {
    models::EncodeInput one;
    one.ids = all.ids.narrow(0, row, 1);
    const auto alone = greedy(*model, model->encode(one), {.max_new_tokens = 12});
    EXPECT_EQ(alone.sequences[0], together.sequences[static_cast<size_t>(row)]);
    EXPECT_NEAR(alone.scores[0], together.scores[static_cast<size_t>(row)], 1e-4);
  }
}

TEST(Greedy, KeepsToItsLimits) {  // FR-78
  const auto model = make_model();
  const auto encoded = model->encode(some_input(2));
  const auto nothing = greedy(*model, encoded, {.max_new_tokens = 0});
  EXPECT_TRUE(nothing.sequences[0].empty());
  EXPECT_EQ(nothing.scores[0], 0.0);
  const auto some = greedy(*model, encoded, {.max_new_tokens = 9, .min_new_tokens = 9});
  for (const auto& row : some.sequences) {
    EXPECT_EQ(row.size(), 9u);
    EXPECT_EQ(std::count(row.begin(), row.end(), 2), 0);
  }
  EXPECT_THROW(greedy(*model, encoded, {.max_new_tokens = 25}), Error);
  EXPECT_THROW(greedy(*model, encoded, {.max_new_tokens = -1}), Error);
  EXPECT_THROW(greedy(*model, encoded, {.max_new_tokens = 3, .min_new_tokens = 4}), Error);
}

TEST(Greedy, NeverChoosesWhatIsForbidden) {
  const auto model = make_model();
  const auto encoded = model->encode(some_input(1));
  const auto free = greedy(*model, encoded, {.max_new_tokens = 5, .min_new_tokens = 5});
  const auto bound = greedy(*model, encoded, {.max_new_tokens = 5, .min_new_tokens = 5, .never = free.sequences[0]});
  for (const int64_t id : free.sequences[0])
    EXPECT_EQ(std::count(bound.sequences[0].begin(), bound.sequences[0].end(), id), 0);
}

TEST(Greedy, KeepsNoGraph) {  // FR-118
  const auto model = make_model();
  for (auto& parameter : model->parameters()) parameter.requires_grad_(true);
  models::EncoderOutput encoded;
  {
    const at::NoGradGuard no_grad;
    encoded = model->encode(some_input(1));
  }
  EXPECT_FALSE(encoded.hidden.requires_grad());
  greedy(*model, encoded, {.max_new_tokens = 3});
  EXPECT_TRUE(at::GradMode::is_enabled());
}

}  // namespace
}  // namespace palimpsest::generate
