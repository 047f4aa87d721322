// SPDX-License-Identifier: Apache-2.0
// BertNormalizer and BertPreTokenizer in one pass over the text: the fast twin of normalizers.h and pre_tokenizers.h.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "palimpsest/text/aligned_text.h"
#include "palimpsest/text/normalizers.h"
#include "palimpsest/text/unicode.h"

namespace palimpsest::text {

/// A normalized word and the bytes of the text that it came from.
struct BertWord {
  std::string_view bytes;
  size_t first = 0;                      ///< of the text; byte i of the word came from first + i, unless `sources`
  const SourceRange* sources = nullptr;  ///< by byte of the word, where it was changed

  size_t source_first(size_t byte) const { return sources != nullptr ? sources[byte].first : first + byte; }
  size_t source_last(size_t byte) const { return sources != nullptr ? sources[byte].last : first + byte + 1; }
};

class BertWords {
 public:
  explicit BertWords(const BertNormalizer& options);

  /// Calls visit(const BertWord&) on each word of `text` (valid UTF-8, less than 4 GiB), in order. Returns false at a
  /// character whose effect depends on its neighbours (some marks that are no accents): words so far were visited, and
  /// the caller starts again the long way.
  template <class Visit>
  bool visit(std::string_view text, const Visit& visit) const;

 private:
  enum class Kind : uint8_t { kLetter, kSpace, kRemoved, kIsolated, kUnusual };
  /// What a character becomes.
  struct Mapped {
    Kind kind = Kind::kUnusual;
    uint8_t length = 0;
    char bytes[14] = {};
  };
  static constexpr char32_t kTable = 0x3000;  ///< characters below have their Mapped in a table

  Mapped map(char32_t c) const;
  /// Appends what `c`, at [first, last) of the text, becomes.
  static void append(const Mapped& mapped, uint32_t first, uint32_t last, std::string& word,
                     std::vector<SourceRange>& sources);

  BertNormalizer options_;
  std::array<Kind, 128> ascii_kinds_{};
  std::array<char, 128> ascii_bytes_{};
  std::vector<Mapped> table_;
};

template <class Visit>
bool BertWords::visit(std::string_view text, const Visit& visit) const {
  std::string word;
  std::vector<SourceRange> sources;  // of the bytes of `word`, from its first changed character on
  size_t first = 0;                  // where the word starts
  bool plain = true;                 // no changed character yet: byte i came from first + i
  const auto finish = [&] {
    if (word.empty()) return;
    visit(BertWord{word, first, plain ? nullptr : sources.data()});
    word.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<uint8_t>(text[at]);
    if (byte < 0x80) {
      const Kind kind = ascii_kinds_[byte];
      if (kind == Kind::kLetter) {
        if (word.empty()) first = at, plain = true;
        const size_t start = at;
        do {
          word += ascii_bytes_[static_cast<uint8_t>(text[at])];
          ++at;
        } while (at < text.size() && static_cast<uint8_t>(text[at]) < 0x80 &&
                 ascii_kinds_[static_cast<uint8_t>(text[at])] == Kind::kLetter);
        if (!plain) {
          for (size_t i = start; i < at; ++i)
            sources.push_back({static_cast<uint32_t>(i), static_cast<uint32_t>(i + 1)});
        }
        continue;
      }
      if (kind != Kind::kRemoved) finish();
      if (kind == Kind::kIsolated) visit(BertWord{{&ascii_bytes_[byte], 1}, at, nullptr});
      ++at;
      // A character that was removed from within a word moves what follows.
      if (kind == Kind::kRemoved && !word.empty() && plain) {
        plain = false;
        sources.clear();
        for (size_t i = 0; i < word.size(); ++i)
          sources.push_back({static_cast<uint32_t>(first + i), static_cast<uint32_t>(first + i + 1)});
      }
      continue;
    }
    const Utf8Step step = utf8_step(text, at);
    const Mapped mapped = step.code_point < kTable ? table_[step.code_point] : map(step.code_point);
    if (mapped.kind == Kind::kUnusual) return false;
    if (mapped.kind == Kind::kSpace || mapped.kind == Kind::kIsolated) finish();
    if (mapped.kind == Kind::kLetter || mapped.kind == Kind::kIsolated ||
        (mapped.kind == Kind::kRemoved && !word.empty())) {
      if (word.empty()) {
        first = at;
        sources.clear();
      } else if (plain) {
        sources.clear();
        for (size_t i = 0; i < word.size(); ++i)
          sources.push_back({static_cast<uint32_t>(first + i), static_cast<uint32_t>(first + i + 1)});
      }
      plain = false;
      append(mapped, static_cast<uint32_t>(at), static_cast<uint32_t>(at + step.length), word, sources);
    }
    if (mapped.kind == Kind::kIsolated) finish();
    at += step.length;
  }
  finish();
  return true;
}

}  // namespace palimpsest::text
