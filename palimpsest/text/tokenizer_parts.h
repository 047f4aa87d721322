// SPDX-License-Identifier: Apache-2.0
// What a tokenizer is made of, before its tables are built: readers, the trainer and with_added_tokens fill it.
#pragma once

#include <string>
#include <vector>

#include "palimpsest/core/json.h"
#include "palimpsest/text/bpe.h"
#include "palimpsest/text/tokenizer.h"

namespace palimpsest::text {

/// What happens to a text's tokens at the end.
struct PostProcessing {
  /// One entry per step that takes white space out of offsets; true: the first token keeps a single leading space
  /// (the one that add_prefix_space put there).
  std::vector<bool> trims;
  std::vector<int32_t> prefix, suffix;  ///< put around the text with add_special
  Json json;                            ///< as in tokenizer.json
};

struct Tokenizer::Parts {
  BpeModel model;  ///< its tokens include the added ones
  std::vector<AddedToken> added;
  bool add_prefix_space = false;
  bool use_regex = true;  ///< cut pieces into words; otherwise a piece is one word
  PostProcessing post;
};

/// The special tokens that RoBERTa and BART, or GPT-2, have by convention: those of them in `model`.
std::vector<AddedToken> conventional_special_tokens(const BpeModel& model);
/// What is done with them: <s> … </s> and trimmed offsets where there are both, as in RoBERTa, else nothing.
PostProcessing conventional_post_processing(const std::vector<AddedToken>& special, bool add_prefix_space,
                                            bool trim_offsets = true);

}  // namespace palimpsest::text
