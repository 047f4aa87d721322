// SPDX-License-Identifier: Apache-2.0
// BART and GPT-2 as plainly as they can be written: one row, no padding, no caches, the whole prefix at every step.
// An oracle for the decoders that have all of these.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/generate/goldens.h"
#include "tests/generate/plain_safetensors.h"
#include "tests/generate/row_decoder.h"

namespace palimpsest::test {

struct PlainWeights {
  std::map<std::string, at::Tensor> tensors;
  int64_t heads = 4;

  const at::Tensor& at(const std::string& name) const { return tensors.at(name); }
  /// Weight [out, in], as torch's Linear.
  at::Tensor linear(const at::Tensor& rows, const std::string& name) const {
    return at::linear(rows, at(name + ".weight"), at(name + ".bias"));
  }
  at::Tensor norm(const at::Tensor& rows, const std::string& name) const {
    return at::layer_norm(rows, {rows.size(-1)}, at(name + ".weight"), at(name + ".bias"), 1e-5);
  }
};

/// q [L, E], k and v [S, E].
inline at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t heads,
                                  bool causal) {
  const auto split = [&](const at::Tensor& rows) {
    return rows.reshape({rows.size(0), heads, rows.size(1) / heads}).transpose(0, 1);  // [H, L, D]
  };
  at::Tensor scores = split(q).matmul(split(k).transpose(1, 2)) / std::sqrt(static_cast<double>(q.size(1) / heads));
  if (causal) {
    const at::Tensor hidden = at::ones({q.size(0), k.size(0)}, at::kBool).triu(1);
    scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  }
  return scores.softmax(-1).matmul(split(v)).transpose(0, 1).reshape(q.sizes());
}

class PlainBart {
 public:
  explicit PlainBart(const std::string& folder)
      : weights_{read_plain_safetensors(folder + "/model.safetensors")},
        layers_(read_json(folder + "/config.json").at("decoder_layers").get<int64_t>()) {}

  /// [S, E] of unpadded ids.
  at::Tensor encode(const std::vector<int64_t>& ids) const {
    at::Tensor rows = embed(ids, "model.encoder.");
    for (int64_t i = 0; i < layers_; ++i) {
      const std::string layer = "model.encoder.layers." + std::to_string(i) + ".";
      rows = attend(rows, rows, layer + "self_attn", false);
      rows = feed(rows, layer);
    }
    return rows;
  }
  /// [V]: what follows ids.
  at::Tensor logits(const std::vector<int64_t>& ids, const at::Tensor& encoded) const {
    at::Tensor rows = embed(ids, "model.decoder.");
    for (int64_t i = 0; i < layers_; ++i) {
      const std::string layer = "model.decoder.layers." + std::to_string(i) + ".";
      rows = attend(rows, rows, layer + "self_attn", true);
      rows = attend(rows, encoded, layer + "encoder_attn", false);
      rows = feed(rows, layer);
    }
    return at::matmul(weights_.at("model.shared.weight"), rows[-1]) + weights_.at("final_logits_bias")[0];
  }

 private:
  at::Tensor embed(const std::vector<int64_t>& ids, const std::string& side) const {
    const at::Tensor words = weights_.at("model.shared.weight").index_select(0, at::tensor(ids, at::kLong));
    const at::Tensor places =
        weights_.at(side + "embed_positions.weight").narrow(0, 2, static_cast<int64_t>(ids.size()));
    return weights_.norm(words + places, side + "layernorm_embedding");
  }
  at::Tensor attend(const at::Tensor& rows, const at::Tensor& context, const std::string& name, bool causal) const {
    const at::Tensor mixed =
        plain_attention(weights_.linear(rows, name + ".q_proj"), weights_.linear(context, name + ".k_proj"),
                        weights_.linear(context, name + ".v_proj"), weights_.heads, causal);
    return weights_.norm(rows + weights_.linear(mixed, name + ".out_proj"), name + "_layer_norm");
  }
  at::Tensor feed(const at::Tensor& rows, const std::string& layer) const {
    const at::Tensor wide = at::gelu(weights_.linear(rows, layer + "fc1"));
    return weights_.norm(rows + weights_.linear(wide, layer + "fc2"), layer + "final_layer_norm");
  }

