// SPDX-License-Identifier: Apache-2.0
// Reads tokenizer.json strictly (what is not implemented is refused by name) and writes it.
#include "palimpsest/text/tokenizer_json.h"

#include <algorithm>
#include <unordered_set>

#include "palimpsest/core/error.h"
#include "palimpsest/core/log.h"
#include "palimpsest/text/byte_level.h"

namespace palimpsest::text {

namespace {

constexpr int kMaxDepth = 128;

/// Builds a Json value from parser events, appending to objects without looking their keys up one by one.
class JsonBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit JsonBuilder(std::string source) : source_(std::move(source)) {}
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(Json::binary(std::move(value))); }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    if (!levels_.back().keys.insert(value).second) {
      throw input_error(fmt::format("duplicate key \"{}\"", value), source_, "keep one of the two");
    }
    key_ = std::move(value);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    const std::string message = error.what();
    const size_t prefix = message.find("] ");
    throw input_error("not valid JSON: " + (prefix == std::string::npos ? message : message.substr(prefix + 2)),
                      source_);
  }

 private:
  struct Level {
    Json* value;
    std::unordered_set<std::string> keys;
  };

  Json* place(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *levels_.back().value;
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    auto& members = parent.get_ref<Json::object_t&>();
    members.emplace_back(key_, std::move(value));
    return &members.back().second;
  }
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (levels_.size() >= kMaxDepth) {
      throw input_error(fmt::format("JSON is nested deeper than {} levels", kMaxDepth), source_);
    }
    levels_.push_back({place(std::move(value)), {}});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  std::string source_, key_;
  Json root_;
  std::vector<Level> levels_;
};

/// A value of the file with the path to it, for errors.
struct Node {
  const Json& json;
  std::string place;

  Error error(const std::string& problem, const std::string& fix = "") const {
    return input_error(problem, place, fix);
  }
  const Json* find(const char* key) const {
    const auto member = json.find(key);
    return member == json.end() ? nullptr : &*member;
  }
  bool is_null(const char* key) const { return find(key) == nullptr || find(key)->is_null(); }
  Node at(const char* key) const {
    const Json* member = find(key);
    if (member == nullptr) throw error(fmt::format("\"{}\" is missing", key));
    return {*member, fmt::format("{}, {}", place, key)};
  }
  Node entry(size_t index) const { return {json.at(index), fmt::format("{}[{}]", place, index)}; }
  Node entry(const std::string& key) const {
    if (!json.contains(key)) throw error(fmt::format("\"{}\" is missing", key));
    return {json.at(key), fmt::format("{}, \"{}\"", place, key)};
  }

  const Node& object() const {
    if (!json.is_object()) throw error("an object is expected here");
    return *this;
  }
  const Node& array() const {
    if (!json.is_array()) throw error("a list is expected here");
    return *this;
  }
  std::string string() const {
    if (!json.is_string()) throw error("a text is expected here");
    return json.get<std::string>();
  }
  int64_t integer() const {
    if (!json.is_number_integer()) throw error("a whole number is expected here");
    return json.get<int64_t>();
  }
  bool boolean() const {
    if (!json.is_boolean()) throw error("true or false is expected here");
    return json.get<bool>();
  }
  bool flag(const char* key, bool otherwise) const { return is_null(key) ? otherwise : at(key).boolean(); }
  std::string type() const { return object().at("type").string(); }
};

Error not_supported(const Node& node, const std::string& what, const std::string& supported) {
  return node.error(fmt::format("{} is not supported, and leaving it out would change the result", what),
                    "supported here: " + supported);
}

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

void read_pre_tokenizer(const Node& root, Tokenizer::Parts& parts) {
  static const std::string kSupported = "ByteLevel, or a Sequence with one ByteLevel";
  const Node node = root.at("pre_tokenizer");
  if (node.json.is_null()) throw not_supported(node, "a model without the ByteLevel pre-tokenizer", kSupported);
  const auto read = [&](const Node& level) {
    parts.add_prefix_space = level.at("add_prefix_space").boolean();
    parts.use_regex = level.flag("use_regex", true);
  };
  const std::string type = node.type();
  if (type == "ByteLevel") return read(node);
  if (type != "Sequence") throw not_supported(node, fmt::format("the pre-tokenizer {}", type), kSupported);
  const Node list = node.at("pretokenizers").array();
  for (size_t i = 0; i < list.json.size(); ++i) {
    if (const std::string inner = list.entry(i).type(); inner != "ByteLevel") {
      throw not_supported(list.entry(i), fmt::format("the pre-tokenizer {}", inner), kSupported);
    }
  }
  if (list.json.size() != 1) throw not_supported(list, "a Sequence that spells bytes twice or never", kSupported);
  read(list.entry(0));
}

