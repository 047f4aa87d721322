// SPDX-License-Identifier: Apache-2.0
// The inner loops of few_rows_linear, one set per instruction set. Files here are compiled with flags of their own and
// include neither torch nor the standard library's templates: code of theirs must not reach other files.
#pragma once

#include <stdint.h>

namespace palimpsest::kernels {

/// Columns first..last of y [rows, ldy] = x [rows, inner] W^T + bias (may be null), rows from 1 to 8.
struct FewRows {
  const float* x;
  int64_t rows, inner;
  const float* bias;
  float* y;
  int64_t ldy;
};
struct FewRowsKernels {
  void (*float32)(const FewRows& job, const float* weight, int64_t first, int64_t last);
  void (*int8)(const FewRows& job, const int8_t* weight, const float* scales, int64_t first, int64_t last);
};

FewRowsKernels few_rows_plain();
FewRowsKernels few_rows_avx2();
FewRowsKernels few_rows_avx512();

}  // namespace palimpsest::kernels
