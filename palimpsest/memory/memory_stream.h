// SPDX-License-Identifier: Apache-2.0
// A memory is a second stream of slots beside the tokens (DESIGN section 1, ALGORITHMS 3.2): at every layer the slots
// have queries, they read the tokens and themselves, the tokens read them, and a feed-forward follows.
#pragma once

#include <functional>
#include <string>

#include "palimpsest/attention/mechanism.h"
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

/// What a memory is, as text: "none", or a kind with its slots and settings:
///   membart:64           slots are written at every layer with weights of their own, and gated (ALGORITHMS 3.2)
///   membart:64,shared    … with the layers' own weights
///   memformer:64         tokens read by a cross-attention of each layer, slots are written after the last (3.3)
///   memformer:64,rezero  … what is read is scaled by a, which starts at 0, instead of normalised
///   l2                   (any kind) slots are divided by their length instead of layer-normalised when a segment
///   begins gate                 (memformer) MemBART's residual gate at the end of a segment
struct MemoryOptions {
  std::string kind = "none";  ///< none | membart | memformer
  int64_t slots = 0;          ///< M
  bool shared = false, rezero = false, l2 = false, gate = false;
  bool enabled() const { return slots > 0; }
  bool is_memformer() const { return kind == "memformer"; }
  /// Throws a usage error that names the kinds and settings there are.
  static MemoryOptions parse(const std::string& text);
  std::string text() const;
};

/// Tokens [B, L, E] and slots [B, M, E] going through the layers together.
struct Rows {
  at::Tensor tokens, slots;
};

/// Receives named intermediate results ("slots.1", "gate", …) where somebody asked for them; empty otherwise.
using Observer = std::function<void(const std::string& name, const at::Tensor& value)>;

/// The memory of MemBART (own slot weights at every layer, or the layer's, `shared`; reset, forgetting bias v_b, input
/// norm and residual gate) or of Memformer (readers in each layer, one writer). Holds weights only.
class MemoryStream : public torch::nn::Module {
 public:
  MemoryStream(const MemoryOptions& memory, int64_t layers, const attention::LayerShape& shape,
               const at::TensorOptions& options);

  /// M^1 = norm(select(r, 0, M_t) + v_b), the norm LN or division by the length: what the layers start from and the old
  /// side of the gate.
  at::Tensor enter(const Memory& memory, const at::Tensor& reset) const;
  /// One encoder layer. MemBART: token rows attend to [slots; what `mechanism` shows them] in one softmax, a slot to
  /// all tokens and itself. Memformer: token rows attend as `mechanism` says, then to the slots, which stay as they
  /// are. `layer` holds the token stream's weights, `tokens` what they made of rows.tokens. With `visible` false tokens
  /// do not see slots.
  Rows layer(int64_t index, const attention::Block& layer, const Rows& rows, const attention::Mechanism& mechanism,
             const attention::AttentionInput& tokens, bool visible, const Observer& observe) const;
  /// What is carried on. MemBART: M_{t+1} = z M^{L+1} + (1 - z) M^1, z = sigmoid(W2 GELU(W1 M^{L+1} + b1) + b2), one
  /// scalar a slot. Memformer first writes: each slot attends to the last layer's tokens and itself. `last`: after all
  /// layers.
  Memory leave(const Rows& last, const at::Tensor& entered, const at::Tensor& key_mask, const Observer& observe) const;

  /// A memory before anything was read: zeros [B, M, E]. With reset or without, `enter` makes norm(v_b) of it.
  Memory fresh(int64_t batch) const;

  /// The gate's two linear maps, named as the authors' checkpoint does.
  struct Gate : torch::nn::Module {
    Gate(int64_t width, const at::TensorOptions& options);
    std::shared_ptr<nn::Linear> dense, dense2;
  };
  /// Memformer's reading: x <- LN(x + O(attention of x to the slots)), or x + a O(…) with rezero.
  struct Reader : torch::nn::Module {
    Reader(const attention::LayerShape& shape, bool rezero, const at::TensorOptions& options);
    std::shared_ptr<attention::MultiHead> attn;
    std::shared_ptr<nn::LayerNorm> attn_layer_norm;  ///< null with rezero
    at::Tensor attn_scale;                           ///< a [1], rezero only; starts at 0
  };

  std::vector<std::shared_ptr<attention::Block>> layers;  ///< MemBART's own slot weights; empty when shared
  std::vector<std::shared_ptr<Reader>> readers;           ///< Memformer's
  std::shared_ptr<attention::Block> memory_writer;        ///< Memformer's, else null
  at::Tensor memory_bias;                                 ///< v_b [1, M, E]
  std::shared_ptr<nn::LayerNorm> memory_layer_norm;       ///< null with l2
  std::shared_ptr<Gate> memory_gate_net;                  ///< null for a Memformer without gate

 private:
  at::Tensor read(int64_t index, const at::Tensor& tokens, const at::Tensor& slots, const Observer& observe) const;

  MemoryOptions options_;
  double dropout_;
};

/// Logits of the decoder see [memory; tokens]: puts the slots before the hidden rows, and a visible mask before the key
/// mask (undefined stays undefined: everything visible). rows [B, L, E], mask [B, L] bool.
std::pair<at::Tensor, at::Tensor> with_memory(const Memory& memory, const at::Tensor& rows, const at::Tensor& mask);

}  // namespace palimpsest::memory
