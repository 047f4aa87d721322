// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/dialogue.h"

#include <algorithm>
#include <optional>

#include "palimpsest/core/error.h"
#include "palimpsest/core/options.h"
#include "palimpsest/data/csv.h"
#include "palimpsest/data/dialogue_sources.h"

namespace palimpsest::data {

namespace {

constexpr int kLookedAt = 16;  // lines or records that are looked at to find the form of a file

bool is_stdin(const std::string& path) { return path == "-" || path == "-.jsonl"; }

bool has_ending(const std::string& path, const std::string& ending) {
  return path.ends_with(ending) || path.ends_with(ending + ".gz");
}

/// "1 your persona: …" or "1 utterance<TAB>reply".
bool starts_personachat(std::string_view line) {
  if (!line.starts_with("1 ")) return false;
  return line.starts_with("1 your persona:") || line.starts_with("1 partner's persona:") ||
         line.find('\t') != std::string_view::npos;
}

/// "" where none of the first records says.
std::string form_of_json(const std::string& path, const std::string& text_key) {
  BrokenLines broken;  // what is wrong is told when the file is read
  JsonRecords records(path, &broken);
  JsonRecords::Record record;
  for (int i = 0; i < kLookedAt && broken.count < kLookedAt && records.next(record); ++i) {
    if (record.ends_list) continue;
    if (record.has_key || record.value.is_array()) return "turns";
    const std::string kind = record_kind(record.value, text_key);
    if (kind == "turn" || kind == "lists") return "turns";
    if (!kind.empty()) return kind;
  }
  return "";
}

Side side_of(const std::string& name) {
  return name == "train" ? Side::kTrain : name == "valid" ? Side::kValid : Side::kTest;
}

}  // namespace

std::string detect_format(const std::string& path, const std::string& text_key) {
  if (has_ending(path, ".csv")) {
    std::vector<std::string> header;
    if (BrokenLines broken; CsvReader(path, &broken).next(header)) {
      const auto has = [&](const char* name) { return std::find(header.begin(), header.end(), name) != header.end(); };
      if (has("Unit") && has("B4") && has("B2")) return "persuasion";
    }
    std::string names;
    for (const auto& name : header) names += (names.empty() ? "" : ", ") + printable(name, 30);
    throw input_error(fmt::format("CSV of an unknown form, its columns: {}", printable(names, 200)), path,
                      "persuasion has Unit, B4 and B2; --format text reads it as it stands");
  }
  BrokenLines broken;
  FileLines lines(path, &broken);
  Fragment first;
  do {
    if (!lines.next(first)) return "text";
  } while (is_blank(first.text) && first.line < kLookedAt);
  const std::string_view line = trimmed(first.text);
  if (line.starts_with(",Unit,")) return "persuasion";
  if (starts_personachat(line)) return "personachat";
  // Of a file with another name one record must be read to know that it is no text that starts with a bracket.
  const bool named_json = has_ending(path, ".jsonl") || has_ending(path, ".json");
  if (named_json || line.starts_with("{") || line.starts_with("[")) {
    const std::string form = form_of_json(path, text_key);
    if (!form.empty()) return form;
    if (has_ending(path, ".json")) return "turns";  // whose reader says what is wrong with it
  }
  return "text";
}

class DialogueReader::Impl {
 public:
  Impl(const CorpusOptions& corpus, const DialogueOptions& options) : corpus_(corpus), options_(options) {
    check_choice("format", options.format, {"auto", "personachat", "persuasion", "msc", "turns", "pairs", "text"});
    check_choice("personas", options.personas, {"off", "own", "both"});
    check_choice("side", options.side, {"all", "train", "valid", "test"});
    if (options.keep_apart < 0) {
      throw usage_error(fmt::format("keep_apart is {}", options.keep_apart), "", "a number of words; 0 turns it off");
    }
    files_ = list_files(corpus.data, &counts_.left_out, true);
    if (options.keep_apart > 0 && (options.side == "train" || options.side == "valid")) read_held_out();
  }

