// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/models/bart.h"

#include <cmath>

#include "palimpsest/core/error.h"
#include "palimpsest/models/config_reader.h"

namespace palimpsest::models {

using attention::attend;
using attention::AttentionInput;
using attention::dense_part;
using memory::Memory;
using memory::Rows;

namespace {
constexpr int64_t kPositionOffset = 2;  // BART's tables start with two unused rows
constexpr double kEpsilon = 1e-5;
}  // namespace

attention::LayerShape BartConfig::encoder_shape() const {
  return {d_model, encoder_attention_heads, encoder_ffn_dim,    kEpsilon,
          dropout, attention_dropout,       activation_dropout, activation};
}
attention::LayerShape BartConfig::decoder_shape() const {
  return {d_model, decoder_attention_heads, decoder_ffn_dim,    kEpsilon,
          dropout, attention_dropout,       activation_dropout, activation};
}

BartConfig BartConfig::base() { return {}; }
BartConfig BartConfig::large() {
  BartConfig config;
  config.d_model = 1024;
  config.encoder_layers = config.decoder_layers = 12;
  config.encoder_attention_heads = config.decoder_attention_heads = 16;
  config.encoder_ffn_dim = config.decoder_ffn_dim = 4096;
  return config;
}

BartConfig BartConfig::from_json(const Json& json, const std::string& source) {
  const ConfigReader read(json, source);
  BartConfig config;
  config.vocab_size = read.size("vocab_size", kMostRows);
  config.d_model = read.size("d_model", kMostWidth);
  config.encoder_layers = read.size("encoder_layers", kMostLayers);
  config.decoder_layers = read.size("decoder_layers", kMostLayers);
  config.encoder_attention_heads = read.size("encoder_attention_heads", kMostWidth);
  config.decoder_attention_heads = read.size("decoder_attention_heads", kMostWidth);
  config.encoder_ffn_dim = read.size("encoder_ffn_dim", kMostInner);
  config.decoder_ffn_dim = read.size("decoder_ffn_dim", kMostInner);
  config.max_position_embeddings = read.size("max_position_embeddings", kMostRows);
  config.dropout = read.rate("dropout", 0.1);
  config.attention_dropout = read.rate("attention_dropout", 0);
  config.activation_dropout = read.rate("activation_dropout", 0);
  config.activation = read.activation("activation_function", "gelu");
  config.scale_embedding = read.flag("scale_embedding", false);
  config.tie_word_embeddings = read.flag("tie_word_embeddings", true);
  config.init_std = read.positive("init_std", 0.02);
  config.pad_token_id = read.id("pad_token_id", 1);
  config.bos_token_id = read.id("bos_token_id", 0);
  config.eos_token_id = read.id("eos_token_id", 2);
  config.decoder_start_token_id = read.id("decoder_start_token_id", config.eos_token_id);
  read.check_heads(config.d_model, "d_model", config.encoder_attention_heads, "encoder_attention_heads");
  read.check_heads(config.d_model, "d_model", config.decoder_attention_heads, "decoder_attention_heads");
  if (read.has("memory_len")) {  // the authors' own folders
    config.memory = {.kind = "membart", .slots = read.size("memory_len", 1 << 20)};
  }
  if (read.has("palimpsest")) {
    const ConfigReader own(read.object("palimpsest"), source + ", \"palimpsest\"");
    config.memory = memory::MemoryOptions::parse(own.text("memory", "none"));
    // Memformer's decoder sees what the encoder made of the tokens, which have read the memory (ALGORITHMS 3.1).
    config.decoder_sees_memory = own.flag("decoder_sees_memory", !config.memory.is_memformer());
    config.encoder_attention = own.text("attention", "dense");
    config.decoder_attention = own.text("decoder_attention", "dense");
    config.cross_attention = own.text("cross_attention", "dense");
    config.positions = Positions::parse(own.text("positions", "absolute"));
    config.positions.check(config.max_position_embeddings);
  }
  return config;
}

Json BartConfig::to_json() const {
  Json json = {{"architectures", {"BartForConditionalGeneration"}},
               {"model_type", "bart"},
               {"activation_function", nn::activation_name(activation)},
               {"vocab_size", vocab_size},
               {"d_model", d_model},
               {"encoder_layers", encoder_layers},
               {"decoder_layers", decoder_layers},
               {"encoder_attention_heads", encoder_attention_heads},
               {"decoder_attention_heads", decoder_attention_heads},
               {"encoder_ffn_dim", encoder_ffn_dim},
               {"decoder_ffn_dim", decoder_ffn_dim},
               {"max_position_embeddings", max_position_embeddings},
               {"dropout", dropout},
               {"attention_dropout", attention_dropout},
               {"activation_dropout", activation_dropout},
               {"scale_embedding", scale_embedding},
               {"pad_token_id", pad_token_id},
               {"bos_token_id", bos_token_id},
               {"eos_token_id", eos_token_id},
               {"decoder_start_token_id", decoder_start_token_id},
               {"init_std", init_std},
               {"is_encoder_decoder", true},
               {"tie_word_embeddings", tie_word_embeddings}};
  Json own = Json::object();
  if (memory.kind != "none") {
    own["memory"] = memory.text();
    own["decoder_sees_memory"] = decoder_sees_memory;
  }
  if (encoder_attention != "dense") own["attention"] = encoder_attention;
  if (decoder_attention != "dense") own["decoder_attention"] = decoder_attention;
  if (cross_attention != "dense") own["cross_attention"] = cross_attention;
  if (positions.endless()) own["positions"] = positions.text();
  if (!own.empty()) {
    own["format"] = 1;
    json["palimpsest"] = own;
  }
  return json;
}

DecoderLayer::DecoderLayer(const attention::LayerShape& shape, const at::TensorOptions& options) : shape_(shape) {
  const auto norm = [&](const char* name) {
    return register_module(name, std::make_shared<nn::LayerNorm>(shape.width, shape.epsilon, options));
  };
  self_attn = register_module("self_attn", std::make_shared<attention::MultiHead>(shape, options));
  self_attn_layer_norm = norm("self_attn_layer_norm");
  encoder_attn = register_module("encoder_attn", std::make_shared<attention::MultiHead>(shape, options));
  encoder_attn_layer_norm = norm("encoder_attn_layer_norm");
  fc1 = register_module("fc1", std::make_shared<nn::Linear>(shape.width, shape.inner, options));
  fc2 = register_module("fc2", std::make_shared<nn::Linear>(shape.inner, shape.width, options));
  final_layer_norm = norm("final_layer_norm");
}

attention::Source DecoderLayer::source(const EncoderOutput& encoded, const attention::Mechanism& mechanism,
                                       attention::LayerCarry& carry, DecoderState* state,
                                       const std::string& name) const {
  if (state != nullptr && state->source.contains(name + ".key")) {
    const bool own_mask = state->source.contains(name + ".mask");
    return {state->source.get(name + ".key"), state->source.get(name + ".value"),
            own_mask ? state->source.get(name + ".mask") : encoded.context_mask};
  }
  attention::Source made = mechanism.source({.query = {},
                                             .key = encoder_attn->key(encoded.context),
                                             .value = encoder_attn->value(encoded.context),
                                             .tokens = encoded.context,
                                             .key_mask = encoded.context_mask,
                                             .global_mask = encoded.context_global,
                                             .training = is_training(),
                                             .carry = &carry});
  if (state == nullptr) return made;
  state->source.set(name + ".key", made.key);
  state->source.set(name + ".value", made.value);
  if (made.key_mask.defined() && !made.key_mask.is_same(encoded.context_mask)) {
    state->source.set(name + ".mask", made.key_mask);
  } else if (!made.key_mask.defined() && encoded.context_mask.defined()) {
    state->source.set(name + ".mask", encoded.context_mask.new_ones({made.key.size(0), made.key.size(2)}));
  }
  return made;
}

at::Tensor DecoderLayer::forward(const at::Tensor& rows, const at::Tensor& mask, const EncoderOutput& encoded,
                                 const attention::Mechanism& own_mechanism, const attention::Mechanism& cross_mechanism,
                                 attention::LayerCarry& carry, DecoderState* state, const std::string& name) const {
  const bool training = is_training();
  const auto drop = [&](const at::Tensor& x) { return nn::dropout(x, shape_.dropout, training); };

  const AttentionInput input{.query = self_attn->query(rows),
                             .key = self_attn->key(rows),
                             .value = self_attn->value(rows),
                             .tokens = rows,
                             .key_mask = mask,
                             .training = training};
  const at::Tensor looked_back =
      attend(state == nullptr ? own_mechanism.parts(input) : own_mechanism.step(input, state->rows, name),
             self_attn->attend_options());
  const at::Tensor own = self_attn_layer_norm->forward(rows + drop(self_attn->output(looked_back)));

  const attention::Source context = source(encoded, cross_mechanism, carry, state, name);
  // Reading a source knows no order: all rows of a source are one run of queries, and its keys are never repeated.
  const at::Tensor asking = own.reshape({context.key.size(0), -1, own.size(2)});  // [B, R/B*T, E]
  const at::Tensor read =
      attend({dense_part(encoder_attn->query(asking), context.key, context.value, {.key_mask = context.key_mask})},
             encoder_attn->attend_options());
  const at::Tensor informed =
      encoder_attn_layer_norm->forward(own + drop(encoder_attn->output(read).view(own.sizes())));
  const at::Tensor fed = nn::feed_forward(informed, *fc1, *fc2, shape_.activation, shape_.activation_dropout, training);
  return final_layer_norm->forward(informed + drop(fed));
}

Embeddings::Embeddings(const BartConfig& config, const at::TensorOptions& options)
    : scale_(config.scale_embedding ? std::sqrt(static_cast<double>(config.d_model)) : 1.0),
      dropout_(config.dropout),
      positions_(config.positions) {
  embed_positions = register_module(
      "embed_positions",
      std::make_shared<nn::Embedding>(config.max_position_embeddings + kPositionOffset, config.d_model, options));
  layernorm_embedding =
      register_module("layernorm_embedding", std::make_shared<nn::LayerNorm>(config.d_model, kEpsilon, options));
}

at::Tensor Embeddings::forward(const nn::Embedding& words, const at::Tensor& ids, int64_t first,
                               const char* side) const {
  const int64_t last = first + ids.size(1), limit = embed_positions->weight.size(0) - kPositionOffset;
  if (last > limit && !positions_.endless()) {
    throw usage_error(
        fmt::format("{} tokens in the {}, but its position table ends at {}", last, side, limit), "",
        fmt::format("use shorter segments or ask for fewer tokens; `convert --positions segment:{}` makes "
                    "a model that goes on past it",
                    limit));
  }
  at::Tensor word = words.forward(ids);
  if (scale_ != 1.0) word = word * scale_;
  if (positions_.kind == Positions::kAbsolute) {
    word = word + embed_positions->weight.narrow(0, first + kPositionOffset, ids.size(1));  // [L, E]
  } else if (positions_.kind == Positions::kSegment) {
    const at::Tensor row = positions_.rows_of(at::arange(first, last, ids.options())) + kPositionOffset;
    word = word + embed_positions->forward(row);
  }
  return nn::dropout(layernorm_embedding->forward(word), dropout_, is_training());
}

BartModel::BartModel(const BartConfig& config, const at::TensorOptions& options) : config_(config) {
  const auto table = [&](const char* name) {
    return register_module(name, std::make_shared<nn::Embedding>(config.vocab_size, config.d_model, options));
  };
  shared = encoder_words = decoder_words = lm_head = table("shared");
  if (!config.tie_word_embeddings) {
    encoder_words = table("encoder_words");
    decoder_words = table("decoder_words");
    lm_head = table("lm_head");
  }
  encoder_embeddings = register_module("encoder_embeddings", std::make_shared<Embeddings>(config, options));
  decoder_embeddings = register_module("decoder_embeddings", std::make_shared<Embeddings>(config, options));
  for (int64_t i = 0; i < config.encoder_layers; ++i) {
    encoder_layers.push_back(register_module("encoder_layers_" + std::to_string(i),
                                             std::make_shared<attention::Block>(config.encoder_shape(), options)));
  }
  if (config.memory.enabled()) {
    memory = register_module("memory", std::make_shared<memory::MemoryStream>(config.memory, config.encoder_layers,
                                                                              config.encoder_shape(), options));
  }
  const auto stack = [&](const char* name, const std::string& text, attention::Use use, int64_t count, int64_t heads) {
    return register_module(
        name, std::make_shared<attention::MechanismStack>(text, use, count, config.d_model, heads, options));
  };
  encoder_attention = stack("encoder_attention", config.encoder_attention, attention::Use::kEncoder,
                            config.encoder_layers, config.encoder_attention_heads);
  decoder_attention = stack("decoder_attention", config.decoder_attention, attention::Use::kCausal,
                            config.decoder_layers, config.decoder_attention_heads);
  cross_attention = stack("cross_attention", config.cross_attention, attention::Use::kCross, config.decoder_layers,
                          config.decoder_attention_heads);
  for (int64_t i = 0; i < config.decoder_layers; ++i) {
    decoder_layers.push_back(register_module("decoder_layers_" + std::to_string(i),
                                             std::make_shared<DecoderLayer>(config.decoder_shape(), options)));
  }
  final_logits_bias = register_buffer("final_logits_bias", at::zeros({1, config.vocab_size}, options));
}

FamilyIds BartModel::ids() const {
  return {config_.bos_token_id, config_.pad_token_id, config_.eos_token_id, config_.decoder_start_token_id};
}

std::vector<at::Tensor> BartModel::embedding_tables() const {
  return {shared->weight, encoder_words->weight, decoder_words->weight, encoder_embeddings->embed_positions->weight,
          decoder_embeddings->embed_positions->weight};
}

memory::Memory BartModel::fresh_memory(int64_t batch) const { return memory ? memory->fresh(batch) : Memory{}; }

EncoderOutput BartModel::encode(const EncodeInput& input) const {
  nn::check_shape(input.ids, {-1, -1}, "input_ids");
  if (input.mask.defined()) nn::check_shape(input.mask, input.ids.sizes(), "attention_mask");
  Rows rows;
  rows.tokens = encoder_embeddings->forward(*encoder_words, input.ids, 0, "encoder");
  at::Tensor entered;  // [B, M, E]
  if (memory) {
    const Memory before = input.memory.slots.defined() ? input.memory : fresh_memory(input.ids.size(0));
    rows.slots = entered = memory->enter(before, input.reset);
  }
  const auto observe_rows = [&](size_t n) {
    if (!input.observe) return;
    input.observe(fmt::format("hidden_states.{}", n), rows.tokens);
    if (memory) input.observe(fmt::format("slots.{}", n), rows.slots);
  };
  observe_rows(0);
  attention::LayerCarry carry;
  for (size_t i = 0; i < encoder_layers.size(); ++i) {
    const attention::Block& layer = *encoder_layers[i];
    const attention::Mechanism& mechanism = (*encoder_attention)[i];
    const auto& heads = *layer.self_attn;
    const AttentionInput attention_input{.query = heads.query(rows.tokens),
                                         .key = heads.key(rows.tokens),
                                         .value = heads.value(rows.tokens),
                                         .tokens = rows.tokens,
                                         .key_mask = input.mask,
                                         .global_mask = input.global_mask,
                                         .training = is_training(),
                                         .carry = &carry};
    if (memory) {
      rows = memory->layer(static_cast<int64_t>(i), layer, rows, mechanism, attention_input, input.use_memory,
                           input.observe);
    } else {
      const attention::Parts parts = mechanism.parts(attention_input);
      if (input.observe) input.observe(fmt::format("attentions.{}", i), attention::attention_weights(parts));
      rows.tokens = layer.finish(rows.tokens, attend(parts, heads.attend_options()));
    }
    observe_rows(i + 1);
  }
  EncoderOutput output;
  output.hidden = rows.tokens;
  if (memory) output.memory = memory->leave(rows, entered, input.mask, input.observe);
  const bool decoder_reads_memory = memory && input.use_memory && config_.decoder_sees_memory;
  std::tie(output.context, output.context_mask) =
      with_memory(decoder_reads_memory ? output.memory : Memory{}, output.hidden, input.mask);
  if (input.global_mask.defined()) {
    output.context_global =
        with_memory(decoder_reads_memory ? output.memory : Memory{}, output.hidden, input.global_mask).second;
  }
  return output;
}

at::Tensor BartModel::decode(const at::Tensor& ids, const at::Tensor& mask, const EncoderOutput& encoded,
                             DecoderState* state, const memory::Observer& observe) const {
  nn::check_shape(ids, {-1, -1}, "decoder_input_ids");
  const int64_t sources = encoded.context.size(0);
  if (ids.size(0) % std::max<int64_t>(1, sources) != 0)
    throw internal_error(fmt::format("{} decoder rows do not divide among {} sources", ids.size(0), sources));
  if (state == nullptr) return read(ids, mask, encoded, 0, nullptr, observe);
  if (const std::string why = decoder_attention->no_stream(); !why.empty()) {
    throw usage_error("this decoder cannot write token by token: " + why,
                      "--decoder-attention " + decoder_attention->text());
  }
  const int64_t first = state->columns, count = ids.size(1);
  state->columns += count;
  // Slices change no number of a dense model, and save nothing there.
  constexpr int64_t kSlice = 512;
  if (count <= kSlice || decoder_attention->dense()) return read(ids, mask, encoded, first, state, observe);
  std::vector<at::Tensor> slices;
  for (int64_t begin = 0; begin < count; begin += kSlice) {
    const int64_t size = std::min(kSlice, count - begin);
    const auto cut = [&](const at::Tensor& x) { return x.defined() ? x.narrow(1, begin, size) : x; };
    slices.push_back(read(cut(ids), cut(mask), encoded, first + begin, state, observe));
  }
  return at::cat(slices, 1);
}

at::Tensor BartModel::read(const at::Tensor& ids, const at::Tensor& mask, const EncoderOutput& encoded, int64_t first,
                           DecoderState* state, const memory::Observer& observe) const {
  at::Tensor rows = decoder_embeddings->forward(*decoder_words, ids, first, "decoder");
  attention::LayerCarry carry;
  for (size_t i = 0; i < decoder_layers.size(); ++i) {
    if (observe) observe(fmt::format("decoder_hidden_states.{}", i), rows);
    rows = decoder_layers[i]->forward(rows, mask, encoded, (*decoder_attention)[i], (*cross_attention)[i], carry, state,
                                      "layer." + std::to_string(i));
  }
  if (observe) observe(fmt::format("decoder_hidden_states.{}", decoder_layers.size()), rows);
  return rows;
}

at::Tensor BartModel::logits(const at::Tensor& hidden) const {
  const at::Tensor bias = final_logits_bias.view({-1});
  return output_int8_.defined() ? kernels::int8_linear(hidden, output_int8_, bias)
                                : kernels::linear(hidden, lm_head->weight, bias);
}

void BartModel::quantize() {
  for (const auto& layer : decoder_layers) {
    for (const auto& heads : {layer->self_attn, layer->encoder_attn}) {
      heads->q_proj->quantize();
      heads->out_proj->quantize();
    }
    layer->self_attn->k_proj->quantize();
    layer->self_attn->v_proj->quantize();
    layer->fc1->quantize();
    layer->fc2->quantize();
  }
  output_int8_ = kernels::quantize_rows(lm_head->weight);
}

}  // namespace palimpsest::models
