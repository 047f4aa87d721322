// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/documents.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <regex>

#include "palimpsest/core/error.h"
#include "palimpsest/data/text_lines.h"

namespace fs = std::filesystem;

namespace palimpsest::data {

namespace {

constexpr size_t kRegexBytes = 256;     // what of a line a regular expression sees
constexpr int64_t kPieceSearch = 4096;  // how far behind its place a cut of pieces=N looks for white space

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool is_stdin(const std::string& path) { return path == "-" || path == "-.jsonl"; }
bool is_jsonl(const std::string& path) { return ends_with(path, ".jsonl") || ends_with(path, ".jsonl.gz"); }

bool is_read_in_folders(const std::string& path, bool records) {
  const auto is = [&](const std::string& end) { return ends_with(path, end) || ends_with(path, end + ".gz"); };
  return is(".txt") || is(".text") || is(".jsonl") || (records && (is(".csv") || is(".json")));
}

/// Lines that head a chapter. A number or a word for one must follow, and then something else than a letter: text that
/// happens to begin a line with "Chapter" seldom goes on like that.
constexpr const char* kChapter =
    "\\s*(?:CHAPTER|Chapter)\\s+(?:\\d+|[IVXLCDM]+|(?:TWENTY|THIRTY|FORTY|FIFTY|Twenty|Thirty|Forty|Fifty)(?:[ -]"
    "[A-Za-z]+)?|ONE|TWO|THREE|FOUR|FIVE|SIX|SEVEN|EIGHT|NINE|TEN|ELEVEN|TWELVE|[A-Z]+TEEN|One|Two|Three|Four|Five|Six|"
    "Seven|Eight|Nine|Ten|Eleven|Twelve|[A-Z][a-z]+teen)(?:[^A-Za-z0-9']|$)";

/// A regular expression matched at the start of a line's first bytes. libstdc++'s usual matcher recurses once per
/// byte and can take exponential time; its breadth-first one does neither, but knows no back references.
class LinePattern {
 public:
  LinePattern(const std::string& option, const std::string& pattern) {
    auto flags = std::regex::ECMAScript;
#ifdef __GLIBCXX__
    flags |= std::regex_constants::__polynomial;
#endif
    try {
      regex_.assign(pattern, flags);
    } catch (const std::regex_error& e) {
      const bool complex = e.code() == std::regex_constants::error_complexity;
      throw usage_error(fmt::format("{}: \"{}\" is not a regular expression{}", option, pattern,
                                    complex ? " of the kind that is read here" : ""),
                        "", complex ? "back references are not supported" : "ECMAScript's syntax: ^[A-Z]+ \\d+$");
    }
  }

  struct Match {
    size_t size = 0;
    std::string group;  ///< the first capture group
  };
  /// `line`: as much of it as there is, without its line end; `whole`: nothing is missing.
  std::optional<Match> match(std::string_view line, bool whole) const {
    auto flags = std::regex_constants::match_continuous;
    if (!whole || line.size() > kRegexBytes) flags |= std::regex_constants::match_not_eol;
    line = line.substr(0, kRegexBytes);
    std::match_results<const char*> found;
    if (!std::regex_search(line.data(), line.data() + line.size(), found, regex_, flags)) return {};
    return Match{static_cast<size_t>(found.length(0)), found.size() > 1 ? found.str(1) : ""};
  }
  size_t groups() const { return regex_.mark_count(); }

