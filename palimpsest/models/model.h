// SPDX-License-Identifier: Apache-2.0
// What every family of models has in common. A family is one class, one line in families.cpp and one name table in
// checkpoint/.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "palimpsest/core/json.h"

namespace palimpsest::models {

/// How parameters start. Norms are 1 and 0, biases 0 in all of them.
///   normal      linear weights and embeddings N(0, std)   (the family's own std), v_b N(0, slot_std)
///   scaled      linear weights N(0, 1/fan-in), embeddings N(0, std), v_b N(0, 1)
///   structured  attention starts out looking at like positions and passing on what it sees: see docs/training.md.
///               Encoder and decoder start with the same positions, slot j starts as the positions of its part of a
///               segment, query and key projections are one orthogonal matrix, the output projection is the transpose
///               of the value projection, and slots start with the tokens' weights. (BART only.)
struct Init {
  enum Style { kNormal, kScaled, kStructured } style = kNormal;
  double std = 0.02, slot_std = 0.01;
  int64_t segment = 0;  ///< structured: tokens that slots share out among them; 0: the position table
  uint64_t seed = 0;
};

class Model : public torch::nn::Module {
 public:
  /// As in "model_type" of a Hugging Face config.json.
  virtual const char* family() const = 0;
  virtual int64_t vocab_size() const = 0;
  /// The standard deviation that the config gives for new weights.
  virtual double init_std() const = 0;
  /// The whole config.json, with the `palimpsest` object where there is anything to say.
  virtual Json config_json() const = 0;
  virtual void initialize(const Init& init) = 0;
  /// From now on the weights that decoding reads at every step are held in 8 bits, one scale a row: of an
  /// encoder-decoder all of the decoder but the keys and values of the source, and the output embedding. For inference
  /// in float32 on the CPU; cannot be undone.
  virtual void quantize() = 0;
  /// The type of the parameters.
  virtual at::ScalarType dtype() const = 0;
};

/// Makes the model that a config.json describes, with parameters yet to be filled. `source` stands in errors; a family
/// that is not known is an input error that lists those that are.
std::shared_ptr<Model> make_model(const Json& config, const std::string& source, const at::TensorOptions& options);

}  // namespace palimpsest::models
