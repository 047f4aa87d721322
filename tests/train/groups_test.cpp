// SPDX-License-Identifier: Apache-2.0
// Losses by how much came before: nothing lost in the groups, intervals paired by document.
#include "palimpsest/train/groups.h"

#include <gtest/gtest.h>

#include <cmath>

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"

namespace palimpsest::train {
namespace {

/// Documents of unequal lengths, with sessions of three steps. `more` is added to the loss of each target, times the
/// step's place.
LossReport report_of(int64_t documents, double more = 0) {
  LossReport report;
  for (int64_t span = 0; span < documents; ++span) {
    Random random(random_key(3, span));
    LossSum whole;
    for (int64_t place = 0; place < 4 + 3 * (span % 4); ++place) {
      const int64_t targets = 1 + random.below(9);
      const double nll = static_cast<double>(targets) * (2 + random.normal() + more * static_cast<double>(place));
      report.steps.push_back({.span = span, .place = place, .session = 1 + place / 3, .sum = {targets, nll}});
      whole.targets += targets, whole.nll += nll;
    }
    report.documents.push_back({whole.nll, static_cast<double>(whole.targets)});
    report.total.targets += whole.targets, report.total.nll += whole.nll;
  }
  return report;
}

TEST(Groups, GoInPowersOfTwoAndLoseNothing) {
  const LossReport report = report_of(12);
  const auto groups = groups_by_place(report.steps);
  ASSERT_EQ(groups.size(), 5U);
  const std::pair<int64_t, int64_t> ranges[] = {{0, 0}, {1, 1}, {2, 3}, {4, 7}, {8, 15}};
  LossSum all;
  for (size_t i = 0; i < groups.size(); ++i) {
    EXPECT_EQ(std::pair(groups[i].first, groups[i].last), ranges[i]);
    all.targets += groups[i].sum.targets, all.nll += groups[i].sum.nll;
  }
  EXPECT_EQ(all.targets, report.total.targets);
  EXPECT_NEAR(all.nll, report.total.nll, 1e-10 * report.total.nll);
  EXPECT_EQ(groups[0].documents.size(), 12U);
  EXPECT_EQ(groups[4].documents.size(), 6U) << "of 10 and 13 steps";
  const auto sessions = groups_by_session(report.steps);
  ASSERT_EQ(sessions.size(), 5U);
  EXPECT_EQ(sessions[4].first, 5);
}

TEST(Groups, ShowAGapThatGrowsWithTheHistory) {
  const LossReport base = report_of(40), other = report_of(40, 0.1);
  const Json json = comparison_json(base, other, true);
  EXPECT_EQ(json["place"], "turn");
  double before = -1;
  for (const Json& group : json["by_place"]) {
    const double gap = group["difference"]["nll_per_target"].get<double>();
    const Json& ends = group["difference"]["interval"]["nll_per_target"];
    EXPECT_GE(gap, 0.1 * group["first"].get<double>() - 1e-12);
    EXPECT_LE(gap, 0.1 * group["last"].get<double>() + 1e-12);
    EXPECT_LE(ends[0].get<double>(), gap + 1e-12);
    EXPECT_GE(ends[1].get<double>(), gap - 1e-12);
    EXPECT_GT(gap, before);
    before = gap;
    // Paired: what the documents themselves differ by, which is ten times as much, is not in the interval.
    EXPECT_LT(ends[1].get<double>() - ends[0].get<double>(), 0.2);
  }
  EXPECT_EQ(json["by_session"].size(), 5U);
  EXPECT_GT(json["difference"]["interval"]["nll_per_target"][0].get<double>(), 0);
}

TEST(Groups, AReadingBesideItselfDiffersByNothing) {
  const LossReport report = report_of(5);
  const Json json = comparison_json(report, report, false);
  EXPECT_EQ(json["place"], "segment");
  EXPECT_FALSE(json.contains("by_session")) << "of dialogues";
  EXPECT_EQ(json["difference"]["nll_per_target"], 0.0);
  EXPECT_EQ(json["difference"]["interval"]["nll_per_target"], Json({0.0, 0.0}));
  for (const Json& group : json["by_place"]) {
    EXPECT_EQ(group["difference"]["nll_per_target"], 0.0);
    EXPECT_NEAR(group["ppl"].get<double>(), std::exp(group["nll"].get<double>() / group["targets"].get<double>()),
                1e-12);
  }
}

TEST(Groups, OneDocumentHasNoInterval) {
  const LossReport report = report_of(1);
  const Json json = comparison_json(report, report, true);
  EXPECT_FALSE(json["difference"].contains("interval"));
  EXPECT_FALSE(json["by_place"][0].contains("interval"));
}

TEST(Groups, OtherTargetsAreNoComparison) {
  const LossReport base = report_of(4);
  LossReport other = base;
  other.documents[2].weight += 1;
  EXPECT_THROW(comparison_json(base, other, true), Error);
  other = base;
  other.steps.pop_back();
  EXPECT_THROW(comparison_json(base, other, true), Error);
}

}  // namespace
}  // namespace palimpsest::train
