// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/models/gpt2.h"

#include <cmath>

#include "palimpsest/core/error.h"
#include "palimpsest/models/config_reader.h"

namespace palimpsest::models {

using attention::attend;

Gpt2Config Gpt2Config::from_json(const Json& json, const std::string& source) {
  const ConfigReader read(json, source);
  Gpt2Config config;
  config.vocab_size = read.size("vocab_size", kMostRows);
  config.n_positions = read.size("n_positions", kMostRows);
  config.n_embd = read.size("n_embd", kMostWidth);
  config.n_layer = read.size("n_layer", kMostLayers);
  config.n_head = read.size("n_head", kMostWidth);
  config.n_inner = read.size("n_inner", kMostInner, 0);
  config.activation = read.activation("activation_function", "gelu_new");
  config.resid_pdrop = read.rate("resid_pdrop", 0.1);
  config.embd_pdrop = read.rate("embd_pdrop", 0.1);
  config.attn_pdrop = read.rate("attn_pdrop", 0.1);
  config.layer_norm_epsilon = read.positive("layer_norm_epsilon", 1e-5);
  config.initializer_range = read.positive("initializer_range", 0.02);
  config.scale_attn_weights = read.flag("scale_attn_weights", true);
  config.scale_attn_by_inverse_layer_idx = read.flag("scale_attn_by_inverse_layer_idx", false);
  config.tie_word_embeddings = read.flag("tie_word_embeddings", true);
  config.bos_token_id = read.id("bos_token_id", config.vocab_size - 1);
  config.eos_token_id = read.id("eos_token_id", config.vocab_size - 1);
  config.pad_token_id = read.id("pad_token_id", -1);
  read.check_heads(config.n_embd, "n_embd", config.n_head, "n_head");
  if (read.has("palimpsest")) {
    const ConfigReader own(read.object("palimpsest"), source + ", \"palimpsest\"");
    if (const std::string memory = own.text("memory", "none"); memory != "none") {
      throw usage_error(fmt::format("a gpt2 model cannot have the memory {}", printable(memory)), source,
                        "a memory wants an encoder: give a BART folder");
    }
    for (const char* key : {"decoder_attention", "cross_attention"}) {
      if (own.has(key)) {
        throw usage_error(fmt::format("a gpt2 model has no {}", key), source,
                          "its layers attend as \"attention\" (--attention) says");
      }
    }
    config.attention = own.text("attention", "dense");
    config.positions = Positions::parse(own.text("positions", "absolute"));
    config.positions.check(config.n_positions);
  }
  if (read.flag("add_cross_attention", false))
    throw input_error("\"add_cross_attention\" is true: a GPT-2 that reads an encoder is not supported", source,
                      "for an encoder-decoder use a BART folder");
  return config;
}

Json Gpt2Config::to_json() const {
  Json json = {{"architectures", {"GPT2LMHeadModel"}},
               {"model_type", "gpt2"},
               {"activation_function", nn::activation_name(activation)},
               {"vocab_size", vocab_size},
               {"n_positions", n_positions},
               {"n_embd", n_embd},
               {"n_layer", n_layer},
               {"n_head", n_head},
               {"n_inner", n_inner > 0 ? Json(n_inner) : Json()},
               {"resid_pdrop", resid_pdrop},
               {"embd_pdrop", embd_pdrop},
               {"attn_pdrop", attn_pdrop},
               {"layer_norm_epsilon", layer_norm_epsilon},
               {"initializer_range", initializer_range},
               {"scale_attn_weights", scale_attn_weights},
               {"scale_attn_by_inverse_layer_idx", scale_attn_by_inverse_layer_idx},
               {"bos_token_id", bos_token_id},
               {"eos_token_id", eos_token_id},
               {"pad_token_id", pad_token_id >= 0 ? Json(pad_token_id) : Json()},
               {"tie_word_embeddings", tie_word_embeddings}};
  if (attention != "dense" || positions.endless())
    json["palimpsest"] = {{"format", 1}, {"attention", attention}, {"positions", positions.text()}};
  return json;
}

Gpt2Layer::Attention::Attention(const Gpt2Config& config, const at::TensorOptions& options) {
  c_attn = register_module("c_attn", std::make_shared<nn::InputMajorLinear>(config.n_embd, 3 * config.n_embd, options));
  c_proj = register_module("c_proj", std::make_shared<nn::InputMajorLinear>(config.n_embd, config.n_embd, options));
}

Gpt2Layer::FeedForward::FeedForward(const Gpt2Config& config, const at::TensorOptions& options) {
  c_fc = register_module("c_fc", std::make_shared<nn::InputMajorLinear>(config.n_embd, config.inner(), options));
  c_proj = register_module("c_proj", std::make_shared<nn::InputMajorLinear>(config.inner(), config.n_embd, options));
}

Gpt2Layer::Gpt2Layer(const Gpt2Config& config, int64_t index, const at::TensorOptions& options)
    : index_(index),
      heads_(config.n_head),
      scale_(config.scale_attn_weights ? 1 / std::sqrt(static_cast<double>(config.n_embd / config.n_head)) : 1),
      attention_dropout_(config.attn_pdrop),
      residual_dropout_(config.resid_pdrop),
      activation_(config.activation) {
  if (config.scale_attn_by_inverse_layer_idx) scale_ /= static_cast<double>(index + 1);
  const auto norm = [&](const char* name) {
    return register_module(name, std::make_shared<nn::LayerNorm>(config.n_embd, config.layer_norm_epsilon, options));
  };
  ln_1 = norm("ln_1");
  attn = register_module("attn", std::make_shared<Attention>(config, options));
  ln_2 = norm("ln_2");
  mlp = register_module("mlp", std::make_shared<FeedForward>(config, options));
}

at::Tensor Gpt2Layer::forward(const at::Tensor& rows, const at::Tensor& mask, const attention::Mechanism& mechanism,
                              attention::State* state, const memory::Observer& observe) const {
  const bool training = is_training();
  const auto drop = [&](const at::Tensor& x) { return nn::dropout(x, residual_dropout_, training); };

  const at::Tensor normed = ln_1->forward(rows);
  const auto projected = attn->c_attn->forward(normed).chunk(3, -1);
  const attention::AttentionInput input{.query = nn::split_heads(projected[0], heads_),
                                        .key = nn::split_heads(projected[1], heads_),
                                        .value = nn::split_heads(projected[2], heads_),
                                        .tokens = normed,
                                        .key_mask = mask,
                                        .training = training};
  const attention::Parts parts =
      state == nullptr ? mechanism.parts(input) : mechanism.step(input, *state, fmt::format("layer.{}", index_));
  const attention::AttendOptions options{.scale = scale_, .dropout = training ? attention_dropout_ : 0};
  if (observe) observe(fmt::format("attentions.{}", index_), attention::attention_weights(parts, options));
  const at::Tensor mixed = rows + drop(attn->c_proj->forward(nn::join_heads(attend(parts, options))));
  return mixed + drop(mlp->c_proj->forward(nn::activate(activation_, mlp->c_fc->forward(ln_2->forward(mixed)))));
}

Gpt2Model::Gpt2Model(const Gpt2Config& config, const at::TensorOptions& options) : config_(config) {
  const auto table = [&](const char* name, int64_t rows) {
    return register_module(name, std::make_shared<nn::Embedding>(rows, config.n_embd, options));
  };
  wte = lm_head = table("wte", config.vocab_size);
  wpe = table("wpe", config.n_positions);
  for (int64_t i = 0; i < config.n_layer; ++i)
    layers.push_back(register_module("h_" + std::to_string(i), std::make_shared<Gpt2Layer>(config, i, options)));
  attention = register_module(
      "attention", std::make_shared<attention::MechanismStack>(config.attention, attention::Use::kCausal,
                                                               config.n_layer, config.n_embd, config.n_head, options));
  ln_f = register_module("ln_f", std::make_shared<nn::LayerNorm>(config.n_embd, config.layer_norm_epsilon, options));
  if (!config.tie_word_embeddings) lm_head = table("lm_head", config.vocab_size);
}

at::Tensor Gpt2Model::forward(const at::Tensor& ids, const at::Tensor& mask, CausalState* state,
                              const memory::Observer& observe) const {
  nn::check_shape(ids, {-1, -1}, "input_ids");
  const int64_t first = state != nullptr ? state->columns : 0, count = ids.size(1), columns = first + count;
  at::Tensor position;  // [1, T] or [B, T]
  at::Tensor own_mask;  // [B, T]
  int64_t last = columns;
  if (mask.defined()) {
    if (mask.dim() != 2 || mask.size(0) != ids.size(0) || mask.size(1) != columns) {
      throw input_error(
          fmt::format("attention_mask has shape {}, expected {}: it covers the {} columns read before and "
                      "the {} new ones",
                      nn::shape_text(mask.sizes()), nn::shape_text({ids.size(0), columns}), first, count));
    }
    position = mask.to(at::kLong).cumsum(1).sub(1).clamp_min(0).narrow(1, first, count);
    if (position.numel() > 0) last = position.max().item<int64_t>() + 1;
    own_mask = mask.narrow(1, first, count);
  } else {
    position = at::arange(first, columns, ids.options()).unsqueeze(0);
  }
  if (last > config_.n_positions && !config_.positions.endless()) {
    throw usage_error(
        fmt::format("{} tokens, but the position table ends at {}", last, config_.n_positions), "",
        fmt::format("give a shorter text or ask for fewer tokens; `convert --positions segment:{}` makes a model that "
                    "goes on past it",
                    config_.n_positions));
  }
  if (state == nullptr) return read(ids, position, own_mask, nullptr, observe);
  if (const std::string why = attention->no_stream(); !why.empty())
    throw usage_error("this model cannot be read token by token: " + why, "--attention " + attention->text());
  state->columns = columns;
  // Slices change no number of a dense model, and save nothing there.
  constexpr int64_t kSlice = 512;
  if (count <= kSlice || attention->dense()) return read(ids, position, own_mask, &state->rows, observe);
  std::vector<at::Tensor> slices;
  for (int64_t begin = 0; begin < count; begin += kSlice) {
    const int64_t size = std::min(kSlice, count - begin);
    const auto cut = [&](const at::Tensor& x) { return x.defined() ? x.narrow(1, begin, size) : x; };
    slices.push_back(read(cut(ids), cut(position), cut(own_mask), &state->rows, observe));
  }
  return at::cat(slices, 1);
}

at::Tensor Gpt2Model::read(const at::Tensor& ids, const at::Tensor& position, const at::Tensor& mask,
                           attention::State* state, const memory::Observer& observe) const {
  at::Tensor rows = wte->forward(ids);
  if (config_.positions.kind != Positions::kNone) rows = rows + wpe->forward(config_.positions.rows_of(position));
  rows = nn::dropout(rows, config_.embd_pdrop, is_training());
  for (size_t i = 0; i < layers.size(); ++i) {
    if (observe) observe(fmt::format("hidden_states.{}", i), rows);
    rows = layers[i]->forward(rows, mask, (*attention)[i], state, observe);
  }
  rows = ln_f->forward(rows);
  if (observe) observe(fmt::format("hidden_states.{}", layers.size()), rows);
  return rows;
}

FamilyIds Gpt2Model::ids() const {
  return {config_.bos_token_id, config_.pad_token_id >= 0 ? config_.pad_token_id : config_.eos_token_id,
          config_.eos_token_id, config_.eos_token_id};
}

EncoderOutput Gpt2Model::encode(const EncodeInput& input) const {
  nn::check_shape(input.ids, {-1, -1}, "input_ids");
  EncoderOutput output;
  output.prompt = input.ids;
  output.prompt_mask = input.mask;
  if (!input.mask.defined()) return output;
  nn::check_shape(input.mask, input.ids.sizes(), "attention_mask");
  // Real tokens go to the right, in their order: a stable sort by "is real".
  const at::Tensor order = std::get<1>(input.mask.to(at::kByte).sort(/*stable=*/true, /*dim=*/1, /*descending=*/false));
  output.prompt = input.ids.gather(1, order);
  output.prompt_mask = input.mask.gather(1, order);
  return output;
}

at::Tensor Gpt2Model::decode(const at::Tensor& ids, const at::Tensor& mask, const EncoderOutput& encoded) const {
  at::Tensor all = mask;
  if (mask.defined() || encoded.prompt_mask.defined()) {
    const auto or_ones = [](const at::Tensor& given, const at::Tensor& like) {
      return given.defined() ? given : at::ones_like(like, at::kBool);
    };
    all = at::cat({or_ones(encoded.prompt_mask, encoded.prompt), or_ones(mask, ids)}, 1);
  }
  return forward(at::cat({encoded.prompt, ids}, 1), all).narrow(1, encoded.prompt.size(1), ids.size(1));
}

at::Tensor Gpt2Model::logits(const at::Tensor& hidden) const {
  return output_int8_.defined() ? kernels::int8_linear(hidden, output_int8_, {})
                                : kernels::linear(hidden, lm_head->weight, {});
}

void Gpt2Model::quantize() {
  for (const auto& layer : layers) {
    for (const auto& map : {layer->attn->c_attn, layer->attn->c_proj, layer->mlp->c_fc, layer->mlp->c_proj})
      map->quantize();
  }
  output_int8_ = kernels::quantize_rows(lm_head->weight);
}

void Gpt2Model::initialize(const Init& init) {
  const at::NoGradGuard no_grad;
  if (init.style == Init::kStructured)
    throw usage_error("the structured start is MemBART's", "--init", "choose normal or scaled");
  for (const auto& entry : named_parameters()) {
    const std::string& name = entry.key();
    const at::Tensor& value = entry.value();
    if (name.starts_with("attention.")) continue;
    if (value.dim() == 1) {
      value.fill_(name.ends_with(".bias") ? 0 : 1);
      continue;
    }
    double std = init.std;
    const bool is_table = name == "wte.weight" || name == "wpe.weight" || name == "lm_head.weight";
    if (init.style == Init::kScaled && !is_table) std = 1 / std::sqrt(static_cast<double>(value.size(0)));
    // As in the GPT-2 paper: what adds to the residual stream starts smaller the more layers do.
    if (init.style == Init::kNormal && name.ends_with("c_proj.weight"))
      std /= std::sqrt(2.0 * static_cast<double>(config_.n_layer));
    nn::fill_normal(value, std, init.seed, name);
  }
  attention->initialize(init.seed, "attention");
}

void Gpt2Model::initialize_new(const Chosen& chosen, MemoryInit /*init*/, uint64_t seed) {
  attention->initialize([&](const std::string& own) { return chosen("attention." + own); }, seed, "attention");
}

}  // namespace palimpsest::models
