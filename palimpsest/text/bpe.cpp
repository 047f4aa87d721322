// SPDX-License-Identifier: Apache-2.0
// Merging: a scan for short words, a heap over a linked list for long ones; the same result.
#include "palimpsest/text/bpe.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <queue>

#include "palimpsest/core/error.h"
#include "palimpsest/text/byte_level.h"
#include "palimpsest/text/hashing.h"

namespace palimpsest::text {

namespace {

/// Above this many bytes the square of the scan may outgrow the heap.
constexpr size_t kShortWord = 48;

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}
/// Merging with a heap: symbols stay at their positions, and a merged one keeps its left position. `outcomes[i]`
/// is that of symbol i and the one after it. An entry of the heap is a rank and a position in one number, so the
/// smallest is the best and leftmost; it is out of date where outcomes no longer agrees.
template <class Outcome, class OutcomeOf>
void merge_with_heap(std::vector<int32_t>& ids, std::vector<uint32_t>& lengths, const OutcomeOf& outcome_of) {
  const auto count = static_cast<uint32_t>(ids.size());
  std::vector<uint32_t> previous(count), next(count);
  std::vector<Outcome> outcomes(count);
  const auto entry = [&](uint32_t at) { return (static_cast<uint64_t>(outcomes[at].rank) << 32) | at; };
  std::vector<uint64_t> entries;
  for (uint32_t i = 0; i < count; ++i) {
    previous[i] = i - 1, next[i] = i + 1;
    if (i + 1 < count) outcomes[i] = outcome_of(ids[i], ids[i + 1]);
    if (outcomes[i].result >= 0) entries.push_back(entry(i));
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue(std::greater<>(), std::move(entries));
  const auto look_again = [&](uint32_t at) {
    outcomes[at] = next[at] < count ? outcome_of(ids[at], ids[next[at]]) : Outcome{};
    if (outcomes[at].result >= 0) queue.push(entry(at));
  };
  while (!queue.empty()) {
    const uint64_t best = queue.top();
    queue.pop();
    const auto left = static_cast<uint32_t>(best);
    if (best != entry(left)) continue;
    const uint32_t right = next[left];
    ids[left] = outcomes[left].result;
    lengths[left] += lengths[right];
    outcomes[right] = {};
    next[left] = next[right];
    if (next[left] < count) previous[next[left]] = left;
    look_again(left);
    if (left > 0) look_again(previous[left]);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i < count; i = next[i]) ids[kept] = ids[i], lengths[kept] = lengths[i], ++kept;
  ids.resize(kept);
  lengths.resize(kept);
}

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
    size_t slot = spread_bits(pair) & mask;
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
  for (size_t slot = spread_bits(pair) & mask;; slot = (slot + 1) & mask) {
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
  merge_with_heap<Outcome>(symbols.ids, symbols.lengths,
                           [this](int32_t left, int32_t right) { return outcome(left, right); });
}

}  // namespace palimpsest::text
