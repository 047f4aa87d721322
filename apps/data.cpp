// SPDX-License-Identifier: Apache-2.0
// `palimpsest data`: what a reader makes of files: documents, their lengths, a few of them.
#include <algorithm>
#include <memory>
#include <vector>

#include "apps/command.h"
#include "palimpsest/core/log.h"
#include "palimpsest/data/corpus.h"
#include "palimpsest/data/documents.h"
#include "palimpsest/text/tokenizer.h"

namespace palimpsest::app {

namespace {

struct DataOptions {
  data::CorpusOptions corpus;
  std::string tokenizer;
  int64_t items = 3;
  bool json = false;
  static void fields(auto& o, auto&& field) {
    field("corpus", o.corpus, "");
    field("tokenizer", o.tokenizer, "tokenizer.json or model folder: lengths in tokens, too");
    field("items", o.items, "documents whose beginning is shown");
    field("json", o.json, "print one JSON object");
  }
};

/// Total, least, middle and greatest of many lengths.
struct Lengths {
  std::vector<int64_t> values;

  Json to_json() {
    if (values.empty()) return {{"total", 0}};
    std::sort(values.begin(), values.end());
    int64_t total = 0;
    for (const int64_t value : values) total += value;
    const size_t middle = values.size() / 2;
    const double median = values.size() % 2 == 1 ? static_cast<double>(values[middle])
                                                 : 0.5 * static_cast<double>(values[middle - 1] + values[middle]);
    return {{"total", total}, {"min", values.front()}, {"median", median}, {"max", values.back()}};
  }
};

/// The first `characters` code points, on one line.
std::string shortened(const std::string& text, size_t characters) {
  std::string line;
  for (const char byte : text) {
    const bool starts = (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
    if (starts && characters-- == 0) return line + "…";
    line += static_cast<unsigned char>(byte) < 0x20 || byte == 0x7F ? ' ' : byte;
  }
  return line;
}

Json first_items(const data::CorpusOptions& options, int64_t count) {
  Json items = Json::array();
  data::DocumentReader reader(options);
  for (data::Piece piece; static_cast<int64_t>(items.size()) < count && reader.next_piece(piece);) {
    if (piece.first) items.push_back({{"name", reader.name_of(piece)}, {"text", shortened(piece.text, 60)}});
  }
  return items;
}

bool reads_stdin(const data::CorpusOptions& options) {
  return std::any_of(options.data.begin(), options.data.end(),
                     [](const std::string& path) { return path == "-" || path == "-.jsonl"; });
}

Json describe(const DataOptions& options) {
  data::TokenizeFunction tokenize;
  tokenize.encode = [](std::string_view) { return std::vector<int32_t>(); };
  std::shared_ptr<const text::Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) {
    tokenizer = text::Tokenizer::load(options.tokenizer);
    tokenize = data::tokenize_with(*tokenizer);
  }
  Lengths bytes, words, tokens;
  int64_t tokens_before = 0;
  const data::ReadCounts counts = data::scan_corpus(options.corpus, tokenize, [&](const data::Corpus::Record& record) {
    bytes.values.push_back(record.bytes);
    words.values.push_back(record.words);
    tokens.values.push_back(record.tokens_end - tokens_before);
    tokens_before = record.tokens_end;
  });
  Json json = {{"files", counts.files}, {"left_out", counts.left_out}, {"documents", counts.documents},
               {"empty", counts.empty}, {"bytes", bytes.to_json()},    {"words", words.to_json()}};
  if (tokenizer) json["tokens"] = tokens.to_json();
  json["items"] = Json::array();
  if (!reads_stdin(options.corpus)) json["items"] = first_items(options.corpus, options.items);
  return json;
}

void print_table(const Json& json) {
  const auto count = [&](const char* key) { return format_count(json.at(key).get<int64_t>()); };
  print_line(fmt::format(
      "files      {}{}", count("files"),
      json.at("left_out") == 0 ? "" : fmt::format("  ({} with other endings left out)", count("left_out"))));
  print_line(fmt::format("documents  {}{}", count("documents"),
                         json.at("empty") == 0 ? "" : fmt::format("  ({} empty ones skipped)", count("empty"))));
  if (json.at("documents") == 0) return;
  print_line(fmt::format("{:<9}{:>16}{:>12}{:>12}{:>12}", "", "total", "min", "median", "max"));
  for (const char* key : {"bytes", "words", "tokens"}) {
    if (!json.contains(key)) continue;
    const Json& lengths = json.at(key);
    const auto column = [&](const char* name) { return format_count(lengths.at(name).get<int64_t>()); };
    print_line(fmt::format("{:<9}{:>16}{:>12}{:>12}{:>12}", key, column("total"), column("min"), column("median"),
                           column("max")));
  }
  for (const auto& item : json.at("items")) {
    print_line(fmt::format("{}: {}", item.at("name").get<std::string>(), item.at("text").get<std::string>()));
  }
}

}  // namespace

Command data_command() {
  return {.name = "data",
          .summary = "Show what a reader makes of files: documents, lengths, a few items.",
          .example = "palimpsest data books/ --document blank --tokenizer models/small",
          .setup = [](CLI::App& app) -> std::function<int()> {
            auto options = std::make_shared<DataOptions>();
            auto paths = std::make_shared<std::vector<std::string>>();
            app.add_option("PATH", *paths, "files or folders of text and JSONL; - is stdin");
            options_to_flags(*options, app);
            return [options, paths] {
              if (!paths->empty()) options->corpus.data = *paths;
              const Json json = describe(*options);
              if (options->json) {
                print_json(json);
              } else {
                print_table(json);
              }
              return 0;
            };
          }};
}

}  // namespace palimpsest::app
