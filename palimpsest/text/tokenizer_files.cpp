// SPDX-License-Identifier: Apache-2.0
// Which files a tokenizer is loaded from, and the ones it is saved to.
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "palimpsest/text/tokenizer_json.h"
#include "palimpsest/text/unicode.h"

namespace fs = std::filesystem;

namespace palimpsest::text {

namespace {

/// The two files of a byte-level model under their newer and older names.
constexpr std::pair<const char*, const char*> kPairs[] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};

/// Lines of a merges file. Only a first line "#version" is a header: other lines that start with # are merges.
std::vector<Merge> read_merges_file(const std::string& path, const TokenIds& ids) {
  const std::string bytes = read_file(path);
  require_utf8(bytes, path);
  std::string_view rest = bytes;
  if (rest.starts_with("\xEF\xBB\xBF")) rest.remove_prefix(3);
  std::vector<Merge> merges;
  int64_t blank = 0;  // the first of blank lines that so far might be the end
  for (int64_t number = 1; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
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

/// What a tokenizer_config.json beside the two files says.
struct Config {
  bool add_prefix_space = false, trim_offsets = true;
  Json added = Json::object();  ///< id -> token with its flags
};

Config read_config(const fs::path& folder) {
  Config config;
  const std::string path = (folder / "tokenizer_config.json").string();
  if (!fs::exists(path)) return config;
  const Json json = parse_large_json(read_file(path), path);
  if (!json.is_object()) throw input_error("an object is expected here", path);
  const auto flag = [&](const char* key, bool& value) {
    if (!json.contains(key) || json.at(key).is_null()) return;
    if (!json.at(key).is_boolean()) throw input_error(fmt::format("\"{}\" must be true or false", key), path);
    value = json.at(key).get<bool>();
  };
  flag("add_prefix_space", config.add_prefix_space);
  flag("trim_offsets", config.trim_offsets);
  if (json.contains("added_tokens_decoder")) config.added = json.at("added_tokens_decoder");
  if (!config.added.is_object()) throw input_error("an object is expected here", path + ", added_tokens_decoder");
  return config;
}

void read_added_from_config(const Json& added, const std::string& path, Tokenizer::Parts& parts) {
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
  if (!fs::exists(path)) return;
  const Json json = parse_large_json(read_file(path), path);
  if (!json.is_object()) throw input_error("an object is expected here", path);
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

Tokenizer::Parts parts_from_pair(const fs::path& folder, const std::pair<const char*, const char*>& names) {
  const std::string vocab = (folder / names.first).string(), merges = (folder / names.second).string();
  for (const auto& [missing, other] : {std::pair(vocab, merges), std::pair(merges, vocab)}) {
    if (!fs::exists(missing)) throw input_error("a tokenizer needs this file too, beside " + other, missing);
  }
  const Config config = read_config(folder);
  Tokenizer::Parts parts;
  parts.model.tokens = tokens_from_json(parse_large_json(read_file(vocab), vocab), vocab);
  parts.model.merges = read_merges_file(merges, ids_of(parts.model.tokens));
  parts.add_prefix_space = config.add_prefix_space;
  const std::vector<AddedToken> special = conventional_special_tokens(parts.model);
  parts.post = conventional_post_processing(special, config.add_prefix_space, config.trim_offsets);
  const std::string config_path = (folder / "tokenizer_config.json").string();
  read_added_from_config(config.added, config_path, parts);
  read_added_tokens_file(folder, parts);
  for (const auto& token : special) {
    const auto same = [&](const AddedToken& other) { return other.id == token.id; };
    if (std::none_of(parts.added.begin(), parts.added.end(), same)) parts.added.push_back(token);
  }
  sort_added_tokens(parts.added, config_path);
  return parts;
}

Error nothing_to_load(const std::string& path) {
  return input_error("there is no tokenizer here", path,
                     "expected tokenizer.json, or vocab.json and merges.txt, or encoder.json and vocab.bpe");
}
Error word_piece(const std::string& path) {
  return input_error("vocab.txt is a WordPiece vocabulary; only byte-level BPE can be loaded", path,
                     "use the tokenizer of a GPT-2, RoBERTa or BART model");
}

std::shared_ptr<const Tokenizer> load_folder(const fs::path& folder) {
  const fs::path json = folder / "tokenizer.json";
  if (fs::exists(json))
    return Tokenizer::from_json(parse_large_json(read_file(json.string()), json.string()), json.string());
  for (const auto& names : kPairs) {
    if (fs::exists(folder / names.first) || fs::exists(folder / names.second)) {
      return std::make_shared<const Tokenizer>(parts_from_pair(folder, names));
    }
  }
  if (fs::exists(folder / "vocab.txt")) throw word_piece((folder / "vocab.txt").string());
  throw nothing_to_load(folder.string());
}

std::shared_ptr<const Tokenizer> load_file(const fs::path& path) {
  const std::string name = path.filename().string();
  for (const auto& names : kPairs) {
    if (name == names.first || name == names.second) {
      return std::make_shared<const Tokenizer>(parts_from_pair(path.parent_path(), names));
    }
  }
  if (name == "vocab.txt") throw word_piece(path.string());
  return Tokenizer::from_json(parse_large_json(read_file(path.string()), path.string()), path.string());
}

/// The roles that transformers gives to tokens of these names.
const std::vector<std::pair<const char*, const char*>> kRoles = {
    {"bos_token", "<s>"},   {"eos_token", "</s>"}, {"unk_token", "<unk>"},  {"sep_token", "</s>"},
    {"pad_token", "<pad>"}, {"cls_token", "<s>"},  {"mask_token", "<mask>"}};
const std::vector<std::pair<const char*, const char*>> kGptRoles = {
    {"bos_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}, {"unk_token", "<|endoftext|>"}};

/// Role -> token of the special tokens, and a list of those without one.
Json special_tokens_map(const std::vector<AddedToken>& added, bool is_gpt) {
  Json map = Json::object(), others = Json::array();
  for (const auto& [role, name] : is_gpt ? kGptRoles : kRoles) {
    for (const auto& token : added) {
      if (token.content == name && token.special) map[role] = added_token_to_json(token, false);
    }
  }
  for (const auto& token : added) {
    const bool has_role =
        std::any_of(map.begin(), map.end(), [&](const Json& other) { return other["content"] == token.content; });
    if (token.special && !has_role) others.push_back(token.content);
  }
  for (auto& token : map) {
    token.erase("special");
    const bool plain =
        !token["lstrip"].get<bool>() && !token["rstrip"].get<bool>() && !token["single_word"].get<bool>();
    if (plain) token = Json(token["content"].get<std::string>());
  }
  if (!others.empty()) map["additional_special_tokens"] = others;
  return map;
}

}  // namespace

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
  PostProcessing post;
  if (first == special.end() || last == special.end()) return post;
  post.prefix = {first->id};
  post.suffix = {last->id};
  if (trim_offsets) post.trims = {add_prefix_space};
  post.json = Json{{"type", "RobertaProcessing"},
                   {"sep", Json::array({"</s>", last->id})},
                   {"cls", Json::array({"<s>", first->id})},
                   {"trim_offsets", trim_offsets},
                   {"add_prefix_space", add_prefix_space}};
  return post;
}

std::shared_ptr<const Tokenizer> Tokenizer::load(const std::string& path) {
  if (!fs::exists(path))
    throw input_error("no such file or folder", path, "give a tokenizer.json or the folder of a model");
  return fs::is_directory(path) ? load_folder(path) : load_file(path);
}

std::shared_ptr<const Tokenizer> Tokenizer::from_json(const Json& json, const std::string& source) {
  return std::make_shared<const Tokenizer>(parts_from_json(json, source));
}

Json Tokenizer::to_json() const { return parts_to_json(parts()); }

void Tokenizer::save(const std::string& folder) const {
  const bool is_gpt = !id_of("<s>") && id_of("<|endoftext|>");
  const Json map = special_tokens_map(added_tokens(), is_gpt);
  Json config = Json::object();
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  config["add_prefix_space"] = parts().add_prefix_space;
  config["clean_up_tokenization_spaces"] = false;
  Json decoder = Json::object();
  for (const auto& token : added_tokens()) decoder[std::to_string(token.id)] = added_token_to_json(token, false);
  config["added_tokens_decoder"] = decoder;
  for (const auto& [role, token] : map.items()) config[role] = token.is_object() ? token["content"] : token;
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) throw input_error("cannot make the folder: " + code.message(), folder);
  const auto path = [&](const char* name) { return (fs::path(folder) / name).string(); };
  write_json(path("tokenizer.json"), to_json());
  write_json(path("tokenizer_config.json"), config);
  write_json(path("special_tokens_map.json"), map);
}

}  // namespace palimpsest::text
