// SPDX-License-Identifier: Apache-2.0
// Dialogues in JSON: Multi-Session Chat, lists of turns, pairs.
#include <algorithm>
#include <charconv>
#include <deque>

#include "palimpsest/data/dialogue_sources.h"

namespace palimpsest::data {

namespace {

constexpr size_t kLongestMember = WholeLines::kLongest;

bool is_bracket_open(char c) { return c == '{' || c == '['; }
bool is_bracket_close(char c) { return c == '}' || c == ']'; }

/// Whether a first line is the beginning of JSON over many lines, not a record of its own.
bool begins_many_lines(std::string_view line) {
  line = trimmed(line);
  if (line.empty() || !is_bracket_open(line.front())) return false;
  int64_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      depth += is_bracket_open(c) ? 1 : is_bracket_close(c) ? -1 : 0;
    }
  }
  const char last = line.back();
  return depth > 0 && !in_string && (is_bracket_open(last) || last == ',');
}

std::string type_name(const Json& value) {
  return value.is_object()   ? "an object"
         : value.is_array()  ? "a list"
         : value.is_string() ? "text"
         : value.is_null()   ? "null"
                             : "a number or truth value";
}

/// Throws what is wrong inside a record; the caller knows the place.
[[noreturn]] void refuse(const std::string& problem, const std::string& fix = "") {
  throw input_error(problem, "", fix);
}

const Json& need(const Json& object, const char* key) {
  if (!object.is_object()) refuse(fmt::format("an object with \"{}\" is needed, this is {}", key, type_name(object)));
  const auto found = object.find(key);
  if (found == object.end()) refuse(fmt::format("key \"{}\" is missing", key));
  return *found;
}

const std::string& need_text(const Json& object, const char* key) {
  const Json& value = need(object, key);
  if (!value.is_string()) refuse(fmt::format("\"{}\" must be text, this is {}", key, type_name(value)));
  return value.get_ref<const std::string&>();
}

const Json& need_list(const Json& object, const char* key) {
  const Json& value = need(object, key);
  if (!value.is_array()) refuse(fmt::format("\"{}\" must be a list, this is {}", key, type_name(value)));
  return value;
}

/// Text or whole number, as text; "" where absent.
std::string name_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (found->is_number_integer()) return found->dump();
  refuse(fmt::format("\"{}\" must be text or a whole number, this is {}", key, type_name(*found)));
}

/// A or B for the names that the known data sets use, else the name itself.
std::string role_of(const std::string& name) {
  for (const char* a : {"A", "bot_0", "Speaker 1", "user", "human", "0"}) {
    if (name == a) return "A";
  }
  for (const char* b : {"B", "bot_1", "Speaker 2", "assistant", "gpt", "1"}) {
    if (name == b) return "B";
  }
  return name;
}

std::string role_by_turns(size_t index) { return index % 2 == 0 ? "A" : "B"; }

/// Personas as a list of two lists, or {"A": […], "B": […]}.
std::vector<Persona> personas_in(const Json& record, const char* key) {
  std::vector<Persona> personas;
  const auto found = record.find(key);
  if (found == record.end() || found->is_null()) return personas;
  if (!found->is_array() && !found->is_object()) {
    refuse(fmt::format("\"{}\" must be a list of lists of text, this is {}", key, type_name(*found)));
  }
  size_t index = 0;
  for (const auto& [name, lines] : found->items()) {
    Persona persona{.role = found->is_array() ? role_by_turns(index) : role_of(name), .lines = {}};
    if (!lines.is_array() || index > 1) refuse(fmt::format("\"{}\" must be two lists of text", key));
    for (const auto& line : lines) {
      if (!line.is_string()) refuse(fmt::format("\"{}\" holds {}, text is needed", key, type_name(line)));
      const std::string_view text = trimmed(line.get_ref<const std::string&>());
      if (!text.empty()) persona.lines.emplace_back(text);
    }
    if (!persona.lines.empty()) personas.push_back(std::move(persona));
    ++index;
  }
  return personas;
}

