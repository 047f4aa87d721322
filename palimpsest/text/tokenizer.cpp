// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding with the tables of one vocabulary.
#include "palimpsest/text/tokenizer.h"

#include <algorithm>
#include <unordered_map>

#include "palimpsest/core/error.h"
#include "palimpsest/text/added_tokens.h"
#include "palimpsest/text/bpe.h"
#include "palimpsest/text/byte_level.h"
#include "palimpsest/text/tokenizer_parts.h"
#include "palimpsest/text/unicode.h"

namespace palimpsest::text {

struct Tokenizer::Tables {
  explicit Tables(Parts given);

  void encode_piece(std::string_view piece, std::vector<int32_t>& ids, std::vector<uint32_t>* lengths) const;
  /// `piece` as the model reads it; `buffer` holds it where it is not `piece` itself.
  std::string_view with_prefix_space(std::string_view piece, std::string& buffer) const;
  void append_piece(std::string_view piece, int64_t first_code_point, Encoding& encoding) const;
  void trim_offsets(Encoding& encoding, bool keep_prefix_space) const;
  void add_special(Encoding& encoding) const;
  void check_id(int32_t id) const;

  Parts parts;
  std::unordered_map<std::string_view, int32_t> ids;  ///< views of parts.model.tokens
  std::vector<std::string> bytes;                     ///< what each id decodes to
  std::vector<bool> special;
  BytePairEncoder encoder;
  AddedTokenFinder finder;
};

Tokenizer::Tables::Tables(Parts given) : parts(std::move(given)), encoder(parts.model), finder(parts.added) {
  const auto& tokens = parts.model.tokens;
  bytes.resize(tokens.size());
  special.resize(tokens.size());
  ids.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) continue;
    ids.emplace(tokens[id], static_cast<int32_t>(id));
    bytes[id] = spelt_bytes(tokens[id]).value_or(tokens[id]);
  }
  for (const auto& token : parts.added) {
    bytes[static_cast<size_t>(token.id)] = token.content;  // written as it is, not in the byte alphabet
    special[static_cast<size_t>(token.id)] = token.special;
  }
}

std::string_view Tokenizer::Tables::with_prefix_space(std::string_view piece, std::string& buffer) const {
  if (!parts.add_prefix_space || piece.empty() || piece.front() == ' ') return piece;
  buffer.reserve(piece.size() + 1);
  buffer = ' ';
  buffer += piece;
  return buffer;
}

void Tokenizer::Tables::encode_piece(std::string_view piece, std::vector<int32_t>& out,
                                     std::vector<uint32_t>* lengths) const {
  if (const size_t bad = encoder.find_unencodable(piece); bad != std::string_view::npos) {
    throw input_error(fmt::format("the vocabulary has no token for the byte 0x{:02x} and no unknown token",
                                  static_cast<uint8_t>(piece[bad])),
                      "", "use a vocabulary with all 256 bytes");
  }
  if (!parts.use_regex) return encoder.encode(piece, out, lengths);
  for (size_t at = 0; at < piece.size();) {
    const size_t end = word_end(piece, at);
    encoder.encode(piece.substr(at, end - at), out, lengths);
    at = end;
  }
}

void Tokenizer::Tables::append_piece(std::string_view piece, int64_t first_code_point, Encoding& encoding) const {
  std::string buffer;
  std::vector<uint32_t> lengths;
  const size_t first_id = encoding.ids.size();
  const std::string_view read = with_prefix_space(piece, buffer);
  encode_piece(read, encoding.ids, &lengths);
  // A token covers every character it has a byte of; a space that was put in front counts as the first one.
  const int64_t shift = read.size() > piece.size() ? 1 : 0;
  CodePointCounter starts(read);
  size_t byte = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t first = std::max<int64_t>(starts.before(byte + 1) - 1 - shift, 0);
    byte += lengths[i];
    const int64_t last = std::max<int64_t>(starts.before(byte) - shift, 1);
    encoding.offsets.emplace_back(first_code_point + first, first_code_point + last);
    encoding.tokens.push_back(parts.model.tokens[static_cast<size_t>(encoding.ids[first_id + i])]);
  }
}

void Tokenizer::Tables::trim_offsets(Encoding& encoding, bool keep_prefix_space) const {
  static const char32_t kSpelledSpace = alphabet_character(' ');
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    // Counted in the token as it is spelt, so that only spaces count in a word and all white space in an added token.
    std::vector<bool> space;
    for (size_t at = 0; at < encoding.tokens[i].size();) {
      const Utf8Step step = utf8_step(encoding.tokens[i], at);
      space.push_back(step.code_point == kSpelledSpace || is_white_space(step.code_point));
      at += step.length;
    }
    int64_t leading = std::find(space.begin(), space.end(), false) - space.begin();
    const int64_t trailing = std::find(space.rbegin(), space.rend(), false) - space.rbegin();
    auto& [first, last] = encoding.offsets[i];
    // Two or more cannot be the one that was put there: they go, as in the reference.
    if (leading == 1 && keep_prefix_space && (i == 0 || first == 0)) leading = 0;
    first = std::min(first + leading, last);
    if (last >= trailing) last = std::max(last - trailing, first);
  }
}

