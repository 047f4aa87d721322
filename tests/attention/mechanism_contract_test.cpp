// SPDX-License-Identifier: Apache-2.0
// What every mechanism of the registry must do, whatever it is (ALGORITHMS A7, A8, A14, A20, A21, G13; DESIGN section
// 3). A new one is found here by itself.
#include <cmath>
#include <limits>

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"
#include "tests/attention/mechanism_cases.h"
#include "tests/support/tensors.h"

namespace palimpsest::attention {
namespace {

using namespace test;

std::vector<at::Tensor> gradients(const at::Tensor& out, const std::vector<at::Tensor>& leaves) {
  const at::Tensor weights = randn(out.sizes(), 99, out.scalar_type());
  auto grads = torch::autograd::grad({(out * weights).sum()}, leaves, {}, /*retain_graph=*/true,
                                     /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < grads.size(); ++i)
    if (!grads[i].defined()) grads[i] = at::zeros_like(leaves[i]);
  return grads;
}

std::vector<at::Tensor> leaves_of(const Subject& subject, const Sample& sample) {
  auto leaves = sample.leaves();
  for (const at::Tensor& parameter : subject.mechanism->parameters()) leaves.push_back(parameter);
  return leaves;
}

/// Row b has its own number of padded columns: on the left, on the right, or on both sides.
at::Tensor padding(int64_t batch, int64_t length, const std::string& side) {
  at::Tensor mask = at::ones({batch, length}, at::kBool);
  for (int64_t row = 0; row < batch; ++row) {
    const int64_t count = std::min(length, (row * 5 + 3) % (length + 1));
    if (side != "right") mask[row].narrow(0, 0, side == "left" ? count : count / 2).fill_(false);
    if (side != "left") mask[row].narrow(0, length - (count + 1) / 2, (count + 1) / 2).fill_(false);
  }
  return mask;
}

TEST(MechanismContract, EqualsThePlainTwinForwardAndBackward) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const double tolerance = dtype == at::kDouble ? 1e-10 : 3e-5;
    for (const Subject& subject : subjects(dtype)) {
      for (const int64_t length : {1, 2, 7, 33, 130}) {
        for (const char* side : {"", "left", "right", "both"}) {
          if (length > 33 && std::string(side) == "right") continue;
          const Sample sample(2, length, static_cast<uint64_t>(length), dtype);
          const at::Tensor mask = *side == 0 ? at::Tensor() : padding(2, length, side);
          const Parts parts = parts_of(subject, sample.input(mask));
          const std::string what = fmt::format("{}, {} tokens, padding \"{}\"", subject.name(), length, side);
          const at::Tensor fast = attend(parts), plain = attend_plain(parts);
          expect_close(fast, plain, tolerance, what);
          const auto leaves = leaves_of(subject, sample);
          const auto of_fast = gradients(fast, leaves), of_plain = gradients(plain, leaves);
          for (size_t i = 0; i < leaves.size(); ++i)
            expect_close(of_fast[i], of_plain[i], 4 * tolerance, fmt::format("{}, gradient {}", what, i));
        }
      }
    }
  }
}

TEST(MechanismContract, ReadsWhatItDeclaresAndNothingElse) {
  constexpr int64_t kLength = 41;
  for (const Subject& subject : subjects()) {
    const at::Tensor declared = subject.mechanism->sees(kLength);
    ASSERT_EQ(declared.sizes(), at::IntArrayRef({kLength, kLength})) << subject.name();
    const Sample sample(1, kLength, 3);
    const at::Tensor out = attend(parts_of(subject, sample.input()));
    at::Tensor reached = at::zeros({kLength, kLength}, at::kBool);
    for (int64_t i = 0; i < kLength; ++i) {
      const auto grads = torch::autograd::grad({(out.select(2, i) * randn({1, kHeads, kHeadWidth}, 5)).sum()},
                                               sample.leaves(), {}, true, false, true);
      at::Tensor any = at::zeros({kLength}, at::kBool);
      for (size_t which = 0; which < grads.size(); ++which) {
        if (!grads[which].defined()) continue;
        at::Tensor from = grads[which].ne(0).any(-1).view({-1, kLength}).any(0);
        // To ask is not to read; but where queries are keys, another's query is read.
        if (which == 0 && subject.use == Use::kCross) continue;
        if (which == 0) from[i] = false;
        any = any.logical_or(from);
      }
      reached[i] = any;
    }
    EXPECT_FALSE(reached.logical_and(declared.logical_not()).any().item<bool>())
        << subject.name() << " reads a token that it does not declare";
    if (!subject.mechanism->content_decides()) {
      EXPECT_TRUE(reached.eq(declared).all().item<bool>()) << subject.name() << " does not read all that it declares";
    }
    if (subject.causal()) {
      EXPECT_FALSE(declared.triu(1).any().item<bool>()) << subject.name() << " declares a token of the future";
    }
  }
}

