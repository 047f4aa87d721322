// SPDX-License-Identifier: Apache-2.0
// Aligned text as documents of steps: each step reads a unit of source lines and writes its target lines
// (ALGORITHMS 3.5: the memory lives as long as a document).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "palimpsest/data/aligned.h"
#include "palimpsest/data/dialogue.h"
#include "palimpsest/data/step_corpus.h"

namespace palimpsest::data {

struct AlignedDocument {
  std::string name;       ///< "PATH:LINE" where it starts; with a ref "PATH:LINE (FIELD)"
  std::string split_key;  ///< split_key_of all its source units; of JSONL, of the source
  Side side = Side::kTrain;
  std::vector<AlignedUnit> units;  ///< never empty
};

struct AlignedDocumentCounts {
  int64_t documents = 0, units = 0;     ///< handed out
  std::array<int64_t, 3> by_side = {};  ///< documents found, by Side
  int64_t other_side = 0;               ///< left out by `side`
  int64_t leaking = 0;                  ///< left out by `keep_apart`
  int64_t empty = 0;                    ///< records without a source or a target
  int64_t broken = 0;                   ///< lines and records left out because of skip_broken
};

/// Reads documents of aligned text in order, from one of two forms:
///   lines   `corpus.data` names one source file, `aligned.target` the file of its target lines. Documents are divided
///           as AlignedReader has it (blank lines, `ref`); with corpus.document "line" each unit is a document of its
///           own: a text without documents, such as captions.
///   JSONL   without a target file: records {"source", "target"[, "split"]} of one file or more, as DialogueReader
///           reads pairs, each a document of one unit.
/// Of `sides`: `side` and `split_seed` (sides.h: split_of the split_key, or as the record's own "split" says),
/// `keep_apart` (documents with a unit whose source or target has so many words and is on a held-out side, too, are
/// left out of train). Memory is bounded by one document, and 8 bytes for each long unit of valid and test.
///
/// Errors: those of AlignedReader and DialogueReader. Usage errors: no target and no JSONL; a target and several
/// sources; another `document` than "file" or "line".
class AlignedDocumentReader {
 public:
  AlignedDocumentReader(const CorpusOptions& corpus, const AlignedOptions& aligned, const DialogueOptions& sides);
  ~AlignedDocumentReader();
  AlignedDocumentReader(AlignedDocumentReader&&) noexcept;

  /// False at the end.
  bool next(AlignedDocument& out);
  AlignedDocumentCounts counts() const;
  /// What was asked for: a path, and the side.
  const std::string& source() const;
  const std::string& side() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct AlignedStepOptions {
  int64_t window = 128;       ///< tokens of a source row with its bos and eos
  int64_t longest_write = 0;  ///< tokens of a target, without eos, at most; 0: all
};

/// Reads and tokenizes all documents of a reader. A document's tokens are its sources, each followed by its target; a
/// step's place is its unit's number, from 0. Sources are cut at window - 2 tokens, targets at longest_write: the
/// beginning stays, and what is cut is counted.
/// Errors: those of the reader; an input error where there is no document; a usage error for a window below 3.
StepCorpus prepare_aligned(AlignedDocumentReader& reader, const TokenizeFunction& tokenize,
                           const AlignedStepOptions& options);

}  // namespace palimpsest::data
