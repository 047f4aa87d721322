// SPDX-License-Identifier: Apache-2.0
// Normalizers as changes of an AlignedText, in the order of their steps.
#include "palimpsest/text/normalizers.h"

#include <algorithm>

#include "palimpsest/text/characters.h"
#include "palimpsest/text/unicode.h"

namespace palimpsest::text {

namespace {

constexpr const char* kSupported =
    "BertNormalizer, Lowercase, StripAccents, NFD, NFKD, NFC, NFKC, Strip, Replace of a text, Prepend, a Sequence of "
    "them";

/// Decomposes, and puts the marks between two characters of class 0 into the order of their classes.
std::vector<Change> decompose(const std::string& text, bool compatibility) {
  std::vector<Change> changes;
  changes.reserve(text.size());
  size_t unsorted = 0;
  const auto sort_marks = [&] {
    std::stable_sort(changes.begin() + static_cast<int64_t>(unsorted), changes.end(), [](const auto& a, const auto& b) {
      return combining_class(a.character) < combining_class(b.character);
    });
    unsorted = changes.size();
  };
  const auto add = [&](char32_t c, int32_t change) {
    const bool starts = combining_class(c) == 0;
    if (starts) sort_marks();
    changes.push_back({c, change});
    if (starts) unsorted = changes.size();
  };
  for (const char32_t c : characters_of(text)) {
    const std::u32string parts = decomposition(c, compatibility);
    if (parts.empty()) add(c, 0);
    for (size_t i = 0; i < parts.size(); ++i) add(parts[i], i > 0);
  }
  sort_marks();
  return changes;
}

/// Canonical composition of a decomposed text. A composite does to the old text what its parts did.
std::vector<Change> compose(const std::vector<Change>& parts) {
  std::vector<Change> changes;
  changes.reserve(parts.size());
  size_t starter = SIZE_MAX;  // in changes: what marks may join
  uint8_t last_class = 0;     // of the marks that stayed after it
  for (const auto& [c, change] : parts) {
    const uint8_t own_class = combining_class(c);
    const bool adjacent = starter != SIZE_MAX && changes.size() == starter + 1;
    if (starter != SIZE_MAX && (adjacent || last_class < own_class)) {
      if (const char32_t joined = composition(changes[starter].character, c)) {
        changes[starter] = {joined, changes[starter].change + change - 1};
        continue;
      }
    }
    if (own_class == 0) starter = changes.size();
    last_class = own_class;
    changes.push_back({c, change});
  }
  return changes;
}

void lower(AlignedText& text) {
  std::vector<Change> changes;
  changes.reserve(text.text().size());
  for (const char32_t c : characters_of(text.text())) {
    const auto [first, second] = lower_case(c);
    changes.push_back({first, 0});
    if (second != 0) changes.push_back({second, 1});
  }
  text.transform(changes);
}

void normalize_bert(const BertNormalizer& options, AlignedText& text) {
  if (options.clean_text) {
    text.filter([](char32_t c) { return !is_removed_by_clean_text(c); });
    text.map([](char32_t c) { return is_white_space(c) ? U' ' : c; });
  }
  if (options.handle_chinese_chars) {
    std::vector<Change> changes;
    for (const char32_t c : characters_of(text.text())) {
      const bool isolate = is_chinese_character(c);
      if (isolate) changes.push_back({U' ', 0});
      changes.push_back({c, isolate});
      if (isolate) changes.push_back({U' ', 1});
    }
    text.transform(changes);
  }
  if (options.strip_accents) {
    text.transform(decompose(text.text(), false));
    text.filter([](char32_t c) { return !is_nonspacing_mark(c); });
  }
  if (options.lowercase) lower(text);
}

void strip(AlignedText& text, bool left, bool right) {
  const std::string& bytes = text.text();
  size_t first = 0, last = bytes.size();
  while (left && first < last) {
    const Utf8Step step = utf8_step(bytes, first);
    if (!is_white_space(step.code_point)) break;
    first += step.length;
  }
  while (right && last > first) {
    size_t start = last - 1;
    while (!starts_code_point(bytes[start])) --start;
    if (!is_white_space(utf8_step(bytes, start).code_point)) break;
    last = start;
  }
  text.crop(first, last);
}

}  // namespace

Normalizer::Normalizer(const Node& node) : json_(node.json) {
  if (!node.json.is_null()) read(node, 0);
}

void Normalizer::read(const Node& node, int depth) {
  const std::string type = node.type();
  Step step;
  if (type == "Sequence" && depth < 8) {
    const Node list = node.at("normalizers").array();
    for (size_t i = 0; i < list.size(); ++i) read(list.entry(i), depth + 1);
    return;
  }
  if (type == "BertNormalizer") {
    step.kind = Kind::kBert;
    step.bert.clean_text = node.flag("clean_text", true);
    step.bert.handle_chinese_chars = node.flag("handle_chinese_chars", true);
    step.bert.lowercase = node.flag("lowercase", true);
    step.bert.strip_accents = node.flag("strip_accents", step.bert.lowercase);
  } else if (type == "Lowercase") {
    step.kind = Kind::kLowercase;
  } else if (type == "StripAccents") {
    step.kind = Kind::kStripAccents;
  } else if (type == "NFD" || type == "NFKD") {
    step.kind = Kind::kDecompose;
    step.compatibility = type == "NFKD";
  } else if (type == "NFC" || type == "NFKC") {
    step.kind = Kind::kCompose;
    step.compatibility = type == "NFKC";
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    step.left = node.flag("strip_left", true);
    step.right = node.flag("strip_right", true);
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    const Node pattern = node.at("pattern").object();
    if (pattern.find("String") == nullptr) throw not_supported(pattern, "Replace of a regular expression", kSupported);
    step.pattern = pattern.at("String").string();
    step.content = node.at("content").string();
    if (step.pattern.empty()) throw pattern.error("Replace needs a pattern that is not empty");
  } else if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    step.content = node.at("prepend").string();
  } else {
    throw not_supported(node, fmt::format("the normalizer {}", type), kSupported);
  }
  steps_.push_back(std::move(step));
}

std::optional<BertNormalizer> Normalizer::only_bert() const {
  if (steps_.size() == 1 && steps_.front().kind == Kind::kBert) return steps_.front().bert;
  return std::nullopt;
}

void Normalizer::normalize(AlignedText& text) const {
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kBert:
        normalize_bert(step.bert, text);
        break;
      case Kind::kLowercase:
        lower(text);
        break;
      case Kind::kStripAccents:
        text.filter([](char32_t c) { return !is_combining_mark(c); });
        break;
      case Kind::kDecompose:
        text.transform(decompose(text.text(), step.compatibility));
        break;
      case Kind::kCompose:
        text.transform(compose(decompose(text.text(), step.compatibility)));
        break;
      case Kind::kStrip:
        strip(text, step.left, step.right);
        break;
      case Kind::kReplace:
        text.replace(step.pattern, step.content);
        break;
      case Kind::kPrepend:
        text.prepend(step.content);
        break;
    }
  }
}

}  // namespace palimpsest::text
