// SPDX-License-Identifier: Apache-2.0
// Conversations in the raw forms they are published in, read one by one into one type.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "palimpsest/data/documents.h"
#include "palimpsest/data/sides.h"

namespace palimpsest::data {

/// What one speaker says until the other does.
struct Turn {
  std::string role;     ///< "A" or "B" where the form has two speakers; "" for text; else as the file names it
  std::string text;     ///< valid UTF-8 without white space at its ends; never empty
  int64_t session = 1;  ///< sessions are joined in their order, numbered from 1
  bool operator==(const Turn&) const = default;
};

/// What is known of a speaker before the conversation, a sentence an entry.
struct Persona {
  std::string role;
  std::vector<std::string> lines;
  bool operator==(const Persona&) const = default;
};

struct Dialogue {
  std::string id;            ///< the file's own (MSC's "test_0", the CSV's B2, dial_id), else `place`
  std::string place;         ///< "PATH:LINE", where it starts
  std::string split_key;     ///< what decides its side: split_key_of its first session (pairs: of the source alone)
  Side side = Side::kTrain;  ///< as the record's own "split" says, else split_of(split_key, split_seed)
  std::vector<Persona> personas;  ///< as DialogueOptions::personas asks; roles in the order A, B
  std::vector<Turn> turns;        ///< never empty
  int64_t sessions() const { return turns.empty() ? 0 : turns.back().session; }
};

/// `format`, of each file:
///   personachat  ParlAI's text: "N your persona: …", "N partner's persona: …", "N utterance<TAB>reply[<TAB>…]"; N
///                counts from 1 in each dialogue. The partner is A, the one who replies B. A "__SILENCE__" is no turn.
///   persuasion   PersuasionForGood's full_dialog.csv: RFC 4180 with the columns Unit (text), B4 (0: persuader, here A;
///                1: persuadee, here B) and B2 (dialogue), the rows of a dialogue together. Rows of one speaker that
///                follow each other are one turn.
///   msc          Multi-Session Chat, one JSON object a line: all of `previous_dialogs` in order, then `dialog`.
///   "Speaker
///                1" is A, "Speaker 2" B; turns without such a name (those of previous dialogues have none, and some
///                first turns have a number) take turns, A first: 1,001 of 1,001 rows checked agree with that. Personas
///                are `init_personas` (given before session 1), else `personas` (which also hold what was said later).
///   turns        JSON, one dialogue a line: {"turns": [{"role", "text"[, "session"]}, …][, "id"][, "split"]}; or the
///                MemBART authors' lists of {"dial_id", "turn_id", "session", "role", "text"}: a list a line, a turn a
///                line, or one list, list of lists, or object {ID: list} over many lines. The names bot_0, Speaker 1
///                and user are A; bot_1, Speaker 2 and assistant B.
///   pairs        JSON, {"source", "target"[, "id"][, "split"]} a line: source is A, target B.
///   text         any text or JSONL of texts, cut as CorpusOptions::document says; a turn is a paragraph (what blank
///                lines divide; a line where there is none), without a role.
///   auto         by the content: CSV by its header, JSON by the keys of each record, PersonaChat by its first line. On
///                stdin "-.jsonl" is JSON and "-" text.
/// Each of them plain or gzip.
struct DialogueOptions {
  std::string format = "auto";
  std::string personas = "off";              // as MemBART was fine-tuned: off | own (B's, whom the model plays) | both
  std::string side = "all";                  // all | train | valid | test: split_of(split_key, split_seed) (sides.h)
  int64_t keep_apart = 10;                   // words; below it, shared phrases are small talk, above it copies
  std::vector<std::string> apart_from = {};  // the other data sets of a chain of recipes
  int64_t split_seed = 0;                    // not listed below: SplitOptions lists it
  static void fields(auto& o, auto&& field) {
    field("format", o.format, "form of the data: auto | personachat | persuasion | msc | turns | pairs | text");
    field("personas", o.personas, "persona lines of dialogues: off | own (the answering speaker's) | both");
    field("side", o.side, "read one side of the 80/10/10 split only: all | train | valid | test");
    field("keep_apart", o.keep_apart,
          "leave dialogues out of train that share an utterance of so many words with valid or test; 0: keep them");
    field("apart_from", o.apart_from,
          "further data sets whose valid and test sides train must not share utterances with");
  }
};

/// What was read so far. Nothing vanishes silently: what is not handed out is counted here.
struct DialogueCounts {
  int64_t files = 0, left_out = 0;                 ///< opened so far; files of folders that have another ending
  int64_t dialogues = 0, sessions = 0, turns = 0;  ///< handed out
  std::array<int64_t, 3> by_side = {};             ///< dialogues found, by Side, the ones not handed out included
  int64_t other_side = 0;                          ///< dialogues left out by `side`
  int64_t leaking = 0;                             ///< dialogues of the asked side left out by `keep_apart`
  int64_t empty = 0, empty_turns = 0;              ///< dialogues without a turn, turns without a text
  int64_t broken = 0;                              ///< lines, records and dialogues left out because of skip_broken
};

/// Reads dialogues in order. Memory is bounded by one dialogue (one record of JSON: 256 MiB; a row of CSV: 1 MiB), and
/// 8 bytes for each dialogue of forms that name them by row; where keep_apart is asked for, 8 bytes for each long
/// utterance of valid and test, which are read before.
///
/// Errors: input errors that name file, line and reason; with CorpusOptions::skip_broken the dialogue that holds what
/// is broken is left out as a whole (a conversation with a hole teaches wrong replies) and reading goes on. Broken gzip
/// and files that cannot be opened stay errors. Usage errors: an unknown format, personas or side.
class DialogueReader {
 public:
  /// Reads `corpus.data`. Of the rest, `document`, `text_key` and `strip` matter to the form `text` only.
  DialogueReader(const CorpusOptions& corpus, const DialogueOptions& options);
  ~DialogueReader();
  DialogueReader(DialogueReader&&) noexcept;

  /// False at the end of everything.
  bool next(Dialogue& out);

  const std::vector<std::string>& files() const;
  /// The form of the file read last.
  const std::string& format() const;
  DialogueCounts counts() const;
  /// The first of the broken ones left out, as "PLACE: PROBLEM".
  const std::vector<std::string>& first_broken() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The form of a file by its content ("text" where it is none of the others). Input error where it cannot be read.
std::string detect_format(const std::string& path, const std::string& text_key = "text");

}  // namespace palimpsest::data
