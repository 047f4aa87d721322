// SPDX-License-Identifier: Apache-2.0
// Mechanisms that are a pattern of positions: which token reads which follows from where they stand, and from nothing
// else. One predicate gives the fast form (folds), the plain twin (a mask), the stream and what the tests hold it to.
#pragma once

#include <optional>

#include "palimpsest/attention/folded_part.h"
#include "palimpsest/attention/mechanism.h"

namespace palimpsest::attention {

class Pattern : public Mechanism {
 public:
  Parts own_parts(const AttentionInput& input) const override;
  Parts step(const AttentionInput& next, State& state, const std::string& name) const override;
  at::Tensor sees(int64_t length) const override;
  bool is_bounded() const override { return newest() >= 0; }

 protected:
  using Mechanism::Mechanism;
  /// Bool, broadcast over positions int64: whether the token at `query` reads the one at `key`. In causal use never
  /// true of a later key.
  virtual at::Tensor visible(const at::Tensor& query, const at::Tensor& key) const = 0;
  /// The blocks in which `visible` lies; none: dense with a mask.
  virtual std::optional<Fold> fold() const { return std::nullopt; }
  /// Whether every pair of a block and the neighbours it reads is visible.
  virtual bool fold_is_full() const { return false; }
  /// Tokens before the current one that a later token may still read, the current one included: what a stream keeps;
  /// -1: all.
  virtual int64_t newest() const { return -1; }
  /// The first tokens of a text that a stream keeps for good.
  virtual int64_t first() const { return 0; }
};

/// The newest keys and values of a stream, and its first ones, at fixed size: position p lies in column p mod room.
/// What `state` holds under `name`: "key", "value" [B, H, first + room + 1, D] (the last column takes what is padding)
/// and "next" [B] int64, the number of real tokens read.
class KeptKeys {
 public:
  KeptKeys(State& state, std::string name, int64_t first, int64_t room)
      : state_(state), name_(std::move(name)), first_(first), room_(room) {}
  struct Keys {
    at::Tensor key, value;  ///< [B, H, first + room + L, D]
    at::Tensor position;    ///< [B, first + room + L] int64, -1 where there is none
    at::Tensor query;       ///< [B, L] int64: positions of the new tokens, -1 where they are padding
  };
  /// What was kept with the new keys behind it; the state then keeps the newest of both.
  Keys take(const AttentionInput& next);

 private:
  State& state_;
  std::string name_;
  int64_t first_, room_;
};

}  // namespace palimpsest::attention
