// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/nn/layers.h"

#include <set>

#include "palimpsest/core/random.h"
#include "palimpsest/core/threads.h"

namespace palimpsest::nn {

void Linear::quantize() {
  int8_ = kernels::quantize_rows(weight);
  weight.set_data(at::empty({0, weight.size(1)}, weight.options().requires_grad(false)));
}

Linear::Linear(int64_t in, int64_t out, const at::TensorOptions& options, bool with_bias) {
  weight = register_parameter("weight", at::empty({out, in}, options));
  if (with_bias) bias = register_parameter("bias", at::empty({out}, options));
}

InputMajorLinear::InputMajorLinear(int64_t in, int64_t out, const at::TensorOptions& options) {
  weight = register_parameter("weight", at::empty({in, out}, options));
  bias = register_parameter("bias", at::empty({out}, options));
}

at::Tensor InputMajorLinear::forward(const at::Tensor& x) const {
  if (int8_.defined()) return kernels::int8_linear(x, int8_, bias);
  const at::Tensor flat = x.reshape({-1, x.size(-1)});
  auto shape = x.sizes().vec();
  shape.back() = bias.size(0);
  return at::addmm(bias, flat, weight).view(shape);
}

void InputMajorLinear::quantize() {
  int8_ = kernels::quantize_rows(weight.t());
  weight.set_data(at::empty({weight.size(0), 0}, weight.options().requires_grad(false)));
}

LayerNorm::LayerNorm(int64_t width, double eps, const at::TensorOptions& options) : eps_(eps) {
  weight = register_parameter("weight", at::empty({width}, options));
  bias = register_parameter("bias", at::empty({width}, options));
}

Embedding::Embedding(int64_t rows, int64_t width, const at::TensorOptions& options) {
  weight = register_parameter("weight", at::empty({rows, width}, options));
}

at::Tensor feed_forward(const at::Tensor& x, const Linear& fc1, const Linear& fc2, Activation activation,
                        double activation_dropout, bool training) {
  return fc2.forward(nn::dropout(activate(activation, fc1.forward(x)), activation_dropout, training));
}

namespace {

/// Value i of `tensor` becomes draw(Random(a key of seed, name and i)).
template <class Draw>
void fill_counted(at::Tensor tensor, uint64_t seed, const std::string& name, Draw draw) {
  if (tensor.is_meta()) return;
  uint64_t name_key = 0;
  for (const char c : name) name_key = mix_bits(name_key ^ static_cast<unsigned char>(c));
  const uint64_t key = random_key(seed, name_key);
  at::Tensor values = at::empty(tensor.sizes(), at::kDouble);
  double* out = values.data_ptr<double>();
  parallel_for(values.numel(), 1 << 14, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) out[i] = draw(Random(random_key(key, i)));
  });
  const at::NoGradGuard no_grad;
  tensor.copy_(values);
}

}  // namespace

void fill_normal(at::Tensor tensor, double std, uint64_t seed, const std::string& name) {
  fill_counted(std::move(tensor), seed, name, [std](Random random) { return std * random.normal(); });
}

void fill_uniform(at::Tensor tensor, double bound, uint64_t seed, const std::string& name) {
  fill_counted(std::move(tensor), seed, name, [bound](Random random) { return bound * (2 * random.uniform() - 1); });
}

int64_t parameter_count(const torch::nn::Module& module) {
  std::set<const void*> seen;
  int64_t count = 0;
  for (const auto& parameter : module.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) count += parameter.numel();
  }
  return count;
}

}  // namespace palimpsest::nn
