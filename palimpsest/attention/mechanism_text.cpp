// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/attention/mechanism_text.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "palimpsest/core/error.h"

namespace palimpsest::attention {

namespace {

constexpr const char* kPlace = "--attention";

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == by) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::optional<int64_t> whole_number(const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc() || stop != end || text.empty()) return std::nullopt;
  return value;
}

}  // namespace

MechanismArguments::MechanismArguments(const std::string& text) : text_(text) {
  const size_t colon = text.find(':');
  name_ = text.substr(0, colon);
  if (colon == std::string::npos) return;
  for (const std::string& piece : split(text.substr(colon + 1), ',')) {
    if (piece.empty()) fail("an empty setting");
    const size_t equals = piece.find('=');
    Piece made;
    if (equals != std::string::npos) {
      made = {piece.substr(0, equals), piece.substr(equals + 1), true};
    } else if (pieces_.empty() && whole_number(piece)) {
      made = {"", piece, true};
    } else {
      made = {piece, "", false};
    }
    for (const Piece& before : pieces_) {
      if (before.key == made.key) fail(fmt::format("\"{}\" stands there twice", printable(made.key)));
    }
    pieces_.push_back(std::move(made));
  }
}

void MechanismArguments::fail(const std::string& what, const std::string& fix) const {
  throw usage_error(what, fmt::format("{} {}", kPlace, printable(text_)), fix);
}

const MechanismArguments::Piece* MechanismArguments::take(const std::string& key) {
  asked_.push_back(key);
  for (const Piece& piece : pieces_) {
    if (piece.key == key) return &piece;
  }
  return nullptr;
}

bool MechanismArguments::has(const std::string& key) const {
  return std::any_of(pieces_.begin(), pieces_.end(), [&](const Piece& piece) { return piece.key == key; });
}

int64_t MechanismArguments::size(const std::string& key, int64_t least, int64_t most) {
  const Piece* piece = take(key);
  const std::string said = key.empty() ? fmt::format("the number after \"{}:\"", name_) : key;
  if (piece == nullptr) fail(said + " is missing", key.empty() ? fmt::format("for example {}:64", name_) : key + "=N");
  const auto number = whole_number(piece->value);
  if (!number || *number < least || *number > most) {
    fail(fmt::format("{} is \"{}\", which is not a whole number from {} to {}", said, printable(piece->value), least,
                     most));
  }
  return *number;
}

int64_t MechanismArguments::size_or(const std::string& key, int64_t fallback, int64_t least, int64_t most) {
  return has(key) ? size(key, least, most) : (take(key), fallback);
}

bool MechanismArguments::flag(const std::string& key) {
  const Piece* piece = take(key);
  if (piece != nullptr && piece->has_value) fail(fmt::format("\"{}\" takes no value", key));
  return piece != nullptr;
}

std::string MechanismArguments::choice(const std::string& key, const std::vector<std::string>& known) {
  const Piece* piece = take(key);
  if (piece == nullptr) return known.front();
  if (std::find(known.begin(), known.end(), piece->value) == known.end())
    fail(fmt::format("{} is \"{}\"", key, printable(piece->value)),
         fmt::format("{} is {}", key, fmt::join(known, " | ")));
  return piece->value;
}

std::vector<int64_t> MechanismArguments::list(const std::string& key) {
  const Piece* piece = take(key);
  std::vector<int64_t> numbers;
  for (const std::string& word : split(piece == nullptr ? "" : piece->value, ';')) {
    const auto number = whole_number(word);
    if (!number || *number < 0) fail(fmt::format("{} is not a list of positions", key), key + "=0;5;9");
    numbers.push_back(*number);
  }
  return numbers;
}

void MechanismArguments::finish(const std::string& form) const {
  for (const Piece& piece : pieces_) {
    if (std::find(asked_.begin(), asked_.end(), piece.key) != asked_.end()) continue;
    fail(piece.key.empty() ? fmt::format("\"{}\" takes no number", name_)
                           : fmt::format("unknown setting \"{}\"", printable(piece.key)),
         form);
  }
}

std::vector<std::string> mechanism_texts(const std::string& text, int64_t layers) {
  const auto fail = [&](const std::string& what) {
    throw usage_error(what, fmt::format("{} {}", kPlace, printable(text)),
                      fmt::format("there are layers 0 to {}: one text for all, or ranges as in "
                                  "0-{}=window:256,{}=dense that name each layer once",
                                  layers - 1, std::max<int64_t>(0, layers - 2), layers - 1));
  };
  // A range begins with a digit; what follows it up to the next range is its mechanism, commas and all.
  if (text.empty() || text.front() < '0' || text.front() > '9')
    return std::vector<std::string>(static_cast<size_t>(layers), text.empty() ? "dense" : text);
  std::vector<std::pair<std::string, std::string>> ranges;
  for (const std::string& piece : split(text, ',')) {
    const size_t equals = piece.find('=');
    const bool begins = !piece.empty() && piece.front() >= '0' && piece.front() <= '9' && equals != std::string::npos;
    if (begins) {
      ranges.emplace_back(piece.substr(0, equals), piece.substr(equals + 1));
    } else if (ranges.empty()) {
      fail("it begins with a number that is no range of layers");
    } else {
      ranges.back().second += "," + piece;
    }
  }
  std::vector<std::string> chosen(static_cast<size_t>(layers));
  for (const auto& [range, mechanism] : ranges) {
    const size_t dash = range.find('-');
    const auto first = whole_number(range.substr(0, dash));
    const auto last = dash == std::string::npos ? first : whole_number(range.substr(dash + 1));
    if (!first || !last || *last < *first || *last >= layers)
      fail(fmt::format("\"{}\" is no range of the layers", printable(range)));
    for (int64_t layer = *first; layer <= *last; ++layer) {
      std::string& place = chosen[static_cast<size_t>(layer)];
      if (!place.empty()) fail(fmt::format("layer {} is named twice", layer));
      place = mechanism;
      if (mechanism.empty()) fail(fmt::format("layer {} has no mechanism", layer));
    }
  }
  for (size_t layer = 0; layer < chosen.size(); ++layer) {
    if (chosen[layer].empty()) fail(fmt::format("layer {} is not named", layer));
  }
  return chosen;
}

}  // namespace palimpsest::attention
