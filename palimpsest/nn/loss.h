// SPDX-License-Identifier: Apache-2.0
// Losses over targets where -100 means "no target".
#pragma once

#include <ATen/ATen.h>

#include <functional>

namespace palimpsest::nn {

constexpr int64_t kIgnore = -100;

/// Total negative log-likelihood and the number of targets it is over.
struct TargetLoss {
  at::Tensor nll;  ///< scalar; 0 (with a zero gradient) where there is no target, never NaN
  int64_t targets = 0;
};

/// logits [N, V] (or [.., V]), targets [N] (int64, kIgnore = none). The sum over the targets, in float32 at least.
/// With `label_smoothing` e, a target's loss is (1 - e) nll + e * mean over the vocabulary of -log p: as in PyTorch and
/// Hugging Face, and never of targets that are none.
TargetLoss target_loss(const at::Tensor& logits, const at::Tensor& targets, double label_smoothing = 0);
/// The negative log-likelihood of each target, 0 where there is none; the shape of `targets`.
at::Tensor each_loss(const at::Tensor& logits, const at::Tensor& targets);

struct ProjectedLossOptions {
  double label_smoothing = 0;
  /// A table of logits [N, V] of more bytes is never built: parts of that size follow one another.
  int64_t table_bytes = int64_t{64} << 20;
};

/// target_loss of logits = hidden W^T + bias, of which only a part is ever in memory: forward keeps one number a row and
/// the last part, backward begins with that and computes each other part again (4 products instead of 3). Rows without a target cost nothing. Small tables take
/// the plain way, which is the twin and gives the same numbers.
///   hidden [.., E], weight [V, E], bias [V] or undefined, targets [..] int64 (kIgnore = none).
/// First derivatives only.
TargetLoss projected_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& targets, const ProjectedLossOptions& options = {});
/// each_loss for evaluation, without a graph: `logits_of` gives the logits [n, V] of hidden rows [n, E], and is asked
/// for no more than `table_bytes` of them at a time. hidden [.., E], targets [..], vocab = V.
at::Tensor each_loss_in_parts(const at::Tensor& hidden, const at::Tensor& targets, int64_t vocab,
                              const std::function<at::Tensor(const at::Tensor&)>& logits_of,
                              int64_t table_bytes = ProjectedLossOptions{}.table_bytes);

/// Decoder inputs for given labels: labels shifted right behind `start`; kIgnore becomes `pad`
/// (it must never reach an embedding). labels [B, T] int64.
at::Tensor shift_right(const at::Tensor& labels, int64_t start, int64_t pad);

}  // namespace palimpsest::nn
