// SPDX-License-Identifier: Apache-2.0
// Linear maps of a few rows: what decoding does. Such a product is bound by reading the weights, so each weight is read
// once for all rows, and may be stored in 8 bits.
#pragma once

#include <ATen/ATen.h>

#include "palimpsest/kernels/isa.h"

namespace palimpsest::kernels {

/// The most rows for which reading the weights is what takes the time.
constexpr int64_t kFewRows = 8;

/// True where `few_rows_linear` may stand for at::linear: CPU, float32, at most kFewRows rows, no graph to be built.
bool few_rows_fit(const at::Tensor& x, const at::Tensor& weight);

/// y = x W^T + b. x [.., K] with at most kFewRows rows, weight [N, K], bias [N] or undefined; float32 on the CPU. Row r
/// of the result does not depend on the other rows, bit for bit. The plain twin is at::linear.
at::Tensor few_rows_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           Isa isa = chosen_isa());

/// Weights in 8 bits: row n is values[n] * scales[n], values from -127 to 127.
struct Int8Weight {
  at::Tensor values;  ///< [N, K] int8
  at::Tensor scales;  ///< [N] float32
  bool defined() const { return values.defined(); }
  /// The float32 weights that it stands for, [N, K].
  at::Tensor dequantized() const;
};

/// Rounds to nearest, with one scale a row: each row's largest magnitude is 127. weight [N, K].
Int8Weight quantize_rows(const at::Tensor& weight);

/// y = x W^T + b in float32 with W as `weight` stands for it, for any number of rows. The plain twin is at::linear with
/// `weight.dequantized()`; few rows never build that.
at::Tensor int8_linear(const at::Tensor& x, const Int8Weight& weight, const at::Tensor& bias, Isa isa = chosen_isa());

}  // namespace palimpsest::kernels
