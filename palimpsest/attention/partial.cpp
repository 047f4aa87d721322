// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/attention/partial.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <cmath>
#include <limits>

#include "palimpsest/core/error.h"
#include "palimpsest/nn/shapes.h"

namespace palimpsest::attention {

namespace {
constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();

double scale_of(const Parts& parts, const AttendOptions& options) {
  if (parts.empty()) throw internal_error("attend needs at least one part");
  return options.scale != 0 ? options.scale
                            : 1.0 / std::sqrt(static_cast<double>(parts.front()->inputs().front().size(-1)));
}

/// lse as the kernels want it: 0 on rows that see nothing, where -inf would make NaN.
at::Tensor finite_lse(const at::Tensor& lse) { return lse.masked_fill(lse.eq(kNegativeInfinity), 0); }
}  // namespace

Partial merge(const std::vector<Partial>& partials) {
  if (partials.size() == 1) return partials.front();
  at::Tensor top = partials.front().lse;
  for (size_t j = 1; j < partials.size(); ++j) top = at::maximum(top, partials[j].lse);
  top = finite_lse(top);
  at::Tensor total, out;
  for (const Partial& partial : partials) {
    const at::Tensor weight = at::exp(partial.lse - top);  // [B, H, L]
    const at::Tensor part = partial.out * weight.to(partial.out.scalar_type()).unsqueeze(-1);
    total = total.defined() ? total + weight : weight;
    out = out.defined() ? out + part : part;
  }
  const at::Tensor safe = total.clamp_min(std::numeric_limits<float>::min());
  return {out / safe.to(out.scalar_type()).unsqueeze(-1), top + at::log(total)};
}

namespace {

/// The one node. Parts are kept alive by `saved_data`; their tensors are saved variables.
struct PartsHolder : torch::CustomClassHolder {
  PartsHolder(Parts p, double s) : parts(std::move(p)), scale(s) {}
  Parts parts;
  double scale;
};

std::vector<std::vector<at::Tensor>> by_part(const Parts& parts, const std::vector<at::Tensor>& flat) {
  std::vector<std::vector<at::Tensor>> groups;
  auto next = flat.begin();
  for (const auto& part : parts) {
    const auto count = static_cast<std::ptrdiff_t>(part->inputs().size());
    groups.emplace_back(next, next + count);
    next += count;
  }
  return groups;
}

struct Attend : torch::autograd::Function<Attend> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::TensorList& inputs,
                            const c10::intrusive_ptr<PartsHolder>& holder) {
    const auto groups = by_part(holder->parts, inputs.vec());
    std::vector<Partial> partials;
    for (size_t j = 0; j < groups.size(); ++j) partials.push_back(holder->parts[j]->forward(groups[j], holder->scale));
    Partial merged = merge(partials);
    torch::autograd::variable_list saved = inputs.vec();
    saved.push_back(merged.out);
    saved.push_back(merged.lse);
    context->save_for_backward(std::move(saved));
    context->saved_data["parts"] = c10::IValue::make_capsule(holder);
    return merged.out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    auto saved = context->get_saved_variables();
    auto holder = c10::static_intrusive_pointer_cast<PartsHolder>(context->saved_data["parts"].toCapsule());
    const Partial merged{saved[saved.size() - 2], finite_lse(saved.back())};
    saved.resize(saved.size() - 2);
    const at::Tensor grad = grads[0].contiguous();
    torch::autograd::variable_list result;
    const auto groups = by_part(holder->parts, saved);
    for (size_t j = 0; j < groups.size(); ++j) {
      for (auto& gradient : holder->parts[j]->backward(groups[j], merged, grad, holder->scale))
        result.push_back(std::move(gradient));
    }
    result.emplace_back();  // of the holder
    return result;
  }
};

}  // namespace

at::Tensor attend(const Parts& parts, const AttendOptions& options) {
  if (options.dropout > 0) return attend_plain(parts, options);
  const double scale = scale_of(parts, options);
  std::vector<at::Tensor> inputs;
  for (const auto& part : parts) {
    for (auto& tensor : part->inputs()) inputs.push_back(tensor);
  }
  const bool with_graph =
      at::GradMode::is_enabled() &&
      std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& t) { return t.requires_grad(); });
  if (!with_graph) {
    const auto groups = by_part(parts, inputs);
    std::vector<Partial> partials;
    for (size_t j = 0; j < groups.size(); ++j) partials.push_back(parts[j]->forward(groups[j], scale));
    return merge(partials).out;
  }
  return Attend::apply(at::TensorList(inputs), c10::make_intrusive<PartsHolder>(parts, scale));
}

at::Tensor attention_weights(const Parts& parts, const AttendOptions& options) {
  const double scale = scale_of(parts, options);
  std::vector<at::Tensor> logits;
  for (const auto& part : parts) logits.push_back(part->plain(scale).logits);
  const at::Tensor all = at::cat(logits, -1);  // [B, H, L, S]
  if (all.size(-1) == 0) return all;
  const at::Tensor empty = all.eq(kNegativeInfinity).all(-1, true);
  return at::softmax(all.masked_fill(empty, 0), -1).masked_fill(empty, 0);
}

at::Tensor attend_plain(const Parts& parts, const AttendOptions& options) {
  const double scale = scale_of(parts, options);
  const at::Tensor weights = at::dropout(attention_weights(parts, options), options.dropout, options.dropout > 0);
  at::Tensor out;
  int64_t first = 0;
  for (const auto& part : parts) {
    const Part::Plain plain = part->plain(scale);
    const int64_t count = plain.logits.size(-1);
    const at::Tensor own = weights.narrow(-1, first, count);  // [B, H, L, S]
    const at::Tensor read = plain.values.dim() == 5 ? at::matmul(own.unsqueeze(-2), plain.values).squeeze(-2)
                                                    : at::matmul(own, plain.values);
    out = out.defined() ? out + read : read;
    first += count;
  }
  return out;
}

}  // namespace palimpsest::attention
