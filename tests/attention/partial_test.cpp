// SPDX-License-Identifier: Apache-2.0
// Partial attentions and their merge: against the plain twin, finite differences, and every trap of the kernel.
#include "palimpsest/attention/partial.h"

#include <cmath>
#include <limits>

#include "palimpsest/core/error.h"
#include "tests/support/tensors.h"

namespace palimpsest::attention {
namespace {

using test::expect_close;
using test::randn;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Sizes {
  int64_t batch, heads, queries, keys, width;
};

at::Tensor leaf(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype) {
  return randn(shape, seed, dtype).requires_grad_(true);
}

/// Two dense key sets and, where there are as many keys as queries, each query's own key.
struct Case {
  std::vector<at::Tensor> leaves;
  Parts parts;
};

Case make_case(const Sizes& s, at::ScalarType dtype, const at::Tensor& mask, bool causal, bool with_self) {
  Case made;
  const auto add = [&](at::IntArrayRef shape) {
    made.leaves.push_back(leaf(shape, made.leaves.size() + 1, dtype));
    return made.leaves.back();
  };
  const at::Tensor q = add({s.batch, s.heads, s.queries, s.width});
  const at::Tensor k = add({s.batch, s.heads, s.keys, s.width}), v = add({s.batch, s.heads, s.keys, s.width});
  made.parts.push_back(dense_part(q, k, v, {.key_mask = mask, .causal = causal}));
  const at::Tensor k2 = add({s.batch, s.heads, 3, s.width}), v2 = add({s.batch, s.heads, 3, s.width});
  made.parts.push_back(dense_part(q, k2, v2));
  if (with_self)
    made.parts.push_back(
        self_part(q, add({s.batch, s.heads, s.queries, s.width}), add({s.batch, s.heads, s.queries, s.width})));
  return made;
}

std::vector<at::Tensor> gradients(const at::Tensor& out, const std::vector<at::Tensor>& leaves) {
  for (const auto& tensor : leaves) tensor.mutable_grad() = at::Tensor();
  const at::Tensor weights = randn(out.sizes(), 99, out.scalar_type());
  (out * weights).sum().backward();
  std::vector<at::Tensor> grads;
  for (const auto& tensor : leaves)
    grads.push_back(tensor.grad().defined() ? tensor.grad().clone() : at::zeros_like(tensor));
  return grads;
}

void expect_twins_agree(const Case& made, double tolerance, const std::string& what) {
  const at::Tensor fast = attend(made.parts), plain = attend_plain(made.parts);
  expect_close(fast, plain, tolerance, what + " out");
  const auto fast_grads = gradients(fast, made.leaves), plain_grads = gradients(plain, made.leaves);
  for (size_t i = 0; i < fast_grads.size(); ++i)
    expect_close(fast_grads[i], plain_grads[i], 4 * tolerance, fmt::format("{} gradient {}", what, i));
  const at::NoGradGuard no_grad;
  expect_close(attend(made.parts), fast, tolerance, what + " without a graph");
}

TEST(Attend, EqualsThePlainTwinForwardAndBackwardAtOddSizes) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const double tolerance = dtype == at::kDouble ? 1e-10 : 2e-5;
    for (const Sizes s : {Sizes{1, 1, 1, 1, 4},
                          {2, 3, 5, 7, 8},
                          {1, 2, 63, 63, 16},
                          {2, 1, 1, 130, 8},
                          {1, 2, 33, 1000, 8},
                          {3, 2, 17, 97, 5}}) {
      for (const bool causal : {false, true}) {
        for (const bool masked : {false, true}) {
          at::Tensor mask;
          if (masked) mask = randn({s.batch, s.keys}, 5, at::kDouble).gt(-0.3);
          expect_twins_agree(make_case(s, dtype, mask, causal, true), tolerance,
                             fmt::format("L {} S {} causal {} masked {} {}", s.queries, s.keys, causal, masked,
                                         dtype == at::kDouble ? "f64" : "f32"));
        }
      }
    }
  }
}

