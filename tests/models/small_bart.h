// SPDX-License-Identifier: Apache-2.0
// A BART small enough for float64, with any memory, and what it is fed.
#pragma once

#include <memory>
#include <string>

#include "palimpsest/models/bart.h"
#include "tests/support/tensors.h"

namespace palimpsest::models {

constexpr int64_t kSlots = 3, kLanes = 2, kLength = 6, kWidth = 8;

/// Two layers on each side. `memory` as in MemoryOptions::parse.
inline BartConfig small(const std::string& memory = "membart:3") {
  BartConfig config;
  config.vocab_size = 20;
  config.d_model = kWidth;
  config.encoder_layers = config.decoder_layers = 2;
  config.encoder_attention_heads = config.decoder_attention_heads = 2;
  config.encoder_ffn_dim = config.decoder_ffn_dim = 12;
  config.max_position_embeddings = 16;
  config.dropout = 0;
  config.memory = memory::MemoryOptions::parse(memory);
  config.decoder_sees_memory = !config.memory.is_memformer();
  return config;
}

inline std::shared_ptr<BartModel> make_small(const BartConfig& config) {
  auto model = std::make_shared<BartModel>(config, at::kDouble);
  model->initialize({.std = 0.4, .slot_std = 1.0, .seed = 11});
  model->eval();
  return model;
}

/// [lanes, length], from 4 on.
inline at::Tensor some_ids(uint64_t seed, int64_t lanes = kLanes, int64_t length = kLength) {
  return (test::randn({lanes, length}, seed).abs() * 1000).to(at::kLong).remainder(15).add(4);
}

inline EncodeInput input_of(uint64_t seed) {
  EncodeInput input;
  input.ids = some_ids(seed);
  input.memory = {test::randn({kLanes, kSlots, kWidth}, seed + 50)};
  return input;
}

inline at::Tensor logits_of(const BartModel& model, const EncoderOutput& encoded) {
  return model.logits(model.decode(some_ids(77, encoded.context.size(0), 5), {}, encoded));
}

}  // namespace palimpsest::models