 private:
  std::regex regex_;
};

enum class Border { kFile, kLine, kBlank, kSeparator, kChange, kPieces };

/// `document` and `strip`, parsed and checked.
struct Rules {
  Border border = Border::kFile;
  std::optional<LinePattern> pattern, strip;
  int64_t pieces = 1;
};

int64_t parse_pieces(const std::string& text) {
  int64_t pieces = 0;
  const auto [stop, code] = std::from_chars(text.data(), text.data() + text.size(), pieces);
  if (code != std::errc() || stop != text.data() + text.size() || pieces < 1) {
    throw usage_error(fmt::format("document: \"pieces={}\" is not a number of pieces", text), "",
                      "for example pieces=32");
  }
  return pieces;
}

Rules parse_rules(const CorpusOptions& options) {
  Rules rules;
  const std::string& text = options.document;
  const std::string name = text.substr(0, text.find('='));
  const std::string argument = name.size() < text.size() ? text.substr(name.size() + 1) : "";
  const bool bare = name.size() == text.size();
  if (bare && name == "file") {
    rules.border = Border::kFile;
  } else if (bare && name == "line") {
    rules.border = Border::kLine;
  } else if (bare && name == "blank") {
    rules.border = Border::kBlank;
  } else if (bare && name == "chapter") {
    rules.border = Border::kSeparator;
    rules.pattern.emplace("document", kChapter);
  } else if (name == "separator" && !argument.empty()) {
    rules.border = Border::kSeparator;
    rules.pattern.emplace("document", argument);
  } else if (name == "change" && !argument.empty()) {
    rules.border = Border::kChange;
    rules.pattern.emplace("document", argument);
    if (rules.pattern->groups() == 0) {
      throw usage_error(fmt::format("document: \"{}\" has no capture group", argument), "",
                        "put what must stay equal in parentheses: change=^(\\S+?\\d+):");
    }
  } else if (name == "pieces") {
    rules.border = Border::kPieces;
    rules.pieces = parse_pieces(argument);
  } else {
    throw usage_error(fmt::format("document is \"{}\"", text), "",
                      "choose one of: file, line, blank, chapter, separator=REGEX, change=REGEX, pieces=N");
  }
  if (!options.strip.empty()) rules.strip.emplace("strip", options.strip);
  return rules;
}

std::string_view without_line_end(std::string_view line) {
  if (ends_with(line, "\n")) line.remove_suffix(1);
  if (ends_with(line, "\r")) line.remove_suffix(1);
  return line;
}

/// Lines after `strip`, with what the borders need to know of them.
struct Line {
  std::string_view text;  ///< after strip; may be empty
  bool border = false;    ///< a new document starts before it
  bool divides = false;   ///< it only stands between documents
  bool starts_line = true, ends_line = true;
  int64_t number = 1;
};

class LineReader {
 public:
  LineReader(const Rules& rules, std::unique_ptr<LineSource> source) : rules_(rules), source_(std::move(source)) {}

  bool next(Line& out) {
    Fragment fragment;
    if (!source_->next(fragment)) return false;
    out = {.text = fragment.text,
           .starts_line = fragment.starts_line,
           .ends_line = fragment.ends_line,
           .number = fragment.line};
    if (fragment.starts_line) {
      const std::string_view body = without_line_end(fragment.text);
      judge(body, fragment.ends_line, out);
      strip(body, fragment.ends_line, out);
    }
    if (rules_.border == Border::kLine && fragment.ends_line) out.text = without_line_end(out.text);
    return true;
  }

  FileLines* file() const { return dynamic_cast<FileLines*>(source_.get()); }

 private:
  void judge(std::string_view body, bool whole, Line& out) {
    if (rules_.border == Border::kLine) out.border = true;
    if (rules_.border == Border::kBlank) out.divides = whole && is_blank(body);
    if (rules_.border == Border::kSeparator) out.border = rules_.pattern->match(body, whole).has_value();
    if (rules_.border == Border::kChange) {
      if (const auto match = rules_.pattern->match(body, whole)) {
        out.border = !key_ || *key_ != match->group;
        key_ = match->group;
      }
    }
  }

  void strip(std::string_view body, bool whole, Line& out) const {
    if (!rules_.strip) return;
    const auto match = rules_.strip->match(body, whole);
    if (!match || match->size == 0) return;
    out.text.remove_prefix(whole && match->size == body.size() ? out.text.size() : match->size);
  }