TEST(Attend, EqualsFiniteDifferencesInFloat64) {
  const at::Tensor mask = at::tensor({1, 0, 1, 1, 0, 0}, at::kLong).view({2, 3}).to(at::kBool);
  const Case made = make_case({2, 2, 3, 3, 4}, at::kDouble, mask, true, true);
  const auto value = [&] { return (attend(made.parts) * randn({2, 2, 3, 4}, 99)).sum(); };
  const auto grads = gradients(attend(made.parts), made.leaves);
  constexpr double kStep = 1e-5;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < made.leaves.size(); ++i) {
    at::Tensor flat = made.leaves[i].detach().view({-1});
    for (int64_t j = 0; j < flat.numel(); j += 5) {
      const double old = flat[j].item<double>();
      flat[j] = old + kStep;
      const double above = value().item<double>();
      flat[j] = old - kStep;
      const double below = value().item<double>();
      flat[j] = old;
      EXPECT_NEAR(grads[i].view({-1})[j].item<double>(), (above - below) / (2 * kStep), 1e-8)
          << "leaf " << i << " entry " << j;
    }
  }
}

TEST(Attend, SplittingTheKeysChangesNothing) {  // G8
  const at::Tensor q = randn({2, 3, 9, 8}, 1), k = randn({2, 3, 14, 8}, 2), v = randn({2, 3, 14, 8}, 3);
  const at::Tensor whole = attend({dense_part(q, k, v)});
  for (const int64_t cut : {0, 1, 6, 14}) {
    const at::Tensor merged = attend({dense_part(q, k.narrow(2, 0, cut), v.narrow(2, 0, cut)),
                                      dense_part(q, k.narrow(2, cut, 14 - cut), v.narrow(2, cut, 14 - cut))});
    expect_close(merged, whole, 1e-12, fmt::format("cut at {}", cut));
  }
}

TEST(Attend, RowsThatSeeNothingAreZeroWithoutNaN) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    for (const int64_t keys : {5, 200}) {
      const at::Tensor q = leaf({2, 2, 4, 8}, 1, dtype), k = leaf({2, 2, keys, 8}, 2, dtype),
                       v = leaf({2, 2, keys, 8}, 3, dtype);
      at::Tensor mask = at::ones({2, keys}, at::kBool);
      mask[1].fill_(false);
      const auto part = dense_part(q, k, v, {.key_mask = mask});
      const Partial partial = part->forward(part->inputs(), 0.3);
      EXPECT_TRUE(partial.lse[1].eq(-kInfinity).all().item<bool>());
      EXPECT_TRUE(partial.lse[0].isfinite().all().item<bool>());
      const at::Tensor out = attend({part});
      EXPECT_EQ(out[1].abs().max().item<double>(), 0.0);
      const auto grads = gradients(out, {q, k, v});
      for (const auto& grad : grads) {
        EXPECT_TRUE(grad.isfinite().all().item<bool>());
        EXPECT_EQ(grad[1].abs().max().item<double>(), 0.0);
      }
    }
  }
}

TEST(Attend, HasNoTroubleWithEmptyAxes) {
  for (const int64_t queries : {0, 3}) {
    for (const int64_t keys : {0, 4}) {
      const at::Tensor q = leaf({2, 2, queries, 8}, 1, at::kFloat), k = leaf({2, 2, keys, 8}, 2, at::kFloat),
                       v = leaf({2, 2, keys, 8}, 3, at::kFloat);
      const at::Tensor out = attend({dense_part(q, k, v)});
      EXPECT_EQ(out.sizes(), q.sizes());
      if (keys == 0 && queries > 0) EXPECT_EQ(out.abs().max().item<double>(), 0.0);
      for (const auto& grad : gradients(out, {q, k, v})) EXPECT_TRUE(grad.isfinite().all().item<bool>());
    }
  }
}

