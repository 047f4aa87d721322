// SPDX-License-Identifier: Apache-2.0
// The largest few of a long row of scores in one pass: time grows with the row, hardly with how many are wanted.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace palimpsest::generate {

/// The k-th largest value (k >= 1); the smallest where there are fewer. No value may be NaN.
template <class T>
T kth_largest(std::span<const T> row, int64_t k) {
  if (row.empty()) return -std::numeric_limits<T>::infinity();
  const auto wanted = std::min(static_cast<size_t>(std::max<int64_t>(k, 1)), row.size());
  if (wanted == 1) return *std::max_element(row.begin(), row.end());
  // Only what beats the worst of the best so far is kept, and thinned out each time the store is full.
  const size_t room = std::min(row.size(), std::max<size_t>(4 * wanted, 256));
  std::vector<T> best;
  best.reserve(room);
  const auto thin = [&] {
    std::nth_element(best.begin(), best.begin() + static_cast<ptrdiff_t>(wanted) - 1, best.end(), std::greater<T>());
    best.resize(wanted);
    return best.back();
  };
  T bound = -std::numeric_limits<T>::infinity();
  bool bounded = false;
  for (const T value : row) {
    if (bounded && value <= bound) continue;
    best.push_back(value);
    if (best.size() == room) bound = thin(), bounded = true;
  }
  if (best.size() > wanted) thin();
  return *std::min_element(best.begin(), best.end());
}

template <class T>
struct Choice {
  T score;
  int64_t token;
  /// Best first; equal scores by their token.
  friend bool operator<(const Choice& a, const Choice& b) {
    return a.score != b.score ? a.score > b.score : a.token < b.token;
  }
};

/// The `count` largest scores of a row above -inf with their tokens, best first; fewer where there are no more.
template <class T>
std::vector<Choice<T>> best_choices(std::span<const T> row, int64_t count) {
  const auto wanted = static_cast<size_t>(std::max<int64_t>(count, 1));
  const size_t room = std::max<size_t>(4 * wanted, 64);
  std::vector<Choice<T>> best;
  best.reserve(std::min(room, row.size()));
  T bound = -std::numeric_limits<T>::infinity();
  for (size_t i = 0; i < row.size(); ++i) {
    if (!(row[i] > bound)) continue;  // an equal score with a higher token loses
    best.push_back({row[i], static_cast<int64_t>(i)});
    if (best.size() < room) continue;
    std::nth_element(best.begin(), best.begin() + static_cast<ptrdiff_t>(wanted) - 1, best.end());
    best.resize(wanted);
    bound = best.back().score;
  }
  std::sort(best.begin(), best.end());
  if (best.size() > wanted) best.resize(wanted);
  return best;
}

}  // namespace palimpsest::generate
