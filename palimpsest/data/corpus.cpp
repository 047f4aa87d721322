// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/corpus.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/json.h"
#include "palimpsest/core/log.h"
#include "palimpsest/core/random.h"
#include "palimpsest/data/text_lines.h"

namespace fs = std::filesystem;

namespace palimpsest::data {

namespace {

constexpr int64_t kFormat = 1;                     // of the cache; another number is another key
constexpr int64_t kSaveEveryBytes = 4 << 20;       // of text: how often progress is written down
constexpr int64_t kLongestRun = 16 * kChunkBytes;  // without white space, that is still tokenized at once
constexpr uint64_t kHashStart = 0xcbf29ce484222325ULL;

uint64_t hash_bytes(uint64_t hash, std::string_view bytes) {  // FNV-1a: the same however a text is cut
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3ULL;
  return hash;
}

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

/// Bytes, words and hash of a text that comes in parts.
struct TextMeter {
  int64_t bytes = 0, words = 0;
  bool in_word = false;
  uint64_t hash = kHashStart;

  void add(std::string_view text) {
    bytes += static_cast<int64_t>(text.size());
    hash = hash_bytes(hash, text);
    for (size_t i = 0; i < text.size();) {
      const size_t space = white_space_at(text.substr(i, 3));
      if (space == 0 && !in_word) ++words;
      in_word = space == 0;
      i += space > 0 ? space : 1;
    }
  }
  int64_t digest() const { return static_cast<int64_t>(mix_bits(hash ^ mix_bits(static_cast<uint64_t>(bytes)))); }
};

/// Where tokens and records go.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void add_tokens(std::span<const int32_t> ids) = 0;
  virtual void add_record(const Corpus::Record& record) = 0;
};

/// How far a preparation has come: all of it that is on disk.
struct Journal {
  int64_t documents = 0, tokens = 0, text_bytes = 0;
  int64_t open_bytes = 0;  ///< of the document after those, already tokenized

  Json to_json() const {
    return {{"documents", documents}, {"tokens", tokens}, {"text_bytes", text_bytes}, {"open_bytes", open_bytes}};
  }
  static Journal from_json(const Json& json, const std::string& source) {
    return {json_int(json, "documents", source), json_int(json, "tokens", source), json_int(json, "text_bytes", source),
            json_int(json, "open_bytes", source)};
  }
};

/// Reads, cuts, tokenizes; hands to a sink. Starts behind what `journal` says is done.
class Preparation {
 public:
  Preparation(const CorpusOptions& options, const TokenizeFunction& tokenize, Sink& sink, Journal journal)
      : reader_(options), tokenize_(tokenize), sink_(sink), journal_(journal) {}

  /// `save` is called with the journal each time enough was done.
  ReadCounts run(const std::function<void(const Journal&)>& save) {
    const bool shown = reader_.raw_size() > 8 * kSaveEveryBytes;
    Progress bar("tokenizing", reader_.raw_size(), "bytes");
    int64_t skip = journal_.documents, saved = journal_.text_bytes;
    for (Piece piece; reader_.next_piece(piece);) {
      if (skip > 0) {  // documents that are on disk already
        skip -= piece.last ? 1 : 0;
        continue;
      }
      add(piece);
      if (journal_.text_bytes - saved >= kSaveEveryBytes) {
        saved = journal_.text_bytes;
        save(journal_);
        if (shown) bar.update(reader_.raw_position());
      }
    }
    if (long_runs_ > 0)
      spdlog::warn("{} runs of text without white space were longer than {} and were cut", long_runs_,
                   format_bytes(kLongestRun));
    if (const int64_t broken = reader_.counts().broken; broken > 0)
      spdlog::warn("{} broken lines left out, the first: {}", format_count(broken), reader_.first_broken().front());
    return reader_.counts();
  }
  const std::vector<std::string>& files() const { return reader_.files(); }
  const Journal& journal() const { return journal_; }

