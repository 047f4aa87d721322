// SPDX-License-Identifier: Apache-2.0
// Reads tokenizer.json strictly: what is not implemented is refused by name.
#include "palimpsest/text/tokenizer_json.h"

#include <algorithm>

#include "palimpsest/core/error.h"
#include "palimpsest/text/byte_level.h"
#include "palimpsest/text/json_node.h"

namespace palimpsest::text {

namespace {

/// What `token` is in `ids`, or an error.
int32_t id_in(const TokenIds& ids, const std::string& token, const Node& node) {
  const auto found = ids.find(token);
  if (found == ids.end()) throw node.error(fmt::format("the token \"{}\" is not in the vocabulary", token));
  return found->second;
}

void check_reach(int64_t id, const std::string& token, size_t count, const std::string& place) {
  // Files have holes, but tables are by id: a stray number must not ask for gigabytes.
  if (id < 0 || id > static_cast<int64_t>(4 * count + 100000)) {
    throw input_error(fmt::format("the id {} of \"{}\" is out of range", id, token), place,
                      fmt::format("the vocabulary has {} tokens; ids should go from 0 to {}", count, count - 1));
  }
}

std::string model_type(const Node& model) {
  if (!model.is_null("type")) return model.type();
  // Files of old versions name no type.
  return model.find("max_input_chars_per_word") != nullptr && model.find("merges") == nullptr ? "WordPiece" : "BPE";
}

/// Options of the model that would change ids: refused unless they say "nothing".
void check_model(const Node& model) {
  const std::string type = model_type(model);
  if (type == "WordPiece") return;
  if (type != "BPE") throw not_supported(model, fmt::format("the model {}", type), "WordPiece, byte-level BPE");
  const Json* dropout = model.find("dropout");
  if (dropout != nullptr && !dropout->is_null() && !(dropout->is_number() && dropout->get<double>() == 0)) {
    throw not_supported(model.at("dropout"), "dropout of merges", "null or 0");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.text(key, "").empty()) throw not_supported(model.at(key), key, "null or \"\"");
  }
}

void read_merges(const Node& merges, BpeModel& model) {
  const TokenIds ids = ids_of(model.tokens);
  const bool has_header = !merges.array().json.empty() && merges.json.at(0).is_string() &&
                          merges.json.at(0).get_ref<const std::string&>().starts_with("#version");
  for (size_t i = has_header ? 1 : 0; i < merges.size(); ++i) {
    const Json& entry = merges.json[i];
    const auto malformed = [&] { return merges.entry(i).error("a merge is two tokens: \"a b\" or [\"a\", \"b\"]"); };
    std::string left, right;
    if (entry.is_string()) {
      const auto& text = entry.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) throw malformed();
      left = text.substr(0, space), right = text.substr(space + 1);
    } else {
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_string()) throw malformed();
      left = entry[0].get<std::string>(), right = entry[1].get<std::string>();
    }
    model.merges.push_back(make_merge(ids, left, right, [&] { return merges.entry(i).place; }));
  }
}

void read_byte_pairs(const Node& node, BpeModel& model) {
  model.fuse_unknown = node.flag("fuse_unk", false);
  model.ignore_merges = node.flag("ignore_merges", false);
  const TokenIds ids = ids_of(model.tokens);
  if (const std::string unknown = node.text("unk_token", ""); !unknown.empty())
    model.unknown = id_in(ids, unknown, node.at("unk_token"));
  if (node.flag("byte_fallback", false)) {
    // It never acts where every byte has a token of its own.
    for (const auto& character : alphabet()) {
      if (ids.find(character) == ids.end()) {
        throw not_supported(node.at("byte_fallback"), "byte_fallback in a vocabulary without all 256 bytes", "false");
      }
    }
  }
  read_merges(node.at("merges"), model);
}

void read_word_piece(const Node& node, Tokenizer::Parts& parts) {
  WordPieceRules rules;
  rules.unknown_token = node.text("unk_token", "[UNK]");
  rules.prefix = node.text("continuing_subword_prefix", "##");
  if (!node.is_null("max_input_chars_per_word"))
    rules.max_characters = node.at("max_input_chars_per_word").integer_in(0, INT32_MAX);
  const auto& tokens = parts.model.tokens;
  const auto unknown = std::find(tokens.begin(), tokens.end(), rules.unknown_token);
  // Without one, as in the reference, only a text that needs it is an error.
  if (unknown != tokens.end()) rules.unknown = static_cast<int32_t>(unknown - tokens.begin());
  parts.word_piece = rules;
}

/// What only one of the two models can be combined with.
void check_combination(const Node& root, const Tokenizer::Parts& parts) {
  const bool spells_bytes = parts.pre_tokenizer.byte_level().present;
  if (parts.word_piece && spells_bytes)
    throw not_supported(root.at("pre_tokenizer"), "WordPiece after the pre-tokenizer ByteLevel", "ByteLevel with BPE");
  if (!parts.word_piece && !spells_bytes) {
    const Node place = root.find("pre_tokenizer") != nullptr ? root.at("pre_tokenizer") : root;
    throw not_supported(place, "BPE without the ByteLevel pre-tokenizer", "ByteLevel, or a Sequence that ends with it");
  }
}

}  // namespace

