// SPDX-License-Identifier: Apache-2.0
// A memory is a second stream of slots beside the tokens (DESIGN section 1, ALGORITHMS 3.2): at every layer the slots
// have queries, they read the tokens and themselves, the tokens read them, and a feed-forward follows.
#pragma once

#include <functional>
#include <string>

#include "palimpsest/attention/multi_head.h"

namespace palimpsest::memory {

/// All that is carried from one segment to the next.
struct Memory {
  at::Tensor slots;  ///< [B, M, E]; undefined without a memory
  int64_t bytes() const { return slots.defined() ? static_cast<int64_t>(slots.nbytes()) : 0; }
};

/// Rows whose reset is true become 0, bit for bit and gradient and all: a select, since 0 * NaN would stay NaN.
/// reset [B] bool, or undefined for none.
Memory select_reset(const Memory& memory, const at::Tensor& reset);

/// What a memory is, as text: "none", "membart:64", "membart:64,shared".
struct MemoryOptions {
  std::string kind = "none";  ///< none | membart
  int64_t slots = 0;          ///< M
  bool shared = false;        ///< slot rows use the layer's own weights
  bool enabled() const { return slots > 0; }
  /// Throws a usage error that names the kinds there are.
  static MemoryOptions parse(const std::string& text);
  std::string text() const;
};

/// Tokens [B, L, E] and slots [B, M, E] going through the layers together.
struct Rows {
  at::Tensor tokens, slots;
};

/// Receives named intermediate results ("slots.1", "gate", …) where somebody asked for them; empty otherwise.
using Observer = std::function<void(const std::string& name, const at::Tensor& value)>;

/// MemBART's memory: own slot weights at every layer (or the layer's, `shared`), reset, forgetting bias v_b, input norm
/// and residual gate. Holds weights only.
class MemoryStream : public torch::nn::Module {
 public:
  MemoryStream(const MemoryOptions& memory, int64_t layers, const attention::LayerShape& shape,
               const at::TensorOptions& options);

  /// M^1 = LN(select(r, 0, M_t) + v_b): what the layers start from and the old side of the gate.
  at::Tensor enter(const Memory& memory, const at::Tensor& reset) const;
  /// One encoder layer: token rows attend to [slots; tokens] in one softmax, a slot to the tokens and itself.
  /// `layer` holds the token stream's weights; key_mask [B, L] bool or undefined. With `visible` false tokens do not
  /// see slots.
  Rows layer(int64_t index, const attention::Block& layer, const Rows& rows, const at::Tensor& key_mask, bool visible,
             const Observer& observe) const;
  /// M_{t+1} = z M^{L+1} + (1 - z) M^1, z = sigmoid(W2 GELU(W1 M^{L+1} + b1) + b2): one scalar a slot.
  Memory leave(const at::Tensor& last, const at::Tensor& entered, const Observer& observe) const;

  /// A memory before anything was read: zeros [B, M, E]. With reset or without, `enter` makes LN(v_b) of it.
  Memory fresh(int64_t batch) const;

  /// The gate's two linear maps, named as the authors' checkpoint does.
  struct Gate : torch::nn::Module {
    Gate(int64_t width, const at::TensorOptions& options);
    std::shared_ptr<nn::Linear> dense, dense2;
  };

  std::vector<std::shared_ptr<attention::Block>> layers;  ///< own slot weights; empty when shared
  at::Tensor memory_bias;                                 ///< v_b [1, M, E]
  std::shared_ptr<nn::LayerNorm> memory_layer_norm;
  std::shared_ptr<Gate> memory_gate_net;

 private:
  MemoryOptions options_;
  double dropout_;
};

/// Logits of the decoder see [memory; tokens]: puts the slots before the hidden rows, and a visible mask before the key
/// mask (undefined stays undefined: everything visible). rows [B, L, E], mask [B, L] bool.
std::pair<at::Tensor, at::Tensor> with_memory(const Memory& memory, const at::Tensor& rows, const at::Tensor& mask);

}  // namespace palimpsest::memory
