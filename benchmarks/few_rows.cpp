// SPDX-License-Identifier: Apache-2.0
// Linear maps of a few rows against at::linear in the same run. Arguments: rows, inner width, columns. GB/s counts the
// weights once: compare with what the machine's memory gives.
#include <benchmark/benchmark.h>

#include "palimpsest/kernels/few_rows_linear.h"

namespace {

using namespace palimpsest::kernels;

/// As many maps as a model has, so that no weight is still in a cache when it is read again.
template <class Multiply>
void run(benchmark::State& state, int64_t bytes_per_weight, Multiply multiply) {
  const at::NoGradGuard no_grad;
  const int64_t inner = state.range(1), out = state.range(2), copies = std::max<int64_t>(1, (64 << 20) / (inner * out));
  const at::Tensor x = at::randn({state.range(0), inner}), b = at::randn({out});
  std::vector<at::Tensor> weights;
  std::vector<Int8Weight> small;
  for (int64_t i = 0; i < copies; ++i) weights.push_back(at::randn({out, inner}) * 0.02);
  if (bytes_per_weight == 1) {
    for (auto& weight : weights) {
      small.push_back(quantize_rows(weight));
      weight = at::Tensor();
    }
  }
  size_t next = 0;
  for (auto unused : state) {
    const at::Tensor y = multiply(x, weights[next], small.empty() ? Int8Weight{} : small[next], b);
    benchmark::DoNotOptimize(y.data_ptr());
    next = (next + 1) % static_cast<size_t>(copies);
  }
  state.counters["GB/s"] = benchmark::Counter(1e-9 * static_cast<double>(inner * out * bytes_per_weight),
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void at_linear(benchmark::State& state) {
  run(state, 4, [](auto& x, auto& w, const auto& q, auto& b) { return at::linear(x, w, b); });
}
void few_rows(benchmark::State& state) {
  run(state, 4, [](auto& x, auto& w, const auto& q, auto& b) { return few_rows_linear(x, w, b); });
}
void few_rows_int8(benchmark::State& state) {
  run(state, 1, [](auto& x, auto& w, const auto& q, auto& b) { return int8_linear(x, q, b); });
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  for (const int64_t rows : {1, 4, 8}) {
    benchmark->Args({rows, 768, 768})->Args({rows, 768, 3072})->Args({rows, 3072, 768})->Args({rows, 768, 50265});
  }
  benchmark->Unit(benchmark::kMicrosecond)->UseRealTime();
}

}  // namespace

BENCHMARK(at_linear)->Apply(sizes);
BENCHMARK(few_rows)->Apply(sizes);
BENCHMARK(few_rows_int8)->Apply(sizes);
