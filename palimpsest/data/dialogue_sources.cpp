// SPDX-License-Identifier: Apache-2.0
// Dialogues in lines of text and in CSV, and what the sources share.
#include "palimpsest/data/dialogue_sources.h"

#include <algorithm>
#include <charconv>

#include "palimpsest/data/csv.h"

namespace palimpsest::data {

std::string SourceContext::place(int64_t line) const { return document_name(path, line, 0); }

Error SourceContext::error(const std::string& problem, int64_t line, const std::string& fix) const {
  return input_error(problem, fmt::format("{}, line {}", document_name(path, 0, 0), line), fix);
}

void add_turn(const SourceContext& context, Dialogue& dialogue, std::string role, std::string_view text,
              int64_t session) {
  text = trimmed(text);
  if (text.empty()) {
    if (context.empty_turns != nullptr) ++*context.empty_turns;
    return;
  }
  dialogue.turns.push_back({.role = std::move(role), .text = std::string(text), .session = session});
}

std::vector<std::string> paragraphs_of(std::string_view text) {
  std::vector<std::string> by_line, by_blank;
  bool any_blank = false, open = false;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin), body = trimmed(line);
    begin = end + 1;
    if (body.empty()) {
      any_blank = any_blank || !by_line.empty();  // those before the first line divide nothing
      open = false;
      continue;
    }
    by_line.emplace_back(body);
    if (open) {
      by_blank.back() += '\n';
      by_blank.back() += body;
    } else {
      by_blank.emplace_back(body);
    }
    open = true;
  }
  return any_blank && by_blank.size() > 1 ? by_blank : by_line;
}

bool SeenIds::insert(const std::string& id) {
  uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const char byte : id) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3ULL;
  return hashes_.insert(hash).second;
}

namespace {

class PersonaChatSource : public DialogueSource {
 public:
  explicit PersonaChatSource(SourceContext context)
      : context_(std::move(context)), lines_(context_.path, context_.broken) {}

  bool next(FoundDialogue& out) override {
    FoundDialogue found;
    bool open = false, bad = false;
    int64_t expected = 1;
    while (true) {
      const int64_t broken = context_.broken_so_far();
      if (!pending_ && !read()) {
        if (!open || bad || context_.broken_so_far() > broken) return false;
        out = std::move(found);
        return true;
      }
      const auto [number, rest] = numbered(line_);
      if (context_.broken_so_far() > broken) bad = open;  // a line of this dialogue, or the first of the next
      if (number == 1 && open) {
        pending_ = true;
        if (!bad) {
          out = std::move(found);
          return true;
        }
        found = {};
        open = bad = false;
        expected = 1;
        continue;
      }
      pending_ = false;
      if (!open) {
        open = true;
        found.dialogue.place = found.dialogue.id = context_.place(lines_.number());
      }
      if (bad) continue;
      try {
        take(found.dialogue, number, rest, expected++);
      } catch (const Error& error) {
        bad = true;
        note_broken(context_.broken, error);
      }
    }
  }

 private:
  /// The next line that is not blank.
  bool read() {
    do {
      if (!lines_.next(line_)) return false;
    } while (is_blank(line_));
    return true;
  }

  /// "12 text" as (12, "text"); (0, line) where it is not like that.
  static std::pair<int64_t, std::string_view> numbered(std::string_view line) {
    int64_t number = 0;
    const auto [stop, code] = std::from_chars(line.data(), line.data() + line.size(), number);
    const auto digits = static_cast<size_t>(stop - line.data());
    if (code != std::errc() || number < 1 || digits == line.size() || line[digits] != ' ') return {0, line};
    return {number, line.substr(digits + 1)};
  }

  void take(Dialogue& dialogue, int64_t number, std::string_view rest, int64_t expected) {
    const int64_t line = lines_.number();
    if (number == 0) {
      throw context_.error("the line does not start with a number and a space", line,
                           "each line is \"N your persona: …\" or \"N utterance<TAB>reply\"");
    }
    if (number != expected) {
      throw context_.error(fmt::format("number {} where {} should stand", number, expected), line,
                           "lines count from 1 in each dialogue: one is missing or there twice");
    }
    for (const auto& [start, role] : {std::pair{"your persona:", "B"}, std::pair{"partner's persona:", "A"}}) {
      if (!rest.starts_with(start)) continue;
      const std::string_view text = trimmed(rest.substr(std::string_view(start).size()));
      if (text.empty()) return;
      auto& personas = dialogue.personas;
      auto found = std::find_if(personas.begin(), personas.end(), [&, r = role](const auto& p) { return p.role == r; });
      if (found == personas.end()) found = personas.insert(role[0] == 'A' ? personas.begin() : found, {role, {}});
      found->lines.emplace_back(text);
      return;
    }
    const size_t tab = rest.find('\t');
    if (tab == std::string_view::npos) {
      throw context_.error("neither a persona line nor an utterance, a tab and a reply", line,
                           "each line is \"N your persona: …\" or \"N utterance<TAB>reply\"");
    }
    const std::string_view utterance = rest.substr(0, tab), after = rest.substr(tab + 1);
    if (trimmed(utterance) != "__SILENCE__") add_turn(context_, dialogue, "A", utterance, 1);
    add_turn(context_, dialogue, "B", after.substr(0, after.find('\t')), 1);  // reward and candidates follow
  }

