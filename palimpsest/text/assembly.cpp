// SPDX-License-Identifier: Apache-2.0
// Windows in the order of the reference, and encodings put together piece by piece.
#include "palimpsest/text/assembly.h"

#include <algorithm>
#include <tuple>

#include "palimpsest/core/error.h"
#include "palimpsest/text/byte_level.h"
#include "palimpsest/text/unicode.h"

namespace palimpsest::text {

namespace {

/// The windows of `length` over `count` tokens; only the first where no overflow is wanted.
std::vector<Window> windows_of(size_t count, size_t length, const Truncation& truncation, int64_t special) {
  if (count <= length) return {{0, count}};
  const auto stride = static_cast<size_t>(truncation.stride);
  if (truncation.overflow && stride >= length) {
    throw usage_error(
        fmt::format(
            "stride {} leaves a window no room to move: max_length {} less {} special tokens leaves {} places{}",
            stride, truncation.max_length, special, length,
            static_cast<int64_t>(length) + special < truncation.max_length ? " for this text" : ""),
        "truncation", "choose a stride below that, or a larger max_length");
  }
  std::vector<Window> windows;
  for (size_t moved = 0;; moved += length - stride) {
    const bool is_last = moved + length >= count;
    const Window window = truncation.side == Side::kRight ? Window{moved, std::min(moved + length, count)}
                                                          : Window{is_last ? 0 : count - moved - length, count - moved};
    windows.push_back(window);
    if (is_last || !truncation.overflow) return windows;
  }
}

/// How many places each text of a pair gets: the shorter one keeps what it has up to its half.
std::pair<size_t, size_t> share(size_t text, size_t pair, size_t places) {
  const size_t shorter = std::min(text, pair);
  size_t least = shorter, most = places > shorter ? std::max(shorter, places - shorter) : shorter;
  if (shorter > places || least + most > places) least = places / 2, most = places - least;
  return text > pair ? std::pair(most, least) : std::pair(least, most);
}

}  // namespace

std::vector<WindowPair> truncate(int64_t text, int64_t pair, const Truncation& truncation, int64_t special) {
  const auto describe = [&] { return fmt::format("max_length {}, {} special tokens", truncation.max_length, special); };
  if (truncation.stride < 0)
    throw usage_error(fmt::format("stride is {}", truncation.stride), "truncation", "0 or more");
  if (truncation.max_length < special || truncation.max_length < 0) {
    throw usage_error(fmt::format("{} leaves no place for the text", describe()), "truncation", "a larger max_length");
  }
  const int64_t places = truncation.max_length - special;
  if (truncation.stride >= std::max<int64_t>(places, 1)) {
    throw usage_error(fmt::format("stride {} leaves a window no room to move: max_length {} less {} special tokens "
                                  "leaves {} places",
                                  truncation.stride, truncation.max_length, special, places),
                      "truncation", "choose a stride below that, or a larger max_length");
  }
  auto text_places = static_cast<size_t>(text), pair_places = static_cast<size_t>(std::max<int64_t>(pair, 0));
  const int64_t surplus = text + std::max<int64_t>(pair, 0) - places;
  if (surplus > 0 && truncation.strategy == Truncation::Strategy::kLongestFirst) {
    if (pair < 0) {
      text_places = static_cast<size_t>(places);
    } else {
      std::tie(text_places, pair_places) = share(text_places, pair_places, static_cast<size_t>(places));
    }
  } else if (surplus > 0) {
    const bool second = truncation.strategy == Truncation::Strategy::kOnlySecond;
    if (second && pair < 0)
      throw usage_error("only_second truncates the second text of a pair, and there is none", "truncation",
                        "use longest_first or only_first");
    const int64_t length = second ? pair : text;
    if (length <= surplus && !(length == surplus && places == 0)) {
      throw input_error(
          fmt::format("{} has to remove {} tokens of the {} text, which has {} ({})",
                      second ? "only_second" : "only_first", surplus, second ? "second" : "first", length, describe()),
          "truncation", "use longest_first or a larger max_length");
    }
    (second ? pair_places : text_places) = static_cast<size_t>(length - surplus);
  }
  const auto texts = windows_of(static_cast<size_t>(text), text_places, truncation, special);
  const auto pairs =
      pair < 0 ? std::vector<Window>{{}} : windows_of(static_cast<size_t>(pair), pair_places, truncation, special);
  // The main pair first; then the order of the reference: each further window of the first text with all of the second,
  // at last the first window with the others of the second. (Its RobertaProcessing lists some of these several times.)
  std::vector<WindowPair> windows = {{texts[0], pairs[0]}};
  for (size_t i = 1; i < texts.size(); ++i)
    for (const Window& other : pairs) windows.push_back({texts[i], other});
  for (size_t i = 1; i < pairs.size(); ++i) windows.push_back({texts[0], pairs[i]});
  return windows;
}

int64_t count_special(const Template& pieces) {
  return std::count_if(pieces.begin(), pieces.end(), [](const TemplatePiece& piece) { return piece.sequence < 0; });
}

TokenSpaces spaces_of(std::string_view token) {
  static const char32_t kSpelledSpace = alphabet_character(' ');
  TokenSpaces spaces;
  bool only_spaces = true;
  for (size_t at = 0; at < token.size();) {
    const Utf8Step step = utf8_step(token, at);
    // Counted in the token as it is spelt, so that only spaces count in a word and all white space in an added token.
    const bool is_space = step.code_point == kSpelledSpace || is_white_space(step.code_point);
    only_spaces = only_spaces && is_space;
    if (only_spaces) ++spaces.leading;
    spaces.trailing = is_space ? spaces.trailing + 1 : 0;
    at += step.length;
  }
  return spaces;
}

Encoding Assembler::assemble(const TextTokens& text, const TextTokens* pair, const WindowPair& windows,
                             bool add_special) const {
  Encoding encoding;
  const Template& pieces = pair != nullptr ? parts_.post.pair : parts_.post.single;
  const size_t count = windows.text.last - windows.text.first + windows.pair.last - windows.pair.first + pieces.size();
  encoding.ids.reserve(count), encoding.tokens.reserve(count), encoding.offsets.reserve(count);
  encoding.type_ids.reserve(count), encoding.sequence_ids.reserve(count), encoding.special_tokens_mask.reserve(count);
  for (const TemplatePiece& piece : pieces) {
    if (piece.sequence == 0) append(text, windows.text, piece, encoding);
    if (piece.sequence == 1) append(*pair, windows.pair, piece, encoding);
    if (piece.sequence >= 0 || !add_special) continue;
    encoding.ids.push_back(piece.id);
    encoding.tokens.push_back(parts_.model.tokens[static_cast<size_t>(piece.id)]);
    encoding.offsets.emplace_back(0, 0);
    encoding.type_ids.push_back(piece.type_id);
    encoding.sequence_ids.push_back(-1);
    encoding.special_tokens_mask.push_back(1);
  }
  encoding.attention_mask.assign(encoding.ids.size(), 1);
  return encoding;
}

void Assembler::append(const TextTokens& tokens, Window window, const TemplatePiece& piece, Encoding& encoding) const {
  const size_t start = encoding.ids.size();
  const auto copy = [&](const auto& from, auto& to) {
    to.insert(to.end(), from.begin() + static_cast<int64_t>(window.first),
              from.begin() + static_cast<int64_t>(window.last));
  };
  copy(tokens.ids, encoding.ids);
  copy(tokens.offsets, encoding.offsets);
  for (size_t i = window.first; i < window.last; ++i)
    encoding.tokens.push_back(parts_.model.tokens[static_cast<size_t>(tokens.ids[i])]);
  auto spelt = std::lower_bound(tokens.spellings.begin(), tokens.spellings.end(), window.first,
                                [](const auto& spelling, size_t index) { return spelling.first < index; });
  for (; spelt != tokens.spellings.end() && spelt->first < window.last; ++spelt)
    encoding.tokens[start + spelt->first - window.first] = spelt->second;
  encoding.type_ids.resize(encoding.ids.size(), piece.type_id);
  encoding.sequence_ids.resize(encoding.ids.size(), piece.sequence);
  encoding.special_tokens_mask.resize(encoding.ids.size(), 0);
  for (const bool keep_prefix_space : parts_.post.trims) trim(encoding, start, keep_prefix_space);
}

void Assembler::trim(Encoding& encoding, size_t start, bool keep_prefix_space) const {
  for (size_t i = start; i < encoding.ids.size(); ++i) {
    const std::string& token = encoding.tokens[i];
    const auto id = static_cast<size_t>(encoding.ids[i]);
    auto [leading, trailing] = token == parts_.model.tokens[id] ? spaces_[id] : spaces_of(token);
    auto& [first, last] = encoding.offsets[i];
    // Two or more cannot be the one that was put there: they go, as in the reference.
    if (leading == 1 && keep_prefix_space && (i == start || first == 0)) leading = 0;
    first = std::min(first + leading, last);
    if (last >= trailing) last = std::max(last - trailing, first);
  }
}

namespace {

/// Walks to and fro between neighbouring places, so that offsets in about their order cost linear time.
class Walker {
 public:
  explicit Walker(std::string_view text) : text_(text) {}
  int64_t code_points_before(int64_t byte) {
    while (byte_ < byte) code_points_ += starts_code_point(text_[static_cast<size_t>(byte_++)]);
    while (byte_ > byte) code_points_ -= starts_code_point(text_[static_cast<size_t>(--byte_)]);
    return code_points_;
  }
  int64_t byte_of(int64_t code_point) {
    const auto size = static_cast<int64_t>(text_.size());
    while (code_points_ < code_point || (byte_ < size && !starts_code_point(text_[static_cast<size_t>(byte_)])))
      code_points_before(byte_ + 1);
    while (code_points_ > code_point) code_points_before(byte_ - 1);
    return byte_;
  }

