// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/nn/loss.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "palimpsest/core/error.h"
#include "palimpsest/kernels/linear.h"
#include "palimpsest/nn/layers.h"

namespace palimpsest::nn {

namespace {

at::Tensor wide(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
}

/// How many rows of logits [.., V] (float32, or float64) fit into `bytes`; 1 at least.
int64_t rows_in(int64_t bytes, int64_t vocab, at::ScalarType type) {
  return std::max<int64_t>(1, bytes / (vocab * (type == at::kDouble ? 8 : 4)));
}

/// Logits [n, V] of rows [first, first + n), in float32 at least.
at::Tensor part_of_logits(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& bias) {
  return wide(kernels::linear(rows, weight, bias));
}

/// Calls work(first, n) for parts of `count` rows, the last one the largest: of `rows` rows, or of all where they are
/// fewer.
template <class Work>
void for_parts(int64_t count, int64_t rows, Work&& work) {
  int64_t first = 0;
  if (const int64_t odd = count % rows; odd > 0) work(0, odd), first = odd;
  for (; first < count; first += rows) work(first, rows);
}

/// The sum over rows that all have a target: hidden [N, E], weight [V, E], bias [V], targets [N]. The logits of the
/// last part are kept for the backward pass, which begins with them; those of the others are computed again.
struct ProjectedLoss : torch::autograd::Function<ProjectedLoss> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& targets,
                            double smoothing, int64_t rows) {
    const int64_t count = hidden.size(0);
    const auto type = hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    at::Tensor lse = at::empty({count}, hidden.options().dtype(type)), loss = at::empty_like(lse);  // [N]
    at::Tensor logits;                                                                              // [n, V]
    for_parts(count, rows, [&](int64_t first, int64_t n) {
      logits.reset();
      logits = part_of_logits(hidden.narrow(0, first, n), weight, bias);
      const at::Tensor sums = lse.narrow(0, first, n);
      sums.copy_(logits.logsumexp(1));
      const at::Tensor chosen = logits.gather(1, targets.narrow(0, first, n).unsqueeze(1)).squeeze(1);
      // (1 - e) (lse - x_t) + e (lse - mean x): the two weights of lse sum to 1.
      at::Tensor part = sums - chosen * (1 - smoothing);
      if (smoothing > 0) part -= logits.mean(1) * smoothing;
      loss.narrow(0, first, n).copy_(part);
    });
    context->saved_data["last"] = logits;
    context->save_for_backward({hidden, weight, bias, targets, lse});
    context->saved_data["smoothing"] = smoothing;
    context->saved_data["rows"] = rows;
    return loss.sum();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    if (at::GradMode::is_enabled()) throw internal_error("the projected loss has first derivatives only");
    const auto saved = context->get_saved_variables();
    const at::Tensor &hidden = saved[0], &weight = saved[1], &bias = saved[2], &targets = saved[3], &lse = saved[4];
    const double smoothing = context->saved_data["smoothing"].toDouble();
    const int64_t rows = context->saved_data["rows"].toInt(), count = hidden.size(0), vocab = weight.size(0);
    at::Tensor of_hidden, of_weight, of_bias;
    if (context->needs_input_grad(0)) of_hidden = at::empty_like(hidden);
    if (context->needs_input_grad(1)) of_weight = at::zeros_like(weight);
    if (context->needs_input_grad(2)) of_bias = at::zeros_like(bias);
    at::Tensor kept;
    if (const auto found = context->saved_data.find("last"); found != context->saved_data.end()) {
      kept = found->second.toTensor();
      context->saved_data.erase(found);  // a second backward pass over the same graph computes it again
    }
    const auto differentiate = [&](int64_t first, int64_t n) {
      const at::Tensor part = hidden.narrow(0, first, n);
      // [n, V]: becomes the gradient of the logits
      at::Tensor slope = kept.defined() ? std::exchange(kept, at::Tensor()) : part_of_logits(part, weight, bias);
      slope.sub_(lse.narrow(0, first, n).unsqueeze(1)).exp_();
      if (smoothing > 0) slope.sub_(smoothing / static_cast<double>(vocab));
      const at::Tensor at_target = targets.narrow(0, first, n).unsqueeze(1);
      slope.scatter_add_(1, at_target, at::full(at_target.sizes(), smoothing - 1, slope.options()));
      slope.mul_(grads[0]);
      if (of_bias.defined()) of_bias += slope.sum(0);
      slope = slope.to(weight.scalar_type());
      if (of_hidden.defined()) of_hidden.narrow(0, first, n).copy_(slope.mm(weight));
      if (of_weight.defined()) of_weight.addmm_(slope.t(), part);
    };
    const int64_t last = std::min(rows, count);
    differentiate(count - last, last);
    for_parts(count - last, rows, differentiate);
    return {of_hidden, of_weight, of_bias, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

TargetLoss target_loss(const at::Tensor& logits, const at::Tensor& targets, double label_smoothing) {
  const at::Tensor flat = targets.reshape({-1});
  const int64_t count = flat.ne(kIgnore).sum().item<int64_t>();
  if (count == 0) return {logits.sum() * 0, 0};
  return {at::cross_entropy_loss(wide(logits.reshape({flat.size(0), -1})), flat, {}, at::Reduction::Sum, kIgnore,
                                 label_smoothing),
          count};
}

at::Tensor each_loss(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor flat = targets.reshape({-1});
  if (flat.numel() == 0) return at::zeros(targets.sizes(), wide(logits).options());
  return at::cross_entropy_loss(wide(logits.reshape({flat.size(0), -1})), flat, {}, at::Reduction::None, kIgnore)
      .view(targets.sizes());
}

TargetLoss projected_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& targets, const ProjectedLossOptions& options) {
  const int64_t rows = rows_in(options.table_bytes, weight.size(0), hidden.scalar_type());
  if (targets.numel() <= rows)
    return target_loss(kernels::linear(hidden, weight, bias), targets, options.label_smoothing);
  const at::Tensor flat = targets.reshape({-1});
  const at::Tensor kept = flat.ne(kIgnore).nonzero().squeeze(1);
  if (kept.numel() == 0) return {hidden.sum() * 0, 0};
  at::Tensor input = hidden.reshape({flat.size(0), -1}).index_select(0, kept), matrix = weight;
  at::Tensor offset = bias.defined() ? bias : at::zeros({weight.size(0)}, weight.options());
  // Under autocast the products of the node run in the narrow type, of which it is told by its inputs' type.
  const auto device = hidden.device().type();
  if (at::autocast::is_autocast_enabled(device) && input.scalar_type() != at::kDouble) {
    const auto type = at::autocast::get_autocast_dtype(device);
    input = input.to(type);
    matrix = matrix.to(type);
    offset = offset.to(type);
  }
  const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
  return {ProjectedLoss::apply(input, matrix, offset, flat.index_select(0, kept), options.label_smoothing, rows),
          kept.numel()};
}

at::Tensor each_loss_in_parts(const at::Tensor& hidden, const at::Tensor& targets, int64_t vocab,
                              const std::function<at::Tensor(const at::Tensor&)>& logits_of, int64_t table_bytes) {
  const at::NoGradGuard no_grad;
  const int64_t rows = rows_in(table_bytes, vocab, hidden.scalar_type());
  if (targets.numel() <= rows) return each_loss(logits_of(hidden), targets);
  const at::Tensor flat = hidden.reshape({targets.numel(), -1}), wanted = targets.reshape({-1});
  std::vector<at::Tensor> parts;
  for (int64_t first = 0; first < wanted.size(0); first += rows) {
    const int64_t n = std::min(rows, wanted.size(0) - first);
    parts.push_back(each_loss(logits_of(flat.narrow(0, first, n)), wanted.narrow(0, first, n)));
  }
  return at::cat(parts).view(targets.sizes());
}

at::Tensor shift_right(const at::Tensor& labels, int64_t start, int64_t pad) {
  at::Tensor inputs = at::empty_like(labels);
  if (labels.size(1) == 0) return inputs;
  inputs.select(1, 0).fill_(start);
  inputs.slice(1, 1).copy_(labels.slice(1, 0, labels.size(1) - 1));
  return inputs.masked_fill_(inputs.eq(kIgnore), pad);
}

}  // namespace palimpsest::nn
