// SPDX-License-Identifier: Apache-2.0
// attend() against at::scaled_dot_product_attention in the same run, forward and forward with backward.
// Arguments: batch, heads, length, head width. Compare the two rows of a size: the ratio is what counts.
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include "palimpsest/attention/partial.h"

namespace {

using palimpsest::attention::attend;
using palimpsest::attention::dense_part;

at::Tensor input(const benchmark::State& state, bool gradient) {
  return at::randn({state.range(0), state.range(1), state.range(2), state.range(3)}).requires_grad_(gradient);
}

template <class Attention>
void run(benchmark::State& state, bool backward, Attention attention) {
  const at::Tensor q = input(state, backward), k = input(state, backward), v = input(state, backward),
                   grad = input(state, false);
  const at::AutoGradMode mode(backward);
  for (auto unused : state) {
    const at::Tensor out = attention(q, k, v);
    if (backward) out.backward(grad);
    benchmark::DoNotOptimize(out.data_ptr());
  }
  const double pairs =
      static_cast<double>(state.range(0) * state.range(1) * state.range(2) * state.range(2) * state.range(3));
  state.counters["GFLOP/s"] =
      benchmark::Counter(4e-9 * pairs * (backward ? 3.5 : 1), benchmark::Counter::kIsIterationInvariantRate);
}

void attend_forward(benchmark::State& state) {
  run(state, false, [](auto& q, auto& k, auto& v) { return attend({dense_part(q, k, v)}); });
}
void sdpa_forward(benchmark::State& state) {
  run(state, false, [](auto& q, auto& k, auto& v) { return at::scaled_dot_product_attention(q, k, v); });
}
void attend_backward(benchmark::State& state) {
  run(state, true, [](auto& q, auto& k, auto& v) { return attend({dense_part(q, k, v)}); });
}
void sdpa_backward(benchmark::State& state) {
  run(state, true, [](auto& q, auto& k, auto& v) { return at::scaled_dot_product_attention(q, k, v); });
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({16, 4, 32, 32})
      ->Args({8, 12, 128, 64})
      ->Args({4, 12, 512, 64})
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime();
}

}  // namespace

BENCHMARK(attend_forward)->Apply(sizes);
BENCHMARK(sdpa_forward)->Apply(sizes);
BENCHMARK(attend_backward)->Apply(sizes);
BENCHMARK(sdpa_backward)->Apply(sizes);
