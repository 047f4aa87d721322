// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/kernels/isa/few_rows.h"

namespace palimpsest::kernels {
namespace {

struct Vec {
  using type = float;
  static constexpr int kWidth = 1, kRegisters = 16;
  static inline type zero() { return 0; }
  static inline type load(const float* p) { return *p; }
  static inline type load(const int8_t* p) { return static_cast<float>(*p); }
  static inline type fma(type a, type b, type c) { return a * b + c; }
  static inline float sum(type v) { return v; }
};

#include "palimpsest/kernels/isa/few_rows_loops.h"

}  // namespace

FewRowsKernels few_rows_plain() { return {of_float32, of_int8}; }

}  // namespace palimpsest::kernels
