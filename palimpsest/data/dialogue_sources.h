// SPDX-License-Identifier: Apache-2.0
// One reader for each raw form of dialogues; DialogueReader chooses among them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "palimpsest/core/json.h"
#include "palimpsest/data/dialogue.h"
#include "palimpsest/data/text_lines.h"

namespace palimpsest::data {

/// A dialogue as a file has it: all personas; `split_key` empty where the first session decides; perhaps no turns.
struct FoundDialogue {
  Dialogue dialogue;
  std::optional<Side> side;  ///< where the file itself says it
};

/// What every source is told. `broken` may be null (then what is broken is thrown); both pointers outlive the source.
struct SourceContext {
  std::string path;
  std::string format;  ///< a name of DialogueOptions::format; "auto" lets each JSON record be what its keys say
  CorpusOptions corpus;
  BrokenLines* broken = nullptr;
  int64_t* empty_turns = nullptr;

  std::string place(int64_t line) const;
  Error error(const std::string& problem, int64_t line, const std::string& fix = "") const;
  int64_t broken_so_far() const { return broken != nullptr ? broken->count : 0; }
};

class DialogueSource {
 public:
  virtual ~DialogueSource() = default;
  /// The next dialogue, false at the end. What is broken was noted or thrown.
  virtual bool next(FoundDialogue& out) = 0;
};

std::unique_ptr<DialogueSource> personachat_source(SourceContext context);
std::unique_ptr<DialogueSource> persuasion_source(SourceContext context);
/// msc, turns, pairs; and texts in files that are not named .jsonl.
std::unique_ptr<DialogueSource> json_source(SourceContext context);
std::unique_ptr<DialogueSource> text_source(SourceContext context);

/// Adds a turn; one without text is counted and left out.
void add_turn(const SourceContext& context, Dialogue& dialogue, std::string role, std::string_view text,
              int64_t session);

/// The paragraphs of a text: what blank lines divide, or each line where there is no blank one; ends trimmed.
std::vector<std::string> paragraphs_of(std::string_view text);

/// Remembers ids, to notice a dialogue whose parts do not lie together.
class SeenIds {
 public:
  /// False where it was there before.
  bool insert(const std::string& id);

 private:
  std::unordered_set<uint64_t> hashes_;
};

/// Members of the list or object that a JSON text over many lines is, one after another, and whole lines.
class JsonRecords {
 public:
  JsonRecords(const std::string& path, BrokenLines* broken) : path_(path), lines_(path, broken), broken_(broken) {}

  struct Record {
    Json value;
    std::string key;  ///< of a member of an object
    bool has_key = false;
    bool in_list = false;    ///< member of a list over many lines
    bool ends_list = false;  ///< nothing but this: that list ended (no value)
    int64_t line = 1;        ///< where it starts
  };
  /// The next record, false at the end. What is no JSON is noted or thrown and left out.
  bool next(Record& out);

 private:
  enum class Mode { kUnknown, kLines, kMembers };
  bool next_line();
  bool next_member(Record& out);
  bool parse(const std::string& text, int64_t line, Json& value);

  std::string path_;
  WholeLines lines_;
  BrokenLines* broken_;
  Mode mode_ = Mode::kUnknown;
  std::string line_;  ///< the one being looked at
  bool has_line_ = false;
  size_t at_ = 0;             ///< in line_
  char open_ = 0;             ///< the bracket of the outermost value, 0 outside
  bool any_member_ = false;   ///< of the open value
  bool end_pending_ = false;  ///< the end of a list is to be told
};

/// What a record is: msc, turns, pairs, turn (one turn), lists (object of lists), text; "" for none of these.
std::string record_kind(const Json& record, const std::string& text_key);

}  // namespace palimpsest::data
