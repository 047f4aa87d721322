// SPDX-License-Identifier: Apache-2.0
// `palimpsest tokenize`: lines of text to ids.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <utility>

#include "apps/command.h"
#include "palimpsest/core/threads.h"
#include "palimpsest/text/tokenizer.h"

namespace palimpsest::app {

namespace {

struct TokenizeOptions {
  std::string tokenizer;
  bool json_lines = false;
  bool add_special = false;
  bool no_parse_special = false;
  std::string offsets = "code-points";
  std::string pair;
  int64_t max_length = 0;
  int64_t stride = 0;
  std::string truncation = "longest_first";
  std::string truncation_side = "right";
  bool overflow = false;
  int64_t pad_to = 0;
  std::string padding_side = "right";
  bool file_lengths = false;
  bool masks = false;
  static void fields(auto& o, auto&& field) {
    field("tokenizer", o.tokenizer, "tokenizer.json, vocab.txt, or a folder with it or with vocab.json and merges.txt");
    field("json_lines", o.json_lines,
          "each line is a JSON string, or a list of two for a pair; ids, tokens and offsets come out as JSON");
    field("add_special", o.add_special, "add the special tokens of the model ([CLS] … [SEP], <s> … </s>)");
    field("no_parse_special", o.no_parse_special, "special tokens written in the text stay plain text");
    field("offsets", o.offsets, "what offsets count: code-points or bytes of the line's text");
    field("pair", o.pair, "a second text that goes with every line");
    field("max_length", o.max_length, "cut to this many ids, special tokens included; 0: no limit");
    field("stride", o.stride, "ids that windows share; above 0, what is cut off comes in further windows");
    field("truncation", o.truncation, "which text gives way: longest_first, only_first, only_second, do_not_truncate");
    field("truncation_side", o.truncation_side, "where ids are cut off: right or left");
    field("overflow", o.overflow, "further windows also with stride 0, as \"overflow\" of --json-lines");
    field("pad_to", o.pad_to, "pad to this many ids; 0: no padding");
    field("padding_side", o.padding_side, "where padding goes: right or left");
    field("file_lengths", o.file_lengths, "apply the sections truncation and padding of tokenizer.json");
    field("masks", o.masks, "with --json-lines: also type_ids, attention_mask and special_tokens_mask");
  }
};

/// The value that goes with `name`; dashes and underscores are the same.
template <class Value>
Value choice(const char* flag, std::string name, const std::vector<std::pair<std::string, Value>>& choices) {
  std::replace(name.begin(), name.end(), '-', '_');
  std::vector<std::string> names;
  for (const auto& [known, value] : choices) {
    if (name == known) return value;
    names.push_back(known);
  }
  throw usage_error(fmt::format("--{} is \"{}\"", flag, name), "", fmt::format("one of {}", fmt::join(names, ", ")));
}

text::Side side(const char* flag, const std::string& name) {
  return choice<text::Side>(flag, name, {{"right", text::Side::kRight}, {"left", text::Side::kLeft}});
}

/// What is done to every line.
struct Plan {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  text::EncodeOptions encode;
  std::optional<text::Padding> padding;
  bool json_lines = false, masks = false;
  std::optional<std::string> pair;
};

/// The token that pads by convention: the file's, else one of the usual names.
text::Padding usual_padding(const text::Tokenizer& tokenizer) {
  if (tokenizer.padding()) return *tokenizer.padding();
  text::Padding padding;
  for (const char* name : {"[PAD]", "<pad>", "<|endoftext|>"}) {
    if (const auto id = tokenizer.id_of(name)) {
      padding.id = *id;
      padding.token = name;
      return padding;
    }
  }
  throw usage_error("the vocabulary has no [PAD], <pad> or <|endoftext|> to pad with", "", "leave --pad-to out");
}

void plan_lengths(const TokenizeOptions& options, Plan& plan) {
  using Strategy = text::Truncation::Strategy;
  if (options.file_lengths) plan.encode.truncation = plan.tokenizer->truncation();
  if (options.file_lengths) plan.padding = plan.tokenizer->padding();
  const auto strategy = choice<std::optional<Strategy>>("truncation", options.truncation,
                                                        {{"longest_first", Strategy::kLongestFirst},
                                                         {"only_first", Strategy::kOnlyFirst},
                                                         {"only_second", Strategy::kOnlySecond},
                                                         {"do_not_truncate", std::nullopt}});
  if (options.max_length < 0 || options.stride < 0 || options.pad_to < 0)
    throw usage_error("--max-length, --stride and --pad-to count ids", "", "give 0 or more");
  if ((options.stride > 0 || options.overflow) && options.max_length == 0)
    throw usage_error("windows need a length", "", "give --max-length");
  const text::Side cut = side("truncation-side", options.truncation_side);
  if (options.max_length > 0 && strategy) {
    plan.encode.truncation = text::Truncation{.max_length = options.max_length,
                                              .strategy = *strategy,
                                              .stride = options.stride,
                                              .side = cut,
                                              .overflow = options.overflow || options.stride > 0};
  }
  const text::Side fill = side("padding-side", options.padding_side);
  if (options.pad_to > 0) {
    plan.padding = usual_padding(*plan.tokenizer);
    plan.padding->length = options.pad_to;
    plan.padding->side = fill;
  }
}

Plan make_plan(const TokenizeOptions& options) {
  if (options.tokenizer.empty())
    throw usage_error("--tokenizer is missing", "", "give a tokenizer.json or the folder of a model");
  Plan plan;
  plan.tokenizer = text::Tokenizer::load(options.tokenizer);
  plan.encode.add_special = options.add_special;
  plan.encode.parse_special = !options.no_parse_special;
  plan.encode.byte_offsets = choice<bool>("offsets", options.offsets, {{"code_points", false}, {"bytes", true}});
  plan.json_lines = options.json_lines;
  plan.masks = options.masks;
  if (!options.pair.empty()) plan.pair = options.pair;
  plan_lengths(options, plan);
  return plan;
}

/// The texts of a line in JSON: one, or two.
std::pair<std::string, std::optional<std::string>> parse_line(const std::string& line) {
  const std::string fix = "each line is one JSON string, like \"some text\", or a list of two";
  Json json;
  try {
    json = parse_json(line, "");
  } catch (const Error& error) {
    throw input_error(error.problem(), "", fix);
  }
  if (json.is_string()) return {json.get<std::string>(), std::nullopt};
  if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string())
    return {json[0].get<std::string>(), json[1].get<std::string>()};
  throw input_error("the line is JSON, but not a string", "", fix);
}

/// By hand: a line may have tens of thousands of tokens, and a tree of JSON values for each is slow.
void append_json(const text::Encoding& encoding, bool masks, fmt::memory_buffer& line) {
  const auto out = std::back_inserter(line);
  fmt::format_to(out, "{{\"ids\":[{}],\"tokens\":[", fmt::join(encoding.ids, ","));
  const char* comma = "";
  for (const auto& token : encoding.tokens) fmt::format_to(out, "{}{}", std::exchange(comma, ","), Json(token).dump());
  fmt::format_to(out, "],\"offsets\":[");
  comma = "";
  for (const auto& [first, last] : encoding.offsets)
    fmt::format_to(out, "{}[{},{}]", std::exchange(comma, ","), first, last);
  fmt::format_to(out, "]");
  if (masks) {
    fmt::format_to(out, ",\"type_ids\":[{}],\"attention_mask\":[{}],\"special_tokens_mask\":[{}]",
                   fmt::join(encoding.type_ids, ","), fmt::join(encoding.attention_mask, ","),
                   fmt::join(encoding.special_tokens_mask, ","));
  }
  if (!encoding.overflow.empty()) {
    fmt::format_to(out, ",\"overflow\":[");
    comma = "";
    for (const auto& window : encoding.overflow) {
      fmt::format_to(out, "{}", std::exchange(comma, ","));
      append_json(window, masks, line);
    }
    fmt::format_to(out, "]");
  }
  fmt::format_to(out, "}}");
}

std::string tokenize_line(const Plan& plan, const std::string& line) {
  const bool ids_alone = !plan.json_lines && !plan.pair && !plan.padding && !plan.encode.truncation;
  if (ids_alone) return fmt::format("{}", fmt::join(plan.tokenizer->encode_ids(line, plan.encode), " "));
  auto [text, pair] = plan.json_lines ? parse_line(line) : std::pair(line, std::optional<std::string>());
  if (!pair) pair = plan.pair;
  std::vector<text::Encoding> encodings;
  encodings.push_back(pair ? plan.tokenizer->encode_pair(text, *pair, plan.encode)
                           : plan.tokenizer->encode(text, plan.encode));
  if (plan.padding) text::pad(encodings, *plan.padding);
  fmt::memory_buffer out;
  if (plan.json_lines) {
    append_json(encodings.front(), plan.masks, out);
  } else {
    fmt::format_to(std::back_inserter(out), "{}", fmt::join(encodings.front().ids, " "));
    for (const auto& window : encodings.front().overflow)
      fmt::format_to(std::back_inserter(out), "\n{}", fmt::join(window.ids, " "));
  }
  return fmt::to_string(out);
}

/// The results of `lines`, in order; those before a bad line are printed before its error is thrown.
void tokenize_batch(const Plan& plan, const std::vector<std::string>& lines, const std::string& source,
                    int64_t first_number) {
  std::vector<std::string> results(lines.size());
  std::vector<std::optional<Error>> errors(lines.size());
  parallel_for(static_cast<int64_t>(lines.size()), 1, [&](int64_t first, int64_t last) {
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
      try {
        results[i] = tokenize_line(plan, lines[i]);
      } catch (const Error& error) {
        errors[i] = error;
      }
    }
  });
  for (size_t i = 0; i < lines.size(); ++i) {
    if (errors[i]) throw errors[i]->within(fmt::format("{}, line {}", source, first_number + static_cast<int64_t>(i)));
    print_line(results[i]);
  }
  std::cout.flush();
}