  SourceContext context_;
  WholeLines lines_;
  std::string line_;
  bool pending_ = false;  ///< line_ is not used yet
};

class PersuasionSource : public DialogueSource {
 public:
  explicit PersuasionSource(SourceContext context)
      : context_(std::move(context)), rows_(context_.path, context_.broken) {
    std::vector<std::string> header;
    if (!rows_.next(header)) return;  // an empty file
    columns_ = header.size();
    for (const auto& [name, column] :
         {std::pair{"Unit", &text_}, std::pair{"B4", &role_}, std::pair{"B2", &dialogue_}}) {
      const auto found = std::find(header.begin(), header.end(), name);
      if (found == header.end()) {
        throw context_.error(fmt::format("the header has no column {}", name), rows_.line(),
                             "persuasion is full_dialog.csv of PersuasionForGood: ,Unit,Turn,B4,B2");
      }
      *column = static_cast<size_t>(found - header.begin());
    }
  }

  bool next(FoundDialogue& out) override {
    while (true) {
      const int64_t broken = context_.broken_so_far();
      const bool found = pending_ || rows_.next(row_);
      // What was broken may have been of the open dialogue or of the one that follows: neither is whole for sure.
      const bool broke = context_.broken_so_far() > broken;
      if (broke) bad_ = true;
      if (!found) {
        const bool ready = open_ && !bad_;
        if (ready) out = std::move(*open_);
        open_.reset();
        return ready;
      }
      pending_ = false;
      if (row_.size() != columns_) {
        bad_ = bad_next_ = true;
        note_broken(context_.broken, context_.error(fmt::format("{} fields, the header has {}", row_.size(), columns_),
                                                    rows_.line(), "put text that holds commas in quotes"));
        continue;
      }
      const std::string& id = row_[dialogue_];
      if (open_ && id != open_->dialogue.id) {
        pending_ = true;
        const bool ready = !bad_;
        if (ready) out = std::move(*open_);
        open_.reset();
        bad_next_ = bad_next_ || broke;
        if (ready) return true;
        continue;
      }
      if (!open_) {
        bad_ = bad_next_ || broke;
        open_.emplace();
        open_->dialogue.id = id;
        open_->dialogue.place = context_.place(rows_.line());
      }
      bad_next_ = false;  // the broken row was of this dialogue, or stood before it
      try {
        take(id);
      } catch (const Error& error) {
        bad_ = true;
        note_broken(context_.broken, error);
      }
    }
  }

 private:
  void take(const std::string& id) {
    Dialogue& dialogue = open_->dialogue;
    if (id.empty()) throw context_.error("the row names no dialogue (B2)", rows_.line());
    if (id != last_id_ && !seen_.insert(id)) {
      last_id_ = id;
      throw context_.error(fmt::format("the rows of dialogue {} do not lie together", printable(id, 60)), rows_.line(),
                           "sort them by B2");
    }
    last_id_ = id;
    const std::string& role = row_[role_];
    if (role != "0" && role != "1") {
      throw context_.error(fmt::format("role (B4) is \"{}\"", printable(role, 20)), rows_.line(),
                           "0 is the persuader, 1 the persuadee");
    }
    const std::string name = role == "0" ? "A" : "B";
    const std::string_view text = trimmed(row_[text_]);
    if (!text.empty() && !dialogue.turns.empty() && dialogue.turns.back().role == name) {
      dialogue.turns.back().text.append(" ").append(text);
    } else {
      add_turn(context_, dialogue, name, text, 1);
    }
  }

  SourceContext context_;
  CsvReader rows_;
  size_t columns_ = 0, text_ = 0, role_ = 0, dialogue_ = 0;
  std::vector<std::string> row_;
  bool pending_ = false;  ///< row_ is not used yet
  std::optional<FoundDialogue> open_;
  bool bad_ = false, bad_next_ = false;
  std::string last_id_;
  SeenIds seen_;
};

class TextSource : public DialogueSource {
 public:
  explicit TextSource(SourceContext context) : context_(std::move(context)), reader_(options_of(context_)) {}

  bool next(FoundDialogue& out) override {
    Document document;
    const bool found = reader_.next(document);
    if (context_.broken != nullptr) {  // take over what was newly noted
      const int64_t broken = reader_.counts().broken;
      const auto& first = reader_.first_broken();
      for (size_t i = static_cast<size_t>(noted_);
           i < first.size() && context_.broken->first.size() < BrokenLines::kKept; ++i) {
        context_.broken->first.push_back(first[i]);
      }
      context_.broken->count += broken - noted_;
      noted_ = broken;
    }
    if (!found) return false;
    out = {};
    out.dialogue.id = out.dialogue.place = document.name;
    for (const auto& paragraph : paragraphs_of(document.text)) add_turn(context_, out.dialogue, "", paragraph, 1);
    return true;
  }

 private:
  static CorpusOptions options_of(const SourceContext& context) {
    CorpusOptions options = context.corpus;
    options.data = {context.path};
    return options;
  }

  SourceContext context_;
  DocumentReader reader_;
  int64_t noted_ = 0;
};

}  // namespace

std::unique_ptr<DialogueSource> personachat_source(SourceContext context) {
  return std::make_unique<PersonaChatSource>(std::move(context));
}
std::unique_ptr<DialogueSource> persuasion_source(SourceContext context) {
  return std::make_unique<PersuasionSource>(std::move(context));
}
std::unique_ptr<DialogueSource> text_source(SourceContext context) {
  return std::make_unique<TextSource>(std::move(context));
}

}  // namespace palimpsest::data
