// SPDX-License-Identifier: Apache-2.0
// tokenize and detokenize as scripts run them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/json.h"
#include "tests/support/paths.h"

namespace palimpsest {
namespace {

using test::CommandResult;
using test::fixture;
using test::run_program;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kWordPiece = fixture("wordpiece_vocab.txt");
const std::string kByteLevel = fixture("tokenizer_small.json");

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The program with `input` on its stdin.
CommandResult run_on(const std::string& input, const std::string& arguments) {
  const TemporaryFolder folder;
  write_file_atomically(folder.path("input"), input);
  return run_program(arguments + " < " + folder.path("input"));
}

TEST(Tokenize, PrintsIdsTokensAndOffsetsALine) {
  const auto result = run_on("\"Alice was\"\n\"\"\n", "tokenize --tokenizer " + kWordPiece + " --json-lines");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 2u);
  const Json json = Json::parse(lines[0]);
  EXPECT_EQ(json.size(), 3u) << "no more than scripts rely on";
  EXPECT_EQ(json.at("ids").size(), json.at("tokens").size());
  EXPECT_EQ(json.at("offsets").back()[1], 9);
  EXPECT_EQ(lines[1], R"({"ids":[],"tokens":[],"offsets":[]})");
}

TEST(Tokenize, KeepsTheOrderOfManyLinesOnAllThreads) {
  std::string input;
  for (int i = 0; i < 20000; ++i) input += Json(std::string(static_cast<size_t>(i % 50), '!')).dump() + "\n";
  const auto result = run_on(input, "tokenize --threads 4 --tokenizer " + kWordPiece + " --json-lines");
  const auto lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 20000u) << result.err;
  for (size_t i = 0; i < lines.size(); ++i) ASSERT_EQ(Json::parse(lines[i]).at("ids").size(), i % 50) << i;
}

TEST(Tokenize, ReadsPairsAndCutsThemIntoWindows) {
  const std::string command = "tokenize --tokenizer " + kWordPiece + " --json-lines --add-special --masks ";
  const auto listed = run_on("[\"the\",\"was\"]\n", command);
  const Json json = Json::parse(listed.out);
  EXPECT_EQ(json.at("tokens"), Json::array({"[CLS]", "the", "[SEP]", "was", "[SEP]"})) << listed.err;
  EXPECT_EQ(json.at("type_ids"), Json::array({0, 0, 0, 1, 1}));
  EXPECT_EQ(json.at("special_tokens_mask"), Json::array({1, 0, 1, 0, 1}));
  EXPECT_EQ(run_on("\"the\"\n", command + "--pair was").out, listed.out);
  const auto windows = run_on("\"the was the was the\"\n", command + "--max-length 5 --stride 1");
  EXPECT_EQ(Json::parse(windows.out).at("overflow").size(), 1u) << windows.err;
  const auto padded = run_on("\"the\"\n", command + "--pad-to 5 --padding-side left");
  EXPECT_EQ(Json::parse(padded.out).at("attention_mask"), Json::array({0, 0, 1, 1, 1})) << padded.err;
}

TEST(Tokenize, CountsBytesOnRequestAndLeavesUserTextPlain) {
  const std::string command = "tokenize --tokenizer " + kByteLevel + " --json-lines ";
  EXPECT_EQ(Json::parse(run_on("\"\u00E9<s>\"\n", command + "--offsets bytes").out).at("offsets").back(),
            Json::array({2, 5}));
  EXPECT_EQ(Json::parse(run_on("\"\u00E9<s>\"\n", command).out).at("offsets").back(), Json::array({1, 4}));
  const Json plain = Json::parse(run_on("\"<s>\"\n", command + "--no-parse-special").out);
  EXPECT_GT(plain.at("ids").size(), 1u);
}

TEST(Tokenize, SaysWhatIsWrongAndWhere) {
  const std::string command = "tokenize --tokenizer " + kWordPiece + " --json-lines --add-special ";
  const auto stride = run_on("\"the\"\n", command + "--max-length 6 --stride 4");
  EXPECT_EQ(stride.exit_code, 2);
  EXPECT_THAT(stride.err, AllOf(HasSubstr("stride 4"), HasSubstr("max_length 6"), HasSubstr("2 special tokens")));
  const auto line = run_on("\"a\"\n\"b\"\n7\n", command);
  EXPECT_EQ(line.exit_code, 2);
  EXPECT_THAT(line.err, HasSubstr("stdin, line 3"));
  EXPECT_EQ(lines_of(line.out).size(), 2u) << "the lines before are there";
  EXPECT_EQ(run_on("", command + "--truncation middle --max-length 9").exit_code, 2);
  EXPECT_EQ(run_on("", command + "--stride 3").exit_code, 2);
  EXPECT_EQ(run_on("", command + "--offsets words").exit_code, 2);
}

TEST(Detokenize, GivesTheTextBack) {
  const std::string text = "Alice  was\\t\u00E9\u4E2D \U0001F601 don't !";
  const auto ids = run_on("\"" + text + "\"\n", "tokenize --tokenizer " + kByteLevel + " --json-lines");
  EXPECT_EQ(run_on(ids.out, "detokenize --tokenizer " + kByteLevel).out, "\"" + text + "\"\n");
  EXPECT_THAT(run_on(ids.out, "detokenize --clean-up-tokenization-spaces true --tokenizer " + kByteLevel).out,
              HasSubstr("don't!"));
  const auto pieces = run_on("\"the, was.\"\n", "tokenize --tokenizer " + kWordPiece + " --json-lines --add-special");
  EXPECT_EQ(run_on(pieces.out, "detokenize --skip-special --tokenizer " + kWordPiece).out, "\"the, was.\"\n");
  EXPECT_EQ(
      run_on(pieces.out, "detokenize --skip-special --clean-up-tokenization-spaces false --tokenizer " + kWordPiece)
          .out,
      "\"the , was .\"\n");
  EXPECT_EQ(run_on("[1]\n", "detokenize --clean-up-tokenization-spaces maybe --tokenizer " + kWordPiece).exit_code, 2);
}

// Lower-casing must not ask the environment (FR-10).
TEST(Tokenize, IsTheSameUnderEveryLocale) {
  const std::string command = "tokenize --tokenizer " + kWordPiece + " --json-lines";
  const TemporaryFolder folder;
  write_file_atomically(folder.path("input"), "\"I \u0130 \u0391\u03A3 TITLE\"\n");
  const auto plain = run_on("\"I \u0130 \u0391\u03A3 TITLE\"\n", command);
  for (const char* locale : {"tr_TR.UTF-8", "el_GR.UTF-8", "C"}) {
    const auto result = test::run_command(
        fmt::format("LC_ALL={0} LANG={0} {1} {2} < {3}", locale, test::program(), command, folder.path("input")));
    EXPECT_EQ(result.out, plain.out) << locale;
  }
}

}  // namespace
}  // namespace palimpsest
