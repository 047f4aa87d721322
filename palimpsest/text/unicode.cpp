// SPDX-License-Identifier: Apache-2.0
// UTF-8 by hand (checking, stepping, mending), properties through ICU.
#include "palimpsest/text/unicode.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "palimpsest/core/error.h"

namespace palimpsest::text {

Utf8Step utf8_step(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[position + i]); };
  const size_t left = text.size() - position;
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};
  // How many bytes follow, and what the first of them may be (this excludes overlong forms and surrogates).
  uint8_t length = 0, low = 0x80, high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {};
  }
  char32_t code_point = lead & (0x7F >> length);
  for (uint8_t i = 1; i < length; ++i) {
    if (i >= left) return {0xFFFD, i, false, true};
    const uint8_t next = byte(i);
    if (next < low || next > high) return {0xFFFD, i, false, false};
    low = 0x80, high = 0xBF;
    code_point = (code_point << 6) | (next & 0x3F);
  }
  return {code_point, length, true, false};
}

size_t find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    while (at + 8 <= text.size() && (std::memcpy(&eight, text.data() + at, 8), (eight & 0x8080808080808080ULL) == 0)) {
      at += 8;
    }
    if (at == text.size()) break;
    const Utf8Step step = utf8_step(text, at);
    if (!step.valid) return at;
    at += step.length;
  }
  return std::string_view::npos;
}

void require_utf8(std::string_view text, const std::string& place) {
  const size_t bad = find_invalid_utf8(text);
  if (bad == std::string_view::npos) return;
  throw input_error(
      fmt::format("the text is not valid UTF-8 at byte {} (0x{:02x})", bad, static_cast<uint8_t>(text[bad])), place,
      "convert the text to UTF-8, for example with iconv");
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string mended;
  mended.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t bad = std::min(find_invalid_utf8(text.substr(at)), text.size() - at);
    mended.append(text.substr(at, bad));
    at += bad;
    if (at == text.size()) break;
    mended += "\xEF\xBF\xBD";
    at += utf8_step(text, at).length;
  }
  return mended;
}

size_t incomplete_tail(std::string_view text) {
  for (size_t length = 1; length <= std::min<size_t>(3, text.size()); ++length) {
    const size_t at = text.size() - length;
    if (starts_code_point(text[at])) return utf8_step(text, at).truncated ? length : 0;
  }
  return 0;
}

void append_utf8(std::string& text, char32_t c) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6)), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12)), put(0x80 | ((c >> 6) & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18)), put(0x80 | ((c >> 12) & 0x3F)), put(0x80 | ((c >> 6) & 0x3F)), put(0x80 | (c & 0x3F));
  }
}

int64_t count_code_points(std::string_view text) { return std::count_if(text.begin(), text.end(), starts_code_point); }

int64_t CodePointCounter::before(size_t byte) {
  if (byte < byte_) byte_ = 0, count_ = 0;
  count_ += count_code_points(text_.substr(byte_, byte - byte_));
  byte_ = byte;
  return count_;
}

namespace {

struct Range {
  char32_t first, last;
  CharClass kind;
};
constexpr auto kL = CharClass::kLetter, kN = CharClass::kNumber;
/// Letters and numbers of Unicode 15.1 and 16.0, for an ICU that is older (Debian 12 has 15.0).
constexpr Range kNewer[] = {
    {0x1C89, 0x1C8A, kL},   {0xA7CB, 0xA7CD, kL},   {0xA7DA, 0xA7DC, kL},   {0x105C0, 0x105F3, kL},
    {0x10D40, 0x10D49, kN}, {0x10D4A, 0x10D65, kL}, {0x10D6F, 0x10D85, kL}, {0x10EC2, 0x10EC4, kL},
    {0x11380, 0x11389, kL}, {0x1138B, 0x1138B, kL}, {0x1138E, 0x1138E, kL}, {0x11390, 0x113B5, kL},
    {0x113B7, 0x113B7, kL}, {0x113D1, 0x113D1, kL}, {0x113D3, 0x113D3, kL}, {0x116D0, 0x116E3, kN},
    {0x11BC0, 0x11BE0, kL}, {0x11BF0, 0x11BF9, kN}, {0x13460, 0x143FA, kL}, {0x16100, 0x1611D, kL},
    {0x16130, 0x16139, kN}, {0x16D40, 0x16D6C, kL}, {0x16D70, 0x16D79, kN}, {0x18CFF, 0x18CFF, kL},
    {0x1CCF0, 0x1CCF9, kN}, {0x1E5D0, 0x1E5ED, kL}, {0x1E5F0, 0x1E5F0, kL}, {0x1E5F1, 0x1E5FA, kN},
    {0x2EBF0, 0x2EE5D, kL}};

CharClass newer_class(char32_t c) {
  const auto* range = std::upper_bound(std::begin(kNewer), std::end(kNewer), c,
                                       [](char32_t value, const Range& r) { return value < r.first; });
  return range != std::begin(kNewer) && c <= std::prev(range)->last ? std::prev(range)->kind : CharClass::kOther;
}

bool newer_than_unicode_16(char32_t c) {
  static const bool icu_is_newer = [] {
    UVersionInfo version;
    u_getUnicodeVersion(version);
    return version[0] > 16;
  }();
  if (!icu_is_newer) return false;
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  return age[0] > 16;
}

uint32_t category_mask(char32_t c) { return U_MASK(u_charType(static_cast<UChar32>(c))); }

}  // namespace

bool is_white_space(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_WHITE_SPACE); }

CharClass char_class(char32_t c) {
  const uint32_t mask = category_mask(c);
  if ((mask & U_GC_CN_MASK) != 0) return newer_class(c);
  if ((mask & (U_GC_L_MASK | U_GC_N_MASK)) != 0 && newer_than_unicode_16(c)) return CharClass::kOther;
  if ((mask & U_GC_L_MASK) != 0) return CharClass::kLetter;
  if ((mask & U_GC_N_MASK) != 0) return CharClass::kNumber;
  // White space is separators and a few controls: the property costs a second look-up.
  if ((mask & (U_GC_Z_MASK | U_GC_CC_MASK)) != 0 && is_white_space(c)) return CharClass::kSpace;
  return CharClass::kOther;
}

bool is_word_character(char32_t c) {
  if ((category_mask(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0) return true;
  return c == 0x200C || c == 0x200D || u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_ALPHABETIC) ||
         char_class(c) == CharClass::kLetter;
}

}  // namespace palimpsest::text
