// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/aligned_steps.h"

#include <algorithm>
#include <optional>

#include "palimpsest/core/error.h"
#include "palimpsest/core/options.h"

namespace palimpsest::data {

namespace {

/// Documents as the files have them, with their key and, where the file says it, their side.
class FoundDocuments {
 public:
  virtual ~FoundDocuments() = default;
  virtual bool next(AlignedDocument& out) = 0;
  virtual int64_t empty() const { return 0; }
  virtual int64_t broken() const = 0;
};

class AlignedLines : public FoundDocuments {
 public:
  AlignedLines(const AlignedOptions& options, int64_t split_seed, bool each_alone)
      : path_(options.source),
        has_ref_(!options.ref.empty()),
        split_seed_(split_seed),
        each_alone_(each_alone),
        reader_(options) {}

  bool next(AlignedDocument& out) override {
    out = {};
    for (AlignedUnit unit; reader_.next(unit);) {
      const bool last = unit.last || each_alone_;
      out.units.push_back(std::move(unit));
      if (last) break;
    }
    if (out.units.empty()) return false;
    const AlignedUnit& first = out.units.front();
    out.name = document_name(path_, first.line, 0) + (has_ref_ ? fmt::format(" ({})", first.document) : "");
    std::string text;
    for (const AlignedUnit& unit : out.units) text += unit.source + "\n";
    out.split_key = split_key_of(text);
    out.side = split_of(out.split_key, split_seed_);
    return true;
  }
  int64_t broken() const override { return reader_.counts().broken; }

 private:
  std::string path_;
  bool has_ref_;
  int64_t split_seed_;
  bool each_alone_;
  AlignedReader reader_;
};

class PairRecords : public FoundDocuments {
 public:
  PairRecords(const CorpusOptions& corpus, int64_t split_seed) : reader_(corpus, options_of(split_seed)) {}

  bool next(AlignedDocument& out) override {
    Dialogue pair;
    do {
      if (!reader_.next(pair)) return false;
      if (pair.turns.size() != 2) ++empty_;
    } while (pair.turns.size() != 2);
    out = {.name = pair.place, .split_key = pair.split_key, .side = pair.side, .units = {}};
    out.units.push_back({.source = std::move(pair.turns[0].text),
                         .target = std::move(pair.turns[1].text),
                         .document = pair.place,
                         .lines = 1});
    return true;
  }
  int64_t empty() const override { return empty_ + reader_.counts().empty; }
  int64_t broken() const override { return reader_.counts().broken; }

 private:
  static DialogueOptions options_of(int64_t split_seed) {
    return {.format = "pairs", .keep_apart = 0, .split_seed = split_seed};
  }
  DialogueReader reader_;
  int64_t empty_ = 0;
};

bool is_stdin(const std::string& path) { return path == "-" || path == "-.jsonl"; }

/// JSONL of pairs, or a usage error.
void check_records(const CorpusOptions& corpus) {
  for (const std::string& path : list_files(corpus.data, nullptr, true)) {
    if (path == "-.jsonl" || (!is_stdin(path) && detect_format(path, corpus.text_key) == "pairs")) continue;
    throw usage_error(fmt::format("nothing says what is to be written for {}", path), "target",
                      "name the file whose lines belong to its lines: --target train.de; or give JSONL records with "
                      "source and target");
  }
}

}  // namespace

class AlignedDocumentReader::Impl {
 public:
  Impl(const CorpusOptions& corpus, AlignedOptions aligned, const DialogueOptions& sides) : sides_(sides) {
    check_choice("side", sides.side, {"all", "train", "valid", "test"});
    if (sides.keep_apart < 0)
      throw usage_error(fmt::format("keep_apart is {}", sides.keep_apart), "", "a number of words; 0 turns it off");
    if (corpus.data.empty()) throw usage_error("no source is given", "data", "--data train.en --target train.de");
    source_ = corpus.data.front();
    if (aligned.target.empty()) {
      if (!aligned.ref.empty()) throw usage_error("a ref goes with a target file", "ref", "give target, too");
      check_records(corpus);
    } else {
      if (corpus.data.size() != 1)
        throw usage_error(fmt::format("{} sources for one target", corpus.data.size()), "data",
                          "name one file of source lines and one of target lines");
      check_choice("document", corpus.document, {"file", "line"});
      aligned.source = source_;
      aligned.skip_broken = corpus.skip_broken;
    }
    const auto open = [&]() -> std::unique_ptr<FoundDocuments> {
      if (aligned.target.empty()) return std::make_unique<PairRecords>(corpus, sides.split_seed);
      return std::make_unique<AlignedLines>(aligned, sides.split_seed, corpus.document == "line");
    };
    if (sides.keep_apart > 0 && (sides.side == "train" || sides.side == "valid")) {
      if (is_stdin(source_) || is_stdin(aligned.target))
        throw usage_error("stdin cannot be read twice", "", "keep_apart = 0, or write it to a file first");
      held_out_.emplace(sides.keep_apart);
      const auto all = open();
      for (AlignedDocument document; all->next(document);) {
        for (const AlignedUnit& unit : document.units) {
          held_out_->add(unit.source, document.side);
          held_out_->add(unit.target, document.side);
        }
      }
    }
    documents_ = open();
  }

