// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "palimpsest/kernels/isa/slot_scan.h"

namespace palimpsest::kernels {
namespace {

#include "palimpsest/kernels/isa/slot_scan_loops.h"

}  // namespace

SlotScanKernels slot_scan_avx2() { return {forward, backward, floats_forward, floats_backward}; }

}  // namespace palimpsest::kernels
