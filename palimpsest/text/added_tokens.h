// SPDX-License-Identifier: Apache-2.0
// Finds added tokens in a text: the first step of encoding, which cuts the text into tokens and pieces.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

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
  explicit AddedTokenFinder(const std::vector<AddedToken>& tokens);

  /// Cuts `text` into spans, in order. Special tokens are plain text where `parse_special` is false.
  std::vector<TextSpan> split(std::string_view text, bool parse_special) const;

 private:
  /// Tokens as a tree of bytes; at each place of the text the longest one counts.
  class Tree {
   public:
    void add(const AddedToken& token);
    bool empty() const { return nodes_.size() == 1; }
    void split(std::string_view text, size_t offset, bool parse_special, std::vector<TextSpan>& spans) const;

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

  Tree plain_, normalized_;  ///< normalized ones are looked for in what the others leave
};

}  // namespace palimpsest::text
