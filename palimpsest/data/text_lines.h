// SPDX-License-Identifier: Apache-2.0
// What the readers are made of: bytes of a file (gzip or not), its lines in bounded parts, and records of JSONL.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "palimpsest/core/error.h"

// zlib's handle, so that its header stays out of this one.
struct gzFile_s;

namespace palimpsest::data {

/// A file as bytes; gzip is noticed by its first bytes and unpacked. "-" is stdin.
class ByteFile {
 public:
  /// Input error where it cannot be opened, or where a name that ends in ".gz" is not gzip.
  explicit ByteFile(const std::string& path);
  ~ByteFile();
  ByteFile(const ByteFile&) = delete;
  ByteFile& operator=(const ByteFile&) = delete;

  /// Up to `capacity` bytes; 0 at the end only. Input error for broken or truncated gzip.
  size_t read(char* out, size_t capacity);
  /// Bytes of the file as it lies on disk that were read so far.
  int64_t raw_position() const;

 private:
  std::string path_;
  gzFile_s* file_ = nullptr;
  bool started_ = false;
};

/// A part of a line: valid UTF-8, at most DocumentReader::kLineBytes long, not cut inside "\r\n" or a code point.
struct Fragment {
  std::string_view text;  ///< with the line's "\n" where it ends with one; valid until the next call
  bool starts_line = true;
  bool ends_line = true;  ///< by "\n" or by the end of the source
  int64_t line = 1;       ///< of the source, from 1
};

/// Lines of something.
class LineSource {
 public:
  virtual ~LineSource() = default;
  /// False at the end; never an empty fragment.
  virtual bool next(Fragment& out) = 0;
};

/// What was broken and left out, because that was asked for: how much, and what the first ones were.
struct BrokenLines {
  static constexpr size_t kKept = 5;
  int64_t count = 0;
  std::vector<std::string> first;  ///< "PLACE: PROBLEM" of the first kKept

  void add(const Error& error);
};
/// Notes `error` in `broken`; throws it where `broken` is null: nothing is left out unasked.
void note_broken(BrokenLines* broken, const Error& error);

/// Lines of a file at constant memory. A byte order mark at its start is dropped.
class FileLines : public LineSource {
 public:
  /// `broken` (may be null, else must outlive this): lines that are not UTF-8 are noted there and left out. Of a line
  /// that was partly given out the rest is left out: the next fragment then starts a line.
  explicit FileLines(const std::string& path, BrokenLines* broken = nullptr);
  bool next(Fragment& out) override;
  int64_t raw_position() const { return file_.raw_position(); }

 private:
  void refill();
  void leave_out_line();

  std::string path_;
  BrokenLines* broken_;
  ByteFile file_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;  ///< what of the buffer is not given out yet
  int64_t offset_ = 0;          ///< of buffer_[begin_] in the (unpacked) file
  int64_t line_ = 1;
  bool at_end_ = false, starts_line_ = true;
};

/// Lines of a text in memory, known to be valid UTF-8.
class StringLines : public LineSource {
 public:
  explicit StringLines(std::string text, int64_t first_line) : text_(std::move(text)), line_(first_line) {}
  bool next(Fragment& out) override;

 private:
  std::string text_;
  size_t begin_ = 0;
  int64_t line_;
  bool starts_line_ = true;
};

/// Whole lines of a file, for readers of records.
class WholeLines {
 public:
  static constexpr size_t kLongest = size_t{256} << 20;  ///< bytes; a longer line is an input error

  explicit WholeLines(const std::string& path, BrokenLines* broken = nullptr) : path_(path), lines_(path, broken) {}
  /// Without its line end; false at the end.
  bool next(std::string& line);
  /// Of the line given last, from 1.
  int64_t number() const { return number_; }
  /// "PATH, line N" of the line given last.
  std::string place() const;
  int64_t raw_position() const { return lines_.raw_position(); }

 private:
  std::string path_;
  FileLines lines_;
  int64_t number_ = 0;
};

/// Index of the first byte that is not part of valid UTF-8 (shortest form, no surrogates), or npos.
size_t find_invalid_utf8(std::string_view text);

/// Whether every byte is ASCII white space.
bool is_blank(std::string_view text);

/// If `text` starts with white space (Unicode's), its length in bytes, else 0. `text` must not be empty.
size_t white_space_at(std::string_view text);

/// `text` without white space (Unicode's) at its ends.
std::string_view trimmed(std::string_view text);

/// The text of a record. Input error (at `place`) for broken JSON, nesting beyond 128 levels, a record that is no
/// object, a key that is missing, there twice, or not text.
std::string record_text(std::string_view json, const std::string& key, const std::string& place);

}  // namespace palimpsest::data
