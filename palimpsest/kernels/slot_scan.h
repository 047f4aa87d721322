// SPDX-License-Identifier: Apache-2.0
// The causal slot scan, fused: a head's slots stay in the first cache while its tokens pass (ALGORITHMS 1.5). float32
// on the CPU; the plain twin is attention/slot_scan.cpp.
#pragma once

#include <ATen/ATen.h>

#include "palimpsest/kernels/isa.h"
#include "palimpsest/kernels/isa/slot_scan.h"

namespace palimpsest::kernels {

/// query, key, value [B, H, L, D], control [B, H, L, n]; mass [B, H, n], start_key and start_value [B, H, n, D].
struct SlotScanJob {
  at::Tensor query, key, value, control, mass, start_key, start_value;
  Writing writing = Writing::kRunning;
  double scale = 1;
};

/// True where the kernel may be used: CPU, float32.
bool slot_scan_fits(const SlotScanJob& job);

struct SlotScanResult {
  at::Tensor out;                       ///< [B, H, L, D]
  at::Tensor lse;                       ///< [B, H, L]
  at::Tensor mass, end_key, end_value;  ///< after the last token, as SlotScanJob's
};
SlotScanResult slot_scan(const SlotScanJob& job, Isa isa = chosen_isa());

/// Gradients of query, key, value and control, given the merged attention (lse 0 where nothing was read) and the
/// gradient of its out.
std::vector<at::Tensor> slot_scan_backward(const SlotScanJob& job, const at::Tensor& out, const at::Tensor& lse,
                                           const at::Tensor& grad, Isa isa = chosen_isa());

}  // namespace palimpsest::kernels
