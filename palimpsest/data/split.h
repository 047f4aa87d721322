// SPDX-License-Identifier: Apache-2.0
// Which documents are trained on and which are held out, and documents cut where there are fewer than lanes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "palimpsest/data/corpus.h"

namespace palimpsest::data {

/// Tokens [begin, end) of a document.
struct Span {
  int64_t document = 0, begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Span&) const = default;
};

struct SplitOptions {
  double held_out_share = 0.05;  // of the documents
  double held_out_tail = 0.1;    // of the tokens, where there is one document only
  int64_t split_seed = 0;
  static void fields(auto& o, auto&& field) {
    field("held_out_share", o.held_out_share, "share of documents that is held out, chosen by a hash of their text");
    field("held_out_tail", o.held_out_tail, "share of a single document's end that is held out");
    field("split_seed", o.split_seed, "another number holds out other documents");
  }
};

/// Both lists are in the order of the corpus, disjoint, and together all of its tokens (documents without tokens
/// are left out and counted in the description).
struct Split {
  std::vector<Span> train, held_out;
  std::string description;  ///< one line for the log: what is held out and how much it is
};

/// Whole documents by a hash of their text and the seed, so that the same text is on the same side wherever it lies
/// and equal texts are never on both sides; at least one document on each side (where all texts are equal, this is
/// given up and said). A single document is split by position. A share of 0 holds nothing out.
/// Usage error for shares outside [0, 1).
Split split_corpus(const Corpus& corpus, const SplitOptions& options);

/// All documents that have tokens, whole.
std::vector<Span> whole_documents(const Corpus& corpus);

/// Where there are fewer spans than lanes, cuts them into equal contiguous pieces (of one span, their lengths differ by
/// one token at most), as many as lanes; else returns them as they are. `said` (may be null) becomes one line that
/// says what was done, or "". Fewer tokens than lanes: one piece per token.
std::vector<Span> cut_for_lanes(std::vector<Span> spans, int64_t lanes, std::string* said);

/// Without the spans shorter than `tokens`; `said` (may be null) becomes one line with their number and tokens, or "".
std::vector<Span> drop_short(std::vector<Span> spans, int64_t tokens, std::string* said);

int64_t total_size(const std::vector<Span>& spans);

}  // namespace palimpsest::data
