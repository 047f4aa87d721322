// SPDX-License-Identifier: Apache-2.0
// Every component of a tokenizer.json, for both families, against what Hugging Face tokenizers gives
// (tests/fixtures/wordpiece_make.py), and BERT on the golden texts.
#include <gmock/gmock.h>

#include "palimpsest/core/json.h"
#include "palimpsest/text/text_encoder.h"
#include "tests/text/small_tokenizer.h"

namespace palimpsest::text {
namespace {

using test::fixture;
using test::shared;

/// The small WordPiece vocabulary in a tokenizer.json with BERT's settings.
Json word_piece_json() {
  static const Json json = Tokenizer::load(fixture("wordpiece_vocab.txt"))->to_json();
  return json;
}

std::vector<int64_t> flat(const std::vector<std::pair<int64_t, int64_t>>& offsets) {
  std::vector<int64_t> numbers;
  for (const auto& [first, last] : offsets) numbers.push_back(first), numbers.push_back(last);
  return numbers;
}

void expect_equal(const Encoding& encoding, const Json& expected, const std::string& text) {
  EXPECT_EQ(Json(encoding.ids), expected.at("ids")) << text;
  EXPECT_EQ(Json(flat(encoding.offsets)), expected.at("offsets")) << text;
  if (!expected.contains("tokens")) return;
  EXPECT_EQ(Json(encoding.tokens), expected.at("tokens")) << text;
  EXPECT_EQ(Json(encoding.type_ids), expected.at("type_ids")) << text;
  EXPECT_EQ(Json(encoding.attention_mask), expected.at("attention_mask")) << text;
  EXPECT_EQ(Json(encoding.special_tokens_mask), expected.at("special_tokens_mask")) << text;
  const size_t windows = expected.contains("overflow") ? expected.at("overflow").size() : 0;
  ASSERT_EQ(encoding.overflow.size(), windows) << text;
  for (size_t i = 0; i < windows; ++i) expect_equal(encoding.overflow[i], expected.at("overflow")[i], text);
}

TEST(WordPieceReference, AgreesUnderEverySettingOfTheFile) {
  const Json cases = read_json(fixture("wordpiece_cases.json"));
  const auto& texts = cases.at("texts");
  for (const Json& variant : cases.at("variants")) {
    SCOPED_TRACE(variant.at("name").get<std::string>());
    Json json = variant.at("base") == "word_piece" ? word_piece_json() : read_json(fixture("tokenizer_small.json"));
    for (const auto& [path, value] : variant.at("set").items()) json[Json::json_pointer(path)] = value;
    const auto tokenizer = Tokenizer::from_json(json, "variant");
    const auto again = Tokenizer::from_json(tokenizer->to_json(), "variant, written and read");
    EXPECT_EQ(again->fingerprint(), tokenizer->fingerprint());
    EncodeOptions options{.add_special = variant.at("add_special").get<bool>(),
                          .parse_special = variant.at("parse_special").get<bool>(),
                          .truncation = tokenizer->truncation()};
    if (options.truncation) options.truncation->overflow = true;
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto text = texts[i].get<std::string>(), pair = texts[(i + 3) % texts.size()].get<std::string>();
      const Json& expected = variant.at("expected")[i];
      std::vector<Encoding> encodings = {variant.at("pair").get<bool>() ? tokenizer->encode_pair(text, pair, options)
                                                                        : tokenizer->encode(text, options)};
      if (tokenizer->padding()) pad(encodings, *tokenizer->padding());
      expect_equal(encodings.front(), expected, text);
      if (!variant.at("pair").get<bool>() && !tokenizer->padding()) {
        EXPECT_EQ(Json(tokenizer->encode_ids(text, options)), expected.at("ids")) << text;
        EXPECT_EQ(again->encode_ids(text, options), tokenizer->encode_ids(text, options)) << text;
      }
      if (expected.contains("decoded")) {
        EXPECT_EQ(tokenizer->decode(encodings.front().ids), expected.at("decoded").get<std::string>());
        EXPECT_EQ(tokenizer->decode(encodings.front().ids, true), expected.at("skipped").get<std::string>());
      }
    }
  }
}

// The pass over BERT's words and the way step by step are twins.
TEST(WordPieceReference, FastAndSlowWayAgreeOnAnyText) {
  Random random(random_key(71));
  for (const char* settings :
       {R"({})", R"({"lowercase":false})", R"({"strip_accents":false})", R"({"clean_text":false})",
        R"({"strip_accents":true,"lowercase":false,"handle_chinese_chars":false})"}) {
    Json json = word_piece_json();
    const Json set = Json::parse(settings);
    for (const auto& [key, value] : set.items()) json["normalizer"][key] = value;
    const auto tokenizer = Tokenizer::from_json(json, "settings");
    const TextEncoder encoder(tokenizer->parts());
    for (int i = 0; i < 4000; ++i) {
      const std::string text = test::random_text(random, 40);
      const TextTokens fast = encoder.encode(text, true, true), slow = encoder.encode_step_by_step(text, true);
      ASSERT_EQ(fast.ids, slow.ids) << text;
      ASSERT_EQ(fast.offsets, slow.offsets) << text;
      ASSERT_EQ(encoder.encode(text, true, false).ids, slow.ids) << text;
    }
  }
}

TEST(WordPieceReference, AgreesOnTheGoldenTextsOfBert) {
  SKIP_WITHOUT_SHARED("field/golden_tokens.json");
  SKIP_WITHOUT_SHARED("data/vocab/bert-base-uncased/vocab.txt");
  const auto tokenizer = Tokenizer::load(shared("data/vocab/bert-base-uncased/vocab.txt"));
  EXPECT_EQ(tokenizer->vocab_size(), 30522);
  const Json golden = read_json(shared("field/golden_tokens.json"));
  int compared = 0;
  for (const Json& entry : golden.at("cases")) {
    const auto text = entry.at("text").get<std::string>();
    const Json& expected = entry.at("bert_uncased");
    const Encoding encoding = tokenizer->encode(text);
    EXPECT_EQ(Json(encoding.ids), expected.at("ids")) << text;
    EXPECT_EQ(Json(encoding.tokens), expected.at("tokens")) << text;
    EXPECT_EQ(Json(encoding.offsets), expected.at("char_offsets")) << text;
    ++compared;
  }
  EXPECT_EQ(compared, 70);
}

// FR-01, FR-02, FR-04, FR-05, FR-06, FR-09, FR-10: inputs of known reports.
TEST(WordPieceReference, AgreesOnReportedTexts) {
  SKIP_WITHOUT_SHARED("data/vocab/bert-base-uncased/vocab.txt");
  using Ids = std::vector<int32_t>;
  const auto bert = Tokenizer::load(shared("data/vocab/bert-base-uncased"));
  for (const auto& [text, ids] : std::vector<std::pair<std::string, Ids>>{
           {"Kant\u014D", {26044, 2080}},
           {"l\u01DCshi", {16299, 2072}},
           {"\u00C5ngstr\u00F6m", {17076, 15687}},
           {"na\u00EFve", {15743}},
           {"m\u1EDF b\u00E0i l\u1EA1c tr\u00F4i", {9587, 21790, 18749, 19817, 10448}},
           {"\u0130stanbul", {9960}},
           {"a\u0301", {1037}},
           {"\u0928\u092E\u0938\u094D\u0924\u0947", {1327, 29867, 29874, 29859}},
           {"\u4ECA\u5929\u5929\u6C14\u4E0D\u9519", {100, 1811, 1811, 100, 1744, 100}},
           {"\u53F2(shi)", {1790, 1006, 11895, 1007}},
           {"\u3400", {100}},
           {"\U00020000", {100}},
           {"\u8C48", {100}},
           {"\U0001F971", {100}},
           {"\u2764\uFE0F", {100}},
           {"\uD558\uC168\uC2B5\uB2C8\uAE4C", {100}},
           {"\u0391\u03A3", {1155, 29733}},
           {"\u1E9E", {1096}},
           {std::string(101, 'x'), {100}}}) {
    EXPECT_EQ(bert->encode_ids(text), ids) << text;
  }
  EXPECT_EQ(bert->encode_ids(std::string(100, 'x')).size(), 50u);
  std::string accents;
  for (int i = 0; i < 100; ++i) accents += "\u00E9";
  EXPECT_GT(bert->encode_ids(accents).size(), 1u) << "the limit counts characters, not bytes";
  const Encoding hangul = bert->encode("\uD55C\uAD6D\uC5B4");
  EXPECT_EQ(hangul.ids, (Ids{1469, 30006, 30021, 29991, 30014, 30020, 29999, 30008}));
  EXPECT_EQ(flat(hangul.offsets), (std::vector<int64_t>{0, 1, 0, 1, 0, 1, 1, 2, 1, 2, 1, 2, 2, 3, 2, 3}));
}

// FR-22, FR-24, FR-25.
TEST(WordPieceReference, TruncatesAsReported) {
  SKIP_WITHOUT_SHARED("data/vocab/bert-base-uncased/vocab.txt");
  const auto bert = Tokenizer::load(shared("data/vocab/bert-base-uncased"));
  const EncodeOptions pair_options{.add_special = true, .truncation = Truncation{.max_length = 8}};
  const Encoding pair = bert->encode_pair("the quick brown fox jumps over", "a lazy dog sleeps", pair_options);
  EXPECT_EQ(pair.tokens, (std::vector<std::string>{"[CLS]", "the", "quick", "brown", "[SEP]", "a", "lazy", "[SEP]"}));
  EXPECT_EQ(pair.type_ids, (std::vector<int32_t>{0, 0, 0, 0, 0, 1, 1, 1}));
  const Encoding windows =
      bert->encode("one two three four five six seven eight",
                   {.add_special = true, .truncation = Truncation{.max_length = 6, .stride = 2, .overflow = true}});
  ASSERT_EQ(windows.overflow.size(), 2u);
  EXPECT_EQ(windows.overflow[0].tokens, (std::vector<std::string>{"[CLS]", "three", "four", "five", "six", "[SEP]"}));
  EXPECT_EQ(windows.overflow[1].tokens, (std::vector<std::string>{"[CLS]", "five", "six", "seven", "eight", "[SEP]"}));
}

}  // namespace
}  // namespace palimpsest::text
