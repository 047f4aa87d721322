// SPDX-License-Identifier: Apache-2.0
// The search for added tokens, with the rules of the reference for white space and whole words.
#include "palimpsest/text/added_tokens.h"

#include <algorithm>

#include "palimpsest/text/unicode.h"

namespace palimpsest::text {

namespace {

/// Where the character that ends before `end` starts (`end` > 0).
size_t previous_character(std::string_view text, size_t end) {
  do --end;
  while (end > 0 && !starts_code_point(text[end]));
  return end;
}

/// The start of the white space that ends at `end`.
size_t white_space_before(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t start = previous_character(text, end);
    if (!is_white_space(utf8_step(text, start).code_point)) break;
    end = start;
  }
  return end;
}

/// The end of the white space that starts at `start`.
size_t white_space_after(std::string_view text, size_t start) {
  while (start < text.size()) {
    const Utf8Step step = utf8_step(text, start);
    if (!is_white_space(step.code_point)) break;
    start += step.length;
  }
  return start;
}

bool touches_a_word(std::string_view text, size_t first, size_t last) {
  return (first > 0 && is_word_character(utf8_step(text, previous_character(text, first)).code_point)) ||
         (last < text.size() && is_word_character(utf8_step(text, last).code_point));
}

}  // namespace

void AddedTokenFinder::Tree::add(const AddedToken& token) {
  if (token.content.empty()) return;  // nothing is left of it after normalization
  uint32_t node = 0;
  for (const char byte : token.content) {
    const auto [child, is_new] = nodes_[node].children.try_emplace(byte, static_cast<uint32_t>(nodes_.size()));
    node = child->second;
    if (is_new) nodes_.emplace_back();
  }
  if (nodes_[node].token >= 0) return;  // of two with one normalized form, the first counts
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
  starts_[static_cast<uint8_t>(token.content.front())] = true;
}

int32_t AddedTokenFinder::Tree::longest_at(std::string_view text, size_t position) const {
  int32_t longest = -1;
  uint32_t node = 0;
  for (size_t at = position; at < text.size(); ++at) {
    const auto child = nodes_[node].children.find(text[at]);
    if (child == nodes_[node].children.end()) break;
    node = child->second;
    if (nodes_[node].token >= 0) longest = nodes_[node].token;
  }
  return longest;
}

std::vector<TextSpan> AddedTokenFinder::Tree::split(std::string_view text, bool parse_special) const {
  std::vector<TextSpan> spans;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const int32_t found = starts_[static_cast<uint8_t>(text[at])] ? longest_at(text, at) : -1;
    if (found < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(found)];
    size_t first = at, last = at + token.content.size();
    at = last;  // the search goes on here, whatever the token does to the white space around it
    if (token.special && !parse_special) continue;
    if (token.single_word && touches_a_word(text, first, last)) continue;
    if (token.lstrip) first = std::max(white_space_before(text, first), done);
    if (token.rstrip) last = white_space_after(text, last);
    if (first >= last) continue;  // white space that the token before has taken
    if (done < first) spans.push_back({done, first, -1});
    spans.push_back({first, last, token.id});
    done = last;
  }
  if (done < text.size()) spans.push_back({done, text.size(), -1});
  return spans;
}

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens, const Normalizer& normalizer) {
  for (const bool special : {true, false}) {  // the order that decides between two with one normalized form
    for (AddedToken token : tokens) {
      if (token.special != special) continue;
      if (token.normalized && !normalizer.empty()) {
        AlignedText content(token.content);
        normalizer.normalize(content);
        token.content = content.text();
      }
      (token.normalized ? normalized_ : plain_).add(token);
    }
  }
}

std::vector<TextSpan> AddedTokenFinder::split(std::string_view text, bool parse_special) const {
  return plain_.split(text, parse_special);
}

std::vector<TextSpan> AddedTokenFinder::split_normalized(std::string_view text, bool parse_special) const {
  return normalized_.split(text, parse_special);
}

}  // namespace palimpsest::text
