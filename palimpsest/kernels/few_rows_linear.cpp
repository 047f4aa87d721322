// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/kernels/few_rows_linear.h"

#include "palimpsest/core/error.h"
#include "palimpsest/core/threads.h"
#include "palimpsest/kernels/isa/few_rows.h"
#include "palimpsest/kernels/linear.h"

namespace palimpsest::kernels {

namespace {

FewRowsKernels kernels_of(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return few_rows_avx2();
    case Isa::kAvx512:
      return few_rows_avx512();
#endif
    default:
      return few_rows_plain();
  }
}

/// Weights that are worth a thread of their own.
constexpr int64_t kGrain = 1 << 15;

/// The result's shape, and the pointers that the loops read.
struct Prepared {
  at::Tensor x, bias, y;
  FewRows job;
};
Prepared prepare(const at::Tensor& x, int64_t out, const at::Tensor& bias) {
  Prepared p{x.contiguous(), bias.defined() ? bias.contiguous() : bias, {}, {}};
  auto shape = x.sizes().vec();
  const int64_t inner = shape.back();
  shape.back() = out;
  p.y = at::empty(shape, x.options());
  p.job = {p.x.const_data_ptr<float>(),
           inner == 0 ? 0 : x.numel() / inner,
           inner,
           p.bias.defined() ? p.bias.const_data_ptr<float>() : nullptr,
           p.y.mutable_data_ptr<float>(),
           out};
  return p;
}

void check(const at::Tensor& x, const at::Tensor& weight, int64_t most_rows) {
  if (x.scalar_type() != at::kFloat || !x.is_cpu() || x.dim() < 1 || weight.dim() != 2 ||
      x.size(-1) != weight.size(1) || (x.size(-1) > 0 && x.numel() / x.size(-1) > most_rows))
    throw internal_error("few_rows_linear was given tensors that do not fit");
}

}  // namespace

bool few_rows_fit(const at::Tensor& x, const at::Tensor& weight) {
  return weight.scalar_type() == at::kFloat && x.scalar_type() == at::kFloat && x.is_cpu() && weight.is_cpu() &&
         x.numel() > 0 && x.numel() <= kFewRows * x.size(-1) && weight.is_contiguous() &&
         !(at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad()));
}

at::Tensor few_rows_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, Isa isa) {
  check(x, weight, kFewRows);
  const at::Tensor w = weight.contiguous();
  const int64_t out = w.size(0);
  Prepared p = prepare(x, out, bias);
  if (p.job.rows == 0 || out == 0) return p.y;
  const auto kernel = kernels_of(isa).float32;
  parallel_for(out, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, p.job.inner)),
               [&](int64_t first, int64_t last) { kernel(p.job, w.const_data_ptr<float>(), first, last); });
  return p.y;
}

at::Tensor Int8Weight::dequantized() const { return values.to(at::kFloat).mul_(scales.unsqueeze(1)); }

Int8Weight quantize_rows(const at::Tensor& weight) {
  const at::NoGradGuard no_grad;
  const at::Tensor wide = weight.detach().to(at::kFloat);
  const at::Tensor largest = wide.numel() > 0 ? wide.abs().amax(1) : at::zeros({wide.size(0)});
  const at::Tensor scales = at::where(largest > 0, largest / 127, at::ones_like(largest));
  return {(wide / scales.unsqueeze(1)).round_().clamp_(-127, 127).to(at::kChar).contiguous(), scales};
}

at::Tensor int8_linear(const at::Tensor& x, const Int8Weight& weight, const at::Tensor& bias, Isa isa) {
  check(x, weight.values, INT64_MAX);
  const int64_t out = weight.values.size(0), inner = weight.values.size(1);
  if (x.numel() > kFewRows * inner) return linear(x, weight.dequantized(), bias);
  Prepared p = prepare(x, out, bias);
  if (p.job.rows == 0 || out == 0) return p.y;
  const auto kernel = kernels_of(isa).int8;
  parallel_for(out, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, inner)), [&](int64_t first, int64_t last) {
    kernel(p.job, weight.values.const_data_ptr<int8_t>(), weight.scales.const_data_ptr<float>(), first, last);
  });
  return p.y;
}

}  // namespace palimpsest::kernels
