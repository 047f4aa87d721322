// SPDX-License-Identifier: Apache-2.0
// Truncation, windows, padding, batches, byte offsets.
#include <gmock/gmock.h>

#include "palimpsest/core/threads.h"
#include "palimpsest/text/assembly.h"
#include "tests/text/small_tokenizer.h"

namespace palimpsest::text {
namespace {

using test::fixture;
using test::message_of;
using test::small_tokenizer;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<const Tokenizer> word_piece() {
  static const auto tokenizer = Tokenizer::load(fixture("wordpiece_vocab.txt"));
  return tokenizer;
}

std::string error_of(int64_t text, int64_t pair, const Truncation& truncation, int64_t special = 2) {
  return message_of([&] { (void)truncate(text, pair, truncation, special); });
}

// FR-24.
TEST(Truncation, NamesStrideLengthAndSpecialTokens) {
  for (const bool overflow : {false, true}) {
    EXPECT_THAT(
        error_of(20, -1, {.max_length = 6, .stride = 4, .overflow = overflow}),
        AllOf(HasSubstr("stride 4"), HasSubstr("max_length 6"), HasSubstr("2 special tokens"), HasSubstr("4 places")));
  }
  EXPECT_EQ(error_of(20, -1, {.max_length = 6, .stride = 3, .overflow = true}), "");
  EXPECT_THAT(error_of(20, 20, {.max_length = 9, .stride = 4, .overflow = true}, 3), HasSubstr("stride 4"))
      << "each text of the pair has three places only";
  EXPECT_THAT(error_of(5, -1, {.max_length = 1}), HasSubstr("leaves no place"));
  EXPECT_EQ(error_of(5, -1, {.max_length = 2}), "");
  EXPECT_THAT(error_of(5, -1, {.max_length = 8, .stride = -1}), HasSubstr("stride is -1"));
}

TEST(Truncation, RefusesToRemoveMoreThanThereIs) {
  using Strategy = Truncation::Strategy;
  EXPECT_THAT(error_of(20, 4, {.max_length = 10, .strategy = Strategy::kOnlySecond}, 3),
              AllOf(HasSubstr("only_second has to remove 17 tokens of the second text, which has 4"),
                    HasSubstr("max_length 10, 3 special tokens")));
  EXPECT_THAT(error_of(4, 20, {.max_length = 10, .strategy = Strategy::kOnlyFirst}, 3), HasSubstr("only_first"));
  EXPECT_THAT(error_of(20, -1, {.max_length = 10, .strategy = Strategy::kOnlySecond}), HasSubstr("there is none"));
  EXPECT_EQ(error_of(4, -1, {.max_length = 10, .strategy = Strategy::kOnlySecond}), "") << "nothing to remove";
}

TEST(Truncation, KeepsEveryPairWithinItsLength) {
  Random random(random_key(74));
  const auto tokenizer = word_piece();
  for (int i = 0; i < 1000; ++i) {
    const std::string text = test::random_text(random, 40), pair = test::random_text(random, 40);
    const int64_t length = 3 + random.below(30);
    EncodeOptions options{.add_special = true, .truncation = Truncation{.max_length = length}};
    options.truncation->side = i % 2 == 0 ? Side::kRight : Side::kLeft;
    const Encoding whole = tokenizer->encode_pair(text, pair, {.add_special = true});
    const Encoding cut = tokenizer->encode_pair(text, pair, options);
    ASSERT_EQ(cut.ids.size(), std::min<size_t>(static_cast<size_t>(length), whole.ids.size()));
    ASSERT_EQ(cut.type_ids.size(), cut.ids.size());
    ASSERT_TRUE(cut.overflow.empty());
    ASSERT_EQ(tokenizer->encode_ids(text, options), tokenizer->encode(text, options).ids);
  }
}

TEST(Padding, BringsABatchToOneLength) {
  const auto tokenizer = word_piece();
  const std::vector<TextInput> inputs = {{"the"}, {"the", "Alice was"}, {""}};
  const Padding padding{.multiple_of = 4, .type_id = 7};
  const auto batch = tokenizer->encode_batch(inputs, {.add_special = true}, padding);
  ASSERT_EQ(batch.size(), 3u);
  for (const auto& encoding : batch) {
    EXPECT_EQ(encoding.ids.size() % 4, 0u);
    EXPECT_EQ(encoding.ids.size(), batch[1].ids.size());
    for (size_t size :
         {encoding.tokens.size(), encoding.offsets.size(), encoding.type_ids.size(), encoding.sequence_ids.size(),
          encoding.attention_mask.size(), encoding.special_tokens_mask.size()})
      EXPECT_EQ(size, encoding.ids.size());
  }
  EXPECT_EQ(batch[2].ids.back(), 0);
  EXPECT_EQ(batch[2].type_ids.back(), 7);
  EXPECT_EQ(batch[2].attention_mask.back(), 0);
  EXPECT_EQ(batch[2].special_tokens_mask.back(), 1);
  EXPECT_EQ(batch[2].sequence_ids.back(), -1);
  std::vector<Encoding> left = {tokenizer->encode("the")};
  pad(left, {.length = 3, .side = Side::kLeft});
  EXPECT_EQ(left[0].tokens, (std::vector<std::string>{"[PAD]", "[PAD]", "the"}));
  pad(left, {.length = 2});
  EXPECT_EQ(left[0].ids.size(), 3u) << "a longer one stays";
}

TEST(EncodeBatch, GivesWhatEncodeGivesOnAnyNumberOfThreads) {
  Random random(random_key(75));
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) texts.push_back(test::random_text(random, 60));
  const std::vector<TextInput> inputs = [&] {
    std::vector<TextInput> list;
    for (const auto& text : texts) list.push_back({text});
    return list;
  }();
  const int before = thread_count();
  for (const int threads : {1, 4}) {
    set_thread_count(threads);
    for (const auto& tokenizer : {word_piece(), small_tokenizer()}) {
      const auto batch = tokenizer->encode_batch(inputs, {.add_special = true});
      for (size_t i = 0; i < texts.size(); ++i) {
        const Encoding alone = tokenizer->encode(texts[i], {.add_special = true});
        ASSERT_EQ(batch[i].ids, alone.ids);
        ASSERT_EQ(batch[i].offsets, alone.offsets);
      }
    }
  }
  set_thread_count(before);
  const std::vector<TextInput> broken = {{"fine"}, {"\xFF"}};
  EXPECT_THAT(message_of([&] { (void)word_piece()->encode_batch(broken); }),
              AllOf(HasSubstr("not valid UTF-8"), HasSubstr("text 1")));
}

// TOK#2049: byte offsets besides those of characters.
TEST(Offsets, CountBytesOnRequest) {
  Random random(random_key(76));
  for (const auto& tokenizer : {word_piece(), small_tokenizer()}) {
    for (int i = 0; i < 2000; ++i) {
      const std::string text = test::random_text(random, 30), pair = test::random_text(random, 30);
      const Encoding characters = tokenizer->encode_pair(text, pair, {.add_special = true});
      const Encoding bytes = tokenizer->encode_pair(text, pair, {.add_special = true, .byte_offsets = true});
      ASSERT_EQ(bytes.ids, characters.ids);
      for (size_t k = 0; k < bytes.ids.size(); ++k) {
        const std::string& source = bytes.sequence_ids[k] == 1 ? pair : text;
        const auto [first, last] = bytes.offsets[k];
        ASSERT_LE(first, last);
        ASSERT_LE(last, static_cast<int64_t>(source.size()));
        const auto before = [&](int64_t byte) {
          return count_code_points(std::string_view(source).substr(0, static_cast<size_t>(byte)));
        };
        ASSERT_EQ(std::pair(before(first), before(last)), characters.offsets[k]) << source;
        ASSERT_TRUE(first == static_cast<int64_t>(source.size()) ||
                    starts_code_point(source[static_cast<size_t>(first)]));
        ASSERT_TRUE(last == static_cast<int64_t>(source.size()) ||
                    starts_code_point(source[static_cast<size_t>(last)]));
      }
    }
  }
}

TEST(Pairs, HaveTheTemplatesOfTheirFamilies) {
  const auto bert = word_piece()->encode_pair("the", "was", {.add_special = true});
  EXPECT_EQ(bert.tokens, (std::vector<std::string>{"[CLS]", "the", "[SEP]", "was", "[SEP]"}));
  EXPECT_THAT(bert.type_ids, ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(bert.sequence_ids, ElementsAre(-1, 0, -1, 1, -1));
  EXPECT_THAT(bert.special_tokens_mask, ElementsAre(1, 0, 1, 0, 1));
  const auto roberta = small_tokenizer()->encode_pair("the", "was", {.add_special = true});
  EXPECT_EQ(roberta.tokens.front(), "<s>");
  EXPECT_EQ(std::count(roberta.tokens.begin(), roberta.tokens.end(), "</s>"), 3);
  EXPECT_EQ(std::count(roberta.type_ids.begin(), roberta.type_ids.end(), 0), static_cast<int64_t>(roberta.ids.size()));
}

}  // namespace
}  // namespace palimpsest::text
