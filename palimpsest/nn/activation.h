// SPDX-License-Identifier: Apache-2.0
// The activations that Hugging Face configs name.
#pragma once

#include <ATen/ATen.h>

#include <string>

namespace palimpsest::nn {

enum class Activation { kGelu, kGeluTanh, kRelu, kSilu, kTanh, kQuickGelu };

/// "gelu" (exact), "gelu_new" and "gelu_pytorch_tanh" (the tanh form), "relu", "silu" and "swish", "tanh",
/// "quick_gelu"; an input error that lists them for anything else, with `source` as its place.
Activation activation_of(const std::string& name, const std::string& source);
/// The first of the names above.
const char* activation_name(Activation activation);
at::Tensor activate(Activation activation, const at::Tensor& x);

}  // namespace palimpsest::nn
