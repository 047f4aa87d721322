// SPDX-License-Identifier: Apache-2.0
// What BertNormalizer makes of each character by itself.
#include "palimpsest/text/bert_words.h"

#include <algorithm>

#include "palimpsest/text/characters.h"
#include "palimpsest/text/unicode.h"

namespace palimpsest::text {

BertWords::BertWords(const BertNormalizer& options) : options_(options), table_(kTable) {
  for (char32_t c = 0; c < kTable; ++c) table_[c] = map(c);
  for (size_t c = 0; c < ascii_kinds_.size(); ++c)
    ascii_kinds_[c] = table_[c].kind, ascii_bytes_[c] = table_[c].bytes[0];
}

void BertWords::append(const Mapped& mapped, uint32_t first, uint32_t last, std::string& word,
                       std::vector<SourceRange>& sources) {
  word.append(mapped.bytes, mapped.length);
  sources.insert(sources.end(), mapped.length, {first, last});
}

BertWords::Mapped BertWords::map(char32_t c) const {
  Mapped mapped;
  if (options_.clean_text && is_removed_by_clean_text(c)) {
    mapped.kind = Kind::kRemoved;
    return mapped;
  }
  if (options_.clean_text && is_white_space(c)) {
    mapped.kind = Kind::kSpace;
    return mapped;
  }
  std::u32string characters = {c};
  if (options_.strip_accents) {
    if (const auto parts = decomposition(c, false); !parts.empty()) characters = parts;
    std::erase_if(characters, is_nonspacing_mark);
    // What keeps its place only in relation to the marks around it.
    if (std::any_of(characters.begin(), characters.end(), combining_class)) return mapped;
  }
  if (options_.lowercase) {
    std::u32string lowered;
    for (const char32_t part : characters) {
      const auto [first, second] = lower_case(part);
      lowered += first;
      if (second != 0) lowered += second;
    }
    characters = lowered;
  }
  std::string bytes;
  size_t spaces = 0, isolated = 0;
  for (const char32_t part : characters) {
    append_utf8(bytes, part);
    spaces += is_white_space(part);
    isolated += is_punctuation(part);
  }
  if (bytes.size() > sizeof(mapped.bytes)) return mapped;
  std::copy(bytes.begin(), bytes.end(), mapped.bytes);
  mapped.length = static_cast<uint8_t>(bytes.size());
  const bool chinese = options_.handle_chinese_chars && is_chinese_character(c);
  if (characters.size() > 1 && (spaces > 0 || isolated > 0 || chinese)) return mapped;  // no rule of its own
  if (characters.empty()) {
    mapped.kind = chinese ? Kind::kUnusual : Kind::kRemoved;
  } else if (spaces > 0) {
    mapped.kind = Kind::kSpace;
  } else {
    mapped.kind = isolated > 0 || chinese ? Kind::kIsolated : Kind::kLetter;
  }
  return mapped;
}

}  // namespace palimpsest::text