int tokenize(const TokenizeOptions& options, const std::string& file) {
  constexpr size_t kBatchBytes = 1 << 20, kBatchLines = 4096;
  const Plan plan = make_plan(options);
  const bool from_stdin = file.empty() || file == "-";
  // A buffer of its own tells how much has arrived: whoever types lines gets the answer to each, whoever pipes a file
  // in gets whole batches on all threads.
  std::ios::sync_with_stdio(false);
  std::cin.tie(nullptr);
  static std::vector<char> buffer(kBatchBytes);  // the stream keeps it
  std::cin.rdbuf()->pubsetbuf(buffer.data(), static_cast<std::streamsize>(buffer.size()));
  std::ifstream opened(from_stdin ? "/dev/null" : file, std::ios::binary);
  if (!opened) throw input_error("cannot be read", file);
  std::istream& in = from_stdin ? std::cin : opened;
  const std::string source = from_stdin ? "stdin" : file;
  std::vector<std::string> lines;
  size_t bytes = 0;
  int64_t first_number = 1;
  const auto finish_batch = [&] {
    tokenize_batch(plan, lines, source, first_number);
    first_number += static_cast<int64_t>(lines.size());
    lines.clear();
    bytes = 0;
  };
  for (std::string line; std::getline(in, line);) {
    bytes += line.size();
    lines.push_back(std::move(line));
    const bool waits = from_stdin && in.rdbuf()->in_avail() <= 0;
    if (waits || bytes >= kBatchBytes || lines.size() >= kBatchLines) finish_batch();
  }
  finish_batch();
  if (in.bad()) throw input_error("cannot be read to its end", source);
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