std::optional<Side> side_in(const Json& record) {
  const std::string name = name_in(record, "split");
  if (name.empty()) return {};
  if (name == "train") return Side::kTrain;
  if (name == "valid" || name == "validation" || name == "dev") return Side::kValid;
  if (name == "test") return Side::kTest;
  refuse(fmt::format("\"split\" is \"{}\"", printable(name, 40)), "train, valid or test");
}

class JsonSource : public DialogueSource {
 public:
  explicit JsonSource(SourceContext context) : context_(std::move(context)), records_(context_.path, context_.broken) {}

  bool next(FoundDialogue& out) override {
    while (ready_.empty()) {
      const int64_t broken = context_.broken_so_far();
      JsonRecords::Record record;
      const bool found = records_.next(record);
      const bool broke = context_.broken_so_far() > broken;
      if (broke) open_bad_ = true;  // perhaps a turn of the open dialogue
      if (!found || record.ends_list) {
        flush();
        if (!found && ready_.empty()) return false;
        continue;
      }
      const size_t before = ready_.size();
      after_broken_ = broke;
      try {
        take(record);
      } catch (const Error& error) {
        ready_.resize(before);  // of a record that holds several dialogues all are left out
        note_broken(context_.broken, context_.error(error.problem(), record.line, error.fix()));
        open_bad_ = true;
      }
    }
    out = std::move(ready_.front());
    ready_.pop_front();
    return true;
  }

 private:
  void check_kind(const std::string& kind) const {
    const std::string shown = kind == "turn" || kind == "lists" ? "turns" : kind;
    if (context_.format == "auto" || context_.format == shown) return;
    refuse(fmt::format("a record of the form {}, but format is {}", shown, context_.format),
           "--format auto reads both");
  }

  void take(const JsonRecords::Record& record) {
    const Json& value = record.value;
    if (record.has_key) {
      check_kind("turns");
      if (!value.is_array()) {
        refuse(fmt::format("\"{}\" holds {}, a list of turns is needed", printable(record.key, 40), type_name(value)),
               "JSON over many lines is {ID: [turns], …} or a list; write other records on one line each");
      }
      take_list(value, record.key, record.line);
    } else if (value.is_array()) {
      check_kind("turns");
      take_list(value, "", record.line);
    } else {
      take_object(value, record);
    }
  }

  void take_object(const Json& value, const JsonRecords::Record& record) {
    const std::string kind = record_kind(value, context_.corpus.text_key);
    if (kind.empty()) {
      std::string keys;
      if (value.is_object()) {
        for (const auto& [name, _] : value.items()) keys += (keys.empty() ? "" : ", ") + printable(name, 30);
      }
      refuse(value.is_object() ? fmt::format("not a dialogue: it has the keys {}", printable(keys, 160))
                               : fmt::format("not a dialogue: it is {}", type_name(value)),
             "a record has turns, source and target, or dialog and previous_dialogs");
    }
    check_kind(kind);
    if (kind != "turn") flush();
    if (kind == "turn") take_turn(value, record);
    if (kind == "lists") {
      for (const auto& [name, list] : value.items()) take_list(list, name, record.line);
    }
    if (kind == "msc") ready_.push_back(msc(value, record.line));
    if (kind == "turns") ready_.push_back(turns(value, record.line));
    if (kind == "pairs") ready_.push_back(pair(value, record.line));
    if (kind == "text") {
      FoundDialogue found = begin(value, record.line);
      for (const auto& text : paragraphs_of(need_text(value, context_.corpus.text_key.c_str()))) {
        add_turn(context_, found.dialogue, "", text, 1);
      }
      ready_.push_back(std::move(found));
    }
  }

