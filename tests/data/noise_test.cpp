// SPDX-License-Identifier: Apache-2.0
// Infilling, masking, sentences in another order: budgets (M19, FIELD_REPORTS FR-73, FR-74), lengths, what must stay.
#include "palimpsest/data/noise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "palimpsest/core/error.h"
#include "palimpsest/data/segments.h"
#include "palimpsest/data/synthetic.h"

namespace palimpsest::data {
namespace {

constexpr int32_t kMask = 4, kBos = 0, kEos = 2;

std::vector<int32_t> segment_with_ends(int64_t size) {
  std::vector<int32_t> ids(static_cast<size_t>(size));
  std::iota(ids.begin(), ids.end(), 100);
  ids.front() = kBos;
  ids.back() = kEos;
  return ids;
}

int64_t kept(const std::vector<int32_t>& ids) {
  return std::count_if(ids.begin(), ids.end(), [](int32_t id) { return id != kMask; });
}

TEST(Infill, RemovesThreeTenthsOfTheTokens) {
  int64_t tokens = 0, removed = 0, masks = 0;
  for (uint64_t seed = 0; tokens < 100'000; ++seed) {
    const auto source = segment_with_ends(512);
    Random random(random_key(7, seed));
    const auto noisy = infill(source, {.mask_id = kMask, .keep = {kBos, kEos}}, random);
    EXPECT_EQ(512 - kept(noisy), std::llround(0.3 * 510)) << "exactly the budget";
    EXPECT_LE(noisy.size(), source.size());
    EXPECT_EQ(noisy.front(), kBos);
    EXPECT_EQ(noisy.back(), kEos);
    tokens += 512;
    removed += 512 - kept(noisy);
    masks += static_cast<int64_t>(noisy.size()) - kept(noisy);
  }
  EXPECT_NEAR(static_cast<double>(removed) / static_cast<double>(tokens), 0.30, 0.01);
  EXPECT_NEAR(static_cast<double>(removed) / static_cast<double>(masks), 3.0, 0.1) << "mean length of a span";
}

TEST(Infill, KeepsTheOrderOfWhatStays) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const auto source = segment_with_ends(64);
    Random random(random_key(seed));
    auto noisy = infill(source, {.mask_id = kMask, .keep = {kBos, kEos}}, random);
    std::erase(noisy, kMask);
    ASSERT_EQ(noisy.front(), kBos);
    ASSERT_EQ(noisy.back(), kEos);
    ASSERT_TRUE(std::is_sorted(noisy.begin() + 1, noisy.end() - 1));
    ASSERT_EQ(std::adjacent_find(noisy.begin(), noisy.end()), noisy.end());
  }
}

// A span must fit, so the first and last tokens are covered less often; else no place is preferred.
TEST(Infill, MasksEveryPlaceEquallyOften) {
  constexpr size_t kSize = 102;
  constexpr int kRuns = 20000;
  const auto source = segment_with_ends(kSize);
  std::vector<double> removed(kSize, 0);
  for (uint64_t seed = 0; seed < kRuns; ++seed) {
    Random random(random_key(3, seed));
    std::vector<bool> there(kSize, false);
    for (const int32_t id : infill(source, {.mask_id = kMask, .keep = {kBos, kEos}}, random)) {
      if (id >= 100) there[static_cast<size_t>(id - 100)] = true;
    }
    for (size_t i = 1; i < kSize - 1; ++i) removed[i] += there[i] ? 0 : 1.0 / kRuns;
  }
  // The standard deviation of each share is 0.0033.
  for (size_t i = 1; i < kSize / 2; ++i) EXPECT_NEAR(removed[i], removed[kSize - 1 - i], 0.018) << i;
  for (size_t i = 15; i < kSize - 15; ++i) EXPECT_NEAR(removed[i], 0.31, 0.02) << i;
}

