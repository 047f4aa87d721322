// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/nn/activation.h"

#include "palimpsest/core/error.h"

namespace palimpsest::nn {

namespace {

struct Entry {
  const char* name;
  Activation activation;
};
constexpr Entry kActivations[] = {
    {"gelu", Activation::kGelu}, {"gelu_new", Activation::kGeluTanh},   {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"relu", Activation::kRelu}, {"silu", Activation::kSilu},           {"swish", Activation::kSilu},
    {"tanh", Activation::kTanh}, {"quick_gelu", Activation::kQuickGelu}};

}  // namespace

Activation activation_of(const std::string& name, const std::string& source) {
  std::string known;
  for (const Entry& entry : kActivations) {
    if (name == entry.name) return entry.activation;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw input_error(fmt::format("the activation \"{}\" is not supported", printable(name)), source,
                    "supported are " + known);
}

const char* activation_name(Activation activation) {
  for (const Entry& entry : kActivations) {
    if (entry.activation == activation) return entry.name;
  }
  throw internal_error("an activation without a name");
}

at::Tensor activate(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kTanh:
      return at::tanh(x);
    case Activation::kQuickGelu:
      return x * at::sigmoid(x * 1.702);
  }
  throw internal_error("an unknown activation");
}

}  // namespace palimpsest::nn
