// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/models/positions.h"

#include <charconv>

#include "palimpsest/core/error.h"

namespace palimpsest::models {

Positions Positions::parse(const std::string& text) {
  if (text.empty() || text == "absolute") return {};
  if (text == "none") return {kNone, 0};
  const std::string head = "segment:";
  if (text.starts_with(head)) {
    int64_t segment = 0;
    const char *begin = text.data() + head.size(), *end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(begin, end, segment);
    if (code == std::errc() && stop == end && segment > 0) return {kSegment, segment};
  }
  throw usage_error(fmt::format("unknown positions \"{}\"", printable(text)), "--positions",
                    "give absolute, segment:S (place p is row p mod S of the table, for example segment:1024) or none");
}

std::string Positions::text() const {
  return kind == kAbsolute ? "absolute" : kind == kNone ? "none" : fmt::format("segment:{}", segment);
}

void Positions::check(int64_t rows) const {
  if (kind == kSegment && segment > rows) {
    throw usage_error(fmt::format("segment:{}, but the position table has {} rows", segment, rows), "--positions",
                      fmt::format("give at most segment:{}", rows));
  }
}

}  // namespace palimpsest::models
