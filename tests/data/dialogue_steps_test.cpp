// SPDX-License-Identifier: Apache-2.0
// Steps of dialogues: what is read and written at each, whatever the window.
#include "palimpsest/data/dialogue_steps.h"

#include <gtest/gtest.h>

#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "tests/support/paths.h"

namespace palimpsest::data {
namespace {

const TokenizeFunction kBytes{[](std::string_view text) { return std::vector<int32_t>(text.begin(), text.end()); },
                              "bytes"};

std::string text_of(const StepCorpus& dialogues, const Span& span) {
  const auto tokens = dialogues.corpus->tokens(span.document);
  return {tokens.begin() + span.begin, tokens.begin() + span.end};
}

class DialogueSteps : public testing::Test {
 protected:
  StepCorpus read(const DialogueStepOptions& options, const std::string& personas = "off") {
    write_file_atomically(
        folder_.path("d.jsonl"),
        R"({"turns": [{"role": "A", "text": "Hello."}, {"role": "B", "text": "Hi, who is it?"}, {"role": "A", "text": "Me."}, {"role": "B", "text": "Oh."}]})"
        "\n"
        R"({"turns": [{"role": "A", "text": "Alone."}]})"
        "\n");
    CorpusOptions corpus;
    corpus.data = {folder_.path("d.jsonl")};
    DialogueOptions dialogue;
    dialogue.personas = personas;
    DialogueReader reader(corpus, dialogue);
    return prepare_dialogues(reader, kBytes, options);
  }
  test::TemporaryFolder folder_;
};

TEST_F(DialogueSteps, EachAnswerIsWrittenFromWhatWasSaidBefore) {
  const auto dialogues = read({.window = 100});
  ASSERT_EQ(dialogues.steps.size(), 1U);
  EXPECT_EQ(dialogues.left_out, 1);
  const auto& steps = dialogues.steps[0];
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(text_of(dialogues, steps[0].read), "A: Hello.\n\n");
  EXPECT_EQ(text_of(dialogues, steps[0].write), "Hi, who is it?");
  EXPECT_EQ(text_of(dialogues, steps[1].read), "A: Hello.\n\nB: Hi, who is it?\n\nA: Me.\n\n");
  EXPECT_EQ(text_of(dialogues, steps[1].write), "Oh.");
  EXPECT_EQ(steps[1].place, 3);
}

TEST_F(DialogueSteps, TheWindowKeepsTheNewestAndNoMoreThanAsked) {  // FR-65, M20
  for (const int64_t window : {3, 5, 12, 20, 40}) {
    const auto dialogues = read({.window = window});
    for (const Step& step : dialogues.steps[0]) EXPECT_LE(step.read.size() + 2, window);
    const std::string whole = "A: Hello.\n\nB: Hi, who is it?\n\nA: Me.\n\n";
    EXPECT_EQ(text_of(dialogues, dialogues.steps[0][1].read),
              whole.substr(whole.size() - std::min<size_t>(whole.size(), static_cast<size_t>(window - 2))));
    const auto theirs = read({.window = window, .authors_window = true});
    EXPECT_LE(theirs.steps[0][1].read.size(), window);
  }
  EXPECT_THROW(read({.window = 2}), Error);
}

TEST_F(DialogueSteps, BothSpeakersCanBeLearnt) {
  const auto dialogues = read({.window = 100, .answers = "both"});
  ASSERT_EQ(dialogues.steps[0].size(), 3U);
  EXPECT_EQ(text_of(dialogues, dialogues.steps[0][1].write), "Me.");
}

TEST_F(DialogueSteps, WithoutAnAnswerThereIsAnError) { EXPECT_THROW(read({.window = 100, .answers = "C"}), Error); }

}  // namespace
}  // namespace palimpsest::data
