// SPDX-License-Identifier: Apache-2.0
// Loading and saving: forms of files, what is refused, and what errors say.
#include <gmock/gmock.h>

#include <filesystem>

#include "palimpsest/text/tokenizer_json.h"
#include "tests/text/small_tokenizer.h"

namespace fs = std::filesystem;

namespace palimpsest::text {
namespace {

using test::message_of;
using test::small_tokenizer;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kText = "Alice <mask> was\n beginning, 'tis 42 \u00E9\u4E2D<s>";

/// The small tokenizer as vocab.json and merges.txt.
struct Pair {
  std::string vocab, merges;

  Pair() {
    const Json json = small_tokenizer()->to_json();
    vocab = json["model"]["vocab"].dump();
    merges = "#version: 0.2\n";
    for (const auto& merge : json["model"]["merges"]) merges += merge.get<std::string>() + "\n";
  }
  void write(const TemporaryFolder& folder, const char* vocab_name = "vocab.json",
             const char* merges_name = "merges.txt") const {
    write_file_atomically(folder.path(vocab_name), vocab);
    write_file_atomically(folder.path(merges_name), merges);
  }
};

TEST(TokenizerFiles, LoadsWhatItSaved) {
  TemporaryFolder folder;
  small_tokenizer()->save(folder.path("made/here"));
  const auto loaded = Tokenizer::load(folder.path("made/here"));
  EXPECT_EQ(loaded->fingerprint(), small_tokenizer()->fingerprint());
  EXPECT_EQ(loaded->encode_ids(kText), small_tokenizer()->encode_ids(kText));
  EXPECT_EQ(Tokenizer::load(folder.path("made/here/tokenizer.json"))->fingerprint(), loaded->fingerprint());
  const Json config = read_json(folder.path("made/here/tokenizer_config.json"));
  EXPECT_EQ(config.at("mask_token"), "<mask>");
  EXPECT_TRUE(config.at("added_tokens_decoder").at("4").at("lstrip").get<bool>());
  const Json map = read_json(folder.path("made/here/special_tokens_map.json"));
  EXPECT_EQ(map.at("eos_token"), "</s>");
  EXPECT_TRUE(map.at("mask_token").at("lstrip").get<bool>());
}

TEST(TokenizerFiles, SavesBesideOtherFilesOfAModel) {
  TemporaryFolder folder;
  write_file_atomically(folder.path("model.safetensors"), "weights");
  small_tokenizer()->with_added_tokens({"<recall>"})->save(folder.path());
  EXPECT_EQ(read_file(folder.path("model.safetensors")), "weights");
  EXPECT_EQ(read_json(folder.path("special_tokens_map.json")).at("additional_special_tokens"),
            Json::array({"<recall>"}));
}

TEST(TokenizerFiles, LoadsVocabularyAndMergesUnderBothNames) {
  const Pair pair;
  for (const auto& [vocab, merges] : {std::pair("vocab.json", "merges.txt"), std::pair("encoder.json", "vocab.bpe")}) {
    TemporaryFolder folder;
    pair.write(folder, vocab, merges);
    for (const std::string& path : {folder.path(), folder.path(vocab), folder.path(merges)}) {
      const auto loaded = Tokenizer::load(path);
      EXPECT_EQ(loaded->fingerprint(), small_tokenizer()->fingerprint()) << path;
      EXPECT_EQ(loaded->encode_ids(kText, {.add_special = true}),
                small_tokenizer()->encode_ids(kText, {.add_special = true}));
    }
  }
}

// FR-12, FR-13: header, CRLF, missing final newline, blank lines at the end, a byte order mark.
TEST(TokenizerFiles, ReadsMergesInEveryUsualForm) {
  const Pair clean;
  const auto load = [&](const std::string& merges) {
    TemporaryFolder folder;
    Pair pair = clean;
    pair.merges = merges;
    pair.write(folder);
    return Tokenizer::load(folder.path())->fingerprint();
  };
  std::string crlf;
  for (const char c : clean.merges) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  const std::string without_header = clean.merges.substr(clean.merges.find('\n') + 1);
  const std::string expected = small_tokenizer()->fingerprint();
  EXPECT_EQ(load(clean.merges), expected);
  EXPECT_EQ(load(crlf), expected);
  EXPECT_EQ(load(without_header), expected);
  EXPECT_EQ(load(clean.merges.substr(0, clean.merges.size() - 1)), expected);
  EXPECT_EQ(load(crlf.substr(0, crlf.size() - 2)), expected);
  EXPECT_EQ(load(clean.merges + "\n\n"), expected);
  EXPECT_EQ(load("\xEF\xBB\xBF" + clean.merges), expected);
}

// FR-12: merges that start with # are merges.
TEST(TokenizerFiles, KeepsMergesThatStartWithHash) {
  const auto tokenizer =
      test::train_on({"## ## ####\n", "#version #version\n"}, {.vocab_size = 300, .min_frequency = 1});
  EXPECT_EQ(tokenizer->encode_ids("##").size(), 1u);
  EXPECT_EQ(tokenizer->encode_ids("#version").size(), 2u) << "punctuation and letters are different words";
  TemporaryFolder folder;
  tokenizer->save(folder.path());
  EXPECT_EQ(Tokenizer::load(folder.path())->encode_ids("## ####"), tokenizer->encode_ids("## ####"));
  std::string merges;
  const Json json = tokenizer->to_json();
  for (const auto& merge : json["model"]["merges"]) merges += merge.get<std::string>() + "\n";
  ASSERT_THAT(merges, HasSubstr("# #\n"));
  fs::remove(folder.path("tokenizer.json"));
  write_file_atomically(folder.path("vocab.json"), json["model"]["vocab"].dump());
  write_file_atomically(folder.path("merges.txt"), merges);
  EXPECT_EQ(Tokenizer::load(folder.path())->encode_ids("## ####"), tokenizer->encode_ids("## ####"));
}

TEST(TokenizerFiles, NamesTheLineOfABrokenMerge) {
  const auto message = [](const std::string& merges) {
    TemporaryFolder folder;
    Pair pair;
    pair.merges = merges;
    pair.write(folder);
    const std::string text = message_of([&] { Tokenizer::load(folder.path()); });
    const size_t at = text.find(folder.path());
    return at == std::string::npos ? text : text.substr(0, at) + text.substr(at + folder.path().size());
  };
  EXPECT_EQ(message("#version: 0.2\nt h\nalone\n"),
            "error: a merge is two tokens with one space between, got \"alone\"\n"
            "  at:  /merges.txt, line 3\n"
            "  fix: a merge that cannot be written so needs a tokenizer.json");
  EXPECT_THAT(message("t h\nq \xC5\xBF\n"),
              AllOf(HasSubstr("needs the token \"\xC5\xBF\", which is not in the vocabulary"),
                    HasSubstr("merges.txt, line 2")));
  EXPECT_THAT(message("t h\n\nh e\n"), HasSubstr("line 2"));
  EXPECT_THAT(message("t h e\n"), HasSubstr("line 1"));
  EXPECT_THAT(message("t \n"), HasSubstr("line 1"));
  EXPECT_THAT(message("t h\n#version: 0.2\n"), HasSubstr("line 2")) << "a header in the middle is none";
  EXPECT_THAT(message("t h\n\xFF\n"), HasSubstr("not valid UTF-8 at byte 4"));
}

TEST(TokenizerFiles, SaysWhichFileIsMissing) {
  TemporaryFolder folder;
  EXPECT_THAT(
      message_of([&] { Tokenizer::load(folder.path()); }),
      HasSubstr("expected tokenizer.json, or vocab.json and merges.txt, or encoder.json and vocab.bpe, or vocab.txt"));
  EXPECT_THAT(message_of([&] { Tokenizer::load(folder.path("nowhere")); }), HasSubstr("no such file or folder"));
  Pair().write(folder);
  fs::remove(folder.path("merges.txt"));
  EXPECT_THAT(message_of([&] { Tokenizer::load(folder.path()); }),
              AllOf(HasSubstr("a tokenizer needs this file too"), HasSubstr("/merges.txt")));
}

TEST(TokenizerFiles, ReadsTheCompanionsOfAVocabulary) {
  TemporaryFolder folder;
  Pair().write(folder);
  write_file_atomically(folder.path("tokenizer_config.json"),
                        R"({"add_prefix_space": true, "added_tokens_decoder":
                            {"480": {"content": "<x>", "lstrip": true, "special": true}}})");
  write_file_atomically(folder.path("added_tokens.json"), R"({"<x>": 480, "<y>": 481})");
  const auto tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer->vocab_size(), 482);
  EXPECT_EQ(tokenizer->encode_ids("Alice"), small_tokenizer()->encode_ids(" Alice"));
  EXPECT_EQ(tokenizer->encode_ids("a <x><y>"), (std::vector<int32_t>{tokenizer->encode_ids("a").front(), 480, 481}));
  EXPECT_FALSE(tokenizer->is_special(481));
}

