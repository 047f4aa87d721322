// SPDX-License-Identifier: Apache-2.0
// Two files of lines that say the same: line N of the target belongs to line N of the source (translation).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest::data {

struct AlignedOptions {
  std::string source, target;  // each plain or gzip
  std::string ref = "";        // a third file of as many lines; see below
  int64_t lines_per_unit = 1;  // as sentence-level translation has it
  bool skip_broken = false;
  static void fields(auto& o, auto&& field) {
    field("target", o.target, "file whose lines belong to those of the source, line by line (translation)");
    field("ref", o.ref, "file of as many lines; a document ends where their first field (up to a tab) changes");
    field("lines_per_unit", o.lines_per_unit, "lines of one document that are read as one, joined by spaces");
  }
};

/// What is translated at once: up to lines_per_unit lines of one document.
struct AlignedUnit {
  std::string source, target;  ///< valid UTF-8, one line each, ends trimmed, never empty
  std::string document;        ///< the ref's field, else "PATH:LINE" where the document starts
  int64_t line = 1;            ///< where the unit starts in both files, from 1
  int64_t lines = 0;           ///< of each file that were joined
  bool first = true;           ///< starts a document; ALGORITHMS 3.5: the memory is reset there
  bool last = true;            ///< ends it
};

struct AlignedCounts {
  int64_t documents = 0, units = 0, lines = 0;  ///< handed out
  int64_t blank = 0;                            ///< pairs of blank lines: they divide documents
  int64_t broken = 0;                           ///< lines left out because of skip_broken
};

/// Reads units in order. Documents are divided by lines that are blank in both files and, with `ref`, where its first
/// field changes; a unit never holds lines of two. Memory is bounded by two units.
///
/// Errors: input errors that name file and line: a line that is blank on one side only, invalid UTF-8, files (ref, too)
/// with different numbers of lines. With skip_broken a broken pair of lines is left out; different numbers of lines
/// stay an error, as nobody knows where the files part. Usage errors: no source or target, lines_per_unit < 1.
class AlignedReader {
 public:
  explicit AlignedReader(const AlignedOptions& options);
  ~AlignedReader();
  AlignedReader(AlignedReader&&) noexcept;

  /// False at the end.
  bool next(AlignedUnit& out);
  AlignedCounts counts() const;
  /// The first of the broken ones left out, as "PLACE: PROBLEM".
  const std::vector<std::string>& first_broken() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace palimpsest::data
