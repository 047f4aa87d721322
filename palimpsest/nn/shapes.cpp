// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/nn/shapes.h"

#include "palimpsest/core/error.h"

namespace palimpsest::nn {

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (const int64_t size : shape)
    text += (text.size() > 1 ? ", " : "") + (size < 0 ? std::string("*") : std::to_string(size));
  return text + "]";
}

void check_shape(const at::Tensor& tensor, at::IntArrayRef expected, const char* name) {
  bool fits = tensor.defined() && tensor.dim() == static_cast<int64_t>(expected.size());
  for (size_t i = 0; fits && i < expected.size(); ++i)
    fits = expected[i] < 0 || expected[i] == tensor.size(static_cast<int64_t>(i));
  if (fits) return;
  throw internal_error(fmt::format("{} has shape {}, expected {}", name,
                                   tensor.defined() ? shape_text(tensor.sizes()) : "none", shape_text(expected)));
}

at::Tensor split_heads(const at::Tensor& rows, int64_t heads) {
  return rows.view({rows.size(0), rows.size(1), heads, rows.size(2) / heads}).transpose(1, 2);
}

at::Tensor join_heads(const at::Tensor& heads) {
  return heads.transpose(1, 2).reshape({heads.size(0), heads.size(2), heads.size(1) * heads.size(3)});
}

at::ScalarType dtype_of(const std::string& name) {
  if (name == "float32" || name == "fp32" || name == "float") return at::kFloat;
  if (name == "float64" || name == "double") return at::kDouble;
  if (name == "bfloat16" || name == "bf16") return at::kBFloat16;
  if (name == "float16" || name == "fp16" || name == "half") return at::kHalf;
  throw usage_error(fmt::format("unknown dtype \"{}\"", name), "",
                    "choose one of: float32, float64, bfloat16, float16");
}

std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      return c10::toString(dtype);
  }
}

}  // namespace palimpsest::nn