  bool next(AlignedDocument& out) {
    while (documents_->next(out)) {
      ++counts_.by_side[static_cast<size_t>(out.side)];
      if (sides_.side != "all" && sides_.side != side_name(out.side)) {
        ++counts_.other_side;
      } else if (held_out_ && std::any_of(out.units.begin(), out.units.end(), [&](const AlignedUnit& unit) {
                   return held_out_->meets(unit.source, out.side) || held_out_->meets(unit.target, out.side);
                 })) {
        ++counts_.leaking;
      } else {
        ++counts_.documents;
        counts_.units += static_cast<int64_t>(out.units.size());
        return true;
      }
    }
    return false;
  }

  AlignedDocumentCounts counts() const {
    AlignedDocumentCounts counts = counts_;
    counts.empty = documents_->empty();
    counts.broken = documents_->broken();
    return counts;
  }
  const std::string& source() const { return source_; }
  const std::string& side() const { return sides_.side; }

 private:
  DialogueOptions sides_;
  std::string source_;
  std::optional<HeldOutUtterances> held_out_;
  std::unique_ptr<FoundDocuments> documents_;
  AlignedDocumentCounts counts_;
};

AlignedDocumentReader::AlignedDocumentReader(const CorpusOptions& corpus, const AlignedOptions& aligned,
                                             const DialogueOptions& sides)
    : impl_(std::make_unique<Impl>(corpus, aligned, sides)) {}
AlignedDocumentReader::~AlignedDocumentReader() = default;
AlignedDocumentReader::AlignedDocumentReader(AlignedDocumentReader&&) noexcept = default;

bool AlignedDocumentReader::next(AlignedDocument& out) { return impl_->next(out); }
AlignedDocumentCounts AlignedDocumentReader::counts() const { return impl_->counts(); }
const std::string& AlignedDocumentReader::source() const { return impl_->source(); }
const std::string& AlignedDocumentReader::side() const { return impl_->side(); }

StepCorpus prepare_aligned(AlignedDocumentReader& reader, const TokenizeFunction& tokenize,
                           const AlignedStepOptions& options) {
  if (options.window < 3)
    throw usage_error(fmt::format("a window of {} tokens holds no source", options.window), "", "give 3 or more");
  StepCorpus result;
  std::vector<std::vector<int32_t>> documents;
  for (AlignedDocument document; reader.next(document);) {
    const auto number = static_cast<int64_t>(documents.size());
    std::vector<int32_t> tokens;
    const auto add = [&](const std::string& text, int64_t most, int64_t& cut) {
      std::vector<int32_t> ids = tokenize.encode(text);
      if (const auto size = static_cast<int64_t>(ids.size()); most > 0 && size > most) {
        ids.resize(static_cast<size_t>(most));
        ++cut;
        result.cut_tokens += size - most;
      }
      const auto begin = static_cast<int64_t>(tokens.size());
      tokens.insert(tokens.end(), ids.begin(), ids.end());
      return Span{number, begin, static_cast<int64_t>(tokens.size())};
    };
    std::vector<Step> steps;
    for (const AlignedUnit& unit : document.units) {
      const Span read = add(unit.source, options.window - 2, result.cut_reads);
      const Span write = add(unit.target, options.longest_write, result.cut_writes);
      steps.push_back({.read = read, .write = write, .place = static_cast<int64_t>(steps.size())});
    }
    documents.push_back(std::move(tokens));
    result.steps.push_back(std::move(steps));
    result.names.push_back(std::move(document.name));
  }
  const AlignedDocumentCounts counts = reader.counts();
  if (documents.empty()) {
    const int64_t found = counts.by_side[0] + counts.by_side[1] + counts.by_side[2];
    throw input_error(reader.side() == "all"
                          ? std::string("there are no lines")
                          : fmt::format("none of {} documents is on the side {}", found, reader.side()),
                      reader.source(),
                      "a document, as blank lines or ref divide the lines, is on one side as a whole: document = "
                      "\"line\" makes one of each unit");
  }
  result.left_out = counts.leaking + counts.empty;
  result.corpus = corpus_of(documents);
  return result;
}

}  // namespace palimpsest::data
