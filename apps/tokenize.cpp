// SPDX-License-Identifier: Apache-2.0
// `palimpsest tokenize`: lines of text to ids.
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>

#include "apps/command.h"
#include "palimpsest/text/tokenizer.h"

namespace palimpsest::app {

namespace {

struct TokenizeOptions {
  std::string tokenizer;
  bool json_lines = false;
  bool add_special = false;
  bool no_parse_special = false;
  static void fields(auto& o, auto&& field) {
    field("tokenizer", o.tokenizer, "tokenizer.json, or a folder with it or with vocab.json and merges.txt");
    field("json_lines", o.json_lines, "each line is a JSON string; ids, tokens and offsets come out as JSON");
    field("add_special", o.add_special, "add the special tokens of the model (<s> … </s>)");
    field("no_parse_special", o.no_parse_special, "special tokens written in the text stay plain text");
  }
};

std::string parse_json_string(const std::string& line) {
  const std::string fix = "each line is one JSON string, like \"some text\"";
  try {
    const Json json = parse_json(line, "");
    if (json.is_string()) return json.get<std::string>();
  } catch (const Error& error) {
    throw input_error(error.problem(), "", fix);
  }
  throw input_error("the line is JSON, but not a string", "", fix);
}

/// By hand: a line may have tens of thousands of tokens, and a tree of JSON values for each is slow.
std::string to_json_line(const text::Encoding& encoding) {
  fmt::memory_buffer line;
  const auto out = std::back_inserter(line);
  fmt::format_to(out, "{{\"ids\":[{}],\"tokens\":[", fmt::join(encoding.ids, ","));
  const char* comma = "";
  for (const auto& token : encoding.tokens) fmt::format_to(out, "{}{}", std::exchange(comma, ","), Json(token).dump());
  fmt::format_to(out, "],\"offsets\":[");
  comma = "";
  for (const auto& [first, last] : encoding.offsets)
    fmt::format_to(out, "{}[{},{}]", std::exchange(comma, ","), first, last);
  fmt::format_to(out, "]}}");
  return fmt::to_string(line);
}

int tokenize(const TokenizeOptions& options, const std::string& file) {
  if (options.tokenizer.empty())
    throw usage_error("--tokenizer is missing", "", "give a tokenizer.json or the folder of a model");
  const auto tokenizer = text::Tokenizer::load(options.tokenizer);
  const text::EncodeOptions encode{.add_special = options.add_special, .parse_special = !options.no_parse_special};
  const bool from_stdin = file.empty() || file == "-";
  std::ifstream opened(from_stdin ? "/dev/null" : file, std::ios::binary);
  if (!opened) throw input_error("cannot be read", file);
  std::istream& in = from_stdin ? std::cin : opened;
  int64_t number = 1;
  for (std::string line; std::getline(in, line); ++number) {
    try {
      if (options.json_lines) {
        print_line(to_json_line(tokenizer->encode(parse_json_string(line), encode)));
      } else {
        print_line(fmt::format("{}", fmt::join(tokenizer->encode_ids(line, encode), " ")));
      }
    } catch (const Error& error) {
      throw error.within(fmt::format("{}, line {}", from_stdin ? "stdin" : file, number));
    }
  }
  if (in.bad()) throw input_error("cannot be read to its end", from_stdin ? "stdin" : file);
  return 0;
}

}  // namespace

Command tokenize_command() {
  return {"tokenize", "text to token ids, a line at a time",
          "echo '\"Hello world\"' | palimpsest tokenize --tokenizer runs/tokenizer --json-lines", [](CLI::App& app) {
            auto options = std::make_shared<TokenizeOptions>();
            auto file = std::make_shared<std::string>();
            app.add_option("file", *file, "read this file instead of stdin");
            options_to_flags(*options, app);
            return [options, file] { return tokenize(*options, *file); };
          }};
}

}  // namespace palimpsest::app