  FoundDialogue begin(const Json& record, int64_t line) const {
    FoundDialogue found;
    found.dialogue.place = document_name(context_.path, line, 0);
    found.dialogue.id = record.is_object() ? name_in(record, "id") : "";
    if (found.dialogue.id.empty()) found.dialogue.id = found.dialogue.place;
    if (record.is_object()) found.side = side_in(record);
    return found;
  }

  FoundDialogue msc(const Json& record, int64_t line) const {
    FoundDialogue found = begin(record, line);
    if (const auto meta = record.find("metadata"); meta != record.end() && meta->is_object()) {
      if (const std::string id = name_in(*meta, "initial_data_id"); !id.empty()) found.dialogue.id = id;
    }
    int64_t session = 0;
    if (record.contains("previous_dialogs")) {
      for (const auto& previous : need_list(record, "previous_dialogs")) {
        add_session(found.dialogue, need_list(previous, "dialog"), ++session);
      }
    }
    add_session(found.dialogue, need_list(record, "dialog"), ++session);
    found.dialogue.personas = personas_in(record, "init_personas");
    if (found.dialogue.personas.empty()) found.dialogue.personas = personas_in(record, "personas");
    return found;
  }

  void add_session(Dialogue& dialogue, const Json& list, int64_t session) const {
    size_t index = 0;
    for (const auto& turn : list) {
      const std::string& text = need_text(turn, "text");
      const std::string role = role_of(name_in(turn, "id"));
      const bool named = turn.contains("id") && (role == "A" || role == "B") && turn["id"].is_string();
      add_turn(context_, dialogue, named ? role : role_by_turns(index), text, session);
      ++index;
    }
  }

  FoundDialogue turns(const Json& record, int64_t line) const {
    FoundDialogue found = begin(record, line);
    found.dialogue.personas = personas_in(record, "personas");
    Sessions sessions;
    size_t index = 0;
    for (const auto& turn : need_list(record, "turns")) add(found.dialogue, turn, sessions, index++);
    return found;
  }

  FoundDialogue pair(const Json& record, int64_t line) const {
    FoundDialogue found = begin(record, line);
    const std::string &source = need_text(record, "source"), &target = need_text(record, "target");
    add_turn(context_, found.dialogue, "A", source, 1);
    add_turn(context_, found.dialogue, "B", target, 1);
    if (!trimmed(source).empty()) found.dialogue.split_key = split_key_of(source);
    return found;
  }

  /// A session's number in the file, and in the dialogue.
  struct Sessions {
    int64_t written = 0, number = 0;
  };

  void add(Dialogue& dialogue, const Json& turn, Sessions& sessions, size_t index) const {
    const std::string& text = need_text(turn, "text");
    const std::string name = name_in(turn, "role");
    int64_t written = sessions.number == 0 ? 1 : sessions.written;
    if (const auto session = turn.find("session"); session != turn.end()) {
      if (!session->is_number_integer() || (session->is_number_unsigned() && session->get<uint64_t>() > 1'000'000)) {
        refuse("\"session\" must be a small whole number");
      }
      written = session->get<int64_t>();
    }
    if (sessions.number > 0 && written < sessions.written) {
      refuse(fmt::format("session {} follows session {}", written, sessions.written), "put the turns in their order");
    }
    if (sessions.number == 0 || written > sessions.written) sessions = {written, sessions.number + 1};
    add_turn(context_, dialogue, name.empty() ? role_by_turns(index) : role_of(name), text, sessions.number);
  }

