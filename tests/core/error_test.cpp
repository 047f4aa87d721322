// SPDX-License-Identifier: Apache-2.0
// The layout of messages, exit codes, the nearest of several names, and text of foreign files in messages.
#include "palimpsest/core/error.h"

#include <gtest/gtest.h>

#include <vector>

namespace palimpsest {
namespace {

TEST(Error, SaysWhatWhereAndHowToMend) {
  EXPECT_STREQ(input_error("what happened", "in a place", "do this").what(),
               "error: what happened\n  at:  in a place\n  fix: do this");
  EXPECT_STREQ(input_error("what happened", "in a place").what(), "error: what happened\n  at:  in a place");
  EXPECT_STREQ(usage_error("what happened", "", "do this").what(), "error: what happened\n  fix: do this");
  EXPECT_STREQ(internal_error("what happened").what(), "error: what happened");
}

TEST(Error, KeepsItsParts) {
  const Error error = usage_error("what", "where", "how");
  EXPECT_EQ(error.fault(), Fault::kUsage);
  EXPECT_EQ(error.problem(), "what");
  EXPECT_EQ(error.place(), "where");
  EXPECT_EQ(error.fix(), "how");
}

TEST(Error, GivesTheExitCodeOfItsFault) {
  EXPECT_EQ(usage_error("x").exit_code(), 2);
  EXPECT_EQ(input_error("x").exit_code(), 2);
  EXPECT_EQ(internal_error("x").exit_code(), 1);
}

TEST(Error, NamesTheOuterPlaceFirst) {
  EXPECT_EQ(input_error("x", "line 7").within("file.txt").place(), "file.txt, line 7");
  EXPECT_EQ(input_error("x").within("file.txt").place(), "file.txt");
  const Error inner = usage_error("x", "a", "b");
  EXPECT_EQ(inner.within("o").fault(), Fault::kUsage);
  EXPECT_EQ(inner.within("o").fix(), "b");
}

TEST(EditDistance, CountsInsertionsDeletionsSubstitutionsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", "ac"), 1U);
  EXPECT_EQ(edit_distance("abc", "abdc"), 1U);
  EXPECT_EQ(edit_distance("abc", "axc"), 1U);
  EXPECT_EQ(edit_distance("abcd", "abdc"), 1U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
}

TEST(NearestName, IsEmptyWhereNoneIsNear) {
  const std::vector<std::string> names = {"learning_rate", "segment", "slots", "seed"};
  EXPECT_EQ(nearest_name("learning_rat", names), "learning_rate");
  EXPECT_EQ(nearest_name("solts", names), "slots");
  EXPECT_EQ(nearest_name("sed", names), "seed");
  EXPECT_EQ(nearest_name("temperature", names), "");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(nearest_name("slots", std::vector<std::string>{}), "");
}

TEST(NearestName, DoesNotCompareNamesOfVeryDifferentLength) {
  // Two names of this length would need a table of 8 * 10^14 bytes.
  const std::vector<std::string> names = {std::string(10000000, 'x'), "slots"};
  EXPECT_EQ(nearest_name("slot", names), "slots");
}

TEST(InvalidUtf8, IsNoneInAnyValidText) {
  for (const char* text :
       {"", "plain", "é", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_FALSE(invalid_utf8(text)) << text;
  }
}

TEST(InvalidUtf8, IsTheFirstByteThatDoesNotFit) {
  EXPECT_EQ(invalid_utf8("ab\x80"), 2U);
  EXPECT_EQ(invalid_utf8("\xC1\xBF"), 0U) << "overlong";
  EXPECT_EQ(invalid_utf8("\xE0\x9F\xBF"), 0U) << "overlong";
  EXPECT_EQ(invalid_utf8("\xF0\x8F\xBF\xBF"), 0U) << "overlong";
  EXPECT_EQ(invalid_utf8("\xED\xA0\x80"), 0U) << "surrogate";
  EXPECT_EQ(invalid_utf8("\xF4\x90\x80\x80"), 0U) << "above U+10FFFF";
  EXPECT_EQ(invalid_utf8("\xF5\x80\x80\x80"), 0U) << "above U+10FFFF";
  EXPECT_EQ(invalid_utf8("a\xE2\x82"), 1U) << "cut off";
  EXPECT_EQ(invalid_utf8("a\xE2\x82z"), 1U) << "broken off";
}

TEST(Printable, EscapesControlCharactersAndReplacesBrokenBytes) {
  EXPECT_EQ(printable("plain é🤗"), "plain é🤗");
  EXPECT_EQ(printable("a\nb\tc\rd"), "a\\nb\\tc\\u000dd");
  EXPECT_EQ(printable("\x1b[31mred\x7f"), "\\u001b[31mred\\u007f");
  EXPECT_EQ(printable("\xC2\x9B"
                      "1m\xC2\xA0"),
            "\\u009b1m\xC2\xA0");
  EXPECT_EQ(printable("a\xFF\xE2\x82z"), "a\uFFFD\uFFFD\uFFFDz");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\u0000b");
}

TEST(Printable, CutsBetweenCharacters) {
  EXPECT_EQ(printable("abcdef", 6), "abcdef");
  EXPECT_EQ(printable("abcdef", 3), "abc…");
  EXPECT_EQ(printable("ab🤗🤗", 5), "ab…");
  EXPECT_EQ(printable("ab🤗🤗", 6), "ab🤗…");
}

}  // namespace
}  // namespace palimpsest
