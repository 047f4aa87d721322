// SPDX-License-Identifier: Apache-2.0
// `palimpsest chat`: a conversation that remembers. In a terminal with line editing and history, in a pipe line by
// line.
#include "palimpsest/serve/chat.h"

#include <histedit.h>
#include <termios.h>
#include <unistd.h>

#include <clocale>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>

#include "apps/command.h"
#include "apps/model_flags.h"
#include "palimpsest/core/log.h"

namespace fs = std::filesystem;

namespace palimpsest::app {

namespace {

struct ChatFlags {
  ModelFlags model;
  std::string session, task;
  generate::GenerationOptions generation;
  int64_t window = 0, rewinds = 8;
  bool new_session = false, json = false;
  static void fields(auto& o, auto&& field) {
    field("model", o.model, "");
    field("session", o.session,
          "file that holds the conversation; made where it is not there, written after each turn");
    field("new_session", o.new_session, "begin anew even where the file is there (it is replaced at the first turn)");
    field("rewinds", o.rewinds, "turns that can be gone back; the file holds one memory and context for each");
    field("window", o.window,
          "tokens of the history that are read at a time; the memory holds the rest; 0: as trained");
    field("task", o.task, "what to ask the decoder for; empty: respond, else the model's first task");
    field("generation", o.generation, "");
    field("json", o.json, "one JSON object a turn");
  }
};

/// Set by Ctrl-C; read and cleared by whoever can stop.
volatile std::sig_atomic_t stop_asked = 0;
extern "C" void ask_to_stop(int) { stop_asked = 1; }

/// Lines from a terminal, with editing and history, or from a pipe.
class LineReader {
 public:
  LineReader() : terminal_(::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1) {
    if (!terminal_) return;
    // The line editor takes characters apart as the locale says, and drops what is none of it: text is UTF-8.
    if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    editor_.reset(::el_init("palimpsest", stdin, stdout, stderr));
    history_.reset(::history_init());
    if (editor_ == nullptr || history_ == nullptr) throw usage_error("the line editor cannot use this terminal");
    HistEvent event{};
    ::history(history_.get(), &event, H_SETSIZE, 1000);
    ::el_set(editor_.get(), EL_PROMPT, static_cast<const char* (*)(EditLine*)>([](EditLine*) { return "> "; }));
    ::el_set(editor_.get(), EL_EDITOR, "emacs");
    ::el_set(editor_.get(), EL_SIGNAL, 1);  // for its size, and for what stops and goes on
    ::el_set(editor_.get(), EL_HIST, ::history, history_.get());
    ::el_set(editor_.get(), EL_ADDFN, "drop-line", "Drop the line",
             static_cast<unsigned char (*)(EditLine*, int)>([](EditLine*, int) -> unsigned char {
               stop_asked = 1;
               return CC_EOF;
             }));
    ::el_set(editor_.get(), EL_BIND, "^C", "drop-line", nullptr);
    ::el_source(editor_.get(), nullptr);
  }
  bool terminal() const { return terminal_; }
  /// Nothing at the end of input.
  std::optional<std::string> next() {
    if (!terminal_) {
      std::string line;
      if (!std::getline(std::cin, line)) return std::nullopt;
      if (line.ends_with('\r')) line.pop_back();
      return line;
    }
    for (;;) {
      take_terminal();
      stop_asked = 0;
      int bytes = 0;
      const char* typed = ::el_gets(editor_.get(), &bytes);
      if (typed != nullptr && bytes > 0 && stop_asked == 0) {
        std::string line(typed, static_cast<size_t>(bytes));
        while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
        HistEvent event{};
        if (!line.empty()) ::history(history_.get(), &event, H_ENTER, line.c_str());
        return line;
      }
      if (stop_asked == 0) return std::nullopt;
      std::fputs("\n", stdout);  // Ctrl-C: the line is dropped, as in a shell
      ::el_reset(editor_.get());
    }
  }

