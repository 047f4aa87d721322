// SPDX-License-Identifier: Apache-2.0
// Corruption for denoising: BART's text infilling and token masking (ALGORITHMS 3.4, M19).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "palimpsest/core/random.h"

namespace palimpsest::data {

struct InfillOptions {
  double rate = 0.3;               // share of the source tokens that is removed
  double span_mean = 3.0;          // mean of the Poisson distribution of span lengths; Memformer: 3.5
  int32_t mask_id = -1;            // the one token that stands for a span; must be set
  std::vector<int32_t> keep = {};  // ids that are never removed or masked: bos, eos, …
  int64_t max_length = 0;          // the result is never longer; 0: never longer than the source
};

/// Removes exactly round(rate * n) of the n tokens that may be (those not in `keep`). Lengths are drawn from
/// Poisson(span_mean) until this budget is met, the last one shortened to fit; each span becomes one mask token, a
/// span of length 0 inserts one. All placements without overlap are equally likely. A span that
/// meets a kept token goes on behind it. Where the result would be longer than max_length, spans of
/// length 0 are given up. Usage error for rate outside [0, 1], span_mean < 0.1, an unset mask, or a source that does
/// not fit into max_length even so. [tokens] -> [<= max_length]
std::vector<int32_t> infill(std::span<const int32_t> tokens, const InfillOptions& options, Random& random);

/// Each token is replaced by `mask_id` with probability `rate`, independently. [tokens] -> [tokens]
std::vector<int32_t> mask_tokens(std::span<const int32_t> tokens, double rate, int32_t mask_id, Random& random);

}  // namespace palimpsest::data
