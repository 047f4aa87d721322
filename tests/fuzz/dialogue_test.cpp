// SPDX-License-Identifier: Apache-2.0
// Ten thousand mutated files of each form of dialogues: dialogues or one clear error, never anything else; and with
// skip_broken dialogues to the end.
#include "palimpsest/data/dialogue.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"
#include "palimpsest/data/aligned.h"
#include "palimpsest/data/text_lines.h"
#include "tests/support/paths.h"

namespace palimpsest::data {
namespace {

constexpr int64_t kFiles = 10'000;

std::string mutate(std::string bytes, Random& random) {
  static const std::string interesting[] = {
      "\"",   "\\",           "{",  "}",    "[",    "]",           ",",           ":",     "\n",
      "\r\n", "\t",           " ",  "\xFF", "\xC3", "\\ud800",     "null",        "1e999", "\"text\"",
      "\"\"", "\xEF\xBB\xBF", "1 ", "-1",   "[[",   "{\"turns\":", "\xE2\x80\x83"};
  for (int64_t times = random.below(5); times > 0 && !bytes.empty(); --times) {
    const auto at = static_cast<size_t>(random.below(static_cast<int64_t>(bytes.size())));
    const auto length = static_cast<size_t>(random.below(20));
    const int64_t kind = random.below(6);
    if (kind == 0) bytes[at] = static_cast<char>(random.below(256));
    if (kind == 1) bytes.erase(at, length);
    if (kind == 2) bytes.insert(at, interesting[random.below(std::size(interesting))]);
    if (kind == 3)
      bytes.insert(at, bytes.substr(static_cast<size_t>(random.below(static_cast<int64_t>(at) + 1)), length));
    if (kind == 4) bytes.resize(at);
    if (kind == 5)
      bytes.insert(at, std::string(static_cast<size_t>(random.below(300)), random.below(2) == 0 ? '[' : '{'));
  }
  return bytes;
}

void check(const Error& e) {
  ASSERT_EQ(e.exit_code(), 2) << e.what();
  ASSERT_FALSE(e.place().empty()) << e.what();
  ASSERT_LT(std::string(e.what()).size(), 2000u);
  ASSERT_EQ(find_invalid_utf8(e.what()), std::string::npos);
}

void fuzz(const std::string& good, const std::string& name, const std::string& format, uint64_t key) {
  const test::TemporaryFolder folder;
  int64_t errors = 0, dialogues = 0;
  for (int64_t i = 0; i < kFiles; ++i) {
    Random random(random_key(key, i));
    const std::string path = folder.path(name);
    std::filesystem::remove(path);
    std::ofstream(path, std::ios::binary) << mutate(good, random);
    const bool skip = i % 2 == 0;
    const std::string form = i % 4 < 2 ? format : "auto";
    try {
      DialogueReader reader({.data = {path}, .skip_broken = skip}, {.format = form, .personas = "both"});
      for (Dialogue dialogue; reader.next(dialogue); ++dialogues) {
        ASSERT_FALSE(dialogue.turns.empty());
        ASSERT_FALSE(dialogue.split_key.empty());
        int64_t session = 1;
        for (const Turn& turn : dialogue.turns) {
          ASSERT_EQ(turn.text, trimmed(turn.text));
          ASSERT_FALSE(turn.text.empty());
          ASSERT_EQ(find_invalid_utf8(turn.text), std::string::npos);
          ASSERT_GE(turn.session, session);
          session = turn.session;
        }
      }
    } catch (const Error& e) {
      ++errors;
      check(e);
      // What is left to be an error: the head of a file (a form nobody knows), never a record.
      if (skip && form != "auto" && format != "persuasion") FAIL() << e.what();
    }
  }
  EXPECT_GT(errors, 500);
  EXPECT_GT(dialogues, 5000);
}

TEST(DialogueFuzz, PersonaChat) {
  fuzz("1 your persona: i paint.\n2 partner's persona: i sing.\n3 hi\tfine\n4 good\tyes\n1 a\tb\n2 c\td\t\te|f\n",
       "a.txt", "personachat", 1);
}

TEST(DialogueFuzz, Persuasion) {
  fuzz(",Unit,Turn,B4,B2\r\n0,Hello,0,0,d\r\n1,\"Hi, \"\"you\"\"\r\nthere\",0,1,d\r\n0,x,0,0,e\r\n", "a.csv",
       "persuasion", 2);
}

TEST(DialogueFuzz, MultiSessionChat) {
  const std::string row = R"({"personas":[["p"],["q"]],"dialog":[{"text":"a","id":"Speaker 1"},{"text":"b"}],)"
                          R"("metadata":{"initial_data_id":"x"},"previous_dialogs":[{"dialog":[{"text":"c"}]}]})";
  fuzz(row + "\n" + row + "\n", "a.jsonl", "msc", 3);
}

TEST(DialogueFuzz, Turns) {
  const std::string row =
      R"({"turns":[{"role":"A","text":"a\u00e9"},{"role":"B","text":"b","session":2}],"split":"test"})";
  fuzz(row + "\n" + row + "\n[{\"dial_id\":\"p\",\"role\":\"A\",\"text\":\"t\"}]\n", "a.jsonl", "turns", 4);
}

TEST(DialogueFuzz, JsonOverManyLines) {
  fuzz(
      "{\n \"p\": [\n  {\"dial_id\":\"p\",\"session\":1,\"role\":\"A\",\"text\":\"a\"},\n  {\"text\":\"b\"}\n ],\n"
      " \"q\": [{\"text\":\"c\"}]\n}\n",
      "a.json", "turns", 5);
  fuzz(
      "[\n{\"dial_id\":\"p\",\"text\":\"a\"},\n{\"dial_id\":\"p\",\"text\":\"b\"},\n{\"dial_id\":\"q\",\"text\":\"c\"}"
      "\n]\n",
      "a.json", "turns", 6);
}

TEST(DialogueFuzz, Pairs) {
  const std::string row = "{\"source\":\"s\",\"target\":\"t\"}\n";
  fuzz(row + row + row, "a.jsonl", "pairs", 7);
}

TEST(DialogueFuzz, AlignedFiles) {
  const test::TemporaryFolder folder;
  int64_t errors = 0, units = 0;
  for (int64_t i = 0; i < kFiles; ++i) {
    Random random(random_key(8, i));
    const std::string source = folder.path("s"), target = folder.path("t");
    std::filesystem::remove(source);
    std::filesystem::remove(target);
    std::ofstream(source, std::ios::binary) << mutate("a b\nc\n\nd\ne\n", random);
    std::ofstream(target, std::ios::binary) << mutate("A\nB b\n\nD\nE\n", random);
    try {
      AlignedReader reader(
          {.source = source, .target = target, .lines_per_unit = 1 + i % 3, .skip_broken = i % 2 == 0});
      for (AlignedUnit unit; reader.next(unit); ++units) {
        ASSERT_FALSE(unit.source.empty() || unit.target.empty());
        ASSERT_EQ(find_invalid_utf8(unit.source + unit.target), std::string::npos);
      }
    } catch (const Error& e) {
      ++errors;
      check(e);
    }
  }
  EXPECT_GT(errors, 500);
  EXPECT_GT(units, 5000);
}

}  // namespace
}  // namespace palimpsest::data