TokenIds ids_of(const std::vector<std::string>& tokens) {
  TokenIds ids;
  ids.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) ids.emplace(tokens[id], static_cast<int32_t>(id));
  }
  return ids;
}

std::vector<std::string> tokens_from_json(const Json& vocab, const std::string& source) {
  const Node node{vocab, source};
  if (node.object().json.empty()) throw node.error("the vocabulary is empty");
  std::vector<std::string> tokens;
  tokens.reserve(vocab.size());
  for (const auto& [token, value] : vocab.items()) {
    if (!value.is_number_integer()) throw node.error(fmt::format("the id of \"{}\" must be a whole number", token));
    if (token.empty()) throw node.error("a token is empty", "remove it: no text has it");
    const int64_t id = value.get<int64_t>();
    check_reach(id, token, vocab.size(), source);
    const auto index = static_cast<size_t>(id);
    if (index >= tokens.size()) tokens.resize(index + 1);
    if (!tokens[index].empty()) {
      throw node.error(fmt::format("\"{}\" and \"{}\" have the same id {}", tokens[index], token, id));
    }
    tokens[index] = token;
  }
  return tokens;
}

Merge make_merge(const TokenIds& ids, const std::string& left, const std::string& right,
                 const std::function<std::string()>& place) {
  const auto look_up = [&](const std::string& token) {
    const auto found = ids.find(token);
    if (found == ids.end()) {
      throw input_error(
          fmt::format("the merge \"{} {}\" needs the token \"{}\", which is not in the vocabulary", left, right, token),
          place(), "check that vocabulary and merges belong together");
    }
    return found->second;
  };
  return {look_up(left), look_up(right), look_up(left + right)};
}

void read_added_token(const Json& entry, int64_t id, const std::string& place, Tokenizer::Parts& parts) {
  const Node node{entry, place};
  auto& tokens = parts.model.tokens;
  AddedToken token;
  token.content = node.object().at("content").string();
  if (token.content.empty()) throw node.error("an added token is empty");
  token.special = node.flag("special", false);
  token.lstrip = node.flag("lstrip", false);
  token.rstrip = node.flag("rstrip", false);
  token.single_word = node.flag("single_word", false);
  token.normalized = node.flag("normalized", false);
  check_reach(id, token.content, tokens.size(), place);
  token.id = static_cast<int32_t>(id);
  const auto index = static_cast<size_t>(id);
  if (index >= tokens.size()) tokens.resize(index + 1);
  if (tokens[index].empty()) {
    if (const auto other = std::find(tokens.begin(), tokens.end(), token.content); other != tokens.end()) {
      throw node.error(
          fmt::format("\"{}\" has the id {} here and {} in the vocabulary", token.content, id, other - tokens.begin()));
    }
    tokens[index] = token.content;
    if (parts.word_piece) parts.added_only.push_back(token.id);
  } else if (tokens[index] != token.content) {
    throw node.error(fmt::format("the id {} of \"{}\" belongs to \"{}\"", id, token.content, tokens[index]));
  }
  parts.added.push_back(std::move(token));
}

void sort_added_tokens(Tokenizer::Parts& parts, const std::string& source) {
  auto& added = parts.added;
  std::sort(parts.added_only.begin(), parts.added_only.end());
  std::sort(added.begin(), added.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  const auto twice =
      std::adjacent_find(added.begin(), added.end(), [](const auto& a, const auto& b) { return a.id == b.id; });
  if (twice != added.end()) throw input_error(fmt::format("\"{}\" is added twice", twice->content), source);
}

Tokenizer::Parts parts_from_json(const Json& json, const std::string& source) {
  const Node root{json, source};
  if (root.object().find("model") == nullptr) {
    throw root.error("this is not a tokenizer.json: it has no \"model\"",
                     "give the folder, so that the right file is found in it");
  }
  Tokenizer::Parts parts;
  // The model first: whoever gives a file of another family should read that word.
  const Node model = root.at("model").object();
  check_model(model);
  if (!root.is_null("normalizer")) parts.normalizer = Normalizer(root.at("normalizer"));
  parts.pre_tokenizer = root.is_null("pre_tokenizer") ? PreTokenizer() : PreTokenizer(root.at("pre_tokenizer"));
  parts.model.tokens = tokens_from_json(model.at("vocab").json, fmt::format("{}, vocab", model.place));
  model_type(model) == "WordPiece" ? read_word_piece(model, parts) : read_byte_pairs(model, parts.model);
  check_combination(root, parts);
  if (!root.is_null("added_tokens")) {
    const Node added = root.at("added_tokens").array();
    for (size_t i = 0; i < added.size(); ++i) {
      const Node entry = added.entry(i).object();
      read_added_token(entry.json, entry.at("id").integer(), entry.place, parts);
    }
    sort_added_tokens(parts, added.place);
  }
  if (!root.is_null("post_processor")) parts.post = read_post_processing(root.at("post_processor"), parts.model.tokens);
  parts.decoding = read_decoding(root, parts.word_piece.has_value());
  if (!root.is_null("truncation")) parts.truncation = read_truncation(root.at("truncation"));
  if (!root.is_null("padding")) parts.padding = read_padding(root.at("padding"));
  return parts;
}

}  // namespace palimpsest::text
