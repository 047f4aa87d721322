// SPDX-License-Identifier: Apache-2.0
// Multi-head projections, and the post-norm block whose rows a memory stream shares or has of its own.
#pragma once

#include <memory>

#include "palimpsest/attention/partial.h"
#include "palimpsest/nn/layers.h"
#include "palimpsest/nn/shapes.h"

namespace palimpsest::attention {

/// Widths and rates of a layer; the rates act in training only.
struct LayerShape {
  int64_t width = 0;  ///< E
  int64_t heads = 0;  ///< H, a divisor of E
  int64_t inner = 0;  ///< F
  double epsilon = 1e-5;
  double dropout = 0, attention_dropout = 0, activation_dropout = 0;
  nn::Activation activation = nn::Activation::kGelu;
};

/// The four projections of multi-head attention; names as in Hugging Face's BART.
class MultiHead : public torch::nn::Module {
 public:
  MultiHead(const LayerShape& shape, const at::TensorOptions& options);
  /// [B, L, E] -> [B, H, L, D]
  at::Tensor query(const at::Tensor& x) const { return nn::split_heads(q_proj->forward(x), heads_); }
  at::Tensor key(const at::Tensor& x) const { return nn::split_heads(k_proj->forward(x), heads_); }
  at::Tensor value(const at::Tensor& x) const { return nn::split_heads(v_proj->forward(x), heads_); }
  /// [B, H, L, D] -> [B, L, E]
  at::Tensor output(const at::Tensor& attended) const { return out_proj->forward(nn::join_heads(attended)); }
  AttendOptions attend_options() const { return {.dropout = is_training() ? attention_dropout_ : 0}; }

  std::shared_ptr<nn::Linear> q_proj, k_proj, v_proj, out_proj;

 private:
  int64_t heads_;
  double attention_dropout_;
};

/// A post-norm layer around whatever its rows attend to:
///   x <- LN(x + O(attended)); x <- LN(x + FFN(x)).
class Block : public torch::nn::Module {
 public:
  Block(const LayerShape& shape, const at::TensorOptions& options);
  /// What remains of the layer once the rows x [B, L, E] have attended ([B, H, L, D]): feed(mix(x, attended)).
  at::Tensor finish(const at::Tensor& x, const at::Tensor& attended) const { return feed(mix(x, attended)); }
  /// LN(x + O(attended))
  at::Tensor mix(const at::Tensor& x, const at::Tensor& attended) const;
  /// LN(x + FFN(x))
  at::Tensor feed(const at::Tensor& mixed) const;

  std::shared_ptr<MultiHead> self_attn;
  std::shared_ptr<nn::LayerNorm> self_attn_layer_norm, final_layer_norm;
  std::shared_ptr<nn::Linear> fc1, fc2;

 private:
  LayerShape shape_;
};

}  // namespace palimpsest::attention
