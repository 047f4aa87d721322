// SPDX-License-Identifier: Apache-2.0
// Losses: ignored targets, label smoothing, and the loss that never builds the whole table of logits.
#include "palimpsest/nn/loss.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <chrono>
#include <cstdio>
#include <tuple>

#include "palimpsest/nn/byte_counter.h"
#include "tests/support/tensors.h"

namespace palimpsest::nn {
namespace {

using test::expect_close;

/// Loss and gradients of hidden, weight and bias.
struct Result {
  at::Tensor loss, hidden, weight, bias;
  int64_t targets = 0;
};

struct Problem {
  at::Tensor hidden, weight, bias, targets;
  explicit Problem(int64_t rows, int64_t vocab, int64_t width, at::ScalarType type, int ignore_every = 3)
      : hidden(test::randn({rows, width}, 1, type)),
        weight(test::randn({vocab, width}, 2, type)),
        bias(test::randn({vocab}, 3, type)),
        targets(at::remainder(at::arange(rows, at::kLong) * 7, vocab)) {
    for (int64_t i = 0; ignore_every > 0 && i < rows; i += ignore_every) targets[i] = kIgnore;
  }
  Result run(double smoothing, int64_t table_bytes, bool with_bias = true, double scale = 0.3) const {
    const at::Tensor h = hidden.detach().clone().requires_grad_(true), w = weight.detach().clone().requires_grad_(true),
                     b = with_bias ? bias.detach().clone().requires_grad_(true) : at::Tensor();
    const TargetLoss loss =
        projected_loss(h, w, b, targets, {.label_smoothing = smoothing, .table_bytes = table_bytes});
    (loss.nll * scale).backward();
    return {loss.nll.detach(), h.grad(), w.grad(), with_bias ? b.grad() : at::Tensor(), loss.targets};
  }
};
constexpr int64_t kWhole = int64_t{1} << 40;

TEST(ProjectedLoss, EqualsThePlainTwinForwardAndBackward) {
  for (const auto& [rows, vocab, width] : {std::tuple{1, 5, 3}, {7, 13, 5}, {33, 1021, 17}, {64, 257, 8}}) {
    for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-10}, {at::kFloat, 1e-5}}) {
      for (const double smoothing : {0.0, 0.1}) {
        for (const bool with_bias : {true, false}) {
          const Problem problem(rows, vocab, width, type, rows > 1 ? 3 : 0);
          const Result plain = problem.run(smoothing, kWhole, with_bias);
          for (const int64_t rows_a_part : {0, 1, 4, 32}) {  // 0: less than a row fits, one is taken
            const Result parts = problem.run(smoothing, rows_a_part * vocab * 8, with_bias);
            const std::string what = fmt::format("{} rows, {} words, {} a part", rows, vocab, rows_a_part);
            EXPECT_EQ(parts.targets, plain.targets);
            expect_close(parts.loss, plain.loss, tolerance, what);
            expect_close(parts.hidden, plain.hidden, 3 * tolerance, what);
            expect_close(parts.weight, plain.weight, 3 * tolerance, what);
            if (with_bias) expect_close(parts.bias, plain.bias, 3 * tolerance, what);
          }
        }
      }
    }
  }
}

TEST(ProjectedLoss, IgnoredTargetsCountForNothing) {  // FR-89
  const Problem problem(12, 9, 4, at::kDouble, 2);
  const at::Tensor kept = problem.targets.ne(kIgnore).nonzero().squeeze(1);
  for (const double smoothing : {0.0, 0.2}) {
    Problem half = problem;
    half.hidden = problem.hidden.index_select(0, kept);
    half.targets = problem.targets.index_select(0, kept);
    for (const int64_t bytes : {kWhole, int64_t{150}}) {
      const Result all = problem.run(smoothing, bytes), some = half.run(smoothing, bytes);
      EXPECT_EQ(all.targets, 6);
      expect_close(all.loss, some.loss, 1e-12);
      expect_close(all.weight, some.weight, 1e-12);
      expect_close(all.hidden.index_select(0, kept), some.hidden, 1e-12);
      EXPECT_EQ(all.hidden.index_select(0, problem.targets.eq(kIgnore).nonzero().squeeze(1)).abs().max().item<double>(),
                0);
    }
  }
}

