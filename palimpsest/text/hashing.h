// SPDX-License-Identifier: Apache-2.0
// The hash of the tokenizers' tables: quick on short strings, the same everywhere.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace palimpsest::text {

inline uint64_t spread_bits(uint64_t key) {
  key *= 0x9e3779b97f4a7c15ULL;
  return key ^ (key >> 29);
}

inline uint64_t hash_bytes(std::string_view bytes) {
  uint64_t hash = bytes.size(), eight = 0;
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::memcpy(&eight, bytes.data() + at, 8);
    hash = spread_bits(hash ^ eight);
  }
  eight = 0;
  std::memcpy(&eight, bytes.data() + at, bytes.size() - at);
  return spread_bits(spread_bits(hash ^ eight));
}

/// Slots for `count` entries of a table with open addressing, at most half full: a power of two.
inline size_t table_size(size_t count) { return std::bit_ceil(std::max<size_t>(2 * count, 16)); }

}  // namespace palimpsest::text
