// SPDX-License-Identifier: Apache-2.0
// The same numbers on a GPU as on the CPU; skipped where there is none.
#include <ATen/Context.h>

#include "palimpsest/generate/greedy.h"
#include "palimpsest/models/bart.h"
#include "palimpsest/nn/loss.h"
#include "tests/support/tensors.h"

namespace palimpsest {
namespace {

TEST(Device, EncoderDecoderAndGradientsAgreeWithTheCpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  models::BartConfig config;
  config.vocab_size = 30;
  config.d_model = 16;
  config.encoder_layers = config.decoder_layers = 2;
  config.encoder_attention_heads = config.decoder_attention_heads = 2;
  config.encoder_ffn_dim = config.decoder_ffn_dim = 24;
  config.max_position_embeddings = 24;
  config.memory = {.kind = "membart", .slots = 3};
  std::vector<at::Tensor> memories, gradients;
  std::vector<std::vector<std::vector<int64_t>>> written;
  for (const char* name : {"cpu", "cuda"}) {
    models::BartModel model(config, at::kDouble);
    model.initialize({.std = 0.3, .slot_std = 1, .seed = 1});
    model.to(at::Device(name));
    model.eval();
    const at::Tensor ids =
        (test::randn({2, 6}, 3).abs() * 1000).to(at::kLong).remainder(25).add(3).to(at::Device(name));
    at::Tensor mask = at::ones_like(ids, at::kBool);
    mask[1].slice(0, 4).fill_(false);
    const auto encoded = model.encode({.ids = ids, .mask = mask});
    const auto loss = nn::target_loss(model.logits(model.decode(ids, {}, encoded)), ids);
    loss.nll.backward();
    memories.push_back(encoded.memory.slots.detach().cpu());
    gradients.push_back(model.shared->weight.grad().cpu());
    written.push_back(generate::greedy(model, encoded, {.max_new_tokens = 8}).sequences);
  }
  test::expect_close(memories[1], memories[0], 1e-9, "memory");
  test::expect_close(gradients[1], gradients[0], 1e-8, "gradient");
  EXPECT_EQ(written[1], written[0]);
}

}  // namespace
}  // namespace palimpsest
