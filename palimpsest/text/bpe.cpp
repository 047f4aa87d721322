// SPDX-License-Identifier: Apache-2.0
// Merging: a scan for short words, a heap over a linked list for long ones; the same result.
#include "palimpsest/text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <queue>
#include <tuple>

#include "palimpsest/core/error.h"
#include "palimpsest/text/byte_level.h"

namespace palimpsest::text {

namespace {

/// Above this many bytes the square of the scan may outgrow the heap.
constexpr size_t kShortWord = 48;

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}
uint64_t spread(uint64_t key) {
  key *= 0x9e3779b97f4a7c15ULL;
  return key ^ (key >> 29);
}

uint64_t hash_bytes(std::string_view bytes) {
  uint64_t hash = bytes.size(), eight = 0;
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::memcpy(&eight, bytes.data() + at, 8);
    hash = spread(hash ^ eight);
  }
  eight = 0;
  std::memcpy(&eight, bytes.data() + at, bytes.size() - at);
  return spread(spread(hash ^ eight));
}

/// Slots for `count` entries, at most half full.
size_t table_size(size_t count) { return std::bit_ceil(std::max<size_t>(2 * count, 16)); }

/// Merging with a heap: positions stay, a merged symbol keeps its left one, dead ones have length 0.
class HeapMerger {
 public:
  template <class OutcomeOf>
  void run(std::vector<int32_t>& ids, std::vector<uint32_t>& lengths, const OutcomeOf& outcome) {
    const auto count = static_cast<uint32_t>(ids.size());
    previous_.resize(count);
    next_.resize(count);
    for (uint32_t i = 0; i < count; ++i) previous_[i] = i - 1, next_[i] = i + 1;
    const auto offer = [&](uint32_t left, uint32_t right) {
      const auto found = outcome(ids[left], ids[right]);
      if (found.result >= 0) queue_.push({found.rank, left, ids[left], ids[right], found.result});
    };
    for (uint32_t i = 0; i + 1 < count; ++i) offer(i, i + 1);
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const uint32_t left = best.position, right = lengths[left] > 0 ? next_[left] : count;
      if (right >= count || ids[left] != best.left || ids[right] != best.right) continue;  // out of date
      ids[left] = best.result;
      lengths[left] += lengths[right];
      lengths[right] = 0;
      next_[left] = next_[right];
      if (next_[left] < count) {
        previous_[next_[left]] = left;
        offer(left, next_[left]);
      }
      if (left > 0) offer(previous_[left], left);
    }
    size_t kept = 0;
    for (uint32_t i = 0; i < count; i = next_[i]) ids[kept] = ids[i], lengths[kept] = lengths[i], ++kept;
    ids.resize(kept);
    lengths.resize(kept);
  }

 private:
  struct Candidate {
    uint32_t rank, position;
    int32_t left, right, result;
    bool operator>(const Candidate& other) const {
      return std::tie(rank, position) > std::tie(other.rank, other.position);
    }
  };
  std::vector<uint32_t> previous_, next_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue_;
};

}  // namespace

BytePairEncoder::BytePairEncoder(const BpeModel& model) : unknown_(model.unknown), fuse_unknown_(model.fuse_unknown) {
  byte_ids_.fill(-1);
  for (size_t id = 0; id < model.tokens.size(); ++id) {
    const auto bytes = model.tokens[id].size() <= 2 ? spelt_bytes(model.tokens[id]) : std::nullopt;
    if (bytes && bytes->size() == 1) byte_ids_[static_cast<uint8_t>(bytes->front())] = static_cast<int32_t>(id);
  }
  has_all_bytes_ = std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
  add_pairs(model.merges);
  add_words(model);
}

void BytePairEncoder::add_pairs(const std::vector<Merge>& merges) {
  pairs_.resize(table_size(merges.size()));
  const size_t mask = pairs_.size() - 1;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_key(merges[rank].left, merges[rank].right);
    size_t slot = spread(pair) & mask;
    while (pairs_[slot].pair != UINT64_MAX && pairs_[slot].pair != pair) slot = (slot + 1) & mask;
    pairs_[slot] = {pair, {static_cast<uint32_t>(rank), merges[rank].result}};  // of two, the later one counts
  }
}

void BytePairEncoder::add_words(const BpeModel& model) {
  std::vector<std::pair<std::string, int32_t>> found;
  std::vector<int32_t> ids;
  for (size_t id = 0; id < model.tokens.size(); ++id) {
    auto bytes = spelt_bytes(model.tokens[id]);
    if (!bytes || bytes->empty()) continue;
    ids.clear();
    if (!model.ignore_merges) merge_word(*bytes, ids, nullptr);
    const bool whole = ids.size() == 1 && ids.front() == static_cast<int32_t>(id);
    if (model.ignore_merges || whole) found.emplace_back(std::move(*bytes), static_cast<int32_t>(id));
  }
  words_.resize(table_size(found.size()));
  const size_t mask = words_.size() - 1;
  for (const auto& [bytes, id] : found) {
    size_t slot = hash_bytes(bytes) & mask;
    while (words_[slot].length > 0) slot = (slot + 1) & mask;
    words_[slot] = {static_cast<uint32_t>(word_bytes_.size()), static_cast<uint32_t>(bytes.size()), id};
    word_bytes_ += bytes;
    longest_word_ = std::max(longest_word_, bytes.size());
  }
}

