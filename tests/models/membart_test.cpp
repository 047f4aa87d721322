// SPDX-License-Identifier: Apache-2.0
// MemBART's invariants M1 to M9, M12 to M15 (ALGORITHMS section 4), in float64.
#include <cmath>

#include "palimpsest/core/error.h"
#include "palimpsest/nn/loss.h"
#include "tests/models/small_bart.h"

namespace palimpsest::models {
namespace {

using memory::Memory;
using test::expect_close;
using test::expect_identical;
using test::randn;

at::Tensor resets(bool value) { return at::full({kLanes}, value, at::kBool); }

TEST(MemBart, M1ResetEqualsAFreshStateBitForBit) {
  const auto model = make_small(small());
  EncodeInput poisoned = input_of(1), fresh = input_of(1);
  poisoned.reset = resets(true);
  fresh.memory = model->fresh_memory(kLanes);
  for (const bool reset : {false, true}) {
    fresh.reset = resets(reset);
    const auto a = model->encode(poisoned), b = model->encode(fresh);
    expect_identical(a.memory.slots, b.memory.slots, "memory");
    expect_identical(a.hidden, b.hidden, "hidden");
    expect_identical(logits_of(*model, a), logits_of(*model, b), "logits");
  }
}

TEST(MemBart, M2AResetForgetsNaNAndLeavesOtherLanesAlone) {
  const auto model = make_small(small());
  EncodeInput input = input_of(2);
  const auto clean = model->encode(input);
  input.memory.slots = input.memory.slots.clone();
  input.memory.slots[0].fill_(std::nan(""));
  input.reset = at::tensor({1, 0}, at::kLong).to(at::kBool);
  const auto output = model->encode(input);
  EXPECT_TRUE(output.memory.slots.isfinite().all().item<bool>());
  expect_identical(output.memory.slots[1], clean.memory.slots[1], "the other lane");
}

TEST(MemBart, M3PermutingSlotsPermutesTheMemoryAndNothingElse) {
  const auto model = make_small(small());
  EncodeInput input = input_of(3);
  const auto before = model->encode(input);
  const at::Tensor logits = logits_of(*model, before);
  const at::Tensor order = at::tensor({2, 0, 1}, at::kLong);
  {
    const at::NoGradGuard no_grad;
    model->memory->memory_bias.copy_(model->memory->memory_bias.index_select(1, order).clone());
  }
  input.memory.slots = input.memory.slots.index_select(1, order);
  const auto after = model->encode(input);
  expect_close(after.memory.slots, before.memory.slots.index_select(1, order), 1e-10, "memory");
  expect_close(after.hidden, before.hidden, 1e-10, "hidden");
  expect_close(logits_of(*model, after), logits, 1e-10, "logits");
}

/// Largest |d slot i of M_{t+1} / d slot j of M_t| over i != j.
double cross_slot_derivative(const BartModel& model, bool visible) {
  EncodeInput input = input_of(4);
  input.memory.slots.requires_grad_(true);
  input.use_memory = visible;
  const auto output = model.encode(input);
  double largest = 0;
  for (int64_t i = 0; i < kSlots; ++i) {
    // Weighted: the plain sum of a normalised row is a constant.
    const at::Tensor value = (output.memory.slots.select(1, i) * randn({kLanes, 8}, 31)).sum();
    const auto grad = torch::autograd::grad({value}, {input.memory.slots}, {}, true)[0];
    for (int64_t j = 0; j < kSlots; ++j) {
      if (j != i) largest = std::max(largest, grad.select(1, j).abs().max().item<double>());
    }
  }
  return largest;
}

TEST(MemBart, M4SlotsSeeOtherSlotsOnlyThroughTokensOfLowerLayers) {
  BartConfig one_layer = small();
  one_layer.encoder_layers = 1;
  EXPECT_EQ(cross_slot_derivative(*make_small(one_layer), true), 0.0);
  EXPECT_GT(cross_slot_derivative(*make_small(small()), true), 1e-6);
  EXPECT_EQ(cross_slot_derivative(*make_small(small()), false), 0.0);
}

TEST(MemBart, M5TheGateChoosesBetweenOldAndNew) {
  const auto model = make_small(small());
  const EncodeInput input = input_of(5);
  at::Tensor entered, last;
  EncodeInput observed = input;
  observed.observe = [&](const std::string& name, const at::Tensor& value) {
    if (name == "slots.0") entered = value;
    if (name == "slots.2") last = value;
  };
  const at::Tensor between = model->encode(observed).memory.slots;
  EXPECT_TRUE(between.ge(at::minimum(entered, last) - 1e-12).all().item<bool>());
  EXPECT_TRUE(between.le(at::maximum(entered, last) + 1e-12).all().item<bool>());
  const at::NoGradGuard no_grad;
  model->memory->memory_gate_net->dense2->bias.fill_(-1e4);
  expect_close(model->encode(input).memory.slots, entered, 1e-12, "closed");
  const auto expected = model->memory->memory_layer_norm->forward(input.memory.slots + model->memory->memory_bias);
  expect_close(entered, expected, 1e-12, "LN(M + v_b)");
  model->memory->memory_gate_net->dense2->bias.fill_(1e4);
  expect_close(model->encode(input).memory.slots, last, 1e-12, "open");
}

TEST(MemBart, M6WithTheMemoryHiddenTheTokensAreStockBarts) {
  const auto with = make_small(small()), without = make_small(small("membart:0"));
  EncodeInput input = input_of(6);
  input.use_memory = false;
  EncodeInput plain;
  plain.ids = input.ids;
  const auto a = with->encode(input), b = without->encode(plain);
  expect_close(a.hidden, b.hidden, 1e-12, "hidden");
  expect_close(logits_of(*with, a), logits_of(*without, b), 1e-12, "logits");
  EXPECT_FALSE(b.memory.slots.defined());
}

TEST(MemBart, M7SlotRowsEqualTheMaskedSquareForm) {
  // One softmax over all slots and tokens, other slots masked out: the form of the authors' code.
  const auto model = make_small(small());
  const auto& layer = *model->encoder_layers[0]->self_attn;
  const auto& own = *model->memory->layers[0]->self_attn;
  const at::Tensor tokens = randn({kLanes, kLength, 8}, 7), slots = randn({kLanes, kSlots, 8}, 8);
  const at::Tensor keys = at::cat({own.key(slots), layer.key(tokens)}, 2),
                   values = at::cat({own.value(slots), layer.value(tokens)}, 2);
  const at::Tensor hidden = at::cat({at::eye(kSlots, at::kDouble).eq(0), at::zeros({kSlots, kLength}, at::kBool)}, 1);
  const at::Tensor logits = (at::matmul(own.query(slots), keys.transpose(2, 3)) * 0.5).masked_fill(hidden, -INFINITY);
  const at::Tensor square = at::matmul(at::softmax(logits, -1), values);
  const at::Tensor merged =
      attention::attend({attention::dense_part(own.query(slots), layer.key(tokens), layer.value(tokens)),
                         attention::self_part(own.query(slots), own.key(slots), own.value(slots))});
  expect_close(merged, square, 1e-12, "slot rows");
}

TEST(MemBart, M8PaddingChangesNothing) {
  const auto model = make_small(small());
  EncodeInput whole = input_of(8), padded = input_of(8);
  whole.ids = whole.ids.narrow(1, 0, 4);
  padded.ids = padded.ids.clone();
  padded.mask = at::ones({kLanes, kLength}, at::kBool);
  padded.mask.narrow(1, 4, 2).fill_(false);
  const auto a = model->encode(whole);
  for (const int64_t junk : {1, 7}) {
    padded.ids.narrow(1, 4, 2).fill_(junk);
    const auto b = model->encode(padded);
    expect_close(b.hidden.narrow(1, 0, 4), a.hidden, 1e-12, "hidden");
    expect_close(b.memory.slots, a.memory.slots, 1e-12, "memory");
    expect_close(logits_of(*model, b), logits_of(*model, a), 1e-12, "logits");
  }
}

TEST(MemBart, M9ALaneOfPaddingAloneKeepsAFiniteMemory) {
  const auto model = make_small(small());
  EncodeInput input = input_of(9);
  input.mask = at::ones({kLanes, kLength}, at::kBool);
  input.mask[1].fill_(false);
  const auto output = model->encode(input);
  EXPECT_TRUE(output.memory.slots.isfinite().all().item<bool>());
  EXPECT_TRUE(output.hidden.isfinite().all().item<bool>());
  // Slots that see nothing but themselves do not depend on what lies in the padding.
  input.ids = input.ids.clone();
  input.ids[1].fill_(5);
  expect_identical(model->encode(input).memory.slots[1], output.memory.slots[1], "memory");
}

/// Largest |d logits of segment 2 / d token rows of segment 1|.
double influence_of_the_segment_before(bool detach, bool reset) {
  const auto model = make_small(small());
  model->shared->weight.requires_grad_(true);
  at::Tensor first_tokens;
  EncodeInput first = input_of(10);
  first.observe = [&](const std::string& name, const at::Tensor& value) {
    if (name == "hidden_states.0") first_tokens = value;
  };
  const at::Tensor carried = model->encode(first).memory.slots;
  EncodeInput second;
  second.ids = some_ids(12);
  second.memory = {detach ? carried.detach() : carried};
  second.reset = resets(reset);
  const auto grads = torch::autograd::grad({logits_of(*model, model->encode(second)).pow(2).sum()}, {first_tokens}, {},
                                           true, false, true);
  return grads[0].defined() ? grads[0].abs().max().item<double>() : 0.0;
}

TEST(MemBart, M12GradientsReachTheSegmentBeforeOnlyWithinTheHorizon) {
  EXPECT_EQ(influence_of_the_segment_before(true, false), 0.0);
  EXPECT_GT(influence_of_the_segment_before(false, false), 1e-8);
}

TEST(MemBart, M13GradientsDoNotCrossAReset) { EXPECT_EQ(influence_of_the_segment_before(false, true), 0.0); }

TEST(MemBart, M14CarryingValuesEqualsOneLongRollout) {
  const auto model = make_small(small());
  Memory long_run = model->fresh_memory(kLanes), carried = model->fresh_memory(kLanes);
  for (uint64_t t = 0; t < 5; ++t) {
    EncodeInput input;
    input.ids = some_ids(20 + t);
    input.memory = long_run;
    long_run = model->encode(input).memory;
    input.memory = carried;
    carried = {model->encode(input).memory.slots.detach().clone()};
    expect_identical(carried.slots, long_run.slots, fmt::format("step {}", t));
  }
}

TEST(MemBart, M15SharedWeightsSaveExactlyTheSlotLayers) {
  const auto own = make_small(small()), shared = make_small(small("membart:3,shared"));
  int64_t slot_layers = 0;
  for (const auto& layer : own->memory->layers) slot_layers += nn::parameter_count(*layer);
  EXPECT_EQ(nn::parameter_count(*own) - nn::parameter_count(*shared), slot_layers);
  EXPECT_TRUE(shared->memory->memory_bias.defined());
  EXPECT_TRUE(shared->encode(input_of(15)).memory.slots.isfinite().all().item<bool>());
}

TEST(MemBart, OwnSlotWeightsEqualToTheLayersGiveTheSharedModel) {
  const auto own = make_small(small()), shared = make_small(small("membart:3,shared"));
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> by_name;
  for (const auto& entry : own->named_parameters()) by_name[entry.key()] = entry.value();
  for (const auto& entry : shared->named_parameters()) entry.value().copy_(by_name.at(entry.key()));
  for (int64_t i = 0; i < 2; ++i) {
    for (const auto& entry : own->memory->layers[static_cast<size_t>(i)]->named_parameters()) {
      entry.value().copy_(by_name.at(fmt::format("encoder_layers_{}.{}", i, entry.key())));
    }
  }
  const auto a = own->encode(input_of(16)), b = shared->encode(input_of(16));
  expect_identical(a.memory.slots, b.memory.slots, "memory");
  expect_identical(a.hidden, b.hidden, "hidden");
}

TEST(MemBart, ADecoderThatLeavesTheMemoryOutSeesTheTokensAlone) {
  BartConfig config = small();
  config.decoder_sees_memory = false;
  const auto model = make_small(config);
  const auto output = model->encode(input_of(17));
  EXPECT_EQ(output.context.size(1), kLength);
  expect_identical(output.context, output.hidden, "context");
}

TEST(Bart, TheStructuredStartTiesWhatItSays) {
  BartModel model(small(), at::kDouble);
  model.initialize({.style = BartModel::Init::kStructured, .segment = 6, .seed = 4});
  const auto expect_tied = [](const attention::MultiHead& heads) {
    expect_identical(heads.k_proj->weight, heads.q_proj->weight, "query and key");
    expect_identical(heads.out_proj->weight, heads.v_proj->weight.t(), "value and output");
    expect_close(at::matmul(heads.q_proj->weight, heads.q_proj->weight.t()), at::eye(8, at::kDouble), 1e-12,
                 "orthogonal");
  };
  for (size_t i = 0; i < 2; ++i) {
    expect_tied(*model.encoder_layers[i]->self_attn);
    expect_tied(*model.decoder_layers[i]->self_attn);
    expect_tied(*model.decoder_layers[i]->encoder_attn);
    expect_tied(*model.memory->layers[i]->self_attn);
    expect_identical(model.memory->layers[i]->self_attn->q_proj->weight,
                     model.encoder_layers[i]->self_attn->q_proj->weight, "slots");
  }
  const at::Tensor positions = model.encoder_embeddings->embed_positions->weight.slice(0, 2);
  expect_identical(model.decoder_embeddings->embed_positions->weight.slice(0, 2), positions, "positions");
  const at::Tensor place = positions.slice(0, 2, 4).sum(0);  // slot 1 of 3 for 6 tokens
  expect_close(model.memory->memory_bias[0][1], place / place.std(0, true), 1e-12, "v_b");

  // Smaller embeddings are the same ones: the encoder starts as it did, behind its norm.
  BartModel quiet(small(), at::kDouble);
  quiet.initialize({.style = BartModel::Init::kStructured, .segment = 6, .embedding_scale = 0.1, .seed = 4});
  expect_close(quiet.shared->weight, model.shared->weight * 0.1, 1e-12, "words");
  expect_close(quiet.encoder_embeddings->embed_positions->weight.slice(0, 2), positions * 0.1, 1e-12, "positions");
  expect_close(quiet.memory->memory_bias, model.memory->memory_bias, 1e-12, "v_b, whatever the scale");
}

TEST(Bart, DecodingStepByStepEqualsTheWholeSequence) {  // FR-86
  const auto model = make_small(small());
  const auto encoded = model->encode(input_of(18));
  const at::Tensor ids = some_ids(19, kLanes, 9);
  const at::Tensor whole = model->decode(ids, {}, encoded);
  for (const std::vector<int64_t>& splits : {std::vector<int64_t>{1, 1, 1, 1, 1, 1, 1, 1, 1}, {4, 5}, {1, 6, 2}}) {
    DecoderState state;
    std::vector<at::Tensor> parts;
    int64_t first = 0;
    for (const int64_t count : splits) {
      parts.push_back(model->decode(ids.narrow(1, first, count), {}, encoded, &state));
      first += count;
    }
    expect_close(at::cat(parts, 1), whole, 1e-12, "rows");
    EXPECT_GT(state.bytes(), 0);
    EXPECT_EQ(state.columns, 9);
    EXPECT_EQ(state.rows.select({1}).get("layer.0.key").size(0), 1);
  }
}

TEST(Bart, RowsOfOneSourceShareItsKeys) {
  const auto model = make_small(small());
  const auto encoded = model->encode(input_of(22));
  const at::Tensor ids = some_ids(23, 3 * kLanes, 4);
  const at::Tensor together = model->decode(ids, {}, encoded);
  EncoderOutput repeated = encoded;
  repeated.context = encoded.context.repeat_interleave(3, 0);
  expect_close(together, model->decode(ids, {}, repeated), 1e-12, "rows");
  DecoderState state;
  model->decode(ids, {}, encoded, &state);
  EXPECT_EQ(state.source.get("layer.0.key").size(0), kLanes);
}

TEST(Bart, TheDecoderNeverSeesLaterTokens) {  // FR-46
  const auto model = make_small(small());
  const auto encoded = model->encode(input_of(20));
  const at::Tensor ids = some_ids(21, kLanes, 9);
  const at::Tensor whole = model->decode(ids, {}, encoded);
  for (int64_t t = 0; t < 9; ++t) {
    at::Tensor changed = ids.clone();
    changed.select(1, t).fill_(3);
    expect_identical(model->decode(changed, {}, encoded).narrow(1, 0, t), whole.narrow(1, 0, t),
                     fmt::format("before {}", t));
  }
}

TEST(Bart, RunningPastThePositionTableNamesTheLimit) {  // FR-41
  const auto model = make_small(small());
  EncodeInput input;
  input.ids = some_ids(1, 1, 17);
  try {
    model->encode(input);
    FAIL() << "17 tokens fit into a table of 16";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    EXPECT_NE(std::string(e.what()).find("17 tokens in the encoder, but its position table ends at 16"),
              std::string::npos)
        << e.what();
  }
}

TEST(Bart, ConfigsNameWhatIsWrong) {
  const auto message = [](Json json) -> std::string {
    try {
      BartConfig::from_json(json, "config.json");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  Json good = small().to_json();
  EXPECT_EQ(message(good), "");
  EXPECT_EQ(BartConfig::from_json(good, "").memory.text(), "membart:3");
  Json bad = good;
  bad.erase("d_model");
  EXPECT_NE(message(bad).find("\"d_model\" is missing"), std::string::npos);
  bad = good;
  bad["encoder_attention_heads"] = 3;
  EXPECT_NE(message(bad).find("does not divide"), std::string::npos);
  bad = good;
  bad["activation_function"] = "swiglu";
  EXPECT_NE(message(bad).find("swiglu"), std::string::npos);
  bad = good;
  bad["palimpsest"]["memory"] = "membart:x";
  EXPECT_NE(message(bad).find("not a number of slots"), std::string::npos);
}

TEST(Families, AreListedWhereOneIsNotKnown) {
  try {
    models::make_model({{"model_type", "llama"}}, "config.json", {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    EXPECT_NE(std::string(e.what()).find("llama"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("bart, gpt2"), std::string::npos);
  }
  EXPECT_THROW(models::make_model({{"vocab_size", 3}}, "config.json", {}), Error);
  EXPECT_THROW(models::make_model(Json::array(), "config.json", {}), Error);
}

TEST(Loss, IgnoredTargetsNeverReachAnEmbeddingAndNothingIsNaN) {  // FR-64, FR-70
  const at::Tensor labels = at::tensor({0, 9064, 2, -100}, at::kLong).view({1, 4});
  expect_identical(nn::shift_right(labels, 2, 1), at::tensor({2, 0, 9064, 2}, at::kLong).view({1, 4}), "shifted");
  const at::Tensor logits = randn({1, 3, 5}, 1).requires_grad_(true);
  const auto none = nn::target_loss(logits, at::full({1, 3}, nn::kIgnore, at::kLong));
  EXPECT_EQ(none.targets, 0);
  EXPECT_EQ(none.nll.item<double>(), 0.0);
  none.nll.backward();
  EXPECT_EQ(logits.grad().abs().max().item<double>(), 0.0);
  const auto some = nn::target_loss(logits, at::tensor({2, -100, 4}, at::kLong).view({1, 3}));
  EXPECT_EQ(some.targets, 2);
  const at::Tensor each = nn::each_loss(logits, at::tensor({2, -100, 4}, at::kLong).view({1, 3}));
  EXPECT_NEAR(each.sum().item<double>(), some.nll.item<double>(), 1e-12);
  EXPECT_EQ(each[0][1].item<double>(), 0.0);
}

}  // namespace
}  // namespace palimpsest::models
