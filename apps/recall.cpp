// SPDX-License-Identifier: Apache-2.0
// `palimpsest recall`: what a conversation's memory holds, decoded back into text. The decoder sees the slots alone.
#include "apps/command.h"
#include "apps/model_flags.h"
#include "palimpsest/serve/chat.h"

namespace palimpsest::app {

namespace {

struct RecallFlags {
  ModelFlags model;
  std::string session, task;
  int64_t max_new_tokens = 0;
  bool json = false;
  static void fields(auto& o, auto&& field) {
    field("model", o.model, "");
    field("session", o.session, "file of the conversation");
    field("task", o.task,
          "what to ask for: current (what was read last), recall, recall:2, …; empty: the first of them");
    field("max_new_tokens", o.max_new_tokens, "tokens at most; 0: a window");
    field("json", o.json, "as JSON");
  }
};

int run(const RecallFlags& flags) {
  require("--session", flags.session);
  const auto folder = load(flags.model);
  const serve::Chat chat(folder, {});
  const auto session = serve::Session::load(flags.session, chat.fingerprint());
  const std::string text =
      chat.recall(session, flags.task, flags.max_new_tokens > 0 ? flags.max_new_tokens : chat.window());
  if (flags.json) {
    print_json({{"text", text}, {"turns", session.now().turns}, {"memory_bytes", session.now().memory.bytes()}});
  } else {
    print_line(text);
  }
  return 0;
}

}  // namespace

Command recall_command() {
  return {"recall", "what a conversation's memory holds, decoded back into text",
          "palimpsest recall --model DIR --session mine.session", [](CLI::App& app) {
            auto flags = std::make_shared<RecallFlags>();
            options_to_flags(*flags, app);
            return [flags] { return run(*flags); };
          }};
}

}  // namespace palimpsest::app
