// SPDX-License-Identifier: Apache-2.0
// Token ids of a whole corpus, made once and kept in memory-mapped files; documents in any order from then on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "palimpsest/data/documents.h"

namespace palimpsest::text {
class Tokenizer;
}

namespace palimpsest::data {

/// Text to ids, without special tokens at the ends, and a text that differs whenever the ids could.
struct TokenizeFunction {
  std::function<std::vector<int32_t>(std::string_view)> encode;
  std::string fingerprint;
  bool cut_at_spaces_only =
      false;  ///< a text that starts with a line end is not read as it stands (added prefix space)
};
/// Plain encoding: nothing added, special tokens written in the text are ordinary text.
/// `tokenizer` must outlive the result.
TokenizeFunction tokenize_with(const text::Tokenizer& tokenizer);

class Corpus {
 public:
  int64_t documents() const { return static_cast<int64_t>(records_.size()); }
  /// Ids of a document, [tokens]; valid as long as the corpus. Throws an internal error for a bad index, as all do.
  std::span<const int32_t> tokens(int64_t document) const;
  /// Bytes and words (runs without white space) of its text; 0 for corpus_of.
  int64_t bytes(int64_t document) const { return record(document).bytes; }
  int64_t words(int64_t document) const { return record(document).words; }
  /// "PATH", "PATH:LINE" or "PATH#PIECE"; "document N" for corpus_of.
  std::string name(int64_t document) const;
  /// A hash of the document's text: equal texts have equal hashes, wherever they lie.
  uint64_t hash(int64_t document) const { return static_cast<uint64_t>(record(document).hash); }
  int64_t total_tokens() const { return records_.empty() ? 0 : records_.back().tokens_end; }
  /// Documents without any text, skipped while reading.
  int64_t empty_documents() const { return empty_documents_; }
  /// Differs whenever the texts, their order or their ids' number does; the same on every machine.
  std::string fingerprint() const;

  /// One document as it lies in documents.bin.
  struct Record {
    int64_t tokens_end, bytes, words, source, line, part, hash;
  };

 private:
  friend class CorpusBuilder;
  Corpus() = default;
  const Record& record(int64_t document) const;

  std::span<const int32_t> tokens_;
  std::span<const Record> records_;
  std::vector<std::string> files_;
  int64_t empty_documents_ = 0;
  std::vector<std::shared_ptr<const void>> owners_;  ///< what the spans lie in
};

/// Reads, tokenizes and keeps a corpus. Peak memory is bounded by kChunkBytes of text and a buffer, even where one
/// document is a whole large file: long texts are tokenized in chunks cut where the ids cannot change (safe_cut).
///
/// `cache_folder` "": in memory. Else in cache_folder/KEY, KEY a hash of options, files (path, size, time of change),
/// the tokenizer's fingerprint and the format's version; a complete one is mapped at once. An interrupted
/// preparation is continued where it last wrote down its progress, inside a document too. Two processes that want the
/// same corpus wait for each other. Stdin is never kept.
/// Errors: those of DocumentReader; an input error where there is no document at all.
std::shared_ptr<const Corpus> prepare_corpus(const CorpusOptions& options, const TokenizeFunction& tokenize,
                                             const std::string& cache_folder);
std::shared_ptr<const Corpus> prepare_corpus(const CorpusOptions& options, const text::Tokenizer& tokenizer,
                                             const std::string& cache_folder);

/// The same reading and cutting, but nothing is kept: `see` is called with each document's record (bytes, words, and
/// the number of tokens up to its end), in order. `tokenize.encode` may return nothing where tokens do not matter.
ReadCounts scan_corpus(const CorpusOptions& options, const TokenizeFunction& tokenize,
                       const std::function<void(const Corpus::Record&)>& see);

/// A corpus of given ids, in memory.
std::shared_ptr<const Corpus> corpus_of(const std::vector<std::vector<int32_t>>& documents);

constexpr int64_t kChunkBytes = 1 << 18;  ///< text that is tokenized at once

/// Where `text` (a prefix of a longer text, at least its first byte) may be cut so that the ids of both sides together
/// are the ids of the whole: the last place before a space (else before a line end or tab) that follows a code point
/// which is not white space; 0 where there is none.
///
/// Why this is exact for byte-level BPE: pieces of GPT-2's pattern never hold white space after something else, so one
/// ends at the cut; the pattern looks ahead only behind white space, and looks back nowhere, so neither side sees
/// the other. WordPiece splits at white space first. The side that starts with a space gets no added prefix space. (Not
/// exact for added tokens that hold white space or take that behind them: none of the families' do.)
int64_t safe_cut(std::string_view text, bool at_spaces_only = false);

}  // namespace palimpsest::data
