// SPDX-License-Identifier: Apache-2.0
// Word F1, distinct-n, bootstrap intervals.
#include "palimpsest/train/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"

namespace palimpsest::train {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Metrics, NormaliseWordsAsParlAiDoes) {
  EXPECT_THAT(normalized_words("The cat, a dog & AN Owl!"), ElementsAre("cat", "dog", "owl"));
  EXPECT_THAT(normalized_words("it hasn't; re-read snake_case"),
              ElementsAre("it", "hasn", "t", "re", "read", "snake", "case"));
  EXPECT_THAT(normalized_words("theatre another the-end a1"), ElementsAre("theatre", "another", "end", "a1"));
  EXPECT_THAT(normalized_words(" \t\n\x1c "), IsEmpty());
  EXPECT_THAT(normalized_words("the a an"), IsEmpty());
  EXPECT_THAT(normalized_words("\xC3\x84PFEL the\xE2\x80\x94"
                               "end"),
              ElementsAre("\xC3\xA4pfel",
                          "\xE2\x80\x94"
                          "end"))
      << "letters of all scripts are lowered; a dash that is not ASCII is no space, but ends an article";
}

TEST(Metrics, F1CountsEachWordAsOftenAsItIsInBoth) {
  EXPECT_DOUBLE_EQ(word_f1("i like dogs", "I like the dogs!"), 1);
  EXPECT_DOUBLE_EQ(word_f1("dogs dogs dogs", "dogs cats"), 2 * (1.0 / 3) * 0.5 / (1.0 / 3 + 0.5));
  EXPECT_DOUBLE_EQ(word_f1("i have two cats", "i have one dog here"), 2 * 0.5 * 0.4 / 0.9);
  EXPECT_EQ(word_f1("yes", "no"), 0);
  EXPECT_EQ(word_f1("", "no"), 0);
  EXPECT_EQ(word_f1("", ""), 0) << "as ParlAI has it";
  const std::vector<std::string> references = {"no", "i like cats"};
  EXPECT_DOUBLE_EQ(word_f1("i like cats", references), 1);
  EXPECT_EQ(word_f1("i like cats", std::vector<std::string>{}), 0);
}

TEST(Metrics, DistinctCountsNoNgramAcrossTwoReplies) {
  const std::vector<std::string> replies = {"i am fine", "I am fine.", "you are"};
  EXPECT_DOUBLE_EQ(distinct_n(replies, 1), 5.0 / 8);
  EXPECT_DOUBLE_EQ(distinct_n(replies, 2), 3.0 / 5);
  EXPECT_DOUBLE_EQ(distinct_n(replies, 3), 1.0 / 2);
  EXPECT_EQ(distinct_n(replies, 4), 0);
  EXPECT_EQ(distinct_n({}, 1), 0);
  EXPECT_THROW(distinct_n(replies, 0), Error);
}

// FIELD_REPORTS FR-96: sums over counts, never a mean of means.
TEST(Metrics, BootstrapMeanIsSumOverWeight) {
  const std::vector<DocumentScore> scores = {{4, 4}, {5, 1}};
  EXPECT_DOUBLE_EQ(bootstrap_mean(scores).value, 9.0 / 5);
  const std::vector<DocumentScore> same(50, DocumentScore{3, 2});
  const Interval interval = bootstrap_mean(same);
  EXPECT_DOUBLE_EQ(interval.low, 1.5);
  EXPECT_DOUBLE_EQ(interval.high, 1.5);
  EXPECT_EQ(interval.documents, 50);
}

std::vector<DocumentScore> normal_scores(int64_t documents, uint64_t seed, double mean) {
  std::vector<DocumentScore> scores;
  Random random(seed);
  for (int64_t i = 0; i < documents; ++i) scores.push_back({mean + random.normal(), 1});
  return scores;
}

TEST(Metrics, BootstrapIntervalIsAsWideAsTheoryAndFollowsTheSeed) {
  const auto scores = normal_scores(400, 7, 10);
  const Interval interval = bootstrap_mean(scores, {.seed = 1});
  EXPECT_NEAR(interval.high - interval.low, 2 * 1.96 / std::sqrt(400), 0.03);
  EXPECT_LT(interval.low, interval.value);
  EXPECT_GT(interval.high, interval.value);
  EXPECT_EQ(bootstrap_mean(scores, {.seed = 1}).low, interval.low);
  EXPECT_NE(bootstrap_mean(scores, {.seed = 2}).low, interval.low);
  EXPECT_LT(bootstrap_mean(scores, {.level = 0.5}).high, interval.high);
}

TEST(Metrics, BootstrapIntervalHoldsTheTruthAboutAsOftenAsItSays) {
  int64_t held = 0;
  for (uint64_t trial = 0; trial < 200; ++trial) {
    const Interval interval = bootstrap_mean(normal_scores(60, 100 + trial, 0), {.resamples = 400, .seed = trial});
    held += interval.low <= 0 && 0 <= interval.high ? 1 : 0;
  }
  EXPECT_GE(held, 178);
  EXPECT_LE(held, 199);
}

TEST(Metrics, PairedDifferenceIsNarrowerThanItsSides) {
  std::vector<DocumentScore> a = normal_scores(100, 3, 5), b = a;
  for (size_t i = 0; i < b.size(); ++i) b[i].sum -= 0.1 + 0.01 * static_cast<double>(i % 3);
  const Interval interval = bootstrap_difference(a, b);
  EXPECT_NEAR(interval.value, 0.11, 0.001);
  EXPECT_GT(interval.low, 0.1);
  EXPECT_LT(interval.high, 0.12);
  b.pop_back();
  EXPECT_THROW(bootstrap_difference(a, b), Error);
}

TEST(Metrics, BootstrapRefusesWhatHasNoAnswer) {
  EXPECT_THROW(bootstrap_mean({}), Error);
  const std::vector<DocumentScore> one = {{1, 1}};
  EXPECT_THROW(bootstrap_mean(one, {.resamples = 0}), Error);
  EXPECT_THROW(bootstrap_mean(one, {.level = 1}), Error);
  const std::vector<DocumentScore> some_empty = {{1, 1}, {0, 0}};
  EXPECT_EQ(bootstrap_mean(some_empty).high, 1) << "draws without any weight are left out";
}

TEST(Metrics, BootstrapTakesAnyStatistic) {
  const std::vector<std::string> replies = {"a b", "c d", "c d"};
  const Interval interval = bootstrap(3, [&](std::span<const int64_t> picks) {
    std::vector<std::string> drawn;
    for (const int64_t i : picks) drawn.push_back(replies[static_cast<size_t>(i)]);
    return distinct_n(drawn, 1);
  });
  EXPECT_DOUBLE_EQ(interval.value, 3.0 / 5);  // "a" is an article
  EXPECT_LE(interval.low, interval.value);
}

}  // namespace
}  // namespace palimpsest::train
