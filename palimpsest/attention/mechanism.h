// SPDX-License-Identifier: Apache-2.0
// What every attention mechanism is: parts for a whole sequence, parts for the next tokens, a state that is a value.
// A mechanism is one file in mechanisms/ and one line in mechanisms.def (DESIGN section 3).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "palimpsest/attention/mechanism_text.h"
#include "palimpsest/attention/multi_head.h"
#include "palimpsest/attention/partial.h"
#include "palimpsest/attention/state.h"

namespace palimpsest::attention {

/// Where a mechanism stands: among the tokens of an encoder, between a decoder and its source, among tokens that must
/// not see what follows.
enum class Use { kEncoder, kCross, kCausal };
/// "encoder", "cross", "causal".
std::string use_name(Use use);

/// What the layers of one forward pass hand on to each other beside the rows; `workspace` does.
struct LayerCarry {
  at::Tensor slots;  ///< [B, n, E] of the layer before; undefined at the first
};

/// What a mechanism reads. A token's position is the number of real tokens before it, so that padding on either side
/// changes nothing.
struct AttentionInput {
  at::Tensor query;             ///< [B, H, L, D]; undefined while a source is prepared
  at::Tensor key, value;        ///< [B, H, S, D]; S = L but in cross use
  at::Tensor tokens = {};       ///< [B, S, E]: the rows that keys were projected from, which a learned control reads
  at::Tensor control = {};      ///< what `learned_control` gives, where it was made before
  at::Tensor key_mask = {};     ///< [B, S] bool, true = real; undefined = all
  at::Tensor global_mask = {};  ///< [B, S] bool: the tokens that `global:mask` opens to all
  bool training = false;        ///< draws are made anew
  LayerCarry* carry = nullptr;
};

/// What is kept of a source that is read again and again (cross use): n slots, or the keys themselves.
struct Source {
  at::Tensor key, value;  ///< [B, H, n, D]
  at::Tensor key_mask;    ///< [B, n] or [B, H, n] bool, or undefined
};

class Mechanism : public torch::nn::Module {
 public:
  /// The key sets that the queries of a whole sequence read. Encoder and causal use.
  Parts parts(const AttentionInput& input) const;

  /// The same for the next L >= 1 tokens, with what `state` keeps of those before under `name`; key_mask is of the new
  /// tokens alone. Causal use, no graph. Any split into steps equals one pass.
  virtual Parts step(const AttentionInput& next, State& state, const std::string& name) const;

  /// Cross use: what queries will read instead of the source's keys.
  virtual Source source(const AttentionInput& input) const;

  /// [L, S] bool: whether the output at position i depends on the token at j, in a text of so many tokens. What the
  /// contract tests hold a mechanism to.
  virtual at::Tensor sees(int64_t length) const = 0;

  /// Why it cannot be used where it was asked for; empty where it can.
  virtual std::string refusal() const { return {}; }
  /// Why it cannot be read token by token; empty where it can.
  virtual std::string no_stream() const { return {}; }
  /// Whether it is plain softmax attention over all tokens, to which other keys may be appended.
  virtual bool reads_all() const { return false; }
  /// Whether the state stays as it is however much was read.
  virtual bool is_bounded() const { return true; }
  /// Whether which tokens are seen depends on the tokens (hashes, clusters).
  virtual bool content_decides() const { return false; }
  /// The most tokens it can read; 0: no end.
  virtual int64_t longest() const { return 0; }
  /// What a learned control makes of the tokens, [B, H, S, n]; undefined where nothing is learned.
  virtual at::Tensor learned_control(const AttentionInput& /*input*/) const { return {}; }
  /// What training adds to the loss, or undefined.
  virtual at::Tensor auxiliary_loss(const AttentionInput& /*input*/) const { return {}; }
  /// Fills its own parameters; `name` makes draws differ.
  virtual void initialize(uint64_t /*seed*/, const std::string& /*name*/) {}

 protected:
  explicit Mechanism(Use use) : use_(use) {}
  /// `parts`, of queries that are numbers even where they are padding.
  virtual Parts own_parts(const AttentionInput& input) const = 0;
  bool causal() const { return use_ == Use::kCausal; }
  Use use_;
};

/// Modules that mechanisms of several layers have in common, by name; owned by the stack.
class SharedModules {
 public:
  virtual ~SharedModules() = default;
  virtual std::shared_ptr<torch::nn::Module> get(const std::string& name,
                                                 const std::function<std::shared_ptr<torch::nn::Module>()>& make) = 0;
};

/// Where a mechanism is made.
struct MechanismPlace {
  Use use = Use::kEncoder;
  int64_t width = 0, heads = 0;  ///< E, H
  int64_t layer = 0;
  at::TensorOptions options = {};
  SharedModules* shared = nullptr;  ///< null: nothing is shared
  int64_t head_width() const { return width / heads; }
};

/// One line of the registry.
struct MechanismKind {
  std::string name;                   ///< "window"
  std::string form;                   ///< "window:W"
  std::string summary;                ///< for help and documentation
  std::vector<std::string> examples;  ///< texts that the contract tests go through
  std::function<std::shared_ptr<Mechanism>(MechanismArguments&, const MechanismPlace&)> make;
};

/// All there are, in the order of mechanisms.def.
const std::vector<MechanismKind>& mechanism_kinds();

/// Makes what `text` ("window:256") describes. A usage error names what is unknown or out of range, or says why it
/// cannot stand there.
std::shared_ptr<Mechanism> make_mechanism(const std::string& text, const MechanismPlace& place);

/// [B, L] int64: the number of real tokens before each; the running index where nothing is padded.
at::Tensor token_positions(const at::Tensor& key_mask, int64_t batch, int64_t length, const at::Device& device);

}  // namespace palimpsest::attention
