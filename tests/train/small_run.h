// SPDX-License-Identifier: Apache-2.0
// A training run of seconds.
#pragma once

#include <string>

#include "palimpsest/core/files.h"
#include "palimpsest/core/random.h"
#include "palimpsest/train/trainer.h"
#include "tests/support/paths.h"

namespace palimpsest::train {

/// A text of invented words, a paragraph per document.
inline std::string write_text(const std::string& path, int documents = 30) {
  Random random(7);
  std::string text;
  for (int d = 0; d < documents; ++d) {
    const int64_t words = 20 + random.below(40);
    for (int64_t w = 0; w < words; ++w) {
      if (w > 0) text += ' ';
      for (int64_t c = 1 + random.below(5); c >= 0; --c) text += static_cast<char>('a' + random.below(12));
    }
    text += "\n";
  }
  write_file_atomically(path, text);
  return path;
}

/// Every task that texts have, with dropout, two micro-batches of three lanes and a phase of auxiliary steps.
inline TrainOptions small_options(const test::TemporaryFolder& folder, const std::string& run) {
  TrainOptions options;
  options.corpus.data = {write_text(folder.path("text.txt"))};
  options.corpus.document = "line";
  options.new_tokenizer.vocab_size = 290;
  options.model.memory = "membart:4";
  options.model.d_model = 16;
  options.model.heads = 2;
  options.model.ffn_dim = 24;
  options.model.encoder_layers = options.model.decoder_layers = 1;
  options.model.dropout = 0.1;
  options.segments.segment = 8;
  options.tasks.tasks = {{"recall", 0.5}, {"recall:2", 0.2}, {"next", 0.3}, {"denoise", 0.2}};
  options.tasks.decoder_mask_rate = 0.3;
  options.tasks.auxiliary_weight = 0.5;
  options.lanes = 3;
  options.accumulation = 2;
  options.time_horizon = 3;
  options.max_steps = 10;
  options.auxiliary_steps = 2;
  options.optimizer.warmup_steps = 3;
  options.logging_steps = 1;
  options.eval_steps = 0;
  options.save_steps = 0;
  options.output_dir = folder.path(run);
  return options;
}

}  // namespace palimpsest::train
