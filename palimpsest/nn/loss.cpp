// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/nn/loss.h"

namespace palimpsest::nn {

namespace {
at::Tensor wide(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
}
}  // namespace

TargetLoss target_loss(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor flat = targets.reshape({-1});
  const int64_t count = flat.ne(kIgnore).sum().item<int64_t>();
  if (count == 0) return {logits.sum() * 0, 0};
  return {at::cross_entropy_loss(wide(logits.reshape({flat.size(0), -1})), flat, {}, at::Reduction::Sum, kIgnore),
          count};
}

at::Tensor each_loss(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor flat = targets.reshape({-1});
  if (flat.numel() == 0) return at::zeros(targets.sizes(), wide(logits).options());
  return at::cross_entropy_loss(wide(logits.reshape({flat.size(0), -1})), flat, {}, at::Reduction::None, kIgnore)
      .view(targets.sizes());
}

at::Tensor shift_right(const at::Tensor& labels, int64_t start, int64_t pad) {
  at::Tensor inputs = at::empty_like(labels);
  if (labels.size(1) == 0) return inputs;
  inputs.select(1, 0).fill_(start);
  inputs.slice(1, 1).copy_(labels.slice(1, 0, labels.size(1) - 1));
  return inputs.masked_fill_(inputs.eq(kIgnore), pad);
}

}  // namespace palimpsest::nn
