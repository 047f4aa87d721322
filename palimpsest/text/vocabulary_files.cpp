// SPDX-License-Identifier: Apache-2.0
// Vocabularies in files of their own (vocab.txt; vocab.json and merges.txt) and the companions beside them.
#include "palimpsest/text/vocabulary_files.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "palimpsest/text/unicode.h"

namespace fs = std::filesystem;

namespace palimpsest::text {

namespace {

std::string_view without_byte_order_mark(std::string_view bytes) {
  return bytes.starts_with("\xEF\xBB\xBF") ? bytes.substr(3) : bytes;
}

/// Takes one line off `rest`, without its end.
std::string_view take_line(std::string_view& rest) {
  std::string_view line = rest.substr(0, rest.find('\n'));
  rest.remove_prefix(std::min(line.size() + 1, rest.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

/// Lines of a merges file. Only a first line "#version" is a header: other lines that start with # are merges.
std::vector<Merge> read_merges_file(const std::string& path, const TokenIds& ids) {
  const std::string bytes = read_file(path);
  require_utf8(bytes, path);
  std::string_view rest = without_byte_order_mark(bytes);
  std::vector<Merge> merges;
  int64_t blank = 0;  // the first of blank lines that so far might be the end
  for (int64_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = take_line(rest);
    if (number == 1 && line.starts_with("#version")) continue;
    if (line.empty()) {
      if (blank == 0) blank = number;
      continue;
    }
    const auto place = [&, at = blank > 0 ? blank : number] { return fmt::format("{}, line {}", path, at); };
    const size_t space = line.find(' ');
    if (blank > 0 || space == std::string_view::npos || space == 0 || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string_view::npos) {
      throw input_error(fmt::format("a merge is two tokens with one space between, got \"{}\"", blank > 0 ? "" : line),
                        place(), "a merge that cannot be written so needs a tokenizer.json");
    }
    merges.push_back(make_merge(ids, std::string(line.substr(0, space)), std::string(line.substr(space + 1)), place));
  }
  return merges;
}

/// Lines of a vocab.txt: the token of each id. An id whose line is blank has none.
std::vector<std::string> read_vocab_txt(const std::string& path) {
  const std::string bytes = read_file(path);
  require_utf8(bytes, path);
  std::vector<std::string> tokens;
  std::unordered_map<std::string_view, size_t> lines;
  std::string_view rest = without_byte_order_mark(bytes);
  while (!rest.empty()) {
    const std::string_view line = take_line(rest);
    tokens.emplace_back(line);
    if (line.empty()) continue;
    const auto [known, is_new] = lines.emplace(line, tokens.size());
    if (!is_new) {
      throw input_error(fmt::format("the token \"{}\" stands in line {} already", printable(line, 60), known->second),
                        fmt::format("{}, line {}", path, tokens.size()),
                        "keep one of the two and leave the other line blank");
    }
  }
  while (!tokens.empty() && tokens.back().empty()) tokens.pop_back();
  if (tokens.empty()) throw input_error("the vocabulary is empty", path, "a vocab.txt has one token a line");
  return tokens;
}

/// A special token of the companions: its role, and whether its flags are given.
struct Role {
  std::string name;
  AddedToken token;
  bool has_flags = false;
};

/// What tokenizer_config.json and special_tokens_map.json say beside a vocabulary.
struct Companions {
  std::string path;              ///< of tokenizer_config.json
  Json config = Json::object();  ///< {} where there is none
  std::vector<Role> roles;       ///< in the order in which transformers adds those that are new

  Node node() const { return {config, path}; }
  const Role* role(std::string_view name) const {
    const auto found = std::find_if(roles.begin(), roles.end(), [&](const Role& role) { return role.name == name; });
    return found == roles.end() ? nullptr : &*found;
  }
};

Role read_role(const std::string& name, const Node& node) {
  Role role{.name = name, .token = {}};
  role.has_flags = node.json.is_object();
  role.token.content = role.has_flags ? node.at("content").string() : node.string();
  if (role.token.content.empty()) throw node.error("a special token is empty");
  if (!role.has_flags) return role;
  role.token.lstrip = node.flag("lstrip", false);
  role.token.rstrip = node.flag("rstrip", false);
  role.token.single_word = node.flag("single_word", false);
  // Special tokens are looked for as they are written, whatever older files say of "normalized".
  return role;
}

Json read_object(const fs::path& path) {
  if (!fs::exists(path)) return Json::object();
  Json json = parse_large_json(read_file(path.string()), path.string());
  if (!json.is_object()) throw input_error("an object is expected here", path.string());
  return json;
}

Companions read_companions(const fs::path& folder) {
  Companions companions;
  companions.path = (folder / "tokenizer_config.json").string();
  companions.config = read_object(companions.path);
  const std::string map_path = (folder / "special_tokens_map.json").string();
  const Json map = read_object(map_path);
  const auto find = [&](const char* key) -> std::optional<Node> {
    const Node node = companions.node(), other{map, map_path};
    if (!node.is_null(key)) return node.at(key);
    if (!other.is_null(key)) return other.at(key);
    return std::nullopt;
  };
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    if (const auto node = find(name)) companions.roles.push_back(read_role(name, *node));
  }
  if (const auto list = find("additional_special_tokens")) {
    for (size_t i = 0; i < list->array().size(); ++i) companions.roles.push_back(read_role("", list->entry(i)));
  }
  return companions;
}

void read_added_from_config(const Companions& companions, Tokenizer::Parts& parts) {
  const std::string& path = companions.path;
  if (companions.node().is_null("added_tokens_decoder")) return;
  const Json& added = companions.node().at("added_tokens_decoder").object().json;
  for (const auto& [key, entry] : added.items()) {
    const std::string place = fmt::format("{}, added_tokens_decoder, \"{}\"", path, key);
    int64_t id = -1;
    const auto [stop, code] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (code != std::errc() || stop != key.data() + key.size()) throw input_error("the key must be an id", place);
    read_added_token(entry, id, place, parts);
  }
}

/// added_tokens.json of older folders: {token: id}, on top of the vocabulary.
void read_added_tokens_file(const fs::path& folder, Tokenizer::Parts& parts) {
  const std::string path = (folder / "added_tokens.json").string();
  const Json json = read_object(path);
  for (const auto& [content, id] : json.items()) {
    const auto known = std::any_of(parts.added.begin(), parts.added.end(),
                                   [&, name = content](const AddedToken& token) { return token.content == name; });
    if (known) continue;
    if (!id.is_number_integer())
      throw input_error(fmt::format("the id of \"{}\" must be a whole number", content), path);
    Json entry = Json::object();
    entry["content"] = content;
    read_added_token(entry, id.get<int64_t>(), fmt::format("{}, \"{}\"", path, content), parts);
  }
}

/// Adds the special tokens that are not there yet: those of the vocabulary, and at its end the others.
void add_special_tokens(const std::vector<AddedToken>& special, Tokenizer::Parts& parts) {
  auto& tokens = parts.model.tokens;
  const auto is_added = [&](const std::string& content) {
    return std::any_of(parts.added.begin(), parts.added.end(),
                       [&](const AddedToken& token) { return token.content == content; });
  };
  for (AddedToken token : special) {
    if (is_added(token.content)) continue;
    const auto known = std::find(tokens.begin(), tokens.end(), token.content);
    token.id = static_cast<int32_t>(known - tokens.begin());
    if (known == tokens.end()) {
      tokens.push_back(token.content);
      if (parts.word_piece) parts.added_only.push_back(token.id);
    }
    parts.added.push_back(token);
  }
}

/// Everything beside the vocabulary that adds tokens. Of a token with several descriptions the first one counts: its
/// entry with flags, then `conventional`, then its name alone.
void read_added(const fs::path& folder, const Companions& companions, const std::vector<AddedToken>& conventional,
                Tokenizer::Parts& parts) {
  read_added_from_config(companions, parts);
  read_added_tokens_file(folder, parts);
  std::vector<AddedToken> special;
  for (const bool flags : {true, false}) {
    for (const Role& role : companions.roles) {
      if (role.has_flags == flags) special.push_back(role.token);
    }
    if (flags) special.insert(special.end(), conventional.begin(), conventional.end());
  }
  add_special_tokens(special, parts);
  sort_added_tokens(parts, companions.path);
}

int32_t id_in(const Tokenizer::Parts& parts, const std::string& token) {
  const auto& tokens = parts.model.tokens;
  const auto found = std::find(tokens.begin(), tokens.end(), token);
  return found == tokens.end() ? -1 : static_cast<int32_t>(found - tokens.begin());
}

/// The template of BERT, in the form in which transformers saves it.
PostProcessing word_piece_post_processing(const std::string& cls, int32_t cls_id, const std::string& sep,
                                          int32_t sep_id) {
  PostProcessing post = bert_post_processing(cls_id, sep_id);
  const auto token = [](const std::string& name, int type) {
    return Json{{"SpecialToken", {{"id", name}, {"type_id", type}}}};
  };
  const auto text = [](const char* name, int type) { return Json{{"Sequence", {{"id", name}, {"type_id", type}}}}; };
  const auto entry = [](const std::string& name, int32_t id) {
    return Json{{"id", name}, {"ids", Json::array({id})}, {"tokens", Json::array({name})}};
  };
  post.json = Json{{"type", "TemplateProcessing"}};
  post.json["single"] = Json::array({token(cls, 0), text("A", 0), token(sep, 0)});
  post.json["pair"] = Json::array({token(cls, 0), text("A", 0), token(sep, 0), text("B", 1), token(sep, 1)});
  post.json["special_tokens"] = Json::object();
  post.json["special_tokens"][cls] = entry(cls, cls_id);
  post.json["special_tokens"][sep] = entry(sep, sep_id);
  return post;
}

}  // namespace

Tokenizer::Parts parts_from_pair(const fs::path& folder, const std::pair<const char*, const char*>& names) {
  const std::string vocab = (folder / names.first).string(), merges = (folder / names.second).string();
  for (const auto& [missing, other] : {std::pair(vocab, merges), std::pair(merges, vocab)}) {
    if (!fs::exists(missing)) throw input_error("a tokenizer needs this file too, beside " + other, missing);
  }
  const Companions companions = read_companions(folder);
  Tokenizer::Parts parts;
  parts.model.tokens = tokens_from_json(parse_large_json(read_file(vocab), vocab), vocab);
  parts.model.merges = read_merges_file(merges, ids_of(parts.model.tokens));
  const bool add_prefix_space = companions.node().flag("add_prefix_space", false);
  parts.pre_tokenizer = PreTokenizer::make_byte_level(add_prefix_space, true);
  const std::vector<AddedToken> special = conventional_special_tokens(parts.model);
  parts.post = conventional_post_processing(special, add_prefix_space, companions.node().flag("trim_offsets", true));
  read_added(folder, companions, special, parts);
  return parts;
}

Tokenizer::Parts parts_from_vocab_txt(const fs::path& path) {
  const Companions companions = read_companions(path.parent_path());
  const Node config = companions.node();
  if (!config.flag("do_basic_tokenize", true))
    throw not_supported(config.at("do_basic_tokenize"), "a vocab.txt for text that is cut into words already", "true");
  const auto name_of = [&](const char* role, const char* otherwise) {
    return companions.role(role) != nullptr ? companions.role(role)->token.content : std::string(otherwise);
  };
  Tokenizer::Parts parts;
  parts.model.tokens = read_vocab_txt(path.string());
  WordPieceRules rules;
  rules.unknown_token = name_of("unk_token", "[UNK]");
  rules.unknown = id_in(parts, rules.unknown_token);
  parts.word_piece = rules;
  const bool lowercase = config.flag("do_lower_case", true);
  Json normalizer = Json{{"type", "BertNormalizer"}, {"clean_text", true}};
  normalizer["handle_chinese_chars"] = config.flag("tokenize_chinese_chars", true);
  normalizer["strip_accents"] =
      config.is_null("strip_accents") ? Json(nullptr) : Json(config.at("strip_accents").boolean());
  normalizer["lowercase"] = lowercase;
  parts.normalizer = Normalizer(Node{normalizer, "normalizer"});
  const Json pre_tokenizer = Json{{"type", "BertPreTokenizer"}};
  parts.pre_tokenizer = PreTokenizer(Node{pre_tokenizer, "pre_tokenizer"});
  parts.decoding = {.kind = Decoding::Kind::kWordPiece,
                    .prefix = rules.prefix,
                    .clean_up = true,
                    .json = Json{{"type", "WordPiece"}, {"prefix", rules.prefix}, {"cleanup", true}}};
  std::vector<AddedToken> conventional;
  for (const std::string& name :
       {name_of("unk_token", "[UNK]"), name_of("sep_token", "[SEP]"), name_of("pad_token", "[PAD]"),
        name_of("cls_token", "[CLS]"), name_of("mask_token", "[MASK]")}) {
    if (id_in(parts, name) >= 0) conventional.push_back({.content = name});
  }
  read_added(path.parent_path(), companions, conventional, parts);
  const std::string cls = name_of("cls_token", "[CLS]"), sep = name_of("sep_token", "[SEP]");
  const int32_t cls_id = id_in(parts, cls), sep_id = id_in(parts, sep);
  if (cls_id >= 0 && sep_id >= 0) parts.post = word_piece_post_processing(cls, cls_id, sep, sep_id);
  return parts;
}

std::vector<AddedToken> conventional_special_tokens(const BpeModel& model) {
  const TokenIds ids = ids_of(model.tokens);
  std::vector<AddedToken> added;
  const auto add = [&](const char* content, bool lstrip) {
    if (const auto found = ids.find(content); found != ids.end()) {
      added.push_back({.content = content, .id = found->second, .lstrip = lstrip});
    }
  };
  for (const char* content : {"<s>", "<pad>", "</s>", "<unk>"}) add(content, false);
  add("<mask>", true);
  if (added.empty()) add("<|endoftext|>", false);  // RoBERTa's vocabulary has it too, as plain text
  return added;
}

PostProcessing conventional_post_processing(const std::vector<AddedToken>& special, bool add_prefix_space,
                                            bool trim_offsets) {
  const auto find = [&](std::string_view name) {
    return std::find_if(special.begin(), special.end(), [&](const AddedToken& token) { return token.content == name; });
  };
  const auto first = find("<s>"), last = find("</s>");
  if (first == special.end() || last == special.end()) return {};
  PostProcessing post = roberta_post_processing(first->id, last->id);
  if (trim_offsets) post.trims = {add_prefix_space};
  post.json = Json{{"type", "RobertaProcessing"},
                   {"sep", Json::array({"</s>", last->id})},
                   {"cls", Json::array({"<s>", first->id})},
                   {"trim_offsets", trim_offsets},
                   {"add_prefix_space", add_prefix_space}};
  return post;
}

}  // namespace palimpsest::text
