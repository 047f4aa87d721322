// SPDX-License-Identifier: Apache-2.0
// Damaged tokenizer files: each is refused with an error or gives a tokenizer that works; nothing else happens.
#include "palimpsest/text/tokenizer_json.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <fstream>

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"
#include "palimpsest/text/tokenizer.h"
#include "tests/support/paths.h"

namespace palimpsest::text {
namespace {

constexpr int kInputs = 10000;

std::shared_ptr<const Tokenizer> make_small() {
  int calls = 0;
  return train_tokenizer(
      [&](std::string& chunk) {
        chunk = "the cat sat on the mat, then the hat sat on that cat's mat\n";
        return calls++ < 3;
      },
      {.vocab_size = 285});
}

size_t pick(Random& random, size_t count) { return static_cast<size_t>(random.below(static_cast<int64_t>(count))); }

/// One damage to the bytes: a flipped bit, another byte, a hole, a repeat, an early end.
void damage_bytes(Random& random, std::string& bytes) {
  if (bytes.empty()) return;
  const size_t at = pick(random, bytes.size()), length = std::min(1 + pick(random, 12), bytes.size() - at);
  switch (random.below(6)) {
    case 0:
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
      break;
    case 1:
      bytes[at] = static_cast<char>(random.below(256));
      break;
    case 2:
      bytes.erase(at, length);
      break;
    case 3:
      bytes.insert(at, bytes.substr(at, length));
      break;
    case 4:
      bytes[at] = "{}[],:\"\\0-e \n"[random.below(13)];
      break;
    default:
      bytes.resize(at);
  }
}

/// Some value of the tree; large lists are not favoured over the settings beside them.
Json& pick_value(Random& random, Json& root) {
  Json* value = &root;
  while (value->is_structured() && !value->empty() && (value == &root || random.below(4) > 0)) {
    auto child = value->begin();
    std::advance(child, static_cast<int64_t>(pick(random, value->size())));
    value = &*child;
  }
  return *value;
}

Json odd_value(Random& random) {
  static const std::vector<const char*> kOdd = {
      "null",
      "true",
      "-1",
      "0",
      "3",
      "4294967296",
      "1e300",
      "0.5",
      "\"\"",
      "\"<s>\"",
      "\"a b\"",
      "\"\\u0120\"",
      "[]",
      "{}",
      "[[],[]]",
      "[\"a\",\"b\"]",
      "\"ByteLevel\"",
      "{\"type\":\"Sequence\"}",
      "{\"type\":\"ByteLevel\"}",
      "{\"type\":\"NFKC\"}",
      "{\"type\":\"BertNormalizer\",\"strip_accents\":false}",
      "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"\"}",
      "{\"type\":\"Punctuation\",\"behavior\":\"MergedWithNext\"}",
      "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"}]}",
      "{\"max_length\":4,\"stride\":3}",
      "{\"strategy\":{\"Fixed\":7}}",
      "9223372036854775807",
      "\"\\u4e2d\""};
  return Json::parse(kOdd[pick(random, kOdd.size())]);
}

/// One damage to the values: another one, a swap with some other place, a missing one.
void damage_values(Random& random, Json& root) {
  switch (random.below(3)) {
    case 0:
      pick_value(random, root) = odd_value(random);
      break;
    case 1: {
      const Json copy = pick_value(random, root);
      pick_value(random, root) = copy;
      break;
    }
    default: {
      Json& parent = pick_value(random, root);
      if (parent.is_object() && !parent.empty()) {
        auto member = parent.begin();
        std::advance(member, static_cast<int64_t>(pick(random, parent.size())));
        parent.erase(member);
      } else if (parent.is_array() && !parent.empty()) {
        parent.erase(pick(random, parent.size()));
      }
    }
  }
}

/// Uses whatever was loaded. Refusing a text is fine, by an Error.
void use(const Tokenizer& tokenizer, bool thoroughly) {
  for (const std::string text : {"the cat's <mask> sat\n on \u4E2D\u00E9 42", "", "   <s>",
                                 "thethethethethethethethethethethethethethethethethethe"}) {
    try {
      for (const EncodeOptions options :
           {EncodeOptions{}, EncodeOptions{.add_special = true, .parse_special = false}}) {
        const Encoding encoding = tokenizer.encode(text, options);
        EXPECT_EQ(encoding.ids, tokenizer.encode_ids(text, options));
        (void)tokenizer.decode(encoding.ids, true);
        EncodeOptions windows = options;
        windows.truncation = Truncation{.max_length = 9, .stride = 2, .overflow = true};
        windows.byte_offsets = true;
        std::vector<Encoding> encodings = {tokenizer.encode_pair(text, "the cat", windows)};
        for (const Encoding& window : encodings[0].overflow) EXPECT_LE(window.ids.size(), 9u);
        if (tokenizer.padding() && tokenizer.padding()->length < 1000 && tokenizer.padding()->multiple_of < 1000)
          pad(encodings, *tokenizer.padding());
      }
    } catch (const Error&) {
    }
  }
  if (!thoroughly) return;
  EXPECT_EQ(Tokenizer::from_json(tokenizer.to_json(), "again")->fingerprint(), tokenizer.fingerprint());
  (void)tokenizer.with_added_tokens({"<new>", "the"})->encode_ids("the <new>");
}

/// What became of many inputs; both ends must occur, or the damage is not what it should be.
struct Tally {
  int refused = 0, used = 0;