/// Options of the model that would change ids: refused unless they say "nothing".
void check_model_options(const Node& model) {
  if (const std::string type = model.is_null("type") ? "BPE" : model.type(); type != "BPE") {
    throw not_supported(model, fmt::format("the model {}", type), "BPE");
  }
  const Json* dropout = model.find("dropout");
  if (dropout != nullptr && !dropout->is_null() && !(dropout->is_number() && dropout->get<double>() == 0)) {
    throw not_supported(model.at("dropout"), "dropout of merges", "null or 0");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.is_null(key) && !model.at(key).string().empty()) throw not_supported(model.at(key), key, "null or \"\"");
  }
}

void read_merges(const Node& merges, BpeModel& model) {
  const TokenIds ids = ids_of(model.tokens);
  const bool has_header = !merges.array().json.empty() && merges.json.at(0).is_string() &&
                          merges.json.at(0).get_ref<const std::string&>().starts_with("#version");
  for (size_t i = has_header ? 1 : 0; i < merges.json.size(); ++i) {
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

void read_model(const Node& node, BpeModel& model) {
  check_model_options(node.object());
  model.tokens = tokens_from_json(node.at("vocab").json, fmt::format("{}, vocab", node.place));
  model.fuse_unknown = node.flag("fuse_unk", false);
  model.ignore_merges = node.flag("ignore_merges", false);
  const TokenIds ids = ids_of(model.tokens);
  if (!node.is_null("unk_token")) {
    const Node unknown = node.at("unk_token");
    if (!unknown.string().empty()) model.unknown = id_in(ids, unknown.string(), unknown);
  }
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

int32_t special_id(const Node& pair, const BpeModel& model) {
  if (pair.array().json.size() != 2) throw pair.error("a token and its id are expected here");
  const std::string token = pair.entry(0).string();
  const int64_t id = pair.entry(1).integer();
  if (id < 0 || id >= static_cast<int64_t>(model.tokens.size()) || model.tokens[static_cast<size_t>(id)] != token) {
    throw pair.error(fmt::format("the vocabulary has no \"{}\" with the id {}", token, id));
  }
  return static_cast<int32_t>(id);
}

void read_template(const Node& node, const BpeModel& model, PostProcessing& post) {
  const Node single = node.at("single").array();
  std::vector<int32_t> prefix, suffix;
  bool seen_text = false;
  for (size_t i = 0; i < single.json.size(); ++i) {
    const Node piece = single.entry(i).object();
    if (piece.find("Sequence") != nullptr) {
      if (piece.at("Sequence").object().at("id").string() != "A" || seen_text) {
        throw not_supported(piece, "a template for one text that uses it twice or another", "$A once");
      }
      seen_text = true;
      continue;
    }
    const std::string name = piece.at("SpecialToken").object().at("id").string();
    const Node ids = node.at("special_tokens").object().entry(name).object().at("ids").array();
    for (size_t k = 0; k < ids.json.size(); ++k) {
      const int64_t id = ids.entry(k).integer();
      if (id < 0 || id >= static_cast<int64_t>(model.tokens.size()) || model.tokens[static_cast<size_t>(id)].empty()) {
        throw ids.entry(k).error(fmt::format("no token has the id {}", id));
      }
      (seen_text ? suffix : prefix).push_back(static_cast<int32_t>(id));
    }
  }
  if (!seen_text) throw single.error("the template has no place for the text ($A)");
  post.prefix.insert(post.prefix.begin(), prefix.begin(), prefix.end());
  post.suffix.insert(post.suffix.end(), suffix.begin(), suffix.end());
}

void read_post_processor(const Node& node, const BpeModel& model, PostProcessing& post, int depth = 0) {
  const std::string type = node.type();
  if (type == "ByteLevel" || type == "RobertaProcessing") {
    if (node.flag("trim_offsets", true)) post.trims.push_back(node.flag("add_prefix_space", true));
  }
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    post.prefix.insert(post.prefix.begin(), special_id(node.at("cls"), model));
    post.suffix.push_back(special_id(node.at("sep"), model));
  } else if (type == "TemplateProcessing") {
    read_template(node, model, post);
  } else if (type == "Sequence" && depth < 4) {
    const Node list = node.at("processors").array();
    for (size_t i = 0; i < list.json.size(); ++i) read_post_processor(list.entry(i), model, post, depth + 1);
  } else if (type != "ByteLevel") {
    throw not_supported(node, fmt::format("the post-processor {}", type),
                        "ByteLevel, RobertaProcessing, BertProcessing, TemplateProcessing, a Sequence of them");
  }
}

void check_decoder(const Node& node) {
  static const std::string kSupported = "ByteLevel, or null";
  const std::string type = node.type();
  if (type == "ByteLevel") return;
  if (type != "Sequence") throw not_supported(node, fmt::format("the decoder {}", type), kSupported);
  const Node list = node.at("decoders").array();
  if (list.json.size() != 1 || list.entry(0).type() != "ByteLevel") {
    throw not_supported(list, "a Sequence of other decoders", kSupported);
  }
}

}  // namespace

Json parse_large_json(const std::string& text, const std::string& source) {
  JsonBuilder builder(source);
  Json::sax_parse(text, &builder);
  return builder.take();
}

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
  } else if (tokens[index] != token.content) {
    throw node.error(fmt::format("the id {} of \"{}\" belongs to \"{}\"", id, token.content, tokens[index]));
  }
  parts.added.push_back(std::move(token));
}

