// SPDX-License-Identifier: Apache-2.0
// Byte-pair merges applied to one word: tables laid out for speed, time n log n in the word's length.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::text {

/// Neighbours `left` and `right` become `result`. A list of merges is in the order of their priority.
struct Merge {
  int32_t left = 0, right = 0, result = 0;
};

/// What a model is made of; see BytePairEncoder.
struct BpeModel {
  std::vector<std::string> tokens;  ///< by id, spelt in the byte alphabet; "" where an id has none
  std::vector<Merge> merges;
  int32_t unknown = -1;        ///< stands for bytes without a token; -1: such bytes are an error
  bool fuse_unknown = false;   ///< one unknown token for a run of such bytes
  bool ignore_merges = false;  ///< a word that is a token is that token, whatever the merges say
};

class BytePairEncoder {
 public:
  /// Ids of the model must fit its tokens. The model is read, not kept.
  explicit BytePairEncoder(const BpeModel& model);

  /// Appends the ids of `word` (raw bytes) to `ids` and, where wanted, how many bytes each covers to `lengths`.
  void encode(std::string_view word, std::vector<int32_t>& ids, std::vector<uint32_t>* lengths) const;
  /// The first byte of `word` that no token stands for, or npos (also where there is an unknown token).
  size_t find_unencodable(std::string_view word) const;

 private:
  struct Outcome {
    uint32_t rank = UINT32_MAX;  ///< lower merges first; the maximum: these two do not merge
    int32_t result = -1;
  };
  struct PairSlot {
    uint64_t pair = UINT64_MAX;
    Outcome outcome;
  };
  struct WordSlot {
    uint32_t start = 0, length = 0;  ///< in word_bytes_; length 0: empty
    int32_t id = -1;
  };
  struct Symbols {
    std::vector<int32_t> ids;
    std::vector<uint32_t> lengths;
  };

  Outcome outcome(int32_t left, int32_t right) const;
  int32_t find_word(std::string_view word) const;
  void add_pairs(const std::vector<Merge>& merges);
  void add_words(const BpeModel& model);
  void merge_word(std::string_view word, std::vector<int32_t>& ids, std::vector<uint32_t>* lengths) const;
  void split_into_symbols(std::string_view word, Symbols& symbols) const;
  void merge_short(Symbols& symbols) const;
  void merge_long(Symbols& symbols) const;

  std::array<int32_t, 256> byte_ids_;
  bool has_all_bytes_ = false;
  int32_t unknown_;
  bool fuse_unknown_;
  std::vector<PairSlot> pairs_;  ///< open addressing, a power of two
  std::vector<WordSlot> words_;  ///< the words that are one token: most words of a text
  std::string word_bytes_;
  size_t longest_word_ = 0;
};

}  // namespace palimpsest::text
