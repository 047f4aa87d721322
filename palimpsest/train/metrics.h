// SPDX-License-Identifier: Apache-2.0
// Measures of generated text, and how sure a mean over documents is. Pure functions: no model, no state.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::train {

/// The words of a text as ParlAI's F1 sees them: lower case (Unicode), each of the 32 ASCII punctuation characters
/// replaced by a space, the words a, an, the removed, then split at white space. Source: the definition of
/// normalize_answer in ParlAI's metrics: "hasn't" is two words, an article ends where letters and digits end.
std::vector<std::string> normalized_words(std::string_view text);

/// Word-overlap F1 in [0, 1]: harmonic mean of precision and recall over the bags of normalised words, each word as
/// often as it is in both. 0 where they share none (both empty, too), as ParlAI has it.
double word_f1(std::string_view guess, std::string_view reference);
/// The best over several references; 0 without any.
double word_f1(std::string_view guess, std::span<const std::string> references);

/// Distinct-n over a set of replies, in [0, 1]: different n-grams of normalised words over all n-grams, none across two
/// replies (Li et al. 2016 divide by words; this is ParlAI's form, equal for n = 1). 0 where there is no n-gram. It
/// falls as the set grows: compare sets of equal size only. Usage error for n < 1.
double distinct_n(std::span<const std::string> replies, int64_t n);

/// The tokens that BLEU compares (mteval-v13a, sacrebleu's default): most ASCII punctuation stands alone, full stops
/// and commas not next to digits, a dash behind a digit; then split at white space. White space at the end, <skipped>
/// and a dash at a line's end are left out; &quot; &amp; &lt; &gt; are read as what they stand for.
std::vector<std::string> bleu_tokens(std::string_view text);

/// Corpus BLEU as sacrebleu 2 computes it by default: 1 to 4 tokens, one reference, case counts, exponential smoothing
/// (of the orders without a match the k-th counts as 1 / 2^k of a match), and 0 where no token matches at all.
struct Bleu {
  double score = 0;                       ///< 0 to 100
  std::array<double, 4> precisions = {};  ///< in %
  double brevity_penalty = 1;
  int64_t length = 0, reference_length = 0;  ///< in tokens
  static constexpr const char* kSignature = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp";
};
/// Usage error where the two do not have as many texts.
Bleu corpus_bleu(std::span<const std::string> texts, std::span<const std::string> references);

/// Places at which `given` holds the token that `wanted` does: what "given back" counts. Tokens that stand at another
/// place, or beyond the end of either, do not count.
int64_t equal_places(std::span<const int32_t> wanted, std::span<const int64_t> given);

/// What one document adds to a mean: the sum of a measure and the number of things summed (targets, replies).
struct DocumentScore {
  double sum = 0, weight = 0;
};

struct BootstrapOptions {
  int64_t resamples = 2000;  // the ends of a 95 % interval then rest on 50 values each
  double level = 0.95;       // share of the resamples inside
  uint64_t seed = 0;
};

/// A value and its percentile bootstrap interval: documents are drawn with replacement (as many as there are), the
/// statistic is computed of each draw, and low and high are the (1-level)/2 and (1+level)/2 quantiles of these values
/// (linear between neighbours). Documents, not tokens or replies, are drawn, as what lies in one document is not
/// independent. Depends on scores, resamples, level and seed alone. With few documents (below 20, say) such intervals
/// are too narrow.
struct Interval {
  double value = 0, low = 0, high = 0;
  int64_t documents = 0;
};

/// Of any statistic of the drawn documents' indices [documents], each in [0, documents). NaN draws (a statistic that is
/// not defined there) are left out. Usage error for documents < 1, resamples < 1 or a level outside (0, 1).
Interval bootstrap(int64_t documents, const std::function<double(std::span<const int64_t>)>& statistic,
                   const BootstrapOptions& options = {});

/// Of sum over weight, all documents together. For a perplexity take exp of value, low and high.
Interval bootstrap_mean(std::span<const DocumentScore> scores, const BootstrapOptions& options = {});

/// Of mean(a) - mean(b), where a[i] and b[i] are of the same document: paired, both sides of a draw hold the same
/// documents. An interval without 0 is a difference at this level. Usage error for different lengths.
Interval bootstrap_difference(std::span<const DocumentScore> a, std::span<const DocumentScore> b,
                              const BootstrapOptions& options = {});

}  // namespace palimpsest::train
