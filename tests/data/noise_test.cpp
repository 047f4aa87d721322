// SPDX-License-Identifier: Apache-2.0
// Infilling and masking: budgets (M19, FIELD_REPORTS FR-74), lengths, what must stay.
#include "palimpsest/data/noise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "palimpsest/core/error.h"
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
