// SPDX-License-Identifier: Apache-2.0
// Causal slots: chunk by chunk against the quadratic form and against the recurrence as it is written
// (ALGORITHMS 1.1, 1.5; A8 to A10, A12, A13, A15, A16, A21).
#include "palimpsest/attention/slot_scan.h"

#include <limits>

#include "palimpsest/core/error.h"
#include "palimpsest/core/threads.h"
#include "palimpsest/kernels/slot_scan.h"
#include "tests/support/tensors.h"

namespace palimpsest::attention {
namespace {

using test::expect_close;
using test::randn;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Sizes {
  int64_t batch, heads, length, slots, width;
};

struct Case {
  SlotScan scan;
  std::vector<at::Tensor> leaves;
};

Case make_case(const Sizes& s, SlotWriting writing, at::ScalarType dtype = at::kDouble, bool values_apart = false,
               double spread = 1) {
  Case made;
  uint64_t seed = static_cast<uint64_t>(s.length * 10 + s.slots);
  const auto leaf = [&](int64_t last) {
    made.leaves.push_back(randn({s.batch, s.heads, s.length, last}, ++seed, dtype).mul_(spread).requires_grad_(true));
    return made.leaves.back();
  };
  made.scan.query = leaf(s.width);
  made.scan.key = leaf(s.width);
  made.scan.value = leaf(s.width);
  made.scan.control = leaf(s.slots);
  if (values_apart) made.scan.value_control = leaf(s.slots);
  made.scan.writing = writing;
  if (writing == SlotWriting::kAdditive) {
    // A sum of so many tokens makes logits of a size at which float32 is coarse.
    const at::NoGradGuard no_grad;
    made.scan.control.mul_(0.2);
  }
  return made;
}

/// log(e^a + e^b), whose gradient is a number where both are -inf.
at::Tensor log_sum(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor most = at::maximum(a, b).detach();
  const at::Tensor top = most.masked_fill(most.eq(-kInfinity), 0);
  const at::Tensor sum = at::exp(a - top) + at::exp(b - top);
  const at::Tensor none = sum.eq(0);
  return (top + at::log(sum.masked_fill(none, 1))).masked_fill(none, -kInfinity);
}

/// Token after token, as the papers write it.
at::Tensor recurrence(const SlotScan& scan, SlotState* end = nullptr) {
  const at::Tensor &q = scan.query, &s = scan.control;
  const int64_t batch = q.size(0), heads = q.size(1), slots = s.size(3), width = q.size(3);
  SlotState now = scan.start.defined() ? scan.start : SlotState::empty(batch, heads, slots, width, q.options());
  std::vector<at::Tensor> outs;
  for (int64_t t = 0; t < q.size(2); ++t) {
    const at::Tensor k = scan.key.select(2, t).unsqueeze(2), v = scan.value.select(2, t).unsqueeze(2);
    const at::Tensor st = s.select(2, t);
    if (scan.writing == SlotWriting::kAdditive) {
      const at::Tensor vs = scan.value_control.defined() ? scan.value_control.select(2, t) : st;
      now.key = now.key + st.unsqueeze(-1) * k;
      now.value = now.value + vs.unsqueeze(-1) * v;
      now.mass = at::where(st.ne(0).logical_or(vs.ne(0)), at::zeros_like(now.mass), now.mass);
    } else {
      const at::Tensor mass = log_sum(now.mass, st);
      const at::Tensor safe = mass.masked_fill(mass.eq(-kInfinity), 0);
      const at::Tensor weight = at::exp(st - safe).unsqueeze(-1);
      const at::Tensor decay =
          scan.writing == SlotWriting::kRunning ? at::exp(now.mass - safe).unsqueeze(-1) : at::ones_like(weight);
      now.key = decay * now.key + weight * k;
      now.value = decay * now.value + weight * v;
      now.mass = mass;
    }
    at::Tensor u = (now.key * q.select(2, t).unsqueeze(2)).sum(-1) / std::sqrt(static_cast<double>(width));
    const at::Tensor none = now.mass.eq(-kInfinity);
    u = u.masked_fill(none, -kInfinity);
    const at::Tensor nothing = none.all(-1, true);
    const at::Tensor p = at::softmax(u.masked_fill(nothing, 0), -1).masked_fill(nothing, 0);
    outs.push_back((p.unsqueeze(-1) * now.value).sum(2));
  }
  if (end != nullptr) *end = now;
  return at::stack(outs, 2);
}

void expect_all_agree(const Case& made, const Parts& parts, double tolerance, const std::string& what) {
  SlotState end;
  const at::Tensor expected = recurrence(made.scan, &end);
  const at::Tensor weights = randn(expected.sizes(), 99, expected.scalar_type());
  const auto gradients = [&](const at::Tensor& out) {
    return torch::autograd::grad({(out * weights).sum()}, made.leaves, {}, true, false, true);
  };
  const at::Tensor fast = attend(parts), plain = attend_plain(parts);
  expect_close(fast, expected, tolerance, what + " out");
  expect_close(plain, expected, tolerance, what + " plain out");
  const auto of_fast = gradients(fast), of_plain = gradients(plain), of_expected = gradients(expected);
  for (size_t i = 0; i < made.leaves.size(); ++i) {
    expect_close(of_fast[i], of_expected[i], 6 * tolerance, fmt::format("{} gradient {}", what, i));
    expect_close(of_plain[i], of_expected[i], 6 * tolerance, fmt::format("{} plain gradient {}", what, i));
  }
  const SlotState reached = slot_scan_end(made.scan);
  expect_close(reached.key, end.key, tolerance, what + " end key");
  expect_close(reached.value, end.value, tolerance, what + " end value");
  expect_close(at::exp(reached.mass), at::exp(end.mass), tolerance * 100, what + " end mass");
}

/// The fused kernel where it fits, and its twin.
void expect_all_agree(const Case& made, double tolerance, const std::string& what) {
  expect_all_agree(made, {slot_scan_part(made.scan)}, tolerance, what);
  expect_all_agree(made, {chunked_slot_scan_part(made.scan)}, tolerance, what + ", chunked");
}

TEST(SlotScan, EqualsTheRecurrenceForwardAndBackwardAtOddSizes) {
  for (const SlotWriting writing : {SlotWriting::kRunning, SlotWriting::kFrozen, SlotWriting::kAdditive}) {
    for (const Sizes& s : {Sizes{1, 1, 1, 1, 1},
                           {2, 3, 31, 5, 7},
                           {1, 2, 32, 8, 16},
                           {2, 1, 33, 3, 4},
                           {1, 2, 65, 32, 64},
                           {3, 1, 100, 7, 9},
                           {1, 1, 40, 33, 130}}) {
      const std::string what =
          fmt::format("writing {}, L {} n {} D {}", static_cast<int>(writing), s.length, s.slots, s.width);
      expect_all_agree(make_case(s, writing), 1e-10, what);
      expect_all_agree(make_case(s, writing, at::kFloat), 3e-5, what + " float");
    }
  }
  expect_all_agree(make_case({2, 2, 45, 6, 8}, SlotWriting::kAdditive, at::kDouble, /*values_apart=*/true), 1e-10,
                   "values written apart");
}

TEST(SlotScan, TokensThatWriteNothingAndSlotsThatNobodyWroteAreLeftOut) {
  for (const SlotWriting writing : {SlotWriting::kRunning, SlotWriting::kFrozen, SlotWriting::kAdditive}) {
    Case made = make_case({2, 2, 70, 6, 8}, writing);
    const at::Tensor skipped = randn({2, 2, 70, 6}, 7).gt(0.3);
    {
      const at::NoGradGuard no_grad;
      at::Tensor control = made.scan.control;
      const double nothing = writing == SlotWriting::kAdditive ? 0 : -kInfinity;
      control.masked_fill_(skipped, nothing);
      control.narrow(2, 0, 3).fill_(nothing);  // the first queries see no slot at all
      control.select(3, 2).fill_(nothing);     // one slot is never written to
    }
    expect_all_agree(made, 1e-10, fmt::format("writing {}", static_cast<int>(writing)));
    EXPECT_EQ(attend({slot_scan_part(made.scan)}).narrow(2, 0, 3).abs().max().item<double>(), 0);
  }
}

TEST(SlotScan, GoesOnFromAStateAsIfItHadNeverStopped) {
  for (const SlotWriting writing : {SlotWriting::kRunning, SlotWriting::kFrozen, SlotWriting::kAdditive}) {
    const at::NoGradGuard no_grad;
    const Case made = make_case({2, 2, 150, 6, 8}, writing);
    const at::Tensor whole = attend({slot_scan_part(made.scan)});
    for (const int64_t first : {1, 31, 32, 33, 100, 149}) {
      SlotScan head = made.scan, tail = made.scan;
      for (at::Tensor SlotScan::* rows : {&SlotScan::query, &SlotScan::key, &SlotScan::value, &SlotScan::control}) {
        head.*rows = (head.*rows).narrow(2, 0, first);
        tail.*rows = (tail.*rows).narrow(2, first, 150 - first);
      }
      tail.start = slot_scan_end(head);
      expect_close(attend({slot_scan_part(tail)}), whole.narrow(2, first, 150 - first), 1e-12);
    }
  }
}

TEST(SlotScan, GradientsAfterAStateEqualTheRecurrence) {
  for (const SlotWriting writing : {SlotWriting::kRunning, SlotWriting::kFrozen, SlotWriting::kAdditive}) {
    Case made = make_case({2, 2, 50, 6, 8}, writing);
    made.scan.start = slot_scan_end(make_case({2, 2, 20, 6, 8}, writing).scan);
    expect_all_agree(made, 1e-10, fmt::format("writing {}", static_cast<int>(writing)));
  }
}

TEST(SlotScan, TheControlOfASlotMayBeShiftedAndItsGradientSumsToZero) {
  for (const SlotWriting writing : {SlotWriting::kRunning, SlotWriting::kFrozen}) {
    Case made = make_case({1, 2, 60, 5, 8}, writing);
    const at::Tensor out = attend({slot_scan_part(made.scan)});
    const at::Tensor grad = torch::autograd::grad({(out * randn(out.sizes(), 1)).sum()}, {made.scan.control})[0];
    EXPECT_LT(grad.sum(2).abs().max().item<double>(), 1e-12);
    SlotScan shifted = made.scan;
    shifted.control = shifted.control + randn({1, 1, 1, 5}, 2) * 300;
    expect_close(attend({slot_scan_part(shifted)}), out, 1e-9);
  }
}

TEST(SlotScan, TheFirstTokenIsGivenBackWhateverTheControl) {
  for (const SlotWriting writing : {SlotWriting::kRunning, SlotWriting::kFrozen}) {
    const Case made = make_case({2, 2, 20, 5, 8}, writing);
    expect_close(attend({slot_scan_part(made.scan)}).select(2, 0), made.scan.value.select(2, 0), 1e-12);
  }
}

TEST(SlotScan, AConstantControlReadsTheMeanOfAllSoFar) {
  Case made = make_case({2, 2, 70, 5, 8}, SlotWriting::kRunning);
  made.scan.control = at::full_like(made.scan.control, 0.7);
  const at::Tensor count = at::arange(1, 71, at::kDouble).view({1, 1, 70, 1});
  expect_close(attend({slot_scan_part(made.scan)}), made.scan.value.cumsum(2) / count, 1e-12);
}

TEST(SlotScan, RunningSlotsLieBetweenTheTokensThatWroteThem) {
  const Case made = make_case({2, 2, 90, 5, 8}, SlotWriting::kRunning, at::kDouble, false, 3);
  const SlotState end = slot_scan_end(made.scan);
  const at::Tensor low = made.scan.key.amin(2, true), high = made.scan.key.amax(2, true);
  EXPECT_TRUE(end.key.ge(low - 1e-12).logical_and(end.key.le(high + 1e-12)).all().item<bool>());
}

TEST(SlotScan, ControlsOfAThousandStayFiniteAndTheLargestTakesTheSlot) {
  for (const SlotWriting writing : {SlotWriting::kRunning, SlotWriting::kFrozen}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      Case made = make_case({1, 2, 80, 4, 8}, writing, dtype);
      {
        const at::NoGradGuard no_grad;
        made.scan.control.mul_(1000);
        made.scan.control.select(2, 40).fill_(9000);
      }
      const at::Tensor out = attend({slot_scan_part(made.scan)});
      EXPECT_TRUE(at::isfinite(out).all().item<bool>());
      for (const at::Tensor& grad : torch::autograd::grad({out.sum()}, made.leaves))
        EXPECT_TRUE(at::isfinite(grad).all().item<bool>());
      if (writing == SlotWriting::kRunning) {
        const SlotState end = slot_scan_end(made.scan);
        expect_close(end.key, made.scan.key.select(2, 40).unsqueeze(2).expand_as(end.key), 1e-6);
      }
    }
  }
}

TEST(SlotScan, FrozenAndRunningPartAfterTheFirstToken) {
  Case made = make_case({1, 1, 10, 3, 4}, SlotWriting::kRunning);
  const at::Tensor running = attend({slot_scan_part(made.scan)});
  made.scan.writing = SlotWriting::kFrozen;
  const at::Tensor frozen = attend({slot_scan_part(made.scan)});
  expect_close(frozen.select(2, 0), running.select(2, 0), 1e-12);
  EXPECT_GT((frozen - running).abs().max().item<double>(), 0.01);
}

/// The kernel of every instruction set of this machine, against its twin in double precision.
TEST(SlotScanKernel, EqualsItsTwinOnEveryInstructionSet) {
  const std::pair<SlotWriting, kernels::Writing> writings[] = {{SlotWriting::kRunning, kernels::Writing::kRunning},
                                                               {SlotWriting::kFrozen, kernels::Writing::kFrozen},
                                                               {SlotWriting::kAdditive, kernels::Writing::kAdditive}};
  for (const auto& [writing, kernel_writing] : writings) {
    for (const bool started : {false, true}) {
      for (const Sizes& s : {Sizes{1, 1, 1, 1, 1},
                             {2, 3, 15, 5, 7},
                             {1, 2, 16, 8, 16},
                             {2, 1, 17, 3, 4},
                             {1, 2, 65, 32, 64},
                             {3, 1, 100, 7, 9},
                             {1, 1, 40, 33, 130},
                             {1, 2, 50, 64, 32},
                             {1, 1, 33, 256, 256},
                             {2, 2, 47, 40, 24}}) {
        Case wide = make_case(s, writing, at::kDouble);
        {
          const at::NoGradGuard no_grad;
          // Tokens that write nothing, slots that nobody writes to before token 4, and controls far apart.
          at::Tensor control = wide.scan.control;
          if (writing != SlotWriting::kAdditive) control.mul_(8);
          control.masked_fill_(randn(control.sizes(), 3).gt(1), writing == SlotWriting::kAdditive ? 0 : -kInfinity);
          if (s.slots > 2 && s.length > 4)
            control.narrow(2, 0, 4).select(3, 1).fill_(writing == SlotWriting::kAdditive ? 0 : -kInfinity);
        }
        if (started) wide.scan.start = slot_scan_end(make_case({s.batch, s.heads, 9, s.slots, s.width}, writing).scan);
        const SlotState start =
            started ? wide.scan.start : SlotState::empty(s.batch, s.heads, s.slots, s.width, at::kDouble);
        const double scale = 1 / std::sqrt(static_cast<double>(s.width));
        const auto part = chunked_slot_scan_part(wide.scan);
        const at::NoGradGuard no_grad;
        const Partial expected = part->forward(part->inputs(), scale);
        Partial merged = expected;
        merged.lse = merged.lse + 0.3;  // as if another key set had been read beside the slots
        merged.out = merged.out * 0.7 + 0.1;
        merged.lse = merged.lse.masked_fill(merged.lse.eq(-kInfinity), 0);
        const at::Tensor grad = randn(expected.out.sizes(), 5);
        const auto grads = part->backward(part->inputs(), merged, grad, scale);
        const SlotState end = slot_scan_end(wide.scan);
        const auto narrow = [](const at::Tensor& x) { return x.to(at::kFloat); };
        const kernels::SlotScanJob job{narrow(wide.scan.query),   narrow(wide.scan.key), narrow(wide.scan.value),
                                       narrow(wide.scan.control), narrow(start.mass),    narrow(start.key),
                                       narrow(start.value),       kernel_writing,        scale};
        for (const kernels::Isa isa : kernels::available_isas()) {
          const std::string what =
              fmt::format("{}, writing {}, L {} n {} D {}{}", kernels::isa_name(isa), static_cast<int>(writing),
                          s.length, s.slots, s.width, started ? ", started" : "");
          const auto got = kernels::slot_scan(job, isa);
          expect_close(got.out.to(at::kDouble), expected.out, 3e-5, what + " out");
          expect_close(got.lse.to(at::kDouble), expected.lse, 3e-5, what + " lse");
          expect_close(got.end_key.to(at::kDouble), end.key, 3e-5, what + " end key");
          expect_close(got.end_value.to(at::kDouble), end.value, 3e-5, what + " end value");
          expect_close(got.mass.to(at::kDouble), end.mass, 3e-5, what + " mass");
          const auto of_kernel =
              kernels::slot_scan_backward(job, narrow(merged.out), narrow(merged.lse), narrow(grad), isa);
          for (size_t i = 0; i < 4; ++i)
            expect_close(of_kernel[i].to(at::kDouble), grads[i], 1e-4, fmt::format("{} gradient {}", what, i));
        }
      }
    }
  }
}

TEST(SlotScanKernel, ReadsTensorsThatLieInAnyOrderAndGivesEqualBitsOnAnyNumberOfThreads) {
  const Case made = make_case({2, 4, 70, 6, 8}, SlotWriting::kRunning, at::kFloat);
  const at::NoGradGuard no_grad;
  const at::Tensor expected = attend({slot_scan_part(made.scan)});
  SlotScan turned = made.scan;
  for (at::Tensor SlotScan::* rows : {&SlotScan::query, &SlotScan::key, &SlotScan::value, &SlotScan::control})
    turned.*rows = (turned.*rows).transpose(1, 2).contiguous().transpose(1, 2);
  test::expect_identical(attend({slot_scan_part(turned)}), expected);
  turned.query = turned.query.transpose(2, 3).contiguous().transpose(2, 3);
  test::expect_identical(attend({slot_scan_part(turned)}), expected);
  const int before = thread_count();
  set_thread_count(before == 1 ? 2 : 1);
  test::expect_identical(attend({slot_scan_part(made.scan)}), expected);
  set_thread_count(before);
}

TEST(SlotScanKernel, ShowsWhatIsNotANumber) {
  for (const auto which : {&SlotScan::query, &SlotScan::key, &SlotScan::value, &SlotScan::control}) {
    Case made = make_case({1, 1, 20, 6, 8}, SlotWriting::kRunning, at::kFloat);
    const at::NoGradGuard no_grad;
    (made.scan.*which)[0][0][10][3] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor out = attend({slot_scan_part(made.scan)});
    EXPECT_TRUE(at::isfinite(out.narrow(2, 0, 10)).all().item<bool>());
    EXPECT_TRUE(at::isnan(out.select(2, 10)).any().item<bool>());
  }
}

}  // namespace
}  // namespace palimpsest::attention
