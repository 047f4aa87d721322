// SPDX-License-Identifier: Apache-2.0
// Comma-separated values as RFC 4180 says: quoted fields, "" for a quote, line ends inside quotes, CRLF or LF.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "palimpsest/data/text_lines.h"

namespace palimpsest::data {

class CsvReader {
 public:
  static constexpr size_t kLongestRow = size_t{1} << 20;  ///< bytes; more means that a quote was never closed

  /// `broken` (may be null, else must outlive this): broken rows are noted there and left out up to their line's end.
  explicit CsvReader(const std::string& path, BrokenLines* broken = nullptr);

  /// The next row that is not an empty line; false at the end. Line ends inside quotes are kept as they are. Input
  /// error for text behind a closing quote, a quote inside an unquoted field, a quote never closed, invalid UTF-8.
  bool next(std::vector<std::string>& fields);
  /// Line where the row given last starts, from 1, and "PATH, line N".
  int64_t line() const { return line_; }
  std::string place() const;

 private:
  enum class State { kStart, kPlain, kQuoted, kQuoteSeen };
  void fail(const std::string& problem, int64_t line, const std::string& fix);

  std::string path_;
  FileLines lines_;
  BrokenLines* broken_;
  int64_t line_ = 0;
};

}  // namespace palimpsest::data
