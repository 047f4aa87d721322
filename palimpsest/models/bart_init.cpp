// SPDX-License-Identifier: Apache-2.0
// How a BART with or without memory starts.
#include <cmath>
#include <map>

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"
#include "palimpsest/models/bart.h"

namespace palimpsest::models {

namespace {

constexpr double kWordStd = 0.2, kPositionStd = 0.4;  // of the structured start; tokens and places weigh about the same
constexpr double kFeedForwardShare = 0.5;             // attention leads at first

bool ends_with(const std::string& text, const std::string& tail) {
  return text.size() >= tail.size() && text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

bool of_mechanism(const std::string& name) {
  return name.starts_with("encoder_attention.") || name.starts_with("decoder_attention.") ||
         name.starts_with("cross_attention.");
}

void make_orthogonal(const at::Tensor& weight, uint64_t seed, const std::string& name) {
  at::Tensor values = at::empty(weight.sizes(), at::kDouble);
  nn::fill_normal(values, 1.0, seed, name);
  const auto [q, r] = at::linalg_qr(values);
  weight.copy_(q * r.diagonal().sign());
}

/// (Not "tie": argument-dependent look-up would find std::tie first.)
void tie_projections(const attention::MultiHead& heads) {
  heads.k_proj->weight.copy_(heads.q_proj->weight);
  heads.out_proj->weight.copy_(heads.v_proj->weight.t());
}

}  // namespace

void BartModel::initialize(const Init& init) {
  const at::NoGradGuard no_grad;
  const bool structured = init.style == Init::kStructured;
  for (const auto& entry : named_parameters()) {
    const std::string& name = entry.key();
    const at::Tensor& value = entry.value();
    if (of_mechanism(name)) continue;
    if (ends_with(name, "memory_bias")) {
      nn::fill_normal(value, init.style == Init::kNormal ? init.slot_std : 1.0, init.seed, name);
    } else if (ends_with(name, ".bias") || ends_with(name, "attn_scale")) {
      value.zero_();
    } else if (value.dim() == 1) {
      value.fill_(1);  // norms
    } else if (ends_with(name, "shared.weight") || ends_with(name, "words.weight") ||
               ends_with(name, "lm_head.weight") || ends_with(name, "embed_positions.weight")) {
      nn::fill_normal(value, structured ? kWordStd * init.embedding_scale : init.std, init.seed, name);
    } else {
      const double scaled = 1.0 / std::sqrt(static_cast<double>(structured ? config_.d_model : value.size(1)));
      nn::fill_normal(value, init.style == Init::kNormal ? init.std : scaled, init.seed, name);
      if (structured && value.size(0) == value.size(1)) make_orthogonal(value, init.seed, name);
      if (structured && ends_with(name, "fc2.weight")) value.mul_(kFeedForwardShare);
    }
  }
  encoder_attention->initialize(init.seed, "encoder_attention");
  decoder_attention->initialize(init.seed, "decoder_attention");
  cross_attention->initialize(init.seed, "cross_attention");
  if (!structured || shared->weight.is_meta()) return;

  at::Tensor positions = at::empty({config_.max_position_embeddings, config_.d_model}, at::kDouble);
  nn::fill_normal(positions, kPositionStd * init.embedding_scale, init.seed, "positions");
  for (const auto& side : {encoder_embeddings, decoder_embeddings}) {
    const at::Tensor& table = side->embed_positions->weight;
    table.narrow(0, table.size(0) - positions.size(0), positions.size(0)).copy_(positions);
  }
  for (const auto& layer : encoder_layers) tie_projections(*layer->self_attn);
  for (const auto& layer : decoder_layers) {
    tie_projections(*layer->self_attn);
    tie_projections(*layer->encoder_attn);
  }
  if (!memory) return;
  for (size_t i = 0; i < memory->layers.size(); ++i) {
    attention::MultiHead &slots = *memory->layers[i]->self_attn, &tokens = *encoder_layers[i]->self_attn;
    slots.q_proj->weight.copy_(tokens.q_proj->weight);
    slots.v_proj->weight.copy_(tokens.v_proj->weight);
    tie_projections(slots);
  }
  for (const auto& reader : memory->readers) tie_projections(*reader->attn);
  if (memory->memory_writer) tie_projections(*memory->memory_writer->self_attn);
  const int64_t slots = memory->memory_bias.size(1),
                segment = init.segment > 0 ? std::min(init.segment, positions.size(0)) : positions.size(0);
  for (int64_t j = 0; j < slots; ++j) {
    const int64_t first = j * segment / slots, last = std::max(first + 1, (j + 1) * segment / slots);
    const at::Tensor place = positions.slice(0, first, last).sum(0);
    memory->memory_bias[0][j].copy_(place / place.std(0, /*unbiased=*/true));
  }
}

void BartModel::initialize_new(const Chosen& chosen, MemoryInit init, uint64_t seed) {
  initialize_memory(chosen, init, seed);
  for (const auto& [stack, name] :
       {std::pair(encoder_attention, "encoder_attention"), std::pair(decoder_attention, "decoder_attention"),
        std::pair(cross_attention, "cross_attention")}) {
    const std::string prefix = std::string(name) + ".";
    stack->initialize([&](const std::string& own) { return chosen(prefix + own); }, seed, name);
  }
}

void BartModel::initialize_memory(const Chosen& chosen, MemoryInit init, uint64_t seed) {
  if (!memory) return;
  const at::NoGradGuard no_grad;
  const double std = config_.d_model >= 1024 ? 0.001 : 0.01;
  std::map<std::string, at::Tensor> layer_weights;  // by the name that the memory's copy has
  if (init == MemoryInit::kCopy) {
    // MemBART's slot layers; Memformer's readers look at slots as the layer looks at tokens, its writer is the last
    // layer.
    for (size_t i = 0; i < encoder_layers.size(); ++i) {
      for (const auto& entry : encoder_layers[i]->named_parameters()) {
        layer_weights[fmt::format("layers_{}.{}", i, entry.key())] = entry.value();
        if (entry.key().starts_with("self_attn."))
          layer_weights[fmt::format("readers_{}.{}", i, entry.key().substr(5))] = entry.value();
        if (i + 1 == encoder_layers.size()) layer_weights["memory_writer." + entry.key()] = entry.value();
      }
    }
  }
  for (const auto& entry : memory->named_parameters()) {
    if (!chosen("memory." + entry.key())) continue;
    const at::Tensor& value = entry.value();
    if (const auto copied = layer_weights.find(entry.key()); copied != layer_weights.end()) {
      value.copy_(copied->second);
    } else if (ends_with(entry.key(), ".bias") || ends_with(entry.key(), "attn_scale")) {
      value.zero_();
    } else if (value.dim() == 1) {
      value.fill_(1);
    } else {
      nn::fill_normal(value, std, seed, "memory." + entry.key());
    }
  }
}

}  // namespace palimpsest::models
