// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/kernels/linear.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

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

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (few_rows_fit(x, weight)) return few_rows_linear(x, weight, bias);
  const bool no_graph = !(at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad()));
  const bool plain = x.is_cpu() && weight.is_cpu() && x.scalar_type() == at::kFloat &&
                     weight.scalar_type() == at::kFloat && weight.is_contiguous() && x.numel() > 0 &&
                     weight.numel() > 0;
  if (!no_graph || !plain || !prefers_onednn()) return at::linear(x, weight, bias);
  const at::Tensor flat = x.reshape({-1, x.size(-1)}).contiguous();
  auto shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return onednn()
      ->call(flat, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt, "none",
             c10::List<std::optional<at::Scalar>>(), "")
      .view(shape);
}

}  // namespace palimpsest::kernels
