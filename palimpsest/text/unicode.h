// SPDX-License-Identifier: Apache-2.0
// UTF-8 and the few Unicode properties that tokenizers ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace palimpsest::text {

/// One step through bytes that may or may not be UTF-8.
struct Utf8Step {
  char32_t code_point = 0xFFFD;  ///< U+FFFD where not valid
  uint8_t length = 1;            ///< bytes; where not valid, those that U+FFFD stands for (a maximal subpart)
  bool valid = false;
  bool truncated = false;  ///< valid as far as it goes, but the text ends inside the character
};
/// The character at `position`, which must be below text.size().
Utf8Step utf8_step(std::string_view text, size_t position);

/// The first byte that is not part of a valid character, or npos.
size_t find_invalid_utf8(std::string_view text);
/// Throws an input error that names the byte where `text` is not valid UTF-8.
void require_utf8(std::string_view text, const std::string& place = "");
/// `text` with each maximal ill-formed subpart replaced by U+FFFD (what browsers and Rust do).
std::string replace_invalid_utf8(std::string_view text);
/// How many bytes at the end begin a character that further bytes could complete (0 to 3).
size_t incomplete_tail(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);
inline bool starts_code_point(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) != 0x80; }
/// Code points of valid UTF-8.
int64_t count_code_points(std::string_view text);

/// Walks through valid UTF-8 once and tells how many characters start before a byte.
class CodePointCounter {
 public:
  explicit CodePointCounter(std::string_view text) : text_(text) {}
  /// Characters that start in [0, byte). Cheap where `byte` does not decrease from call to call.
  int64_t before(size_t byte);

 private:
  std::string_view text_;
  size_t byte_ = 0;
  int64_t count_ = 0;
};

/// The classes of \p{L}, \p{N} and \s; tables of Unicode 16, whichever version ICU has, because the reference
/// tokenizers use that.
enum class CharClass : uint8_t { kLetter, kNumber, kSpace, kOther };
CharClass char_class(char32_t code_point);
/// The property White_Space (U+200B, U+180E and U+001C…1F do not have it).
bool is_white_space(char32_t code_point);
/// What \w means: alphabetic, marks, decimal digits, connectors, joiners.
bool is_word_character(char32_t code_point);

}  // namespace palimpsest::text
