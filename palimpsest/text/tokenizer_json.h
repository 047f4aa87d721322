// SPDX-License-Identifier: Apache-2.0
// tokenizer.json in and out, and the parsing that a vocabulary of any size needs.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "palimpsest/core/json.h"
#include "palimpsest/text/json_node.h"
#include "palimpsest/text/tokenizer_parts.h"

namespace palimpsest::text {

using TokenIds = std::unordered_map<std::string_view, int32_t>;
TokenIds ids_of(const std::vector<std::string>& tokens);

/// The tokens of a JSON object {token: id}, by id. Ids that repeat, are negative or far off are refused.
std::vector<std::string> tokens_from_json(const Json& vocab, const std::string& source);
/// The merge of two tokens; all three must be in the vocabulary. `place` names the line or entry in errors.
Merge make_merge(const TokenIds& ids, const std::string& left, const std::string& right,
                 const std::function<std::string()>& place);
/// Adds one entry in the form of "added_tokens" (or of "added_tokens_decoder": `id` is then the key).
void read_added_token(const Json& entry, int64_t id, const std::string& place, Tokenizer::Parts& parts);
/// Puts added tokens in the order of ids; one token twice is refused.
void sort_added_tokens(Tokenizer::Parts& parts, const std::string& source);

/// Sections of a tokenizer.json. `tokens` are by id.
PostProcessing read_post_processing(const Node& node, const std::vector<std::string>& tokens);
Decoding read_decoding(const Node& root, bool is_word_piece);
Truncation read_truncation(const Node& node);
Padding read_padding(const Node& node);

/// Reads all of a tokenizer.json.
Tokenizer::Parts parts_from_json(const Json& json, const std::string& source);
Json parts_to_json(const Tokenizer::Parts& parts);
Json added_token_to_json(const AddedToken& token, bool with_id);

}  // namespace palimpsest::text