TEST(MechanismContract, ACausalOutputHasTheSameBitsWhateverFollows) {
  for (const Subject& subject : subjects(at::kFloat)) {
    if (!subject.causal() || !subject.mechanism->no_stream().empty()) continue;
    const at::NoGradGuard no_grad;
    constexpr int64_t kLength = 70;
    for (const int64_t from : {1, 13, 40, 69}) {
      Sample one(2, kLength, 11, at::kFloat), two(2, kLength, 11, at::kFloat);
      const int64_t rest = kLength - from;
      two.key.narrow(2, from, rest).normal_();
      two.value.narrow(2, from, rest).mul_(1e4);
      two.tokens.narrow(1, from, rest).neg_();
      expect_identical(attend(parts_of(subject, two.input())).narrow(2, 0, from),
                       attend(parts_of(subject, one.input())).narrow(2, 0, from),
                       fmt::format("{} before token {}", subject.name(), from));
    }
  }
}

TEST(MechanismContract, AnySplitIntoStepsEqualsOnePass) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    for (const Subject& subject : subjects(dtype)) {
      if (!subject.causal() || !subject.mechanism->no_stream().empty()) continue;
      const at::NoGradGuard no_grad;
      for (const int64_t length : {1, 29, 90}) {
        for (const bool padded : {false, true}) {
          const Sample sample(3, length, 21, dtype);
          const at::Tensor mask = padded ? padding(3, length, "both") : at::Tensor();
          const at::Tensor whole = attend(parts_of(subject, sample.input(mask)));
          for (const std::vector<int64_t>& steps :
               {std::vector<int64_t>{1}, {length}, {5}, {17, 1, 1, 30}, {2, 40}, {64}}) {
            State state;
            const at::Tensor got = streamed(*subject.mechanism, sample.input(mask), steps, state);
            at::Tensor expected = whole;
            at::Tensor shown = got;
            if (padded) {
              const at::Tensor none = mask.logical_not().view({3, 1, length, 1});
              expected = expected.masked_fill(none, 0);
              shown = shown.masked_fill(none, 0);
            }
            expect_close(shown, expected, dtype == at::kDouble ? 1e-10 : 1e-5,
                         fmt::format("{}, {} tokens in steps of {}{}", subject.name(), length, steps.front(),
                                     padded ? ", padded" : ""));
          }
        }
      }
    }
  }
}

TEST(MechanismContract, PaddingCannotLeakEvenWhereItIsNotANumber) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr int64_t kLength = 37;
  for (const Subject& subject : subjects()) {
    for (const char* side : {"left", "right", "both"}) {
      const Sample sample(3, kLength, 31);
      const at::Tensor mask = padding(3, kLength, side);
      const std::string what = subject.name() + ", padding " + side;
      Sample dirty(3, kLength, 31);
      {
        const at::NoGradGuard no_grad;
        const at::Tensor none = mask.logical_not();
        for (at::Tensor* rows : {&dirty.query, &dirty.key, &dirty.value}) {
          if (rows == &dirty.query && subject.use == Use::kCross) continue;  // queries are not the source's
          rows->masked_fill_(none.view({3, 1, kLength, 1}), kNan);
        }
        dirty.tokens.masked_fill_(none.unsqueeze(-1), kNan);
      }
      const at::Tensor out = attend(parts_of(subject, dirty.input(mask)));
      at::Tensor kept = mask;
      if (subject.use == Use::kCross) kept = mask.any(1, true).expand({3, kLength});
      const at::Tensor shown = out.masked_fill(kept.logical_not().view({3, 1, kLength, 1}), 0);
      EXPECT_TRUE(at::isfinite(shown).all().item<bool>()) << what;
      const auto leaves = leaves_of(subject, dirty);
      auto grads = torch::autograd::grad({(shown * randn(shown.sizes(), 5)).sum()}, leaves, {}, true, false, true);
      for (size_t i = 0; i < grads.size(); ++i) {
        if (!grads[i].defined()) continue;
        EXPECT_TRUE(at::isfinite(grads[i]).all().item<bool>()) << what << ", gradient " << i;
        if (i == 0 || i > 3) continue;
        const at::Tensor at_padding = i == 3 ? grads[i].masked_fill(mask.unsqueeze(-1), 0)
                                             : grads[i].masked_fill(mask.view({3, 1, kLength, 1}), 0);
        EXPECT_EQ(at_padding.abs().max().item<double>(), 0) << what << ", gradient " << i;
      }
      // Each row alone, without its padding.
      for (int64_t row = 0; row < 3; ++row) {
        const at::Tensor places = mask[row].nonzero().squeeze(1);
        if (places.numel() == 0) continue;
        const auto only = [&](const at::Tensor& x, int64_t axis) {
          return x.narrow(0, row, 1).index_select(axis, places);
        };
        AttentionInput alone{
            .query = subject.use == Use::kCross ? sample.query.narrow(0, row, 1) : only(sample.query, 2),
            .key = only(sample.key, 2),
            .value = only(sample.value, 2),
            .tokens = only(sample.tokens, 1)};
        at::Tensor got = out.narrow(0, row, 1);
        if (subject.use != Use::kCross) got = got.index_select(2, places);
        expect_close(got, attend(parts_of(subject, alone)), 1e-10, fmt::format("{}, row {}", what, row));
      }
    }
  }
}

