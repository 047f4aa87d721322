// SPDX-License-Identifier: Apache-2.0
// Stateful lanes: property M18, and going on from a saved state.
#include "palimpsest/data/lanes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"

namespace palimpsest::data {
namespace {

std::shared_ptr<const Corpus> ragged_corpus(int64_t documents, int64_t longest, uint64_t seed) {
  Random random(random_key(seed));
  std::vector<std::vector<int32_t>> ids(static_cast<size_t>(documents));
  int32_t next = 0;
  for (auto& document : ids) {
    document.resize(static_cast<size_t>(1 + random.below(longest)));
    for (auto& id : document) id = next++;
  }
  return corpus_of(std::move(ids));
}

std::vector<std::vector<LaneItem>> run(Lanes& lanes, int64_t steps = 1 << 20) {
  std::vector<std::vector<LaneItem>> all;
  while (steps-- > 0) {
    auto items = lanes.next();
    if (items.empty()) break;
    all.push_back(std::move(items));
  }
  return all;
}

bool same(const LaneItem& a, const LaneItem& b) {
  return a.idle == b.idle && a.reset == b.reset && a.document == b.document && a.segment == b.segment &&
         a.tokens.data() == b.tokens.data() && a.tokens.size() == b.tokens.size() && a.last == b.last &&
         a.span == b.span && a.begin == b.begin && a.epoch == b.epoch;
}

void expect_same(const std::vector<std::vector<LaneItem>>& a, const std::vector<std::vector<LaneItem>>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t step = 0; step < a.size(); ++step) {
    ASSERT_EQ(a[step].size(), b[step].size());
    for (size_t lane = 0; lane < a[step].size(); ++lane)
      ASSERT_TRUE(same(a[step][lane], b[step][lane])) << "step " << step << ", lane " << lane;
  }
}

/// Checks one lane after the other: resets, order, and that what a lane reads is a chain of whole documents.
/// Counts how often each (document, segment) was given.
std::map<std::pair<int64_t, int64_t>, int> check_lanes(const std::vector<std::vector<LaneItem>>& steps,
                                                       const std::vector<Span>& spans, const Corpus& corpus,
                                                       const SegmentOptions& segments, bool may_idle) {
  std::map<std::pair<int64_t, int64_t>, int> seen;
  const size_t lanes = steps.empty() ? 0 : steps[0].size();
  for (size_t lane = 0; lane < lanes; ++lane) {
    int64_t span = -1, next = 0;
    bool idle = false;
    for (const auto& items : steps) {
      const LaneItem& item = items[lane];
      if (item.idle) {
        EXPECT_TRUE(may_idle);
        EXPECT_TRUE(item.reset);
        EXPECT_TRUE(item.tokens.empty());
        EXPECT_EQ(item.document, -1);
        EXPECT_EQ(span, -1) << "idle in the middle of a document";
        idle = true;
        continue;
      }
      EXPECT_FALSE(idle) << "a lane that went idle stays so";
      EXPECT_EQ(item.reset, span == -1) << "reset exactly at first items";
      EXPECT_EQ(item.reset, item.segment == 0);
      if (span == -1) span = item.span, next = 0;
      EXPECT_EQ(item.span, span);
      EXPECT_EQ(item.segment, next++);
      const Span expected = segment_of(spans.at(static_cast<size_t>(span)), item.segment, segments);
      EXPECT_EQ(item.document, expected.document);
      EXPECT_EQ(item.begin, expected.begin);
      EXPECT_EQ(item.tokens.data(), corpus.tokens(item.document).data() + expected.begin);
      EXPECT_EQ(static_cast<int64_t>(item.tokens.size()), expected.size());
      EXPECT_EQ(item.last, next == segment_count(spans.at(static_cast<size_t>(span)).size(), segments));
      if (item.last) span = -1;
      ++seen[{item.span, item.segment}];
    }
  }
  return seen;
}

// M18.
TEST(Lanes, GiveEachItemOnceAndInOrder) {
  for (const int64_t documents : {1, 2, 7, 40}) {
    for (const int64_t lane_count : {1, 3, 8}) {
      for (const bool shuffle : {false, true}) {
        const auto corpus = ragged_corpus(documents, 60, static_cast<uint64_t>(documents));
        const auto spans = whole_documents(*corpus);
        Lanes lanes(corpus, spans, segment_plan({.segment = 8, .overlap = 2}),
                    {.lanes = lane_count, .shuffle = shuffle, .seed = 5});
        const auto steps = run(lanes);
        const auto seen = check_lanes(steps, spans, *corpus, {.segment = 8, .overlap = 2}, true);
        EXPECT_EQ(static_cast<int64_t>(seen.size()), lanes.items_per_epoch());
        for (const auto& [item, count] : seen) EXPECT_EQ(count, 1);
        EXPECT_DOUBLE_EQ(lanes.progress(), 1.0);
        EXPECT_TRUE(lanes.next().empty()) << "stays at the end";
      }
    }
  }
}

TEST(Lanes, StopWhenAllAreIdle) {
  const auto corpus = corpus_of({{1, 2, 3, 4, 5}, {6}, {7}});
  Lanes lanes(corpus, whole_documents(*corpus), segment_plan({.segment = 2}), {.lanes = 2});
  const auto steps = run(lanes);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0][1].document, 1);
  EXPECT_EQ(steps[1][1].document, 2);
  EXPECT_TRUE(steps[2][1].idle);
  EXPECT_TRUE(steps[2][0].last);
  EXPECT_EQ(steps[2][0].tokens.size(), 1u);
}