 private:
  /// While a line is typed Ctrl-C is a key as any other: as a signal it could come just before the editor waits for a
  /// key, which it would then go on to do. Done before the prompt is shown; the editor gives all back at the line's
  /// end.
  void take_terminal() {
    ::el_set(editor_.get(), EL_PREP_TERM, 1);
    termios state{};
    if (::tcgetattr(STDIN_FILENO, &state) != 0) return;
    state.c_cc[VINTR] = _POSIX_VDISABLE;
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &state);
  }

  template <auto kEnd>
  struct End {
    void operator()(auto* what) const { kEnd(what); }
  };
  bool terminal_;
  std::unique_ptr<History, End<&::history_end>> history_;
  std::unique_ptr<EditLine, End<&::el_end>> editor_;
};

constexpr const char* kHelp =
    "/reset          forget everything that was said\n"
    "/rewind N       go back N turns\n"
    "/fork NAME      write a copy of the conversation to the file NAME\n"
    "/save [FILE]    write the conversation (to the session's own file where none is named)\n"
    "/memory         what the memory looks like\n"
    "/stats          turns, bytes and times\n"
    "/help           this list\n"
    "/quit           end (as Ctrl-D does); Ctrl-C stops an answer, and drops a line that is being typed\n"
    "A line that begins with // is said with one slash.";

class Talk {
 public:
  Talk(const ChatFlags& flags, const serve::Chat& chat)
      : flags_(flags), chat_(chat), session_(chat.begin(flags.rewinds)) {
    if (flags.session.empty()) return;
    serve::Session::clear_temporaries(flags.session);
    if (flags.new_session || !fs::exists(flags.session)) return;
    session_ = serve::Session::load(flags.session, chat.fingerprint());
    spdlog::info("{}: {} turns, {} restored", flags.session, session_.now().turns, format_bytes(session_.bytes()));
  }

  int run() {
    if (lines_.terminal()) {  // in a pipe Ctrl-C ends, as of any program: the file holds the last finished turn
      std::signal(SIGINT, ask_to_stop);
      spdlog::info("/help lists the commands; Ctrl-D ends");
    }
    while (const auto line = lines_.next()) {
      if (line->empty()) continue;
      try {
        if (line->starts_with("/") && !line->starts_with("//")) {
          if (!command(*line)) break;
        } else {
          say(line->starts_with("//") ? line->substr(1) : *line);
        }
      } catch (const Error& error) {
        // A conversation survives what goes wrong in it; a script is told.
        if (!lines_.terminal()) throw;
        std::fprintf(stderr, "%s\n", error.what());
      }
    }
    return 0;
  }

 private:
  void save() {
    if (!flags_.session.empty()) session_.save(flags_.session);
  }

  void say(const std::string& text) {
    const bool shown = !flags_.json;
    const auto reply = chat_.answer(session_, text, [&](const std::string& piece) {
      if (shown) std::cout << printable_piece(piece) << std::flush;
      return stop_asked == 0;
    });
    save();
    seconds_ += reply.read_seconds + reply.write_seconds;
    ++exchanges_;
    last_ = reply;
    if (flags_.json) {
      print_json({{"reply", reply.text},
                  {"finish_reason", generate::finish_name(reply.finish)},
                  {"tokens", reply.tokens},
                  {"turns", session_.now().turns},
                  {"memory_bytes", session_.now().memory.bytes()},
                  {"context_tokens", session_.now().context.size()},
                  {"read_seconds", reply.read_seconds},
                  {"write_seconds", reply.write_seconds}});
    } else {
      print_line(reply.finish == generate::Finish::kCancelled ? " [stopped]" : "");
    }
    std::cout.flush();
  }

  /// One line in, one line out: in a pipe a line break of a reply is a space.
  std::string printable_piece(std::string piece) const {
    if (!lines_.terminal()) std::replace(piece.begin(), piece.end(), '\n', ' ');
    return piece;
  }

