// SPDX-License-Identifier: Apache-2.0
// Vectors of floats in the instruction set that the including file is compiled for. Included inside an unnamed
// namespace, so that no two files share a symbol; <immintrin.h> and <math.h> come before it.

#if defined(__AVX512F__)

struct Vec {
  using type = __m512;
  static constexpr int kWidth = 16, kRegisters = 32;
  static inline type zero() { return _mm512_setzero_ps(); }
  static inline type all(float x) { return _mm512_set1_ps(x); }
  static inline type load(const float* p) { return _mm512_loadu_ps(p); }
  static inline type load(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static inline void store(float* p, type x) { _mm512_storeu_ps(p, x); }
  static inline type add(type a, type b) { return _mm512_add_ps(a, b); }
  static inline type sub(type a, type b) { return _mm512_sub_ps(a, b); }
  static inline type mul(type a, type b) { return _mm512_mul_ps(a, b); }
  static inline type div(type a, type b) { return _mm512_div_ps(a, b); }
  static inline type max(type a, type b) { return _mm512_max_ps(a, b); }
  static inline type fma(type a, type b, type c) { return _mm512_fmadd_ps(a, b, c); }
  /// c - a b
  static inline type fnma(type a, type b, type c) { return _mm512_fnmadd_ps(a, b, c); }
  static inline float sum(type v) { return _mm512_reduce_add_ps(v); }
  static inline float largest(type v) { return _mm512_reduce_max_ps(v); }
  /// x where a > b, else y.
  static inline type where_greater(type a, type b, type x, type y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x);
  }
  static inline bool any_greater(type a, type b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
  static inline type rounded(type x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  /// x 2^n for whole n.
  static inline type scaled(type x, type n) { return _mm512_scalef_ps(x, n); }
};

#elif defined(__AVX2__)

struct Vec {
  using type = __m256;
  static constexpr int kWidth = 8, kRegisters = 16;
  static inline type zero() { return _mm256_setzero_ps(); }
  static inline type all(float x) { return _mm256_set1_ps(x); }
  static inline type load(const float* p) { return _mm256_loadu_ps(p); }
  static inline type load(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static inline void store(float* p, type x) { _mm256_storeu_ps(p, x); }
  static inline type add(type a, type b) { return _mm256_add_ps(a, b); }
  static inline type sub(type a, type b) { return _mm256_sub_ps(a, b); }
  static inline type mul(type a, type b) { return _mm256_mul_ps(a, b); }
  static inline type div(type a, type b) { return _mm256_div_ps(a, b); }
  static inline type max(type a, type b) { return _mm256_max_ps(a, b); }
  static inline type fma(type a, type b, type c) { return _mm256_fmadd_ps(a, b, c); }
  static inline type fnma(type a, type b, type c) { return _mm256_fnmadd_ps(a, b, c); }
  static inline float sum(type v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
  static inline float largest(type v) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }
  static inline type where_greater(type a, type b, type x, type y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
  }
  static inline bool any_greater(type a, type b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0; }
  static inline type rounded(type x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static inline type scaled(type x, type n) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(x, _mm256_castsi256_ps(exponent));
  }
};

#else

struct Vec {
  using type = float;
  static constexpr int kWidth = 1, kRegisters = 16;
  static inline type zero() { return 0; }
  static inline type all(float x) { return x; }
  static inline type load(const float* p) { return *p; }
  static inline type load(const int8_t* p) { return static_cast<float>(*p); }
  static inline void store(float* p, type x) { *p = x; }
  static inline type add(type a, type b) { return a + b; }
  static inline type sub(type a, type b) { return a - b; }
  static inline type mul(type a, type b) { return a * b; }
  static inline type div(type a, type b) { return a / b; }
  static inline type max(type a, type b) { return a > b ? a : b; }
  static inline type fma(type a, type b, type c) { return a * b + c; }
  static inline type fnma(type a, type b, type c) { return c - a * b; }
  static inline float sum(type v) { return v; }
  static inline float largest(type v) { return v; }
  static inline type where_greater(type a, type b, type x, type y) { return a > b ? x : y; }
  static inline bool any_greater(type a, type b) { return a > b; }
  static inline type rounded(type x) { return rintf(x); }
  static inline type scaled(type x, type n) { return ldexpf(x, static_cast<int>(n)); }
};

#endif

/// e^x for x <= 88, 0 below -87 (and for -inf); within 2 units of the last place. x = n ln 2 + r, |r| <= ln 2 / 2, and
/// the Taylor sum of e^r up to r^7.
inline typename Vec::type exponential(typename Vec::type x) {
  using V = Vec;
  const V::type bounded = V::max(V::all(-87.0f), x);  // in this order NaN stays
  const V::type n = V::rounded(V::mul(bounded, V::all(1.44269504088896341f)));
  V::type r = V::fnma(n, V::all(0.693145751953125f), bounded);
  r = V::fnma(n, V::all(1.428606765330187e-6f), r);
  V::type sum = V::all(1.0f / 5040);
  constexpr float kTaylor[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  for (const float coefficient : kTaylor) sum = V::fma(sum, r, V::all(coefficient));
  return V::where_greater(V::all(-87.0f), x, V::zero(), V::scaled(sum, n));
}
