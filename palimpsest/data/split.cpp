// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/split.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "palimpsest/core/error.h"
#include "palimpsest/core/log.h"
#include "palimpsest/core/random.h"

namespace palimpsest::data {

namespace {

void check_share(const char* name, double share) {
  if (!(share >= 0 && share < 1))
    throw usage_error(fmt::format("{} is {}", name, share), "", "a share is at least 0 and below 1");
}

std::string counted(int64_t count, const char* one, const char* many) {
  return fmt::format("{} {}", format_count(count), count == 1 ? one : many);
}

/// A number in [0, 1) that follows from a text and the seed.
double place_of(uint64_t hash, int64_t seed) { return Random(random_key(static_cast<uint64_t>(seed), hash)).uniform(); }

/// The last part of the one document there is.
Split split_by_position(const Span& whole, double tail) {
  Split split;
  int64_t held = std::llround(static_cast<double>(whole.size()) * tail);
  if (tail > 0) held = std::clamp<int64_t>(held, 1, whole.size() - 1);
  const int64_t border = whole.end - held;
  split.train.push_back({whole.document, whole.begin, border});
  if (held > 0) split.held_out.push_back({whole.document, border, whole.end});
  split.description = held > 0 ? fmt::format("held out: the last {} of {} tokens of the only document",
                                             format_count(held), format_count(whole.size()))
                               : "nothing is held out: the only document has one token, or no share was asked for";
  return split;
}

Split split_by_hash(const Corpus& corpus, const std::vector<Span>& documents, const SplitOptions& options) {
  std::vector<double> places;
  for (const Span& span : documents) places.push_back(place_of(corpus.hash(span.document), options.split_seed));
  const auto [lowest, highest] = std::minmax_element(places.begin(), places.end());
  double border = options.held_out_share;  // held out is what lies below
  if (*lowest >= border) border = std::nextafter(*lowest, 2.0);
  if (*highest < border) border = *highest;
  const bool all_equal = *lowest == *highest;
  Split split;
  for (size_t i = 0; i < documents.size(); ++i) {
    const bool held = all_equal ? i == 0 : places[i] < border;
    (held ? split.held_out : split.train).push_back(documents[i]);
  }
  split.description = fmt::format(
      "held out: {} of {} documents, {} of {} tokens{}", format_count(static_cast<int64_t>(split.held_out.size())),
      format_count(static_cast<int64_t>(documents.size())), format_count(total_size(split.held_out)),
      format_count(total_size(documents)), all_equal ? " (all documents are equal: the same text is trained on)" : "");
  return split;
}

}  // namespace

int64_t total_size(const std::vector<Span>& spans) {
  return std::accumulate(spans.begin(), spans.end(), int64_t{0},
                         [](int64_t sum, const Span& span) { return sum + span.size(); });
}

std::vector<Span> whole_documents(const Corpus& corpus) {
  std::vector<Span> spans;
  for (int64_t document = 0; document < corpus.documents(); ++document) {
    const auto size = static_cast<int64_t>(corpus.tokens(document).size());
    if (size > 0) spans.push_back({document, 0, size});
  }
  return spans;
}

Split split_corpus(const Corpus& corpus, const SplitOptions& options) {
  check_share("held_out_share", options.held_out_share);
  check_share("held_out_tail", options.held_out_tail);
  const std::vector<Span> documents = whole_documents(corpus);
  Split split;
  if (documents.size() == 1) {
    split = split_by_position(documents.front(), options.held_out_share > 0 ? options.held_out_tail : 0);
  } else if (documents.empty() || options.held_out_share == 0) {
    split.train = documents;
    split.description = fmt::format("nothing is held out of {}",
                                    counted(static_cast<int64_t>(documents.size()), "document", "documents"));
  } else {
    split = split_by_hash(corpus, documents, options);
  }
  const int64_t without_tokens = corpus.documents() - static_cast<int64_t>(documents.size());
  if (without_tokens > 0)
    split.description += fmt::format("; {} without tokens left out", counted(without_tokens, "document", "documents"));
  return split;
}

std::vector<Span> cut_for_lanes(std::vector<Span> spans, int64_t lanes, std::string* said) {
  if (lanes < 1) throw usage_error(fmt::format("{} lanes", lanes), "", "at least one is needed");
  if (said != nullptr) said->clear();
  const auto count = static_cast<int64_t>(spans.size());
  const int64_t total = total_size(spans);
  if (count == 0 || count >= lanes) return spans;
  // Pieces per span: one each, then always one more where pieces are longest.
  std::vector<int64_t> pieces(spans.size(), 1);
  for (int64_t left = lanes - count; left > 0; --left) {
    size_t longest = 0;
    for (size_t i = 1; i < spans.size(); ++i) {  // size_i / pieces_i > size_longest / pieces_longest
      if (spans[i].size() * pieces[longest] > spans[longest].size() * pieces[i]) longest = i;
    }
    if (pieces[longest] >= spans[longest].size()) break;  // one token each: no more can be cut
    ++pieces[longest];
  }
  std::vector<Span> cut;
  for (size_t i = 0; i < spans.size(); ++i) {
    for (int64_t k = 0; k < pieces[i]; ++k) {
      cut.push_back({spans[i].document, spans[i].begin + spans[i].size() * k / pieces[i],
                     spans[i].begin + spans[i].size() * (k + 1) / pieces[i]});
    }
  }
  if (said != nullptr && cut.size() > spans.size()) {
    *said = fmt::format("{} for {} lanes: cut into {} contiguous pieces of about {} tokens",
                        counted(count, "document", "documents"), lanes, cut.size(),
                        format_count(total / static_cast<int64_t>(cut.size())));
  }
  return cut;
}

std::vector<Span> drop_short(std::vector<Span> spans, int64_t tokens, std::string* said) {
  std::vector<Span> kept;
  for (const Span& span : spans) {
    if (span.size() >= tokens) kept.push_back(span);
  }
  if (said != nullptr) said->clear();
  const auto dropped = static_cast<int64_t>(spans.size() - kept.size());
  if (said != nullptr && dropped > 0) {
    *said = fmt::format("{} shorter than {} tokens dropped, {} of {} tokens", counted(dropped, "document", "documents"),
                        tokens, format_count(total_size(spans) - total_size(kept)), format_count(total_size(spans)));
  }
  return kept;
}

}  // namespace palimpsest::data
