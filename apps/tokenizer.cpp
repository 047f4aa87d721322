// SPDX-License-Identifier: Apache-2.0
// `palimpsest tokenizer train`: a vocabulary from text files.
#include "palimpsest/text/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

#include "apps/command.h"
#include "palimpsest/core/log.h"
#include "palimpsest/text/unicode.h"

namespace palimpsest::app {

namespace {

struct TrainOptions {
  std::string out;
  text::TrainTokenizerOptions training;
  static void fields(auto& o, auto&& field) {
    field("out", o.out, "folder to write tokenizer.json and its companions to");
    field("training", o.training, "");
  }
};

/// The lines of several files, one after another, with their line ends.
class LineReader {
 public:
  explicit LineReader(std::vector<std::string> files)
      : files_(std::move(files)), progress_("reading", total_bytes() / 1000, "kB") {}

  bool next(std::string& line) {
    for (;;) {
      if (!current_.is_open() && !open_next()) return false;
      if (std::getline(current_, line)) break;
      if (current_.bad()) throw input_error("cannot be read to its end", files_[next_ - 1]);
      current_.close();
    }
    if (!current_.eof()) line += '\n';
    bytes_ += static_cast<int64_t>(line.size());
    ++line_;
    text::require_utf8(line, fmt::format("{}, line {}", files_[next_ - 1], line_));
    if (line_ % 1024 == 0) progress_.update(bytes_ / 1000);
    return true;
  }

 private:
  int64_t total_bytes() const {
    std::error_code ignored;
    int64_t total = 0;
    for (const auto& file : files_) {
      const auto size = std::filesystem::file_size(file, ignored);
      if (!ignored) total += static_cast<int64_t>(size);
    }
    return total;
  }
  bool open_next() {
    if (next_ == files_.size()) return false;
    const std::string& file = files_[next_++];
    std::error_code ignored;
    current_ = std::ifstream(file, std::ios::binary);
    if (!current_ || std::filesystem::is_directory(file, ignored)) throw input_error("cannot be read as a file", file);
    line_ = 0;
    return true;
  }

  std::vector<std::string> files_;
  size_t next_ = 0;
  std::ifstream current_;
  int64_t line_ = 0, bytes_ = 0;
  Progress progress_;
};

int train(const TrainOptions& options, const std::vector<std::string>& files) {
  if (options.out.empty()) throw usage_error("--out is missing", "", "name the folder to write to");
  LineReader reader(files);
  const auto tokenizer = text::train_tokenizer([&](std::string& line) { return reader.next(line); }, options.training);
  tokenizer->save(options.out);
  print_line(
      fmt::format("{}: {} tokens, fingerprint {}", options.out, tokenizer->vocab_size(), tokenizer->fingerprint()));
  return 0;
}

}  // namespace

Command tokenizer_command() {
  return {"tokenizer", "make a tokenizer: tokenizer train FILE…",
          "palimpsest tokenizer train book.txt --vocab-size 1024 --out runs/tokenizer", [](CLI::App& app) {
            auto options = std::make_shared<TrainOptions>();
            auto files = std::make_shared<std::vector<std::string>>();
            CLI::App* training = app.add_subcommand("train", "learn a byte-level BPE vocabulary from text files");
            training->fallthrough();  // flags of every command may stand after "train", too
            training->footer("example: palimpsest tokenizer train book.txt --vocab-size 1024 --out runs/tokenizer");
            training->add_option("file", *files, "text files, UTF-8; each line is read by itself")->required();
            options_to_flags(*options, *training);
            app.require_subcommand(1);
            return [options, files] { return train(*options, *files); };
          }};
}

}  // namespace palimpsest::app
