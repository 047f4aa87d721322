// SPDX-License-Identifier: Apache-2.0
// WordPiece: a word becomes the longest token that starts it, then the longest continuing token, and so on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::text {

struct WordPieceRules {
  int32_t unknown = -1;                 ///< stands for a word that has no pieces; -1: such a word is an error
  std::string prefix = "##";            ///< begins a token that continues a word
  int64_t max_characters = 100;         ///< a longer word (in code points, after normalization) is unknown
  std::string unknown_token = "[UNK]";  ///< its name, also where the vocabulary lacks it
};

class WordPieceEncoder {
 public:
  WordPieceEncoder() = default;
  /// `tokens` by id; "" where an id has none. Read, not kept.
  WordPieceEncoder(const std::vector<std::string>& tokens, const WordPieceRules& rules);

  /// Appends the ids of `word` (UTF-8, not empty) and how many bytes of it each covers. Time is linear in the word
  /// (times max_characters at most). Returns false, with nothing appended, where the word is unknown and there is no
  /// token for that.
  bool encode(std::string_view word, std::vector<int32_t>& ids, std::vector<uint32_t>* lengths) const;

 private:
  struct Edge {
    uint64_t key = UINT64_MAX;  ///< node and byte
    uint32_t node = 0;
  };
  struct WordSlot {
    uint32_t start = 0, length = 0;  ///< in word_bytes_; length 0: empty
    int32_t id = -1;
  };
  static constexpr uint32_t kNoNode = UINT32_MAX;

  void add_words(const std::vector<std::string>& tokens);
  void add_tree(const std::vector<std::string>& tokens);
  int32_t find_word(std::string_view word) const;
  uint32_t child(uint32_t node, char byte) const;
  bool encode_unknown(std::string_view word, std::vector<int32_t>& ids, std::vector<uint32_t>* lengths) const;

  WordPieceRules rules_;
  std::vector<WordSlot> words_;  ///< whole words, open addressing: most words of a text
  std::string word_bytes_;
  size_t longest_word_ = 0;
  std::vector<Edge> edges_;        ///< two trees of bytes, open addressing: node 0 starts words, node 1 continues them
  std::vector<int32_t> node_ids_;  ///< the token that ends at a node, or -1
};

}  // namespace palimpsest::text
