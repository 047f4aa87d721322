// SPDX-License-Identifier: Apache-2.0
// The linear map, by whatever computes it fastest for the number of rows and the machine.
#pragma once

#include <ATen/ATen.h>

namespace palimpsest::kernels {

/// x W^T + b. x [.., K], weight [N, K], bias [N] or undefined; the plain twin is at::linear. Without a graph, in
/// float32 on the CPU, a few rows take the kernel that reads weights at the speed of memory (few_rows_linear.h), and
/// more rows oneDNN where it is faster than the BLAS that at::linear calls (on AMD's processors: 1.2 to 1.4 times).
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// What takes more than a few rows here: "onednn" or "blas". PALIMPSEST_GEMM names another.
const char* many_rows_backend();

}  // namespace palimpsest::kernels
