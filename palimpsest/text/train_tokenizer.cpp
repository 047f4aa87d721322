// SPDX-License-Identifier: Apache-2.0
// Learns byte-level BPE: counts words, then merges the most frequent pair again and again.
#include <algorithm>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "palimpsest/core/error.h"
#include "palimpsest/core/log.h"
#include "palimpsest/text/byte_level.h"
#include "palimpsest/text/tokenizer_parts.h"
#include "palimpsest/text/unicode.h"

namespace palimpsest::text {

namespace {

struct ViewHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using WordCounts = std::unordered_map<std::string, int64_t, ViewHash, std::equal_to<>>;

WordCounts count_words(const std::function<bool(std::string&)>& next_chunk, bool add_prefix_space) {
  WordCounts counts;
  std::string chunk;
  for (int64_t number = 1; chunk.clear(), next_chunk(chunk); ++number) {
    require_utf8(chunk, fmt::format("line {} of the training text", number));
    if (add_prefix_space && !chunk.empty() && chunk.front() != ' ') chunk.insert(0, 1, ' ');
    for (size_t at = 0; at < chunk.size();) {
      const size_t end = word_end(chunk, at);
      const std::string_view word = std::string_view(chunk).substr(at, end - at);
      const auto known = counts.find(word);
      known == counts.end() ? (void)counts.emplace(word, 1) : (void)++known->second;
      at = end;
    }
  }
  return counts;
}

using Pair = std::pair<int32_t, int32_t>;
uint64_t key_of(Pair pair) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(pair.first)) << 32) | static_cast<uint32_t>(pair.second);
}

/// The state of training: words as symbols, and for each pair of neighbours how often and where it stands.
/// Equal counts go to the pair with the lower ids, so the order in which words came does not matter.
class BpeTrainer {
 public:
  BpeTrainer(const WordCounts& counts, const TrainTokenizerOptions& options) : options_(options) {
    for (const auto& token : options.special_tokens) add_token(token);
    special_ = tokens_.size();
    for (const auto& character : alphabet()) add_token(character);
    words_.reserve(counts.size());
    for (const auto& [word, count] : counts) {
      Word& symbols = words_.emplace_back();
      symbols.count = count;
      for (const char byte : word) symbols.ids.push_back(ids_.at(spell_bytes({&byte, 1})));
    }
    count_pairs();
  }

  BpeModel run() {
    while (static_cast<int64_t>(tokens_.size()) < options_.vocab_size && merge_most_frequent()) continue;
    BpeModel model;
    model.tokens = std::move(tokens_);
    model.merges = std::move(merges_);
    return model;
  }

 private:
  struct Word {
    std::vector<int32_t> ids;
    int64_t count = 0;
  };
  struct PairInfo {
    int64_t count = 0;
    std::vector<uint32_t> words;  ///< where it stands or stood; may repeat
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  int32_t add_token(const std::string& token) {
    const auto [entry, is_new] = ids_.try_emplace(token, static_cast<int32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(token);
    return entry->second;
  }

  void count_pairs() {
    for (uint32_t w = 0; w < words_.size(); ++w) {
      const auto& ids = words_[w].ids;
      for (size_t i = 0; i + 1 < ids.size(); ++i) change({ids[i], ids[i + 1]}, words_[w].count, w);
    }
    for (const auto& [key, info] : pairs_) {
      candidates_.push({info.count, {static_cast<int32_t>(key >> 32), static_cast<int32_t>(key & 0xFFFFFFFF)}});
    }
  }

  void change(Pair pair, int64_t by, uint32_t word) {
    PairInfo& info = pairs_[key_of(pair)];
    info.count += by;
    if (by > 0 && (info.words.empty() || info.words.back() != word)) info.words.push_back(word);
  }

  /// The pair that stands most often now. Counts in the queue are those of the time of the push; most pairs
  /// only become rarer, so a stale one is put back where it belongs when its turn comes.
  bool take_best(Candidate& best) {
    while (!candidates_.empty()) {
      best = candidates_.top();
      candidates_.pop();
      const auto now = pairs_.find(key_of(best.pair));
      if (now == pairs_.end()) continue;
      if (now->second.count == best.count) return best.count >= std::max<int64_t>(options_.min_frequency, 1);
      best.count = now->second.count;
      candidates_.push(best);
    }
    return false;
  }

  bool merge_most_frequent() {
    Candidate best;
    if (!take_best(best)) return false;
    const auto [left, right] = best.pair;
    PairInfo info = std::move(pairs_[key_of(best.pair)]);
    pairs_.erase(key_of(best.pair));
    const std::string token = tokens_[static_cast<size_t>(left)] + tokens_[static_cast<size_t>(right)];
    // Plain text must never become a special token, so no merge makes one.
    const auto known = ids_.find(token);
    if (known != ids_.end() && static_cast<size_t>(known->second) < special_) return true;
    const int32_t result = add_token(token);
    merges_.push_back({left, right, result});
    std::sort(info.words.begin(), info.words.end());
    info.words.erase(std::unique(info.words.begin(), info.words.end()), info.words.end());
    grown_.clear();
    for (const uint32_t word : info.words) merge_in_word(word, merges_.back());
    pairs_.erase(key_of(best.pair));  // what overlapping pairs ("aaa") left of its count
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const Pair pair : grown_) {
      if (const auto now = pairs_.find(key_of(pair)); now != pairs_.end()) candidates_.push({now->second.count, pair});
    }
    return true;
  }

