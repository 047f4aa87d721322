// SPDX-License-Identifier: Apache-2.0
// Finds added tokens in a text: the first step of encoding, which cuts the text into tokens and pieces.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "palimpsest/text/normalizers.h"
#include "palimpsest/text/tokenizer.h"

namespace palimpsest::text {

/// A stretch of the text: an added token, or a piece that the model reads.
struct TextSpan {
  size_t first = 0, last = 0;  ///< bytes, end exclusive; a token's white space included
  int32_t id = -1;             ///< -1: a piece
};

class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  AddedTokenFinder(const std::vector<AddedToken>& tokens, const Normalizer& normalizer);

  /// Cuts a text into spans at the tokens that are looked for before normalization. Special tokens are plain text
  /// where `parse_special` is false. A text without any token is one span; an empty one has none.
  std::vector<TextSpan> split(std::string_view text, bool parse_special) const;
  /// Cuts a normalized text at the other tokens, in their normalized form.
  std::vector<TextSpan> split_normalized(std::string_view text, bool parse_special) const;
  bool has_normalized() const { return !normalized_.empty(); }

 private:
  /// Tokens as a tree of bytes; at each place of the text the longest one counts.
  class Tree {
   public:
    void add(const AddedToken& token);
    bool empty() const { return nodes_.size() == 1; }
    std::vector<TextSpan> split(std::string_view text, bool parse_special) const;

   private:
    struct Node {
      std::map<char, uint32_t> children;
      int32_t token = -1;  ///< in tokens_
    };
    int32_t longest_at(std::string_view text, size_t position) const;

    std::vector<Node> nodes_{1};
    std::vector<AddedToken> tokens_;
    std::array<bool, 256> starts_{};
  };

  Tree plain_, normalized_;
};

}  // namespace palimpsest::text
