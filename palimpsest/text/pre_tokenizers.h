// SPDX-License-Identifier: Apache-2.0
// The pre-tokenizers of a tokenizer.json: where a normalized text is cut into words.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "palimpsest/text/json_node.h"

namespace palimpsest::text {

/// A stretch of bytes, end exclusive.
struct Piece {
  size_t first = 0, last = 0;
};

class PreTokenizer {
 public:
  PreTokenizer() = default;
  /// Reads the form of a tokenizer.json; null cuts nothing. A kind that is not known is refused by name.
  /// ByteLevel must be the last one and is the business of whoever spells the bytes: see byte_level().
  explicit PreTokenizer(const Node& node);

  /// ByteLevel alone, as trained vocabularies have it.
  static PreTokenizer make_byte_level(bool add_prefix_space, bool use_regex);

  struct ByteLevel {
    bool present = false;
    bool add_prefix_space = false;  ///< each piece begins with a space, if need be one that is put there
    bool use_regex = true;          ///< cut pieces into words; otherwise a piece is one word
  };
  const ByteLevel& byte_level() const { return byte_level_; }
  bool only_byte_level() const { return steps_.empty() && byte_level_.present; }
  bool only_bert() const;  ///< BertPreTokenizer is all there is

  /// The pieces of text[first, last), in order; none is empty. All steps but ByteLevel.
  std::vector<Piece> split(std::string_view text, Piece whole) const;
  const Json& json() const { return json_; }

 private:
  enum class Kind { kBert, kWhitespace, kWhitespaceSplit, kPunctuation, kDigits };
  enum class Behavior { kRemoved, kIsolated, kContiguous, kMergedWithPrevious, kMergedWithNext };
  struct Step {
    Kind kind{};
    Behavior behavior = Behavior::kIsolated;
  };
  void read(const Node& node, int depth);
  static void split_by(const Step& step, std::string_view text, Piece whole, std::vector<Piece>& pieces);
  template <class Matches>
  static void split_at(Behavior behavior, std::string_view text, Piece whole, Matches matches,
                       std::vector<Piece>& pieces);

  std::vector<Step> steps_;
  ByteLevel byte_level_;
  Json json_;
};

}  // namespace palimpsest::text
