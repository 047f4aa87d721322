// SPDX-License-Identifier: Apache-2.0
// The inner loops of the causal slot scan, one set per instruction set (as few_rows.h).
#pragma once

#include <stdint.h>

namespace palimpsest::kernels {

/// How a token enters a slot: see attention/slot_scan.h.
enum class Writing { kRunning, kFrozen, kAdditive };

/// One head of one row. Rows of tokens lie `stride` floats apart, their own numbers side by side.
struct SlotScanHead {
  int64_t length, slots, width;  ///< L, n, D
  Writing writing;
  float scale;
  const float *query, *key, *value, *control;
  int64_t query_stride, key_stride, value_stride, control_stride;
  const float *mass, *start_key, *start_value;  ///< [n], [n, D], [n, D] before the first token
};

struct SlotScanForward {
  float* out;  ///< [L, D]
  int64_t out_stride;
  float* lse;                             ///< [L]
  float *end_mass, *end_key, *end_value;  ///< [n], [n, D], [n, D] after the last token; may be null
  float* scratch;                         ///< floats_forward(slots, width)
};

struct SlotScanBackward {
  const float *out, *grad;  ///< merged, [L, D]
  int64_t out_stride, grad_stride;
  const float* lse;                                          ///< merged, [L]
  float *query_grad, *key_grad, *value_grad, *control_grad;  ///< [L, D] three times, [L, n]; dense
  float* scratch;                                            ///< floats_backward(length, slots, width)
};

struct SlotScanKernels {
  void (*forward)(const SlotScanHead&, const SlotScanForward&);
  void (*backward)(const SlotScanHead&, const SlotScanBackward&);
  int64_t (*floats_forward)(int64_t slots, int64_t width);
  int64_t (*floats_backward)(int64_t length, int64_t slots, int64_t width);
};

SlotScanKernels slot_scan_plain();
SlotScanKernels slot_scan_avx2();
SlotScanKernels slot_scan_avx512();

}  // namespace palimpsest::kernels
