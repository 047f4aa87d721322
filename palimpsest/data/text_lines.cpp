// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/text_lines.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "palimpsest/core/json.h"
#include "palimpsest/data/documents.h"

namespace palimpsest::data {

namespace {

constexpr size_t kLineBytes = static_cast<size_t>(DocumentReader::kLineBytes);
constexpr size_t kBufferBytes = 4 * kLineBytes;

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

/// How much of `rest` is the next fragment: up to its first line end, or as much as is allowed of a longer line.
/// `complete`: nothing follows `rest`.
size_t fragment_size(std::string_view rest, bool complete) {
  const size_t newline = rest.substr(0, kLineBytes).find('\n');
  if (newline != std::string_view::npos) return newline + 1;
  if (rest.size() <= kLineBytes && complete) return rest.size();
  size_t size = std::min(rest.size(), kLineBytes);
  for (int back = 0; back < 3 && size > 1 && size < rest.size() && is_continuation(rest[size]); ++back) --size;
  if (size > 1 && rest[size - 1] == '\r') --size;
  return size;
}

}  // namespace

ByteFile::ByteFile(const std::string& path) : path_(document_name(path, 0, 0)) {
  const int fd = path == "-" || path == "-.jsonl" ? ::dup(0) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw input_error(fmt::format("cannot open: {}", std::strerror(errno)), path_);
  file_ = ::gzdopen(fd, "rb");
  if (file_ == nullptr) {
    ::close(fd);
    throw internal_error("out of memory while opening", path);
  }
  ::gzbuffer(file_, 1 << 17);
}

ByteFile::~ByteFile() { ::gzclose_r(file_); }

size_t ByteFile::read(char* out, size_t capacity) {
  const int count = ::gzread(file_, out, static_cast<unsigned>(capacity));
  if (!started_) {
    started_ = true;
    // zlib passes other bytes through as they are: a name that promises gzip must be taken at its word.
    if (count >= 0 && ends_with(path_, ".gz") && ::gzdirect(file_) != 0) {
      throw input_error("is not gzip, though its name ends in .gz", path_, "rename it or fetch it again");
    }
  }
  int code = Z_OK;
  const char* message = ::gzerror(file_, &code);
  if (code == Z_BUF_ERROR) {
    throw input_error("gzip data ends too early", path_, "the file was cut off: fetch or pack it again");
  }
  if (count < 0 || code < 0) {
    const std::string reason = code == Z_ERRNO ? std::strerror(errno) : message;
    throw input_error(fmt::format("cannot read: {}", reason), path_);
  }
  return static_cast<size_t>(count);
}

int64_t ByteFile::raw_position() const { return static_cast<int64_t>(::gzoffset(file_)); }

void BrokenLines::add(const Error& error) {
  ++count;
  if (first.size() < kKept) first.push_back(error.place() + ": " + error.problem());
}

void note_broken(BrokenLines* broken, const Error& error) {
  if (broken == nullptr) throw error;
  broken->add(error);
}

FileLines::FileLines(const std::string& path, BrokenLines* broken)
    : path_(document_name(path, 0, 0)), broken_(broken), file_(path), buffer_(kBufferBytes) {}

void FileLines::leave_out_line() {
  while (true) {
    const std::string_view rest(buffer_.data() + begin_, end_ - begin_);
    const size_t newline = rest.find('\n');
    const size_t size = newline == std::string_view::npos ? rest.size() : newline + 1;
    begin_ += size;
    offset_ += static_cast<int64_t>(size);
    if (newline != std::string_view::npos) break;
    if (at_end_) return;
    refill();
  }
  ++line_;
  starts_line_ = true;
}

void FileLines::refill() {
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  while (!at_end_ && end_ < buffer_.size()) {
    const size_t count = file_.read(buffer_.data() + end_, buffer_.size() - end_);
    at_end_ = count == 0;
    end_ += count;
  }
}

bool FileLines::next(Fragment& out) {
  std::string_view rest;
  size_t size = 0;
  while (true) {
    // Beyond the longest fragment one byte more is needed, to know whether a code point goes on.
    if (!at_end_ && end_ - begin_ <= kLineBytes) refill();
    if (offset_ == 0 && std::string_view(buffer_.data() + begin_, end_ - begin_).substr(0, 3) == "\xEF\xBB\xBF") {
      begin_ += 3, offset_ += 3;
    }
    if (begin_ == end_) return false;
    rest = {buffer_.data() + begin_, end_ - begin_};
    size = fragment_size(rest, at_end_);
    out = {.text = rest.substr(0, size), .starts_line = starts_line_, .line = line_};
    const size_t bad = find_invalid_utf8(out.text);
    if (bad == std::string_view::npos) break;
    const bool utf16 =
        line_ == 1 && offset_ == 0 && (rest.substr(0, 2) == "\xFF\xFE" || rest.substr(0, 2) == "\xFE\xFF");
    note_broken(broken_,
                input_error(fmt::format("not valid UTF-8 (byte 0x{:02X})", static_cast<unsigned char>(rest[bad])),
                            fmt::format("{}, line {}, byte {}", path_, line_, offset_ + static_cast<int64_t>(bad)),
                            utf16 ? "it looks like UTF-16: convert it with iconv -f UTF-16 -t UTF-8"
                                  : "convert it, for example with iconv -f WINDOWS-1252 -t UTF-8"));
    leave_out_line();
  }
  const bool newline = out.text.back() == '\n';
  out.ends_line = newline || (at_end_ && size == rest.size());
  starts_line_ = out.ends_line;
  line_ += newline ? 1 : 0;
  begin_ += size;
  offset_ += static_cast<int64_t>(size);
  return true;
}

bool StringLines::next(Fragment& out) {
  if (begin_ == text_.size()) return false;
  const std::string_view rest = std::string_view(text_).substr(begin_);
  const size_t size = fragment_size(rest, true);
  const bool newline = rest[size - 1] == '\n';
  out = {.text = rest.substr(0, size),
         .starts_line = starts_line_,
         .ends_line = newline || size == rest.size(),
         .line = line_};
  starts_line_ = out.ends_line;
  line_ += newline ? 1 : 0;
  begin_ += size;
  return true;
}

bool WholeLines::next(std::string& line) {
  for (Fragment part; lines_.next(part);) {
    if (part.starts_line) {  // where one had begun before, the rest of that one was broken: all of it is left out
      line.clear();
      number_ = part.line;
    }
    line += part.text;
    if (line.size() > kLongest) {
      throw input_error(fmt::format("a line is longer than {} MiB", kLongest >> 20), place(),
                        "write one record on each line");
    }
    if (!part.ends_line) continue;
    if (!line.empty() && line.back() == '\n') line.pop_back();
    if (!line.empty() && line.back() == '\r') line.pop_back();
    return true;
  }
  return false;
}

std::string WholeLines::place() const { return fmt::format("{}, line {}", document_name(path_, 0, 0), number_); }

size_t find_invalid_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    if (i + 8 <= text.size()) {
      uint64_t word;
      std::memcpy(&word, text.data() + i, 8);
      if ((word & 0x8080808080808080ULL) == 0) {
        i += 8;
        continue;
      }
    }
    const auto byte = [&](size_t k) { return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u; };
    const auto follows = [&](size_t k) { return (byte(k) & 0xC0) == 0x80; };
    const unsigned lead = byte(0);
    size_t size = 0;
    if (lead < 0x80) {
      size = 1;
    } else if (lead >= 0xC2 && lead <= 0xDF && follows(1)) {
      size = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF && follows(1) && follows(2)) {
      const bool short_form = lead == 0xE0 && byte(1) < 0xA0, surrogate = lead == 0xED && byte(1) > 0x9F;
      size = short_form || surrogate ? 0 : 3;
    } else if (lead >= 0xF0 && lead <= 0xF4 && follows(1) && follows(2) && follows(3)) {
      const bool short_form = lead == 0xF0 && byte(1) < 0x90, beyond = lead == 0xF4 && byte(1) > 0x8F;
      size = short_form || beyond ? 0 : 4;
    }
    if (size == 0) return i;
    i += size;
  }
  return std::string_view::npos;
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\n\v\f\r") == std::string_view::npos; }

