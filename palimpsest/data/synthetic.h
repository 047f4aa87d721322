// SPDX-License-Identifier: Apache-2.0
// Synthetic corpora whose best possible loss is known: symbols drawn independently and uniformly (invariant M16).
#pragma once

#include <cstdint>
#include <memory>

#include "palimpsest/data/corpus.h"

namespace palimpsest::data {

struct UniformOptions {
  int64_t documents = 1;  // D
  int64_t length = 512;   // N tokens each
  int64_t symbols = 64;   // V different ids
  int32_t first_id = 0;   // ids are first_id … first_id + symbols - 1 (below lie special tokens)
  uint64_t seed = 0;
};

/// D documents of N symbols. No model can do better than log V on a symbol that is not in what it sees or remembers.
/// Document d follows from (seed, d) alone. Usage error for sizes below 1.
std::shared_ptr<const Corpus> uniform_corpus(const UniformOptions& options);

}  // namespace palimpsest::data
