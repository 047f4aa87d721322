// SPDX-License-Identifier: Apache-2.0
// Stop strings across any borders, and texts of generation that end at them.
#include "palimpsest/generate/stop.h"

#include <algorithm>

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"
#include "palimpsest/generate/search.h"
#include "tests/generate/row_decoder.h"
#include "tests/text/small_tokenizer.h"

namespace palimpsest::generate {
namespace {

using Pieces = std::vector<std::string>;

/// What comes out of the pieces together; checks what every piece gives on its own.
std::string passed(const Pieces& pieces, StopStrings stops, const std::vector<std::string>& strings) {
  std::string out;
  for (const auto& piece : pieces) {
    out += stops.push(piece);
    for (const auto& string : strings) EXPECT_EQ(out.find(string), std::string::npos) << out;
  }
  return out + stops.finish();
}

/// `text` cut behind byte i wherever bit i of `cuts` is set.
Pieces cut(const std::string& text, uint32_t cuts) {
  Pieces pieces(1);
  for (size_t i = 0; i < text.size(); ++i) {
    pieces.back() += text[i];
    if ((cuts >> i) & 1) pieces.emplace_back();
  }
  return pieces;
}

TEST(StopStrings, CutTheTextAlikeAtAllSplitPoints) {  // FR-102
  const std::string text = "alpha beta gamma";
  const std::vector<std::vector<std::string>> lists = {{"beta gamma", "bet"},
                                                       {"beta gamma"},
                                                       {"gamma"},
                                                       {"a b"},
                                                       {"alphabet", "aa"},
                                                       {"a"},
                                                       {"ta ga", "beta gamma"},
                                                       {}};
  const std::vector<std::string> expected = {"alpha ", "alpha ", "alpha beta ", "alph", text, "", "alpha be", text};
  for (size_t i = 0; i < lists.size(); ++i) {
    const StopStrings stops(lists[i]);
    for (uint32_t cuts = 0; cuts < 1U << 16; cuts += i == 0 ? 1 : 7)
      ASSERT_EQ(passed(cut(text, cuts), stops, lists[i]), expected[i]) << i << " " << cuts;
  }
}

TEST(StopStrings, HoldBackOnlyWhatMayBecomeOne) {
  StopStrings stops({"beta gamma", "bet"});
  EXPECT_EQ(stops.push("alpha "), "alpha ");
  EXPECT_EQ(stops.push("b"), "");
  EXPECT_EQ(stops.push("e"), "");
  EXPECT_EQ(stops.push("a"), "bea");
  EXPECT_EQ(stops.push("r be"), "r ");
  EXPECT_FALSE(stops.stopped());
  StopStrings copy = stops;  // as a beam that parts
  EXPECT_EQ(copy.push("t"), "");
  EXPECT_TRUE(copy.stopped());
  EXPECT_EQ(copy.matched(), "bet");
  EXPECT_EQ(copy.push("more"), "");
  EXPECT_EQ(copy.finish(), "");
  EXPECT_FALSE(stops.stopped());
  EXPECT_EQ(stops.finish(), "be");
}

TEST(StopStrings, EndAtTheFirstCompleteOneAndBeforeTheLongestThere) {
  const auto check = [](std::vector<std::string> strings, const std::string& text, const std::string& out,
                        const std::string& matched) {
    StopStrings stops(strings);
    EXPECT_EQ(stops.push(text), out);
    EXPECT_EQ(stops.matched(), matched);
  };
  check({"cd", "abcd", "bcd"}, "xabcdy", "x", "abcd");
  check({"abcde", "cd"}, "xabcdey", "xab", "cd");
  check({"aab"}, "aaaab", "aa", "aab");
  check({"abab", "bb"}, "ababab", "", "abab");
  check({"she", "he", "hers"}, "ushers", "u", "she");
}

TEST(StopStrings, AgreeWithASearchOfTheWholeText) {
  Random random(6);
  const auto word = [&](int64_t longest) {
    std::string text;
    for (int64_t n = 1 + random.below(longest); n > 0; --n) text += static_cast<char>('a' + random.below(2));
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> strings;
    for (int64_t n = 1 + random.below(3); n > 0; --n) strings.push_back(word(5));
    const std::string text = word(14);
    size_t end = std::string::npos, begin = text.size();
    for (const auto& string : strings) {
      const size_t at = text.find(string);
      if (at == std::string::npos || at + string.size() > end) continue;
      if (at + string.size() < end || at < begin) begin = at;
      end = at + string.size();
    }
    ASSERT_EQ(passed(cut(text, static_cast<uint32_t>(random.bits())), StopStrings(strings), strings),
              text.substr(0, begin))
        << text << " " << strings[0];
  }
}

TEST(StopStrings, RefuseAnEmptyOne) { EXPECT_THROW(StopStrings({"a", ""}), Error); }

// A model that writes a fixed list of tokens, whatever it reads; for all others the logit is lower.
struct Script {
  std::shared_ptr<const text::Tokenizer> tokenizer = test::small_tokenizer();
  std::vector<int64_t> ids;

