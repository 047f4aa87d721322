// SPDX-License-Identifier: Apache-2.0
// What every family of models has in common. A family is one class, one line in families.cpp and one name table in
// checkpoint/.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "palimpsest/core/json.h"
#include "palimpsest/memory/memory_stream.h"

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
  double embedding_scale =
      1;  ///< structured: of words and positions. The encoder's norm undoes it, the output's does not
  uint64_t seed = 0;
};

/// How a memory that is put beside a model without one starts (ALGORITHMS 3.2): slot weights N(0, 0.01) (0.001 from a
/// width of 1024 on), or copies of the layer's own; the gate and v_b N(0, the same) in both.
enum class MemoryInit { kRandom, kCopy };

/// Whether the parameter of this module name is meant.
using Chosen = std::function<bool(const std::string& module_name)>;

/// What a model reads before it writes.
struct EncodeInput {
  at::Tensor ids;               ///< [B, L] int64
  at::Tensor mask = {};         ///< [B, L] bool, true = real; undefined where nothing is padded (the fast path)
  memory::Memory memory = {};   ///< of the segment before; undefined = fresh
  at::Tensor reset = {};        ///< [B] bool: forget `memory` first; undefined = keep all
  at::Tensor global_mask = {};  ///< [B, L] bool: the tokens that `global:mask` opens to all; undefined = none
  bool use_memory = true;       ///< false: tokens and decoder do not see the memory, which is still written
  memory::Observer observe = {};
};

/// What it writes from.
struct EncoderOutput {
  at::Tensor hidden;          ///< [B, L, E]
  memory::Memory memory;      ///< to carry to the next segment
  at::Tensor context;         ///< [B, M + L, E]: what the decoder attends to
  at::Tensor context_mask;    ///< [B, M + L] bool or undefined
  at::Tensor context_global;  ///< [B, M + L] bool or undefined: what `global:mask` opens; the memory always
  /// Of a decoder alone, instead of all of these: the ids that it goes on from, [B, L], padded on the left, and their
  /// mask [B, L] bool or undefined.
  at::Tensor prompt, prompt_mask;
  int64_t rows() const { return (prompt.defined() ? prompt : context).size(0); }  ///< B
};

/// Ids that targets are built with; -1 where a family has none.
struct FamilyIds {
  int64_t bos = -1, pad = -1, eos = -1, start = -1;  ///< start: what the decoder's row begins with
};

/// The map from hidden rows to logits: hidden * weight^T + bias.
struct OutputTable {
  at::Tensor weight;  ///< [V, E]
  at::Tensor bias;    ///< [V] or undefined
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
  /// Fills the parameters of memory and attention mechanisms that `chosen` takes; all others must be there.
  virtual void initialize_new(const Chosen& chosen, MemoryInit init, uint64_t seed) = 0;
  /// From now on the weights that decoding reads at every step are held in 8 bits, one scale a row: of an
  /// encoder-decoder all of the decoder but the keys and values of the source, and the output embedding. For inference
  /// in float32 on the CPU; cannot be undone.
  virtual void quantize() = 0;

  /// Whether there is no encoder: what is read is the beginning of the row that is written.
  virtual bool decoder_only() const = 0;
  virtual FamilyIds ids() const = 0;
  /// Rows of the position table.
  virtual int64_t positions() const = 0;
  /// The most tokens that can be written after `read` tokens were read, the start token not counted.
  virtual int64_t room_for_target(int64_t read) const = 0;

  /// Reads one segment (of a decoder: only takes it down).
  virtual EncoderOutput encode(const EncodeInput& input) const = 0;
  /// Hidden rows [B, T, E] for ids [B, T], the start token first: the row at t foretells the id at t + 1. mask [B, T]
  /// bool or undefined.
  virtual at::Tensor decode(const at::Tensor& ids, const at::Tensor& mask, const EncoderOutput& encoded) const = 0;
  /// [.., E] -> [.., V]
  virtual at::Tensor logits(const at::Tensor& hidden) const = 0;
  virtual OutputTable output_table() const = 0;
  /// Kind "none" where there is no memory.
  virtual const memory::MemoryOptions& memory_options() const = 0;
  /// A memory before anything was read; undefined slots where the model has none.
  virtual memory::Memory fresh_memory(int64_t batch) const = 0;

  /// The input embedding, [V, E].
  virtual const at::Tensor& words() const = 0;
  /// All tables that ids and positions are looked up in.
  virtual std::vector<at::Tensor> embedding_tables() const = 0;
  /// The type and place of the parameters.
  at::ScalarType dtype() const { return words().scalar_type(); }
  at::Device device() const { return words().device(); }
};

/// Makes the model that a config.json describes, with parameters yet to be filled. `source` stands in errors; a family
/// that is not known is an input error that lists those that are.
std::shared_ptr<Model> make_model(const Json& config, const std::string& source, const at::TensorOptions& options);

}  // namespace palimpsest::models
