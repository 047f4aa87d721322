// SPDX-License-Identifier: Apache-2.0
// Clean-up of spaces in decoded text.
#pragma once

#include <string>
#include <string_view>

namespace palimpsest::text {

/// What the WordPiece decoder does to each token with the space before it: " ." becomes ".", " n't" becomes "n't", …
void clean_up_token(std::string& token);
/// The same kind of replacements over a whole text, in the order of the reference.
std::string clean_up_text(std::string text);
/// How many bytes at the start of `text` no continuation can change any more: clean_up_text of them, and of the rest
/// with what follows, give that of all together.
size_t settled_by_clean_up(std::string_view text);

}  // namespace palimpsest::text
