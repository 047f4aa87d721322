// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "palimpsest/kernels/isa/few_rows.h"

namespace palimpsest::kernels {
namespace {

struct Vec {
  using type = __m512;
  static constexpr int kWidth = 16, kRegisters = 32;
  static inline type zero() { return _mm512_setzero_ps(); }
  static inline type load(const float* p) { return _mm512_loadu_ps(p); }
  static inline type load(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static inline type fma(type a, type b, type c) { return _mm512_fmadd_ps(a, b, c); }
  static inline float sum(type v) { return _mm512_reduce_add_ps(v); }
};

#include "palimpsest/kernels/isa/few_rows_loops.h"

}  // namespace

FewRowsKernels few_rows_avx512() { return {of_float32, of_int8}; }

}  // namespace palimpsest::kernels