  explicit Script(const Pieces& pieces) {
    for (const auto& piece : pieces) {
      const auto some = tokenizer->encode_ids(piece);
      ids.insert(ids.end(), some.begin(), some.end());
    }
    ids.push_back(*tokenizer->id_of("</s>"));
  }
  test::RowDecoder decoder(int64_t items = 1) const {
    return {std::vector<std::vector<int64_t>>(static_cast<size_t>(items), {0}), tokenizer->vocab_size(),
            [this](int64_t, const std::vector<int64_t>& row) {
              at::Tensor logits = at::zeros({tokenizer->vocab_size()});
              logits[ids[std::min(row.size(), ids.size()) - 1]] = 30;
              return logits;
            }};
  }
  GenerationOptions options(std::vector<std::string> stops) const {
    return {.max_new_tokens = 60, .stop_strings = std::move(stops), .eos_token_id = {*tokenizer->id_of("</s>")}};
  }
};

TEST(GeneratedText, EndsBeforeAStopStringHoweverItIsCutIntoTokens) {  // FR-102
  const std::string text = "alpha beta gamma";
  for (size_t first = 0; first < text.size(); ++first) {
    for (size_t second = first; second < text.size(); ++second) {
      const Script script({text.substr(0, first), text.substr(first, second - first), text.substr(second)});
      for (const int64_t beams : {1, 2}) {
        auto decoder = script.decoder();
        GenerationOptions options = script.options({"beta gamma", "bet"});
        options.num_beams = beams;
        std::string streamed;
        const auto result = generate(decoder, options,
                                     {.tokenizer = script.tokenizer, .on_step = [&](const std::vector<NewToken>& news) {
                                        for (const auto& token : news) streamed += token.text;
                                        return true;
                                      }});
        const Hypothesis& best = result.items[0][0];
        ASSERT_EQ(best.text, "alpha ");
        EXPECT_EQ(best.finish, Finish::kStop);
        if (beams == 1) EXPECT_EQ(streamed, "alpha ");
        // The ids reach up to the token that completed the stop string.
        EXPECT_TRUE(std::equal(best.ids.begin(), best.ids.end(), script.ids.begin()));
        const std::vector<int32_t> ids(best.ids.begin(), best.ids.end());
        EXPECT_NE(script.tokenizer->decode(ids).find("bet"), std::string::npos);
        EXPECT_EQ(script.tokenizer->decode(std::vector<int32_t>(ids.begin(), ids.end() - 1)).find("bet"),
                  std::string::npos);
      }
    }
  }
}

TEST(GeneratedText, IsReleasedAtTheEndWhereNoStopStringCame) {
  const Script script({"alpha be"});
  auto decoder = script.decoder();
  const auto result = generate(decoder, script.options({"beta"}), {.tokenizer = script.tokenizer});
  EXPECT_EQ(result.items[0][0].text, "alpha be");
  EXPECT_EQ(result.items[0][0].finish, Finish::kEos);
  auto shorter = script.decoder();
  GenerationOptions options = script.options({"beta"});
  options.max_new_tokens = static_cast<int64_t>(script.ids.size()) - 1;
  const auto cut_off = generate(shorter, options, {.tokenizer = script.tokenizer});
  EXPECT_EQ(cut_off.items[0][0].text, "alpha be");
  EXPECT_EQ(cut_off.items[0][0].finish, Finish::kLength);
}

TEST(GeneratedText, KeepsCharactersWholeThatAreSeveralTokens) {  // FR-103
  const std::string text = "щё😁 and 한국";
  const Script script({text});
  ASSERT_GT(script.ids.size(), 10u);  // more tokens than characters
  for (const int64_t limit : {60, 3}) {
    auto decoder = script.decoder();
    GenerationOptions options = script.options({"x"});
    options.max_new_tokens = limit;
    std::string streamed;
    const auto result =
        generate(decoder, options, {.tokenizer = script.tokenizer, .on_step = [&](const std::vector<NewToken>& news) {
                                      for (const auto& token : news) {
                                        EXPECT_FALSE(invalid_utf8(token.text).has_value());
                                        if (!token.finished)
                                          EXPECT_EQ(token.text.find("\xEF\xBF\xBD"), std::string::npos);
                                        streamed += token.text;
                                      }
                                      return true;
                                    }});
    const std::vector<int32_t> ids(result.items[0][0].ids.begin(), result.items[0][0].ids.end());
    EXPECT_EQ(streamed, result.items[0][0].text);
    EXPECT_EQ(streamed, script.tokenizer->decode(ids, true));
    if (limit == 60) EXPECT_EQ(streamed, text);
  }
}

TEST(GeneratedText, OfEachRowIsItsOwn) {
  const Script script({"one two three"});
  auto decoder = script.decoder(3);
  const auto result = generate(decoder, script.options({"three"}), {.tokenizer = script.tokenizer});
  for (const auto& item : result.items) EXPECT_EQ(item[0].text, "one two ");
  auto plain = script.decoder();
  EXPECT_EQ(generate(plain, script.options({})).items[0][0].text, "");  // no tokenizer, no text
}

}  // namespace
}  // namespace palimpsest::generate
