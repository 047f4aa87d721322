// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding with the tables of one vocabulary.
#include "palimpsest/text/tokenizer.h"

#include <algorithm>
#include <unordered_map>

#include "palimpsest/core/error.h"
#include "palimpsest/core/threads.h"
#include "palimpsest/text/assembly.h"
#include "palimpsest/text/byte_level.h"
#include "palimpsest/text/decoding.h"
#include "palimpsest/text/text_encoder.h"
#include "palimpsest/text/tokenizer_parts.h"
#include "palimpsest/text/unicode.h"

namespace palimpsest::text {

struct Tokenizer::Tables {
  explicit Tables(Parts given);

  void check_id(int32_t id) const;
  TextTokens encode_text(std::string_view text, const EncodeOptions& options) const;
  Encoding encode(std::string_view text, const std::string_view* pair, const EncodeOptions& options) const;
  /// Appends what `id` decodes to; `first` says whether it is the first token, and is false afterwards.
  void append_decoded(int32_t id, bool skip_special, bool clean_up, bool& first, std::string& text) const;

  Parts parts;
  std::unordered_map<std::string_view, int32_t> ids;  ///< views of parts.model.tokens
  std::vector<std::string> bytes;                     ///< what each id decodes to, before the decoder's spaces
  std::vector<bool> special;
  std::vector<TokenSpaces> spaces;  ///< by id, where offsets are trimmed
  TextEncoder encoder;
};

namespace {

/// An added token is written as it is, not in the byte alphabet; one that is looked for in normalized text comes back
/// normalized, as in the reference.
std::string decoded_content(const AddedToken& token, const Normalizer& normalizer) {
  if (!token.normalized || normalizer.empty()) return token.content;
  AlignedText content(token.content);
  normalizer.normalize(content);
  return content.text().empty() ? token.content : content.text();
}

/// Added tokens can be apart from a WordPiece vocabulary where the reference would give them the same ids: at its end,
/// with no hole before. Others become tokens of the vocabulary.
Tokenizer::Parts settled(Tokenizer::Parts parts) {
  const auto& tokens = parts.model.tokens;
  const size_t known = tokens.size() - parts.added_only.size();
  bool at_end = std::none_of(tokens.begin(), tokens.begin() + static_cast<int64_t>(known),
                             [](const std::string& token) { return token.empty(); });
  for (size_t i = 0; i < parts.added_only.size(); ++i)
    at_end = at_end && static_cast<size_t>(parts.added_only[i]) == known + i;
  if (!at_end) parts.added_only.clear();
  return parts;
}

}  // namespace

Tokenizer::Tables::Tables(Parts given) : parts(settled(std::move(given))), encoder(parts) {
  const auto& tokens = parts.model.tokens;
  bytes.resize(tokens.size());
  special.resize(tokens.size());
  ids.reserve(tokens.size());
  const bool is_byte_level = parts.decoding.kind == Decoding::Kind::kByteLevel;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) continue;
    ids.emplace(tokens[id], static_cast<int32_t>(id));
    bytes[id] = is_byte_level ? spelt_bytes(tokens[id]).value_or(tokens[id]) : tokens[id];
  }
  for (const auto& token : parts.added) {
    bytes[static_cast<size_t>(token.id)] = decoded_content(token, parts.normalizer);
    special[static_cast<size_t>(token.id)] = token.special;
  }
  if (!parts.post.trims.empty()) std::transform(tokens.begin(), tokens.end(), std::back_inserter(spaces), spaces_of);
}

TextTokens Tokenizer::Tables::encode_text(std::string_view text, const EncodeOptions& options) const {
  require_utf8(text);
  TextTokens tokens = encoder.encode(text, options.parse_special, true);
  // Code points also where bytes are wanted: white space is trimmed in characters.
  to_code_points(text, tokens.offsets);
  return tokens;
}

Encoding Tokenizer::Tables::encode(std::string_view text, const std::string_view* pair,
                                   const EncodeOptions& options) const {
  const TextTokens first = encode_text(text, options);
  const TextTokens second = pair != nullptr ? encode_text(*pair, options) : TextTokens{};
  const Assembler assembler(parts, spaces);
  const auto assemble = [&](const WindowPair& windows) {
    Encoding encoding = assembler.assemble(first, pair != nullptr ? &second : nullptr, windows, options.add_special);
    if (options.byte_offsets) to_bytes(text, encoding, 0);
    if (options.byte_offsets && pair != nullptr) to_bytes(*pair, encoding, 1);
    return encoding;
  };
  if (!options.truncation) return assemble({{0, first.ids.size()}, {0, second.ids.size()}});
  const int64_t added = options.add_special ? count_special(pair != nullptr ? parts.post.pair : parts.post.single) : 0;
  const auto windows =
      truncate(static_cast<int64_t>(first.ids.size()), pair != nullptr ? static_cast<int64_t>(second.ids.size()) : -1,
               *options.truncation, added);
  Encoding encoding = assemble(windows.front());
  for (size_t i = 1; i < windows.size(); ++i) encoding.overflow.push_back(assemble(windows[i]));
  return encoding;
}