TEST(MechanismContract, ATextOfPaddingAloneGivesZero) {
  for (const Subject& subject : subjects()) {
    const Sample sample(2, 9, 41);
    at::Tensor mask = at::ones({2, 9}, at::kBool);
    mask[1].fill_(false);
    const at::Tensor out = attend(parts_of(subject, sample.input(mask)));
    EXPECT_EQ(out[1].abs().max().item<double>(), 0) << subject.name();
    for (const at::Tensor& grad : gradients(out, leaves_of(subject, sample)))
      EXPECT_TRUE(at::isfinite(grad).all().item<bool>()) << subject.name();
  }
}

TEST(MechanismContract, GradientsEqualFiniteDifferences) {
  constexpr double kStep = 1e-6;
  for (const Subject& subject : subjects()) {
    for (const int64_t length : {5, 23}) {
      const Sample sample(2, length, 51);
      const at::Tensor mask = padding(2, length, "left");
      const auto leaves = leaves_of(subject, sample);
      const auto value = [&] {
        const at::Tensor out = attend(parts_of(subject, sample.input(mask)));
        return (out * randn(out.sizes(), 99)).sum();
      };
      const auto grads = gradients(attend(parts_of(subject, sample.input(mask))), leaves);
      for (size_t i = 0; i < leaves.size(); ++i) {
        const at::Tensor direction = randn(leaves[i].sizes(), 60 + i);
        const auto moved = [&](double step) {
          const at::NoGradGuard no_grad;
          leaves[i].add_(direction, step);
          const double result = value().item<double>();
          leaves[i].add_(direction, -step);
          return result;
        };
        const double expected = (moved(kStep) - moved(-kStep)) / (2 * kStep);
        EXPECT_NEAR((grads[i] * direction).sum().item<double>(), expected, 1e-6 * std::max(1.0, std::abs(expected)))
            << subject.name() << ", " << length << " tokens, gradient " << i;
      }
    }
  }
}

TEST(MechanismContract, RowsOfABatchAreIndependent) {
  for (const Subject& subject : subjects()) {
    const at::NoGradGuard no_grad;
    const Sample sample(3, 45, 71);
    const at::Tensor all = attend(parts_of(subject, sample.input()));
    for (int64_t row = 0; row < 3; ++row) {
      AttentionInput one = sample.input();
      for (at::Tensor* rows : {&one.query, &one.key, &one.value, &one.tokens}) *rows = rows->narrow(0, row, 1);
      expect_close(attend(parts_of(subject, one)), all.narrow(0, row, 1), 1e-12, subject.name());
    }
  }
}

TEST(MechanismContract, EveryLengthGivesFiniteNumbersOfTheSameShape) {
  for (const Subject& subject : subjects(at::kFloat)) {
    std::vector<int64_t> lengths(131);
    for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<int64_t>(i);
    lengths.push_back(997);
    for (const int64_t length : lengths) {
      const at::NoGradGuard no_grad;
      const Sample sample(1, length, 81, at::kFloat);
      const at::Tensor out = attend(parts_of(subject, sample.input()));
      ASSERT_EQ(out.sizes(), sample.query.sizes()) << subject.name() << " at " << length;
      ASSERT_TRUE(at::isfinite(out).all().item<bool>()) << subject.name() << " at " << length;
    }
  }
}

