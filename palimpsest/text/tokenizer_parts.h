// SPDX-License-Identifier: Apache-2.0
// What a tokenizer is made of, before its tables are built: readers, the trainer and with_added_tokens fill it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "palimpsest/core/json.h"
#include "palimpsest/text/bpe.h"
#include "palimpsest/text/normalizers.h"
#include "palimpsest/text/pre_tokenizers.h"
#include "palimpsest/text/tokenizer.h"
#include "palimpsest/text/wordpiece.h"

namespace palimpsest::text {

/// What stands at one place of a finished encoding.
struct TemplatePiece {
  int32_t sequence = -1;  ///< 0: the text, 1: the pair, -1: the token `id`
  int32_t id = -1;
  int32_t type_id = 0;
};
using Template = std::vector<TemplatePiece>;

/// What happens to a text's tokens at the end.
struct PostProcessing {
  /// One entry per step that takes white space out of offsets; true: the first token keeps a single leading space
  /// (the one that add_prefix_space put there).
  std::vector<bool> trims;
  Template single = {{.sequence = 0}}, pair = {{.sequence = 0}, {.sequence = 1, .type_id = 1}};
  Json json;  ///< as in tokenizer.json
};

/// How tokens become text.
struct Decoding {
  enum class Kind {
    kByteLevel,  ///< the bytes that tokens spell
    kWordPiece,  ///< words with spaces between, continuing tokens without
    kSpaces      ///< every token a word: what the reference does without a decoder
  };
  Kind kind = Kind::kByteLevel;
  std::string prefix = "##";
  bool clean_up = false;  ///< of kWordPiece, token by token
  Json json;              ///< as in tokenizer.json
};

struct Tokenizer::Parts {
  BpeModel model;                            ///< its tokens include the added ones; those of WordPiece are here too
  std::optional<WordPieceRules> word_piece;  ///< set: the model is WordPiece, and has no merges
  std::vector<AddedToken> added;
  /// Ids of added tokens that a WordPiece model must not find in words, ascending. Only what stands at the end of a
  /// vocabulary without holes can be told apart in a tokenizer.json; the tokenizer forgets other ones.
  std::vector<int32_t> added_only;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer = PreTokenizer::make_byte_level(false, true);
  PostProcessing post;
  Decoding decoding;
  std::optional<Truncation> truncation;  ///< sections of tokenizer.json
  std::optional<Padding> padding;
};

/// The special tokens that RoBERTa and BART, or GPT-2, have by convention: those of them in `model`.
std::vector<AddedToken> conventional_special_tokens(const BpeModel& model);
/// What is done with them: <s> … </s> and trimmed offsets where there are both, as in RoBERTa, else nothing.
PostProcessing conventional_post_processing(const std::vector<AddedToken>& special, bool add_prefix_space,
                                            bool trim_offsets = true);
/// The templates of RobertaProcessing (every type id is 0) and BertProcessing.
PostProcessing roberta_post_processing(int32_t cls, int32_t sep);
PostProcessing bert_post_processing(int32_t cls, int32_t sep);

}  // namespace palimpsest::text
