// SPDX-License-Identifier: Apache-2.0
// A conversation's rows: how turns become what the memory reads, and how much of that it gives back.
#include "palimpsest/serve/chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "palimpsest/core/error.h"
#include "palimpsest/train/metrics.h"
#include "tests/support/paths.h"
#include "tests/support/tensors.h"

namespace palimpsest::serve {
namespace {

using ::testing::HasSubstr;

/// The model that lies in the project: windows of 32 tokens, tasks recall and current.
const checkpoint::ModelFolder& folder() {
  static const checkpoint::ModelFolder loaded =
      checkpoint::load_model(test::source_folder() + "/models/recall-small", {.widen = true});
  return loaded;
}

Chat small_chat() {
  ChatOptions options;
  options.generation.max_new_tokens = 6;
  return {folder(), options};
}

const std::vector<std::string> kSaid = {"In the beginning God created the heaven and the earth.",
                                        "And the earth was without form, and void.",
                                        "And God said, Let there be light."};

struct Talk {
  std::vector<Exchange> exchanges;
  std::vector<Moment> moments;
  Session session;
};

Talk talk_with(const Chat& chat) {
  Talk talk{{}, {}, chat.begin()};
  for (const auto& text : kSaid) {
    const Reply reply = chat.answer(talk.session, text);
    talk.exchanges.push_back({text, reply.text});
    talk.moments.push_back(talk.session.now());
  }
  return talk;
}

TEST(Chat, KeepsWhatTheMemoryReadApartFromTheAnswer) {
  const Chat chat = small_chat();
  const Talk talk = talk_with(chat);
  for (size_t i = 0; i < talk.moments.size(); ++i) {
    const std::string read = chat.text_of(talk.moments[i].read), context = chat.text_of(talk.moments[i].context);
    EXPECT_TRUE(read.ends_with("A: " + kSaid[i] + "\n\n") || ("A: " + kSaid[i] + "\n\n").ends_with(read)) << read;
    EXPECT_TRUE(context.ends_with("B: " + *talk.exchanges[i].reply + "\n\n")) << context;
    EXPECT_LE(talk.moments[i].read.size(), 32U);
    EXPECT_EQ(talk.session.before(2 - static_cast<int64_t>(i))->read, talk.moments[i].read);
  }
  EXPECT_EQ(talk.moments.back().read.size(), 32U) << "segments of a text were trained without a frame: all of a window";
  EXPECT_EQ(talk.session.before(3)->turns, 0);
  EXPECT_EQ(talk.session.before(4), nullptr);
}

TEST(Chat, AReplayedConversationMakesTheSameRows) {
  const Chat chat = small_chat();
  const Talk talk = talk_with(chat);
  const auto told = chat.replay(talk.exchanges);
  std::vector<Exchange> mine;
  for (const auto& text : kSaid) mine.push_back({text});
  const auto anew = chat.replay(mine);
  ASSERT_EQ(told.size(), talk.moments.size());
  ASSERT_EQ(anew.size(), talk.moments.size());
  for (size_t i = 0; i < told.size(); ++i) {
    for (const auto* moment : {&told[i], &anew[i]}) {
      EXPECT_EQ(moment->read, talk.moments[i].read);
      EXPECT_EQ(moment->context, talk.moments[i].context);
      EXPECT_EQ(moment->turns, talk.moments[i].turns);
    }
    EXPECT_FALSE(told[i].memory.slots.defined()) << "nothing was computed";
    test::expect_identical(anew[i].memory.slots, talk.moments[i].memory.slots, "memory");
  }
}

TEST(Chat, TheMemoryGivesBackWhatWasReadLastAtItsPlace) {
  const Chat chat = small_chat();
  const Talk talk = talk_with(chat);
  EXPECT_EQ(chat.recall_tasks(), (std::vector<std::string>{"current", "recall"}));
  const Recalled current = chat.recall(talk.session, {});
  EXPECT_EQ(current.task, "current");
  EXPECT_EQ(current.back, 0);
  const std::vector<int32_t>& read = talk.session.now().read;
  const auto tokens = static_cast<int64_t>(read.size());
  EXPECT_GE(train::equal_places(read, current.ids), tokens * 9 / 10);
  std::vector<int32_t> shifted(read.begin() + 1, read.end());
  EXPECT_LE(train::equal_places(shifted, current.ids), tokens / 2) << "the same tokens a place further do not count";
  // The task of the exchange before was trained beside the row that was read last.
  RecallOptions options;
  options.task = "recall";
  options.beside_row = true;
  const Recalled before = chat.recall(talk.session, options);
  EXPECT_EQ(before.back, 1);
  EXPECT_GE(train::equal_places(talk.session.before(1)->read, before.ids), tokens / 2);
  options.task = "respond";
  EXPECT_THROW(chat.recall(talk.session, options), Error);
  EXPECT_THROW(chat.recall(chat.begin(), {}), Error);
}

TEST(Chat, BesideTheRowNeedsTheMemoryBeforeIt) {
  const Chat chat = small_chat();
  Session session = chat.begin(0);
  chat.answer(session, kSaid[0]);
  RecallOptions options;
  options.beside_row = true;
  EXPECT_THROW(chat.recall(session, options), Error);
}

TEST(Chat, WithoutALimitAnAnswerFitsThePositionTable) {
  const Chat chat(folder(), {});  // its table ends at 64
  Session session = chat.begin();
  EXPECT_LE(chat.answer(session, kSaid[0]).tokens, 63);
}

TEST(Conversation, IsReadInEveryFormThatItIsWrittenIn) {
  const std::string cases[] = {
      "A: Hello.\n\nB: Hi,\nyou.\n\nA: > B: no.\n\nB: Oh.\n\n",
      "/help lists the commands; Ctrl-D ends\n> Hello.\nHi,\nyou.\n> /stats\n2 turns\n> > B: no.\nOh.\n",
  };
  for (const auto& text : cases) {
    const auto exchanges = parse_conversation(text, 4, "talk.txt");
    ASSERT_EQ(exchanges.size(), 2U) << text;
    EXPECT_EQ(exchanges[0].said, "Hello.");
    EXPECT_EQ(*exchanges[0].reply, "Hi,\nyou.");
    EXPECT_EQ(exchanges[1].said, "> B: no.");
    EXPECT_EQ(*exchanges[1].reply, "Oh.");
  }
  const auto turns = parse_conversation("Hello.\r\nA: I mimic.\nYes?\n/me bows\n", 4, "");
  EXPECT_EQ(turns[0].said, "Hello.");
  EXPECT_EQ(*turns[0].reply, "A: I mimic.");
  EXPECT_EQ(*turns[1].reply, "/me bows");
  const auto mine = parse_conversation("Hello.\n\n/stats\n//slash\n", 4, "");
  EXPECT_EQ(mine[1].said, "/slash");
  EXPECT_FALSE(mine[1].reply);
}

TEST(Conversation, OfAnotherLengthIsRefusedWithBothCounts) {
  try {
    parse_conversation("One.\nTwo.\nThree.\n", 4, "talk.txt");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.what(), HasSubstr("the text has 3 exchanges, the session 2"));
    EXPECT_THAT(error.what(), HasSubstr("talk.txt"));
  }
}

}  // namespace
}  // namespace palimpsest::serve
