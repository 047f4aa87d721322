// SPDX-License-Identifier: Apache-2.0
// The trainer: what it learns, that it learns the same again, and what it refuses.
#include <gmock/gmock.h>

#include <algorithm>

#include "palimpsest/text/byte_level.h"
#include "tests/text/small_tokenizer.h"

namespace palimpsest::text {
namespace {

using test::message_of;
using test::train_on;
using ::testing::HasSubstr;

TEST(TrainTokenizer, NumbersSpecialTokensThenBytesThenMerges) {
  const auto tokenizer = test::small_tokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 480);
  EXPECT_EQ(tokenizer->token_of(0), "<s>");
  EXPECT_EQ(tokenizer->token_of(4), "<mask>");
  for (size_t i = 0; i < 256; ++i) EXPECT_EQ(tokenizer->token_of(static_cast<int32_t>(5 + i)), alphabet()[i]);
  const Json merges = tokenizer->to_json()["model"]["merges"];
  EXPECT_EQ(merges.size(), 480u - 5 - 256);
  EXPECT_EQ(merges[0], "\u0120 t") << "the most frequent pair of English";
}

TEST(TrainTokenizer, LearnsByFrequencyAndBreaksTiesByLowerIds) {
  const auto tokenizer =
      train_on({"ab ab ab cd cd cd ef ef"}, {.vocab_size = 256 + 4, .special_tokens = {}, .min_frequency = 1});
  const Json merges = tokenizer->to_json()["model"]["merges"];
  EXPECT_EQ(merges, Json::array({"a b", "c d", "\u0120 cd", "e f"}));
}

TEST(TrainTokenizer, DependsOnTheTextAlone) {
  auto lines = test::small_text();
  const auto once = train_on(lines, {.vocab_size = 450});
  const auto again = train_on(lines, {.vocab_size = 450});
  std::reverse(lines.begin(), lines.end());
  const auto reversed = train_on(lines, {.vocab_size = 450});
  EXPECT_EQ(once->to_json(), again->to_json());
  EXPECT_EQ(once->to_json(), reversed->to_json()) << "the order of lines does not matter";
}

TEST(TrainTokenizer, StopsWhereNothingIsFrequentEnough) {
  const auto tokenizer = train_on({"abc abc xyz"}, {.vocab_size = 5000, .min_frequency = 2});
  EXPECT_LT(tokenizer->vocab_size(), 270);
  EXPECT_EQ(tokenizer->encode_ids(" abc").size(), 2u);
  EXPECT_EQ(tokenizer->encode_ids("xyz").size(), 3u);
}

TEST(TrainTokenizer, NeverBuildsASpecialTokenFromPlainText) {
  const auto tokenizer =
      train_on({"!! !! !! !!!! !!!!"}, {.vocab_size = 300, .special_tokens = {"!!"}, .min_frequency = 1});
  const auto ids = tokenizer->encode_ids("!!", {.parse_special = false});
  EXPECT_EQ(ids.size(), 2u);
  EXPECT_EQ(tokenizer->encode_ids("!!"), std::vector<int32_t>{0});
}

TEST(TrainTokenizer, CountsAPrefixSpaceAsText) {
  const auto tokenizer = train_on({"the", "the", "the"}, {.vocab_size = 264, .add_prefix_space = true});
  EXPECT_EQ(tokenizer->encode_ids("the").size(), 1u);
  EXPECT_EQ(tokenizer->token_of(tokenizer->encode_ids("the").front()), "\u0120the");
  EXPECT_EQ(tokenizer->encode_ids(" the"), tokenizer->encode_ids("the")) << "a space that is there is not doubled";
}

TEST(TrainTokenizer, WorksWithoutAnyText) {
  const auto tokenizer = train_on({}, {.vocab_size = 1000});
  EXPECT_EQ(tokenizer->vocab_size(), 261);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode_ids("any \u4E2D text")), "any \u4E2D text");
}

TEST(TrainTokenizer, RefusesWhatCannotBe) {
  EXPECT_EQ(message_of([] { train_on({}, {.vocab_size = 200}); }),
            "error: vocab_size is 200\n  fix: at least 261: 5 special tokens and 256 bytes");
  EXPECT_THAT(message_of([] { train_on({}, {.special_tokens = {"<a>", "<a>"}}); }), HasSubstr("\"<a>\" stands twice"));
  EXPECT_THAT(message_of([] { train_on({}, {.special_tokens = {""}}); }), HasSubstr("a special token is empty"));
  EXPECT_THAT(message_of([] { train_on({}, {.special_tokens = {"a"}}); }), HasSubstr("\"a\" is the token of a byte"));
  EXPECT_THAT(message_of([] { train_on({"fine\n", "not \xFF"}, {}); }), HasSubstr("line 2 of the training text"));
}

}  // namespace
}  // namespace palimpsest::text