TEST(Infill, NeverTouchesKeptTokensInTheMiddle) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    auto source = segment_with_ends(40);
    source[10] = source[11] = source[25] = kEos;
    Random random(random_key(seed));
    const auto noisy = infill(source, {.rate = 0.8, .mask_id = kMask, .keep = {kBos, kEos}}, random);
    ASSERT_EQ(std::count(noisy.begin(), noisy.end(), kEos), 4);
    ASSERT_EQ(std::count(noisy.begin(), noisy.end(), kBos), 1);
    ASSERT_EQ(noisy.front(), kBos);
    ASSERT_EQ(noisy.back(), kEos);
    ASSERT_LE(noisy.size(), source.size());
    ASSERT_EQ(kept(noisy), 40 - std::llround(0.8 * 35));
  }
}

// FIELD_REPORTS FR-74: zero-length spans insert, yet the result never grows past the limit.
TEST(Infill, NeverGrowsPastTheLimit) {
  for (const double mean : {0.1, 0.5, 3.0, 3.5}) {
    for (const int64_t size : {1, 2, 3, 10, 512, 1024}) {
      for (uint64_t seed = 0; seed < 20; ++seed) {
        std::vector<int32_t> source(static_cast<size_t>(size), 9);
        Random random(random_key(seed));
        const auto noisy = infill(source, {.span_mean = mean, .mask_id = kMask}, random);
        ASSERT_LE(static_cast<int64_t>(noisy.size()), size);
        ASSERT_EQ(size - kept(noisy), std::llround(0.3 * static_cast<double>(size)));
      }
    }
  }
  Random random(1);
  const std::vector<int32_t> source(100, 9);
  EXPECT_THROW(infill(source, {.mask_id = kMask, .max_length = 50}, random), Error);
  EXPECT_GT(infill(source, {.span_mean = 0.2, .mask_id = kMask, .max_length = 1000}, random).size(), 100u)
      << "insertions have room";
}

TEST(Infill, FollowsFromTheRandomNumbersAlone) {
  const auto source = segment_with_ends(100);
  Random a(random_key(1, 2)), b(random_key(1, 2)), c(random_key(1, 3));
  const InfillOptions options{.mask_id = kMask, .keep = {kBos, kEos}};
  const auto first = infill(source, options, a);
  EXPECT_EQ(first, infill(source, options, b));
  EXPECT_NE(first, infill(source, options, c));
}

TEST(Infill, HandlesTheEdges) {
  Random random(1);
  EXPECT_TRUE(infill({}, {.mask_id = kMask}, random).empty());
  const std::vector<int32_t> ends = {kBos, kEos};
  EXPECT_EQ(infill(ends, {.rate = 1, .mask_id = kMask, .keep = {kBos, kEos}}, random), ends);
  const std::vector<int32_t> source(20, 9);
  EXPECT_EQ(infill(source, {.rate = 0, .mask_id = kMask}, random), source);
  EXPECT_EQ(kept(infill(source, {.rate = 1, .mask_id = kMask}, random)), 0);
  EXPECT_THROW(infill(source, {.rate = 1.5, .mask_id = kMask}, random), Error);
  EXPECT_THROW(infill(source, {.span_mean = 0, .mask_id = kMask}, random), Error);
  EXPECT_THROW(infill(source, {}, random), Error);
}

