// SPDX-License-Identifier: Apache-2.0
// What every kind of memory must hold to (ALGORITHMS section 4: M1 to M3, M8, M9, M13, M17), in float64.
#include <cmath>

#include "palimpsest/checkpoint/model_folder.h"
#include "tests/models/small_bart.h"
#include "tests/support/paths.h"

namespace palimpsest::models {
namespace {

using memory::Memory;
using test::expect_close;
using test::expect_identical;
using test::randn;

class MemoryKinds : public testing::TestWithParam<const char*> {
 protected:
  MemoryKinds() : model_(make_small(small(GetParam()))) {}
  std::shared_ptr<BartModel> model_;
};

TEST_P(MemoryKinds, AResetEqualsAFreshStateBitForBitWhateverStoodThere) {  // M1, M2
  EncodeInput poisoned = input_of(1), fresh = input_of(1);
  poisoned.memory.slots[0].fill_(std::nan(""));
  poisoned.reset = at::ones({kLanes}, at::kBool);
  fresh.memory = model_->fresh_memory(kLanes);
  const auto a = model_->encode(poisoned), b = model_->encode(fresh);
  expect_identical(a.memory.slots, b.memory.slots, "memory");
  expect_identical(a.hidden, b.hidden, "hidden");
  EXPECT_TRUE(a.memory.slots.isfinite().all().item<bool>());
}

TEST_P(MemoryKinds, PermutingSlotsPermutesTheMemoryAndNothingElse) {  // M3
  EncodeInput input = input_of(3);
  const auto before = model_->encode(input);
  const at::Tensor logits = logits_of(*model_, before), order = at::tensor({2, 0, 1}, at::kLong);
  {
    const at::NoGradGuard no_grad;
    model_->memory->memory_bias.copy_(model_->memory->memory_bias.index_select(1, order).clone());
  }
  input.memory.slots = input.memory.slots.index_select(1, order);
  const auto after = model_->encode(input);
  expect_close(after.memory.slots, before.memory.slots.index_select(1, order), 1e-10, "memory");
  expect_close(after.hidden, before.hidden, 1e-10, "hidden");
  expect_close(logits_of(*model_, after), logits, 1e-10, "logits");
}

TEST_P(MemoryKinds, PaddingChangesNothing) {  // M8, M9
  EncodeInput padded = input_of(8), alone;
  padded.mask = at::ones({kLanes, kLength}, at::kBool);
  padded.mask[1].narrow(0, 4, 2).fill_(false);
  padded.ids[1].narrow(0, 4, 2).fill_(1);
  const auto together = model_->encode(padded);
  alone.ids = padded.ids.narrow(0, 1, 1).narrow(1, 0, 4);
  alone.memory = {padded.memory.slots.narrow(0, 1, 1)};
  const auto one = model_->encode(alone);
  expect_close(together.hidden.narrow(0, 1, 1).narrow(1, 0, 4), one.hidden, 1e-10, "hidden");
  expect_close(together.memory.slots.narrow(0, 1, 1), one.memory.slots, 1e-10, "memory");
  padded.mask[0].fill_(false);
  EXPECT_TRUE(model_->encode(padded).memory.slots.isfinite().all().item<bool>());
}

TEST_P(MemoryKinds, GradientsReachWhatWasReadBeforeAndStopAtAReset) {  // M12, M13
  for (auto& parameter : model_->parameters()) parameter.requires_grad_(true);
  for (const bool reset : {false, true}) {
    EncodeInput first = input_of(4), second = input_of(5);
    first.memory.slots.requires_grad_(true);
    second.memory = model_->encode(first).memory;
    second.reset = at::full({kLanes}, reset, at::kBool);
    const at::Tensor value = (model_->encode(second).memory.slots * randn({kLanes, kSlots, kWidth}, 6)).sum();
    const auto grad = torch::autograd::grad({value}, {first.memory.slots}, {}, true, false, true)[0];
    const double size = grad.defined() ? grad.abs().max().item<double>() : 0;
    if (reset) {
      EXPECT_EQ(size, 0);
    } else {
      EXPECT_GT(size, 1e-9);
    }
  }
}

TEST_P(MemoryKinds, TheMemoryIsRead) {
  EncodeInput one = input_of(7), other = one;
  // With rezero nothing is read at first: a is moved away from 0.
  const at::NoGradGuard no_grad;
  for (const auto& reader : model_->memory->readers) {
    if (reader->attn_scale.defined()) reader->attn_scale.fill_(0.5);
  }
  other.memory = {randn({kLanes, kSlots, kWidth}, 99)};
  EXPECT_GT((model_->encode(one).hidden - model_->encode(other).hidden).abs().max().item<double>(), 1e-6);
  one.use_memory = other.use_memory = false;
  expect_identical(model_->encode(one).hidden, model_->encode(other).hidden, "unread");
}

TEST_P(MemoryKinds, AreSavedAndLoaded) {
  const test::TemporaryFolder folder;
  checkpoint::save_model(folder.path(), *model_, {}, nullptr);
  const auto loaded = checkpoint::load_model(folder.path()).bart();
  EXPECT_EQ(loaded->config().memory.text(), GetParam());
  const auto a = model_->encode(input_of(9)), b = loaded->encode(input_of(9));
  // A product's last bits depend on where its tensors lie in memory.
  expect_close(a.memory.slots, b.memory.slots, 1e-12, "memory");
  expect_close(logits_of(*model_, a), logits_of(*loaded, b), 1e-12, "logits");
}

INSTANTIATE_TEST_SUITE_P(All, MemoryKinds,
                         testing::Values("membart:3", "membart:3,shared", "membart:3,l2", "memformer:3",
                                         "memformer:3,rezero", "memformer:3,gate", "memformer:3,rezero,gate,l2"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace_if(name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

TEST(Memformer, WithReZeroStartsAsTheStockModel) {  // M17
  const auto stock = make_small(small("none")), memformer = make_small(small("memformer:3,rezero"));
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> weights;
  for (const auto& entry : stock->named_parameters()) weights[entry.key()] = entry.value();
  for (const auto& entry : memformer->named_parameters()) {
    if (weights.count(entry.key()) != 0) entry.value().copy_(weights.at(entry.key()));
  }
  expect_identical(logits_of(*memformer, memformer->encode(input_of(12))),
                   logits_of(*stock, stock->encode({.ids = some_ids(12)})), "logits");
}

TEST_P(MemoryKinds, CanStartFromTheLayersOwnWeights) {
  model_->initialize_new([](const std::string&) { return true; }, MemoryInit::kCopy, 3);
  const auto expect_copied = [](const torch::nn::Module& copy, const torch::nn::Module& original) {
    const auto copied = copy.named_parameters(), given = original.named_parameters();
    ASSERT_EQ(copied.size(), given.size());
    for (const auto& entry : given) expect_identical(copied[entry.key()], entry.value(), entry.key());
  };
  const memory::MemoryStream& memory = *model_->memory;
  for (size_t i = 0; i < memory.layers.size(); ++i) expect_copied(*memory.layers[i], *model_->encoder_layers[i]);
  for (size_t i = 0; i < memory.readers.size(); ++i)
    expect_copied(*memory.readers[i]->attn, *model_->encoder_layers[i]->self_attn);
  if (memory.memory_writer) expect_copied(*memory.memory_writer, *model_->encoder_layers.back());
}

}  // namespace
}  // namespace palimpsest::models
