// SPDX-License-Identifier: Apache-2.0
// What generation asks of a model: logits of the next token, for rows that carry a state.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace palimpsest::generate {

/// Rows are numbered from 0. At the start there is one row per item (a source or a prompt); `reorder` then makes beams
/// and copies of them. No call builds a graph. Rows do not influence each other.
class Decoder {
 public:
  virtual ~Decoder() = default;

  virtual int64_t items() const = 0;
  virtual int64_t vocab_size() const = 0;
  /// The most ids that `row_ids` may grow to (the position table), or nothing where there is no end.
  virtual std::optional<int64_t> longest() const = 0;
  /// What the sequences start with, [items, T] int64: the decoder's start token, or the prompt with its left padding.
  virtual at::Tensor start_ids() const = 0;
  /// [items] int64: padding at the left of each row of start_ids (all 0 for an encoder-decoder).
  virtual at::Tensor left_padding() const = 0;

  /// Reads start_ids: logits of the token that follows, [items, V], on the CPU in float32 (float64 for a float64
  /// model). Called once, before everything else.
  virtual at::Tensor start() = 0;
  /// Reads one more token per row, ids [R] int64 on the CPU: logits [R, V] of the token that follows.
  virtual at::Tensor step(const at::Tensor& ids) = 0;
  /// From now on row r continues what was row `rows[r]`. Rows of one item lie together and every item that is still
  /// there has as many as the others; an item whose rows are named nowhere is gone for good. Nothing is copied where
  /// the order stays.
  virtual void reorder(const std::vector<int64_t>& rows) = 0;

  /// Bytes of the caches, as they are now.
  virtual int64_t state_bytes() const = 0;
};

}  // namespace palimpsest::generate
