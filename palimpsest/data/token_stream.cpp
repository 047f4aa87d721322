// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/token_stream.h"

namespace palimpsest::data {

namespace {
constexpr size_t kChunk = 1 << 15;       // tokenized at once: small, so that a reader waits for little
constexpr size_t kLongestRun = 1 << 22;  // text without a place to cut is cut anyway
}  // namespace

TokenStream::TokenStream(CorpusOptions options, TokenizeFunction tokenize)
    : reader_(std::move(options)), tokenize_(std::move(tokenize)) {}

double TokenStream::progress() const {
  return reader_.raw_size() > 0 ? static_cast<double>(reader_.raw_position()) / static_cast<double>(reader_.raw_size())
                                : 0;
}

bool TokenStream::fill() {
  Piece piece;
  if (!reader_.next_piece(piece)) return false;
  open_ = true;
  complete_ = piece.last;
  text_ += piece.text;
  size_t size = complete_ ? text_.size() : 0;
  if (!complete_ && text_.size() >= kChunk) {
    size = static_cast<size_t>(safe_cut(text_, tokenize_.cut_at_spaces_only));
    if (size == 0 && text_.size() >= kLongestRun) size = text_.size();
  }
  if (size == 0) return true;
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(handed_));
  handed_ = 0;
  const auto ids = tokenize_.encode(std::string_view(text_).substr(0, size));
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  text_.erase(0, size);
  bytes_ += static_cast<int64_t>(size);
  return true;
}

bool TokenStream::next(int64_t count, StreamedTokens& out) {
  out = {};
  out.first = !open_;
  const auto waiting = [&] { return static_cast<int64_t>(ids_.size() - handed_); };
  // One token more than asked for: only then it is known whether the document goes on behind them.
  while (!complete_ && waiting() <= count) {
    if (!fill()) break;
  }
  if (!open_) return false;
  const auto take = static_cast<std::ptrdiff_t>(std::min(count, waiting()));
  const auto begin = ids_.begin() + static_cast<std::ptrdiff_t>(handed_);
  out.ids.assign(begin, begin + take);
  handed_ += static_cast<size_t>(take);
  out.bytes = bytes_;
  bytes_ = 0;
  out.last = waiting() == 0;
  if (out.last) open_ = complete_ = false;
  return true;
}

}  // namespace palimpsest::data
