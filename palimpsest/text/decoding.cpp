// SPDX-License-Identifier: Apache-2.0
// Two lists of replacements: a token's, and a text's.
#include "palimpsest/text/decoding.h"

#include <array>
#include <utility>

namespace palimpsest::text {

namespace {

using Replacement = std::pair<std::string_view, std::string_view>;
constexpr std::array<Replacement, 10> kOfTexts = {{{" .", "."},
                                                   {" ?", "?"},
                                                   {" !", "!"},
                                                   {" ,", ","},
                                                   {" ' ", "'"},
                                                   {" n't", "n't"},
                                                   {" 'm", "'m"},
                                                   {" 's", "'s"},
                                                   {" 've", "'ve"},
                                                   {" 're", "'re"}}};
constexpr std::array<Replacement, 11> kOfTokens = {{{" .", "."},
                                                    {" ?", "?"},
                                                    {" !", "!"},
                                                    {" ,", ","},
                                                    {" ' ", "'"},
                                                    {" n't", "n't"},
                                                    {" 'm", "'m"},
                                                    {" do not", " don't"},
                                                    {" 's", "'s"},
                                                    {" 've", "'ve"},
                                                    {" 're", "'re"}}};

/// Each `from`, from left to right; what comes out is not looked at again.
void replace_all(std::string& text, const Replacement& replacement) {
  const auto& [from, to] = replacement;
  size_t found = text.find(from);
  if (found == std::string::npos) return;
  std::string replaced;
  size_t done = 0;
  for (; found != std::string::npos; found = text.find(from, done)) {
    replaced.append(text, done, found - done);
    replaced += to;
    done = found + from.size();
  }
  replaced.append(text, done);
  text = std::move(replaced);
}

}  // namespace

void clean_up_token(std::string& token) {
  for (const auto& replacement : kOfTokens) replace_all(token, replacement);
}

std::string clean_up_text(std::string text) {
  for (const auto& replacement : kOfTexts) replace_all(text, replacement);
  return text;
}

size_t settled_by_clean_up(std::string_view text) {
  // Every replacement starts at a space. One that began earlier can reach over a space only as " ' ", or as " n" before
  // a "'t" that an earlier replacement moved there.
  for (size_t at = text.size(); at-- > 1;) {
    if (text[at] != ' ') continue;
    const char before = text[at - 1];
    const bool may_reach_over = before == ' ' || before == '\'' || (before == 'n' && (at < 2 || text[at - 2] == ' '));
    if (!may_reach_over) return at;
  }
  return 0;
}

}  // namespace palimpsest::text
