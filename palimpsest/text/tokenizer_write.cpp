// SPDX-License-Identifier: Apache-2.0
// Writes tokenizer.json in the form that Hugging Face tokenizers reads.
#include <algorithm>

#include "palimpsest/text/tokenizer_json.h"

namespace palimpsest::text {

Json added_token_to_json(const AddedToken& token, bool with_id) {
  Json json = Json::object();
  if (with_id) json["id"] = token.id;
  json["content"] = token.content;
  json["single_word"] = token.single_word;
  json["lstrip"] = token.lstrip;
  json["rstrip"] = token.rstrip;
  json["normalized"] = token.normalized;
  json["special"] = token.special;
  return json;
}

namespace {

/// Merges as "a b", which every version of the reference reads; as pairs where that would be ambiguous.
Json merges_to_json(const BpeModel& model) {
  const auto text_of = [&](int32_t id) -> const std::string& { return model.tokens[static_cast<size_t>(id)]; };
  const bool as_pairs = std::any_of(model.merges.begin(), model.merges.end(), [&](const Merge& merge) {
    return text_of(merge.result).find(' ') != std::string::npos || text_of(merge.left).starts_with("#version");
  });
  Json merges = Json::array();
  for (const auto& merge : model.merges) {
    const auto &left = text_of(merge.left), &right = text_of(merge.right);
    merges.push_back(as_pairs ? Json::array({left, right}) : Json(left + " " + right));
  }
  return merges;
}

/// The vocabulary of the model. Added tokens of BPE stand in it too, or the reference would number them by itself.
Json vocab_to_json(const Tokenizer::Parts& parts) {
  const auto& tokens = parts.model.tokens;
  const size_t count = tokens.size() - parts.added_only.size();  // these are the last ones
  Json vocab = Json::object();
  auto& members = vocab.get_ref<Json::object_t&>();  // append without look-ups: tokens are distinct
  members.reserve(count);
  for (size_t id = 0; id < count; ++id) {
    if (!tokens[id].empty()) members.emplace_back(tokens[id], static_cast<int64_t>(id));
  }
  return vocab;
}

Json byte_pairs_to_json(const BpeModel& model) {
  Json body = Json{{"type", "BPE"}, {"dropout", nullptr}};
  body["unk_token"] = model.unknown < 0 ? Json(nullptr) : Json(model.tokens[static_cast<size_t>(model.unknown)]);
  body["continuing_subword_prefix"] = nullptr;
  body["end_of_word_suffix"] = nullptr;
  body["fuse_unk"] = model.fuse_unknown;
  body["byte_fallback"] = false;
  body["ignore_merges"] = model.ignore_merges;
  return body;
}

Json word_piece_to_json(const WordPieceRules& rules) {
  return Json{{"type", "WordPiece"},
              {"unk_token", rules.unknown_token},
              {"continuing_subword_prefix", rules.prefix},
              {"max_input_chars_per_word", rules.max_characters}};
}

const char* name_of(Side side) { return side == Side::kRight ? "Right" : "Left"; }

Json truncation_to_json(const Truncation& truncation) {
  using Strategy = Truncation::Strategy;
  const char* strategy = truncation.strategy == Strategy::kOnlyFirst    ? "OnlyFirst"
                         : truncation.strategy == Strategy::kOnlySecond ? "OnlySecond"
                                                                        : "LongestFirst";
  return Json{{"direction", name_of(truncation.side)},
              {"max_length", truncation.max_length},
              {"strategy", strategy},
              {"stride", truncation.stride}};
}

Json padding_to_json(const Padding& padding) {
  return Json{{"strategy", padding.length > 0 ? Json{{"Fixed", padding.length}} : Json("BatchLongest")},
              {"direction", name_of(padding.side)},
              {"pad_to_multiple_of", padding.multiple_of > 0 ? Json(padding.multiple_of) : Json(nullptr)},
              {"pad_id", padding.id},
              {"pad_type_id", padding.type_id},
              {"pad_token", padding.token}};
}

}  // namespace

Json parts_to_json(const Tokenizer::Parts& parts) {
  Json added = Json::array();
  for (const auto& token : parts.added) added.push_back(added_token_to_json(token, true));
  Json json = Json::object();
  json["version"] = "1.0";
  json["truncation"] = parts.truncation ? truncation_to_json(*parts.truncation) : Json(nullptr);
  json["padding"] = parts.padding ? padding_to_json(*parts.padding) : Json(nullptr);
  json["added_tokens"] = std::move(added);
  json["normalizer"] = parts.normalizer.json();
  json["pre_tokenizer"] = parts.pre_tokenizer.json();
  json["post_processor"] = parts.post.json;
  const bool spells_bytes = parts.decoding.kind == Decoding::Kind::kByteLevel;
  json["decoder"] = spells_bytes && parts.decoding.json.is_null() ? PreTokenizer::make_byte_level(true, true).json()
                                                                  : parts.decoding.json;
  json["model"] = parts.word_piece ? word_piece_to_json(*parts.word_piece) : byte_pairs_to_json(parts.model);
  json["model"]["vocab"] = vocab_to_json(parts);
  if (!parts.word_piece) json["model"]["merges"] = merges_to_json(parts.model);
  return json;
}

}  // namespace palimpsest::text
