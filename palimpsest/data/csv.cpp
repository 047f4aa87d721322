// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/csv.h"

#include "palimpsest/data/documents.h"

namespace palimpsest::data {

CsvReader::CsvReader(const std::string& path, BrokenLines* broken)
    : path_(path), lines_(path, broken), broken_(broken) {}

std::string CsvReader::place() const { return fmt::format("{}, line {}", document_name(path_, 0, 0), line_); }

void CsvReader::fail(const std::string& problem, int64_t line, const std::string& fix) {
  note_broken(broken_, input_error(problem, fmt::format("{}, line {}", document_name(path_, 0, 0), line), fix));
}

bool CsvReader::next(std::vector<std::string>& fields) {
  const char* const quotes = "put the field in quotes and write each quote in it twice";
  fields.clear();
  std::string field;
  size_t size = 0;
  State state = State::kStart;
  bool begun = false, skipping = false;  // skipping: what is left of a broken line
  int64_t last_line = 0;
  const auto restart = [&] {
    fields.clear();
    field.clear();
    size = 0;
    state = State::kStart;
    begun = false;
  };
  for (Fragment part; lines_.next(part); last_line = part.line) {
    if (part.starts_line) skipping = false;
    if (!begun && part.starts_line) line_ = part.line;
    // A line was left out in the middle of this row (it was not UTF-8): the row is not whole.
    if (begun && part.starts_line && part.line > last_line + 1) {
      restart();
      line_ = part.line;
    }
    if (skipping) continue;
    for (size_t i = 0; i < part.text.size(); ++i) {
      const char c = part.text[i];
      const bool ends = c == '\n' || (c == '\r' && i + 1 < part.text.size() && part.text[i + 1] == '\n');
      if (++size > kLongestRow) {
        fail(fmt::format("a row is longer than {} MiB", kLongestRow >> 20), line_,
             "look for a quote that is not closed");
        restart();
        skipping = !part.ends_line;
        break;
      }
      if (state == State::kQuoted) {
        begun = true;
        if (c == '"') {
          state = State::kQuoteSeen;
        } else {
          field += c;
        }
        continue;
      }
      if (state == State::kQuoteSeen && c == '"') {
        field += '"';
        state = State::kQuoted;
      } else if (c == ',') {
        begun = true;
        fields.push_back(std::move(field));
        field.clear();
        state = State::kStart;
      } else if (ends) {
        if (!begun && field.empty()) break;  // an empty line
        fields.push_back(std::move(field));
        return true;
      } else if (state == State::kQuoteSeen) {
        fail("text behind a closing quote", part.line, quotes);
        restart();
        skipping = !part.ends_line;
        break;
      } else if (c == '"' && state == State::kStart) {
        begun = true;
        state = State::kQuoted;
      } else if (c == '"') {
        fail("a quote inside a field that does not start with one", part.line, quotes);
        restart();
        skipping = !part.ends_line;
        break;
      } else {
        begun = true;
        field += c;
        state = State::kPlain;
      }
    }
  }
  if (!begun) return false;
  if (state == State::kQuoted) {
    fail("the file ends inside quotes", line_, "the file was cut off, or a quote is not closed");
    return false;
  }
  fields.push_back(std::move(field));  // a last row without a line end
  return true;
}

}  // namespace palimpsest::data
