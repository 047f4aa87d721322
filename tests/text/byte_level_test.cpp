// SPDX-License-Identifier: Apache-2.0
// The byte alphabet and the split into words.
#include "palimpsest/text/byte_level.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace palimpsest::text {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> list;
  for (size_t at = 0; at < text.size();) {
    const size_t end = word_end(text, at);
    list.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return list;
}

TEST(ByteAlphabet, SpellsEachByteDifferentlyAndBack) {
  std::set<char32_t> seen;
  for (int byte = 0; byte < 256; ++byte) {
    seen.insert(alphabet_character(static_cast<uint8_t>(byte)));
    const std::string raw(1, static_cast<char>(byte));
    EXPECT_EQ(spelt_bytes(spell_bytes(raw)), raw);
  }
  EXPECT_EQ(seen.size(), 256u);
  EXPECT_EQ(spell_bytes(" a\n"), "\u0120a\u010A");
  EXPECT_EQ(alphabet().front(), "!");
  EXPECT_EQ(alphabet().back(), "\u0143");
  EXPECT_FALSE(spelt_bytes("a b").has_value()) << "a space itself is outside the alphabet";
  EXPECT_FALSE(spelt_bytes("\u4E2D").has_value());
}

TEST(WordSplit, GivesOneSpaceToTheNextWord) {
  EXPECT_THAT(words("Hello world"), ElementsAre("Hello", " world"));
  EXPECT_THAT(words("a  b"), ElementsAre("a", " ", " b"));
  EXPECT_THAT(words("a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(words("a\n\nb"), ElementsAre("a", "\n", "\n", "b")) << "only a space joins a word";
  EXPECT_THAT(words("a \n b"), ElementsAre("a", " \n", " b"));
  EXPECT_THAT(words("a \nb"), ElementsAre("a", " ", "\n", "b"));
  EXPECT_THAT(words("a  "), ElementsAre("a", "  ")) << "at the end, white space stays together";
  EXPECT_THAT(words(" "), ElementsAre(" "));
  EXPECT_THAT(words("a\u00A0\u00A0b"), ElementsAre("a", "\u00A0", "\u00A0", "b"));
}

TEST(WordSplit, SeparatesLettersNumbersAndTheRest) {
  EXPECT_THAT(words("abc123!?x"), ElementsAre("abc", "123", "!?", "x"));
  EXPECT_THAT(words("x != y"), ElementsAre("x", " !=", " y"));
  EXPECT_THAT(words("e\u0301a"), ElementsAre("e", "\u0301", "a")) << "a mark is no letter";
  EXPECT_THAT(words("\u20AC18.10"), ElementsAre("\u20AC", "18", ".", "10"));
  EXPECT_THAT(words("\u4E2D\u6587 \u0663"), ElementsAre("\u4E2D\u6587", " \u0663"));
}

TEST(WordSplit, KnowsContractionsInLowerCaseOnly) {
  EXPECT_THAT(words("I'll've we're'S"), ElementsAre("I", "'ll", "'ve", " we", "'re", "'", "S"));
  EXPECT_THAT(words("DON'T"), ElementsAre("DON", "'", "T"));
  EXPECT_THAT(words(" 's"), ElementsAre(" '", "s")) << "the space takes the apostrophe first";
  EXPECT_THAT(words("'sx"), ElementsAre("'s", "x"));
  EXPECT_THAT(words("!'s"), ElementsAre("!'", "s"));
  EXPECT_THAT(words("'"), ElementsAre("'"));
  EXPECT_THAT(words("'l"), ElementsAre("'", "l"));
  EXPECT_THAT(words("''ve"), ElementsAre("''", "ve"));
}

}  // namespace
}  // namespace palimpsest::text
