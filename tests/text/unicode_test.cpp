// SPDX-License-Identifier: Apache-2.0
// UTF-8 checked against the standard's own rules, properties against known characters.
#include "palimpsest/text/unicode.h"

#include "tests/text/small_tokenizer.h"

namespace palimpsest::text {
namespace {

TEST(Unicode, WritesAndReadsEveryCodePoint) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string bytes;
    append_utf8(bytes, c);
    const Utf8Step step = utf8_step(bytes, 0);
    ASSERT_TRUE(step.valid);
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(step.length, bytes.size());
  }
}

TEST(Unicode, NamesTheFirstBrokenByte) {
  EXPECT_EQ(find_invalid_utf8("plain and \xC3\xA9"), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("abcdefghijk\xFF"), 11u);
  EXPECT_EQ(find_invalid_utf8("\xC0\x80"), 0u) << "overlong";
  EXPECT_EQ(find_invalid_utf8("a\xE0\x9F\xBF"), 1u) << "overlong";
  EXPECT_EQ(find_invalid_utf8("\xED\xA0\x80"), 0u) << "a surrogate";
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0u) << "beyond U+10FFFF";
  EXPECT_EQ(find_invalid_utf8("ab\xE2\x82"), 2u) << "cut off";
  EXPECT_EQ(test::message_of([] { require_utf8("ab\xFF", "here"); }),
            "error: the text is not valid UTF-8 at byte 2 (0xff)\n"
            "  at:  here\n"
            "  fix: convert the text to UTF-8, for example with iconv");
}

TEST(Unicode, ReplacesEachMaximalSubpart) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(replace_invalid_utf8("a\xF0\x9F\x98"
                                 "b"),
            "a" + r + "b");
  EXPECT_EQ(replace_invalid_utf8("\xE2\x28\xA1"), r + "(" + r);
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(replace_invalid_utf8("\xFF\xFE"), r + r);
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82"), r);
  EXPECT_EQ(replace_invalid_utf8(""), "");
}

TEST(Unicode, KnowsWhatCouldStillBecomeACharacter) {
  EXPECT_EQ(incomplete_tail(""), 0u);
  EXPECT_EQ(incomplete_tail("ab"), 0u);
  EXPECT_EQ(incomplete_tail("\xC3\xA9"), 0u);
  EXPECT_EQ(incomplete_tail("x\xC3"), 1u);
  EXPECT_EQ(incomplete_tail("x\xE2\x82"), 2u);
  EXPECT_EQ(incomplete_tail("x\xF0\x9F\x98"), 3u);
  EXPECT_EQ(incomplete_tail("x\xFF"), 0u);
  EXPECT_EQ(incomplete_tail("x\xE0\x80"), 0u) << "no further byte makes an overlong form valid";
}

TEST(Unicode, CountsCodePointsForwardAndBack) {
  CodePointCounter counter("a\xC3\xA9\xF0\x9F\x98\x81z");
  EXPECT_EQ(counter.before(3), 2);
  EXPECT_EQ(counter.before(8), 4);
  EXPECT_EQ(counter.before(1), 1);
  EXPECT_EQ(counter.before(4), 3) << "a character counts from its first byte on";
}

TEST(Unicode, ClassesAreThoseOfTheReference) {
  EXPECT_EQ(char_class('a'), CharClass::kLetter);
  EXPECT_EQ(char_class(0x4E2D), CharClass::kLetter);
  EXPECT_EQ(char_class(0x02B0), CharClass::kLetter) << "modifier letters are letters";
  EXPECT_EQ(char_class('7'), CharClass::kNumber);
  EXPECT_EQ(char_class(0x00BD), CharClass::kNumber) << "one half";
  EXPECT_EQ(char_class(0x2167), CharClass::kNumber) << "Roman numeral";
  EXPECT_EQ(char_class(0x0301), CharClass::kOther) << "marks are no letters";
  for (const char32_t space :
       {0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x85, 0xA0, 0x1680, 0x2000, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}) {
    EXPECT_EQ(char_class(space), CharClass::kSpace) << static_cast<uint32_t>(space);
  }
  for (const char32_t other : {0x0, 0x1C, 0x1F, 0x180E, 0x200B, 0x2060, 0xFEFF}) {
    EXPECT_EQ(char_class(other), CharClass::kOther) << static_cast<uint32_t>(other);
  }
}

TEST(Unicode, UsesUnicode16WhateverIcuHas) {
  EXPECT_EQ(char_class(0x2EBF0), CharClass::kLetter) << "15.1";
  EXPECT_EQ(char_class(0x105C0), CharClass::kLetter) << "16";
  EXPECT_EQ(char_class(0x10D40), CharClass::kNumber) << "16";
  EXPECT_EQ(char_class(0x1138A), CharClass::kOther) << "a gap in a block of 16";
  EXPECT_EQ(char_class(0xA7CE), CharClass::kOther) << "assigned in 17";
  // All code points: as many as the reference has of each (found by asking it about each of them).
  int64_t letters = 0, numbers = 0, spaces = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    const CharClass kind = char_class(c);
    letters += kind == CharClass::kLetter, numbers += kind == CharClass::kNumber, spaces += kind == CharClass::kSpace;
  }
  EXPECT_EQ(letters, 141028);
  EXPECT_EQ(numbers, 1911);
  EXPECT_EQ(spaces, 25);
}

TEST(Unicode, WordCharactersIncludeMarksDigitsAndJoiners) {
  for (const char32_t word : {U'a', U'7', U'_', U'\u0301', U'\u200D', U'\u4E2D', U'\u203F'})
    EXPECT_TRUE(is_word_character(word));
  for (const char32_t other : {U' ', U'-', U'<', U'\u200B', U'\u00BD', U'\u2028'})
    EXPECT_FALSE(is_word_character(other));
}

}  // namespace
}  // namespace palimpsest::text
