// SPDX-License-Identifier: Apache-2.0
// The small modules everything is made of. They are our own rather than torch::nn's because they take
// TensorOptions: a model can be built on the meta device (no memory) and filled from a memory map.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "palimpsest/kernels/few_rows_linear.h"
#include "palimpsest/kernels/linear.h"
#include "palimpsest/nn/activation.h"

namespace palimpsest::nn {

/// y = x W^T + b, W stored [out, in].
class Linear : public torch::nn::Module {
 public:
  Linear(int64_t in, int64_t out, const at::TensorOptions& options, bool with_bias = true);
  at::Tensor forward(const at::Tensor& x) const {
    return int8_.defined() ? kernels::int8_linear(x, int8_, bias) : kernels::linear(x, weight, bias);
  }
  /// From now on the weights are those that 8 bits a weight can hold (kernels/few_rows_linear.h): `weight` is given up.
  /// For inference in float32 on the CPU.
  void quantize();
  at::Tensor weight, bias;  ///< [out, in], [out] (undefined without bias)

 private:
  kernels::Int8Weight int8_;
};

/// y = x W + b, W stored [in, out]: how GPT-2 keeps its linear maps.
class InputMajorLinear : public torch::nn::Module {
 public:
  InputMajorLinear(int64_t in, int64_t out, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x) const;
  void quantize();          ///< as Linear's
  at::Tensor weight, bias;  ///< [in, out], [out]

 private:
  kernels::Int8Weight int8_;  ///< of the transposed weights, [out, in]
};

/// g * (x - mean) / sqrt(var + eps) + b over the last axis, biased variance.
class LayerNorm : public torch::nn::Module {
 public:
  LayerNorm(int64_t width, double eps, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x) const { return at::layer_norm(x, weight.sizes(), weight, bias, eps_); }
  at::Tensor weight, bias;  ///< [width], [width]

 private:
  double eps_;
};

/// A table of rows, [rows, width].
class Embedding : public torch::nn::Module {
 public:
  Embedding(int64_t rows, int64_t width, const at::TensorOptions& options);
  /// ids: integers of any shape; adds the axis `width`.
  at::Tensor forward(const at::Tensor& ids) const { return at::embedding(weight, ids); }
  at::Tensor weight;
};

/// Dropout that is off outside training; draws from torch's generator, which the trainer seeds at each step.
inline at::Tensor dropout(const at::Tensor& x, double rate, bool training) {
  return rate > 0 && training ? at::dropout(x, rate, true) : x;
}

/// fc2(activation(fc1(x))); `activation_dropout` between the two.
at::Tensor feed_forward(const at::Tensor& x, const Linear& fc1, const Linear& fc2, Activation activation,
                        double activation_dropout, bool training);

/// Fills parameters with normal numbers of a counter-based generator: value i of a tensor depends on (seed,
/// the tensor's name, i) alone, whatever the number of threads.
void fill_normal(at::Tensor tensor, double std, uint64_t seed, const std::string& name);
/// The same with numbers from -bound to bound.
void fill_uniform(at::Tensor tensor, double bound, uint64_t seed, const std::string& name);

/// Parameters, with tied ones once.
int64_t parameter_count(const torch::nn::Module& module);

}  // namespace palimpsest::nn