void sort_added_tokens(std::vector<AddedToken>& added, const std::string& source) {
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
  // The model first: whoever gives a WordPiece file should read that word.
  const Node model = root.at("model").object();
  check_model_options(model);
  if (!root.is_null("normalizer")) {
    const Node normalizer = root.at("normalizer");
    throw not_supported(normalizer, fmt::format("the normalizer {}", normalizer.type()), "null");
  }
  for (const char* key : {"truncation", "padding"}) {
    if (!root.is_null(key))
      spdlog::warn("{}: \"{}\" is not applied; lengths are set where texts are read", source, key);
  }
  read_pre_tokenizer(root, parts);
  read_model(model, parts.model);
  if (!root.is_null("added_tokens")) {
    const Node added = root.at("added_tokens").array();
    for (size_t i = 0; i < added.json.size(); ++i) {
      const Node entry = added.entry(i).object();
      read_added_token(entry.json, entry.at("id").integer(), entry.place, parts);
    }
    sort_added_tokens(parts.added, added.place);
  }
  if (!root.is_null("post_processor")) {
    parts.post.json = root.at("post_processor").json;
    read_post_processor(root.at("post_processor"), parts.model, parts.post);
  }
  if (!root.is_null("decoder")) check_decoder(root.at("decoder"));
  return parts;
}

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

Json byte_level_json(bool add_prefix_space, bool use_regex) {
  return Json{
      {"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

}  // namespace

Json parts_to_json(const Tokenizer::Parts& parts) {
  const BpeModel& model = parts.model;
  Json vocab = Json::object();
  auto& members = vocab.get_ref<Json::object_t&>();  // append without look-ups: tokens are distinct
  members.reserve(model.tokens.size());
  for (size_t id = 0; id < model.tokens.size(); ++id) {
    // Added tokens stand in the vocabulary too: the reference would number them by itself otherwise.
    if (!model.tokens[id].empty()) members.emplace_back(model.tokens[id], static_cast<int64_t>(id));
  }
  Json added = Json::array();
  for (const auto& token : parts.added) added.push_back(added_token_to_json(token, true));
  Json json = Json::object();
  json["version"] = "1.0";
  json["truncation"] = nullptr;
  json["padding"] = nullptr;
  json["added_tokens"] = std::move(added);
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = byte_level_json(parts.add_prefix_space, parts.use_regex);
  json["post_processor"] = parts.post.json;
  json["decoder"] = byte_level_json(true, true);
  json["model"] = Json{{"type", "BPE"}, {"dropout", nullptr}};
  Json& body = json["model"];
  body["unk_token"] = model.unknown < 0 ? Json(nullptr) : Json(model.tokens[static_cast<size_t>(model.unknown)]);
  body["continuing_subword_prefix"] = nullptr;
  body["end_of_word_suffix"] = nullptr;
  body["fuse_unk"] = model.fuse_unknown;
  body["byte_fallback"] = false;
  body["ignore_merges"] = model.ignore_merges;
  body["vocab"] = std::move(vocab);
  body["merges"] = merges_to_json(model);
  return json;
}

}  // namespace palimpsest::text
