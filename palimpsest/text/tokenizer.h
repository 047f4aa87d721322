// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE (GPT-2, RoBERTa, BART): text to ids and back, tokenizer files in and out, and a trainer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "palimpsest/core/json.h"

namespace palimpsest::text {

/// What `encode` gives: one entry of each list per token.
struct Encoding {
  std::vector<int32_t> ids;
  std::vector<std::string> tokens;                   ///< as in the vocabulary: bytes are spelt in its alphabet
  std::vector<std::pair<int64_t, int64_t>> offsets;  ///< code points of the text, end exclusive
};

struct EncodeOptions {
  bool add_special = false;   ///< add what the tokenizer's post-processor adds (<s> … </s>)
  bool parse_special = true;  ///< special tokens written in the text become their ids, not plain text
};

/// A token that is found in the text before anything else happens.
struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool special = true;       ///< left out by decode(…, skip_special), not parsed without parse_special
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< takes the white space after it
  bool single_word = false;  ///< only where no word character touches it
  bool normalized = false;   ///< looked for after those that are not
};

/// A vocabulary with its merges and added tokens. Never changes after it is made, so any number of threads
/// may use one.
///
/// Texts must be valid UTF-8: anything else is an input error that names the byte.
class Tokenizer {
 public:
  /// A tokenizer.json, or a folder with tokenizer.json, or vocab.json and merges.txt, or encoder.json and
  /// vocab.bpe (also: one of these files, the other beside it).
  static std::shared_ptr<const Tokenizer> load(const std::string& path);
  /// The contents of a tokenizer.json; `source` stands in errors. Whatever would change ids and is not
  /// implemented is refused by name.
  static std::shared_ptr<const Tokenizer> from_json(const Json& json, const std::string& source);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  Encoding encode(std::string_view text, EncodeOptions options = {}) const;
  /// The ids of `encode` alone, several times as fast.
  std::vector<int32_t> encode_ids(std::string_view text, EncodeOptions options = {}) const;

  /// The text of `ids`; bytes that are not UTF-8 become U+FFFD. An id without a token is an input error.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
  /// The same, with such bytes as they are.
  std::string decode_bytes(std::span<const int32_t> ids, bool skip_special = false) const;

  int64_t vocab_size() const;  ///< highest id + 1
  std::optional<int32_t> id_of(std::string_view token) const;
  /// "" for an id between 0 and vocab_size() that no token has; an input error beyond.
  std::string token_of(int32_t id) const;
  bool is_special(int32_t id) const;
  const std::vector<AddedToken>& added_tokens() const;  ///< by id

  /// A tokenizer.json which Hugging Face tokenizers reads, with equal ids.
  Json to_json() const;
  /// Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json into `folder` (made where
  /// missing; other files there stay), each atomically.
  void save(const std::string& folder) const;
  /// This one with more special tokens, at the end; those already there keep their id and flags.
  std::shared_ptr<const Tokenizer> with_added_tokens(const std::vector<std::string>& special_tokens) const;
  /// A short hash of all that decides ids: vocabulary, merges, added tokens, flags.
  std::string fingerprint() const;

  struct Parts;  ///< what a tokenizer is made of (text/tokenizer_parts.h)
  /// The parts must fit together: ids are those of tokens, added tokens are in the order of their ids.
  explicit Tokenizer(Parts parts);
  const Parts& parts() const;

 private:
  struct Tables;
  std::unique_ptr<const Tables> tables_;
};

/// Decodes ids one at a time; the pieces together are decode(all ids). Never emits half a character.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = false);
  /// What became certain with this id; may be empty.
  std::string push(int32_t id);
  /// What is left (a broken character as U+FFFD); the decoder is then as new.
  std::string finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  std::string pending_;
};

struct TrainTokenizerOptions {
  int64_t vocab_size = 1024;
  std::vector<std::string> special_tokens = {"<s>", "<pad>", "</s>", "<unk>", "<mask>"};
  int64_t min_frequency = 2;
  bool add_prefix_space = false;
  static void fields(auto& o, auto&& field) {
    field("vocab_size", o.vocab_size, "tokens in all: special tokens, the 256 bytes, then merges");
    field("special_tokens", o.special_tokens, "special tokens, with the first ids");
    field("min_frequency", o.min_frequency, "a pair seen less often is not merged");
    field("add_prefix_space", o.add_prefix_space, "a text without a leading space is read as if it had one");
  }
};

/// Learns a vocabulary. `next_chunk` fills its argument and returns true, or returns false at the end; words
/// do not cross chunks (give it lines). The result depends on the text and the options alone; memory grows
/// with the number of distinct words, not with the text.
std::shared_ptr<const Tokenizer> train_tokenizer(const std::function<bool(std::string& chunk)>& next_chunk,
                                                 const TrainTokenizerOptions& options);

}  // namespace palimpsest::text