  /// A list of turns (a new dialogue where dial_id changes), of such lists, or of records.
  void take_list(const Json& list, const std::string& id, int64_t line) {
    flush();
    if (list.empty()) {
      ready_.push_back(begin(list, line));  // counted as empty
      return;
    }
    std::optional<std::string> open;
    Sessions sessions;
    size_t index = 0;
    for (const auto& element : list) {
      if (element.is_array()) {
        take_list(element, "", line);
        continue;
      }
      const std::string kind = record_kind(element, context_.corpus.text_key);
      if (kind == "msc" || kind == "turns" || kind == "pairs") {
        ready_.push_back(kind == "msc"     ? msc(element, line)
                         : kind == "turns" ? turns(element, line)
                                           : pair(element, line));
        open.reset();
        continue;
      }
      need_text(element, "text");
      const std::string name = name_in(element, "dial_id");
      if (!open || *open != name) {
        open = name;
        sessions = {};
        index = 0;
        FoundDialogue found = begin(Json(), line);
        if (!name.empty() || !id.empty()) found.dialogue.id = name.empty() ? id : name;
        ready_.push_back(std::move(found));
      }
      add(ready_.back().dialogue, element, sessions, index++);
    }
  }

  /// A turn that is a record of its own.
  void take_turn(const Json& turn, const JsonRecords::Record& record) {
    const std::string id = name_in(turn, "dial_id");
    if (id.empty() && !record.in_list) {
      refuse("a turn without \"dial_id\"", "write {\"turns\": […]} with all turns of a dialogue on one line");
    }
    const bool starts = !open_ || id != open_id_;
    if (starts) {
      flush();
      open_ = begin(Json(), record.line);
      open_id_ = id;
      open_sessions_ = {};
      open_index_ = 0;
      open_bad_ = after_broken_;
      if (!id.empty()) open_->dialogue.id = id;
      if (!id.empty() && !seen_.insert(id)) {
        refuse(fmt::format("the turns of dialogue {} do not lie together", printable(id, 60)), "sort them by dial_id");
      }
    }
    add(open_->dialogue, turn, open_sessions_, open_index_++);
  }

  void flush() {
    if (open_ && !open_bad_) ready_.push_back(std::move(*open_));
    open_.reset();
    open_bad_ = false;
  }

  SourceContext context_;
  JsonRecords records_;
  std::deque<FoundDialogue> ready_;
  std::optional<FoundDialogue> open_;  ///< of turns that are records of their own
  std::string open_id_;
  Sessions open_sessions_;
  size_t open_index_ = 0;
  bool open_bad_ = false, after_broken_ = false;
  SeenIds seen_;
};

}  // namespace

std::string record_kind(const Json& record, const std::string& text_key) {
  if (!record.is_object() || record.empty()) return "";
  const auto has = [&](const char* key) { return record.contains(key); };
  if (has("dialog")) return "msc";
  if (has("turns")) return "turns";
  if (has("source") && has("target")) return "pairs";
  if (has("text") && (has("role") || has("dial_id"))) return "turn";
  const auto is_list = [](const Json& value) { return value.is_array(); };
  if (std::all_of(record.begin(), record.end(), is_list)) return "lists";
  return record.contains(text_key) ? "text" : "";
}

bool JsonRecords::parse(const std::string& text, int64_t line, Json& value) {
  const std::string place = document_name(path_, 0, 0);
  try {
    value = parse_json(text, place);
    return true;
  } catch (const Error& error) {
    // "not valid JSON: parse error at line 2, column 9: REASON; last read: 'MAY BE LONG'": its lines count from `line`.
    std::string problem = error.problem(), where = fmt::format("{}, line {}", place, line);
    const std::string start = "not valid JSON: parse error at line ";
    if (problem.starts_with(start)) {
      int64_t inner = 1;
      const char* const digits = problem.data() + start.size();
      const auto [stop, code] = std::from_chars(digits, problem.data() + problem.size(), inner);
      const size_t colon = problem.find(": ", static_cast<size_t>(stop - problem.data()));
      if (code == std::errc() && colon != std::string::npos) {
        where = fmt::format("{}, line {}{}", place, line + inner - 1,
                            std::string_view(problem).substr(static_cast<size_t>(stop - problem.data()),
                                                             colon - static_cast<size_t>(stop - problem.data())));
        problem = "not valid JSON: " + problem.substr(colon + 2, problem.find("; last read") - colon - 2);
      }
    }
    note_broken(broken_, input_error(printable(problem, 300), where,
                                     error.fix().empty() ? "each line holds one JSON value" : error.fix()));
    return false;
  }
}

