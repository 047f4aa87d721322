// SPDX-License-Identifier: Apache-2.0
// Dialogues as documents of steps: before each turn of the answering speaker the model reads the end of the history,
// then writes the turn (ALGORITHMS 3.4, dialogue fine-tuning; M20).
#pragma once

#include <cstdint>
#include <string>

#include "palimpsest/data/dialogue.h"
#include "palimpsest/data/step_corpus.h"

namespace palimpsest::data {

/// How a turn is written in a history: "A: text", then a blank line.
std::string turn_text(const std::string& role, const std::string& text);

struct DialogueStepOptions {
  int64_t window = 128;         ///< tokens of a row with its bos and eos: at most window - 2 of the history
  bool authors_window = false;  ///< the authors' slice, which keeps two more (rows of window + 2 tokens)
  int64_t longest_write = 0;    ///< tokens of an answer at most, the rest is cut off; 0: all
  std::string answers = "B";    ///< whose turns are written; "both": everybody's but the first
};

/// Reads all dialogues of a reader. A document holds persona lines, then every turn as turn_text writes it; the turn's
/// text stands once more behind the history, as a model writes it (no space before, no role). A step reads the end of
/// the history, writes the turn's own text without role and blank line, and has the turn's number, from 0, as its
/// place. Errors: those of the reader; an input error where there is no step at all.
StepCorpus prepare_dialogues(DialogueReader& reader, const TokenizeFunction& tokenize,
                             const DialogueStepOptions& options);

}  // namespace palimpsest::data