  template <class Load>
  void add(int input, const Load& load) {
    SCOPED_TRACE(input);
    try {
      use(*load(), input % 16 == 0);
      ++used;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2) << error.what();
      ++refused;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "another exception: " << error.what();
    }
  }
  ~Tally() {
    EXPECT_GT(refused, kInputs / 10);
    EXPECT_GT(used, kInputs / 100);
  }
};

/// A WordPiece tokenizer with something of every kind in its file.
Json word_piece_json() {
  Json json = Tokenizer::load(test::fixture("wordpiece_vocab.txt"))->with_added_tokens({"<mask>"})->to_json();
  Json vocab = Json::object();  // a short one: damages should hit the rest, too
  for (const auto& [token, id] : json["model"]["vocab"].items()) {
    if (vocab.size() < 60) vocab[token] = id;
  }
  json["model"]["vocab"] = vocab;
  json["added_tokens"].erase(json["added_tokens"].size() - 1);
  json["added_tokens"].push_back(
      Json{{"id", 60}, {"content", "Cat"}, {"normalized", true}, {"lstrip", true}, {"special", false}});
  json["normalizer"] =
      Json{{"type", "Sequence"},
           {"normalizers",
            Json::array({json["normalizer"], Json{{"type", "Strip"}, {"strip_left", true}}, Json{{"type", "NFC"}}})}};
  json["pre_tokenizer"] = Json{
      {"type", "Sequence"},
      {"pretokenizers", Json::array({json["pre_tokenizer"], Json{{"type", "Digits"}, {"individual_digits", true}}})}};
  json["truncation"] = Json{{"max_length", 8}, {"stride", 2}, {"strategy", "LongestFirst"}, {"direction", "Left"}};
  json["padding"] = Json{{"strategy", {{"Fixed", 6}}}, {"pad_id", 0}, {"pad_token", "[PAD]"}};
  return json;
}

/// Writes files anew: writing over one waits for the disk on some systems.
void write_files(const test::TemporaryFolder& folder, const std::vector<const char*>& names,
                 const std::vector<std::string>& files) {
  for (size_t i = 0; i < files.size(); ++i) {
    std::filesystem::remove(folder.path(names[i]));
    std::ofstream(folder.path(names[i]), std::ios::binary) << files[i];
  }
}

class TokenizerFuzz : public ::testing::Test {
 protected:
  void SetUp() override { spdlog::set_level(spdlog::level::off); }
  void TearDown() override { spdlog::set_level(spdlog::level::info); }
};

void survive_damaged_json(const Json& whole, uint64_t seed) {
  const std::string text = whole.dump();
  Tally tally;
  for (int input = 0; input < kInputs; ++input) {
    Random random(random_key(seed, input));
    std::string damaged = text;
    if (input % 2 == 0) {
      for (int64_t damages = 1 + random.below(3); damages > 0; --damages) damage_bytes(random, damaged);
    } else {
      Json json = whole;
      for (int64_t damages = 1 + random.below(3); damages > 0; --damages) damage_values(random, json);
      damaged = json.dump();
    }
    tally.add(input, [&] { return Tokenizer::from_json(parse_large_json(damaged, "damaged"), "damaged"); });
  }
}

TEST_F(TokenizerFuzz, SurvivesTenThousandDamagedTokenizerJson) { survive_damaged_json(make_small()->to_json(), 41); }

TEST_F(TokenizerFuzz, SurvivesTenThousandDamagedTokenizerJsonOfWordPiece) {
  survive_damaged_json(word_piece_json(), 43);
}

TEST_F(TokenizerFuzz, SurvivesTenThousandDamagedWordPieceVocabularies) {
  std::string vocab;
  const Json json = word_piece_json();
  for (const auto& [token, id] : json["model"]["vocab"].items()) vocab += token + "\n";
  const std::string config =
      R"({"do_lower_case": false, "strip_accents": null, "tokenize_chinese_chars": true, "mask_token": {"content": "<x>",
          "lstrip": true}, "added_tokens_decoder": {"60": {"content": "<y>", "special": true}}})";
  const std::string map = R"({"cls_token": "[CLS]", "additional_special_tokens": ["<z>", "the"]})";
  const test::TemporaryFolder folder;
  Tally tally;
  for (int input = 0; input < kInputs; ++input) {
    Random random(random_key(44, input));
    std::vector<std::string> files = {vocab, config, map};
    for (int64_t damages = 1 + random.below(2); damages > 0; --damages)
      damage_bytes(random, files[pick(random, files.size())]);
    write_files(folder, {"vocab.txt", "tokenizer_config.json", "special_tokens_map.json"}, files);
    tally.add(input, [&] { return Tokenizer::load(folder.path()); });
  }
}

TEST_F(TokenizerFuzz, SurvivesTenThousandDamagedVocabulariesAndMerges) {
  const Json whole = make_small()->to_json();
  const std::string vocab = whole["model"]["vocab"].dump();
  std::string merges = "#version: 0.2\n";
  for (const auto& merge : whole["model"]["merges"]) merges += merge.get<std::string>() + "\n";
  const std::string config =
      R"({"add_prefix_space": false, "added_tokens_decoder": {"4": {"content": "<mask>", "lstrip": true}}})";
  const test::TemporaryFolder folder;
  Tally tally;
  for (int input = 0; input < kInputs; ++input) {
    Random random(random_key(42, input));
    std::vector<std::string> files = {vocab, merges, config};
    for (int64_t damages = 1 + random.below(2); damages > 0; --damages)
      damage_bytes(random, files[pick(random, files.size())]);
    write_files(folder, {"vocab.json", "merges.txt", "tokenizer_config.json"}, files);
    tally.add(input, [&] { return Tokenizer::load(folder.path()); });
  }
}

}  // namespace
}  // namespace palimpsest::text
