// SPDX-License-Identifier: Apache-2.0
// The small vocabulary and its text that the tokenizer's tests share.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/random.h"
#include "palimpsest/text/tokenizer.h"
#include "palimpsest/text/unicode.h"
#include "tests/support/paths.h"

namespace palimpsest::test {

inline std::vector<std::string> lines_with_ends(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    lines.push_back(text.substr(at, end - at));
    at = end;
  }
  return lines;
}

inline std::shared_ptr<const text::Tokenizer> train_on(const std::vector<std::string>& chunks,
                                                       const text::TrainTokenizerOptions& options) {
  size_t next = 0;
  return text::train_tokenizer(
      [&](std::string& chunk) {
        if (next == chunks.size()) return false;
        chunk = chunks[next++];
        return true;
      },
      options);
}

inline std::vector<std::string> small_text() { return lines_with_ends(read_file(fixture("tokenizer_text.txt"))); }

/// Trained here, in a fraction of a second.
inline std::shared_ptr<const text::Tokenizer> small_tokenizer() {
  static const auto tokenizer = train_on(small_text(), {.vocab_size = 480});
  return tokenizer;
}

/// A text of up to `length` code points of all kinds: letters, white space, marks, any plane.
inline std::string random_text(Random& random, int64_t length) {
  static const std::vector<char32_t> kSpaces = {' ', ' ', '\n', '\t', '\r', 0xA0, 0x85, 0x2003, 0x3000, 0x200B, 0x1C};
  std::string text;
  for (int64_t left = random.below(length + 1); left > 0; --left) {
    switch (random.below(6)) {
      case 0:
        text::append_utf8(text, kSpaces[static_cast<size_t>(random.below(static_cast<int64_t>(kSpaces.size())))]);
        break;
      case 1:
        text::append_utf8(text, static_cast<char32_t>(random.below(0x80)));
        break;
      case 2:
        text::append_utf8(text, static_cast<char32_t>('a' + random.below(26)));
        break;
      case 3:
        text::append_utf8(text, static_cast<char32_t>(random.below(0x3000)));
        break;
      case 4:
        text::append_utf8(text, static_cast<char32_t>(0x1F000 + random.below(0xB00)));
        break;
      default: {
        const auto c = static_cast<char32_t>(random.below(0x110000));
        if (c < 0xD800 || c > 0xDFFF) text::append_utf8(text, c);
      }
    }
  }
  return text;
}

/// What an error of `body` says; "" where it throws none.
template <class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace palimpsest::test
