// SPDX-License-Identifier: Apache-2.0
// Token ids of a text of any length, a few at a time, at constant memory: what `palimpsest stream` reads.
#pragma once

#include <memory>
#include <vector>

#include "palimpsest/data/corpus.h"

namespace palimpsest::data {

/// The next tokens of one document.
struct StreamedTokens {
  std::vector<int32_t> ids;
  int64_t bytes = 0;   ///< of text that was tokenized to fill the buffer since the last call
  bool first = false;  ///< starts a document
  bool last = false;   ///< ends it
};

/// Reads documents in order. The ids are those of the whole document (safe_cut).
class TokenStream {
 public:
  /// `tokenize` must outlive the stream. Errors: those of DocumentReader.
  TokenStream(CorpusOptions options, TokenizeFunction tokenize);
  /// Up to `count` tokens, fewer at a document's end only; false at the end of everything.
  bool next(int64_t count, StreamedTokens& out);
  /// Share of the files that was read, 0 to 1; 0 for stdin.
  double progress() const;

 private:
  bool fill();

  DocumentReader reader_;
  TokenizeFunction tokenize_;
  std::string text_;          ///< of the open document, not tokenized yet
  std::vector<int32_t> ids_;  ///< tokenized, not handed out yet
  size_t handed_ = 0;         ///< of ids_
  int64_t bytes_ = 0;
  bool open_ = false, complete_ = false;  ///< inside a document; its last piece was read
};

}  // namespace palimpsest::data
