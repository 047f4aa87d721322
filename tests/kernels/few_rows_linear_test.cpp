// SPDX-License-Identifier: Apache-2.0
// Every instruction set of the machine against at::linear, at odd sizes.
#include "palimpsest/kernels/few_rows_linear.h"

#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cmath>

#include "palimpsest/core/error.h"
#include "palimpsest/kernels/linear.h"
#include "tests/support/tensors.h"

namespace palimpsest::kernels {
namespace {

using test::expect_close;
using test::expect_identical;

at::Tensor randn(at::IntArrayRef shape, uint64_t seed) { return test::randn(shape, seed).to(at::kFloat); }

TEST(FewRowsLinear, EqualsTheLinearMapAtEverySize) {
  for (const Isa isa : available_isas()) {
    for (int64_t rows = 1; rows <= kFewRows; ++rows) {
      for (const int64_t inner : {1, 7, 8, 16, 33, 64, 129}) {
        for (const int64_t out : {1, 2, 5, 8, 17, 70}) {
          const at::Tensor x = randn({rows, inner}, 1), w = randn({out, inner}, 2), b = randn({out}, 3);
          const std::string what = fmt::format("{}: {} x {} x {}", isa_name(isa), rows, inner, out);
          expect_close(few_rows_linear(x, w, b, isa), at::linear(x, w, b), 1e-5, what);
          expect_close(few_rows_linear(x, w, {}, isa), at::linear(x, w), 1e-5, what + ", no bias");
          const Int8Weight q = quantize_rows(w);
          expect_close(int8_linear(x, q, b, isa), at::linear(x, q.dequantized(), b), 1e-5, what + ", int8");
        }
      }
    }
  }
}

TEST(FewRowsLinear, ARowDoesNotDependOnTheOthers) {
  const at::Tensor w = randn({301, 96}, 4), b = randn({301}, 5), x = randn({8, 96}, 6);
  const Int8Weight q = quantize_rows(w);
  for (const Isa isa : available_isas()) {
    const at::Tensor all = few_rows_linear(x, w, b, isa), all8 = int8_linear(x, q, b, isa);
    for (int64_t count = 1; count < 8; ++count) {
      const at::Tensor few = x.narrow(0, 8 - count, count);
      expect_identical(few_rows_linear(few, w, b, isa), all.narrow(0, 8 - count, count), isa_name(isa));
      expect_identical(int8_linear(few, q, b, isa), all8.narrow(0, 8 - count, count), isa_name(isa));
    }
  }
}

TEST(FewRowsLinear, TakesAnyShapeAndNothing) {
  const at::Tensor w = randn({6, 10}, 7), b = randn({6}, 8), x = randn({2, 3, 10}, 9);
  EXPECT_EQ(few_rows_linear(x, w, b).sizes(), at::IntArrayRef({2, 3, 6}));
  expect_close(few_rows_linear(x, w, b), at::linear(x, w, b), 1e-5, "three axes");
  expect_close(few_rows_linear(x.transpose(0, 1), w, b), at::linear(x.transpose(0, 1), w, b), 1e-5, "strided");
  EXPECT_EQ(few_rows_linear(randn({0, 10}, 1), w, b).sizes(), at::IntArrayRef({0, 6}));
  EXPECT_EQ(few_rows_linear(x, randn({0, 10}, 1), {}).sizes(), at::IntArrayRef({2, 3, 0}));
  EXPECT_THROW(few_rows_linear(randn({9, 10}, 1), w, b), Error);
  EXPECT_THROW(few_rows_linear(randn({2, 11}, 1), w, b), Error);
}

TEST(FewRowsLinear, StandsInOnlyWhereItMay) {
  const at::Tensor x = randn({2, 10}, 1);
  at::Tensor w = randn({6, 10}, 2);
  EXPECT_TRUE(few_rows_fit(x, w));
  EXPECT_FALSE(few_rows_fit(randn({9, 10}, 1), w));
  EXPECT_FALSE(few_rows_fit(x.to(at::kDouble), w.to(at::kDouble)));
  EXPECT_FALSE(few_rows_fit(x, randn({10, 6}, 2).t()));
  w.requires_grad_(true);
  EXPECT_FALSE(few_rows_fit(x, w));
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(few_rows_fit(x, w));
}

TEST(Linear, EqualsItsTwinForAnyRows) {
  for (const int64_t rows : {1, 3, 8, 9, 31, 130}) {
    for (const int64_t inner : {1, 7, 64, 129}) {
      for (const int64_t out : {1, 5, 70}) {
        const at::Tensor x = randn({rows, inner}, 1), w = randn({out, inner}, 2), b = randn({out}, 3);
        const std::string what = fmt::format("{} x {} x {}", rows, inner, out);
        expect_close(kernels::linear(x, w, b), at::linear(x, w, b), 1e-5, what);
        expect_close(kernels::linear(x, w, {}), at::linear(x, w), 1e-5, what);
      }
    }
  }
  const at::Tensor x = randn({2, 20, 10}, 1), w = randn({6, 10}, 2);
  expect_close(kernels::linear(x.transpose(0, 1), w, {}), at::linear(x.transpose(0, 1), w), 1e-5, "strided");
  EXPECT_EQ(kernels::linear(randn({0, 10}, 1), w, {}).sizes(), at::IntArrayRef({0, 6}));
  expect_close(kernels::linear(x.to(at::kDouble), w.to(at::kDouble), {}), at::linear(x, w), 1e-5, "double");
  at::Tensor needs = w.clone().requires_grad_(true);
  EXPECT_TRUE(kernels::linear(x, needs, {}).requires_grad());
}

TEST(Linear, ItsGradientsEqualItsTwins) {
  const auto gradients = [](auto&& map, int64_t rows, int64_t inner, int64_t out, bool with_bias, bool turned) {
    at::Tensor x = randn(turned ? at::IntArrayRef{rows, 2, inner} : at::IntArrayRef{2, rows, inner}, 1),
               w = randn({out, inner}, 2), b = with_bias ? randn({out}, 3) : at::Tensor();
    for (at::Tensor* leaf : {&x, &w, &b}) {
      if (leaf->defined()) leaf->requires_grad_(true);
    }
    const at::Tensor y = map(turned ? x.transpose(0, 1) : x, w, b);
    (y * randn(y.sizes(), 4)).sum().backward();
    return std::vector<at::Tensor>{y.detach(), x.grad(), w.grad(), with_bias ? b.grad() : at::zeros({1})};
  };
  const auto own = [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
    return kernels::linear(x, w, b);
  };
  const auto twin = [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) { return at::linear(x, w, b); };
  for (const auto& [rows, inner, out] :
       {std::array<int64_t, 3>{1, 1, 1}, {3, 7, 5}, {65, 64, 129}, {33, 700, 800}, {16, 1030, 16400}}) {
    for (const bool with_bias : {true, false}) {
      for (const bool turned : {true, false}) {
        const auto a = gradients(own, rows, inner, out, with_bias, turned),
                   b = gradients(twin, rows, inner, out, with_bias, turned);
        // Sums of so many products round by so much of the largest.
        for (size_t i = 0; i < a.size(); ++i)
          expect_close(a[i], b[i], 2e-6 * (1 + b[i].abs().max().item<double>()),
                       fmt::format("{} x {} x {}: {}", rows, inner, out, i));
      }
    }
  }
}

TEST(Linear, HasSecondDerivativesAndAsksForNoneInVain) {
  at::Tensor x = randn({20, 10}, 1), w = randn({6, 10}, 2).requires_grad_(true);
  (kernels::linear(x, w, {})).sum().backward();
  EXPECT_FALSE(x.grad().defined());
  expect_close(w.grad(), x.sum(0).expand({6, 10}), 1e-5, "weight alone");
  at::Tensor z = randn({20, 10}, 3).requires_grad_(true);
  const at::Tensor slope =
      torch::autograd::grad({kernels::linear(z, w, {}).pow(2).sum()}, {z}, {}, std::nullopt, true)[0];
  const at::Tensor second = torch::autograd::grad({slope.sum()}, {w})[0];
  const at::Tensor expected_slope =
      torch::autograd::grad({at::linear(z, w).pow(2).sum()}, {z}, {}, std::nullopt, true)[0];
  expect_close(second, torch::autograd::grad({expected_slope.sum()}, {w})[0], 1e-4, "second");
}

TEST(Int8Weight, IsWithinHalfAStepOfEachWeight) {
  at::Tensor w = randn({9, 50}, 3);
  w[4].zero_();
  w[5].mul_(1e-20);
  const Int8Weight q = quantize_rows(w);
  const at::Tensor apart = (q.dequantized() - w).abs();
  EXPECT_TRUE(apart.le(q.scales.unsqueeze(1) * 0.5001).all().item<bool>());
  EXPECT_TRUE(q.values[4].eq(0).all().item<bool>());
  EXPECT_EQ(q.values.abs().max().item<int64_t>(), 127);
  const at::Tensor many = randn({40, 50}, 4);
  expect_close(int8_linear(many, q, {}), at::linear(many, q.dequantized()), 1e-5, "many rows");
}

TEST(Isa, HasThePlainOneAlways) {
  EXPECT_EQ(available_isas().front(), Isa::kPlain);
  EXPECT_EQ(isa_name(Isa::kAvx512), "avx512");
}

}  // namespace
}  // namespace palimpsest::kernels