/// A tokenizer.json with some values replaced.
std::string message_with(const std::string& pointer, const Json& value) {
  Json json = small_tokenizer()->to_json();
  json[Json::json_pointer(pointer)] = value;
  return message_of([&] { Tokenizer::from_json(json, "t.json"); });
}

TEST(TokenizerJson, RefusesByNameWhatItDoesNotDo) {
  EXPECT_EQ(message_with("/normalizer", Json{{"type", "Nmt"}}),
            "error: the normalizer Nmt is not supported, and leaving it out would change the result\n"
            "  at:  t.json, normalizer\n"
            "  fix: supported here: BertNormalizer, Lowercase, StripAccents, NFD, NFKD, NFC, NFKC, Strip, Replace of a "
            "text, Prepend, a Sequence of them");
  EXPECT_THAT(message_with("/normalizer", Json{{"type", "Replace"}, {"pattern", {{"Regex", "a+"}}}, {"content", ""}}),
              HasSubstr("Replace of a regular expression is not supported"));
  EXPECT_THAT(message_with("/model/type", "Unigram"), HasSubstr("the model Unigram is not supported"));
  EXPECT_THAT(message_with("/model/type", "WordPiece"), HasSubstr("WordPiece after the pre-tokenizer ByteLevel"));
  EXPECT_THAT(message_with("/pre_tokenizer/type", "Metaspace"),
              HasSubstr("the pre-tokenizer Metaspace is not supported"));
  EXPECT_THAT(message_with("/pre_tokenizer", nullptr), HasSubstr("without the ByteLevel pre-tokenizer"));
  EXPECT_THAT(message_with("/post_processor/type", "Other"), HasSubstr("the post-processor Other is not supported"));
  EXPECT_THAT(message_with("/decoder/type", "WordPiece"),
              HasSubstr("the decoder WordPiece for this model is not supported"));
  EXPECT_THAT(message_with("/model/dropout", 0.1), HasSubstr("dropout"));
  EXPECT_THAT(message_with("/model/continuing_subword_prefix", "##"),
              HasSubstr("continuing_subword_prefix is not supported"));
  EXPECT_THAT(message_with("/model/end_of_word_suffix", "</w>"), HasSubstr("end_of_word_suffix is not supported"));
  EXPECT_EQ(message_with("/model/dropout", 0.0), "");
  EXPECT_EQ(message_with("/model/byte_fallback", true), "") << "never acts where all bytes have tokens";
  EXPECT_EQ(message_with("/model/continuing_subword_prefix", ""), "");
  EXPECT_EQ(message_with("/decoder", nullptr), "");
}

