// SPDX-License-Identifier: Apache-2.0
// Stop strings in a text that comes piece by piece: what is given out never holds a part of one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "palimpsest/text/tokenizer.h"

namespace palimpsest::generate {

/// Watches a text for several strings at once (Aho-Corasick: linear in the text, whatever the strings). The text ends
/// before the stop string that is complete first; where several end at the same place, before the longest. What comes
/// out is the same however the text is cut into pieces. Pieces must be whole UTF-8 (StreamingDecoder gives such), then
/// so is what comes out. Copies go their own way and share the table.
class StopStrings {
 public:
  /// No strings: everything passes. An empty string is a usage error.
  explicit StopStrings(const std::vector<std::string>& strings = {});

  /// What of the text so far is certain to stay and was not given out yet. "" once stopped.
  std::string push(std::string_view piece);
  /// At the end of the text: what was held back in case it began a stop string.
  std::string finish();

  bool stopped() const { return stopped_; }
  /// The string that ended the text, "" before.
  std::string_view matched() const;

 private:
  struct Table;
  std::shared_ptr<const Table> table_;  // null without strings
  int32_t state_ = 0;
  std::string held_;  // as long as the state is deep: what may begin a stop string
  bool stopped_ = false;
};

/// The text of one row of ids, cut at stop strings.
class StoppingDecoder {
 public:
  StoppingDecoder() = default;
  StoppingDecoder(std::shared_ptr<const text::Tokenizer> tokenizer, const StopStrings& stops, bool skip_special)
      : decoder_(std::in_place, std::move(tokenizer), skip_special), stops_(stops) {}

  /// What became certain with this id. "" without a tokenizer.
  std::string push(int64_t id);
  /// What is left at the end.
  std::string finish();
  bool stopped() const { return stops_.stopped(); }
  /// All that was given out so far.
  const std::string& text() const { return text_; }

 private:
  std::optional<text::StreamingDecoder> decoder_;
  StopStrings stops_;
  std::string text_;
};

}  // namespace palimpsest::generate
