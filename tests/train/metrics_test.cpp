// SPDX-License-Identifier: Apache-2.0
// Word F1, distinct-n, bootstrap intervals.
#include "palimpsest/train/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"
#include "palimpsest/data/text_lines.h"
#include "tests/support/paths.h"

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

// Figures of sacrebleu 2.6.0 with its defaults.
TEST(Bleu, TokensAreThoseOf13a) {
  const auto joined = [](const std::string& text) {
    std::string all;
    for (const auto& token : bleu_tokens(text)) all += (all.empty() ? "" : " ") + token;
    return all;
  };
  EXPECT_EQ(joined("The cat sat on the mat. \n"), "The cat sat on the mat .");
  EXPECT_EQ(joined("It costs $3.50, not 1,000 - or so; \"yes\" &quot;no&quot;."),
            "It costs $ 3.50 , not 1,000 - or so ; \" yes \" \" no \" .");
  EXPECT_EQ(joined("2-3 re-runs: U.S. (a/b) l'eau 5."), "2 - 3 re-runs : U . S . ( a / b ) l'eau 5 .");
  EXPECT_EQ(joined("a.,b 3.x x.3 .5 5."), "a . , b 3 . x x . 3 . 5 5 .");
  EXPECT_EQ(joined("\u201c\u00c4rger\u201d \u2013 na, ja\u2026"), "\u201c\u00c4rger\u201d \u2013 na , ja\u2026");
  EXPECT_EQ(joined("A<skipped>B &lt;x&gt; &amp;lt; 10-12 a-b"), "AB < x > < 10 - 12 a-b");
  EXPECT_THAT(bleu_tokens(""), IsEmpty());
}

double bleu_of(const std::vector<std::string>& texts, const std::vector<std::string>& references) {
  return corpus_bleu(texts, references).score;
}

TEST(Bleu, EqualsSacrebleu) {
  const Bleu bleu = corpus_bleu(
      std::vector<std::string>{"The cat sat on the mat.", "It costs $3.50, not 1,000 - or so; \"yes\" &quot;no&quot;.",
                               "2-3 re-runs: U.S. (a/b) l'eau 5."},
      std::vector<std::string>{"The cat sat on a mat.", "It costs $3.60, not 1,000 - or so; \"yes\" \"no\".",
                               "2-3 reruns: U.S. (a/b) l'eau 5!"});
  EXPECT_NEAR(bleu.score, 76.42737965896609, 1e-9);
  EXPECT_NEAR(bleu.precisions[0], 90.47619047619048, 1e-9);
  EXPECT_NEAR(bleu.precisions[3], 63.63636363636363, 1e-9);
  EXPECT_EQ(bleu.length, 42);
  EXPECT_EQ(bleu.reference_length, 42);
  EXPECT_NEAR(bleu_of({"one two three four five"}, {"one three two four six"}), 15.106876986783844, 1e-9) << "smoothed";
  EXPECT_EQ(bleu_of({"a b c"}, {"a b d"}), 0) << "no four tokens";
  EXPECT_EQ(bleu_of({"x y z w"}, {"a b c d"}), 0);
  EXPECT_EQ(bleu_of({""}, {"a"}), 0);
  EXPECT_EQ(bleu_of({}, {}), 0);
  EXPECT_THROW(bleu_of({"a"}, {}), Error);
}

/// Lines of a file, and the same without every seventh word (ASCII white space divides words).
std::vector<std::string> lines_of(const std::string& path, std::vector<std::string>* without = nullptr) {
  std::vector<std::string> lines;
  data::WholeLines file(path, nullptr);
  for (std::string line; file.next(line);) {
    lines.push_back(line);
    if (without == nullptr) continue;
    std::istringstream words(line);
    std::string left;
    int place = 0;
    for (std::string word; words >> word; ++place) {
      if (place % 7 != 3) left += (left.empty() ? "" : " ") + word;
    }
    without->push_back(left);
  }
  return lines;
}

TEST(Bleu, EqualsSacrebleuOnRealLines) {
  SKIP_WITHOUT_SHARED("data/mt");
  for (const auto& [file, score] : {std::pair{"multi30k/test_2016_flickr.de.gz", 60.39800140458733},
                                    {"iwslt_ted_de-en/test.en", 59.814787805597184},
                                    {"flores_en-fr/test.fra", 62.8762023892669}}) {
    std::vector<std::string> without;
    const auto lines = lines_of(test::shared("data/mt/") + file, &without);
    EXPECT_NEAR(bleu_of(without, lines), score, 1e-9) << file;
  }
  EXPECT_NEAR(bleu_of(lines_of(test::shared("data/mt/flores_en-fr/test.eng")),
                      lines_of(test::shared("data/mt/flores_en-fr/test.fra"))),
              2.0947739357332193, 1e-9);
  const auto captions = lines_of(test::shared("data/mt/multi30k/test_2016_flickr.de.gz"));
  EXPECT_NEAR(bleu_of({captions.begin(), captions.begin() + 200}, {captions.begin() + 1, captions.begin() + 201}),
              0.2909689337155836, 1e-9);
}

}  // namespace
}  // namespace palimpsest::train
