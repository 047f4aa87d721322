// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "palimpsest/kernels/isa/few_rows.h"

namespace palimpsest::kernels {
namespace {

struct Vec {
  using type = __m256;
  static constexpr int kWidth = 8, kRegisters = 16;
  static inline type zero() { return _mm256_setzero_ps(); }
  static inline type load(const float* p) { return _mm256_loadu_ps(p); }
  static inline type load(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static inline type fma(type a, type b, type c) { return _mm256_fmadd_ps(a, b, c); }
  static inline float sum(type v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
};

#include "palimpsest/kernels/isa/few_rows_loops.h"

}  // namespace

FewRowsKernels few_rows_avx2() { return {of_float32, of_int8}; }

}  // namespace palimpsest::kernels