void Tokenizer::Tables::add_special(Encoding& encoding) const {
  const auto surround = [](auto& list, auto before, auto after) {
    list.insert(list.begin(), before.begin(), before.end());
    list.insert(list.end(), after.begin(), after.end());
  };
  const auto tokens_of = [this](const std::vector<int32_t>& list) {
    std::vector<std::string> tokens;
    for (const int32_t id : list) tokens.push_back(parts.model.tokens[static_cast<size_t>(id)]);
    return tokens;
  };
  using Offsets = std::vector<std::pair<int64_t, int64_t>>;
  const auto& [prefix, suffix] = std::tie(parts.post.prefix, parts.post.suffix);
  surround(encoding.ids, prefix, suffix);
  surround(encoding.tokens, tokens_of(prefix), tokens_of(suffix));
  surround(encoding.offsets, Offsets(prefix.size()), Offsets(suffix.size()));
}

void Tokenizer::Tables::check_id(int32_t id) const {
  const auto count = static_cast<int64_t>(bytes.size());
  if (id < 0 || id >= count) {
    throw input_error(fmt::format("id {} is not in the vocabulary", id), "",
                      fmt::format("ids go from 0 to {}", count - 1));
  }
}

Tokenizer::Tokenizer(Parts parts) : tables_(std::make_unique<const Tables>(std::move(parts))) {}
Tokenizer::~Tokenizer() = default;

Encoding Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  require_utf8(text);
  Encoding encoding;
  CodePointCounter code_points(text);
  for (const TextSpan& span : tables_->finder.split(text, options.parse_special)) {
    const std::string_view part = text.substr(span.first, span.last - span.first);
    const int64_t first = code_points.before(span.first);
    if (span.id < 0) {
      tables_->append_piece(part, first, encoding);
    } else {
      encoding.ids.push_back(span.id);
      encoding.tokens.emplace_back(part);  // with the white space it took, as in the reference
      encoding.offsets.emplace_back(first, code_points.before(span.last));
    }
  }
  for (const bool keep_prefix_space : parts().post.trims) tables_->trim_offsets(encoding, keep_prefix_space);
  if (options.add_special) tables_->add_special(encoding);
  return encoding;
}

std::vector<int32_t> Tokenizer::encode_ids(std::string_view text, EncodeOptions options) const {
  require_utf8(text);
  const auto& post = parts().post;
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 4);
  if (options.add_special) ids = post.prefix;
  std::string buffer;
  for (const TextSpan& span : tables_->finder.split(text, options.parse_special)) {
    if (span.id >= 0) {
      ids.push_back(span.id);
    } else {
      tables_->encode_piece(tables_->with_prefix_space(text.substr(span.first, span.last - span.first), buffer), ids,
                            nullptr);
    }
  }
  if (options.add_special) ids.insert(ids.end(), post.suffix.begin(), post.suffix.end());
  return ids;
}

std::string Tokenizer::decode_bytes(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  for (const int32_t id : ids) {
    tables_->check_id(id);
    const auto index = static_cast<size_t>(id);
    if (tables_->bytes[index].empty()) {
      throw input_error(fmt::format("no token has the id {}", id), "", "mask this id when generating");
    }
    if (!skip_special || !tables_->special[index]) text += tables_->bytes[index];
  }
  return text;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  return replace_invalid_utf8(decode_bytes(ids, skip_special));
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
    if (!id) tokens.push_back(content);
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
  const auto& [model, added, add_prefix_space, use_regex, post] = parts();
  Fingerprint hash;
  for (const auto& token : model.tokens) hash.add(token);
  for (const auto& merge : model.merges) hash.add(merge.left), hash.add(merge.right);
  for (const auto& token : added) {
    hash.add(token.content);
    for (const bool flag : {token.special, token.lstrip, token.rstrip, token.single_word, token.normalized})
      hash.add(flag);
  }
  for (const int32_t id : post.prefix) hash.add(id);
  hash.add("text");
  for (const int32_t id : post.suffix) hash.add(id);
  for (const int64_t setting : {int64_t{model.unknown}, int64_t{model.fuse_unknown}, int64_t{model.ignore_merges},
                                int64_t{add_prefix_space}, int64_t{use_regex}}) {
    hash.add(setting);
  }
  for (const bool keep : post.trims) hash.add(keep);
  return hash.text();
}

StreamingDecoder::StreamingDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

std::string StreamingDecoder::push(int32_t id) {
  pending_ += tokenizer_->decode_bytes({&id, 1}, skip_special_);
  const size_t complete = pending_.size() - incomplete_tail(pending_);
  std::string text = replace_invalid_utf8(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return text;
}

std::string StreamingDecoder::finish() {
  std::string text = replace_invalid_utf8(pending_);
  pending_.clear();
  return text;
}

}  // namespace palimpsest::text
