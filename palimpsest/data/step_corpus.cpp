// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/step_corpus.h"

#include "palimpsest/core/log.h"

namespace palimpsest::data {

std::string StepCorpus::said_of_cuts() const {
  if (cut_tokens == 0) return "";
  return fmt::format("too long for the rows: the ends of {} sources and {} targets were cut off, {} tokens in all",
                     format_count(cut_reads), format_count(cut_writes), format_count(cut_tokens));
}

}  // namespace palimpsest::data
