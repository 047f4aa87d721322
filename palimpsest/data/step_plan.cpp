// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/step_plan.h"

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"

namespace palimpsest::data {

namespace {

class SegmentPlan : public StepPlan {
 public:
  explicit SegmentPlan(const SegmentOptions& options) : options_(options) { check_segments(options); }
  int64_t count(const Span& span) const override { return segment_count(span.size(), options_); }
  Step step(const Span& span, int64_t index) const override {
    const Span read = segment_of(span, index, options_);
    return {.read = read, .place = read.begin};
  }
  int64_t window() const override { return options_.segment; }
  bool framed() const override { return false; }
  std::pair<int64_t, int64_t> key() const override { return {options_.segment, options_.overlap}; }

 private:
  SegmentOptions options_;
};

class GivenPlan : public StepPlan {
 public:
  GivenPlan(std::vector<std::vector<Step>> steps, int64_t window) : steps_(std::move(steps)), window_(window) {
    uint64_t key = random_key(0, window);
    for (const auto& document : steps_) {
      for (const Step& step : document)
        key = random_key(key, step.read.begin, step.read.end, step.write.begin, step.write.end);
    }
    key_ = static_cast<int64_t>(key);
  }
  int64_t count(const Span& span) const override {
    return span.size() > 0 ? static_cast<int64_t>(steps_.at(static_cast<size_t>(span.document)).size()) : 0;
  }
  Step step(const Span& span, int64_t index) const override {
    return steps_.at(static_cast<size_t>(span.document)).at(static_cast<size_t>(index));
  }
  int64_t window() const override { return window_; }
  bool framed() const override { return true; }
  std::pair<int64_t, int64_t> key() const override { return {window_, key_}; }

 private:
  std::vector<std::vector<Step>> steps_;
  int64_t window_;
  int64_t key_ = 0;
};

}  // namespace

std::shared_ptr<const StepPlan> segment_plan(const SegmentOptions& options) {
  return std::make_shared<SegmentPlan>(options);
}

std::shared_ptr<const StepPlan> given_plan(std::vector<std::vector<Step>> steps, int64_t window) {
  return std::make_shared<GivenPlan>(std::move(steps), window);
}

}  // namespace palimpsest::data