  PlainWeights weights_;
  int64_t layers_;
};

class PlainGpt2 {
 public:
  explicit PlainGpt2(const std::string& folder)
      : weights_{read_plain_safetensors(folder + "/model.safetensors")},
        layers_(read_json(folder + "/config.json").at("n_layer").get<int64_t>()) {}

  /// [V]: what follows unpadded ids.
  at::Tensor logits(const std::vector<int64_t>& ids) const {
    const at::Tensor& table = weights_.at("transformer.wte.weight");
    at::Tensor rows = table.index_select(0, at::tensor(ids, at::kLong)) +
                      weights_.at("transformer.wpe.weight").narrow(0, 0, static_cast<int64_t>(ids.size()));
    for (int64_t i = 0; i < layers_; ++i) {
      const std::string layer = "transformer.h." + std::to_string(i) + ".";
      const auto parts = project(weights_.norm(rows, layer + "ln_1"), layer + "attn.c_attn").chunk(3, -1);
      const at::Tensor mixed = plain_attention(parts[0], parts[1], parts[2], weights_.heads, true);
      rows = rows + project(mixed, layer + "attn.c_proj");
      const at::Tensor wide = project(weights_.norm(rows, layer + "ln_2"), layer + "mlp.c_fc");
      rows = rows + project(at::gelu(wide, "tanh"), layer + "mlp.c_proj");
    }
    return at::matmul(table, weights_.norm(rows, "transformer.ln_f")[-1]);
  }

 private:
  // Weight [in, out].
  at::Tensor project(const at::Tensor& rows, const std::string& name) const {
    return at::matmul(rows, weights_.at(name + ".weight")) + weights_.at(name + ".bias");
  }

  PlainWeights weights_;
  int64_t layers_;
};

/// The ids whose mask is 1.
inline std::vector<int64_t> unmasked(const std::vector<int64_t>& ids, const std::vector<int64_t>& mask) {
  std::vector<int64_t> real;
  for (size_t i = 0; i < ids.size(); ++i)
    if (mask[i] != 0) real.push_back(ids[i]);
  return real;
}

/// A decoder of a model's goldens (all rows of `input`) over the plain models.
inline std::unique_ptr<generate::Decoder> plain_decoder(const GoldenModel& golden) {
  if (golden.family == "bart") {
    const auto model = std::make_shared<PlainBart>(golden.folder);
    std::vector<at::Tensor> encoded;
    for (size_t i = 0; i < golden.input_ids.size(); ++i)
      encoded.push_back(model->encode(unmasked(golden.input_ids[i], golden.attention_mask[i])));
    return std::make_unique<RowDecoder>(
        std::vector<std::vector<int64_t>>(golden.input_ids.size(), {golden.decoder_start}), golden.vocab_size,
        [model, encoded](int64_t item, const std::vector<int64_t>& ids) {
          return model->logits(ids, encoded[static_cast<size_t>(item)]);
        });
  }
  const auto model = std::make_shared<PlainGpt2>(golden.folder);
  std::vector<int64_t> padding;
  for (const auto& mask : golden.attention_mask)
    padding.push_back(std::find(mask.begin(), mask.end(), 1) - mask.begin());
  auto decoder = std::make_unique<RowDecoder>(
      golden.input_ids, golden.vocab_size, [model, padding](int64_t item, const std::vector<int64_t>& ids) {
        return model->logits({ids.begin() + padding[static_cast<size_t>(item)], ids.end()});
      });
  decoder->padding = padding;
  return decoder;
}

}  // namespace palimpsest::test
