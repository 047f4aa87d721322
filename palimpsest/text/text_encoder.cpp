// SPDX-License-Identifier: Apache-2.0
// Two fast ways (BERT's words, plain byte-level BPE), and the general one that does every step by itself.
#include "palimpsest/text/text_encoder.h"

#include <algorithm>

#include "palimpsest/core/error.h"
#include "palimpsest/text/byte_level.h"
#include "palimpsest/text/unicode.h"

namespace palimpsest::text {

/// Where tokens go; `lengths` are the bytes of those of the current word.
struct TextEncoder::Sink {
  TextTokens tokens;
  bool with_offsets = true;
  std::vector<uint32_t> lengths_storage;

  std::vector<uint32_t>* lengths() { return with_offsets ? &lengths_storage : nullptr; }
  void add(int32_t id, size_t first, size_t last, std::string_view spelling) {
    if (with_offsets) {
      tokens.spellings.emplace_back(tokens.ids.size(), spelling);
      tokens.offsets.emplace_back(static_cast<int64_t>(first), static_cast<int64_t>(last));
    }
    tokens.ids.push_back(id);
  }
};

TextEncoder::TextEncoder(const Tokenizer::Parts& parts) : parts_(parts), finder_(parts.added, parts.normalizer) {
  if (parts.word_piece) {
    std::vector<std::string> tokens = parts.model.tokens;
    for (const int32_t id : parts.added_only) tokens[static_cast<size_t>(id)].clear();
    word_pieces_ = WordPieceEncoder(tokens, *parts.word_piece);
    const auto bert = parts.normalizer.only_bert();
    if (bert && parts.pre_tokenizer.only_bert() && !finder_.has_normalized())
      bert_words_ = std::make_unique<const BertWords>(*bert);
  } else {
    byte_pairs_ = std::make_unique<const BytePairEncoder>(parts.model);
    bytes_only_ = parts.normalizer.empty() && parts.pre_tokenizer.only_byte_level() && !finder_.has_normalized();
  }
}

TextTokens TextEncoder::encode(std::string_view text, bool parse_special, bool with_offsets) const {
  Sink sink;
  sink.with_offsets = with_offsets;
  sink.tokens.ids.reserve(text.size() / 4 + 4);
  if (with_offsets) sink.tokens.offsets.reserve(text.size() / 4 + 4);
  for (const TextSpan& span : finder_.split(text, parse_special)) {
    const std::string_view part = text.substr(span.first, span.last - span.first);
    if (span.id >= 0) {
      sink.add(span.id, span.first, span.last, part);  // with the white space it took, as in the reference
    } else if (bytes_only_) {
      encode_bytes(part, span.first, sink);
    } else if (bert_words_ == nullptr || !encode_bert(part, span.first, sink)) {
      encode_aligned(part, span.first, parse_special, sink);
    }
  }
  return std::move(sink.tokens);
}

TextTokens TextEncoder::encode_step_by_step(std::string_view text, bool parse_special) const {
  Sink sink;
  for (const TextSpan& span : finder_.split(text, parse_special)) {
    const std::string_view part = text.substr(span.first, span.last - span.first);
    if (span.id >= 0) {
      sink.add(span.id, span.first, span.last, part);
    } else {
      encode_aligned(part, span.first, parse_special, sink);
    }
  }
  return std::move(sink.tokens);
}

std::string_view TextEncoder::with_prefix_space(std::string_view piece, std::string& buffer) const {
  if (!parts_.pre_tokenizer.byte_level().add_prefix_space || piece.empty() || piece.front() == ' ') return piece;
  buffer.reserve(piece.size() + 1);
  buffer = ' ';
  buffer += piece;
  return buffer;
}

void TextEncoder::encode_word(std::string_view word, Sink& sink) const {
  if (word_pieces_.encode(word, sink.tokens.ids, sink.lengths())) return;
  throw input_error(fmt::format("the vocabulary has no pieces for the word \"{}\", and no token {} for unknown words",
                                printable(word, 40), parts_.word_piece->unknown_token),
                    "", "add the unknown token to the vocabulary");
}

/// The words of a piece that goes to byte-level BPE.
void TextEncoder::encode_words(std::string_view piece, Sink& sink) const {
  if (const size_t bad = byte_pairs_->find_unencodable(piece); bad != std::string_view::npos) {
    throw input_error(fmt::format("the vocabulary has no token for the byte 0x{:02x} and no unknown token",
                                  static_cast<uint8_t>(piece[bad])),
                      "", "use a vocabulary with all 256 bytes");
  }
  if (!parts_.pre_tokenizer.byte_level().use_regex) {
    byte_pairs_->encode(piece, sink.tokens.ids, sink.lengths());
    return;
  }
  for (size_t at = 0; at < piece.size();) {
    const size_t end = word_end(piece, at);
    byte_pairs_->encode(piece.substr(at, end - at), sink.tokens.ids, sink.lengths());
    at = end;
  }
}

void TextEncoder::encode_bytes(std::string_view piece, size_t offset, Sink& sink) const {
  std::string buffer;
  const std::string_view read = with_prefix_space(piece, buffer);
  sink.lengths_storage.clear();
  encode_words(read, sink);
  if (!sink.with_offsets) return;
  // A token covers every character it has a byte of; a space that was put in front counts as the first one.
  const size_t shift = read.size() - piece.size();
  size_t byte = 0;
  for (const uint32_t length : sink.lengths_storage) {
    size_t first = byte > shift ? byte - shift : 0, last = std::max(byte + length, shift + 1) - shift;
    byte += length;
    while (!starts_code_point(piece[first])) --first;
    while (last < piece.size() && !starts_code_point(piece[last])) ++last;
    sink.tokens.offsets.emplace_back(static_cast<int64_t>(offset + first), static_cast<int64_t>(offset + last));
  }
}

bool TextEncoder::encode_bert(std::string_view piece, size_t offset, Sink& sink) const {
  if (piece.size() > UINT32_MAX) return false;
  const size_t first_id = sink.tokens.ids.size();
  const bool done = bert_words_->visit(piece, [&](const BertWord& word) {
    sink.lengths_storage.clear();
    encode_word(word.bytes, sink);
    if (!sink.with_offsets) return;
    size_t byte = 0;
    for (const uint32_t length : sink.lengths_storage) {
      sink.tokens.offsets.emplace_back(static_cast<int64_t>(offset + word.source_first(byte)),
                                       static_cast<int64_t>(offset + word.source_last(byte + length - 1)));
      byte += length;
    }
  });
  if (!done) {
    sink.tokens.ids.resize(first_id);
    if (sink.with_offsets) sink.tokens.offsets.resize(first_id);
  }
  return done;
}

void TextEncoder::encode_aligned(std::string_view piece, size_t offset, bool parse_special, Sink& sink) const {
  AlignedText text(piece);
  parts_.normalizer.normalize(text);
  const std::string_view bytes = text.text();
  for (const TextSpan& span : finder_.split_normalized(bytes, parse_special)) {
    if (span.id >= 0) {
      const SourceRange source = text.source_of(span.first, span.last);
      sink.add(span.id, offset + source.first, offset + source.last, bytes.substr(span.first, span.last - span.first));
      continue;
    }
    for (const Piece& word : parts_.pre_tokenizer.split(bytes, {span.first, span.last}))
      encode_piece(text, word, offset, sink);
  }
}

void TextEncoder::encode_piece(const AlignedText& text, Piece piece, size_t offset, Sink& sink) const {
  const std::string_view bytes = std::string_view(text.text()).substr(piece.first, piece.last - piece.first);
  std::string buffer;
  const std::string_view read = parts_.word_piece ? bytes : with_prefix_space(bytes, buffer);
  const size_t shift = read.size() - bytes.size();
  sink.lengths_storage.clear();
  parts_.word_piece ? encode_word(read, sink) : encode_words(read, sink);
  if (!sink.with_offsets) return;
  size_t byte = 0;
  for (const uint32_t length : sink.lengths_storage) {
    const size_t first = byte > shift ? byte - shift : 0, last = std::max(byte + length, shift + 1) - shift;
    const SourceRange source = text.source_of(piece.first + first, piece.first + last);
    sink.tokens.offsets.emplace_back(static_cast<int64_t>(offset + source.first),
                                     static_cast<int64_t>(offset + source.last));
    byte += length;
  }
}

}  // namespace palimpsest::text