  /// False to end.
  bool command(const std::string& line) {
    std::stringstream words(line);
    std::string name, argument;
    words >> name;
    std::getline(words >> std::ws, argument);
    if (name == "/quit" || name == "/exit") return false;
    if (name == "/help") {
      print_line(kHelp);
    } else if (name == "/reset") {
      session_.reset();
      save();
      print_line("forgotten");
    } else if (name == "/rewind") {
      rewind(argument);
    } else if (name == "/fork" || name == "/save") {
      const std::string path = argument.empty() && name == "/save" ? flags_.session : argument;
      if (path.empty()) throw usage_error("a file is needed", name, name + " NAME");
      session_.save(path);
      print_line(fmt::format("written to {}, {}", path, format_bytes(static_cast<int64_t>(fs::file_size(path)))));
    } else if (name == "/memory") {
      show_memory();
    } else if (name == "/stats") {
      show_stats();
    } else {
      const std::vector<std::string> known = {"/reset",  "/rewind", "/fork", "/save",
                                              "/memory", "/stats",  "/help", "/quit"};
      const std::string nearest = nearest_name(name, known);
      throw usage_error(fmt::format("unknown command {}", name), "",
                        nearest.empty() ? "/help lists the commands" : fmt::format("did you mean {}?", nearest));
    }
    std::cout.flush();
    return true;
  }

  void rewind(const std::string& argument) {
    int64_t turns = 1;
    if (!argument.empty()) {
      const Json number = Json::parse(argument, nullptr, false);
      if (!number.is_number_integer() || number.get<int64_t>() < 1)
        throw usage_error(fmt::format("\"{}\" is no number of turns", argument), "/rewind", "/rewind 2");
      turns = number.get<int64_t>();
    }
    session_.rewind(turns);
    save();
    print_line(fmt::format("{} turns were said; {} more can be gone back", session_.now().turns, session_.past()));
  }

  void show_memory() {
    const at::Tensor& slots = session_.now().memory.slots;
    if (!slots.defined()) {
      print_line("nothing is remembered yet");
      return;
    }
    const at::Tensor length = slots[0].to(at::kFloat).norm(2, -1);  // [M]
    print_line(fmt::format("{} slots of {} numbers, {}; slot length {:.2f} to {:.2f}, mean {:.2f}{}", slots.size(1),
                           slots.size(2), format_bytes(session_.now().memory.bytes()), length.min().item<double>(),
                           length.max().item<double>(), length.mean().item<double>(),
                           exchanges_ > 0 ? fmt::format("; gate at the last turn {:.2f}", last_.gate) : ""));
  }

  void show_stats() {
    print_line(
        fmt::format("{} turns, {} tokens in all; {} tokens of context, {} of memory; {} with {} moments to go back to",
                    session_.now().turns, session_.now().tokens, session_.now().context.size(),
                    format_bytes(session_.now().memory.bytes()), format_bytes(session_.bytes()), session_.past()));
    if (exchanges_ > 0) {
      print_line(
          fmt::format("last answer: {} tokens, read in {:.0f} ms, written in {:.0f} ms; {:.0f} ms an answer on average",
                      last_.tokens, 1000 * last_.read_seconds, 1000 * last_.write_seconds,
                      1000 * seconds_ / static_cast<double>(exchanges_)));
    }
  }

  const ChatFlags& flags_;
  const serve::Chat& chat_;
  serve::Session session_;
  LineReader lines_;
  serve::Reply last_;
  double seconds_ = 0;
  int64_t exchanges_ = 0;
};

int run(const ChatFlags& flags) {
  if (flags.rewinds < 0 || flags.rewinds > 1000)
    throw usage_error(fmt::format("--rewinds {} is not from 0 to 1000", flags.rewinds));
  const auto folder = load(flags.model);
  const serve::Chat chat(folder, {.window = flags.window, .task = flags.task, .generation = flags.generation});
  return Talk(flags, chat).run();
}

}  // namespace

Command chat_command() {
  return {"chat", "a conversation that remembers", "palimpsest chat --model DIR --session mine.session",
          [](CLI::App& app) {
            auto flags = std::make_shared<ChatFlags>();
            options_to_flags(*flags, app);
            return [flags] { return run(*flags); };
          }};
}

}  // namespace palimpsest::app