  void merge_in_word(uint32_t index, const Merge& merge) {
    auto& [ids, count] = words_[index];
    size_t kept = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] != merge.left || i + 1 >= ids.size() || ids[i + 1] != merge.right) {
        ids[kept++] = ids[i];
        continue;
      }
      if (kept > 0) replace({ids[kept - 1], merge.left}, {ids[kept - 1], merge.result}, count, index);
      if (i + 2 < ids.size()) replace({merge.right, ids[i + 2]}, {merge.result, ids[i + 2]}, count, index);
      ids[kept++] = merge.result;
      ++i;
    }
    ids.resize(kept);
  }

  void replace(Pair old_pair, Pair new_pair, int64_t count, uint32_t word) {
    change(old_pair, -count, word);
    change(new_pair, count, word);
    grown_.push_back(new_pair);
  }

  const TrainTokenizerOptions& options_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  size_t special_ = 0;
  std::vector<Word> words_;
  std::unordered_map<uint64_t, PairInfo> pairs_;
  std::priority_queue<Candidate> candidates_;
  std::vector<Merge> merges_;
  std::vector<Pair> grown_;
};

void check_options(const TrainTokenizerOptions& options) {
  std::unordered_set<std::string> seen;
  for (const auto& token : options.special_tokens) {
    require_utf8(token, "special_tokens");
    if (token.empty()) throw usage_error("a special token is empty", "special_tokens");
    if (!seen.insert(token).second) throw usage_error(fmt::format("\"{}\" stands twice", token), "special_tokens");
    if (const auto bytes = spelt_bytes(token); bytes && bytes->size() == 1) {
      throw usage_error(fmt::format("\"{}\" is the token of a byte", token), "special_tokens",
                        "use a longer one, like <s>");
    }
  }
  const auto least = static_cast<int64_t>(256 + options.special_tokens.size());
  if (options.vocab_size < least) {
    throw usage_error(
        fmt::format("vocab_size is {}", options.vocab_size), "",
        fmt::format("at least {}: {} special tokens and 256 bytes", least, options.special_tokens.size()));
  }
  if (options.vocab_size > INT32_MAX)
    throw usage_error(fmt::format("vocab_size is {}", options.vocab_size), "", "use less than 2^31");
}

}  // namespace

std::shared_ptr<const Tokenizer> train_tokenizer(const std::function<bool(std::string& chunk)>& next_chunk,
                                                 const TrainTokenizerOptions& options) {
  check_options(options);
  const WordCounts counts = count_words(next_chunk, options.add_prefix_space);
  Tokenizer::Parts parts;
  parts.model = BpeTrainer(counts, options).run();
  parts.pre_tokenizer = PreTokenizer::make_byte_level(options.add_prefix_space, true);
  const auto reached = static_cast<int64_t>(parts.model.tokens.size());
  if (reached < options.vocab_size) {
    spdlog::warn("the text gives {} tokens only, not {}: no other pair stands {} times in it", reached,
                 options.vocab_size, options.min_frequency);
  }
  for (size_t id = 0; id < options.special_tokens.size(); ++id) {
    const auto& content = options.special_tokens[id];
    parts.added.push_back({.content = content, .id = static_cast<int32_t>(id), .lstrip = content == "<mask>"});
  }
  parts.post = conventional_post_processing(parts.added, options.add_prefix_space);
  return std::make_shared<const Tokenizer>(std::move(parts));
}

}  // namespace palimpsest::text
