// SPDX-License-Identifier: Apache-2.0
// The mechanisms of a stack of layers, made from one text, and what those layers have in common.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "palimpsest/attention/mechanism.h"

namespace palimpsest::attention {

class MechanismStack : public torch::nn::Module, private SharedModules {
 public:
  /// `text` as mechanism_texts reads it; empty: dense. A usage error names what is unknown, out of range or refused.
  MechanismStack(const std::string& text, Use use, int64_t layers, int64_t width, int64_t heads,
                 const at::TensorOptions& options);

  /// The text it was made from; "dense" where it was empty.
  const std::string& text() const { return text_; }
  const Mechanism& operator[](size_t layer) const { return *mechanisms_[layer]; }
  /// Whether every layer is plain softmax attention over all tokens.
  bool dense() const;
  /// Why it cannot be read token by token; empty where it can.
  std::string no_stream() const;
  /// Whether the state stays as it is however much was read.
  bool bounded() const;
  /// The most tokens it can read; 0: no end.
  int64_t longest() const;
  /// Fills the parameters; `name` makes draws differ.
  void initialize(uint64_t seed, const std::string& name);
  /// The same for those that `chosen` takes, and no other.
  void initialize(const std::function<bool(const std::string& parameter)>& chosen, uint64_t seed,
                  const std::string& name);

 private:
  std::shared_ptr<torch::nn::Module> get(const std::string& name,
                                         const std::function<std::shared_ptr<torch::nn::Module>()>& make) override;
  std::string text_;
  Use use_;
  int64_t width_, heads_;
  std::map<std::string, std::shared_ptr<torch::nn::Module>> shared_;
  std::vector<std::shared_ptr<Mechanism>> mechanisms_;
};

}  // namespace palimpsest::attention