TEST(Attend, HiddenKeysMayHoldAnything) {  // FR-40
  const at::Tensor mask = at::tensor({1, 1, 0, 1}, at::kLong).view({1, 4}).to(at::kBool);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    at::Tensor first, first_grad;
    for (const double poison : {0.0, 1e30, kInfinity, std::nan("")}) {
      const at::Tensor q = leaf({1, 2, 3, 8}, 1, dtype);
      at::Tensor k = randn({1, 2, 4, 8}, 2, dtype), v = randn({1, 2, 4, 8}, 3, dtype);
      k.select(2, 2).fill_(poison);
      v.select(2, 2).fill_(poison);
      const at::Tensor out = attend({dense_part(q, k, v, {.key_mask = mask})});
      const at::Tensor grad = gradients(out, {q})[0];
      if (!first.defined()) first = out, first_grad = grad;
      test::expect_identical(out, first, "out");
      test::expect_identical(grad, first_grad, "gradient");
    }
  }
}

TEST(Attend, TakesTensorsWhoseLastAxisIsStrided) {
  const at::Tensor q = randn({1, 2, 8, 4}, 1).transpose(2, 3), k = randn({1, 2, 8, 120}, 2).transpose(2, 3),
                   v = randn({1, 2, 8, 120}, 3).transpose(2, 3);
  expect_close(attend({dense_part(q, k, v)}), attend({dense_part(q.contiguous(), k.contiguous(), v.contiguous())}),
               1e-12, "strided");
}

TEST(Attend, CausalQueriesAreAlignedToTheLastKey) {
  // Decoding continues a sequence: with 6 keys and 2 queries the first query sees 5 keys, the second all 6.
  const at::Tensor q = randn({1, 1, 2, 4}, 1), k = randn({1, 1, 6, 4}, 2), v = randn({1, 1, 6, 4}, 3);
  const at::Tensor out = attend({dense_part(q, k, v, {.causal = true})});
  expect_close(out.narrow(2, 0, 1), attend({dense_part(q.narrow(2, 0, 1), k.narrow(2, 0, 5), v.narrow(2, 0, 5))}),
               1e-12, "first");
  expect_close(out.narrow(2, 1, 1), attend({dense_part(q.narrow(2, 1, 1), k, v)}), 1e-12, "second");
}

TEST(Attend, UsesTheScaleItIsGiven) {
  const at::Tensor q = randn({1, 1, 3, 4}, 1), k = randn({1, 1, 130, 4}, 2), v = randn({1, 1, 130, 4}, 3);
  expect_close(attend({dense_part(q, k, v)}, {.scale = 0.25}), attend({dense_part(q * 0.5, k, v)}, {.scale = 0.5}),
               1e-12, "scale");
}

TEST(Attend, WeightsSumToOneOrZero) {
  at::Tensor mask = at::ones({2, 3}, at::kBool);
  mask[1].fill_(false);
  const at::Tensor q = randn({2, 1, 2, 4}, 1), k = randn({2, 1, 3, 4}, 2), v = randn({2, 1, 3, 4}, 3);
  const at::Tensor sums = attention_weights({dense_part(q, k, v, {.key_mask = mask})}).sum(-1);
  expect_close(sums[0], at::ones({1, 2}, at::kDouble), 1e-12, "seen");
  expect_close(sums[1], at::zeros({1, 2}, at::kDouble), 0, "unseen");
}

TEST(Attend, DropoutTakesThePlainTwinAndKeepsTheMean) {
  at::manual_seed(3);
  const at::Tensor q = randn({1, 1, 1, 4}, 1), k = at::zeros({1, 1, 64, 4}, at::kDouble),
                   v = at::ones({1, 1, 64, 4}, at::kDouble);
  double total = 0;
  for (int i = 0; i < 200; ++i) total += attend({dense_part(q, k, v)}, {.dropout = 0.5}).mean().item<double>();
  EXPECT_NEAR(total / 200, 1.0, 0.05);
}

TEST(Attend, RefusesShapesThatDoNotFit) {
  const at::Tensor q = randn({1, 1, 2, 4}, 1);
  EXPECT_THROW(dense_part(q, randn({1, 1, 3, 5}, 2), randn({1, 1, 3, 5}, 3)), Error);
  EXPECT_THROW(dense_part(q, randn({1, 1, 3, 4}, 2), randn({1, 1, 2, 4}, 3)), Error);
  EXPECT_THROW(self_part(q, randn({1, 1, 3, 4}, 2), randn({1, 1, 3, 4}, 3)), Error);
}

}  // namespace
}  // namespace palimpsest::attention
