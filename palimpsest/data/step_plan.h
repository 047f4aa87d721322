// SPDX-License-Identifier: Apache-2.0
// How a document is cut into the steps that a lane takes through it: segments of a text, or the turns of a dialogue.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "palimpsest/data/segments.h"

namespace palimpsest::data {

/// What one step reads and, where its target is its own, writes, as tokens of its document.
struct Step {
  Span read, write = {};
  int64_t place = 0;    ///< tells the document's steps apart, however it is cut for the lanes
  int64_t session = 1;  ///< of a dialogue
};

class StepPlan {
 public:
  virtual ~StepPlan() = default;
  /// Steps of a span of a document; 0 for an empty one.
  virtual int64_t count(const Span& span) const = 0;
  virtual Step step(const Span& span, int64_t index) const = 0;
  /// The most tokens that a step reads.
  virtual int64_t window() const = 0;
  /// Rows stand between <s> and </s>, as dialogues are trained; segments of a text stand alone.
  virtual bool framed() const = 0;
  /// Differs whenever steps could.
  virtual std::pair<int64_t, int64_t> key() const = 0;
};

/// Windows of a span (segments.h). Usage error for a bad segment or overlap.
std::shared_ptr<const StepPlan> segment_plan(const SegmentOptions& options);
/// Given steps of whole documents, by document; rows are framed.
std::shared_ptr<const StepPlan> given_plan(std::vector<std::vector<Step>> steps, int64_t window);

}  // namespace palimpsest::data