size_t white_space_at(std::string_view text) {
  const auto byte = [&](size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
  if (byte(0) == ' ' || (byte(0) >= '\t' && byte(0) <= '\r')) return 1;
  if (byte(0) == 0xC2) return byte(1) == 0x85 || byte(1) == 0xA0 ? 2 : 0;  // U+0085, U+00A0
  if (byte(0) == 0xE1) return byte(1) == 0x9A && byte(2) == 0x80 ? 3 : 0;  // U+1680
  if (byte(0) == 0xE2 && byte(1) == 0x80) {                                // U+2000 … U+200A, U+2028, U+2029, U+202F
    return (byte(2) >= 0x80 && byte(2) <= 0x8A) || byte(2) == 0xA8 || byte(2) == 0xA9 || byte(2) == 0xAF ? 3 : 0;
  }
  if (byte(0) == 0xE2) return byte(1) == 0x81 && byte(2) == 0x9F ? 3 : 0;  // U+205F
  if (byte(0) == 0xE3) return byte(1) == 0x80 && byte(2) == 0x80 ? 3 : 0;  // U+3000
  return 0;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty()) {
    const size_t size = white_space_at(text);
    if (size == 0) break;
    text.remove_prefix(size);
  }
  while (!text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && is_continuation(text[start]) && text.size() - start < 4) --start;
    const size_t size = white_space_at(text.substr(start));
    if (size == 0 || start + size != text.size()) break;
    text.remove_suffix(size);
  }
  return text;
}

