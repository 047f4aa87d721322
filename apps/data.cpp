// SPDX-License-Identifier: Apache-2.0
// `palimpsest data`: what a reader makes of files: documents, dialogues or aligned lines, their lengths, a few of them,
// and whether two sides of a split share what they must not.
#include <algorithm>
#include <memory>
#include <vector>

#include "apps/command.h"
#include "palimpsest/core/log.h"
#include "palimpsest/data/aligned.h"
#include "palimpsest/data/corpus.h"
#include "palimpsest/data/dialogue.h"
#include "palimpsest/data/documents.h"
#include "palimpsest/text/tokenizer.h"

namespace palimpsest::app {

namespace {

struct DataOptions {
  data::CorpusOptions corpus;
  data::DialogueOptions dialogue;
  data::AlignedOptions aligned;
  std::string tokenizer;
  int64_t items = 3;
  bool check_leaks = false;
  std::vector<std::string> against = {};
  bool json = false;
  static void fields(auto& o, auto&& field) {
    field("corpus", o.corpus, "");
    field("dialogue", o.dialogue, "");
    field("split_seed", o.dialogue.split_seed, "another number puts other dialogues into valid and test");
    field("aligned", o.aligned, "");
    field("tokenizer", o.tokenizer, "tokenizer.json or model folder: lengths in tokens, too");
    field("items", o.items, "documents whose beginning is shown");
    field("check_leaks", o.check_leaks,
          "list the long utterances (keep_apart words or more) that train shares with valid or test; exit 1 if any");
    field("against", o.against, "with check-leaks: all of PATH is train, and these files are test");
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
  json["broken"] = {{"count", counts.broken}, {"first", Json::array()}};  // they are named in the log
  if (tokenizer) json["tokens"] = tokens.to_json();
  json["items"] = Json::array();
  if (!reads_stdin(options.corpus)) json["items"] = first_items(options.corpus, options.items);
  return json;
}

/// Lines and records that were left out, and the first of them.
Json broken_lines(int64_t count, const std::vector<std::string>& first) { return {{"count", count}, {"first", first}}; }

void print_broken(const Json& broken) {
  if (broken.at("count") == 0) return;
  print_line(fmt::format("broken     {} left out", format_count(broken.at("count").get<int64_t>())));
  for (const auto& text : broken.at("first")) print_line("  " + text.get<std::string>());
}

void print_table(const Json& json) {
  const auto count = [&](const char* key) { return format_count(json.at(key).get<int64_t>()); };
  print_line(fmt::format(
      "files      {}{}", count("files"),
      json.at("left_out") == 0 ? "" : fmt::format("  ({} with other endings left out)", count("left_out"))));
  print_line(fmt::format("documents  {}{}", count("documents"),
                         json.at("empty") == 0 ? "" : fmt::format("  ({} empty ones skipped)", count("empty"))));
  print_broken(json.at("broken"));
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

Json turn_to_json(const data::Turn& turn) {
  return {{"session", turn.session}, {"role", turn.role}, {"text", shortened(turn.text, 70)}};
}

Json dialogue_to_json(const data::Dialogue& dialogue) {
  Json json = {{"id", dialogue.id},
               {"place", dialogue.place},
               {"side", data::side_name(dialogue.side)},
               {"sessions", dialogue.sessions()},
               {"turns", dialogue.turns.size()},
               {"personas", Json::array()},
               {"begins", Json::array()}};
  for (const auto& persona : dialogue.personas) {
    json["personas"].push_back({{"role", persona.role}, {"lines", persona.lines}});
  }
  for (size_t i = 0; i < std::min<size_t>(dialogue.turns.size(), 4); ++i) {
    json["begins"].push_back(turn_to_json(dialogue.turns[i]));
  }
  return json;
}

Json describe_dialogues(const DataOptions& options) {
  data::DialogueReader reader(options.corpus, options.dialogue);
  Lengths turns, bytes, words;
  Json items = Json::array(), formats = Json::object(), roles = Json::object();
  for (data::Dialogue dialogue; reader.next(dialogue);) {
    turns.values.push_back(static_cast<int64_t>(dialogue.turns.size()));
    for (const auto& turn : dialogue.turns) {
      bytes.values.push_back(static_cast<int64_t>(turn.text.size()));
      words.values.push_back(data::count_words(turn.text));
      const std::string role = turn.role.empty() ? "none" : turn.role;
      if (roles.contains(role) || roles.size() < 16) roles[role] = roles.value(role, int64_t{0}) + 1;
    }
    formats[reader.format()] = formats.value(reader.format(), int64_t{0}) + 1;
    if (static_cast<int64_t>(items.size()) < options.items) items.push_back(dialogue_to_json(dialogue));
  }
  const data::DialogueCounts counts = reader.counts();
  Json sides = Json::object();
  for (const auto side : {data::Side::kTrain, data::Side::kValid, data::Side::kTest}) {
    sides[data::side_name(side)] = counts.by_side[static_cast<size_t>(side)];
  }
  return {{"files", counts.files},
          {"left_out", counts.left_out},
          {"formats", formats},
          {"dialogues", counts.dialogues},
          {"sessions", counts.sessions},
          {"turns", counts.turns},
          {"roles", roles},
          {"sides", sides},
          {"other_side", counts.other_side},
          {"leaking", counts.leaking},
          {"empty", counts.empty},
          {"empty_turns", counts.empty_turns},
          {"broken", broken_lines(counts.broken, reader.first_broken())},
          {"turns_each", turns.to_json()},
          {"bytes", bytes.to_json()},
          {"words", words.to_json()},
          {"items", items}};
}

/// Total, min, median and max of each key of `json` that is there.
void print_lengths(const Json& json, const std::vector<std::pair<const char*, const char*>>& rows) {
  print_line(fmt::format("{:<15}{:>14}{:>12}{:>12}{:>12}", "", "total", "min", "median", "max"));
  for (const auto& [key, label] : rows) {
    const Json& lengths = json.at(key);
    if (!lengths.contains("min")) continue;
    const auto column = [&](const char* name) { return format_count(lengths.at(name).get<int64_t>()); };
    print_line(fmt::format("{:<15}{:>14}{:>12}{:>12}{:>12}", label, column("total"), column("min"), column("median"),
                           column("max")));
  }
}

/// "A 7,801, B 7,801".
std::string listed(const Json& counts) {
  std::string text;
  for (const auto& [name, count] : counts.items()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", printable(name, 30), format_count(count.get<int64_t>()));
  }
  return text;
}

void print_dialogues(const Json& json) {
  const auto count = [&](const char* key) { return format_count(json.at(key).get<int64_t>()); };
  const auto line = [&](const char* label, const std::string& text) {
    print_line(fmt::format("{:<11}{}", label, text));
  };
  line("files", count("files"));
  line("formats", listed(json.at("formats")));
  line("dialogues",
       fmt::format("{} with {} sessions and {} turns", count("dialogues"), count("sessions"), count("turns")));
  line("roles", listed(json.at("roles")));
  line("sides", listed(json.at("sides")));
  for (const auto& [key, what] : {std::pair{"other_side", "dialogues of another side left out"},
                                  {"leaking", "dialogues that say what valid or test says left out"},
                                  {"empty", "dialogues without a turn"},
                                  {"empty_turns", "turns without a text"}}) {
    if (json.at(key) != 0) line("", count(key) + " " + what);
  }
  print_broken(json.at("broken"));
  if (json.at("dialogues") == 0) return;
  print_lengths(json, {{"turns_each", "turns each"}, {"words", "words a turn"}, {"bytes", "bytes a turn"}});
  for (const auto& item : json.at("items")) {
    print_line(fmt::format("{} ({}, {} turns)", printable(item.at("id").get<std::string>(), 80),
                           item.at("side").get<std::string>(), item.at("turns").get<int64_t>()));
    for (const auto& persona : item.at("personas")) {
      for (const auto& text : persona.at("lines")) {
        print_line(fmt::format("  {} is: {}", printable(persona.at("role").get<std::string>(), 20),
                               shortened(text.get<std::string>(), 70)));
      }
    }
    for (const auto& turn : item.at("begins")) {
      const std::string role = printable(turn.at("role").get<std::string>(), 20);
      print_line(fmt::format("  {}{}", role.empty() ? "" : role + ": ", turn.at("text").get<std::string>()));
    }
  }
}

Json describe_aligned(const DataOptions& options) {
  data::AlignedReader reader(options.aligned);
  Lengths source, target, units;
  Json items = Json::array();
  for (data::AlignedUnit unit; reader.next(unit);) {
    source.values.push_back(data::count_words(unit.source));
    target.values.push_back(data::count_words(unit.target));
    if (unit.first) units.values.push_back(0);
    ++units.values.back();
    if (static_cast<int64_t>(items.size()) < options.items) {
      items.push_back({{"document", unit.document},
                       {"line", unit.line},
                       {"source", shortened(unit.source, 60)},
                       {"target", shortened(unit.target, 60)}});
    }
  }
  const data::AlignedCounts counts = reader.counts();
  return {{"documents", counts.documents},
          {"units", counts.units},
          {"lines", counts.lines},
          {"blank", counts.blank},
          {"broken", broken_lines(counts.broken, reader.first_broken())},
          {"units_each", units.to_json()},
          {"source_words", source.to_json()},
          {"target_words", target.to_json()},
          {"items", items}};
}

void print_aligned(const Json& json) {
  const auto count = [&](const char* key) { return format_count(json.at(key).get<int64_t>()); };
  print_line("documents  " + count("documents"));
  print_line(fmt::format("units      {} of {} aligned lines", count("units"), count("lines")));
  print_broken(json.at("broken"));
  if (json.at("units") == 0) return;
  print_lengths(json,
                {{"units_each", "units each"}, {"source_words", "source words"}, {"target_words", "target words"}});
  for (const auto& item : json.at("items")) {
    print_line(fmt::format("{}, line {}\n  {}\n  {}", printable(item.at("document").get<std::string>(), 80),
                           item.at("line").get<int64_t>(), item.at("source").get<std::string>(),
                           item.at("target").get<std::string>()));
  }
}

/// What train shares with valid and test, as a reader of each side gives them out.
Json check_leaks(const DataOptions& options) {
  const bool given = !options.against.empty();
  // Without keep_apart nothing is left out, but there must be a measure of long.
  data::SharedUtterances shared(options.dialogue.keep_apart > 0 ? options.dialogue.keep_apart
                                                                : data::DialogueOptions().keep_apart);
  Json json = {{"least_words", shared.least_words()}};
  const auto read = [&](const std::vector<std::string>& paths, const std::string& side, data::Side as) {
    data::CorpusOptions corpus = options.corpus;
    corpus.data = paths;
    data::DialogueOptions dialogue = options.dialogue;
    dialogue.side = side;
    data::DialogueReader reader(corpus, dialogue);
    for (data::Dialogue found; reader.next(found);) {
      for (const auto& turn : found.turns) shared.add(turn.text, found.place, as);
    }
    json[data::side_name(as)] = {{"dialogues", reader.counts().dialogues}, {"left_out", reader.counts().leaking}};
  };
  if (given) {
    read(options.corpus.data, "all", data::Side::kTrain);
    read(options.against, "all", data::Side::kTest);
  } else {
    for (const auto side : {data::Side::kTrain, data::Side::kValid, data::Side::kTest}) {
      read(options.corpus.data, data::side_name(side), side);
    }
  }
  json["shared"] = Json::array();
  for (const auto& found : shared.list()) {
    json["shared"].push_back({{"text", found.text},
                              {"first", found.first},
                              {"first_side", data::side_name(found.first_side)},
                              {"second", found.second},
                              {"second_side", data::side_name(found.second_side)}});
  }
  return json;
}

void print_leaks(const Json& json, int64_t items) {
  for (const char* side : {"train", "valid", "test"}) {
    if (!json.contains(side)) continue;
    const auto count = [&](const char* key) { return json.at(side).at(key).get<int64_t>(); };
    print_line(fmt::format(
        "{:<7}{} dialogues{}", side, format_count(count("dialogues")),
        count("left_out") == 0
            ? ""
            : fmt::format(" ({} left out, for they say what a held-out side says)", format_count(count("left_out")))));
  }
  const Json& shared = json.at("shared");
  print_line(fmt::format("shared {} utterances of {} words or more", format_count(static_cast<int64_t>(shared.size())),
                         json.at("least_words").get<int64_t>()));
  int64_t shown = 0;
  for (const auto& found : shared) {
    if (shown++ == items) break;
    const auto text = [&](const char* key) { return found.at(key).get<std::string>(); };
    print_line(fmt::format("  {} {}, {} {}: {}", text("first_side"), text("first"), text("second_side"), text("second"),
                           shortened(text("text"), 70)));
  }
}

/// Whether dialogues are meant: by the flag, else because a file is of such a form.
bool is_of_dialogues(const DataOptions& options) {
  if (options.dialogue.format != "auto") return true;
  std::vector<std::string> files;
  try {
    files = data::list_files(options.corpus.data);
  } catch (const Error&) {  // folders without text may hold records; beside text, CSV and JSON can be anything
    files = data::list_files(options.corpus.data, nullptr, true);
  }
  for (const auto& path : files) {
    if (path == "-" || path == "-.jsonl") continue;
    if (data::detect_format(path, options.corpus.text_key) != "text") return true;
  }
  return false;
}

int run_data(DataOptions& options) {
  Json json;
  int code = 0;
  if (!options.aligned.target.empty()) {
    if (options.corpus.data.size() != 1) {
      throw usage_error("one source is needed beside --target", "", "palimpsest data SOURCE --target TARGET");
    }
    options.aligned.source = options.corpus.data.front();
    options.aligned.skip_broken = options.corpus.skip_broken;
    json = describe_aligned(options);
    if (!options.json) print_aligned(json);
  } else if (options.check_leaks) {
    json = check_leaks(options);
    code = json.at("shared").empty() ? 0 : 1;
    if (!options.json) print_leaks(json, options.items);
  } else if (is_of_dialogues(options)) {
    json = describe_dialogues(options);
    if (!options.json) print_dialogues(json);
  } else {
    json = describe(options);
    if (!options.json) print_table(json);
  }
  if (options.json) print_json(json);
  return code;
}

}  // namespace

Command data_command() {
  return {.name = "data",
          .summary = "Show what a reader makes of files: documents or dialogues, turns, lengths, a few items.",
          .example = "palimpsest data books/ --document blank --tokenizer models/small",
          .setup = [](CLI::App& app) -> std::function<int()> {
            auto options = std::make_shared<DataOptions>();
            auto paths = std::make_shared<std::vector<std::string>>();
            app.add_option("PATH", *paths, "files or folders of text, JSONL or dialogues; - is stdin");
            options_to_flags(*options, app);
            return [options, paths] {
              if (!paths->empty()) options->corpus.data = *paths;
              return run_data(*options);
            };
          }};
}

}  // namespace palimpsest::app
