// SPDX-License-Identifier: Apache-2.0
// Train, valid and test: which side a dialogue is on, for ever, and what two sides share nevertheless.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace palimpsest::data {

enum class Side { kTrain = 0, kValid = 1, kTest = 2 };
/// "train", "valid", "test".
const char* side_name(Side side);

/// The side of whatever has this key: 80 % train, 10 % valid, 10 % test. It follows from key and seed alone, on every
/// machine and in every version: u = the first number in [0, 1) of Random(random_key(seed, FNV-1a-64 of the key's
/// bytes)); below 0.8 train, below 0.9 valid, else test (tests pin it).
Side split_of(std::string_view key, int64_t seed = 0);

/// The key of a text: its letters and digits alone, A-Z as a-z; left out are the other ASCII characters, U+0080 to
/// U+00BF and U+2000 to U+206F (spaces, quotes, dashes); all other characters are kept as they are. So the tokenised
/// text of PersonaChat and the same text elsewhere have one key. A text of which nothing is left is its own key.
std::string split_key_of(std::string_view text);

/// Words of a text, for the measure of "long": runs without white space that hold a letter or digit; each character
/// from U+2E80 on (scripts without spaces) counts as one.
int64_t count_words(std::string_view text);

/// A long utterance that is on two sides.
struct SharedUtterance {
  std::string text;           ///< as it stands at `second`
  std::string first, second;  ///< places of two dialogues that hold it
  Side first_side = Side::kTrain, second_side = Side::kTrain;
};

/// Lists what sides share. Two utterances are the same where their keys (split_key_of) are; a part of a longer one is
/// not looked for. Memory: about 40 bytes for each long utterance, and the dialogues' places.
class SharedUtterances {
 public:
  /// Utterances of at least `least_words` words are long. Usage error below 1.
  explicit SharedUtterances(int64_t least_words);
  void add(std::string_view utterance, const std::string& place, Side side);
  /// Each utterance once for every pair of sides that share it; the order is that of adding.
  const std::vector<SharedUtterance>& list() const { return list_; }
  int64_t least_words() const { return least_words_; }

 private:
  struct Seen {
    std::array<int32_t, 3> place = {-1, -1, -1};  ///< by side: index into places_
  };
  int64_t least_words_;
  std::unordered_map<uint64_t, Seen> seen_;
  std::vector<std::string> places_;
  std::vector<SharedUtterance> list_;
};

/// The long utterances of valid and test, as hashes: what train has to stay apart from.
class HeldOutUtterances {
 public:
  explicit HeldOutUtterances(int64_t least_words) : least_words_(least_words) {}
  void add(std::string_view utterance, Side side);
  /// Whether something of `side` that says this must be left out: for train, what valid or test say, too; for valid,
  /// what test says; test stays as it is.
  bool meets(std::string_view utterance, Side side) const;

 private:
  int64_t least_words_;
  std::unordered_set<uint64_t> valid_, test_;
};

}  // namespace palimpsest::data
