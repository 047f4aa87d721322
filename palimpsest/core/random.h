// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: value i of a stream is a function of (seed, stream, i) alone, so any item
// can be drawn at any time, in any order, on any thread, and a resumed run draws what an unbroken one would.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

namespace palimpsest {

/// A bijective mix of 64 bits (the finaliser of SplitMix64).
constexpr uint64_t mix_bits(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// A 64-bit key made of a seed and any number of coordinates (epoch, document, step, …).
template <class... Coordinates>
constexpr uint64_t random_key(uint64_t seed, Coordinates... coordinates) {
  uint64_t key = mix_bits(seed);
  ((key = mix_bits(key ^ static_cast<uint64_t>(coordinates))), ...);
  return key;
}

/// A stream of numbers; copying it copies its place. `Random(random_key(seed, epoch, document))`.
class Random {
 public:
  explicit Random(uint64_t key, uint64_t counter = 0) : key_(key), counter_(counter) {}

  uint64_t bits() { return mix_bits(key_ ^ mix_bits(counter_++)); }
  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1.0p-53; }
  /// Uniform in {0, …, n-1}; n >= 1. The bias of the multiplication is below 2^-40 for n below 2^24.
  int64_t below(int64_t n) {
    return static_cast<int64_t>((static_cast<unsigned __int128>(bits()) * static_cast<uint64_t>(n)) >> 64);
  }
  /// Standard normal (Box-Muller, one of the two values).
  double normal() {
    const double u = 1.0 - uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * uniform());
  }
  /// Poisson (Knuth's product; for small means).
  int64_t poisson(double mean) {
    const double limit = std::exp(-mean);
    int64_t k = 0;
    for (double p = uniform(); p > limit; p *= uniform()) ++k;
    return k;
  }

 private:
  uint64_t key_, counter_;
};

/// A permutation of {0, …, n-1} that depends on the key alone (Fisher-Yates).
inline std::vector<int64_t> permutation(int64_t n, uint64_t key) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) order[static_cast<size_t>(i)] = i;
  Random random(key);
  for (int64_t i = n - 1; i > 0; --i)
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(random.below(i + 1))]);
  return order;
}

}  // namespace palimpsest
