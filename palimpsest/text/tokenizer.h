// SPDX-License-Identifier: Apache-2.0
// WordPiece (BERT) and byte-level BPE (GPT-2, RoBERTa, BART): text to ids and back, tokenizer files in and out, and a
// trainer of the latter. Ids, tokens and offsets are those of Hugging Face tokenizers.
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
  std::vector<std::string> tokens;                   ///< as in the vocabulary: byte-level ones in its alphabet
  std::vector<std::pair<int64_t, int64_t>> offsets;  ///< code points (or bytes) of the text, end exclusive
  std::vector<int32_t> type_ids;                     ///< which part of a pair, as the model's template numbers them
  std::vector<int32_t> sequence_ids;                 ///< 0: the text, 1: the pair, -1: neither (added or padding)
  std::vector<uint8_t> attention_mask;               ///< 0: padding
  std::vector<uint8_t> special_tokens_mask;          ///< 1: added here, not read in the text
  std::vector<Encoding> overflow;                    ///< the further windows, where Truncation::overflow asks for them
};

enum class Side { kRight, kLeft };

/// How an encoding is cut down to `max_length` ids, special tokens included.
struct Truncation {
  enum class Strategy { kLongestFirst, kOnlyFirst, kOnlySecond };
  int64_t max_length = 512;
  Strategy strategy = Strategy::kLongestFirst;  ///< which text of a pair gives way
  int64_t stride = 0;                           ///< ids that a window shares with the one before
  Side side = Side::kRight;                     ///< where ids are cut off
  bool overflow = false;                        ///< what is cut off comes in further windows, in Encoding::overflow
};

/// How the encodings of a batch come to one length.
struct Padding {
  int64_t length = 0;       ///< 0: that of the longest encoding; longer ones are left as they are
  int64_t multiple_of = 0;  ///< rounds the length up; 0: no rounding
  Side side = Side::kRight;
  int32_t id = 0, type_id = 0;
  std::string token = "[PAD]";
};
void pad(std::vector<Encoding>& encodings, const Padding& padding);

struct EncodeOptions {
  bool add_special = false;   ///< add what the tokenizer's post-processor adds ([CLS] … [SEP], <s> … </s>)
  bool parse_special = true;  ///< special tokens written in the text become their ids, not plain text
  bool byte_offsets = false;  ///< offsets count bytes, not code points
  std::optional<Truncation> truncation = std::nullopt;  ///< only on request, whatever tokenizer.json says
};

/// A text, or a pair of them.
struct TextInput {
  std::string_view text;
  std::optional<std::string_view> pair = std::nullopt;
};

/// A token that is found in the text before anything else happens.
struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool special = true;       ///< left out by decode(…, skip_special), not parsed without parse_special
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< takes the white space after it
  bool single_word = false;  ///< only where no word character touches it
  bool normalized = false;   ///< looked for in the normalized text, after those that are not
};

/// A vocabulary with its rules and added tokens. Never changes after it is made, so any number of threads
/// may use one.
///
/// Texts must be valid UTF-8: anything else is an input error that names the byte.
class Tokenizer {
 public:
  /// A tokenizer.json; a vocab.txt (WordPiece); vocab.json and merges.txt, or encoder.json and vocab.bpe (one of them,
  /// the other beside it); or a folder with any of these, looked for in this order. Beside a vocabulary,
  /// tokenizer_config.json, special_tokens_map.json and added_tokens.json are read too; a vocab.txt without the setting
  /// do_lower_case is read as uncased, as in the reference.
  static std::shared_ptr<const Tokenizer> load(const std::string& path);
  /// The contents of a tokenizer.json; `source` stands in errors. Whatever would change ids and is not
  /// implemented is refused by name.
  static std::shared_ptr<const Tokenizer> from_json(const Json& json, const std::string& source);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  Encoding encode(std::string_view text, EncodeOptions options = {}) const;
  Encoding encode_pair(std::string_view text, std::string_view pair, EncodeOptions options = {}) const;
  /// The same for each input, on all threads, in order; padded where asked. An error names the input by its index.
  std::vector<Encoding> encode_batch(std::span<const TextInput> inputs, const EncodeOptions& options = {},
                                     const std::optional<Padding>& padding = std::nullopt) const;
  /// The ids of `encode` alone, several times as fast.
  std::vector<int32_t> encode_ids(std::string_view text, EncodeOptions options = {}) const;

  /// The sections "truncation" and "padding" of tokenizer.json. They are kept when saving, and applied only where they
  /// are handed to encode and encode_batch: a file must not cut texts behind the back of who reads them.
  const std::optional<Truncation>& truncation() const;
  const std::optional<Padding>& padding() const;
  /// Special tokens that add_special puts around a text or a pair.
  int64_t special_count(bool pair) const;

  /// The text of `ids`; bytes that are not UTF-8 become U+FFFD. An id without a token is an input error.
  /// WordPiece puts a space before each word and takes out those before punctuation and contractions. `clean_up`
  /// (clean_up_tokenization_spaces): false leaves these in; true also does it once more over the whole text and for
  /// byte-level BPE, which otherwise gives the exact text back.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false,
                     std::optional<bool> clean_up = std::nullopt) const;
  /// The same without clean_up of the whole text, with bytes that are not UTF-8 as they are.
  std::string decode_bytes(std::span<const int32_t> ids, bool skip_special = false,
                           std::optional<bool> clean_up = std::nullopt) const;

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
  friend class StreamingDecoder;
  struct Tables;
  std::unique_ptr<const Tables> tables_;
};

/// Decodes ids one at a time; the pieces together are decode(all ids). Never emits half a character.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = false,
                            std::optional<bool> clean_up = std::nullopt);
  /// What became certain with this id; may be empty.
  std::string push(int32_t id);
  /// What is left (a broken character as U+FFFD); the decoder is then as new.
  std::string finish();

 private:
  std::string take_complete();

  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  std::optional<bool> clean_up_;
  bool first_ = true;      ///< no token so far: the next one gets no space
  std::string pending_;    ///< bytes of characters that are not complete
  std::string uncleaned_;  ///< complete, but clean-up may still reach it
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
