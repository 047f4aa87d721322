// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/kernels/linear.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "palimpsest/core/error.h"
#include "palimpsest/kernels/few_rows_linear.h"

namespace palimpsest::kernels {

namespace {

using Pointwise = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, c10::string_view,
                             c10::List<std::optional<at::Scalar>>, std::optional<c10::string_view>);

/// oneDNN's product of dense tensors, which LibTorch registers as an operator and nothing else calls; nothing where the
/// build lacks it.
const std::optional<c10::TypedOperatorHandle<Pointwise>>& onednn() {
  static const auto handle = []() -> std::optional<c10::TypedOperatorHandle<Pointwise>> {
    const auto schema = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!schema || !at::globalContext().userEnabledMkldnn()) return std::nullopt;
    return schema->typed<Pointwise>();
  }();
  return handle;
}

bool prefers_onednn() {
  static const bool prefers = [] {
    const char* wanted = std::getenv("PALIMPSEST_GEMM");
    const std::string name = wanted == nullptr ? "" : wanted;
    if (!name.empty() && name != "onednn" && name != "blas") {
      throw usage_error(fmt::format("\"{}\" is no backend of matrix products", printable(name)), "PALIMPSEST_GEMM",
                        "choose onednn or blas");
    }
#if defined(__x86_64__)
    const bool faster = __builtin_cpu_is("amd");
#else
    const bool faster = false;
#endif
    return onednn().has_value() && (name.empty() ? faster : name == "onednn");
  }();
  return prefers;
}

/// x [M, K] W^T + b on oneDNN; all dense.
at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias = {}) {
  return onednn()->call(x, weight, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

/// Both products of a backward pass need factors turned round, which costs copies; BLAS needs none. Copies cost more
/// than oneDNN gains where the weight is small (512 rows, one Zen 2 core: 0.8 times the speed at 512 x 512, 1.0 to 1.4
/// times at 768 x 768 and above) and where it is as large as an output embedding.
constexpr int64_t kSmallestTurned = int64_t{1} << 19, kLargestTurned = int64_t{1} << 24;

/// x [M, K] W^T + b with a graph. A bias that is missing is no input of the node: nothing asks for its gradient.
struct OnednnLinear : torch::autograd::Function<OnednnLinear> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    context->save_for_backward({x, weight});
    context->saved_data["with_bias"] = bias.has_value();
    return product(x, weight, bias);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &grad = grads[0];
    at::Tensor of_x, of_weight, of_bias;
    // A graph of the backward pass itself is left to operators that have one.
    const bool turned =
        !at::GradMode::is_enabled() && weight.numel() >= kSmallestTurned && weight.numel() <= kLargestTurned;
    if (context->needs_input_grad(0)) {
      of_x = turned ? product(grad.contiguous(), weight.t().contiguous()) : at::mm(grad, weight);
    }
    if (context->needs_input_grad(1)) {
      of_weight = turned ? product(grad.t().contiguous(), x.t().contiguous()) : at::mm(grad.t(), x);
    }
    if (context->saved_data["with_bias"].toBool() && context->needs_input_grad(2)) of_bias = grad.sum(0);
    return {of_x, of_weight, of_bias};
  }
};

bool onednn_fits(const at::Tensor& x, const at::Tensor& weight) {
  return x.is_cpu() && weight.is_cpu() && x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat &&
         weight.is_contiguous() && x.numel() > 0 && weight.numel() > 0 &&
         !at::autocast::is_autocast_enabled(at::kCPU) && prefers_onednn();
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (few_rows_fit(x, weight)) return few_rows_linear(x, weight, bias);
  if (!onednn_fits(x, weight)) return at::linear(x, weight, bias);
  const at::Tensor flat = x.reshape({-1, x.size(-1)}).contiguous();
  auto shape = x.sizes().vec();
  shape.back() = weight.size(0);
  const auto offset = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  const bool with_graph = at::GradMode::is_enabled() &&
                          (x.requires_grad() || weight.requires_grad() || (offset && offset->requires_grad()));
  return (with_graph ? OnednnLinear::apply(flat, weight, offset) : product(flat, weight, offset)).view(shape);
}

}  // namespace palimpsest::kernels