BytePairEncoder::Outcome BytePairEncoder::outcome(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  const size_t mask = pairs_.size() - 1;
  for (size_t slot = spread(pair) & mask;; slot = (slot + 1) & mask) {
    if (pairs_[slot].pair == pair) return pairs_[slot].outcome;
    if (pairs_[slot].pair == UINT64_MAX) return {};
  }
}

int32_t BytePairEncoder::find_word(std::string_view word) const {
  if (word.size() > longest_word_) return -1;
  const size_t mask = words_.size() - 1;
  for (size_t slot = hash_bytes(word) & mask; words_[slot].length > 0; slot = (slot + 1) & mask) {
    if (words_[slot].length == word.size() &&
        std::memcmp(word_bytes_.data() + words_[slot].start, word.data(), word.size()) == 0) {
      return words_[slot].id;
    }
  }
  return -1;
}

void BytePairEncoder::encode(std::string_view word, std::vector<int32_t>& ids, std::vector<uint32_t>* lengths) const {
  if (word.empty()) return;
  if (const int32_t id = find_word(word); id >= 0) {
    ids.push_back(id);
    if (lengths != nullptr) lengths->push_back(static_cast<uint32_t>(word.size()));
    return;
  }
  merge_word(word, ids, lengths);
}

size_t BytePairEncoder::find_unencodable(std::string_view word) const {
  if (has_all_bytes_ || unknown_ >= 0) return std::string_view::npos;
  for (size_t at = 0; at < word.size(); ++at) {
    if (byte_ids_[static_cast<uint8_t>(word[at])] < 0) return at;
  }
  return std::string_view::npos;
}

void BytePairEncoder::merge_word(std::string_view word, std::vector<int32_t>& ids,
                                 std::vector<uint32_t>* lengths) const {
  if (word.size() > INT32_MAX) throw usage_error("a word of more than 2 GiB", "", "split the text into lines");
  const bool is_short = word.size() <= kShortWord;
  thread_local Symbols reused;  // spares short words the allocation; long ones give theirs back
  Symbols own;
  Symbols& symbols = is_short ? reused : own;
  split_into_symbols(word, symbols);
  is_short ? merge_short(symbols) : merge_long(symbols);
  ids.insert(ids.end(), symbols.ids.begin(), symbols.ids.end());
  if (lengths != nullptr) lengths->insert(lengths->end(), symbols.lengths.begin(), symbols.lengths.end());
}

void BytePairEncoder::split_into_symbols(std::string_view word, Symbols& symbols) const {
  symbols.ids.clear();
  symbols.lengths.clear();
  for (size_t at = 0; at < word.size(); ++at) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(word[at])];
    // A vocabulary may spell the unknown token like a byte; only what has no token is fused.
    const bool fuse = id < 0 && fuse_unknown_ && at > 0 && byte_ids_[static_cast<uint8_t>(word[at - 1])] < 0;
    if (fuse) {
      ++symbols.lengths.back();
    } else {
      symbols.ids.push_back(id < 0 ? unknown_ : id);
      symbols.lengths.push_back(1);
    }
  }
}

void BytePairEncoder::merge_short(Symbols& symbols) const {
  auto& [ids, lengths] = symbols;
  Outcome outcomes[kShortWord];
  size_t count = ids.size();
  for (size_t i = 0; i + 1 < count; ++i) outcomes[i] = outcome(ids[i], ids[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (outcomes[i].rank < outcomes[best].rank) best = i;
    }
    if (outcomes[best].result < 0) break;
    ids[best] = outcomes[best].result;
    lengths[best] += lengths[best + 1];
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      ids[i] = ids[i + 1], lengths[i] = lengths[i + 1], outcomes[i] = outcomes[i + 1];
    }
    if (best + 1 < count) outcomes[best] = outcome(ids[best], ids[best + 1]);
    if (best > 0) outcomes[best - 1] = outcome(ids[best - 1], ids[best]);
  }
  ids.resize(count);
  lengths.resize(count);
}

void BytePairEncoder::merge_long(Symbols& symbols) const {
  HeapMerger().run(symbols.ids, symbols.lengths, [this](int32_t left, int32_t right) { return outcome(left, right); });
}

}  // namespace palimpsest::text
