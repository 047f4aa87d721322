// SPDX-License-Identifier: Apache-2.0
// ICU's properties, cut back to the versions of Unicode that the reference has.
#include "palimpsest/text/characters.h"

#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/utf16.h>

#include <algorithm>
#include <iterator>

#include "palimpsest/core/error.h"
#include "palimpsest/text/unicode.h"

namespace palimpsest::text {

namespace {

/// Whether the character was there in this version of Unicode.
bool is_of_unicode(char32_t c, int major) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  return age[0] <= major && age[0] > 0;
}

uint32_t category_mask(char32_t c) { return U_MASK(u_charType(static_cast<UChar32>(c))); }

/// Letters with case that are newer than the ICU of Debian 12 (15.0), up to Unicode 17: each of [first, last], in
/// steps, becomes itself + shift.
struct CaseRange {
  char32_t first, last, step;
  int32_t shift;
};
constexpr CaseRange kNewerCase[] = {{0x1C89, 0x1C89, 1, 1},      {0xA7CB, 0xA7CB, 1, 0x264 - 0xA7CB},
                                    {0xA7CC, 0xA7CE, 2, 1},      {0xA7D2, 0xA7D4, 2, 1},
                                    {0xA7DA, 0xA7DA, 1, 1},      {0xA7DC, 0xA7DC, 1, 0x19B - 0xA7DC},
                                    {0x10D50, 0x10D65, 1, 0x20}, {0x16EA0, 0x16EB8, 1, 0x1B}};

const UNormalizer2* normalizer(bool compatibility) {
  UErrorCode status = U_ZERO_ERROR;
  const UNormalizer2* instance = compatibility ? unorm2_getNFKDInstance(&status) : unorm2_getNFDInstance(&status);
  if (U_FAILURE(status)) throw internal_error("ICU has no normalization data", "", "install ICU with its data");
  return instance;
}

/// Decompositions and combining classes that came after Unicode 9 are unknown to the reference.
constexpr int kNormalizationVersion = 9;

}  // namespace

LowerCase lower_case(char32_t c) {
  if (c < 0x80) return {c >= 'A' && c <= 'Z' ? c + 32 : c, 0};
  if (c == 0x130) return {'i', 0x307};  // the one letter that becomes two
  const auto lower = static_cast<char32_t>(u_tolower(static_cast<UChar32>(c)));
  if (lower != c || c < kNewerCase[0].first) return {lower, 0};
  for (const auto& [first, last, step, shift] : kNewerCase) {
    if (c >= first && c <= last && (c - first) % step == 0)
      return {static_cast<char32_t>(static_cast<int32_t>(c) + shift), 0};
  }
  return {c, 0};
}

bool is_removed_by_clean_text(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  if (c == 0xFFFD) return true;
  return (category_mask(c) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK)) != 0 && is_of_unicode(c, 8);
}

bool is_chinese_character(char32_t c) {
  struct Block {
    char32_t first, last;
  };
  constexpr Block kBlocks[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},  {0x20000, 0x2A6DF},
                               {0x2A700, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};
  if (c < kBlocks[0].first) return false;
  return std::any_of(std::begin(kBlocks), std::end(kBlocks),
                     [c](const Block& block) { return c >= block.first && c <= block.last; });
}

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  if (c == 0x166D || c == 0x111C9) return true;  // of another category since
  return (category_mask(c) & U_GC_P_MASK) != 0 && is_of_unicode(c, 8);
}

bool is_nonspacing_mark(char32_t c) {
  if (c < 0x300) return false;
  if (c == 0x1734) return true;  // of another category since, as the four below
  if (c == 0x1885 || c == 0x1886 || c == 0xA9BD || c == 0x111C9) return false;
  return (category_mask(c) & U_GC_MN_MASK) != 0 && is_of_unicode(c, 8);
}

bool is_combining_mark(char32_t c) {
  if (c < 0x300) return false;
  if (c == 0x1CF2 || c == 0x1CF3) return true;
  if (c == 0x111C9) return false;
  return (category_mask(c) & U_GC_M_MASK) != 0 && is_of_unicode(c, 9);
}

std::u32string decomposition(char32_t c, bool compatibility) {
  if (c < 0x80) return {};
  static const UNormalizer2 *canonical = normalizer(false), *compatible = normalizer(true);
  UErrorCode status = U_ZERO_ERROR;
  UChar units[64];  // the longest one, of U+FDFA, has 18
  const int32_t count = unorm2_getDecomposition(compatibility ? compatible : canonical, static_cast<UChar32>(c), units,
                                                static_cast<int32_t>(std::size(units)), &status);
  if (count < 0 || U_FAILURE(status) || !is_of_unicode(c, kNormalizationVersion)) return {};
  std::u32string characters;
  for (int32_t at = 0; at < count;) {
    UChar32 next = 0;
    U16_NEXT(units, at, count, next);
    characters += static_cast<char32_t>(next);
  }
  return characters;
}

uint8_t combining_class(char32_t c) {
  if (c < 0x300) return 0;
  const uint8_t combining = u_getCombiningClass(static_cast<UChar32>(c));
  return combining != 0 && is_of_unicode(c, kNormalizationVersion) ? combining : 0;
}

char32_t composition(char32_t first, char32_t second) {
  static const UNormalizer2* composer = [] {
    UErrorCode status = U_ZERO_ERROR;
    const UNormalizer2* instance = unorm2_getNFCInstance(&status);
    if (U_FAILURE(status)) throw internal_error("ICU has no normalization data", "", "install ICU with its data");
    return instance;
  }();
  const UChar32 result = unorm2_composePair(composer, static_cast<UChar32>(first), static_cast<UChar32>(second));
  if (result < 0 || !is_of_unicode(static_cast<char32_t>(result), kNormalizationVersion)) return 0;
  return static_cast<char32_t>(result);
}

}  // namespace palimpsest::text
