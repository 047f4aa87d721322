// SPDX-License-Identifier: Apache-2.0
// Attention by locality-sensitive hashing, as in Reformer without reversible layers (GMAT section 3.1; ALGORITHMS 2.4).
#pragma once

#include "palimpsest/attention/partial.h"

namespace palimpsest::attention {

struct LshOptions {
  int64_t bucket = 64;       ///< b: tokens of a block
  int64_t rounds = 4;        ///< R: hashes; each is a key set of its own
  bool wrap_global = false;  ///< block 0 looks back at the last block of the round before (the reference) or of its own
  bool hash_padding = false;  ///< padding is hashed like tokens (the reference) or sorted behind them
  bool dedup = false;         ///< a pair that meets in several rounds counts once
  bool in_bucket = false;     ///< keys of another bucket are not seen
  bool causal = false;        ///< keys after the query are not seen; the hashes know of them all the same
};

/// Buckets of a row of so many tokens: an even number, at least 2.
int64_t lsh_buckets(int64_t length, int64_t bucket);

/// Queries qk and keys qk / |qk| [B, H, L, D], values [B, H, L, D], key_mask [B, L] bool or undefined. rotations
/// [B or 1, H or 1, D, R, at least half the buckets]; a row uses as many columns as its own tokens ask for. A token
/// reads itself only where nothing else can be read. No gradient goes through hashes.
Parts lsh_parts(const at::Tensor& qk, const at::Tensor& value, const at::Tensor& key_mask, const at::Tensor& rotations,
                const LshOptions& options);

}  // namespace palimpsest::attention
