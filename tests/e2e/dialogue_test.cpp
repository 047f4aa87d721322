// SPDX-License-Identifier: Apache-2.0
// Dialogues from outside: a model that answers is trained for a moment, then measured by turn and by session.
#include <gmock/gmock.h>

#include <sstream>

#include "palimpsest/core/files.h"
#include "palimpsest/core/json.h"
#include "palimpsest/core/random.h"
#include "tests/support/paths.h"

namespace palimpsest {
namespace {

using test::run_program;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Dialogues : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TemporaryFolder();
    Random random(2);
    const auto sentence = [&] {
      std::string text;
      for (int64_t w = 2 + random.below(5); w > 0; --w) {
        for (int64_t c = random.below(5); c >= 0; --c) text += static_cast<char>('a' + random.below(12));
        text += w > 1 ? " " : ".";
      }
      return text;
    };
    std::string lines;
    for (int dialogue = 0; dialogue < 16; ++dialogue) {
      Json turns = Json::array();
      for (int turn = 0; turn < 4 + 4 * (dialogue % 3); ++turn)
        turns.push_back({{"role", turn % 2 == 0 ? "A" : "B"}, {"text", sentence()}, {"session", 1 + turn / 4}});
      lines += Json({{"turns", turns}}).dump() + "\n";
    }
    write_file_atomically(path("talks.jsonl"), lines);
    write_file_atomically(path("recipe.toml"),
                          "tasks = {respond = 1.0}\nvocab_size = 300\nmemory = \"membart:4\"\nd_model = 16\nheads = 2\n"
                          "ffn_dim = 24\nencoder_layers = 1\ndecoder_layers = 1\nsegment = 24\nlanes = 4\n"
                          "max_position_embeddings = 64\ntime_horizon = 2\nmax_steps = 2\neval_steps = 0\n");
    trained_ = new test::CommandResult(run_program("train " + path("recipe.toml") + " --data " + path("talks.jsonl") +
                                                   " --output-dir " + path("run")));
  }
  static void TearDownTestSuite() {
    delete folder_;
    delete trained_;
  }
  void SetUp() override { ASSERT_EQ(trained_->exit_code, 0) << trained_->err; }
  static std::string path(const std::string& name) { return folder_->path(name); }
  static test::CommandResult eval(const std::string& flags) {
    return run_program("eval --model " + path("run/checkpoint-2") + " --data " + path("talks.jsonl") + " " + flags);
  }

  static test::TemporaryFolder* folder_;
  static test::CommandResult* trained_;
};
test::TemporaryFolder* Dialogues::folder_ = nullptr;
test::CommandResult* Dialogues::trained_ = nullptr;

TEST_F(Dialogues, AreMeasuredByTurnAndBySession) {
  const auto result = eval("--compare reset --replies 7 --max-new-tokens 4 --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out), reset = json["compare"][0];
  EXPECT_EQ(json["task"], "respond");
  EXPECT_EQ(json["place"], "turn");
  ASSERT_EQ(json["by_session"].size(), 3U);
  ASSERT_EQ(json["by_place"].size(), 4U) << "turns 1; 3; 5, 7; 9, 11";
  for (const char* key : {"by_place", "by_session"}) {
    int64_t targets = 0;
    for (size_t i = 0; i < json[key].size(); ++i) {
      targets += json[key][i]["targets"].get<int64_t>();
      EXPECT_EQ(reset[key][i]["targets"], json[key][i]["targets"]);
      EXPECT_TRUE(reset[key][i]["difference"]["interval"]["nll_per_target"][1].is_number());
    }
    EXPECT_EQ(targets, json["targets"].get<int64_t>());
  }
  // The first turn of a dialogue has no history that a reset could take away.
  EXPECT_NEAR(reset["by_place"][0]["difference"]["nll_per_target"].get<double>(), 0, 1e-6);
  EXPECT_EQ(json["replies"]["count"], 7);
  EXPECT_EQ(reset["replies"]["count"], 7);
  EXPECT_EQ(reset["f1_difference"]["interval"].size(), 2U);
}

TEST_F(Dialogues, AreShownSideBySide) {
  const auto shown = eval("--compare reset,off");
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("with reset"), HasSubstr("with off"), HasSubstr("perplexity by turn"),
                               HasSubstr("perplexity by session"), HasSubstr("8 - 15")));
}

TEST_F(Dialogues, AConversationWithTheModelIsReadAsItWasTrained) {
  const std::string model = " --model " + path("run/checkpoint-2"), session = " --session " + path("s");
  const auto talk = test::run_command("printf 'Hello there, how are you?\\nFine.\\n' | " + test::program() + " chat" +
                                      model + session + " --max-new-tokens 4");
  ASSERT_EQ(talk.exit_code, 0) << talk.err;
  // A model without a recall task is asked what it would answer from its memory alone.
  const auto told = run_program("recall" + model + session + " --json");
  ASSERT_EQ(told.exit_code, 0) << told.err;
  const Json json = Json::parse(told.out);
  EXPECT_EQ(json["recalled"].size(), 1U);
  EXPECT_FALSE(json["recalled"][0].contains("share"));
}

}  // namespace
}  // namespace palimpsest
