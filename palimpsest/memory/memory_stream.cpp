// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/memory/memory_stream.h"

#include <charconv>
#include <sstream>

#include "palimpsest/core/error.h"

namespace palimpsest::memory {

using attention::attend;
using attention::Block;
using attention::dense_part;
using attention::MultiHead;
using attention::self_part;

Memory select_reset(const Memory& memory, const at::Tensor& reset) {
  if (!reset.defined() || !memory.slots.defined()) return memory;
  nn::check_shape(reset, {memory.slots.size(0)}, "reset");
  return {memory.slots.masked_fill(reset.to(at::kBool).view({-1, 1, 1}), 0)};
}

MemoryOptions MemoryOptions::parse(const std::string& text) {
  MemoryOptions options;
  if (text == "none" || text.empty()) return options;
  const std::string place = "--memory " + text;
  const std::string fix =
      "give none, membart:M or memformer:M with M slots and perhaps settings after commas (membart: shared, l2; "
      "memformer: rezero, gate, l2), for example membart:64";
  const size_t colon = text.find(':');
  options.kind = text.substr(0, colon);
  if ((options.kind != "membart" && options.kind != "memformer") || colon == std::string::npos)
    throw usage_error(fmt::format("unknown memory \"{}\"", printable(text)), "--memory", fix);
  std::stringstream parts(text.substr(colon + 1));
  std::string slots, word;
  std::getline(parts, slots, ',');
  const auto [end, code] = std::from_chars(slots.data(), slots.data() + slots.size(), options.slots);
  if (code != std::errc() || end != slots.data() + slots.size() || options.slots < 0 || options.slots > 1 << 20) {
    throw usage_error(fmt::format("\"{}\" is not a number of slots", printable(slots)), place, fix);
  }
  const bool membart = options.kind == "membart";
  while (std::getline(parts, word, ',')) {
    if (word == "l2") {
      options.l2 = true;
    } else if (word == "shared" && membart) {
      options.shared = true;
    } else if (word == "rezero" && !membart) {
      options.rezero = true;
    } else if (word == "gate" && !membart) {
      options.gate = true;
    } else {
      throw usage_error(fmt::format("unknown memory setting \"{}\"", printable(word)), place, fix);
    }
  }
  return options;
}

std::string MemoryOptions::text() const {
  if (kind == "none") return kind;
  return fmt::format("{}:{}{}{}{}{}", kind, slots, shared ? ",shared" : "", rezero ? ",rezero" : "",
                     gate ? ",gate" : "", l2 ? ",l2" : "");
}

MemoryStream::Gate::Gate(int64_t width, const at::TensorOptions& options) {
  dense = register_module("dense", std::make_shared<nn::Linear>(width, width, options));
  dense2 = register_module("dense2", std::make_shared<nn::Linear>(width, 1, options));
}

MemoryStream::Reader::Reader(const attention::LayerShape& shape, bool rezero, const at::TensorOptions& options) {
  attn = register_module("attn", std::make_shared<MultiHead>(shape, options));
  if (rezero) {
    attn_scale = register_parameter("attn_scale", at::empty({1}, options));
  } else {
    attn_layer_norm =
        register_module("attn_layer_norm", std::make_shared<nn::LayerNorm>(shape.width, shape.epsilon, options));
  }
}

MemoryStream::MemoryStream(const MemoryOptions& memory, int64_t count, const attention::LayerShape& shape,
                           const at::TensorOptions& options)
    : options_(memory), dropout_(shape.dropout) {
  for (int64_t i = 0; i < count; ++i) {
    if (memory.is_memformer()) {
      readers.push_back(
          register_module("readers_" + std::to_string(i), std::make_shared<Reader>(shape, memory.rezero, options)));
    } else if (!memory.shared) {
      layers.push_back(register_module("layers_" + std::to_string(i), std::make_shared<Block>(shape, options)));
    }
  }
  if (memory.is_memformer()) memory_writer = register_module("memory_writer", std::make_shared<Block>(shape, options));
  memory_bias = register_parameter("memory_bias", at::empty({1, memory.slots, shape.width}, options));
  if (!memory.l2) {
    memory_layer_norm =
        register_module("memory_layer_norm", std::make_shared<nn::LayerNorm>(shape.width, shape.epsilon, options));
  }
  if (!memory.is_memformer() || memory.gate)
    memory_gate_net = register_module("memory_gate_net", std::make_shared<Gate>(shape.width, options));
}

at::Tensor MemoryStream::enter(const Memory& memory, const at::Tensor& reset) const {
  nn::check_shape(memory.slots, {-1, memory_bias.size(1), memory_bias.size(2)}, "memory");
  const at::Tensor biased = select_reset(memory, reset).slots + memory_bias;
  if (memory_layer_norm) return memory_layer_norm->forward(biased);
  constexpr double kTiny = 1e-12;
  return biased / biased.norm(2, -1, true).clamp_min(kTiny);
}

at::Tensor MemoryStream::read(int64_t index, const at::Tensor& tokens, const at::Tensor& slots,
                              const Observer& observe) const {
  const Reader& reader = *readers[static_cast<size_t>(index)];
  const MultiHead& heads = *reader.attn;
  const attention::Parts parts = {dense_part(heads.query(tokens), heads.key(slots), heads.value(slots))};
  if (observe) observe(fmt::format("memory_attentions.{}", index), attention::attention_weights(parts));
  const at::Tensor taken = nn::dropout(heads.output(attend(parts, heads.attend_options())), dropout_, is_training());
  return reader.attn_layer_norm ? reader.attn_layer_norm->forward(tokens + taken) : tokens + reader.attn_scale * taken;
}

Rows MemoryStream::layer(int64_t index, const Block& token_block, const Rows& rows,
                         const attention::Mechanism& mechanism, const attention::AttentionInput& tokens, bool visible,
                         const Observer& observe) const {
  const at::Tensor& key_mask = tokens.key_mask;
  if (memory_writer) {
    const MultiHead& heads = *token_block.self_attn;
    const attention::Parts parts = mechanism.parts(tokens);
    if (observe) observe(fmt::format("attentions.{}", index), attention::attention_weights(parts));
    at::Tensor mixed = token_block.mix(rows.tokens, attend(parts, heads.attend_options()));
    if (visible) mixed = read(index, mixed, rows.slots, observe);
    return {token_block.feed(mixed), rows.slots};
  }
  const Block& slot_block = options_.shared ? token_block : *layers[static_cast<size_t>(index)];
  const MultiHead &of_tokens = *token_block.self_attn, &of_slots = *slot_block.self_attn;
  const at::Tensor slot_key = of_slots.key(rows.slots), slot_value = of_slots.value(rows.slots);  // [B, H, M, D]

  attention::Parts for_tokens;
  if (visible && mechanism.reads_all()) {
    // Slots and tokens lie side by side: appending the keys is cheaper than a merge.
    const at::Tensor mask = with_memory({rows.slots}, rows.tokens, key_mask).second;
    for_tokens = {dense_part(tokens.query, at::cat({slot_key, tokens.key}, 2), at::cat({slot_value, tokens.value}, 2),
                             {.key_mask = mask})};
  } else {
    for_tokens = mechanism.parts(tokens);
    if (visible) for_tokens.insert(for_tokens.begin(), dense_part(tokens.query, slot_key, slot_value));
  }
  // M + L logits for all slots would be an M x M matrix of mostly hidden entries; tokens merged with itself are 1 + L.
  const at::Tensor slot_query = of_slots.query(rows.slots);
  const attention::Parts for_slots = {dense_part(slot_query, tokens.key, tokens.value, {.key_mask = key_mask}),
                                      self_part(slot_query, slot_key, slot_value)};
  if (observe) {
    observe(fmt::format("attentions.{}", index), attention::attention_weights(for_tokens));
    observe(fmt::format("slot_attentions.{}", index), attention::attention_weights(for_slots));
  }
  return {token_block.finish(rows.tokens, attend(for_tokens, of_tokens.attend_options())),
          slot_block.finish(rows.slots, attend(for_slots, of_slots.attend_options()))};
}

Memory MemoryStream::leave(const Rows& rows, const at::Tensor& entered, const at::Tensor& key_mask,
                           const Observer& observe) const {
  at::Tensor last = rows.slots;
  if (memory_writer) {
    const MultiHead& heads = *memory_writer->self_attn;
    const at::Tensor query = heads.query(last);
    const attention::Parts parts = {
        dense_part(query, heads.key(rows.tokens), heads.value(rows.tokens), {.key_mask = key_mask}),
        self_part(query, heads.key(last), heads.value(last))};
    if (observe) observe("slot_attentions", attention::attention_weights(parts));
    last = memory_writer->finish(last, attend(parts, heads.attend_options()));
  }
  if (!memory_gate_net) return {last};
  const bool training = is_training();
  const at::Tensor inner = at::gelu(memory_gate_net->dense->forward(nn::dropout(last, dropout_, training)));
  const at::Tensor z =
      at::sigmoid(memory_gate_net->dense2->forward(nn::dropout(inner, dropout_, training)));  // [B, M, 1]
  if (observe) observe("gate", z);
  return {z * last + (1 - z) * entered};
}

Memory MemoryStream::fresh(int64_t batch) const {
  return {at::zeros({batch, memory_bias.size(1), memory_bias.size(2)}, memory_bias.options().requires_grad(false))};
}

std::pair<at::Tensor, at::Tensor> with_memory(const Memory& memory, const at::Tensor& rows, const at::Tensor& mask) {
  if (!memory.slots.defined()) return {rows, mask};
  at::Tensor joined = at::cat({memory.slots, rows}, 1);  // [B, M + L, E]
  if (!mask.defined()) return {joined, mask};
  return {joined, at::cat({mask.new_ones({mask.size(0), memory.slots.size(1)}), mask}, 1)};
}

}  // namespace palimpsest::memory
