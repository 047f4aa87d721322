// SPDX-License-Identifier: Apache-2.0
// WordPiece with a small vocabulary: files, settings, decoding, streaming, saving.
#include <gmock/gmock.h>
#include <malloc.h>

#include <ctime>
#include <limits>

#include "palimpsest/text/characters.h"
#include "palimpsest/text/decoding.h"
#include "palimpsest/text/tokenizer_json.h"
#include "tests/text/small_tokenizer.h"

namespace palimpsest::text {
namespace {

using test::fixture;
using test::message_of;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;
using Tokens = std::vector<std::string>;

constexpr const char* kVocabulary =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n##s\n.\n,\n'\nt\ndon\nna\u00EFve\nnaive\nThe\n\u7684\n\u4EBA\n"
    "\u6709\n##\u4EBA\n##\u6709\nun\n##able\nn't\n";

/// A folder with this vocabulary and, where given, a tokenizer_config.json.
struct Folder {
  TemporaryFolder folder;
  explicit Folder(const std::string& config = "", const std::string& vocabulary = kVocabulary) {
    write_file_atomically(folder.path("vocab.txt"), vocabulary);
    if (!config.empty()) write_file_atomically(folder.path("tokenizer_config.json"), config);
  }
  std::shared_ptr<const Tokenizer> load() const { return Tokenizer::load(folder.path()); }
};

Tokens tokens(const Tokenizer& tokenizer, const std::string& text) { return tokenizer.encode(text).tokens; }

TEST(WordPiece, TakesTheLongestPiecesOrNone) {
  const auto tokenizer = Folder().load();
  EXPECT_THAT(tokens(*tokenizer, "The cats, unable."), ElementsAre("the", "cat", "##s", ",", "un", "##able", "."));
  EXPECT_THAT(tokens(*tokenizer, "catsx cat"), ElementsAre("[UNK]", "cat")) << "one part without a piece: all unknown";
  EXPECT_THAT(tokens(*tokenizer, ""), ElementsAre());
  EXPECT_EQ(tokenizer->encode_ids("the cat", {.add_special = true}), (Ids{2, 5, 6, 3}));
  EXPECT_EQ(tokenizer->special_count(false), 2);
  EXPECT_EQ(tokenizer->special_count(true), 3);
}

// FR-02: an absent or null strip_accents follows lowercase; a value wins.
TEST(WordPiece, StripsAccentsAsTheTwoSettingsSay) {
  for (const char* strip :
       {"", R"(, "strip_accents": null)", R"(, "strip_accents": true)", R"(, "strip_accents": false)"}) {
    for (const bool lower : {true, false}) {
      const Folder folder(fmt::format(R"({{"do_lower_case": {}{}}})", lower, strip));
      const bool strips = std::string(strip).find("true") != std::string::npos ||
                          (lower && std::string(strip).find("false") == std::string::npos);
      EXPECT_THAT(tokens(*folder.load(), "na\u00EFve"), ElementsAre(strips ? "naive" : "na\u00EFve")) << strip << lower;
      EXPECT_THAT(tokens(*folder.load(), "The"), ElementsAre(lower ? "the" : "The"));
    }
  }
}

// FR-04.
TEST(WordPiece, IsolatesChineseCharactersUnlessToldOtherwise) {
  EXPECT_THAT(tokens(*Folder().load(), "\u7684\u4EBA\u6709"), ElementsAre("\u7684", "\u4EBA", "\u6709"));
  EXPECT_THAT(tokens(*Folder(R"({"tokenize_chinese_chars": false})").load(), "\u7684\u4EBA\u6709"),
              ElementsAre("\u7684", "##\u4EBA", "##\u6709"));
}

TEST(WordPiece, ReadsVocabulariesInEveryUsualForm) {
  const std::string expected = Folder().load()->fingerprint();
  std::string crlf;
  for (const char c : std::string(kVocabulary)) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  const std::string clean = kVocabulary;
  EXPECT_EQ(Folder("", crlf).load()->fingerprint(), expected);
  EXPECT_EQ(Folder("", clean.substr(0, clean.size() - 1)).load()->fingerprint(), expected);
  EXPECT_EQ(Folder("", "\xEF\xBB\xBF" + clean + "\n\n").load()->fingerprint(), expected);
  const auto with_hole = Folder("", "[UNK]\n\na\n").load();
  EXPECT_EQ(with_hole->encode_ids("a"), (Ids{2})) << "a blank line keeps its number";
  EXPECT_EQ(Tokenizer::load(fixture("wordpiece_vocab.txt"))->vocab_size(), 445) << "any name that ends in .txt";
}

TEST(WordPiece, NamesTheLineOfABrokenVocabulary) {
  EXPECT_THAT(message_of([] { Folder("", "a\nb\na\n").load(); }),
              AllOf(HasSubstr("the token \"a\" stands in line 1 already"), HasSubstr("vocab.txt, line 3")));
  EXPECT_THAT(message_of([] { Folder("", "\n\n").load(); }), HasSubstr("the vocabulary is empty"));
  EXPECT_THAT(message_of([] { Folder("", "a\n\xFF\n").load(); }), HasSubstr("not valid UTF-8 at byte 2"));
  EXPECT_THAT(message_of([] { Folder(R"({"do_lower_case": "yes"})").load(); }), HasSubstr("true or false is expected"));
  EXPECT_THAT(message_of([] { Folder(R"({"do_basic_tokenize": false})").load(); }), HasSubstr("not supported"));
  const auto without_unknown = Folder("", "a\n").load();
  EXPECT_EQ(without_unknown->encode_ids("a"), (Ids{0}));
  EXPECT_THAT(message_of([&] { (void)without_unknown->encode_ids("zebra"); }),
              AllOf(HasSubstr("no pieces for the word \"zebra\""), HasSubstr("[UNK]")));
}

TEST(WordPiece, ReadsTheCompanionsOfAVocabulary) {
  const Folder folder(R"({"cls_token": "<s>", "sep_token": {"content": "</s>", "lstrip": false},
                          "additional_special_tokens": ["<x>"], "do_lower_case": false})");
  write_file_atomically(folder.folder.path("special_tokens_map.json"),
                        R"({"mask_token": "<gap>", "cls_token": "the"})");
  write_file_atomically(folder.folder.path("added_tokens.json"), R"({"<y>": 24})");
  const auto tokenizer = folder.load();
  EXPECT_EQ(tokenizer->id_of("<y>"), 24);
  EXPECT_FALSE(tokenizer->is_special(24));
  EXPECT_EQ(tokenizer->vocab_size(), 29);
  EXPECT_EQ(tokenizer->encode("the<x>", {.add_special = true}).tokens, (Tokens{"<s>", "the", "<x>", "</s>"}));
  EXPECT_TRUE(tokenizer->is_special(tokenizer->id_of("<gap>").value()));
}

TEST(WordPiece, LimitsWordsByCharactersAfterNormalization) {
  Json json = Folder().load()->to_json();
  json["model"]["max_input_chars_per_word"] = 4;
  const auto tokenizer = Tokenizer::from_json(json, "t.json");
  EXPECT_THAT(tokens(*tokenizer, "cats"), ElementsAre("cat", "##s"));
  EXPECT_THAT(tokens(*tokenizer, "unable"), ElementsAre("[UNK]"));
  EXPECT_THAT(tokens(*tokenizer, "c\u0301a\u0301t\u0301s\u0301"), ElementsAre("cat", "##s"))
      << "accents are gone by then";
}

TEST(WordPiece, NeedsTimeThatGrowsWithTheTextAlone) {
  // Memory is kept between repeats: else the longer text pays for fresh pages each time and the shorter one never.
  mallopt(M_MMAP_THRESHOLD, 1 << 28);
  mallopt(M_TRIM_THRESHOLD, 1 << 28);
  const auto tokenizer = Tokenizer::load(fixture("wordpiece_vocab.txt"));
  Json json = tokenizer->to_json();
  json["model"]["max_input_chars_per_word"] = 1000000000;
  const auto unlimited = Tokenizer::from_json(json, "unlimited");
  const auto cost = [](const Tokenizer& subject, const std::string& unit, size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += unit;
    std::clock_t best = std::numeric_limits<std::clock_t>::max();
    for (int repeat = 0; repeat < 7; ++repeat) {
      const std::clock_t start = std::clock();
      (void)subject.encode(text);
      best = std::min(best, std::clock() - start);
    }
    return static_cast<double>(std::max<std::clock_t>(best, 20));
  };
  // pays.
  for (const char* unit : {"a", "\u00E9", "\u4E2D", "e\u0301", "!", "a\u200D", "[MASK]"}) {
    for (const auto& subject : {tokenizer, unlimited}) {
      // A busy machine may spoil one comparison, not all; a cost of the square would spoil all.
      double least = std::numeric_limits<double>::max();
      for (int attempt = 0; attempt < 5 && !(least < 25.0); ++attempt)
        least = std::min(least, cost(*subject, unit, 100000) / cost(*subject, unit, 10000));
      EXPECT_LT(least, 25.0) << unit;
    }
  }
}

TEST(WordPiece, DecodesWithTheSpacesOfTheReference) {
  const auto tokenizer = Folder().load();
  const Ids ids = tokenizer->encode_ids("[CLS] the cats, un don ' t. [SEP]");
  EXPECT_EQ(tokenizer->decode(ids), "[CLS] the cats, un don ' t. [SEP]");
  EXPECT_EQ(tokenizer->decode(ids, true), "the cats, un don ' t.");
  EXPECT_EQ(tokenizer->decode(ids, true, false), "the cats , un don ' t .");
  EXPECT_EQ(tokenizer->decode(ids, true, true), "the cats, un don't.") << "once more over the whole text";
  EXPECT_EQ(tokenizer->decode(Ids{12, 23}), "donn't");
  EXPECT_EQ(tokenizer->decode(Ids{7, 6}), "##s cat") << "nothing is before it to continue";
  EXPECT_EQ(tokenizer->decode(Ids{1, 6}, true), "cat");
  Json json = tokenizer->to_json();
  json["decoder"]["cleanup"] = false;
  EXPECT_EQ(Tokenizer::from_json(json, "t.json")->decode(ids, true), "the cats , un don ' t .");
  json["decoder"] = nullptr;
  EXPECT_EQ(Tokenizer::from_json(json, "t.json")->decode(Ids{6, 7, 8}), "cat ##s .");
}

TEST(WordPiece, StreamsWhatDecodeGives) {
  const auto word_piece = Tokenizer::load(fixture("wordpiece_vocab.txt"));
  const auto byte_level = test::small_tokenizer();
  Random random(random_key(72));
  for (const auto& tokenizer : {word_piece, byte_level}) {
    for (const std::optional<bool> clean_up :
         {std::optional<bool>(), std::optional<bool>(false), std::optional<bool>(true)}) {
      for (int i = 0; i < 500; ++i) {
        Ids ids(static_cast<size_t>(random.below(30)));
        for (auto& id : ids) id = static_cast<int32_t>(random.below(tokenizer->vocab_size()));
        StreamingDecoder decoder(tokenizer, i % 2 == 0, clean_up);
        for (int again = 0; again < 2; ++again) {  // after finish() it is as new
          std::string together;
          for (const int32_t id : ids) {
            const std::string piece = decoder.push(id);
            ASSERT_EQ(find_invalid_utf8(piece), std::string_view::npos);
            together += piece;
          }
          together += decoder.finish();
          ASSERT_EQ(together, tokenizer->decode(ids, i % 2 == 0, clean_up));
        }
      }
    }
  }
}

TEST(CleanUp, MayStopWhereNothingReachesOver) {
  Random random(random_key(73));
  const std::string letters = "   ''..,n?tsmvere!xd";
  for (int i = 0; i < 200000; ++i) {
    std::string text;
    for (int64_t left = random.below(16); left > 0; --left)
      text += letters[static_cast<size_t>(random.below(static_cast<int64_t>(letters.size())))];
    const size_t settled = settled_by_clean_up(text);
    ASSERT_EQ(clean_up_text(text.substr(0, settled)) + clean_up_text(text.substr(settled)), clean_up_text(text))
        << text;
  }
}

TEST(WordPiece, LoadsWhatItSaved) {
  const auto tokenizer = Folder(R"({"do_lower_case": false})").load()->with_added_tokens({"<recall>", "recall", "cat"});
  EXPECT_EQ(tokenizer->vocab_size(), 26);
  EXPECT_EQ(tokenizer->encode_ids("the <recall>"), (Ids{5, 24}));
  EXPECT_EQ(tokenizer->encode_ids("recall", {.parse_special = false}), (Ids{1}))
      << "the model does not know added tokens";
  TemporaryFolder folder;
  tokenizer->save(folder.path());
  const auto loaded = Tokenizer::load(folder.path());
  EXPECT_EQ(loaded->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(loaded->encode_ids("recall", {.parse_special = false}), (Ids{1}));
  const Json config = read_json(folder.path("tokenizer_config.json"));
  EXPECT_EQ(config.at("cls_token"), "[CLS]");
  EXPECT_EQ(config.at("do_lower_case"), false);
  EXPECT_NE(tokenizer->fingerprint(), Folder().load()->with_added_tokens({"<recall>", "recall", "cat"})->fingerprint());
}

TEST(Characters, HaveTheTablesOfTheReference) {
  // Unicode 8 for categories: a mark, a punctuation mark and a format character of later versions are none.
  EXPECT_TRUE(is_nonspacing_mark(0x301));
  EXPECT_FALSE(is_nonspacing_mark(0x1E000));
  EXPECT_TRUE(is_combining_mark(0x1E000));
  EXPECT_FALSE(is_combining_mark(0x8D3));
  EXPECT_TRUE(is_punctuation(0x166D));
  EXPECT_TRUE(is_punctuation('$'));
  EXPECT_FALSE(is_punctuation(0x20AC));
  EXPECT_TRUE(is_removed_by_clean_text(0x200D));
  EXPECT_TRUE(is_removed_by_clean_text(0));
  EXPECT_TRUE(is_removed_by_clean_text(0xFFFD));
  EXPECT_FALSE(is_removed_by_clean_text('\t'));
  EXPECT_EQ(lower_case(0x130), (LowerCase{'i', 0x307}));
  EXPECT_EQ(lower_case(0x3A3), (LowerCase{0x3C3, 0})) << "never the final form";
  EXPECT_EQ(lower_case(0x1E9E), (LowerCase{0xDF, 0}));
  EXPECT_EQ(lower_case(0xA7CC), (LowerCase{0xA7CD, 0}));
  EXPECT_EQ(decomposition(0x1E69, false), U"s\u0323\u0307");
  EXPECT_EQ(decomposition(0x11938, false), U"") << "newer than the reference's tables";
  EXPECT_EQ(composition('e', 0x301), 0xE9U);
}

}  // namespace
}  // namespace palimpsest::text
