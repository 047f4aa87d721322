// SPDX-License-Identifier: Apache-2.0
// `palimpsest chat` and `recall` from outside, in a pipe: sessions, commands, what survives a kill.
#include <gmock/gmock.h>

#include <filesystem>

#include "palimpsest/checkpoint/model_folder.h"
#include "palimpsest/checkpoint/safetensors.h"
#include "palimpsest/core/files.h"
#include "palimpsest/serve/session.h"
#include "tests/support/paths.h"

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class ChatProgram : public testing::Test {
 protected:
  static std::string model() { return test::source_folder() + "/models/recall-small"; }
  std::string session() const { return folder_.path("talk.session"); }
  test::CommandResult chat(const std::string& lines, const std::string& flags = "") const {
    return test::run_command("printf '" + lines + "' | " + test::program() + " chat --quiet --model " + model() +
                             " --max-new-tokens 8 " + flags);
  }
  test::CommandResult recall(const std::string& path) const {
    return test::run_command(test::program() + " recall --quiet --model " + model() + " --session " + path);
  }
  test::TemporaryFolder folder_;
};

TEST_F(ChatProgram, AnswersEachLineWithOne) {
  const auto result = chat("Hello.\\nWho are you?\\n\\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2) << result.out;
  EXPECT_EQ(chat("Hello.\\nWho are you?\\n").out, result.out) << "the same again";
}

TEST_F(ChatProgram, AConversationInTwoSittingsIsOneConversation) {
  const std::string kept = " --session " + session();
  const auto whole = chat("One.\\nTwo.\\nThree.\\n");
  const auto first = chat("One.\\n", kept), rest = chat("Two.\\nThree.\\n", kept);
  EXPECT_EQ(first.out + rest.out, whole.out);
}

TEST_F(ChatProgram, TheFileStaysSmallAndHoldsEveryRewind) {
  const std::string kept = " --session " + session() + " --rewinds 3";
  std::string lines;
  uintmax_t size = 0;
  for (int turn = 0; turn < 24; ++turn) lines += "This is turn " + std::to_string(turn) + ".\\n";
  ASSERT_EQ(chat(lines, kept).exit_code, 0);
  size = fs::file_size(session());
  ASSERT_EQ(chat(lines, kept).exit_code, 0);
  EXPECT_EQ(fs::file_size(session()), size);
  const auto back = chat("/rewind 3\\n/rewind\\n", kept);
  EXPECT_EQ(back.exit_code, 2);
  EXPECT_THAT(back.out, HasSubstr("90 turns were said; 0 more"));
  EXPECT_THAT(back.err, HasSubstr("cannot go back 1 turns"));
}

TEST_F(ChatProgram, ARewindAndAForkGoTheirOwnWay) {
  const std::string kept = " --session " + session(), fork = folder_.path("fork.session");
  chat("One.\\nTwo.\\n", kept);
  const auto after = chat("Three.\\n", kept).out;
  EXPECT_EQ(chat("/fork " + fork + "\\n/rewind\\nThree.\\n", kept).exit_code, 0);
  const auto again = chat("/rewind\\nThree.\\n", kept).out;
  EXPECT_THAT(again, HasSubstr(after));
  EXPECT_EQ(chat("Four.\\n", kept).out, chat("Four.\\n", " --session " + fork).out);
}

TEST_F(ChatProgram, WhatIsRecalledComesFromTheMemoryAlone) {
  ASSERT_EQ(chat("In the beginning was the word.\\n", " --session " + session()).exit_code, 0);
  const auto told = recall(session());
  ASSERT_EQ(told.exit_code, 0) << told.err;
  EXPECT_GT(told.out.size(), 5U);
  // The same file with its context blanked.
  const auto loaded = checkpoint::load_model(model(), {.widen = true});
  auto talk = serve::Session::load(session(), serve::model_fingerprint(*loaded.model));
  serve::Moment blank = talk.now();
  std::fill(blank.context.begin(), blank.context.end(), 7);
  talk.advance(blank);
  talk.save(folder_.path("blank.session"));
  EXPECT_EQ(recall(folder_.path("blank.session")).out, told.out);
}

TEST_F(ChatProgram, RefusesAnotherModelsSessionAndSaysWhy) {
  ASSERT_EQ(chat("Hello.\\n", " --session " + session()).exit_code, 0);
  const std::string bytes = read_file(session());
  const auto other =
      test::run_command(test::program() + " convert " + model() + " --memory membart:8 --out " + folder_.path("other"));
  ASSERT_EQ(other.exit_code, 0) << other.err;
  const auto result = test::run_command("echo Hello | " + test::program() + " chat --model " + folder_.path("other") +
                                        " --session " + session());
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("another model"));
  EXPECT_EQ(read_file(session()), bytes);
}

TEST_F(ChatProgram, AKillLeavesTheLastFinishedTurn) {
  const std::string kept = " --session " + session();
  ASSERT_EQ(chat("Zero.\\n", kept).exit_code, 0);
  const auto loaded = checkpoint::load_model(model(), {.widen = true});
  const std::string fingerprint = serve::model_fingerprint(*loaded.model);
  int64_t turns = 2;
  for (int kill = 0; kill < 8; ++kill) {
    // Turns go on until the process dies.
    test::run_command("(while true; do echo And then?; done) | timeout -s KILL 0." + std::to_string(35 + 9 * kill) +
                      " " + test::program() + " chat --quiet --model " + model() + " --max-new-tokens 4" + kept +
                      " > /dev/null");
    const auto talk = serve::Session::load(session(), fingerprint);
    EXPECT_GE(talk.now().turns, turns);
    turns = talk.now().turns;
  }
  EXPECT_GT(turns, 2);
  EXPECT_EQ(chat("Hello again.\\n", kept).exit_code, 0);
}

TEST_F(ChatProgram, SaysWhatACommandNeeds) {
  const std::pair<std::string, const char*> cases[] = {
      {"/fork\\n", "a file is needed"}, {"/rewnd\\n", "/rewind"}, {"/rewind many\\n", "no number of turns"}};
  for (const auto& [line, part] : cases) {
    const auto result = chat(line);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(part));
  }
  EXPECT_THAT(chat("/help\\n/stats\\n/memory\\n").out, HasSubstr("nothing is remembered yet"));
}

}  // namespace
}  // namespace palimpsest
