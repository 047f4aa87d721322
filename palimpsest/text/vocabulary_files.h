// SPDX-License-Identifier: Apache-2.0
// Tokenizers from vocabularies in files of their own, with what stands beside them in the folder.
#pragma once

#include <filesystem>
#include <utility>

#include "palimpsest/text/tokenizer_json.h"

namespace palimpsest::text {

/// Byte-level BPE of a vocabulary and its merges: the names of the two files.
Tokenizer::Parts parts_from_pair(const std::filesystem::path& folder, const std::pair<const char*, const char*>& names);
/// WordPiece with BERT's rules. tokenizer_config.json beside it decides do_lower_case (true where it is silent, which
/// is the reference's default; a cased vocabulary needs it), strip_accents, tokenize_chinese_chars and the special
/// tokens.
Tokenizer::Parts parts_from_vocab_txt(const std::filesystem::path& path);

}  // namespace palimpsest::text
