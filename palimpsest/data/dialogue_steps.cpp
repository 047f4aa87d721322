// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/dialogue_steps.h"

#include <algorithm>

#include "palimpsest/core/error.h"

namespace palimpsest::data {

std::string turn_text(const std::string& role, const std::string& text) {
  return (role.empty() ? text : role + ": " + text) + "\n\n";
}

namespace {

/// The tokens of one dialogue while it is put together.
struct TokenizedDialogue {
  std::vector<int32_t> history, replies;
  std::vector<Step> steps;  ///< `write` counts within replies until the history is complete
  int64_t cut = 0, cut_tokens = 0;
};

TokenizedDialogue document_of(const Dialogue& dialogue, const TokenizeFunction& tokenize,
                              const DialogueStepOptions& options) {
  TokenizedDialogue document;
  const auto add = [](std::vector<int32_t>& to, const std::vector<int32_t>& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  for (const Persona& persona : dialogue.personas) {
    for (const std::string& line : persona.lines)
      add(document.history, tokenize.encode(turn_text(persona.role + "'s persona", line)));
  }
  const int64_t room = std::max<int64_t>(1, options.window - (options.authors_window ? 0 : 2));
  for (size_t i = 0; i < dialogue.turns.size(); ++i) {
    const Turn& turn = dialogue.turns[i];
    const bool answers = options.answers == "both" ? true : turn.role == options.answers;
    if (answers && !document.history.empty()) {
      auto reply = tokenize.encode(turn.text);
      if (const auto size = static_cast<int64_t>(reply.size());
          options.longest_write > 0 && size > options.longest_write) {
        reply.resize(static_cast<size_t>(options.longest_write));
        ++document.cut;
        document.cut_tokens += size - options.longest_write;
      }
      const auto end = static_cast<int64_t>(document.history.size());
      const auto begin = static_cast<int64_t>(document.replies.size());
      document.steps.push_back({.read = {.begin = std::max<int64_t>(0, end - room), .end = end},
                                .write = {.begin = begin, .end = begin + static_cast<int64_t>(reply.size())},
                                .place = static_cast<int64_t>(i),
                                .session = turn.session});
      add(document.replies, reply);
    }
    add(document.history, tokenize.encode(turn_text(turn.role, turn.text)));
  }
  return document;
}

}  // namespace

StepCorpus prepare_dialogues(DialogueReader& reader, const TokenizeFunction& tokenize,
                             const DialogueStepOptions& options) {
  if (options.window < 3)
    throw usage_error(fmt::format("a window of {} tokens holds no history", options.window), "", "give 3 or more");
  StepCorpus result;
  std::vector<std::vector<int32_t>> documents;
  for (Dialogue dialogue; reader.next(dialogue);) {
    TokenizedDialogue document = document_of(dialogue, tokenize, options);
    if (document.steps.empty()) {
      ++result.left_out;
      continue;
    }
    result.cut_writes += document.cut;
    result.cut_tokens += document.cut_tokens;
    const auto number = static_cast<int64_t>(documents.size());
    const auto shift = static_cast<int64_t>(document.history.size());
    for (Step& step : document.steps) {
      step.read.document = step.write.document = number;
      step.write.begin += shift;
      step.write.end += shift;
    }
    document.history.insert(document.history.end(), document.replies.begin(), document.replies.end());
    documents.push_back(std::move(document.history));
    result.steps.push_back(std::move(document.steps));
    result.names.push_back(dialogue.place);
  }
  if (documents.empty()) {
    throw input_error("there is no turn to write in any dialogue", reader.files().empty() ? "" : reader.files().front(),
                      fmt::format("turns of the speaker {} are what is learnt", options.answers));
  }
  result.corpus = corpus_of(documents);
  return result;
}

}  // namespace palimpsest::data
