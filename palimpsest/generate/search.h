// SPDX-License-Identifier: Apache-2.0
// Greedy decoding, beam search and sampling over any Decoder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "palimpsest/generate/decoder.h"
#include "palimpsest/generate/options.h"
#include "palimpsest/text/tokenizer.h"

namespace palimpsest::generate {

enum class Finish {
  kEos,       ///< an end token
  kLength,    ///< as many tokens as were allowed
  kStop,      ///< a stop string, or no token was allowed any more
  kCancelled  ///< the callback said so
};
/// "eos", "length", "stop", "cancelled".
const char* finish_name(Finish finish);

struct Hypothesis {
  std::vector<int64_t> ids = {};  ///< new tokens, with the end token where one came, without start or prompt
  /// Beam search: the sum of log-probabilities (after the rules) / new tokens ^ length_penalty. Else the sum of the
  /// log-probabilities that the model gave the tokens, before any rule.
  double score = 0;
  Finish finish = Finish::kLength;
  std::string text = "";  ///< of `ids`, without the stop string; "" where no tokenizer was given
};

struct Generations {
  std::vector<std::vector<int64_t>> start;     ///< [items]: start token or padded prompt
  std::vector<std::vector<Hypothesis>> items;  ///< best first; pairwise different with beams
  int64_t state_bytes = 0;                     ///< the most that the decoder's caches took
  int64_t steps = 0;                           ///< tokens that were read or could have been, the longest row's

  /// Rows as the reference returns them: start and new tokens, filled up with `pad` to the longest. [items * n][T]
  std::vector<std::vector<int64_t>> padded(int64_t pad) const;
};

/// What one step added to one sequence.
struct NewToken {
  int64_t item = 0, sequence = 0;
  int64_t id = 0;         ///< -1: the sequence ended without one, for none was allowed
  std::string text = "";  ///< what of the text is certain now; at the end all of the rest
  bool finished = false;  ///< nothing follows
};
/// Called after each step, in the order of items and sequences; false stops everything. Beam search, whose tokens are
/// certain only at the end, calls it with an empty list.
using OnStep = std::function<bool(const std::vector<NewToken>& tokens)>;

/// What a call knows beside its options.
struct Request {
  /// Number of each item among all that a run generates, so that draws do not depend on how it is cut into batches;
  /// empty: 0, 1, 2, …
  std::vector<int64_t> numbers = {};
  std::vector<std::vector<int64_t>> encoder_ids = {};          ///< [items]; for encoder_no_repeat_ngram_size
  std::shared_ptr<const text::Tokenizer> tokenizer = nullptr;  ///< gives texts; needed for stop strings
  bool skip_special = true;                                    ///< leave special tokens out of texts
  OnStep on_step = {};
};

/// num_beams above 1 is beam search (drawing its candidates with do_sample), else do_sample draws, else the most
/// probable token is taken. Everything that cannot be met is a usage error before any work; logits that are NaN or
/// +infinity are an internal error that names row and step. No graph is built.
///
/// A row without an allowed token ends ("stop"). Beam search may give fewer than num_return_sequences hypotheses where
/// there are no more; it never gives one twice. Stop strings are looked for in new text alone, and end a row only with
/// the token that completes them.
Generations generate(Decoder& decoder, const GenerationOptions& options, const Request& request = {});

}  // namespace palimpsest::generate
