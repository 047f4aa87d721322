// SPDX-License-Identifier: Apache-2.0
// Streaming readers: plain text and JSONL, gzip of each, cut into documents without holding a corpus in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest::data {

/// What is read and where one document ends.
struct CorpusOptions {
  std::vector<std::string> data = {};  // files, folders, "-" for stdin; gzip of each is noticed by its first bytes
  std::string document = "file";       // see below
  std::string text_key = "text";       // the key of a JSONL record that holds its text
  std::string strip = "";              // regular expression removed at the start of each line
  bool skip_broken = false;            // off: a hole in the data should be seen before it is trained on
  static void fields(auto& o, auto&& field) {
    field("data", o.data, "files or folders of text (.txt) and JSONL (.jsonl), also as .gz; - is stdin");
    field("document", o.document,
          "what one document is: file | line | blank | chapter | separator=REGEX | change=REGEX | pieces=N");
    field("text_key", o.text_key, "key of a JSONL record that holds its text");
    field("strip", o.strip, "regular expression that is removed at the start of each line");
    field("skip_broken", o.skip_broken, "leave out lines and records that are broken, and count them");
  }
};
// `document`:
//   file             a whole file; a JSONL record is always a source of its own, like a file
//   line             each line, without its end ("\n" or "\r\n"); lines of white space only count as empty
//   blank            paragraphs: one or more lines of white space only stand between two documents
//   chapter          a line that is a chapter's heading ("CHAPTER I. Down the Rabbit-Hole", "Chapter 12", "Chapter
//                    One") starts a new document and belongs to it; what stands before the first is one, too
//   separator=REGEX  a line that matches starts a new document and belongs to it
//   change=REGEX     a new document starts where the first capture group differs from that of the last line that
//                    matched: change=^(\S+?\d+): makes one document of each chapter of "Gen1:1 In the beginning"
//   pieces=N         each file is cut into N contiguous pieces of about equal bytes, before a space or line end
// Regular expressions are ECMAScript's over bytes, without back references. They are matched at the start of a line
// and see its first 256 bytes only (matching time stays bounded, whatever the file holds). A border is decided
// before `strip` removes anything; a line of which strip leaves nothing disappears with its line end.
// Line ends are kept as they are ("\r\n" too). A byte order mark at the start of a file is dropped.
// In folders the files named *.txt, *.text, *.jsonl and these with .gz are read, in the order of their
// paths, folders in folders included; hidden ones are left out. A file named by itself is read whatever its name;
// "-.jsonl" is JSONL on stdin (as a flag: --data=-.jsonl).

struct Document {
  std::string text;  ///< valid UTF-8, never empty
  std::string name;  ///< "PATH", "PATH:LINE" (where it starts, from 1) or "PATH#PIECE" (from 1)
};

/// What was read so far. Nothing vanishes silently: documents + empty is all that was found.
struct ReadCounts {
  int64_t files = 0;      ///< opened so far
  int64_t documents = 0;  ///< handed out
  int64_t empty = 0;      ///< empty files, records and lines that were skipped
  int64_t bytes = 0;      ///< text handed out, after strip
  int64_t left_out = 0;   ///< files of folders that have another ending
  int64_t broken = 0;     ///< lines and records left out because of skip_broken
};

/// A part of a document, at most kPieceBytes + kLineBytes long: how a document of any size is read at constant memory.
struct Piece {
  std::string text;    ///< valid UTF-8, cut between code points
  bool first = true;   ///< starts a document
  bool last = true;    ///< ends it
  int64_t source = 0;  ///< index into DocumentReader::files()
  int64_t line = 0;    ///< line of the source where the document starts, from 1; 0: not named by line
  int64_t part = 0;    ///< piece=N's number, from 1; 0: none
};

/// Reads documents in order. Memory is bounded by one document (next) or one piece (next_piece), and for JSONL by
/// one record. Errors (input errors that name file, line or byte): missing or unreadable file, no readable file
/// in a folder, invalid UTF-8, broken or truncated gzip, broken JSON, a record without the key or with something
/// else than text there (with skip_broken, what is wrong with one line or record only leaves that out; broken gzip
/// stays an error). Usage errors: an unknown `document`, a broken regular expression, pieces=N on stdin.
class DocumentReader {
 public:
  static constexpr int64_t kPieceBytes = 1 << 16, kLineBytes = 1 << 16;

  explicit DocumentReader(CorpusOptions options);
  ~DocumentReader();
  DocumentReader(DocumentReader&&) noexcept;

  /// The next document that is not empty; false at the end.
  bool next(Document& out);
  /// The same in parts; do not mix with next() inside one document. A last piece may be empty.
  bool next_piece(Piece& out);

  const std::vector<std::string>& files() const;
  std::string name_of(const Piece& piece) const;
  ReadCounts counts() const;
  /// The first of the broken ones left out, as "PLACE: PROBLEM".
  const std::vector<std::string>& first_broken() const;
  /// Bytes of the files (as they lie on disk) that were read, and in all; stdin counts 0.
  int64_t raw_position() const;
  int64_t raw_size() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// "PATH", "PATH:LINE", "PATH#PART": how documents are named everywhere.
std::string document_name(const std::string& path, int64_t line, int64_t part);

/// The files that `data` stands for, in reading order. `left_out` counts files of folders with other endings;
/// `records`: of folders *.csv and *.json (and these with .gz) are read, too.
std::vector<std::string> list_files(const std::vector<std::string>& data, int64_t* left_out = nullptr,
                                    bool records = false);

}  // namespace palimpsest::data