 private:
  void add(const Piece& piece) {
    if (piece.first) {
      meter_ = {};
      done_ = 0;
    }
    meter_.add(piece.text);
    // On resuming inside a document: its first bytes are tokenized, but still metered.
    const int64_t known = std::min(journal_.open_bytes - done_, static_cast<int64_t>(piece.text.size()));
    if (known > 0) done_ += known;
    buffer_.append(piece.text, known > 0 ? static_cast<size_t>(known) : 0);
    while (static_cast<int64_t>(buffer_.size()) >= kChunkBytes) {
      const size_t size = chunk_size();
      if (size == 0) break;
      encode(size);
    }
    if (!piece.last) return;
    if (!buffer_.empty()) encode(buffer_.size());
    sink_.add_record({.tokens_end = journal_.tokens,
                      .bytes = meter_.bytes,
                      .words = meter_.words,
                      .source = piece.source,
                      .line = piece.line,
                      .part = piece.part,
                      .hash = meter_.digest()});
    ++journal_.documents;
    journal_.open_bytes = 0;
  }

  /// How much of a full buffer is tokenized next; 0: read on, no place to cut was found yet.
  size_t chunk_size() {
    const size_t cut = static_cast<size_t>(safe_cut(buffer_, tokenize_.cut_at_spaces_only));
    if (cut > 0 || static_cast<int64_t>(buffer_.size()) < kLongestRun) return cut;
    ++long_runs_;
    return buffer_.size();  // pieces end between code points
  }

  void encode(size_t size) {
    const std::vector<int32_t> ids = tokenize_.encode(std::string_view(buffer_).substr(0, size));
    buffer_.erase(0, size);
    sink_.add_tokens(ids);
    done_ += static_cast<int64_t>(size);
    journal_.tokens += static_cast<int64_t>(ids.size());
    journal_.open_bytes = done_;
    journal_.text_bytes += static_cast<int64_t>(size);
  }

  DocumentReader reader_;
  const TokenizeFunction& tokenize_;
  Sink& sink_;
  Journal journal_;
  TextMeter meter_;     ///< of the open document, from its start
  std::string buffer_;  ///< of it, not tokenized yet
  int64_t done_ = 0;    ///< bytes of it that are tokenized
  int64_t long_runs_ = 0;
};

/// Counts and forgets.
class CountingSink : public Sink {
 public:
  explicit CountingSink(const std::function<void(const Corpus::Record&)>& see) : see_(see) {}
  void add_tokens(std::span<const int32_t>) override {}
  void add_record(const Corpus::Record& record) override { see_(record); }

 private:
  const std::function<void(const Corpus::Record&)>& see_;
};

class MemorySink : public Sink {
 public:
  void add_tokens(std::span<const int32_t> ids) override { tokens.insert(tokens.end(), ids.begin(), ids.end()); }
  void add_record(const Corpus::Record& record) override { records.push_back(record); }
  std::vector<int32_t> tokens;
  std::vector<Corpus::Record> records;
};

/// A file that is written at its end, through a buffer.
class AppendedFile {
 public:
  /// Keeps the first `size` bytes of what is there.
  AppendedFile(std::string path, int64_t size) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0 || ::ftruncate(fd_, size) != 0 || ::lseek(fd_, 0, SEEK_END) < 0) {
      const int code = errno;
      if (fd_ >= 0) ::close(fd_);
      fail("cannot write", code);
    }
  }
  ~AppendedFile() { ::close(fd_); }
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;

  void append(const void* bytes, size_t size) {
    buffer_.append(static_cast<const char*>(bytes), size);
    if (buffer_.size() >= 1 << 20) write_out();
  }
  /// To disk.
  void flush() {
    write_out();
    if (::fdatasync(fd_) != 0 && errno != EINVAL) fail("cannot flush to disk", errno);
  }

 private:
  void write_out() {
    for (size_t written = 0; written < buffer_.size();) {
      const ssize_t count = ::write(fd_, buffer_.data() + written, buffer_.size() - written);
      if (count < 0 && errno != EINTR) fail("cannot write", errno);
      written += count > 0 ? static_cast<size_t>(count) : 0;
    }
    buffer_.clear();
  }
  [[noreturn]] void fail(const char* what, int code) const {
    throw internal_error(fmt::format("{}: {}", what, std::strerror(code)), path_,
                         "choose another cache folder or make room");
  }

  std::string path_, buffer_;
  int fd_ = -1;
};