bool JsonRecords::next_line() {
  at_ = 0;
  has_line_ = lines_.next(line_);
  return has_line_;
}

bool JsonRecords::next(Record& out) {
  while (true) {
    if (mode_ == Mode::kMembers) return next_member(out);
    if (!next_line()) return false;
    if (is_blank(line_)) continue;
    if (mode_ == Mode::kUnknown) {
      mode_ = begins_many_lines(line_) ? Mode::kMembers : Mode::kLines;
      if (mode_ == Mode::kMembers) continue;
    }
    out = {};
    out.line = lines_.number();
    if (parse(line_, out.line, out.value)) return true;
  }
}

bool JsonRecords::next_member(Record& out) {
  out = {};
  if (end_pending_) {
    end_pending_ = false;
    out.ends_list = true;
    return true;
  }
  std::string member;
  int64_t start = 0, depth = 0;  // line where the member starts; brackets open inside it
  bool in_string = false;
  while (true) {
    if (!has_line_ || at_ >= line_.size()) {
      if (!next_line()) break;
      if (start > 0) member += '\n';
      in_string = false;  // no string goes on behind a line end; the parser says so
      continue;
    }
    const char c = line_[at_++];
    const bool space = c == ' ' || c == '\t' || c == '\r';
    if (open_ == 0) {
      if (is_bracket_open(c)) {
        open_ = c;
        any_member_ = false;
      } else if (!space) {
        note_broken(broken_, input_error(fmt::format("not valid JSON: \"{}\" outside of the list or object",
                                                     printable(std::string_view(line_).substr(at_ - 1), 20)),
                                         lines_.place()));
        at_ = line_.size();
      }
      continue;
    }
    const bool closes = !in_string && depth == 0 && is_bracket_close(c);
    if (closes || (!in_string && depth == 0 && c == ',')) {
      const bool in_object = open_ == '{', blank = start == 0;
      if (closes) open_ = 0;
      if (blank && (any_member_ || !closes)) {
        note_broken(broken_, input_error("not valid JSON: a comma with nothing beside it", lines_.place()));
      }
      any_member_ = true;
      out.ends_list = closes && blank;
      if (out.ends_list) return true;
      end_pending_ = closes;
      out.line = start;
      out.in_list = !in_object;
      if (!blank && parse(in_object ? "{" + member + "}" : member, start, out.value)) {
        out.has_key = in_object && out.value.size() == 1;
        if (out.has_key) {
          out.key = out.value.begin().key();
          Json value = std::move(*out.value.begin());
          out.value = std::move(value);
        }
        return true;
      }
      if (closes) return next_member(out);  // the end of the list, which is pending
      member.clear();
      start = 0;
      continue;
    }
    if (start == 0 && space) continue;
    if (start == 0) start = lines_.number();
    member += c;
    if (member.size() > kLongestMember) {
      throw input_error(fmt::format("a member is longer than {} MiB", kLongestMember >> 20),
                        fmt::format("{}, line {}", document_name(path_, 0, 0), start), "write one record on each line");
    }
    if (in_string && c == '\\') {
      if (at_ < line_.size()) member += line_[at_++];
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      depth += is_bracket_open(c) ? 1 : is_bracket_close(c) ? -1 : 0;
    }
  }
  if (open_ != 0) {
    open_ = 0;
    note_broken(broken_, input_error("JSON ends too early", lines_.place(), "the file was cut off: fetch it again"));
  }
  return false;
}

std::unique_ptr<DialogueSource> json_source(SourceContext context) {
  return std::make_unique<JsonSource>(std::move(context));
}

}  // namespace palimpsest::data
