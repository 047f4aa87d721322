// SPDX-License-Identifier: Apache-2.0
// Cutting at characters of a class, with what happens to these characters.
#include "palimpsest/text/pre_tokenizers.h"

#include <algorithm>

#include "palimpsest/text/characters.h"
#include "palimpsest/text/unicode.h"

namespace palimpsest::text {

namespace {

constexpr const char* kSupported =
    "BertPreTokenizer, Whitespace, WhitespaceSplit, Punctuation, Digits, ByteLevel, a Sequence of them with ByteLevel "
    "last";

}  // namespace

PreTokenizer PreTokenizer::make_byte_level(bool add_prefix_space, bool use_regex) {
  PreTokenizer made;
  made.byte_level_ = {true, add_prefix_space, use_regex};
  made.json_ = Json{
      {"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
  return made;
}

PreTokenizer::PreTokenizer(const Node& node) : json_(node.json) {
  if (!node.json.is_null()) read(node, 0);
}

void PreTokenizer::read(const Node& node, int depth) {
  const std::string type = node.type();
  if (type == "Sequence" && depth < 8) {
    const Node list = node.at("pretokenizers").array();
    for (size_t i = 0; i < list.size(); ++i) read(list.entry(i), depth + 1);
    return;
  }
  if (byte_level_.present) {
    throw not_supported(node, fmt::format("the pre-tokenizer {} after ByteLevel", type), "ByteLevel as the last one");
  }
  Step step;
  if (type == "ByteLevel") {
    byte_level_ = {true, node.at("add_prefix_space").boolean(), node.flag("use_regex", true)};
    return;
  }
  if (type == "BertPreTokenizer") {
    step.kind = Kind::kBert;
  } else if (type == "Whitespace") {
    step.kind = Kind::kWhitespace;
  } else if (type == "WhitespaceSplit") {
    step.kind = Kind::kWhitespaceSplit;
  } else if (type == "Digits") {
    step.kind = Kind::kDigits;
    step.behavior = node.flag("individual_digits", false) ? Behavior::kIsolated : Behavior::kContiguous;
  } else if (type == "Punctuation") {
    step.kind = Kind::kPunctuation;
    static const std::pair<const char*, Behavior> kBehaviors[] = {{"Removed", Behavior::kRemoved},
                                                                  {"Isolated", Behavior::kIsolated},
                                                                  {"Contiguous", Behavior::kContiguous},
                                                                  {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                                                                  {"MergedWithNext", Behavior::kMergedWithNext}};
    const std::string name = node.text("behavior", "Isolated");
    const auto* found = std::find_if(std::begin(kBehaviors), std::end(kBehaviors),
                                     [&](const auto& behavior) { return name == behavior.first; });
    if (found == std::end(kBehaviors)) throw not_supported(node, fmt::format("the behavior {}", name), kSupported);
    step.behavior = found->second;
  } else {
    throw not_supported(node, fmt::format("the pre-tokenizer {}", type), kSupported);
  }
  steps_.push_back(step);
}

bool PreTokenizer::only_bert() const {
  return steps_.size() == 1 && steps_.front().kind == Kind::kBert && !byte_level_.present;
}

/// Cuts at the characters for which `matches` says yes.
template <class Matches>
void PreTokenizer::split_at(Behavior behavior, std::string_view text, Piece whole, Matches matches,
                            std::vector<Piece>& pieces) {
  struct Part {
    Piece piece;
    bool is_match;
  };
  std::vector<Part> parts;  // each match is a part, and so is each run of other characters
  for (size_t at = whole.first; at < whole.last;) {
    const Utf8Step step = utf8_step(text, at);
    const bool is_match = matches(step.code_point);
    const bool grows =
        !parts.empty() && parts.back().is_match == is_match && (!is_match || behavior == Behavior::kContiguous);
    if (grows) {
      parts.back().piece.last += step.length;
    } else {
      parts.push_back({{at, at + step.length}, is_match});
    }
    at += step.length;
  }
  if (behavior == Behavior::kMergedWithNext) std::reverse(parts.begin(), parts.end());
  const bool merges = behavior == Behavior::kMergedWithNext || behavior == Behavior::kMergedWithPrevious;
  const size_t first_new = pieces.size();
  bool after_match = false;
  for (const auto& [piece, is_match] : parts) {
    if (is_match && behavior == Behavior::kRemoved) continue;
    // Only the first of several matches in a row is merged: this is what the reference does.
    if (merges && is_match && !after_match && pieces.size() > first_new) {
      pieces.back() = {std::min(pieces.back().first, piece.first), std::max(pieces.back().last, piece.last)};
    } else {
      pieces.push_back(piece);
    }
    after_match = is_match;
  }
  if (behavior == Behavior::kMergedWithNext)
    std::reverse(pieces.begin() + static_cast<int64_t>(first_new), pieces.end());
}

void PreTokenizer::split_by(const Step& step, std::string_view text, Piece whole, std::vector<Piece>& pieces) {
  switch (step.kind) {
    case Kind::kBert: {
      std::vector<Piece> words;
      split_at(Behavior::kRemoved, text, whole, is_white_space, words);
      for (const Piece& word : words) split_at(Behavior::kIsolated, text, word, is_punctuation, pieces);
      break;
    }
    case Kind::kWhitespace: {
      // The matches of \w+|[^\w\s]+
      std::vector<Piece> words;
      split_at(Behavior::kRemoved, text, whole, is_white_space, words);
      for (const Piece& word : words) split_at(Behavior::kContiguous, text, word, is_word_character, pieces);
      break;
    }
    case Kind::kWhitespaceSplit:
      split_at(Behavior::kRemoved, text, whole, is_white_space, pieces);
      break;
    case Kind::kPunctuation:
      split_at(step.behavior, text, whole, is_punctuation, pieces);
      break;
    case Kind::kDigits:
      split_at(step.behavior, text, whole, [](char32_t c) { return char_class(c) == CharClass::kNumber; }, pieces);
      break;
  }
}

std::vector<Piece> PreTokenizer::split(std::string_view text, Piece whole) const {
  std::vector<Piece> pieces;
  if (whole.first < whole.last) pieces.push_back(whole);
  for (const Step& step : steps_) {
    std::vector<Piece> finer;
    for (const Piece& piece : pieces) split_by(step, text, piece, finer);
    pieces = std::move(finer);
  }
  return pieces;
}

}  // namespace palimpsest::text