TEST(MaskTokens, ReplacesAShareOfTheTokens) {
  const std::vector<int32_t> source(100'000, 9);
  Random random(5);
  const auto masked = mask_tokens(source, 0.5, kMask, random);
  EXPECT_EQ(masked.size(), source.size());
  EXPECT_NEAR(static_cast<double>(std::count(masked.begin(), masked.end(), kMask)), 50'000, 700);
  EXPECT_EQ(mask_tokens(source, 0, kMask, random), source);
  EXPECT_EQ(std::count(masked.begin(), masked.end(), 9) + std::count(masked.begin(), masked.end(), kMask), 100'000);
  const auto all = mask_tokens(source, 1, kMask, random);
  EXPECT_EQ(std::count(all.begin(), all.end(), kMask), 100'000);
  EXPECT_THROW(mask_tokens(source, -0.1, kMask, random), Error);
}

TEST(MaskTokens, LeavesTheEndsAlone) {
  Random random(5);
  const std::vector<int32_t> keep = {kBos, kEos};
  EXPECT_THAT(mask_tokens(segment_with_ends(4), 1, kMask, random, keep),
              testing::ElementsAre(kBos, kMask, kMask, kEos));
}

constexpr int32_t kStop = 5, kQuestion = 6;
const std::vector<int32_t> kEnds = {kStop, kQuestion}, kKeep = {kBos, kEos};

/// bos, sentences of 3 to 9 different tokens, eos. The last one has no full stop.
std::vector<int32_t> sentences_with_ends(int64_t sentences) {
  std::vector<int32_t> ids = {kBos};
  int32_t next = 100;
  for (int64_t s = 0; s < sentences; ++s) {
    for (int64_t i = 0; i < 3 + s % 7; ++i) ids.push_back(next++);
    if (s + 1 < sentences) ids.push_back(s % 2 == 0 ? kStop : kQuestion);
  }
  ids.push_back(kEos);
  return ids;
}

/// The number of neighbours that were not neighbours before.
int64_t seams(const std::vector<int32_t>& before, const std::vector<int32_t>& after) {
  int64_t count = 0;
  for (size_t i = 0; i + 1 < after.size(); ++i) {
    bool together = false;
    for (size_t j = 0; j + 1 < before.size(); ++j) together |= before[j] == after[i] && before[j + 1] == after[i + 1];
    count += !together;
  }
  return count;
}

// FIELD_REPORTS FR-73.
TEST(PermuteSentences, ReallyChangesTheOrderAndKeepsAllTokens) {
  for (const int64_t sentences : {2, 3, 4, 12}) {
    const auto source = sentences_with_ends(sentences);
    for (uint64_t seed = 0; seed < 100; ++seed) {
      Random random(random_key(seed));
      auto moved = permute_sentences(source, 1, kEnds, kKeep, random);
      ASSERT_NE(moved, source);
      ASSERT_EQ(moved.front(), kBos);
      ASSERT_EQ(moved.back(), kEos);
      ASSERT_LE(seams(source, moved), sentences + 1) << "sentences stay whole";
      auto left = source;
      std::sort(left.begin(), left.end());
      std::sort(moved.begin(), moved.end());
      ASSERT_EQ(moved, left);
    }
  }
}

TEST(PermuteSentences, MovesTheGivenShare) {
  const auto source = sentences_with_ends(10);
  const auto first_of = [](const std::vector<int32_t>& row) {  // the first token of each sentence
    std::vector<int32_t> firsts;
    for (size_t i = 1; i < row.size(); ++i) {
      if (row[i] >= 100 && (row[i - 1] < 100 || row[i] != row[i - 1] + 1)) firsts.push_back(row[i]);
    }
    return firsts;
  };
  const auto before = first_of(source);
  ASSERT_EQ(before.size(), 10u);
  for (const int64_t tenths : {0, 1, 2, 5, 10}) {
    for (uint64_t seed = 0; seed < 100; ++seed) {
      Random random(random_key(seed));
      const auto after = first_of(permute_sentences(source, static_cast<double>(tenths) / 10, kEnds, kKeep, random));
      ASSERT_EQ(after.size(), 10u);
      int64_t moved = 0;
      for (size_t i = 0; i < 10; ++i) moved += after[i] != before[i];
      ASSERT_LE(moved, tenths < 2 ? 0 : tenths) << "one sentence alone has nowhere to go";
      ASSERT_GE(moved, tenths < 2 ? 0 : 2);
    }
  }
  Random random(1);
  EXPECT_THROW(permute_sentences(source, 1.1, kEnds, kKeep, random), Error);
}

TEST(PermuteSentences, TakesARunOfStopsAsOneEnd) {
  const std::vector<int32_t> source = {100, kStop, kStop, kQuestion, 101, 102};
  Random random(3);
  EXPECT_THAT(permute_sentences(source, 1, kEnds, kKeep, random),
              testing::ElementsAre(101, 102, 100, kStop, kStop, kQuestion));
  EXPECT_TRUE(permute_sentences({}, 1, kEnds, kKeep, random).empty());
  EXPECT_EQ(permute_sentences(std::vector<int32_t>{kBos, kEos}, 1, kEnds, kKeep, random),
            (std::vector<int32_t>{kBos, kEos}));
}

// M19 as a whole, and FR-74: windows of 512 with overlap 128, 30 % of each counted by tokens that are gone.
TEST(Corrupt, OfWindowsOf512RemovesThreeTenthsAndNeverGrows) {
  const int64_t size = 120'000;
  std::vector<int32_t> document(static_cast<size_t>(size));
  std::iota(document.begin(), document.end(), 100);
  for (size_t i = 17; i < document.size(); i += 23) document[i] = kStop;
  const DenoiseIds ids{.mask = kMask, .keep = kKeep, .sentence_ends = kEnds};
  const SegmentOptions segments{.segment = 512, .overlap = 128};
  for (const DenoiseOptions& options : {DenoiseOptions{}, DenoiseOptions{.span_mean = 3.5},
                                        DenoiseOptions{.permute = 1}, DenoiseOptions{.kind = "token_mask"}}) {
    NoiseCounts counts;
    int64_t covered = 0;
    for (int64_t i = 0; i < segment_count(size, segments); ++i) {
      const Span window = segment_of({0, 0, size}, i, segments);
      EXPECT_EQ(window.begin, 384 * i);
      covered = window.end;
      const auto clean =
          std::span(document).subspan(static_cast<size_t>(window.begin), static_cast<size_t>(window.size()));
      Random random(random_key(9, i));
      const auto noisy = corrupt(clean, options, ids, 512, random);
      if (options.kind == "infill") {
        NoiseCounts one;
        one.add(clean, noisy, kMask);
        EXPECT_EQ(one.removed, std::llround(0.3 * static_cast<double>(clean.size())))
            << "within one span, indeed exact";
      }
      counts.add(clean, noisy, kMask);
    }
    EXPECT_EQ(covered, size);
    EXPECT_GE(counts.tokens, 100'000);
    EXPECT_NEAR(counts.removed_share(), 0.30, 0.01);
    EXPECT_LE(counts.longest_noisy, 512);
    EXPECT_EQ(counts.longest, 512);
    const double masks = static_cast<double>(counts.masks) / static_cast<double>(counts.removed);
    EXPECT_NEAR(masks, options.kind == "token_mask" ? 1 : 1 / options.span_mean, 0.01)
        << "mask tokens would tell another share";
    EXPECT_EQ(counts.reordered, options.permute > 0 ? counts.segments : 0);
  }
}

TEST(Corrupt, SaysWhatItCannotDo) {
  const DenoiseIds ids{.mask = kMask, .keep = kKeep, .sentence_ends = kEnds};
  check_denoise({}, ids);
  EXPECT_THROW(check_denoise({.kind = "delete"}, ids), Error);
  EXPECT_THROW(check_denoise({.rate = 1.5}, ids), Error);
  EXPECT_THROW(check_denoise({.permute = -1}, ids), Error);
  EXPECT_THROW(check_denoise({}, {}), Error);
  EXPECT_THROW(check_denoise({.permute = 1}, {.mask = kMask}), Error);
}

// FIELD_REPORTS FR-90: ids of the real vocabulary only.
TEST(UniformCorpus, DrawsEachSymbolEquallyOften) {
  const UniformOptions options{.documents = 10, .length = 10'000, .symbols = 20, .first_id = 5, .seed = 3};
  const auto corpus = uniform_corpus(options);
  ASSERT_EQ(corpus->documents(), 10);
  std::vector<int64_t> counts(20, 0);
  for (int64_t d = 0; d < 10; ++d) {
    ASSERT_EQ(corpus->tokens(d).size(), 10'000u);
    for (const int32_t id : corpus->tokens(d)) {
      ASSERT_GE(id, 5);
      ASSERT_LT(id, 25);
      ++counts[static_cast<size_t>(id - 5)];
    }
  }
  for (const int64_t count : counts) EXPECT_NEAR(static_cast<double>(count), 5000, 350);
  EXPECT_EQ(corpus->fingerprint(), uniform_corpus(options)->fingerprint());
  EXPECT_NE(corpus->hash(0), corpus->hash(1));
  EXPECT_THROW(uniform_corpus({.symbols = 0}), Error);
}

}  // namespace
}  // namespace palimpsest::data