namespace {

/// Picks one text out of a record as it is parsed: other values are looked at and forgotten.
class RecordHandler : public nlohmann::json_sax<Json> {
 public:
  RecordHandler(const std::string& key, const std::string& place) : key_(key), place_(place) {}

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("true or false"); }
  bool number_integer(number_integer_t) override { return value("a number"); }
  bool number_unsigned(number_unsigned_t) override { return value("a number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a number"); }
  bool binary(binary_t&) override { return value("binary"); }
  bool string(string_t& text) override {
    if (!wanted_) return value("text");
    text_ = std::move(text);
    wanted_ = false;
    return true;
  }
  bool start_object(std::size_t) override {
    if (depth_ > 0) value("an object");
    return enter();
  }
  bool start_array(std::size_t) override {
    value("a list");
    return enter();
  }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    if (name == key_) {
      if (found_) throw input_error(fmt::format("key \"{}\" is there twice", key_), place_);
      found_ = wanted_ = true;
    } else if (others_.size() < 8) {
      others_.push_back(name.size() > 40 ? "…" : name);
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // "[json…101] parse error at line 1, column 9: REASON; last read: 'MAY BE LONG'"
    std::string reason = error.what();
    if (const size_t name = reason.find("] "); name != std::string::npos) reason.erase(0, name + 2);
    if (const size_t where = reason.find("column "); where != std::string::npos) {
      if (const size_t colon = reason.find(": ", where); colon != std::string::npos) reason.erase(0, colon + 2);
    }
    reason = reason.substr(0, std::min<size_t>(reason.find("; last read"), 160));
    if (find_invalid_utf8(reason) != std::string_view::npos) reason = "syntax error";
    throw input_error("not valid JSON: " + reason, fmt::format("{}, byte {}", place_, position),
                      "JSONL holds one JSON object per line");
  }

  std::string finish() {
    if (!found_) {
      std::string list;
      for (const auto& name : others_) list += (list.empty() ? "" : ", ") + name;
      throw input_error(fmt::format("key \"{}\" is missing", key_), place_,
                        fmt::format("name the key with --text-key; this record has: {}", list.empty() ? "none" : list));
    }
    return std::move(text_);
  }

 private:
  bool value(const char* type) {
    if (depth_ == 0) throw input_error(fmt::format("a record must be an object, this is {}", type), place_);
    if (wanted_) throw input_error(fmt::format("\"{}\" must be text, this is {}", key_, type), place_);
    return true;
  }
  bool enter() {
    if (++depth_ > 128) throw input_error("JSON is nested deeper than 128 levels", place_);
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }

  const std::string& key_;
  const std::string& place_;
  std::string text_;
  std::vector<std::string> others_;
  int depth_ = 0;
  bool found_ = false, wanted_ = false;
};

}  // namespace

std::string record_text(std::string_view json, const std::string& key, const std::string& place) {
  RecordHandler handler(key, place);
  Json::sax_parse(json.begin(), json.end(), &handler);
  return handler.finish();
}

}  // namespace palimpsest::data
