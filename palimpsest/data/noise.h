// SPDX-License-Identifier: Apache-2.0
// Corruption for denoising: BART's text infilling, token masking and sentence permutation (ALGORITHMS 3.4, M19).
#pragma once

#include <cstdint>
#include <span>
#include <string>
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

/// Each token that is not in `keep` is replaced by `mask_id` with probability `rate`, independently. [tokens] ->
/// [tokens]
std::vector<int32_t> mask_tokens(std::span<const int32_t> tokens, double rate, int32_t mask_id, Random& random,
                                 std::span<const int32_t> keep = {});

/// Takes ceil(share * n) of the n sentences, drawn at random, and puts them in a random order on each other's places:
/// never the order they had, where there are two or more. A sentence ends behind one or more of `ends` (sorted ids);
/// what follows the last of them is one, too. Tokens of `keep` at the two ends of the row stay there.
/// Usage error for a share outside [0, 1]. [tokens] -> [tokens]
std::vector<int32_t> permute_sentences(std::span<const int32_t> tokens, double share, std::span<const int32_t> ends,
                                       std::span<const int32_t> keep, Random& random);

/// How the encoder's input of denoising is made.
struct DenoiseOptions {
  std::string kind = "infill";
  double rate = 0.3, span_mean = 3.0, permute = 0;
  static void fields(auto& o, auto&& field) {
    field("denoise_kind", o.kind,
          "infill (spans of tokens, each replaced by one <mask>, as BART) | token_mask (each token by itself)");
    field("denoise_rate", o.rate, "share of a segment's tokens that denoising removes");
    field("denoise_span_mean", o.span_mean, "mean length of the spans that infilling removes");
    field("permute_sentences", o.permute,
          "of denoising: share of a segment's sentences that the encoder reads in another order; BART: 1");
  }
};

/// The ids that denoising must know.
struct DenoiseIds {
  int32_t mask = -1;
  std::vector<int32_t> keep = {};           // never removed, masked or moved
  std::vector<int32_t> sentence_ends = {};  // sorted
};

/// Usage error for an unknown kind, a share outside [0, 1], a mean that infill refuses, or no sentence end where
/// sentences are to be permuted.
void check_denoise(const DenoiseOptions& options, const DenoiseIds& ids);

/// Sentences are permuted first, then tokens are removed. [tokens] -> [<= max_length]
std::vector<int32_t> corrupt(std::span<const int32_t> tokens, const DenoiseOptions& options, const DenoiseIds& ids,
                             int64_t max_length, Random& random);

/// What corruption did to many segments. The share is counted by tokens that are gone, not by mask tokens (FR-74).
struct NoiseCounts {
  int64_t segments = 0, tokens = 0, removed = 0, masks = 0;
  int64_t longest = 0, longest_noisy = 0;  ///< of the clean segments, of what the encoder reads instead
  int64_t reordered = 0;                   ///< segments in which what stayed is in another order
  void add(std::span<const int32_t> clean, std::span<const int32_t> noisy, int32_t mask_id);
  double removed_share() const { return tokens > 0 ? static_cast<double>(removed) / static_cast<double>(tokens) : 0; }
};

}  // namespace palimpsest::data