TEST(MechanismContract, HugeLogitsGiveFiniteNumbersAndGradients) {
  for (const Subject& subject : subjects(at::kFloat)) {
    const Sample sample(1, 50, 91, at::kFloat, /*spread=*/100);  // logits of about 1e4
    const at::Tensor out = attend(parts_of(subject, sample.input()));
    EXPECT_TRUE(at::isfinite(out).all().item<bool>()) << subject.name();
    for (const at::Tensor& grad : gradients(out, leaves_of(subject, sample)))
      EXPECT_TRUE(at::isfinite(grad).all().item<bool>()) << subject.name();
  }
}

TEST(MechanismContract, TwoRunsGiveTheSameBits) {
  for (const Subject& subject : subjects(at::kFloat)) {
    const Sample sample(2, 97, 101, at::kFloat);
    const auto leaves = leaves_of(subject, sample);
    const at::Tensor once = attend(parts_of(subject, sample.input())),
                     again = attend(parts_of(subject, sample.input()));
    expect_identical(once, again, subject.name());
    const auto of_once = gradients(once, leaves), of_again = gradients(again, leaves);
    for (size_t i = 0; i < leaves.size(); ++i) expect_identical(of_once[i], of_again[i], subject.name());
  }
}

TEST(MechanismContract, StateOfABoundedMechanismStaysAsLargeAsItIs) {
  for (const Subject& subject : subjects(at::kFloat)) {
    if (!subject.causal() || !subject.mechanism->no_stream().empty()) continue;
    const Sample sample(2, 300, 111, at::kFloat);
    State state;
    streamed(*subject.mechanism, columns(sample.input(), 0, 1), {1}, state);
    const int64_t early = state.bytes();
    EXPECT_GT(early, 0) << subject.name();
    streamed(*subject.mechanism, columns(sample.input(), 1, 299), {1, 40, 7}, state);
    if (subject.mechanism->is_bounded()) {
      EXPECT_EQ(state.bytes(), early) << subject.name();
    } else {
      EXPECT_GT(state.bytes(), early) << subject.name();
    }
  }
}

TEST(MechanismContract, ReorderingRowsOfTheStateReordersTheRest) {
  for (const Subject& subject : subjects()) {
    if (!subject.causal() || !subject.mechanism->no_stream().empty()) continue;
    const Sample sample(2, 40, 121);
    const std::vector<int64_t> beams = {1, 0, 0};
    const at::Tensor index = at::tensor(beams, at::kLong);
    State state;
    streamed(*subject.mechanism, columns(sample.input(), 0, 25), {25}, state);
    State chosen = state.select(beams);
    const AttentionInput rest = columns(sample.input(), 25, 15);
    AttentionInput of_beams = rest;
    for (at::Tensor* rows : {&of_beams.query, &of_beams.key, &of_beams.value, &of_beams.tokens})
      *rows = rows->index_select(0, index);
    const at::Tensor got = streamed(*subject.mechanism, of_beams, {4}, chosen);
    const at::Tensor expected = streamed(*subject.mechanism, rest, {4}, state).index_select(0, index);
    expect_close(got, expected, 1e-12, subject.name());
  }
}

TEST(MechanismContract, TheMemoryOfATrainedLayerIsOnePartMore) {
  // What a memory adds merges with any mechanism (ALGORITHMS section 0): the same as one softmax over both key sets.
  for (const Subject& subject : subjects()) {
    const Sample sample(2, 30, 131);
    const at::Tensor key = randn({2, kHeads, 4, kHeadWidth}, 1), value = randn({2, kHeads, 4, kHeadWidth}, 2);
    Parts parts = parts_of(subject, sample.input());
    parts.push_back(dense_part(sample.query, key, value));
    const at::Tensor fast = attend(parts), plain = attend_plain(parts);
    expect_close(fast, plain, 1e-10, subject.name());
    const auto leaves = leaves_of(subject, sample);
    const auto of_fast = gradients(fast, leaves), of_plain = gradients(plain, leaves);
    for (size_t i = 0; i < leaves.size(); ++i)
      expect_close(of_fast[i], of_plain[i], 1e-9, fmt::format("{}, gradient {}", subject.name(), i));
  }
}

}  // namespace
}  // namespace palimpsest::attention