 private:
  std::string_view text_;
  int64_t byte_ = 0, code_points_ = 0;
};

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char byte) { return static_cast<uint8_t>(byte) < 0x80; });
}

}  // namespace

void to_code_points(std::string_view text, std::vector<std::pair<int64_t, int64_t>>& offsets) {
  if (is_ascii(text)) return;
  Walker walker(text);
  for (auto& [first, last] : offsets) first = walker.code_points_before(first), last = walker.code_points_before(last);
}

void to_bytes(std::string_view text, Encoding& encoding, int32_t sequence) {
  if (is_ascii(text)) return;
  Walker walker(text);
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    if (encoding.sequence_ids[i] != sequence) continue;
    auto& [first, last] = encoding.offsets[i];
    first = walker.byte_of(first), last = walker.byte_of(last);
  }
}

void pad(std::vector<Encoding>& encodings, const Padding& padding) {
  if (padding.length < 0 || padding.multiple_of < 0)
    throw usage_error(fmt::format("padding to length {}, a multiple of {}", padding.length, padding.multiple_of),
                      "padding", "0 or more");
  size_t length = static_cast<size_t>(padding.length);
  if (length == 0) {
    for (const auto& encoding : encodings) length = std::max(length, encoding.ids.size());
  }
  const auto multiple = static_cast<size_t>(padding.multiple_of);
  if (multiple > 0 && length % multiple > 0) length += multiple - length % multiple;
  for (auto& encoding : encodings) {
    // Overflowing windows are padded to the same length as the encoding they belong to.
    if (!encoding.overflow.empty()) {
      Padding fixed = padding;
      fixed.length = static_cast<int64_t>(length);
      fixed.multiple_of = 0;
      if (length > 0) pad(encoding.overflow, fixed);
    }
    if (encoding.ids.size() >= length) continue;
    const size_t missing = length - encoding.ids.size();
    const auto fill = [&](auto& list, const auto& value) {
      list.insert(padding.side == Side::kRight ? list.end() : list.begin(), missing, value);
    };
    fill(encoding.ids, padding.id);
    fill(encoding.tokens, padding.token);
    fill(encoding.offsets, std::pair<int64_t, int64_t>(0, 0));
    fill(encoding.type_ids, padding.type_id);
    fill(encoding.sequence_ids, -1);
    fill(encoding.attention_mask, uint8_t{0});
    fill(encoding.special_tokens_mask, uint8_t{1});
  }
}

}  // namespace palimpsest::text
