// SPDX-License-Identifier: Apache-2.0
// What normalizers and pre-tokenizers ask about one character. The reference tokenizers take these answers from tables
// of several ages (Unicode 8 for BERT's categories, 9 for decompositions and combining marks, the newest for case); so
// do these functions, whichever version ICU has. Checked against the reference on every code point.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace palimpsest::text {

/// Up to two characters, the most that one lower-cases to; 0 where there is no second one.
using LowerCase = std::array<char32_t, 2>;
/// By itself: no locale, no final sigma.
LowerCase lower_case(char32_t c);

/// Categories Cc, Cf and Co except tab and line ends; also 0 and U+FFFD: what BERT's clean-up removes.
bool is_removed_by_clean_text(char32_t c);
/// The blocks that BERT isolates: CJK ideographs, not kana, hangul or the blocks of Unicode 9 and later.
bool is_chinese_character(char32_t c);
/// ASCII punctuation and symbols, and category P.
bool is_punctuation(char32_t c);
/// Category Mn: what BERT strips of a decomposed text.
bool is_nonspacing_mark(char32_t c);
/// Category M: what StripAccents strips.
bool is_combining_mark(char32_t c);

/// Full canonical (or compatibility) decomposition; "" where there is none.
std::u32string decomposition(char32_t c, bool compatibility);
uint8_t combining_class(char32_t c);
/// The primary composite of two characters, or 0.
char32_t composition(char32_t first, char32_t second);

}  // namespace palimpsest::text