class FileSink : public Sink {
 public:
  FileSink(const std::string& folder, const Journal& done)
      : tokens_(folder + "/tokens.bin", done.tokens * static_cast<int64_t>(sizeof(int32_t))),
        records_(folder + "/documents.bin", done.documents * static_cast<int64_t>(sizeof(Corpus::Record))) {}
  void add_tokens(std::span<const int32_t> ids) override { tokens_.append(ids.data(), ids.size_bytes()); }
  void add_record(const Corpus::Record& record) override { records_.append(&record, sizeof(record)); }
  void flush() {
    tokens_.flush();
    records_.flush();
  }

 private:
  AppendedFile tokens_, records_;
};

/// Held while this process prepares a folder; the system takes it back when the process dies.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder) {
    const std::string path = folder + "/lock";
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0)
      throw input_error(fmt::format("cannot write: {}", std::strerror(errno)), path, "choose another cache folder");
    if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
    spdlog::info("waiting for another process that prepares the same data ({})", folder);
    while (::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~FolderLock() { ::close(fd_); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// Everything the ids depend on, as text; nothing where some of it cannot be named (stdin, a pipe).
std::optional<std::string> cache_key(const CorpusOptions& options, const std::string& tokenizer,
                                     const std::vector<std::string>& files) {
  Json key = {{"format", kFormat},
              {"tokenizer", tokenizer},
              {"document", options.document},
              {"text_key", options.text_key},
              {"strip", options.strip},
              {"files", Json::array()}};
  if (options.skip_broken)
    key["skip_broken"] = true;  // only then: what was prepared before there was this keeps its key
  for (const auto& path : files) {
    struct stat info{};
    if (path == "-" || path == "-.jsonl" || ::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
    key["files"].push_back({fs::absolute(path).lexically_normal().string(), static_cast<int64_t>(info.st_size),
                            static_cast<int64_t>(info.st_mtim.tv_sec), static_cast<int64_t>(info.st_mtim.tv_nsec)});
  }
  return dump(key);
}

template <class T>
std::span<const T> mapped_span(const MappedFile& file, int64_t count) {
  if (static_cast<int64_t>(file.size()) != count * static_cast<int64_t>(sizeof(T))) {
    throw input_error(
        fmt::format("has {} bytes, {} were written", file.size(), count * static_cast<int64_t>(sizeof(T))),
        file.path());
  }
  return {reinterpret_cast<const T*>(file.data()), static_cast<size_t>(count)};
}

}  // namespace

/// The one that may fill a Corpus.
class CorpusBuilder {
 public:
  static std::shared_ptr<const Corpus> in_memory(MemorySink sink, std::vector<std::string> files, int64_t empty) {
    auto tokens = std::make_shared<std::vector<int32_t>>(std::move(sink.tokens));
    auto records = std::make_shared<std::vector<Corpus::Record>>(std::move(sink.records));
    std::shared_ptr<Corpus> corpus(new Corpus());
    corpus->tokens_ = *tokens;
    corpus->records_ = *records;
    corpus->files_ = std::move(files);
    corpus->empty_documents_ = empty;
    corpus->owners_ = {tokens, records};
    return corpus;
  }

  /// What lies complete in `folder` for this key, or null.
  static std::shared_ptr<const Corpus> from_folder(const std::string& folder, const std::string& key) {
    const std::string path = folder + "/meta.json";
    if (!fs::exists(path)) return nullptr;
    try {
      const Json meta = read_json(path);
      if (json_string(meta, "key", path) != key) return nullptr;
      const auto tokens = MappedFile::open(folder + "/tokens.bin"),
                 records = MappedFile::open(folder + "/documents.bin");
      std::shared_ptr<Corpus> corpus(new Corpus());
      corpus->tokens_ = mapped_span<int32_t>(*tokens, json_int(meta, "tokens", path));
      corpus->records_ = mapped_span<Corpus::Record>(*records, json_int(meta, "documents", path));
      for (const auto& file : meta.at("files")) corpus->files_.push_back(file.get<std::string>());
      corpus->empty_documents_ = json_int(meta, "empty_documents", path);
      corpus->owners_ = {tokens, records};
      if (corpus->total_tokens() != static_cast<int64_t>(corpus->tokens_.size()))
        throw input_error("ends in another place", folder);
      return corpus;
    } catch (const std::exception& e) {
      spdlog::warn("the prepared data in {} is damaged and is made anew ({})", folder, e.what());
      return nullptr;
    }
  }
};

namespace {

Journal read_journal(const std::string& folder, const std::string& key) {
  const std::string path = folder + "/progress.json";
  if (!fs::exists(path)) return {};
  try {
    const Json json = read_json(path);
    const Journal journal = Journal::from_json(json, path);
    const auto size_of = [&](const char* name) { return static_cast<int64_t>(fs::file_size(folder + name)); };
    if (json_string(json, "key", path) != key || journal.tokens < 0 || journal.documents < 0 ||
        size_of("/tokens.bin") < journal.tokens * static_cast<int64_t>(sizeof(int32_t)) ||
        size_of("/documents.bin") < journal.documents * static_cast<int64_t>(sizeof(Corpus::Record))) {
      return {};
    }
    spdlog::info("going on with the data in {} after {} tokens", folder, format_count(journal.tokens));
    return journal;
  } catch (const std::exception&) {
    return {};
  }
}

void check_found(int64_t documents, int64_t tokens, int64_t empty, const CorpusOptions& options) {
  if (documents > 0 && tokens > 0) return;
  std::string place;
  for (const auto& path : options.data) place += (place.empty() ? "" : ", ") + path;
  throw input_error(fmt::format("no text was found: {} documents with text, {} empty ones", documents, empty), place,
                    "check data, document and strip");
}

std::shared_ptr<const Corpus> prepare_in_memory(const CorpusOptions& options, const TokenizeFunction& tokenize) {
  MemorySink sink;
  Preparation preparation(options, tokenize, sink, {});
  const int64_t empty = preparation.run([](const Journal&) {}).empty;
  check_found(preparation.journal().documents, preparation.journal().tokens, empty, options);
  return CorpusBuilder::in_memory(std::move(sink), preparation.files(), empty);
}

void prepare_in_folder(const CorpusOptions& options, const TokenizeFunction& tokenize,
                       const std::vector<std::string>& files, const std::string& folder, const std::string& key) {
  const std::string meta = folder + "/meta.json", progress = folder + "/progress.json";
  const Journal done = read_journal(folder, key);
  std::error_code ignored;
  fs::remove(meta, ignored);
  remove_stale_temporaries(folder);
  FileSink sink(folder, done);
  Preparation preparation(options, tokenize, sink, done);
  const auto save = [&](const Journal& journal) {
    sink.flush();
    Json json = journal.to_json();
    json["key"] = key;
    write_file_atomically(progress, dump(json));
  };
  int64_t empty = 0;
  try {
    empty = preparation.run(save).empty;
  } catch (...) {
    save(preparation.journal());  // what was done until then is good
    throw;
  }
  const Journal& all = preparation.journal();
  check_found(all.documents, all.tokens, empty, options);
  if (preparation.files() != files || cache_key(options, tokenize.fingerprint, files) != key) {
    fs::remove(progress, ignored);
    throw input_error("the data changed while it was read", folder, "start again once it is complete");
  }
  sink.flush();
  write_file_atomically(meta, dump({{"format", kFormat},
                                    {"documents", all.documents},
                                    {"tokens", all.tokens},
                                    {"empty_documents", empty},
                                    {"files", files},
                                    {"key", key}}));
  fs::remove(progress, ignored);
}

}  // namespace

std::span<const int32_t> Corpus::tokens(int64_t document) const {
  const int64_t end = record(document).tokens_end, begin = document > 0 ? record(document - 1).tokens_end : 0;
  return tokens_.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

std::string Corpus::name(int64_t document) const {
  const Record& place = record(document);
  if (place.source < 0) return fmt::format("document {}", document);
  return document_name(files_.at(static_cast<size_t>(place.source)), place.line, place.part);
}

std::string Corpus::fingerprint() const {
  uint64_t first = mix_bits(records_.size()), second = mix_bits(first);
  for (const Record& place : records_) {
    first = random_key(first, place.hash, place.tokens_end);
    second = random_key(second, place.tokens_end, place.hash);
  }
  return hex(first) + hex(second);
}

const Corpus::Record& Corpus::record(int64_t document) const {
  if (document < 0 || document >= documents()) {
    throw internal_error(fmt::format("document {} of a corpus of {}", document, documents()));
  }
  return records_[static_cast<size_t>(document)];
}

int64_t safe_cut(std::string_view text, bool at_spaces_only) {
  const auto last_before = [&](auto&& cuts) -> size_t {
    for (size_t i = text.size() - 1; i > 0; --i) {
      if (!cuts(text[i])) continue;
      size_t start = i - 1;  // of the code point before it
      while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
      const auto byte = static_cast<unsigned char>(text[start]);
      const bool control = byte < 0x20 || byte == 0x7F;  // some patterns take U+001C … U+001F for white space
      if (!control && white_space_at(text.substr(start)) == 0) return i;
    }
    return 0;
  };
  if (text.empty()) return 0;
  const size_t space = last_before([](char byte) { return byte == ' '; });
  if (space > 0 || at_spaces_only) return static_cast<int64_t>(space);
  return static_cast<int64_t>(last_before([](char byte) { return byte == '\n' || byte == '\t' || byte == '\r'; }));
}

std::shared_ptr<const Corpus> prepare_corpus(const CorpusOptions& options, const TokenizeFunction& tokenize,
                                             const std::string& cache_folder) {
  if (cache_folder.empty()) return prepare_in_memory(options, tokenize);
  const std::vector<std::string> files = list_files(options.data);
  const auto key = cache_key(options, tokenize.fingerprint, files);
  if (!key) {
    spdlog::debug("data from a pipe is kept in memory");
    return prepare_in_memory(options, tokenize);
  }
  const std::string folder = fmt::format("{}/{}", cache_folder, hex(mix_bits(hash_bytes(kHashStart, *key))));
  if (auto corpus = CorpusBuilder::from_folder(folder, *key)) return corpus;
  std::error_code code;
  fs::create_directories(folder, code);
  if (code)
    throw input_error(fmt::format("cannot make the folder: {}", code.message()), folder, "choose another cache folder");
  const FolderLock lock(folder);
  if (auto corpus = CorpusBuilder::from_folder(folder, *key)) return corpus;  // made by another meanwhile
  prepare_in_folder(options, tokenize, files, folder, *key);
  auto corpus = CorpusBuilder::from_folder(folder, *key);
  if (!corpus) throw internal_error("the data just prepared cannot be read", folder);
  return corpus;
}

ReadCounts scan_corpus(const CorpusOptions& options, const TokenizeFunction& tokenize,
                       const std::function<void(const Corpus::Record&)>& see) {
  CountingSink sink(see);
  return Preparation(options, tokenize, sink, {}).run([](const Journal&) {});
}

std::shared_ptr<const Corpus> corpus_of(const std::vector<std::vector<int32_t>>& documents) {
  MemorySink sink;
  for (const auto& ids : documents) {
    sink.add_tokens(ids);
    const std::string_view bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
    const uint64_t hash = mix_bits(hash_bytes(kHashStart, bytes));
    sink.add_record({.tokens_end = static_cast<int64_t>(sink.tokens.size()),
                     .bytes = 0,
                     .words = 0,
                     .source = -1,
                     .line = 0,
                     .part = 0,
                     .hash = static_cast<int64_t>(hash)});
  }
  return CorpusBuilder::in_memory(std::move(sink), {}, 0);
}

}  // namespace palimpsest::data
