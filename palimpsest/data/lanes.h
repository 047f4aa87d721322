// SPDX-License-Identifier: Apache-2.0
// Stateful lanes: B streams of documents side by side, one segment each per step (ALGORITHMS 3.5, M18).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "palimpsest/core/json.h"
#include "palimpsest/data/corpus.h"
#include "palimpsest/data/split.h"
#include "palimpsest/data/step_plan.h"

namespace palimpsest::data {

/// What one lane reads at one step.
struct LaneItem {
  bool idle = true;                 ///< nothing to read: no targets, no loss
  bool reset = true;                ///< the first segment of a document, and every idle item: the memory starts anew
  int64_t document = -1;            ///< index into the corpus; -1 when idle
  int64_t segment = 0;              ///< index of the step in its span
  std::span<const int32_t> tokens;  ///< what is read, [1..the plan's window]; lies in the corpus
  bool last = false;                ///< the last segment of its span
  int64_t span = -1;                ///< index into the spans the lanes were made of; -1 when idle
  int64_t begin = 0;                ///< position of tokens[0] in the document
  int64_t epoch = 0;                ///< the epoch this document was taken in
};

struct LaneOptions {
  int64_t lanes = 1;      // B
  int64_t max_steps = 0;  // first steps of each document alone; 0: all
  bool shuffle = false;   // order of the documents: permutation(seed, epoch); else as given
  uint64_t seed = 0;
  bool repeat = false;  // epochs one after another: lanes never wait for each other and are never idle
};

/// A queue of documents read by B lanes: at each step a lane gives the next segment of its document or, at the
/// document's end, pops the next one. Each item exactly once per epoch and in order within its document. Everything
/// follows from the options and the number of steps taken.
class Lanes {
 public:
  /// Spans without tokens are left out. Usage error for lanes < 1 or no spans.
  Lanes(std::shared_ptr<const Corpus> corpus, std::vector<Span> spans, std::shared_ptr<const StepPlan> plan,
        LaneOptions options);

  /// One item per lane, [B]. Without repeat, empty once all lanes would be idle in the same step.
  std::vector<LaneItem> next();

  /// The epoch whose queue the next document comes from, from 0.
  int64_t epoch() const { return epoch_; }
  /// Items of one epoch, over all documents.
  int64_t items_per_epoch() const { return items_per_epoch_; }
  /// Items given so far over items per epoch: 0.5 in the middle of the first epoch; above 1 only with repeat.
  double progress() const;
  const LaneOptions& options() const { return options_; }
  const std::vector<Span>& spans() const { return spans_; }

  /// Where the lanes stand. restore() on lanes of the same corpus, spans and options goes on exactly there;
  /// a state of others is an input error that says so.
  Json state() const;
  void restore(const Json& state);

 private:
  struct Place {
    int64_t span = -1, segment = 0, epoch = 0;  ///< next segment to give; span -1: take the next document
  };
  bool refill(Place& place);
  LaneItem take(Place& place);
  void start_epoch(int64_t epoch);
  int64_t count(const Span& span) const;
  std::string fingerprint() const;

  std::shared_ptr<const Corpus> corpus_;
  std::vector<Span> spans_;
  std::shared_ptr<const StepPlan> plan_;
  LaneOptions options_;
  std::vector<int64_t> order_;  ///< of this epoch
  int64_t epoch_ = 0, queue_ = 0, items_per_epoch_ = 0, given_ = 0;
  std::vector<Place> places_;
};

}  // namespace palimpsest::data
