// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/attention/multi_head.h"

#include "palimpsest/core/error.h"

namespace palimpsest::attention {

MultiHead::MultiHead(const LayerShape& shape, const at::TensorOptions& options)
    : heads_(shape.heads), attention_dropout_(shape.attention_dropout) {
  if (shape.heads < 1 || shape.width % shape.heads != 0) {
    throw usage_error(fmt::format("{} heads do not divide the width {}", shape.heads, shape.width), "",
                      "choose a number of heads that divides d_model");
  }
  const auto projection = [&](const char* name) {
    return register_module(name, std::make_shared<nn::Linear>(shape.width, shape.width, options));
  };
  k_proj = projection("k_proj");
  v_proj = projection("v_proj");
  q_proj = projection("q_proj");
  out_proj = projection("out_proj");
}

Block::Block(const LayerShape& shape, const at::TensorOptions& options) : shape_(shape) {
  self_attn = register_module("self_attn", std::make_shared<MultiHead>(shape, options));
  self_attn_layer_norm =
      register_module("self_attn_layer_norm", std::make_shared<nn::LayerNorm>(shape.width, shape.epsilon, options));
  fc1 = register_module("fc1", std::make_shared<nn::Linear>(shape.width, shape.inner, options));
  fc2 = register_module("fc2", std::make_shared<nn::Linear>(shape.inner, shape.width, options));
  final_layer_norm =
      register_module("final_layer_norm", std::make_shared<nn::LayerNorm>(shape.width, shape.epsilon, options));
}

at::Tensor Block::mix(const at::Tensor& x, const at::Tensor& attended) const {
  return self_attn_layer_norm->forward(x + nn::dropout(self_attn->output(attended), shape_.dropout, is_training()));
}

at::Tensor Block::feed(const at::Tensor& mixed) const {
  const bool training = is_training();
  const at::Tensor fed = nn::feed_forward(mixed, *fc1, *fc2, shape_.activation, shape_.activation_dropout, training);
  return final_layer_norm->forward(mixed + nn::dropout(fed, shape_.dropout, training));
}

}  // namespace palimpsest::attention
