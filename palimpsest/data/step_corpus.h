// SPDX-License-Identifier: Apache-2.0
// Tokenized documents whose steps are given, not windows of a text: dialogues and aligned lines.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "palimpsest/data/corpus.h"
#include "palimpsest/data/step_plan.h"

namespace palimpsest::data {

struct StepCorpus {
  std::shared_ptr<const Corpus> corpus;
  std::vector<std::vector<Step>> steps;   ///< by document, in order
  std::vector<std::string> names;         ///< by document: where it is from
  int64_t left_out = 0;                   ///< documents without a step
  int64_t cut_reads = 0, cut_writes = 0;  ///< steps of which something was cut off, to fit the rows
  int64_t cut_tokens = 0;                 ///< in all
  /// One line that says what was cut, or "".
  std::string said_of_cuts() const;
};

}  // namespace palimpsest::data
