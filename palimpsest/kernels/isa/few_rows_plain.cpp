// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "palimpsest/kernels/isa/few_rows.h"

namespace palimpsest::kernels {
namespace {

#include "palimpsest/kernels/isa/few_rows_loops.h"

}  // namespace

FewRowsKernels few_rows_plain() { return {of_float32, of_int8}; }

}  // namespace palimpsest::kernels
