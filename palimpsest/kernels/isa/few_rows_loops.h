// SPDX-License-Identifier: Apache-2.0
// The loops, written once over the vector type of vectors.h. Included by one file per instruction set, inside an
// unnamed namespace.

#include "palimpsest/kernels/isa/vectors.h"

/// Columns n .. n + N - 1 for R rows: R * N running sums stay in registers, weights are read once.
template <int R, int N, class Weight>
inline void block(const FewRows& job, const Weight* weight, const float* scales, int64_t n) {
  typename Vec::type sums[R][N];
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < N; ++j) sums[r][j] = Vec::zero();
  const auto step = [&](int64_t k) {
    typename Vec::type w[N];
    for (int j = 0; j < N; ++j) w[j] = Vec::load(weight + (n + j) * job.inner + k);
    for (int r = 0; r < R; ++r) {
      const typename Vec::type x = Vec::load(job.x + r * job.inner + k);
      for (int j = 0; j < N; ++j) sums[r][j] = Vec::fma(x, w[j], sums[r][j]);
    }
  };
  // A row may be too short for the machine to foresee where the next one starts: the next block is asked for by line.
  constexpr int64_t kLine =
      Vec::kWidth < 64 / static_cast<int64_t>(sizeof(Weight)) ? 64 / static_cast<int64_t>(sizeof(Weight)) : Vec::kWidth;
  const int64_t lines = job.inner / kLine * kLine, whole = job.inner / Vec::kWidth * Vec::kWidth;
  int64_t k = 0;
  for (; k < lines; k += kLine) {
    for (int j = 0; j < N; ++j) __builtin_prefetch(weight + (n + N + j) * job.inner + k);
    for (int64_t i = 0; i < kLine; i += Vec::kWidth) step(k + i);
  }
  for (; k < whole; k += Vec::kWidth) step(k);
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < N; ++j) {
      float sum = Vec::sum(sums[r][j]);
      for (int64_t i = whole; i < job.inner; ++i)
        sum += job.x[r * job.inner + i] * static_cast<float>(weight[(n + j) * job.inner + i]);
      if (scales != nullptr) sum *= scales[n + j];
      job.y[r * job.ldy + n + j] = job.bias != nullptr ? sum + job.bias[n + j] : sum;
    }
  }
}

template <int R, int N, class Weight>
inline void columns(const FewRows& job, const Weight* weight, const float* scales, int64_t first, int64_t last) {
  int64_t n = first;
  for (; n + N <= last; n += N) block<R, N>(job, weight, scales, n);
  for (; n < last; ++n) block<R, 1>(job, weight, scales, n);
}

/// As many columns at a time as fit the registers beside R rows' sums.
template <class Weight>
inline void all_rows(const FewRows& job, const Weight* weight, const float* scales, int64_t first, int64_t last) {
  switch (job.rows) {
    case 1:
      return columns<1, Vec::kRegisters / 4>(job, weight, scales, first, last);
    case 2:
      return columns<2, Vec::kRegisters / 4>(job, weight, scales, first, last);
    case 3:
      return columns<3, Vec::kRegisters / 5>(job, weight, scales, first, last);
    case 4:
      return columns<4, Vec::kRegisters / 6>(job, weight, scales, first, last);
    case 5:
      return columns<5, Vec::kRegisters / 8>(job, weight, scales, first, last);
    case 6:
      return columns<6, Vec::kRegisters / 8>(job, weight, scales, first, last);
    case 7:
      return columns<7, Vec::kRegisters / 12>(job, weight, scales, first, last);
    default:
      return columns<8, Vec::kRegisters / 12>(job, weight, scales, first, last);
  }
}

void of_float32(const FewRows& job, const float* weight, int64_t first, int64_t last) {
  all_rows(job, weight, nullptr, first, last);
}
void of_int8(const FewRows& job, const int8_t* weight, const float* scales, int64_t first, int64_t last) {
  all_rows(job, weight, scales, first, last);
}
