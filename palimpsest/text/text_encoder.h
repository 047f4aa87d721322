// SPDX-License-Identifier: Apache-2.0
// From one text to the tokens of its words: added tokens, normalization, pre-tokenization, the model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "palimpsest/text/added_tokens.h"
#include "palimpsest/text/bert_words.h"
#include "palimpsest/text/tokenizer_parts.h"

namespace palimpsest::text {

/// The tokens of one text, before truncation and post-processing.
struct TextTokens {
  std::vector<int32_t> ids;
  std::vector<std::pair<int64_t, int64_t>> offsets;       ///< bytes of the text, end exclusive
  std::vector<std::pair<size_t, std::string>> spellings;  ///< index and text of tokens not written as in the vocabulary
};

class TextEncoder {
 public:
  /// `parts` must outlive this.
  explicit TextEncoder(const Tokenizer::Parts& parts);

  /// `text` must be valid UTF-8. Without offsets, the other two lists stay empty and it is faster.
  TextTokens encode(std::string_view text, bool parse_special, bool with_offsets) const;
  /// As encode, always the long way: step by step with aligned texts. For tests.
  TextTokens encode_step_by_step(std::string_view text, bool parse_special) const;

 private:
  struct Sink;
  bool encode_bert(std::string_view piece, size_t offset, Sink& sink) const;
  void encode_bytes(std::string_view piece, size_t offset, Sink& sink) const;
  void encode_aligned(std::string_view piece, size_t offset, bool parse_special, Sink& sink) const;
  void encode_piece(const AlignedText& text, Piece piece, size_t offset, Sink& sink) const;
  void encode_words(std::string_view piece, Sink& sink) const;
  void encode_word(std::string_view word, Sink& sink) const;
  std::string_view with_prefix_space(std::string_view piece, std::string& buffer) const;

  const Tokenizer::Parts& parts_;
  AddedTokenFinder finder_;
  std::unique_ptr<const BytePairEncoder> byte_pairs_;
  WordPieceEncoder word_pieces_;
  std::unique_ptr<const BertWords> bert_words_;  ///< where the fast way is open
  bool bytes_only_ = false;                      ///< byte-level BPE without anything before it
};

}  // namespace palimpsest::text
