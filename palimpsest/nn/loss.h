// SPDX-License-Identifier: Apache-2.0
// Losses over targets where -100 means "no target".
#pragma once

#include <ATen/ATen.h>

namespace palimpsest::nn {

constexpr int64_t kIgnore = -100;

/// Total negative log-likelihood and the number of targets it is over.
struct TargetLoss {
  at::Tensor nll;  ///< scalar; 0 (with a zero gradient) where there is no target, never NaN
  int64_t targets = 0;
};

/// logits [N, V] (or [.., V]), targets [N] (int64, kIgnore = none). The sum over the targets, in float32 at least.
TargetLoss target_loss(const at::Tensor& logits, const at::Tensor& targets);
/// The negative log-likelihood of each target, 0 where there is none; the shape of `targets`.
at::Tensor each_loss(const at::Tensor& logits, const at::Tensor& targets);

/// Decoder inputs for given labels: labels shifted right behind `start`; kIgnore becomes `pad`
/// (it must never reach an embedding). labels [B, T] int64.
at::Tensor shift_right(const at::Tensor& labels, int64_t start, int64_t pad);

}  // namespace palimpsest::nn