TEST(TokenizerJson, NamesThePlaceOfAWrongValue) {
  EXPECT_THAT(message_with("/model/vocab", Json::array()),
              AllOf(HasSubstr("an object is expected"), HasSubstr("t.json, model, vocab")));
  EXPECT_THAT(message_with("/model/vocab/!", "x"), HasSubstr("the id of \"!\" must be a whole number"));
  EXPECT_THAT(message_with("/model/vocab/!", 6), HasSubstr("have the same id 6"));
  EXPECT_THAT(message_with("/model/vocab/!", -1), HasSubstr("out of range"));
  EXPECT_THAT(message_with("/model/vocab/!", 2000000000), HasSubstr("the id 2000000000 of \"!\" is out of range"));
  EXPECT_THAT(message_with("/model/merges/3", "abc"),
              AllOf(HasSubstr("a merge is two tokens"), HasSubstr("t.json, model, merges[3]")));
  EXPECT_THAT(message_with("/model/merges/3", Json::array({"a", "\u4E2D"})), HasSubstr("needs the token \"\u4E2D\""));
  EXPECT_THAT(message_with("/added_tokens/1/id", 7),
              AllOf(HasSubstr("the id 7 of \"<pad>\" belongs to"), HasSubstr("added_tokens[1]")));
  EXPECT_THAT(message_with("/added_tokens/1/content", ""), HasSubstr("an added token is empty"));
  EXPECT_THAT(message_with("/added_tokens/1/lstrip", "yes"), HasSubstr("true or false is expected"));
  EXPECT_THAT(message_with("/post_processor/cls", Json::array({"<s>", 2})), HasSubstr("no \"<s>\" with the id 2"));
  EXPECT_THAT(message_with("/pre_tokenizer", Json::object()), HasSubstr("\"type\" is missing"));
  EXPECT_THAT(message_with("/model/unk_token", "<nope>"), HasSubstr("\"<nope>\" is not in the vocabulary"));
  EXPECT_THAT(message_of([] { Tokenizer::from_json(Json::array(), "t.json"); }), HasSubstr("an object is expected"));
  EXPECT_THAT(message_of([] { Tokenizer::from_json(Json::object(), "t.json"); }), HasSubstr("it has no \"model\""));
}

