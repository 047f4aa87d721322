// SPDX-License-Identifier: Apache-2.0
// A text that is being normalized, where each byte knows the bytes of the source that it came from.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::text {

/// Bytes of the source, end exclusive.
struct SourceRange {
  uint32_t first = 0, last = 0;
};

/// A character of the new text and what it does to the old one: 0 replaces one character, 1 is inserted (and shares
/// the source of the byte before), -n replaces one and removes the n after it.
struct Change {
  char32_t character = 0;
  int32_t change = 0;
};

class AlignedText {
 public:
  /// The source itself: each byte comes from its whole character. Valid UTF-8 of less than 4 GiB.
  explicit AlignedText(std::string_view source);

  const std::string& text() const { return text_; }
  /// What the bytes [first, last) came from; needs first < last.
  SourceRange source_of(size_t first, size_t last) const { return {sources_[first].first, sources_[last - 1].last}; }

  /// The new text is that of `changes`; the first `removed` characters of the old one are left out before them.
  void transform(const std::vector<Change>& changes, size_t removed = 0);
  /// Leaves out the characters for which `keep` says no.
  void filter(const std::function<bool(char32_t)>& keep);
  /// Replaces each character by one other.
  void map(const std::function<char32_t(char32_t)>& to);
  /// Each `pattern` (not empty), from left to right, becomes `content`.
  void replace(std::string_view pattern, std::string_view content);
  /// Puts `prefix` in front of a text that is not empty; it shares the source of the first character.
  void prepend(std::string_view prefix);
  /// Leaves only the bytes [first, last).
  void crop(size_t first, size_t last);

 private:
  std::string text_;
  std::vector<SourceRange> sources_;  ///< by byte of text_
};

/// The characters of valid UTF-8.
std::u32string characters_of(std::string_view text);

}  // namespace palimpsest::text