TEST(ProjectedLoss, LabelSmoothingIsItsFormula) {
  const Problem problem(5, 6, 3, at::kDouble, 0);
  const at::Tensor logs = at::log_softmax(at::linear(problem.hidden, problem.weight, problem.bias), 1);
  const at::Tensor expected =
      -(0.9 * logs.gather(1, problem.targets.unsqueeze(1)).squeeze(1) + 0.1 * logs.mean(1)).sum();
  for (const int64_t bytes : {kWhole, int64_t{100}}) expect_close(problem.run(0.1, bytes).loss, expected, 1e-12);
}

TEST(ProjectedLoss, WithoutTargetsItIsZeroAndSoIsItsGradient) {
  Problem problem(4, 5, 3, at::kFloat, 0);
  problem.targets.fill_(kIgnore);
  for (const int64_t bytes : {kWhole, int64_t{1}}) {
    const Result result = problem.run(0.1, bytes);
    EXPECT_EQ(result.targets, 0);
    EXPECT_EQ(result.loss.item<double>(), 0);
    EXPECT_EQ(result.hidden.abs().max().item<double>(), 0);
  }
}

TEST(ProjectedLoss, ItsGraphCanBeWalkedAgain) {
  const Problem problem(11, 13, 5, at::kDouble, 0);
  const at::Tensor weight = problem.weight.clone().requires_grad_(true);
  const TargetLoss loss = projected_loss(problem.hidden, weight, {}, problem.targets, {.table_bytes = 4 * 13 * 8});
  const auto slope = [&] { return torch::autograd::grad({loss.nll}, {weight}, {}, true)[0]; };
  const at::Tensor first = slope();
  expect_close(slope(), first, 1e-12, "again");
}

TEST(ProjectedLoss, HugeLogitsStayFinite) {
  Problem problem(6, 7, 3, at::kFloat, 0);
  problem.hidden *= 1e4;
  const Result plain = problem.run(0, kWhole), parts = problem.run(0, 60);
  EXPECT_TRUE(parts.loss.isfinite().item<bool>());
  EXPECT_TRUE(parts.weight.isfinite().all().item<bool>());
  expect_close(parts.loss, plain.loss, 1e-5);
}

TEST(ProjectedLoss, NeverHoldsTheWholeTable) {
  const Problem problem(1024, 20000, 64, at::kFloat, 0);  // a table of 78 MiB
  const auto measure = [&](int64_t table_bytes) {
    const ByteCounter counter;
    const auto started = std::chrono::steady_clock::now();
    problem.run(0.1, table_bytes);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    std::printf("parts of %4lld MiB: peak %6.1f MiB, %.3f s\n", static_cast<long long>(table_bytes >> 20),
                static_cast<double>(counter.peak()) / (1 << 20), seconds);
    return counter.peak();
  };
  measure(int64_t{1} << 20);  // warms up
  const int64_t plain = measure(int64_t{1} << 30), parts = measure(int64_t{8} << 20);
  EXPECT_LT(parts, plain / 4);
}

TEST(ProjectedLoss, EachLossInPartsIsEachLoss) {
  const Problem problem(30, 11, 4, at::kDouble);
  const at::Tensor hidden = problem.hidden.view({5, 6, 4}), targets = problem.targets.view({5, 6});
  int64_t most = 0;
  const auto logits_of = [&](const at::Tensor& rows) {
    most = std::max(most, rows.numel() / 4);
    return at::linear(rows, problem.weight, problem.bias);
  };
  const at::Tensor parts = each_loss_in_parts(hidden, targets, 11, logits_of, 7 * 11 * 8);
  EXPECT_EQ(most, 7);
  EXPECT_EQ(parts.sizes(), targets.sizes());
  expect_close(parts, each_loss(logits_of(hidden), targets), 1e-12);
}

}  // namespace
}  // namespace palimpsest::nn
