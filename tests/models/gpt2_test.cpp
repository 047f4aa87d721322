// SPDX-License-Identifier: Apache-2.0
// GPT-2 as one of the models that read and then write.
#include "palimpsest/models/gpt2.h"

#include "palimpsest/core/error.h"
#include "palimpsest/generate/greedy.h"
#include "tests/models/small_bart.h"

namespace palimpsest::models {
namespace {

std::shared_ptr<Gpt2Model> make_gpt2() {
  Gpt2Config config;
  config.vocab_size = 20;
  config.n_positions = 16;
  config.n_embd = 8;
  config.n_layer = 2;
  config.n_head = 2;
  config.bos_token_id = 0;
  config.eos_token_id = 2;
  auto model = std::make_shared<Gpt2Model>(config, at::kDouble);
  model->initialize({.std = 0.4, .seed = 3});
  model->eval();
  return model;
}

TEST(Gpt2, WritesAfterWhatItReadAsInOneRow) {
  const auto model = make_gpt2();
  const at::Tensor read = some_ids(1, 3, 6), write = some_ids(2, 3, 4);
  // Rows of 6, 4 and 1 tokens, padded on the right as batches are.
  at::Tensor mask = at::ones({3, 6}, at::kBool);
  mask[1].slice(0, 4).fill_(false);
  mask[2].slice(0, 1).fill_(false);
  const EncoderOutput encoded = model->encode({.ids = read, .mask = mask});
  EXPECT_EQ(encoded.rows(), 3);
  const at::Tensor rows = model->decode(write, {}, encoded);
  for (int64_t row = 0; row < 3; ++row) {
    const int64_t length = mask[row].sum().item<int64_t>();
    const at::Tensor alone =
        model->forward(at::cat({read[row].slice(0, 0, length), write[row]}).unsqueeze(0), {}).slice(1, length)[0];
    test::expect_close(rows[row], alone, 1e-10, fmt::format("row {}", row));
  }
}

TEST(Gpt2, GreedyFollowsTheLikeliestTokenOfItsRows) {
  const auto model = make_gpt2();
  at::Tensor mask = at::ones({2, 5}, at::kBool);
  mask[1].slice(0, 3).fill_(false);
  const EncoderOutput encoded = model->encode({.ids = some_ids(4, 2, 5), .mask = mask});
  const auto generated =
      generate::greedy(*model, encoded, {.start_id = 2, .max_new_tokens = 4, .min_new_tokens = 4, .eos_id = 2});
  for (size_t row = 0; row < 2; ++row) {
    const auto& ids = generated.sequences[row];
    ASSERT_EQ(ids.size(), 4u);
    at::Tensor written = at::full({2, 5}, 2, at::kLong);
    for (size_t i = 0; i < 4; ++i) written[static_cast<int64_t>(row)][static_cast<int64_t>(i) + 1] = ids[i];
    at::Tensor logits = model->logits(model->decode(written, {}, encoded))[static_cast<int64_t>(row)];
    logits.select(1, 2).fill_(-1e9);  // eos was not allowed yet
    EXPECT_TRUE(logits.argmax(1).slice(0, 0, 4).equal(written[static_cast<int64_t>(row)].slice(0, 1))) << row;
  }
}

}  // namespace
}  // namespace palimpsest::models
