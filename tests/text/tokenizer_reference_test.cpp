// SPDX-License-Identifier: Apache-2.0
// Ids, tokens and offsets against what Hugging Face tokenizers gives (tests/fixtures/tokenizer_make.py).
#include <zlib.h>

#include "palimpsest/core/json.h"
#include "tests/text/small_tokenizer.h"

namespace palimpsest::text {
namespace {

using test::fixture;
using test::shared;

void expect_equal(const Encoding& encoding, const Json& expected, const std::string& text) {
  EXPECT_EQ(Json(encoding.ids), expected.at("ids")) << text;
  EXPECT_EQ(Json(encoding.tokens), expected.at("tokens")) << text;
  EXPECT_EQ(Json(encoding.offsets), expected.at(expected.contains("offsets") ? "offsets" : "char_offsets")) << text;
}

TEST(TokenizerReference, AgreesUnderEverySettingOfTheFile) {
  const Json cases = read_json(fixture("tokenizer_cases.json"));
  const Json base = read_json(fixture("tokenizer_small.json"));
  for (const Json& variant : cases.at("variants")) {
    SCOPED_TRACE(variant.at("name").get<std::string>());
    Json json = base;
    for (const auto& [path, value] : variant.at("set").items()) json[Json::json_pointer(path)] = value;
    const auto tokenizer = Tokenizer::from_json(json, "variant");
    const auto again = Tokenizer::from_json(tokenizer->to_json(), "variant, written and read");
    EXPECT_EQ(again->fingerprint(), tokenizer->fingerprint());
    const EncodeOptions options{.add_special = variant.at("add_special").get<bool>(),
                                .parse_special = variant.at("parse_special").get<bool>()};
    for (size_t i = 0; i < cases.at("texts").size(); ++i) {
      const auto text = cases.at("texts")[i].get<std::string>();
      expect_equal(tokenizer->encode(text, options), variant.at("expected")[i], text);
      EXPECT_EQ(Json(tokenizer->encode_ids(text, options)), variant.at("expected")[i].at("ids")) << text;
      EXPECT_EQ(again->encode_ids(text, options), tokenizer->encode_ids(text, options)) << text;
    }
  }
}

TEST(TokenizerReference, TrainerLearnsTheSameVocabulary) {
  const Json reference = read_json(fixture("tokenizer_small.json"));
  const Json ours = test::small_tokenizer()->to_json();
  EXPECT_EQ(ours.at("model").at("vocab"), reference.at("model").at("vocab"));
  std::vector<std::string> merges;
  for (const Json& merge : reference.at("model").at("merges")) {
    merges.push_back(merge.is_string() ? merge.get<std::string>()
                                       : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  EXPECT_EQ(ours.at("model").at("merges").get<std::vector<std::string>>(), merges);
  const auto loaded = Tokenizer::load(fixture("tokenizer_small.json"));
  EXPECT_EQ(test::small_tokenizer()->fingerprint(), loaded->fingerprint());
}

TEST(TokenizerReference, AgreesOnTheGoldenTextsOfGpt2) {
  SKIP_WITHOUT_SHARED("field/golden_tokens.json");
  SKIP_WITHOUT_SHARED("data/vocab/gpt2/vocab.bpe");
  const auto tokenizer = Tokenizer::load(shared("data/vocab/gpt2"));
  EXPECT_EQ(tokenizer->vocab_size(), 50257);
  const Json golden = read_json(shared("field/golden_tokens.json"));
  int compared = 0;
  for (const Json& entry : golden.at("cases")) {
    if (!entry.contains("gpt2")) continue;
    const auto text = entry.at("text").get<std::string>();
    const Encoding encoding = tokenizer->encode(text);
    expect_equal(encoding, entry.at("gpt2"), text);
    EXPECT_EQ(tokenizer->decode(encoding.ids), text);
    ++compared;
  }
  EXPECT_EQ(compared, 70);
}

// FR-12, FR-16, FR-17, FR-20: inputs of known reports.
TEST(TokenizerReference, AgreesOnReportedTexts) {
  SKIP_WITHOUT_SHARED("data/vocab/gpt2/vocab.bpe");
  SKIP_WITHOUT_SHARED("data/vocab/roberta-base/vocab.json");
  using Ids = std::vector<int32_t>;
  const auto gpt2 = Tokenizer::load(shared("data/vocab/gpt2"));
  EXPECT_EQ(gpt2->encode_ids("## Title"), (Ids{2235, 11851}));
  EXPECT_EQ(gpt2->encode_ids("####"), (Ids{4242}));
  EXPECT_EQ(gpt2->encode_ids(std::string(100000, 'a')).size(), 25000u);
  EXPECT_EQ(gpt2->encode_ids("<|endoftext|>"), (Ids{50256}));
  const auto roberta = Tokenizer::load(shared("data/vocab/roberta-base"));
  const EncodeOptions special{.add_special = true};
  EXPECT_EQ(roberta->encode_ids("Hello world", special), (Ids{0, 31414, 232, 2}));
  EXPECT_EQ(roberta->encode_ids(" Hello world", special), (Ids{0, 20920, 232, 2}));
  EXPECT_EQ(roberta->encode_ids("world", special), (Ids{0, 8331, 2}));
  EXPECT_EQ(roberta->encode_ids(" world", special), (Ids{0, 232, 2}));
  EXPECT_EQ(roberta->encode_ids("Berlin and Munich have a lot of puppeteer to see .", special),
            (Ids{0, 26795, 2614, 8, 10489, 33, 10, 319, 9, 32986, 9306, 254, 7, 192, 479, 2}));
  EXPECT_EQ(roberta->encode_ids("She likes <mask> cats."), (Ids{2515, 3829, 50264, 10017, 4}));
  EXPECT_GT(roberta->encode_ids("<|endoftext|>").size(), 1u) << "plain text for RoBERTa, though its vocabulary has it";
}

/// The lines of a file, unpacked where it is a .gz.
std::vector<std::string> lines_of(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  std::string bytes, buffer(1 << 16, '\0');
  for (int got; (got = gzread(file, buffer.data(), static_cast<unsigned>(buffer.size()))) > 0;)
    bytes.append(buffer, 0, static_cast<size_t>(got));
  gzclose(file);
  std::vector<std::string> lines;
  size_t at = 0;
  for (size_t end; (end = bytes.find('\n', at)) != std::string::npos; at = end + 1)
    lines.push_back(bytes.substr(at, end - at));
  lines.push_back(bytes.substr(at));
  return lines;
}

std::string from_latin1(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) append_utf8(text, static_cast<uint8_t>(byte));
  return text;
}

/// A vocabulary of the shared folder; "NAME, cased" is one that is read without lower-casing.
std::shared_ptr<const Tokenizer> load_shared(const std::string& name) {
  const size_t comma = name.find(", cased");
  const auto tokenizer = Tokenizer::load(shared("data/vocab/" + name.substr(0, comma)));
  if (comma == std::string::npos) return tokenizer;
  Json json = tokenizer->to_json();
  json["normalizer"]["lowercase"] = false;
  return Tokenizer::from_json(json, name);
}

void expect_equal_file(const Tokenizer& tokenizer, const std::string& name, const Json& entry) {
  const std::string path = shared(entry.at("file").get<std::string>());
  if (path.empty()) return;
  int64_t tokens = 0;
  uLong crc = 0;
  const auto lines = lines_of(path);
  std::string text;
  for (const std::string& line : lines) {
    const std::string read = find_invalid_utf8(line) == std::string::npos ? line : from_latin1(line);
    const Encoding encoding = tokenizer.encode(read);
    text.clear();
    for (size_t i = 0; i < encoding.ids.size(); ++i) {
      fmt::format_to(std::back_inserter(text), "{} {} {} {}\n", encoding.ids[i], encoding.tokens[i],
                     encoding.offsets[i].first, encoding.offsets[i].second);
    }
    text += '\n';
    crc = crc32(crc, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size()));
    tokens += static_cast<int64_t>(encoding.ids.size());
  }
  EXPECT_EQ(lines.size(), entry.at("lines").get<size_t>()) << path;
  EXPECT_EQ(tokens, entry.at("tokens").get<int64_t>()) << path << " with " << name;
  EXPECT_EQ(crc, entry.at("crc32").get<uLong>()) << path << " with " << name;
}

TEST(TokenizerReference, AgreesOnEveryLineOfTheSharedData) {
  SKIP_WITHOUT_SHARED("data/lm/books/Austen_Pride.txt");
  SKIP_WITHOUT_SHARED("data/vocab/gpt2/vocab.bpe");
  for (const char* name : {"tokenizer_corpus.json", "wordpiece_corpus.json"}) {
    const Json corpus = read_json(fixture(name));
    for (const auto& [vocabulary, files] : corpus.at("vocabularies").items()) {
      const auto tokenizer = load_shared(vocabulary);
      for (const Json& entry : files) expect_equal_file(*tokenizer, vocabulary, entry);
    }
  }
}

}  // namespace
}  // namespace palimpsest::text