  bool next(Dialogue& out) {
    while (true) {
      if (!source_ && !open_source()) return false;
      FoundDialogue found;
      if (!source_->next(found)) {
        source_.reset();
        continue;
      }
      Dialogue& dialogue = found.dialogue;
      if (dialogue.turns.empty()) {
        ++counts_.empty;
        continue;
      }
      if (dialogue.split_key.empty()) dialogue.split_key = first_session_key(dialogue);
      dialogue.side = found.side ? *found.side : split_of(dialogue.split_key, options_.split_seed);
      ++counts_.by_side[static_cast<size_t>(dialogue.side)];
      if (options_.side != "all" && dialogue.side != side_of(options_.side)) {
        ++counts_.other_side;
        continue;
      }
      if (held_out_ && says_held_out(dialogue)) {
        ++counts_.leaking;
        continue;
      }
      if (options_.personas != "both") {
        std::erase_if(dialogue.personas, [&](const Persona& p) { return options_.personas == "off" || p.role != "B"; });
      }
      ++counts_.dialogues;
      counts_.sessions += dialogue.sessions();
      counts_.turns += static_cast<int64_t>(dialogue.turns.size());
      out = std::move(dialogue);
      return true;
    }
  }

  const std::vector<std::string>& files() const { return files_; }
  const std::string& format() const { return format_; }
  DialogueCounts counts() const {
    DialogueCounts counts = counts_;
    counts.broken = broken_.count;
    return counts;
  }
  const std::vector<std::string>& first_broken() const { return broken_.first; }

 private:
  bool open_source() {
    if (static_cast<size_t>(counts_.files) >= files_.size()) return false;
    const std::string& path = files_[static_cast<size_t>(counts_.files++)];
    format_ = options_.format;
    if (format_ == "auto") {
      if (is_stdin(path)) {
        format_ = path == "-" ? "text" : "turns";
      } else {
        format_ = detect_format(path, corpus_.text_key);
      }
    }
    SourceContext context{.path = path,
                          .format = options_.format,
                          .corpus = corpus_,
                          .broken = corpus_.skip_broken ? &broken_ : nullptr,
                          .empty_turns = &counts_.empty_turns};
    if (format_ == "personachat") {
      source_ = personachat_source(std::move(context));
    } else if (format_ == "persuasion") {
      source_ = persuasion_source(std::move(context));
    } else if (format_ == "text") {
      source_ = text_source(std::move(context));
    } else {
      source_ = json_source(std::move(context));
    }
    return true;
  }

  static std::string first_session_key(const Dialogue& dialogue) {
    std::string text;
    for (const Turn& turn : dialogue.turns) {
      if (turn.session == dialogue.turns.front().session) text += turn.text + "\n";
    }
    return split_key_of(text);
  }

  bool says_held_out(const Dialogue& dialogue) const {
    return std::any_of(dialogue.turns.begin(), dialogue.turns.end(),
                       [&](const Turn& turn) { return held_out_->meets(turn.text, dialogue.side); });
  }

  /// The long utterances of valid and test, of this data and of what it is to stay apart from.
  void read_held_out() {
    CorpusOptions corpus = corpus_;
    corpus.data.insert(corpus.data.end(), options_.apart_from.begin(), options_.apart_from.end());
    if (std::any_of(corpus.data.begin(), corpus.data.end(), is_stdin)) {
      throw usage_error("stdin cannot be read twice", "", "keep_apart = 0, or write it to a file first");
    }
    DialogueOptions options = options_;
    options.side = "all";
    options.format = options_.apart_from.empty() ? options_.format : "auto";
    held_out_.emplace(options_.keep_apart);
    DialogueReader reader(corpus, options);
    for (Dialogue dialogue; reader.next(dialogue);) {
      for (const Turn& turn : dialogue.turns) held_out_->add(turn.text, dialogue.side);
    }
  }

  CorpusOptions corpus_;
  DialogueOptions options_;
  std::vector<std::string> files_;
  DialogueCounts counts_;
  BrokenLines broken_;
  std::optional<HeldOutUtterances> held_out_;
  std::unique_ptr<DialogueSource> source_;
  std::string format_;
};

DialogueReader::DialogueReader(const CorpusOptions& corpus, const DialogueOptions& options)
    : impl_(std::make_unique<Impl>(corpus, options)) {}
DialogueReader::~DialogueReader() = default;
DialogueReader::DialogueReader(DialogueReader&&) noexcept = default;

bool DialogueReader::next(Dialogue& out) { return impl_->next(out); }
const std::vector<std::string>& DialogueReader::files() const { return impl_->files(); }
const std::string& DialogueReader::format() const { return impl_->format(); }
DialogueCounts DialogueReader::counts() const { return impl_->counts(); }
const std::vector<std::string>& DialogueReader::first_broken() const { return impl_->first_broken(); }

}  // namespace palimpsest::data
