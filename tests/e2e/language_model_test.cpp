// SPDX-License-Identifier: Apache-2.0
// The program from outside: a GPT-2 with bounded attention is trained, measured, streamed and written with past its
// positions; stock folders get other attention.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "palimpsest/core/files.h"
#include "palimpsest/core/json.h"
#include "palimpsest/core/random.h"
#include "tests/support/paths.h"

namespace palimpsest {
namespace {

using test::run_program;

Json last_json(const std::string& out) {
  std::stringstream lines(out);
  Json json;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) json = Json::parse(line);
  }
  return json;
}

/// A run of a few steps for all tests of this file, and a text of one document.
class LanguageModelProgram : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::TemporaryFolder>();
    Random random(5);
    std::string text;
    for (int w = 0; w < 900; ++w) {
      for (int64_t c = 1 + random.below(5); c >= 0; --c) text += static_cast<char>('a' + random.below(9));
      text += w % 30 == 29 ? '\n' : ' ';
    }
    write_file_atomically(folder_->path("text.txt"), text);
    const auto trained =
        run_program("train " + test::source_folder() + "/recipes/lm.toml --data " + folder_->path("text.txt") +
                    " --document file --vocab-size 300 --segment 24 --max-position-embeddings 24 --positions "
                    "segment:24 --d-model 16 "
                    "--heads 2 --ffn-dim 32 --decoder-layers 2 --lanes 2 --max-steps 3 --eval-steps 3 --attention "
                    "0=window:7,1=abc:5 --output-dir " +
                    folder_->path("run"));
    ASSERT_EQ(trained.exit_code, 0) << trained.err;
    EXPECT_NE(trained.err.find("attention mechanisms learn"), std::string::npos) << trained.err;
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static std::string path(const std::string& name) { return folder_->path(name); }
  static Json eval(const std::string& flags) {
    const auto result = run_program("eval --json --model " + path("run/checkpoint-3") + " --data " + path("text.txt") +
                                    " --document file " + flags);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.exit_code == 0 ? last_json(result.out) : Json();
  }
  static std::unique_ptr<test::TemporaryFolder> folder_;
};
std::unique_ptr<test::TemporaryFolder> LanguageModelProgram::folder_;

TEST_F(LanguageModelProgram, StreamingCarryingAndWindowsScoreTheSameTokens) {
  const Json carried = eval("");
  EXPECT_EQ(carried["carry"], "keep");
  const auto tokens = carried["targets"].get<int64_t>();
  EXPECT_GT(tokens, 1000);
  for (const char* flags : {"--segment 7", "--segment 100 --batch 1"}) {
    const Json other = eval(flags);
    EXPECT_EQ(other["targets"], tokens);
    EXPECT_NEAR(other["nll"].get<double>(), carried["nll"].get<double>(), 1e-5 * carried["nll"].get<double>());
  }
  for (const char* flags : {"--carry reset", "--carry reset --overlap 20", "--overlap 9"}) {
    const Json windows = eval(flags);
    EXPECT_EQ(windows["targets"], tokens) << flags;
    EXPECT_EQ(windows["carry"], "reset");
  }
  const auto streamed =
      run_program("stream --json --model " + path("run/checkpoint-3") + " " + path("text.txt") + " --report-every 200");
  ASSERT_EQ(streamed.exit_code, 0) << streamed.err;
  const Json end = last_json(streamed.out), start = Json::parse(streamed.out.substr(0, streamed.out.find('\n')));
  EXPECT_EQ(end["targets"], tokens);
  EXPECT_NEAR(end["nll"].get<double>(), carried["nll"].get<double>(), 1e-5 * carried["nll"].get<double>());
  EXPECT_EQ(end["state_bytes"], start["state_bytes"]);
}

TEST_F(LanguageModelProgram, WritesPastItsPositions) {
  const auto written = run_program("generate --json --model " + path("run/checkpoint-3") +
                                   " --text abc --min-new-tokens 100 --max-new-tokens 100");
  ASSERT_EQ(written.exit_code, 0) << written.err;
  EXPECT_GE(last_json(written.out)["sequences"][0].size(), 100U);
  // The same weights with positions that end, and with attention that learns nothing.
  const auto ends = run_program("generate --json --positions absolute --attention window:7 --model " +
                                path("run/checkpoint-3") + " --text abc --min-new-tokens 100 --max-new-tokens 100");
  EXPECT_EQ(ends.exit_code, 2);
  const auto carried = run_program("eval --positions absolute --carry keep --model " + path("run/checkpoint-3") +
                                   " --document file --data " + path("text.txt"));
  EXPECT_EQ(carried.exit_code, 2);
  EXPECT_NE(carried.err.find("--positions segment:24"), std::string::npos) << carried.err;
}

TEST_F(LanguageModelProgram, AStockFolderGetsOtherAttentionAndSaysWhatIsNew) {
  const std::string stock = test::fixture("folders/gpt2_plain");
  const auto made = run_program("convert --json " + stock + " --attention abc:4 --positions none --out " + path("abc"));
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Json said = last_json(made.out);
  EXPECT_EQ(said["initialised"], Json({"transformer.attention.abc_4_control.weight"}));
  EXPECT_EQ(said["attention"], "abc:4");
  const auto back =
      run_program("convert --json " + path("abc") + " --attention dense --positions absolute --out " + path("back"));
  ASSERT_EQ(back.exit_code, 0) << back.err;
  EXPECT_EQ(last_json(back.out)["dropped"], said["initialised"]);
  EXPECT_FALSE(read_json(path("back/config.json")).contains("palimpsest"));
  const auto inspected = run_program("inspect --json " + path("abc"));
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_NE(inspected.out.find("attention_parameters"), std::string::npos);
  for (const char* flags : {"--attention cluster:4", "--attention window", "--attention 0=dense",
                            "--positions segment:0", "--positions segment:9999999", "--cross-attention abc:4"}) {
    const auto refused = run_program("convert " + stock + " " + flags + " --out " + path("refused"));
    EXPECT_EQ(refused.exit_code, 2) << flags;
    EXPECT_NE(refused.err.find("fix:"), std::string::npos) << flags << ": " << refused.err;
    EXPECT_FALSE(std::filesystem::exists(path("refused"))) << flags;
  }
}

TEST_F(LanguageModelProgram, WhatALanguageModelIsNotAskedIsRefused) {
  const std::string model = "--model " + path("run/checkpoint-3") + " --data " + path("text.txt") + " --document file ";
  for (const std::string& flags :
       {model + "--carry other", model + "--carry keep --overlap 3", model + "--task recall"})
    EXPECT_EQ(run_program("eval " + flags).exit_code, 2) << flags;
  EXPECT_EQ(run_program("stream --recall --model " + path("run/checkpoint-3") + " " + path("text.txt")).exit_code, 2);
  const auto bart = run_program("train " + test::source_folder() + "/recipes/lm.toml --family bart --data " +
                                path("text.txt") + " --attention dense --output-dir " + path("bart"));
  EXPECT_EQ(bart.exit_code, 2);
  EXPECT_NE(bart.err.find("gpt2"), std::string::npos) << bart.err;
}

}  // namespace
}  // namespace palimpsest