TEST(TokenizerJson, AnswersMissingBytesWithTheUnknownTokenOrAnError) {
  Json json = small_tokenizer()->to_json();
  auto& vocab = json["model"]["vocab"];
  vocab.erase("\u00F0");  // the byte 0xF0, with which emoji start
  const auto strict = Tokenizer::from_json(json, "t.json");
  EXPECT_EQ(strict->decode(strict->encode_ids("Alice")), "Alice");
  EXPECT_THAT(message_of([&] { strict->encode_ids("\U0001F601"); }), HasSubstr("no token for the byte 0xf0"));
  json["model"]["unk_token"] = "<unk>";
  const auto lenient = Tokenizer::from_json(json, "t.json");
  EXPECT_EQ(lenient->encode_ids("\U0001F601").front(), 3);
  EXPECT_EQ(lenient->encode("\U0001F601").offsets.back(), (std::pair<int64_t, int64_t>(0, 1)));
}

TEST(TokenizerJson, ParsesLargeObjectsAndRefusesWhatParseJsonRefuses) {
  EXPECT_EQ(parse_large_json(R"({"b":[1,-2,0.5,"x",null,true,{}],"a":{"c":[]}})", "s").dump(),
            R"({"b":[1,-2,0.5,"x",null,true,{}],"a":{"c":[]}})");
  for (const std::string bad : {"", "{", "[1,]", "{\"a\":1,\"a\":2}", "nul", "[1] 2", "\"\xFF\"", "1e999"}) {
    EXPECT_THAT(message_of([&] { parse_large_json(bad, "s"); }), HasSubstr("at:  s")) << bad;
  }
  EXPECT_THAT(message_of([] { parse_large_json(std::string(100000, '['), "s"); }), HasSubstr("nested deeper than 128"));
}

}  // namespace
}  // namespace palimpsest::text
