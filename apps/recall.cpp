// SPDX-License-Identifier: Apache-2.0
// `palimpsest recall`: what a conversation's memory holds, decoded back into text, and how much of what was said that
// is. The decoder sees the slots alone.
#include "apps/command.h"
#include "apps/model_flags.h"
#include "palimpsest/core/files.h"
#include "palimpsest/serve/chat.h"
#include "palimpsest/train/metrics.h"

namespace palimpsest::app {

namespace {

struct RecallFlags {
  ModelFlags model;
  std::string session, task, against;
  int64_t window = 0;
  generate::GenerationOptions generation;
  bool beside_row = false, json = false;
  static void fields(auto& o, auto&& field) {
    field("model", o.model, "");
    field("session", o.session, "file of the conversation");
    field("against", o.against,
          "the conversation's text: lines as they were said (both sides by turns, or yours alone, with the flags that "
          "chat wrote its answers with), \"A: …\" and \"B: …\", or what the terminal showed; without it the "
          "session's own file says what was read lately");
    field("task", o.task,
          "what to ask for: current (what was read last), recall (the exchange before), recall:2, …; empty: each that "
          "the model knows");
    field("window", o.window, "tokens that were read at a time, where chat was told; 0: as trained");
    field("generation", o.generation, "");
    field("beside_row", o.beside_row,
          "let the decoder see what was read last, too, as the recall tasks are trained and eval measures them; "
          "without it the memory alone decides the text");
    field("json", o.json, "as JSON");
  }
};

/// The moments that the text makes, where it is the session's.
std::vector<serve::Moment> moments_of(const RecallFlags& flags, const serve::Chat& chat,
                                      const serve::Session& session) {
  const auto moments =
      chat.replay(serve::parse_conversation(read_file(flags.against), session.now().turns, flags.against));
  if (!moments.empty() && moments.back().context != session.now().context) {
    throw input_error("the text does not end as the session does", flags.against,
                      "give it as it was said, with both sides (\"A: …\", \"B: …\"), or chat's own flags: else the "
                      "answers are not the same again; a pipe shows a line break of an answer as a space");
  }
  return moments;
}

std::string indented(const std::string& text) {
  std::string lines = "    ";
  for (const char c : text) lines += c == '\n' ? std::string("\n    ") : std::string(1, c);
  while (lines.ends_with(' ') || lines.ends_with('\n')) lines.pop_back();
  return lines;
}

/// What the memory gives back for one task, beside what was read then where that is known.
Json recall_one(const RecallFlags& flags, const serve::Chat& chat, const serve::Session& session,
                const std::vector<serve::Moment>& moments, const std::string& task) {
  serve::RecallOptions options;
  options.task = task;
  options.beside_row = flags.beside_row;
  const serve::Recalled recalled = chat.recall(session, options);
  Json json = {{"text", recalled.text}, {"task", recalled.task}};
  if (recalled.back < 0) return json;
  json["exchanges_before"] = recalled.back;
  const auto exchanges = static_cast<int64_t>(moments.size());
  const serve::Moment* then = flags.against.empty()       ? session.before(recalled.back)
                              : recalled.back < exchanges ? &moments[static_cast<size_t>(exchanges - 1 - recalled.back)]
                                                          : nullptr;
  if (then == nullptr || then->read.empty()) return json;
  const int64_t tokens = static_cast<int64_t>(then->read.size()), right = train::equal_places(then->read, recalled.ids);
  json["tokens"] = tokens;
  json["recovered"] = right;
  json["share"] = static_cast<double>(right) / static_cast<double>(tokens);
  json["read"] = chat.text_of(then->read);
  return json;
}

void print_one(const Json& one, int64_t exchanges) {
  if (!one.contains("exchanges_before")) {
    print_line(indented(one["text"].get<std::string>()));
    return;
  }
  const auto back = one["exchanges_before"].get<int64_t>();
  std::string share =
      back < exchanges ? "what was said is not kept that long: give --against FILE" : "nothing was said";
  if (one.contains("share")) {
    share = fmt::format("{:.1f} % of {} tokens given back at their place", 100 * one["share"].get<double>(),
                        one["tokens"].get<int64_t>());
  }
  print_line(fmt::format("{}, {}: {}", one["task"].get<std::string>(),
                         back == 0 ? "read last" : fmt::format("read {} exchange{} before", back, back == 1 ? "" : "s"),
                         share));
  print_line(indented(one["text"].get<std::string>()));
}

int run(const RecallFlags& flags) {
  require("--session", flags.session);
  const auto folder = load(flags.model);
  serve::ChatOptions options;
  options.window = flags.window;
  options.generation = flags.generation;
  const serve::Chat chat(folder, options);
  const auto session = serve::Session::load(flags.session, chat.fingerprint());
  std::vector<serve::Moment> moments;
  if (!flags.against.empty()) moments = moments_of(flags, chat, session);
  std::vector<std::string> tasks = chat.recall_tasks();
  if (!flags.task.empty() || tasks.empty()) tasks = {flags.task};
  Json all = Json::array();
  for (const std::string& task : tasks) all.push_back(recall_one(flags, chat, session, moments, task));
  if (flags.json) {
    print_json({{"text", all[0]["text"]},
                {"turns", session.now().turns},
                {"memory_bytes", session.now().memory.bytes()},
                {"recalled", all}});
  } else {
    for (const Json& one : all) print_one(one, session.now().turns / 2);
  }
  return 0;
}

}  // namespace

Command recall_command() {
  return {"recall", "what a conversation's memory holds, decoded back into text",
          "palimpsest recall --model DIR --session mine.session --against talk.txt", [](CLI::App& app) {
            auto flags = std::make_shared<RecallFlags>();
            options_to_flags(*flags, app);
            return [flags] { return run(*flags); };
          }};
}

}  // namespace palimpsest::app