void Tokenizer::Tables::check_id(int32_t id) const {
  const auto count = static_cast<int64_t>(bytes.size());
  if (id < 0 || id >= count) {
    throw input_error(fmt::format("id {} is not in the vocabulary", id), "",
                      fmt::format("ids go from 0 to {}", count - 1));
  }
}

void Tokenizer::Tables::append_decoded(int32_t id, bool skip_special, bool clean_up, bool& first,
                                       std::string& text) const {
  check_id(id);
  const auto index = static_cast<size_t>(id);
  if (bytes[index].empty()) {
    throw input_error(fmt::format("no token has the id {}", id), "", "mask this id when generating");
  }
  if (skip_special && special[index]) return;
  const Decoding& decoding = parts.decoding;
  const bool is_first = std::exchange(first, false);
  if (decoding.kind == Decoding::Kind::kByteLevel) {
    text += bytes[index];
    return;
  }
  const bool is_word_piece = decoding.kind == Decoding::Kind::kWordPiece;
  std::string token = bytes[index];
  if (is_word_piece && !is_first && token.starts_with(decoding.prefix)) {
    token.erase(0, decoding.prefix.size());
  } else if (!is_first) {
    token.insert(0, 1, ' ');
  }
  if (is_word_piece && clean_up) clean_up_token(token);
  text += token;
}

Tokenizer::Tokenizer(Parts parts) : tables_(std::make_unique<const Tables>(std::move(parts))) {}
Tokenizer::~Tokenizer() = default;

Encoding Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  return tables_->encode(text, nullptr, options);
}

Encoding Tokenizer::encode_pair(std::string_view text, std::string_view pair, EncodeOptions options) const {
  return tables_->encode(text, &pair, options);
}

std::vector<Encoding> Tokenizer::encode_batch(std::span<const TextInput> inputs, const EncodeOptions& options,
                                              const std::optional<Padding>& padding) const {
  std::vector<Encoding> encodings(inputs.size());
  parallel_for(static_cast<int64_t>(inputs.size()), 1, [&](int64_t first, int64_t last) {
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
      try {
        encodings[i] = tables_->encode(inputs[i].text, inputs[i].pair ? &*inputs[i].pair : nullptr, options);
      } catch (const Error& error) {
        throw error.within(fmt::format("text {}", i));
      }
    }
  });
  if (padding) pad(encodings, *padding);
  return encodings;
}

std::vector<int32_t> Tokenizer::encode_ids(std::string_view text, EncodeOptions options) const {
  if (options.truncation) return encode(text, options).ids;
  require_utf8(text);
  std::vector<int32_t> ids = tables_->encoder.encode(text, options.parse_special, false).ids;
  if (!options.add_special) return ids;
  std::vector<int32_t> all;
  for (const TemplatePiece& piece : parts().post.single) {
    if (piece.sequence < 0) {
      all.push_back(piece.id);
    } else {
      all.insert(all.end(), ids.begin(), ids.end());
    }
  }
  return all;
}

const std::optional<Truncation>& Tokenizer::truncation() const { return parts().truncation; }
const std::optional<Padding>& Tokenizer::padding() const { return parts().padding; }
int64_t Tokenizer::special_count(bool pair) const {
  return count_special(pair ? parts().post.pair : parts().post.single);
}

std::string Tokenizer::decode_bytes(std::span<const int32_t> ids, bool skip_special,
                                    std::optional<bool> clean_up) const {
  std::string text;
  bool first = true;
  for (const int32_t id : ids)
    tables_->append_decoded(id, skip_special, clean_up.value_or(parts().decoding.clean_up), first, text);
  return text;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special, std::optional<bool> clean_up) const {
  std::string text = replace_invalid_utf8(decode_bytes(ids, skip_special, clean_up));
  return clean_up.value_or(false) ? clean_up_text(std::move(text)) : text;
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(tables_->bytes.size()); }

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  const auto found = tables_->ids.find(token);
  if (found == tables_->ids.end()) return std::nullopt;
  return found->second;
}

