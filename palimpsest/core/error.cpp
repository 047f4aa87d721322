// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/core/error.h"

#include <algorithm>
#include <vector>

namespace palimpsest {

namespace {
std::string layout(const std::string& problem, const std::string& place, const std::string& fix) {
  std::string text = "error: " + problem;
  if (!place.empty()) text += "\n  at:  " + place;
  if (!fix.empty()) text += "\n  fix: " + fix;
  return text;
}
}  // namespace

Error::Error(Fault fault, std::string problem, std::string place, std::string fix)
    : std::runtime_error(layout(problem, place, fix)),
      fault_(fault),
      problem_(std::move(problem)),
      place_(std::move(place)),
      fix_(std::move(fix)) {}

Error Error::within(const std::string& outer) const {
  return {fault_, problem_, place_.empty() ? outer : outer + ", " + place_, fix_};
}

std::optional<size_t> invalid_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  for (size_t i = 0; i < text.size();) {
    const unsigned lead = byte(i);
    const size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    if (length == 0 || i + length > text.size()) return i;
    for (size_t j = 1; j < length; ++j) {
      if ((byte(i + j) & 0xC0) != 0x80) return i;
    }
    const unsigned second = length > 1 ? byte(i + 1) : 0;
    const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
    const bool surrogate = lead == 0xED && second > 0x9F, too_big = lead == 0xF4 && second > 0x8F;
    if (overlong || surrogate || too_big) return i;
    i += length;
  }
  return std::nullopt;
}

std::string printable(std::string_view text, size_t longest) {
  const bool is_cut = text.size() > longest;
  if (is_cut) {  // not within a character
    while (longest > 0 && (static_cast<unsigned char>(text[longest]) & 0xC0) == 0x80) --longest;
    text = text.substr(0, longest);
  }
  std::string result;
  const auto append = [&](std::string_view valid) {
    for (size_t i = 0; i < valid.size(); ++i) {
      const auto c = static_cast<unsigned char>(valid[i]);
      const bool second_set = c == 0xC2 && static_cast<unsigned char>(valid[i + 1]) < 0xA0;  // U+0080 to U+009F
      if (c == '\n') {
        result += "\\n";
      } else if (c == '\t') {
        result += "\\t";
      } else if (c < 0x20 || c == 0x7F) {
        result += fmt::format("\\u{:04x}", c);
      } else if (second_set) {
        result += fmt::format("\\u{:04x}", static_cast<unsigned char>(valid[++i]));
      } else {
        result += valid[i];
      }
    }
  };
  while (const auto bad = invalid_utf8(text)) {
    append(text.substr(0, *bad));
    result += "\uFFFD";
    text = text.substr(*bad + 1);
  }
  append(text);
  return is_cut ? result + "…" : result;
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t cost = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + cost});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace palimpsest
