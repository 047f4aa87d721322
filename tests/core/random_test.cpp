// SPDX-License-Identifier: Apache-2.0
// Random numbers that depend on key and counter alone; their values are part of what a resumed run relies on.
#include "palimpsest/core/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace palimpsest {
namespace {

TEST(Random, NeverChangesItsValues) {
  // SplitMix64's published first output for seed 0; the others keep old runs resumable.
  EXPECT_EQ(mix_bits(0), 0xe220a8397b1dcdafULL);
  static_assert(random_key(1, 2, 3) != random_key(1, 3, 2));
  Random random(random_key(7, 1));
  const uint64_t first = random.bits(), second = random.bits();
  EXPECT_EQ(first, 15598732397942086671ULL);
  EXPECT_EQ(second, 11310100880861243961ULL);
  EXPECT_EQ(permutation(8, random_key(3)), (std::vector<int64_t>{2, 6, 0, 1, 4, 5, 7, 3}));
}

TEST(Random, StartsAnywhereInItsStream) {
  Random whole(42);
  for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(whole.bits(), Random(42, i).bits());
  Random copy = whole;
  EXPECT_EQ(copy.bits(), whole.bits());
}

TEST(Random, GivesEachCoordinateItsOwnStream) {
  std::set<uint64_t> keys;
  for (int seed = 0; seed < 10; ++seed) {
    for (int epoch = 0; epoch < 10; ++epoch) {
      for (int document = 0; document < 10; ++document) keys.insert(random_key(seed, epoch, document));
    }
  }
  EXPECT_EQ(keys.size(), 1000U);
}

TEST(Random, IsUniform) {
  Random random(1);
  constexpr int kDraws = 100000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = random.uniform();
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    squares += u * u;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 0.005);
}

TEST(Random, DrawsEveryNumberBelowTheBoundEquallyOften) {
  Random random(2);
  std::vector<int> counts(7);
  for (int i = 0; i < 70000; ++i) {
    const int64_t k = random.below(7);
    ASSERT_GE(k, 0);
    ASSERT_LT(k, 7);
    ++counts[static_cast<size_t>(k)];
  }
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(random.below(1), 0);
}

TEST(Random, IsNormalAndPoissonWhereAsked) {
  Random random(3);
  constexpr int kDraws = 100000;
  double sum = 0, squares = 0, count = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = random.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    count += static_cast<double>(random.poisson(3));
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.02);
  EXPECT_NEAR(squares / kDraws, 1, 0.03);
  EXPECT_NEAR(count / kDraws, 3, 0.03);
}

TEST(Permutation, HoldsEveryNumberOnceAndDependsOnTheKeyAlone) {
  for (const int64_t n : {0, 1, 2, 3, 17, 1000}) {
    std::vector<int64_t> order = permutation(n, 5);
    EXPECT_EQ(order, permutation(n, 5));
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  }
  EXPECT_NE(permutation(1000, 5), permutation(1000, 6));
}

TEST(Permutation, PutsEachNumberInEachPlaceEquallyOften) {
  std::vector<std::vector<int>> counts(5, std::vector<int>(5));
  for (uint64_t key = 0; key < 20000; ++key) {
    const auto order = permutation(5, random_key(key));
    for (size_t i = 0; i < 5; ++i) ++counts[i][static_cast<size_t>(order[i])];
  }
  for (const auto& row : counts) {
    for (const int count : row) EXPECT_NEAR(count, 4000, 300);
  }
}

}  // namespace
}  // namespace palimpsest