TEST(Lanes, AreNeverIdleWithRepeat) {
  const auto corpus = ragged_corpus(9, 40, 3);
  const auto spans = whole_documents(*corpus);
  Lanes lanes(corpus, spans, segment_plan({.segment = 8}), {.lanes = 4, .shuffle = true, .seed = 1, .repeat = true});
  const auto steps = run(lanes, 200);
  ASSERT_EQ(steps.size(), 200u);
  check_lanes(steps, spans, *corpus, {.segment = 8}, false);
  // Each epoch that has passed held each document exactly once.
  std::map<int64_t, std::multiset<int64_t>> started;
  std::map<int64_t, std::vector<int64_t>> order;
  for (const auto& items : steps) {
    for (const auto& item : items) {
      if (item.reset) started[item.epoch].insert(item.document), order[item.epoch].push_back(item.document);
    }
  }
  EXPECT_EQ(lanes.epoch(), started.rbegin()->first);
  for (const auto& [epoch, documents] : started) {
    if (epoch == lanes.epoch()) continue;
    EXPECT_EQ(documents.size(), 9u) << epoch;
    EXPECT_EQ(std::set<int64_t>(documents.begin(), documents.end()).size(), 9u) << epoch;
  }
  EXPECT_NE(order[0], order[1]) << "another order in each epoch";
  EXPECT_GT(lanes.progress(), 2.0);
}

TEST(Lanes, FollowFromSeedAndEpoch) {
  const auto corpus = ragged_corpus(20, 30, 3);
  const auto plan = segment_plan({.segment = 8});
  const LaneOptions options{.lanes = 3, .shuffle = true, .seed = 11, .repeat = true};
  Lanes a(corpus, whole_documents(*corpus), plan, options), b(corpus, whole_documents(*corpus), plan, options);
  expect_same(run(a, 100), run(b, 100));
  LaneOptions other = options;
  other.seed = 12;
  Lanes c(corpus, whole_documents(*corpus), plan, other);
  std::vector<int64_t> first, second;
  Lanes d(corpus, whole_documents(*corpus), plan, options);
  for (const auto& items : run(d, 10)) first.push_back(items[0].document);
  for (const auto& items : run(c, 10)) second.push_back(items[0].document);
  EXPECT_NE(first, second);
}

// FIELD_REPORTS FR-92: the order of the data after a resume.
TEST(Lanes, GoOnExactlyFromASavedState) {
  const auto corpus = ragged_corpus(13, 50, 8);
  const auto spans = whole_documents(*corpus);
  for (const bool repeat : {false, true}) {
    const auto plan = segment_plan({.segment = 8, .overlap = 3});
    const LaneOptions options{.lanes = 4, .shuffle = true, .seed = 2, .repeat = repeat};
    for (const int64_t before : {0, 1, 5, 11, 17}) {
      Lanes whole(corpus, spans, plan, options);
      run(whole, before);
      const std::string saved = whole.state().dump();
      Lanes resumed(corpus, spans, plan, options);
      run(resumed, 3);  // restore forgets where it stood
      resumed.restore(Json::parse(saved));
      EXPECT_DOUBLE_EQ(resumed.progress(), whole.progress());
      EXPECT_EQ(resumed.epoch(), whole.epoch());
      expect_same(run(whole, 60), run(resumed, 60));
      EXPECT_EQ(whole.state(), resumed.state());
    }
  }
}

TEST(Lanes, RefuseAStateOfOthers) {
  const auto corpus = ragged_corpus(5, 50, 8), other = ragged_corpus(5, 50, 9);
  const auto plan = segment_plan({.segment = 8});
  const LaneOptions options{.lanes = 2};
  Lanes lanes(corpus, whole_documents(*corpus), plan, options);
  const Json state = lanes.state();
  EXPECT_THROW(Lanes(other, whole_documents(*other), plan, options).restore(state), Error);
  EXPECT_THROW(Lanes(corpus, whole_documents(*corpus), plan, {.lanes = 3}).restore(state), Error);
  EXPECT_THROW(Lanes(corpus, {{0, 0, 1}}, plan, options).restore(state), Error);
  for (const char* key : {"fingerprint", "epoch", "queue", "given", "lanes"}) {
    Json broken = state;
    broken.erase(key);
    EXPECT_THROW(lanes.restore(broken), Error) << key;
    broken = state;
    broken[key] = -1;
    EXPECT_THROW(lanes.restore(broken), Error) << key;
  }
  Json broken = state;
  broken["lanes"][0] = {77, 0, 0};
  EXPECT_THROW(lanes.restore(broken), Error);
  broken["lanes"][0] = {0, 1000, 0};
  EXPECT_THROW(lanes.restore(broken), Error);
  broken["lanes"][0] = {0};
  EXPECT_THROW(lanes.restore(broken), Error);
  lanes.restore(state);
}

// FIELD_REPORTS FR-88.
TEST(Lanes, RefuseToReadNothing) {
  const auto corpus = corpus_of({{1, 2, 3}});
  EXPECT_THROW(Lanes(corpus, {}, segment_plan({}), {}), Error);
  EXPECT_THROW(Lanes(corpus, {{0, 2, 2}}, segment_plan({}), {}), Error);
  EXPECT_THROW(Lanes(corpus, {{0, 0, 4}}, segment_plan({}), {}), Error);
  EXPECT_THROW(Lanes(corpus, {{0, 0, 3}}, segment_plan({}), {.lanes = 0}), Error);
  EXPECT_THROW(segment_plan({.segment = 4, .overlap = 4}), Error);
  Lanes short_one(corpus, {{0, 0, 3}}, segment_plan({.segment = 128}), {});
  EXPECT_EQ(run(short_one).size(), 1u) << "a corpus shorter than a segment is one short segment";
}

}  // namespace
}  // namespace palimpsest::data
