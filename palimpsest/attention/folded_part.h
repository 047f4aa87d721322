// SPDX-License-Identifier: Apache-2.0
// Attention of blocks to neighbouring blocks: what makes a band or chunks cost L x W instead of L x L (DESIGN section
// 1).
#pragma once

#include <functional>

#include "palimpsest/attention/partial.h"

namespace palimpsest::attention {

/// [.., L, S] bool for positions [.., L, 1] and [.., 1, S] int64: whether the first may read the second.
using VisibleAt = std::function<at::Tensor(const at::Tensor& query, const at::Tensor& key)>;

/// Block c of `block` queries reads the key blocks c - before to c + after.
struct Fold {
  int64_t block = 0, before = 0, after = 0;
};

/// Blocks for a band that reaches `reach` tokens back (and forward, where both): half of the keys that a block reads
/// are its queries' own at most.
Fold band_fold(int64_t reach, bool both);

/// Queries, keys and values [B, H, L, D] of one sequence. Blocks are counted in real tokens: padding (key_mask [B, L]
/// bool or undefined) may lie on either side. `readers` and `read` [B, L] bool (or undefined: all) take queries and
/// keys out of this part. `all_visible`: `visible` holds for every pair of a block and its neighbours. With `key_block`
/// keys are others [B, H, S, D], so many of them for a block of queries; `visible` is given their indices, and they are
/// never padding.
struct FoldedShape {
  Fold fold;
  VisibleAt visible;
  at::Tensor key_mask = {}, readers = {}, read = {};
  bool all_visible = false;
  int64_t key_block = 0;
};
std::shared_ptr<const Part> folded_part(at::Tensor query, at::Tensor key, at::Tensor value, FoldedShape shape);

/// The queries at some places alone; all others see nothing. places [B, G] int64 into L, valid [B, G] bool.
/// They read every key that `visibility` shows.
std::shared_ptr<const Part> rows_part(at::Tensor query, at::Tensor key, at::Tensor value, at::Tensor places,
                                      at::Tensor valid, Visibility visibility);

}  // namespace palimpsest::attention