  const Rules& rules_;
  std::unique_ptr<LineSource> source_;
  std::optional<std::string> key_;
};

}  // namespace

std::string document_name(const std::string& path, int64_t line, int64_t part) {
  std::string name = is_stdin(path) ? "stdin" : path;
  if (line > 0) name += fmt::format(":{}", line);
  if (part > 0) name += fmt::format("#{}", part);
  return name;
}

std::vector<std::string> list_files(const std::vector<std::string>& data, int64_t* left_out, bool records) {
  if (data.empty()) throw usage_error("no data", "", "name files or folders of text");
  std::vector<std::string> files;
  for (const auto& path : data) {
    std::error_code code;
    const fs::file_status status = fs::status(path, code);
    if (is_stdin(path) || (fs::exists(status) && !fs::is_directory(status))) {
      files.push_back(path);
      continue;
    }
    if (!fs::exists(status)) throw input_error("no such file or folder", path, "check data");
    std::vector<std::string> inside;
    auto entry = fs::recursive_directory_iterator(path, code);
    for (; !code && entry != fs::recursive_directory_iterator(); entry.increment(code)) {
      const bool hidden = entry->path().filename().string().front() == '.';
      std::error_code ignored;
      if (entry->is_directory(ignored)) {
        if (hidden) entry.disable_recursion_pending();
      } else if (!hidden && entry->is_regular_file(ignored)) {
        const std::string name = entry->path().string();
        if (is_read_in_folders(name, records)) {
          inside.push_back(name);
        } else if (left_out != nullptr) {
          ++*left_out;
        }
      }
    }
    if (code) throw input_error(fmt::format("cannot read the folder: {}", code.message()), path);
    if (inside.empty()) {
      throw input_error(
          "no text in this folder", path,
          fmt::format("files named *.txt or *.jsonl{} (or these with .gz) are read; name others one by one",
                      records ? ", *.csv or *.json" : ""));
    }
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

/// A machine that is fed lines and gives out pieces. Between calls `line_` is what of the last line is not used yet.
class DocumentReader::Impl {
 public:
  explicit Impl(CorpusOptions options) : options_(std::move(options)), rules_(parse_rules(options_)) {
    files_ = list_files(options_.data, &counts_.left_out);
    for (const auto& path : files_) {
      std::error_code code;
      if (rules_.border == Border::kPieces && !is_jsonl(path) && (is_stdin(path) || !fs::is_regular_file(path, code))) {
        throw usage_error("document = pieces=N needs a size, stdin and pipes have none", document_name(path, 0, 0),
                          "write it to a file first");
      }
      const auto size = fs::file_size(path, code);
      sizes_.push_back(code ? 0 : static_cast<int64_t>(size));
    }
  }

  bool next_piece(Piece& out) {
    while (true) {
      if (!lines_) {
        if (!open_source()) return false;
        continue;
      }
      if (!pending_ && !lines_->next(line_)) {
        const bool ready = close_document(out);
        end_source();
        if (ready) return true;
        continue;
      }
      const bool fresh = !pending_;
      pending_ = true;
      if (fresh && (line_.border || line_.divides) && open_) {
        line_.border = false;  // the rest of this line belongs to the next document
        if (close_document(out)) return true;
      }
      if (line_.divides) {
        pending_ = false;
        continue;
      }
      if (feed_line(out)) return true;
    }
  }

  std::string name_of(const Piece& piece) const {
    return document_name(files_.at(static_cast<size_t>(piece.source)), piece.line, piece.part);
  }
  const std::vector<std::string>& files() const { return files_; }
  ReadCounts counts() const {
    ReadCounts counts = counts_;
    counts.broken = broken_.count;
    return counts;
  }
  const std::vector<std::string>& first_broken() const { return broken_.first; }
  int64_t raw_position() const {
    if (records_) return finished_bytes_ + records_->raw_position();
    const FileLines* file = lines_ ? lines_->file() : nullptr;
    return finished_bytes_ + (file != nullptr ? file->raw_position() : 0);
  }
  int64_t raw_size() const {
    int64_t sum = 0;
    for (const int64_t size : sizes_) sum += size;
    return sum;
  }

 private:
  /// The next file or record; false at the end of everything.
  bool open_source() {
    if (records_) return open_record();
    if (file_ + 1 >= static_cast<int64_t>(files_.size())) return false;
    ++file_;
    ++counts_.files;
    const std::string& path = files_[static_cast<size_t>(file_)];
    if (is_jsonl(path)) {
      records_ = std::make_unique<WholeLines>(path, broken());
      found_ = 0;
      return true;
    }
    if (rules_.border == Border::kPieces) {
      BrokenLines counted_below;
      total_ = count_bytes(std::make_unique<FileLines>(path, options_.skip_broken ? &counted_below : nullptr));
    }
    start_source(std::make_unique<FileLines>(path, broken()), 0);
    return true;
  }
  BrokenLines* broken() { return options_.skip_broken ? &broken_ : nullptr; }

  bool open_record() {
    std::string record, text;
    while (true) {
      if (!records_->next(record)) {
        if (found_ == 0) ++counts_.empty;
        finished_bytes_ += sizes_[static_cast<size_t>(file_)];
        records_.reset();
        return true;
      }
      if (is_blank(record)) continue;  // lines between records are no records
      ++found_;
      try {
        text = record_text(record, options_.text_key, records_->place());
        break;
      } catch (const Error& error) {
        note_broken(broken(), error);
      }
    }
    const int64_t number = records_->number();
    if (rules_.border == Border::kPieces) total_ = count_bytes(std::make_unique<StringLines>(text, number));
    start_source(std::make_unique<StringLines>(std::move(text), number), number);
    return true;
  }

  void start_source(std::unique_ptr<LineSource> source, int64_t record_line) {
    lines_ = std::make_unique<LineReader>(rules_, std::move(source));
    record_line_ = record_line;
    seen_ = part_ = target_ = at_ = piece_begin_ = 0;
    before_ = '\n';
    pending_ = open_ = false;
  }

  void end_source() {
    if (seen_ == 0) ++counts_.empty;
    if (!records_) finished_bytes_ += sizes_[static_cast<size_t>(file_)];
    lines_.reset();
  }

  int64_t count_bytes(std::unique_ptr<LineSource> source) const {
    LineReader reader(rules_, std::move(source));
    int64_t bytes = 0;
    for (Line line; reader.next(line);) bytes += static_cast<int64_t>(line.text.size());
    return bytes;
  }

  void open_document() {
    open_ = first_ = true;
    const bool in_record = record_line_ > 0,
               by_line = rules_.border != Border::kFile && rules_.border != Border::kPieces;
    document_line_ = in_record ? record_line_ : by_line ? line_.number : 0;
    ++part_;
    document_part_ = rules_.border == Border::kPieces || (in_record && by_line) ? part_ : 0;
  }

  /// Ends the open document; true where a piece of it is to be given out.
  bool close_document(Piece& out) {
    if (!open_) return false;
    open_ = false;
    ++seen_;
    const bool blank_line = rules_.border == Border::kLine && is_blank(text_);
    if (first_ && (text_.empty() || blank_line)) {
      text_.clear();
      ++counts_.empty;
      return false;
    }
    give(out, true);
    return true;
  }

  /// Adds the pending line to the document, or as much of it as belongs there; true where a piece is ready.
  bool feed_line(Piece& out) {
    if (!open_) open_document();
    const size_t size = rules_.border == Border::kPieces ? piece_share(line_.text) : line_.text.size();
    text_ += line_.text.substr(0, size);
    at_ += static_cast<int64_t>(size);
    if (size > 0) before_ = line_.text[size - 1];
    line_.text.remove_prefix(size);
    if (!line_.text.empty()) return close_document(out);
    pending_ = false;
    if (static_cast<int64_t>(text_.size()) < kPieceBytes) return false;
    give(out, false);
    return true;
  }

  /// How much of `text` belongs to the open one of pieces=N: all of it, or up to where it is cut.
  size_t piece_share(std::string_view text) {
    while (target_ < rules_.pieces - 1 && border_of(target_) <= piece_begin_) ++target_;
    if (target_ >= rules_.pieces - 1) return text.size();
    const int64_t border = border_of(target_);
    const auto is_space = [](char byte) { return byte == ' ' || (byte >= '\t' && byte <= '\r'); };
    for (size_t i = static_cast<size_t>(std::max<int64_t>(border - at_, 0)); i < text.size(); ++i) {
      const bool word_ends = (text[i] == ' ' || text[i] == '\n') && !is_space(i > 0 ? text[i - 1] : before_);
      const bool code_point = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
      const int64_t place = at_ + static_cast<int64_t>(i);
      if (word_ends || (code_point && place >= border + kPieceSearch)) {
        piece_begin_ = place;
        return i;
      }
    }
    return text.size();
  }
  int64_t border_of(int64_t target) const {
    return static_cast<int64_t>(static_cast<__int128>(total_) * (target + 1) / rules_.pieces);
  }

  void give(Piece& out, bool last) {
    out = {.text = std::move(text_),
           .first = first_,
           .last = last,
           .source = file_,
           .line = document_line_,
           .part = document_part_};
    text_.clear();
    counts_.documents += first_ ? 1 : 0;
    counts_.bytes += static_cast<int64_t>(out.text.size());
    first_ = false;
  }

  CorpusOptions options_;
  Rules rules_;
  std::vector<std::string> files_;
  std::vector<int64_t> sizes_;
  ReadCounts counts_;
  BrokenLines broken_;

  int64_t file_ = -1, finished_bytes_ = 0;
  std::unique_ptr<WholeLines> records_;  ///< of a JSONL file
  int64_t found_ = 0;                    ///< records of this file
  std::unique_ptr<LineReader> lines_;    ///< of a source: a file, or the text of a record
  int64_t record_line_ = 0;
  int64_t seen_ = 0, part_ = 0;  ///< documents of this source that ended, and that began
  Line line_;
  bool pending_ = false;  ///< line_ is not used up

  bool open_ = false, first_ = true;  ///< a document has begun; nothing of it was given out
  std::string text_;                  ///< of it, not given out yet
  int64_t document_line_ = 0, document_part_ = 0;

  int64_t total_ = 0, at_ = 0, target_ = 0, piece_begin_ = 0;  ///< of pieces=N, in bytes of the source
  char before_ = '\n';                                         ///< the byte before the next one
};

DocumentReader::DocumentReader(CorpusOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
DocumentReader::~DocumentReader() = default;
DocumentReader::DocumentReader(DocumentReader&&) noexcept = default;

bool DocumentReader::next_piece(Piece& out) { return impl_->next_piece(out); }

bool DocumentReader::next(Document& out) {
  Piece piece;
  if (!impl_->next_piece(piece)) return false;
  out = {.text = std::move(piece.text), .name = impl_->name_of(piece)};
  while (!piece.last && impl_->next_piece(piece)) out.text += piece.text;
  return true;
}

const std::vector<std::string>& DocumentReader::files() const { return impl_->files(); }
std::string DocumentReader::name_of(const Piece& piece) const { return impl_->name_of(piece); }
ReadCounts DocumentReader::counts() const { return impl_->counts(); }
const std::vector<std::string>& DocumentReader::first_broken() const { return impl_->first_broken(); }
int64_t DocumentReader::raw_position() const { return impl_->raw_position(); }
int64_t DocumentReader::raw_size() const { return impl_->raw_size(); }

}  // namespace palimpsest::data
