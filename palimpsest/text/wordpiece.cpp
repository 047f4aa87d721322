// SPDX-License-Identifier: Apache-2.0
// A hash table for whole words, a tree of bytes for the others.
#include "palimpsest/text/wordpiece.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "palimpsest/core/error.h"
#include "palimpsest/text/hashing.h"
#include "palimpsest/text/unicode.h"

namespace palimpsest::text {

namespace {

uint64_t edge_key(uint32_t node, char byte) { return (static_cast<uint64_t>(node) << 8) | static_cast<uint8_t>(byte); }

}  // namespace

WordPieceEncoder::WordPieceEncoder(const std::vector<std::string>& tokens, const WordPieceRules& rules)
    : rules_(rules) {
  add_words(tokens);
  add_tree(tokens);
}

void WordPieceEncoder::add_words(const std::vector<std::string>& tokens) {
  words_.resize(table_size(tokens.size()));
  const size_t mask = words_.size() - 1;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string& token = tokens[id];
    if (token.empty()) continue;
    size_t slot = hash_bytes(token) & mask;
    while (words_[slot].length > 0) slot = (slot + 1) & mask;
    words_[slot] = {static_cast<uint32_t>(word_bytes_.size()), static_cast<uint32_t>(token.size()),
                    static_cast<int32_t>(id)};
    word_bytes_ += token;
    longest_word_ = std::max(longest_word_, token.size());
  }
}

void WordPieceEncoder::add_tree(const std::vector<std::string>& tokens) {
  node_ids_ = {-1, -1};
  const size_t bytes = std::accumulate(tokens.begin(), tokens.end(), size_t{0},
                                       [](size_t sum, const std::string& token) { return sum + token.size(); });
  edges_.resize(table_size(2 * bytes));  // a continuing token is in both trees
  const size_t mask = edges_.size() - 1;
  const auto add = [&](uint32_t node, std::string_view token, size_t id) {
    for (const char byte : token) {
      const uint64_t key = edge_key(node, byte);
      size_t slot = spread_bits(key) & mask;
      while (edges_[slot].key != UINT64_MAX && edges_[slot].key != key) slot = (slot + 1) & mask;
      if (edges_[slot].key == UINT64_MAX) {
        edges_[slot] = {key, static_cast<uint32_t>(node_ids_.size())};
        node_ids_.push_back(-1);
      }
      node = edges_[slot].node;
    }
    node_ids_[node] = static_cast<int32_t>(id);
  };
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view token = tokens[id];
    if (token.empty()) continue;
    add(0, token, id);
    if (token.size() > rules_.prefix.size() && token.starts_with(rules_.prefix))
      add(1, token.substr(rules_.prefix.size()), id);
  }
}

int32_t WordPieceEncoder::find_word(std::string_view word) const {
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

uint32_t WordPieceEncoder::child(uint32_t node, char byte) const {
  const uint64_t key = edge_key(node, byte);
  const size_t mask = edges_.size() - 1;
  for (size_t slot = spread_bits(key) & mask;; slot = (slot + 1) & mask) {
    if (edges_[slot].key == key) return edges_[slot].node;
    if (edges_[slot].key == UINT64_MAX) return kNoNode;
  }
}

bool WordPieceEncoder::encode_unknown(std::string_view word, std::vector<int32_t>& ids,
                                      std::vector<uint32_t>* lengths) const {
  if (rules_.unknown < 0) return false;
  if (word.size() > UINT32_MAX) throw usage_error("a word of more than 4 GiB", "", "split the text into lines");
  ids.push_back(rules_.unknown);
  if (lengths != nullptr) lengths->push_back(static_cast<uint32_t>(word.size()));
  return true;
}

bool WordPieceEncoder::encode(std::string_view word, std::vector<int32_t>& ids, std::vector<uint32_t>* lengths) const {
  const auto most = static_cast<size_t>(rules_.max_characters);
  if (word.size() > most && static_cast<size_t>(count_code_points(word)) > most)
    return encode_unknown(word, ids, lengths);
  if (const int32_t id = find_word(word); id >= 0) {
    ids.push_back(id);
    if (lengths != nullptr) lengths->push_back(static_cast<uint32_t>(word.size()));
    return true;
  }
  const size_t first_id = ids.size(), first_length = lengths != nullptr ? lengths->size() : 0;
  for (size_t start = 0; start < word.size();) {
    int32_t longest = -1;
    size_t end = start;
    uint32_t node = start == 0 ? 0 : 1;
    for (size_t at = start; at < word.size(); ++at) {
      node = child(node, word[at]);
      if (node == kNoNode) break;
      if (node_ids_[node] >= 0) longest = node_ids_[node], end = at + 1;
    }
    if (longest < 0) {  // one part without a token makes the whole word unknown
      ids.resize(first_id);
      if (lengths != nullptr) lengths->resize(first_length);
      return encode_unknown(word, ids, lengths);
    }
    ids.push_back(longest);
    if (lengths != nullptr) lengths->push_back(static_cast<uint32_t>(end - start));
    start = end;
  }
  return true;
}

}  // namespace palimpsest::text
