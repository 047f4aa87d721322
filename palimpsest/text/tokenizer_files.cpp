// SPDX-License-Identifier: Apache-2.0
// Which files a tokenizer is loaded from, and the ones it is saved to.
#include <algorithm>
#include <filesystem>

#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "palimpsest/text/tokenizer_json.h"
#include "palimpsest/text/vocabulary_files.h"

namespace fs = std::filesystem;

namespace palimpsest::text {

namespace {

/// The two files of a byte-level model under their newer and older names.
constexpr std::pair<const char*, const char*> kPairs[] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};

Error nothing_to_load(const std::string& path) {
  return input_error(
      "there is no tokenizer here", path,
      "expected tokenizer.json, or vocab.json and merges.txt, or encoder.json and vocab.bpe, or vocab.txt");
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
  if (fs::exists(folder / "vocab.txt"))
    return std::make_shared<const Tokenizer>(parts_from_vocab_txt(folder / "vocab.txt"));
  throw nothing_to_load(folder.string());
}

std::shared_ptr<const Tokenizer> load_file(const fs::path& path) {
  const std::string name = path.filename().string();
  for (const auto& names : kPairs) {
    if (name == names.first || name == names.second) {
      return std::make_shared<const Tokenizer>(parts_from_pair(path.parent_path(), names));
    }
  }
  if (path.extension() == ".txt") return std::make_shared<const Tokenizer>(parts_from_vocab_txt(path));
  return Tokenizer::from_json(parse_large_json(read_file(path.string()), path.string()), path.string());
}

/// The roles that transformers gives to tokens of these names.
using Roles = std::vector<std::pair<const char*, const char*>>;
const Roles kRoles = {{"bos_token", "<s>"},   {"eos_token", "</s>"}, {"unk_token", "<unk>"},  {"sep_token", "</s>"},
                      {"pad_token", "<pad>"}, {"cls_token", "<s>"},  {"mask_token", "<mask>"}};
const Roles kGptRoles = {
    {"bos_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}, {"unk_token", "<|endoftext|>"}};

const Roles kBertRoles = {{"unk_token", "[UNK]"},
                          {"sep_token", "[SEP]"},
                          {"pad_token", "[PAD]"},
                          {"cls_token", "[CLS]"},
                          {"mask_token", "[MASK]"}};

/// Role -> token of the special tokens, and a list of those without one.
Json special_tokens_map(const std::vector<AddedToken>& added, const Roles& roles) {
  Json map = Json::object(), others = Json::array();
  for (const auto& [role, name] : roles) {
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
  const Json map = special_tokens_map(added_tokens(), parts().word_piece ? kBertRoles : is_gpt ? kGptRoles : kRoles);
  Json config = Json::object();
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  if (!parts().word_piece) config["add_prefix_space"] = parts().pre_tokenizer.byte_level().add_prefix_space;
  if (const auto bert = parts().normalizer.only_bert()) {
    config["do_lower_case"] = bert->lowercase;
    config["strip_accents"] = bert->strip_accents;
    config["tokenize_chinese_chars"] = bert->handle_chinese_chars;
  }
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
