// SPDX-License-Identifier: Apache-2.0
// The small modules: formulas, the meta device, reproducible draws.
#include "palimpsest/nn/layers.h"

#include <cmath>

#include "palimpsest/core/error.h"
#include "palimpsest/core/threads.h"
#include "palimpsest/nn/shapes.h"
#include "tests/support/tensors.h"

namespace palimpsest::nn {
namespace {

TEST(Layers, FollowTheirFormulas) {
  Linear linear(3, 2, at::kDouble);
  LayerNorm norm(3, 1e-5, at::kDouble);
  const at::NoGradGuard no_grad;
  for (auto& parameter : linear.parameters()) parameter.copy_(test::randn(parameter.sizes(), 1));
  norm.weight.copy_(test::randn({3}, 2));
  norm.bias.copy_(test::randn({3}, 3));
  const at::Tensor x = test::randn({4, 3}, 4);
  test::expect_close(linear.forward(x), at::matmul(x, linear.weight.t()) + linear.bias, 1e-12, "linear");
  const at::Tensor mean = x.mean(-1, true), var = (x - mean).pow(2).mean(-1, true);
  test::expect_close(norm.forward(x), norm.weight * (x - mean) / (var + 1e-5).sqrt() + norm.bias, 1e-12, "norm");
}

TEST(Layers, GeluIsExact) {
  const Linear one(1, 1, at::kDouble), two(1, 1, at::kDouble);
  const at::NoGradGuard no_grad;
  for (const Linear* layer : {&one, &two}) layer->weight.fill_(1), layer->bias.zero_();
  for (const double x : {-3.0, -0.5, 0.0, 0.7, 4.0}) {
    const double expected = 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    EXPECT_NEAR(feed_forward(at::full({1, 1}, x, at::kDouble), one, two, Activation::kGelu, 0, false).item<double>(), expected, 1e-12);
  }
}

TEST(Layers, CanBeCountedWithoutMemory) {
  const Linear huge(1 << 20, 1 << 20, at::TensorOptions().device(at::kMeta));
  EXPECT_EQ(parameter_count(huge), (1LL << 40) + (1 << 20));
}

TEST(FillNormal, DependsOnSeedAndNameAloneWhateverTheThreads) {
  const int threads = thread_count();
  at::Tensor one = at::empty({300, 200}), two = at::empty({300, 200}), other = at::empty({300, 200});
  set_thread_count(1);
  fill_normal(one, 0.5, 7, "a");
  set_thread_count(2);
  fill_normal(two, 0.5, 7, "a");
  fill_normal(other, 0.5, 7, "b");
  set_thread_count(threads);
  test::expect_identical(one, two, "threads");
  EXPECT_GT((one - other).abs().max().item<double>(), 0.1);
  EXPECT_NEAR(one.mean().item<double>(), 0, 0.01);
  EXPECT_NEAR(one.std().item<double>(), 0.5, 0.01);
}

TEST(Dropout, IsOffOutsideTraining) {
  const at::Tensor x = test::randn({5}, 1);
  test::expect_identical(nn::dropout(x, 0.5, false), x, "evaluation");
  test::expect_identical(nn::dropout(x, 0.0, true), x, "rate 0");
}

TEST(Shapes, NameTheTensorAndBothShapes) {
  try {
    check_shape(at::zeros({2, 3}), {2, -1, 4}, "keys");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.problem(), "keys has shape [2, 3], expected [2, *, 4]");
  }
  EXPECT_NO_THROW(check_shape(at::zeros({2, 3}), {2, -1}, "keys"));
  const at::Tensor rows = test::randn({2, 3, 8}, 1);
  test::expect_identical(join_heads(split_heads(rows, 4)), rows, "heads");
  EXPECT_EQ(dtype_of("bf16"), at::kBFloat16);
  EXPECT_THROW(dtype_of("int4"), Error);
}

}  // namespace
}  // namespace palimpsest::nn
