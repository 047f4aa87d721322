// SPDX-License-Identifier: Apache-2.0
// The BART encoder-decoder (post-norm, learned positions with offset 2, exact GELU), with or without a memory beside
// the encoder's tokens: MemBART. Assembly only; ALGORITHMS 3.2.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "palimpsest/attention/mechanism_stack.h"
#include "palimpsest/attention/state.h"
#include "palimpsest/core/json.h"
#include "palimpsest/memory/memory_stream.h"
#include "palimpsest/models/model.h"
#include "palimpsest/models/positions.h"

namespace palimpsest::models {

/// The keys of a Hugging Face config.json, and what the `palimpsest` object adds.
struct BartConfig {
  int64_t vocab_size = 50265;
  int64_t d_model = 768;
  int64_t encoder_layers = 6, decoder_layers = 6;
  int64_t encoder_attention_heads = 12, decoder_attention_heads = 12;
  int64_t encoder_ffn_dim = 3072, decoder_ffn_dim = 3072;
  int64_t max_position_embeddings = 1024;
  double dropout = 0.1, attention_dropout = 0, activation_dropout = 0;
  nn::Activation activation = nn::Activation::kGelu;
  bool scale_embedding = false;
  bool tie_word_embeddings = true;  ///< one table for encoder, decoder and output; else each has its own
  int64_t pad_token_id = 1, bos_token_id = 0, eos_token_id = 2, decoder_start_token_id = 2;
  double init_std = 0.02;
  memory::MemoryOptions memory;
  bool decoder_sees_memory = true;  ///< the decoder attends to [memory; tokens], else to the tokens alone
  /// The mechanism of each layer: of the encoder's tokens, of the decoder's, and of the decoder's look at its source.
  std::string encoder_attention = "dense", decoder_attention = "dense", cross_attention = "dense";
  Positions positions;

  attention::LayerShape encoder_shape() const;
  attention::LayerShape decoder_shape() const;

  static BartConfig base();   ///< 6 + 6 layers, d 768
  static BartConfig large();  ///< 12 + 12 layers, d 1024
  /// Reads a config.json; a missing size, an activation or family not supported is an input error that names it.
  static BartConfig from_json(const Json& json, const std::string& source);
  /// The config.json, with the `palimpsest` object where there is a memory.
  Json to_json() const;
};

/// What decoding keeps between steps.
struct DecoderState {
  attention::State rows;    ///< per row: what each mechanism keeps of the tokens so far, under "layer.N"
  attention::State source;  ///< per item: what is read of the context, "layer.N.key" and "layer.N.value", made once
  int64_t columns = 0;      ///< tokens read so far
  int64_t bytes() const { return rows.bytes() + source.bytes(); }
};

/// One decoder layer; names as in Hugging Face's BART.
class DecoderLayer : public torch::nn::Module {
 public:
  DecoderLayer(const attention::LayerShape& shape, const at::TensorOptions& options);
  std::shared_ptr<attention::MultiHead> self_attn, encoder_attn;
  std::shared_ptr<nn::LayerNorm> self_attn_layer_norm, encoder_attn_layer_norm, final_layer_norm;
  std::shared_ptr<nn::Linear> fc1, fc2;

  /// rows [R, T, E], R a multiple of the B sources: rows of one source lie together. `state` may be null.
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& mask, const EncoderOutput& encoded,
                     const attention::Mechanism& own_mechanism, const attention::Mechanism& cross_mechanism,
                     attention::LayerCarry& carry, DecoderState* state, const std::string& name) const;

 private:
  attention::Source source(const EncoderOutput& encoded, const attention::Mechanism& mechanism,
                           attention::LayerCarry& carry, DecoderState* state, const std::string& name) const;

  attention::LayerShape shape_;
};

/// Token and position embeddings with their norm: LN(word + position), dropout.
class Embeddings : public torch::nn::Module {
 public:
  Embeddings(const BartConfig& config, const at::TensorOptions& options);
  /// `first`: the position of ids[:, 0]. Past the table: a usage error that gives the limit.
  at::Tensor forward(const nn::Embedding& words, const at::Tensor& ids, int64_t first, const char* side) const;
  std::shared_ptr<nn::Embedding> embed_positions;
  std::shared_ptr<nn::LayerNorm> layernorm_embedding;

 private:
  double scale_, dropout_;
  Positions positions_;
};

class BartModel : public Model {
 public:
  using Init = models::Init;
  explicit BartModel(const BartConfig& config, const at::TensorOptions& options = {});

  const BartConfig& config() const { return config_; }
  const char* family() const override { return "bart"; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  double init_std() const override { return config_.init_std; }
  Json config_json() const override { return config_.to_json(); }
  bool decoder_only() const override { return false; }
  FamilyIds ids() const override;
  int64_t positions() const override { return config_.max_position_embeddings; }
  int64_t room_for_target(int64_t /*read*/) const override {
    return config_.positions.endless() ? kNoEnd : positions() - 1;
  }
  const at::Tensor& words() const override { return shared->weight; }
  std::vector<at::Tensor> embedding_tables() const override;
  OutputTable output_table() const override { return {lm_head->weight, final_logits_bias.view({-1})}; }
  const memory::MemoryOptions& memory_options() const override { return config_.memory; }

  EncoderOutput encode(const EncodeInput& input) const override;

  /// Hidden rows of the decoder, [R, T, E]. ids [R, T], R a multiple of the B sources, rows of one source together;
  /// mask [R, T] bool or undefined. With a state, ids are the *next* tokens and the state is carried on; without, the
  /// whole sequence. `observe` receives "decoder_hidden_states.N".
  at::Tensor decode(const at::Tensor& ids, const at::Tensor& mask, const EncoderOutput& encoded, DecoderState* state,
                    const memory::Observer& observe = {}) const;
  at::Tensor decode(const at::Tensor& ids, const at::Tensor& mask, const EncoderOutput& encoded) const override {
    return decode(ids, mask, encoded, nullptr);
  }
  /// [.., E] -> [.., V]: the output embedding, plus the final bias.
  at::Tensor logits(const at::Tensor& hidden) const override;

  void quantize() override;

  memory::Memory fresh_memory(int64_t batch) const override;

  void initialize(const Init& init) override;
  void initialize_new(const Chosen& chosen, MemoryInit init, uint64_t seed) override;

  std::shared_ptr<nn::Embedding> shared;
  /// The same table as `shared` where embeddings are tied.
  std::shared_ptr<nn::Embedding> encoder_words, decoder_words;
  std::shared_ptr<nn::Embedding> lm_head;
  std::shared_ptr<Embeddings> encoder_embeddings, decoder_embeddings;
  std::vector<std::shared_ptr<attention::Block>> encoder_layers;
  std::vector<std::shared_ptr<DecoderLayer>> decoder_layers;
  std::shared_ptr<memory::MemoryStream> memory;  ///< null without a memory
  std::shared_ptr<attention::MechanismStack> encoder_attention, decoder_attention, cross_attention;
  at::Tensor final_logits_bias;  ///< [1, V], a buffer (BART's own; not trained)

 private:
  at::Tensor read(const at::Tensor& ids, const at::Tensor& mask, const EncoderOutput& encoded, int64_t first,
                  DecoderState* state, const memory::Observer& observe) const;
  void initialize_memory(const Chosen& chosen, MemoryInit init, uint64_t seed);

  BartConfig config_;
  kernels::Int8Weight output_int8_;
};

}  // namespace palimpsest::models
