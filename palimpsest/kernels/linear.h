// SPDX-License-Identifier: Apache-2.0
// The linear map, by whatever computes it fastest for the number of rows and the machine.
#pragma once

#include <ATen/ATen.h>

namespace palimpsest::kernels {

/// x W^T + b. x [.., K], weight [N, K], bias [N] or undefined; the plain twin is at::linear. Without a graph, in
/// float32 on the CPU, a few rows take the kernel that reads weights at the speed of memory (few_rows_linear.h), and
/// more rows oneDNN where it is faster than the BLAS that at::linear calls: on AMD's processors, or as PALIMPSEST_GEMM
/// (onednn | blas) says. On a Zen 2 that is 1.1 to 1.5 times (`palimpsest bench encode` beside the same with
/// PALIMPSEST_GEMM=blas).
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace palimpsest::kernels
