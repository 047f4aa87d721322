// SPDX-License-Identifier: Apache-2.0
// The one alphabet of shapes, and the check at the door.
//
//   B batch (lanes)   H heads       L queries (tokens)   S keys      D head width
//   E model width     F feed-forward width               M memory slots          V vocabulary
#pragma once

#include <ATen/ATen.h>

#include <string>

namespace palimpsest::nn {

/// Throws an internal error that names the tensor, the expected and the actual shape. -1 matches any size.
void check_shape(const at::Tensor& tensor, at::IntArrayRef expected, const char* name);
/// "[2, 3]".
std::string shape_text(at::IntArrayRef shape);

/// [B, L, H*D] -> [B, H, L, D] (a view) and back (a copy where needed).
at::Tensor split_heads(const at::Tensor& rows, int64_t heads);
at::Tensor join_heads(const at::Tensor& heads);

/// float32 | float64 | bfloat16 | float16 as text, and back; a usage error for anything else.
at::ScalarType dtype_of(const std::string& name);
std::string dtype_name(at::ScalarType dtype);

}  // namespace palimpsest::nn
