// SPDX-License-Identifier: Apache-2.0
// `palimpsest chat` and `recall` from outside, in a pipe: sessions, commands, broken files. kill_test.cpp kills it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "palimpsest/checkpoint/model_folder.h"
#include "palimpsest/checkpoint/safetensors.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/json.h"
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
  test::CommandResult recall(const std::string& path, const std::string& flags = "") const {
    return test::run_command(test::program() + " recall --quiet --model " + model() + " --session " + path + " " +
                             flags);
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

TEST_F(ChatProgram, RecallStatesTheShareGivenBack) {
  const std::string said = "In the beginning was the word.\nAnd the word was with God.\n";
  const auto talk = chat("In the beginning was the word.\\nAnd the word was with God.\\n", " --session " + session());
  ASSERT_EQ(talk.exit_code, 0) << talk.err;
  const auto told = recall(session(), "--json");
  ASSERT_EQ(told.exit_code, 0) << told.err;
  const Json json = Json::parse(told.out);
  ASSERT_EQ(json["recalled"].size(), 2U) << "tasks current and recall";
  EXPECT_EQ(json["recalled"][0]["task"], "current");
  EXPECT_EQ(json["recalled"][0]["text"], json["text"]);
  EXPECT_GE(json["recalled"][0]["share"].get<double>(), 0.9);
  EXPECT_EQ(json["recalled"][0]["share"].get<double>(),
            json["recalled"][0]["recovered"].get<double>() / json["recalled"][0]["tokens"].get<double>());
  EXPECT_EQ(json["recalled"][1]["exchanges_before"], 1);
  EXPECT_THAT(recall(session()).out, HasSubstr("current, read last: "));
  // The conversation's text says the same: the lines that were said with chat's own flags, and both sides.
  write_file_atomically(folder_.path("said.txt"), said);
  const auto against = recall(session(), "--json --max-new-tokens 8 --against " + folder_.path("said.txt"));
  ASSERT_EQ(against.exit_code, 0) << against.err;
  EXPECT_EQ(against.out, told.out);
  // Where the file keeps no moments, only the text knows what earlier exchanges read.
  ASSERT_EQ(chat("In the beginning was the word.\\nAnd the word was with God.\\n",
                 " --rewinds 0 --new-session --session " + session())
                .exit_code,
            0);
  EXPECT_FALSE(Json::parse(recall(session(), "--json").out)["recalled"][1].contains("share"));
  EXPECT_THAT(recall(session()).out, HasSubstr("give --against FILE"));
  EXPECT_EQ(recall(session(), "--json --max-new-tokens 8 --against " + folder_.path("said.txt")).out, told.out);
}

TEST_F(ChatProgram, RecallRefusesAnotherConversationsText) {
  ASSERT_EQ(chat("Hello.\\n", " --session " + session()).exit_code, 0);
  const std::pair<const char*, const char*> cases[] = {{"Hello.\nAnd again.\nAnd more.\n", "the session 1"},
                                                       {"A: Hello.\n\nB: What?\n", "does not end as the session does"}};
  for (const auto& [text, part] : cases) {
    write_file_atomically(folder_.path("other.txt"), text);
    const auto result = recall(session(), "--against " + folder_.path("other.txt"));
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(part));
    EXPECT_EQ(result.out, "");
  }
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

TEST_F(ChatProgram, ABrokenSessionIsRefusedAndLeftAsItIs) {
  ASSERT_EQ(chat("Hello.\\nHello?\\n", " --session " + session()).exit_code, 0);
  const std::string good = read_file(session());
  const auto flipped = [&](size_t place) {
    std::string bytes = good;
    bytes[place] = static_cast<char>(bytes[place] ^ 1);
    return bytes;
  };
  const std::string cases[] = {
      "",
      good.substr(0, 7),
      good.substr(0, good.size() / 2),
      good + "more",
      std::string(8, '\xff') + good.substr(8),  // a header of 2^64 - 1 bytes
      good.substr(0, 8) + std::string(good.size() - 8, '{'),
      flipped(0),
      flipped(40),
      flipped(good.size() - 1),
      read_file(test::fixture("membart_tiny_a.safetensors")).substr(0, 400) + good.substr(400)};
  for (const std::string& bytes : cases) {
    write_file_atomically(session(), bytes);
    for (const auto& result :
         {chat("Hello.\\n", " --session " + session()), test::run_program("inspect " + session())}) {
      EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
      EXPECT_THAT(result.err, HasSubstr("error: "));
      EXPECT_EQ(result.out, "");
    }
    EXPECT_EQ(read_file(session()), bytes);
  }
  write_file_atomically(session(), good);
  EXPECT_THAT(test::run_program("inspect " + session()).out, HasSubstr("turns: 4"));
}

TEST_F(ChatProgram, ClearsAwayWhatAKilledWriterLeft) {
  // Process numbers end below 2^22: the first writer cannot be there, the second one is this process.
  const std::string dead = session() + ".tmp-99999999-0", alive = session() + fmt::format(".tmp-{}-0", ::getpid()),
                    other = folder_.path("other.session.tmp-99999999-0");
  for (const auto& path : {dead, alive, other}) write_file_atomically(path, "half");
  ASSERT_EQ(chat("Hello.\\n", " --session " + session()).exit_code, 0);
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(alive));
  EXPECT_TRUE(fs::exists(other));
}

TEST_F(ChatProgram, InATerminalLinesAreEditedAndCtrlCStopsAnAnswer) {
  // What to wait for (the end of what was shown), and what is then typed.
  const std::vector<std::pair<std::string, std::string>> keys = {
      {"> ", "Gr\u00fc\u00dfe, Helo\u001b[Dl\r"},  // the cursor goes back: Hello
      {"> ", "dropped"},
      {"dropped", "\u0003"},  // Ctrl-C at the prompt: a new line
      {"> ", "\u001b[A\r"},   // the line before, out of the history
      {"> ", "/rewind\r"},
      {"> ", "Tell me more.\r"},
      {"more.\r\n?", "\u0003"},  // Ctrl-C while it answers
      {"> ", "/stats\r"},
      {"> ", "\u0004"}};
  write_file_atomically(folder_.path("keys.json"), Json(keys).dump());
  const auto result =
      test::run_command("OMP_NUM_THREADS=1 TERM=xterm python3 -B " + test::source_folder() + "/tests/e2e/terminal.py " +
                        folder_.path("keys.json") + " " + test::program() + " chat --quiet --model " + model() +
                        " --min-new-tokens 60 --max-new-tokens 60" + " --session " + session());
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("Gr\u00fc\u00dfe, Hel"));
  EXPECT_THAT(result.out, HasSubstr(" [stopped]"));
  EXPECT_THAT(result.out, HasSubstr("2 turns were said; 1 more"));
  EXPECT_THAT(result.out, HasSubstr("4 turns, ")) << "a stopped answer is what was said";
  const auto loaded = checkpoint::load_model(model(), {.widen = true});
  auto talk = serve::Session::load(session(), serve::model_fingerprint(*loaded.model));
  EXPECT_EQ(talk.now().turns, 4);
  talk.rewind(1);
  EXPECT_THAT(loaded.tokenizer()->decode(talk.now().read), HasSubstr("A: Gr\u00fc\u00dfe, Hello\n\n"));
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
