// SPDX-License-Identifier: Apache-2.0
// `palimpsest detokenize`: lines of ids to text.
#include <iostream>
#include <memory>

#include "apps/command.h"
#include "palimpsest/text/tokenizer.h"

namespace palimpsest::app {

namespace {

struct DetokenizeOptions {
  std::string tokenizer;
  bool skip_special = false;
  std::string clean_up_tokenization_spaces = "auto";
  static void fields(auto& o, auto&& field) {
    field("tokenizer", o.tokenizer, "tokenizer.json, vocab.txt, or a folder with it or with vocab.json and merges.txt");
    field("skip_special", o.skip_special, "leave special tokens out; [UNK] is one, and is dropped silently");
    field("clean_up_tokenization_spaces", o.clean_up_tokenization_spaces,
          "take out spaces before punctuation: auto (WordPiece yes, byte-level no, so that text comes back exactly), "
          "true, false");
  }
};

/// A list of ids, or what `tokenize --json-lines` prints, so that one can be piped into the other.
std::vector<int32_t> parse_ids(const std::string& line) {
  const std::string fix = "each line is a JSON list of ids, like [31373,995]";
  Json json;
  try {
    json = parse_json(line, "");
  } catch (const Error& error) {
    throw input_error(error.problem(), "", fix);
  }
  if (json.is_object() && json.contains("ids")) json = Json(json.at("ids"));
  if (!json.is_array()) throw input_error("the line is JSON, but not a list of ids", "", fix);
  std::vector<int32_t> ids;
  for (const Json& id : json) {
    if (!id.is_number_integer()) throw input_error(fmt::format("{} is not an id", id.dump()), "", fix);
    const auto value = id.get<int64_t>();
    if (value < INT32_MIN || value > INT32_MAX) {
      throw input_error(fmt::format("id {} is not in the vocabulary", id.dump()));
    }
    ids.push_back(static_cast<int32_t>(value));
  }
  return ids;
}

int detokenize(const DetokenizeOptions& options) {
  if (options.tokenizer.empty())
    throw usage_error("--tokenizer is missing", "", "give a tokenizer.json or the folder of a model");
  const auto tokenizer = text::Tokenizer::load(options.tokenizer);
  std::optional<bool> clean_up;
  const std::string& wish = options.clean_up_tokenization_spaces;
  if (wish != "auto" && wish != "true" && wish != "false")
    throw usage_error(fmt::format("--clean-up-tokenization-spaces is \"{}\"", wish), "", "one of auto, true, false");
  if (wish != "auto") clean_up = wish == "true";
  int64_t number = 1;
  for (std::string line; std::getline(std::cin, line); ++number) {
    try {
      print_line(Json(tokenizer->decode(parse_ids(line), options.skip_special, clean_up)).dump());
    } catch (const Error& error) {
      throw error.within(fmt::format("stdin, line {}", number));
    }
  }
  return 0;
}

}  // namespace

Command detokenize_command() {
  return {"detokenize", "token ids to text, a line at a time",
          "echo '[49,83,291]' | palimpsest detokenize --tokenizer runs/tokenizer", [](CLI::App& app) {
            auto options = std::make_shared<DetokenizeOptions>();
            options_to_flags(*options, app);
            return [options] { return detokenize(*options); };
          }};
}

}  // namespace palimpsest::app
