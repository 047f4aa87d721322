// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/aligned.h"

#include <optional>

#include "palimpsest/core/error.h"
#include "palimpsest/data/documents.h"
#include "palimpsest/data/text_lines.h"

namespace palimpsest::data {

namespace {

/// Lines by number: those that are not UTF-8 come as broken ones, so that the files stay side by side.
class NumberedLines {
 public:
  NumberedLines(const std::string& path, bool skip_broken) : lines_(path, skip_broken ? &broken_ : nullptr) {}

  /// Line `number` (each from 1, in order): its text, "" where it is broken; nothing behind the end.
  std::optional<std::string> at(int64_t number, bool& is_broken) {
    if (!has_ && !ended_) {
      has_ = lines_.next(line_);
      ended_ = !has_;
    }
    const bool beyond = ended_ || lines_.number() > number;
    is_broken = beyond && broken_left() > 0;
    if (is_broken) {
      ++broken_told_;
      return "";
    }
    if (beyond) return std::nullopt;
    has_ = false;
    return std::move(line_);
  }
  const std::vector<std::string>& first_broken() const { return broken_.first; }

 private:
  int64_t broken_left() const { return broken_.count - broken_told_; }

  BrokenLines broken_;
  WholeLines lines_;
  std::string line_;
  bool has_ = false, ended_ = false;
  int64_t broken_told_ = 0;
};

}  // namespace

class AlignedReader::Impl {
 public:
  explicit Impl(const AlignedOptions& options) : options_(options) {
    if (options.source.empty() || options.target.empty()) {
      throw usage_error("source and target are both needed", "", "name two files with as many lines");
    }
    if (options.lines_per_unit < 1) {
      throw usage_error(fmt::format("lines_per_unit is {}", options.lines_per_unit), "", "at least 1 is needed");
    }
    source_.emplace(options.source, options.skip_broken);
    target_.emplace(options.target, options.skip_broken);
    if (!options.ref.empty()) ref_.emplace(options.ref, options.skip_broken);
  }

  bool next(AlignedUnit& out) {
    if (!ahead_) ahead_ = gather();
    if (!ahead_) return false;
    out = std::move(*ahead_);
    ahead_ = gather();
    out.last = !ahead_ || ahead_->first;
    ++counts_.units;
    counts_.lines += out.lines;
    counts_.documents += out.first ? 1 : 0;
    return true;
  }

  AlignedCounts counts() const {
    AlignedCounts counts = counts_;
    counts.broken = broken_.count;
    return counts;
  }
  const std::vector<std::string>& first_broken() const { return broken_.first; }

 private:
  struct Pair {
    std::string source, target, document;
    int64_t line = 0;
    bool starts = false;
  };

  std::optional<AlignedUnit> gather() {
    std::optional<AlignedUnit> unit;
    while (!unit || unit->lines < options_.lines_per_unit) {
      if (!pair_ && !(pair_ = read_pair())) break;
      if (unit && pair_->starts) break;
      if (!unit) {
        unit.emplace();
        unit->document = pair_->document;
        unit->line = pair_->line;
        unit->first = pair_->starts;
      }
      for (auto [text, more] : {std::pair{&unit->source, &pair_->source}, std::pair{&unit->target, &pair_->target}}) {
        if (!text->empty()) *text += ' ';
        *text += *more;
      }
      ++unit->lines;
      pair_.reset();
    }
    return unit;
  }

  /// The next pair of lines that are not blank.
  std::optional<Pair> read_pair() {
    while (true) {
      const int64_t number = ++line_;
      bool broken = false, broken_target = false, broken_ref = false;
      auto source = source_->at(number, broken), target = target_->at(number, broken_target);
      auto ref = ref_ ? ref_->at(number, broken_ref) : source;
      if (!source && !target && (!ref_ || !ref)) return {};
      if (!source || !target || !ref) {
        const std::string& shorter = !source ? options_.source : !target ? options_.target : options_.ref;
        throw input_error(fmt::format("ends after {} lines, the others go on", number - 1), shorter,
                          "source, target and ref must have as many lines: fetch them again, or look for a line break");
      }
      if (broken || broken_target || broken_ref) {
        const std::string& path = broken ? options_.source : broken_target ? options_.target : options_.ref;
        broken_.add(input_error("not valid UTF-8", fmt::format("{}, line {}", path, number)));
        continue;
      }
      const std::string_view from = trimmed(*source), to = trimmed(*target);
      if (from.empty() && to.empty()) {
        ++counts_.blank;
        border_ = true;
        continue;
      }
      if (from.empty() != to.empty()) {
        note_broken(options_.skip_broken ? &broken_ : nullptr,
                    input_error("the line is blank, but not in the other file",
                                fmt::format("{}, line {}", from.empty() ? options_.source : options_.target, number),
                                "check that the files are aligned line by line"));
        continue;
      }
      if (ref_) {
        const std::string field(trimmed(std::string_view(*ref).substr(0, ref->find('\t'))));
        border_ = border_ || field != field_;
        field_ = field;
      }
      Pair pair{std::string(from), std::string(to), "", number, border_};
      if (border_) document_ = ref_ ? field_ : document_name(options_.source, number, 0);
      pair.document = document_;
      border_ = false;
      return pair;
    }
  }

  AlignedOptions options_;
  std::optional<NumberedLines> source_, target_, ref_;
  AlignedCounts counts_;
  BrokenLines broken_;
  int64_t line_ = 0;
  bool border_ = true;  ///< a new document starts with the next pair
  std::string field_, document_;
  std::optional<Pair> pair_;
  std::optional<AlignedUnit> ahead_;
};

AlignedReader::AlignedReader(const AlignedOptions& options) : impl_(std::make_unique<Impl>(options)) {}
AlignedReader::~AlignedReader() = default;
AlignedReader::AlignedReader(AlignedReader&&) noexcept = default;

bool AlignedReader::next(AlignedUnit& out) { return impl_->next(out); }
AlignedCounts AlignedReader::counts() const { return impl_->counts(); }
const std::vector<std::string>& AlignedReader::first_broken() const { return impl_->first_broken(); }

}  // namespace palimpsest::data
