// SPDX-License-Identifier: Apache-2.0
// Greedy decoding of encoded sources in one call: what evaluation and small programs ask for. Everything else is in
// generate/search.h.
#pragma once

#include <cstdint>
#include <vector>

#include "palimpsest/models/bart.h"

namespace palimpsest::generate {

struct GreedyOptions {
  int64_t start_id = 2;  ///< the decoder's first token
  int64_t max_new_tokens = 64;
  int64_t min_new_tokens = 0;  ///< eos is not chosen before that many tokens
  int64_t eos_id = 2;
  std::vector<int64_t> never = {};  ///< ids that are never chosen (pad, start tokens of tasks, …)
};

struct Generated {
  std::vector<std::vector<int64_t>> sequences;  ///< [B]: new tokens, with eos where one was chosen, without the start
  std::vector<double> scores;                   ///< [B]: sum of their log-probabilities
  int64_t state_bytes = 0;                      ///< the most that the caches took
};

/// No autograd; rows do not influence each other. More tokens than the position table holds: a usage error before
/// any work (FR-41).
Generated greedy(const models::Model& model, const models::EncoderOutput& encoded, const GreedyOptions& options);

}  // namespace palimpsest::generate
