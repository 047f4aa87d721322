// SPDX-License-Identifier: Apache-2.0
// The last steps of encoding: truncation to windows, offsets without white space, the template with special tokens.
#pragma once

#include <string>
#include <vector>

#include "palimpsest/text/text_encoder.h"
#include "palimpsest/text/tokenizer_parts.h"

namespace palimpsest::text {

/// A stretch of a text's tokens, end exclusive.
struct Window {
  size_t first = 0, last = 0;
};
/// One encoding's share of a text and, for a pair, of the other.
struct WindowPair {
  Window text, pair;
};

/// The windows of texts of these many tokens (`pair` -1: there is none), the main one first. `special` is what the
/// template adds. A stride that fits no window, and a text too short for what should be removed of it, are errors.
std::vector<WindowPair> truncate(int64_t text, int64_t pair, const Truncation& truncation, int64_t special);

/// Special tokens of a template.
int64_t count_special(const Template& pieces);

/// White space at the ends of a token, in characters, as it is spelt in the vocabulary.
struct TokenSpaces {
  uint32_t leading = 0, trailing = 0;
};
TokenSpaces spaces_of(std::string_view token);

/// Puts encodings together from the tokens of one or two texts, whose offsets count code points by now.
class Assembler {
 public:
  /// Both must outlive this. `spaces` is by id, and only needed where offsets are trimmed.
  Assembler(const Tokenizer::Parts& parts, const std::vector<TokenSpaces>& spaces) : parts_(parts), spaces_(spaces) {}

  Encoding assemble(const TextTokens& text, const TextTokens* pair, const WindowPair& windows, bool add_special) const;

 private:
  void append(const TextTokens& tokens, Window window, const TemplatePiece& piece, Encoding& encoding) const;
  void trim(Encoding& encoding, size_t first, bool keep_prefix_space) const;

  const Tokenizer::Parts& parts_;
  const std::vector<TokenSpaces>& spaces_;
};

/// Byte offsets of `text` become those of code points, or the other way round.
void to_code_points(std::string_view text, std::vector<std::pair<int64_t, int64_t>>& offsets);
void to_bytes(std::string_view text, Encoding& encoding, int32_t sequence);

}  // namespace palimpsest::text
