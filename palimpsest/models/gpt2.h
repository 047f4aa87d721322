// SPDX-License-Identifier: Apache-2.0
// The GPT-2 decoder: pre-norm layers, learned positions, a tied output embedding. Assembly only.
#pragma once

#include <string>
#include <vector>

#include "palimpsest/attention/mechanism_stack.h"
#include "palimpsest/attention/state.h"
#include "palimpsest/core/json.h"
#include "palimpsest/memory/memory_stream.h"
#include "palimpsest/models/model.h"
#include "palimpsest/models/positions.h"

namespace palimpsest::models {

/// The keys of a Hugging Face config.json.
struct Gpt2Config {
  int64_t vocab_size = 50257;
  int64_t n_positions = 1024;
  int64_t n_embd = 768, n_layer = 12, n_head = 12;
  int64_t n_inner = 0;  ///< 0: 4 * n_embd
  nn::Activation activation = nn::Activation::kGeluTanh;
  double resid_pdrop = 0.1, embd_pdrop = 0.1, attn_pdrop = 0.1;
  double layer_norm_epsilon = 1e-5, initializer_range = 0.02;
  bool scale_attn_weights = true, scale_attn_by_inverse_layer_idx = false;
  bool tie_word_embeddings = true;
  int64_t bos_token_id = 50256, eos_token_id = 50256;
  int64_t pad_token_id = -1;        ///< -1: none
  std::string attention = "dense";  ///< the mechanism of each layer
  Positions positions;

  int64_t inner() const { return n_inner > 0 ? n_inner : 4 * n_embd; }
  /// An input error names a missing size, and whatever would change the numbers and is not supported.
  static Gpt2Config from_json(const Json& json, const std::string& source);
  Json to_json() const;
};

/// What decoding keeps between steps, per row: what each mechanism keeps under "layer.N".
struct CausalState {
  attention::State rows;
  int64_t columns = 0;  ///< read so far, padding included
  int64_t bytes() const { return rows.bytes(); }
};

/// One layer; names as in Hugging Face's GPT-2.
class Gpt2Layer : public torch::nn::Module {
 public:
  Gpt2Layer(const Gpt2Config& config, int64_t index, const at::TensorOptions& options);
  struct Attention : torch::nn::Module {
    Attention(const Gpt2Config& config, const at::TensorOptions& options);
    std::shared_ptr<nn::InputMajorLinear> c_attn, c_proj;  ///< c_attn: queries, keys and values side by side
  };
  struct FeedForward : torch::nn::Module {
    FeedForward(const Gpt2Config& config, const at::TensorOptions& options);
    std::shared_ptr<nn::InputMajorLinear> c_fc, c_proj;
  };
  std::shared_ptr<nn::LayerNorm> ln_1, ln_2;
  std::shared_ptr<Attention> attn;
  std::shared_ptr<FeedForward> mlp;

  /// rows [B, T, E]; mask [B, T] bool or undefined; `state` may be null.
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& mask, const attention::Mechanism& mechanism,
                     attention::State* state, const memory::Observer& observe) const;

 private:
  int64_t index_, heads_;
  double scale_, attention_dropout_, residual_dropout_;
  nn::Activation activation_;
};

class Gpt2Model : public Model {
 public:
  explicit Gpt2Model(const Gpt2Config& config, const at::TensorOptions& options = {});

  const Gpt2Config& config() const { return config_; }
  const char* family() const override { return "gpt2"; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  double init_std() const override { return config_.initializer_range; }
  Json config_json() const override { return config_.to_json(); }
  bool decoder_only() const override { return true; }
  /// A row is written from where the text before it ended, so the start token is eos.
  FamilyIds ids() const override;
  int64_t positions() const override { return config_.n_positions; }
  int64_t room_for_target(int64_t read) const override {
    return config_.positions.endless() ? kNoEnd : positions() - read - 1;
  }
  const at::Tensor& words() const override { return wte->weight; }
  std::vector<at::Tensor> embedding_tables() const override { return {wte->weight, wpe->weight}; }
  OutputTable output_table() const override { return {lm_head->weight, {}}; }
  const memory::MemoryOptions& memory_options() const override { return no_memory_; }
  memory::Memory fresh_memory(int64_t /*batch*/) const override { return {}; }

  /// Takes the prompt down, padded on the left.
  EncoderOutput encode(const EncodeInput& input) const override;
  /// The rows after the prompt.
  at::Tensor decode(const at::Tensor& ids, const at::Tensor& mask, const EncoderOutput& encoded) const override;

  /// Hidden rows after the last norm, [B, T, E]. ids [B, T]; mask [B, S] bool (true = real) over the S = state length +
  /// T columns so far, or undefined where nothing is padded. A token's position is the number of real tokens before
  /// it, so that a row padded on the left equals the row alone (FR-36). With a state, ids are the next tokens; many at
  /// once are read in slices, so that what a bounded mechanism needs stays bounded.
  /// `observe` receives "hidden_states.N" and "attentions.N".
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& mask, CausalState* state = nullptr,
                     const memory::Observer& observe = {}) const;
  /// [.., E] -> [.., V]
  at::Tensor logits(const at::Tensor& hidden) const override;
  void quantize() override;

  void initialize(const Init& init) override;
  void initialize_new(const Chosen& chosen, MemoryInit init, uint64_t seed) override;

  std::shared_ptr<nn::Embedding> wte, wpe;
  std::shared_ptr<nn::Embedding> lm_head;  ///< wte where embeddings are tied
  std::vector<std::shared_ptr<Gpt2Layer>> layers;
  std::shared_ptr<attention::MechanismStack> attention;
  std::shared_ptr<nn::LayerNorm> ln_f;

 private:
  at::Tensor read(const at::Tensor& ids, const at::Tensor& position, const at::Tensor& mask, attention::State* state,
                  const memory::Observer& observe) const;

  Gpt2Config config_;
  memory::MemoryOptions no_memory_;
  kernels::Int8Weight output_int8_;
};

}  // namespace palimpsest::models
