// SPDX-License-Identifier: Apache-2.0
// The byte alphabet, and GPT-2's pattern written as a scanner.
#include "palimpsest/text/byte_level.h"

#include <algorithm>
#include <array>

#include "palimpsest/text/unicode.h"

namespace palimpsest::text {

namespace {

bool prints_as_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct AlphabetTables {
  std::array<char32_t, 256> characters;
  std::array<std::string, 256> spelt;
  std::array<int16_t, 512> bytes;  ///< by character; -1 outside the alphabet
  std::vector<std::string> ordered;

  AlphabetTables() {
    bytes.fill(-1);
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const char32_t c = prints_as_itself(byte) ? static_cast<char32_t>(byte) : next++;
      characters[byte] = c;
      bytes[c] = static_cast<int16_t>(byte);
      append_utf8(spelt[byte], c);
    }
    ordered.assign(spelt.begin(), spelt.end());
    std::sort(ordered.begin(), ordered.end());  // UTF-8 sorts like code points
  }
};

const AlphabetTables& tables() {
  static const AlphabetTables tables;
  return tables;
}

std::array<CharClass, 128> ascii_classes() {
  std::array<CharClass, 128> classes;
  for (char32_t c = 0; c < 128; ++c) classes[c] = char_class(c);
  return classes;
}
const std::array<CharClass, 128> kAscii = ascii_classes();

/// A text and its end, with the class of the character at any byte.
struct Scanner {
  std::string_view text;

  CharClass class_at(size_t at, size_t& length) const {
    const auto byte = static_cast<uint8_t>(text[at]);
    if (byte < 128) {
      length = 1;
      return kAscii[byte];
    }
    const Utf8Step step = utf8_step(text, at);
    length = step.length;
    return char_class(step.code_point);
  }
  /// The end of the run of `kind` that starts at `at`; `last` is where its last character starts.
  size_t run_end(size_t at, CharClass kind, size_t& last) const {
    for (size_t length = 0; at < text.size(); at += length) {
      if (class_at(at, length) != kind) break;
      last = at;
    }
    return at;
  }
  /// The length of a contraction at `at`, or 0.
  size_t contraction(size_t at) const {
    if (at + 1 >= text.size()) return 0;
    const char first = text[at + 1];
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if (at + 2 >= text.size()) return 0;
    const char second = text[at + 2];
    return (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l') ? 3
                                                                                                                 : 0;
  }
};

}  // namespace

char32_t alphabet_character(uint8_t byte) { return tables().characters[byte]; }

const std::vector<std::string>& alphabet() { return tables().ordered; }

std::string spell_bytes(std::string_view bytes) {
  std::string token;
  token.reserve(bytes.size() + bytes.size() / 4);
  for (const char byte : bytes) token += tables().spelt[static_cast<uint8_t>(byte)];
  return token;
}

std::optional<std::string> spelt_bytes(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t at = 0; at < token.size();) {
    const Utf8Step step = utf8_step(token, at);
    if (!step.valid || step.code_point >= 512 || tables().bytes[step.code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(tables().bytes[step.code_point]);
    at += step.length;
  }
  return bytes;
}

size_t word_end(std::string_view text, size_t position) {
  const Scanner scanner{text};
  size_t last = position, length = 0;
  if (text[position] == '\'') {
    if (const size_t contraction = scanner.contraction(position); contraction > 0) return position + contraction;
  }
  // One space goes with the run that follows it.
  const size_t start = text[position] == ' ' && position + 1 < text.size() ? position + 1 : position;
  const CharClass kind = scanner.class_at(start, length);
  if (kind != CharClass::kSpace) return scanner.run_end(start, kind, last);
  const size_t end = scanner.run_end(position, CharClass::kSpace, last);
  // White space before a word leaves its last character to that word, where it has more than one.
  return end == text.size() || last == position ? end : last;
}

}  // namespace palimpsest::text