std::string Tokenizer::token_of(int32_t id) const {
  tables_->check_id(id);
  return parts().model.tokens[static_cast<size_t>(id)];
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && tables_->special[static_cast<size_t>(id)];
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const { return parts().added; }
const Tokenizer::Parts& Tokenizer::parts() const { return tables_->parts; }

std::shared_ptr<const Tokenizer> Tokenizer::with_added_tokens(const std::vector<std::string>& special_tokens) const {
  Parts more = parts();
  for (const auto& content : special_tokens) {
    if (content.empty()) throw usage_error("a special token is empty");
    require_utf8(content, "special token");
    const auto known = std::find_if(more.added.begin(), more.added.end(),
                                    [&](const AddedToken& token) { return token.content == content; });
    if (known != more.added.end()) continue;
    auto& tokens = more.model.tokens;
    const std::optional<int32_t> id = id_of(content);
    if (!id) {
      tokens.push_back(content);
      if (more.word_piece) more.added_only.push_back(static_cast<int32_t>(tokens.size()) - 1);
    }
    more.added.push_back({content, id.value_or(static_cast<int32_t>(tokens.size()) - 1)});
  }
  std::sort(more.added.begin(), more.added.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return std::make_shared<const Tokenizer>(std::move(more));
}

namespace {

/// FNV-1a over fields that are kept apart by their lengths.
class Fingerprint {
 public:
  void add(std::string_view text) {
    add(static_cast<int64_t>(text.size()));
    for (const char byte : text) mix(static_cast<uint8_t>(byte));
  }
  void add(int64_t number) {
    for (int shift = 0; shift < 64; shift += 8) mix(static_cast<uint8_t>(static_cast<uint64_t>(number) >> shift));
  }
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  void mix(uint8_t byte) { hash_ = (hash_ ^ byte) * 0x100000001b3ULL; }
  uint64_t hash_ = 0xcbf29ce484222325ULL;
};

}  // namespace

std::string Tokenizer::fingerprint() const {
  const auto& [model, word_piece, added, added_only, normalizer, pre_tokenizer, post, decoding, truncation, padding] =
      parts();
  Fingerprint hash;
  for (const auto& token : model.tokens) hash.add(token);
  for (const auto& merge : model.merges) hash.add(merge.left), hash.add(merge.right);
  for (const auto& token : added) {
    hash.add(token.content);
    for (const bool flag : {token.special, token.lstrip, token.rstrip, token.single_word, token.normalized})
      hash.add(flag);
  }
  // Up to the text, the text, after the text: what older fingerprints of byte-level tokenizers were made of.
  for (const TemplatePiece& piece : post.single) piece.sequence < 0 ? hash.add(piece.id) : hash.add("text");
  const auto& byte_level = pre_tokenizer.byte_level();
  for (const int64_t setting : {int64_t{model.unknown}, int64_t{model.fuse_unknown}, int64_t{model.ignore_merges},
                                int64_t{byte_level.add_prefix_space}, int64_t{byte_level.use_regex}}) {
    hash.add(setting);
  }
  for (const bool keep : post.trims) hash.add(keep);
  if (word_piece) {
    hash.add("WordPiece");
    hash.add(word_piece->unknown), hash.add(word_piece->prefix), hash.add(word_piece->max_characters);
    for (const int32_t id : added_only) hash.add(id);
  }
  if (!normalizer.empty()) hash.add(normalizer.json().dump());
  if (!pre_tokenizer.only_byte_level()) hash.add(pre_tokenizer.json().dump());
  return hash.text();
}

StreamingDecoder::StreamingDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special,
                                   std::optional<bool> clean_up)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special), clean_up_(clean_up) {}

/// Takes what no further id can change out of uncleaned_.
std::string StreamingDecoder::take_complete() {
  const bool cleans = clean_up_.value_or(false);
  const size_t settled = cleans ? settled_by_clean_up(uncleaned_) : uncleaned_.size();
  std::string text = uncleaned_.substr(0, settled);
  uncleaned_.erase(0, settled);
  return cleans ? clean_up_text(std::move(text)) : text;
}

std::string StreamingDecoder::push(int32_t id) {
  tokenizer_->tables_->append_decoded(id, skip_special_, clean_up_.value_or(tokenizer_->parts().decoding.clean_up),
                                      first_, pending_);
  const size_t complete = pending_.size() - incomplete_tail(pending_);
  uncleaned_ += replace_invalid_utf8(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return take_complete();
}

std::string StreamingDecoder::finish() {
  uncleaned_ += replace_invalid_utf8(pending_);
  std::string text = clean_up_.value_or(false) ? clean_up_text(std::move(uncleaned_)) : std::move(uncleaned_);
  pending_.clear();
  uncleaned_.clear();
  first_ = true;
  return text;
}

}  // namespace palimpsest::text
