// SPDX-License-Identifier: Apache-2.0
// Changes of a text with its alignment; which source a new character gets is what the reference gives it.
#include "palimpsest/text/aligned_text.h"

#include <limits>

#include "palimpsest/core/error.h"
#include "palimpsest/text/unicode.h"

namespace palimpsest::text {

std::u32string characters_of(std::string_view text) {
  std::u32string characters;
  characters.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    characters += step.code_point;
    at += step.length;
  }
  return characters;
}

AlignedText::AlignedText(std::string_view source) : text_(source) {
  if (source.size() > std::numeric_limits<uint32_t>::max())
    throw usage_error("a text of more than 4 GiB cannot be normalized at once", "", "split the text into lines");
  sources_.reserve(source.size());
  for (size_t at = 0; at < source.size();) {
    const size_t length = utf8_step(source, at).length;
    sources_.insert(sources_.end(), length, {static_cast<uint32_t>(at), static_cast<uint32_t>(at + length)});
    at += length;
  }
}

void AlignedText::transform(const std::vector<Change>& changes, size_t removed) {
  std::string text;
  std::vector<SourceRange> sources;
  text.reserve(text_.size());
  sources.reserve(text_.size());
  size_t at = 0;  // in the old text
  const auto skip = [&](size_t count) {
    for (; count > 0 && at < text_.size(); --count) at += utf8_step(text_, at).length;
  };
  skip(removed);
  for (const auto& [character, change] : changes) {
    SourceRange source;
    if (change <= 0) {
      source = sources_.at(at);
      skip(1 + static_cast<size_t>(-change));
    } else if (at > 0) {
      source = sources_[at - 1];
    }
    append_utf8(text, character);
    sources.resize(text.size(), source);
  }
  text_ = std::move(text);
  sources_ = std::move(sources);
}

void AlignedText::filter(const std::function<bool(char32_t)>& keep) {
  size_t kept = 0;
  for (size_t at = 0; at < text_.size();) {
    const Utf8Step step = utf8_step(text_, at);
    const bool stays = keep(step.code_point);
    for (size_t end = at + step.length; at < end; ++at) {
      if (stays) text_[kept] = text_[at], sources_[kept] = sources_[at], ++kept;
    }
  }
  text_.resize(kept);
  sources_.resize(kept);
}

void AlignedText::map(const std::function<char32_t(char32_t)>& to) {
  std::vector<Change> changes;
  for (const char32_t c : characters_of(text_)) changes.push_back({to(c), 0});
  transform(changes);
}

void AlignedText::replace(std::string_view pattern, std::string_view content) {
  std::string text;
  std::vector<SourceRange> sources;
  size_t done = 0;
  const auto copy_until = [&](size_t end) {
    text.append(text_, done, end - done);
    sources.insert(sources.end(), sources_.begin() + static_cast<int64_t>(done),
                   sources_.begin() + static_cast<int64_t>(end));
  };
  for (size_t found; (found = text_.find(pattern, done)) != std::string::npos;) {
    copy_until(found);
    done = found + pattern.size();
    text += content;
    sources.resize(text.size(), sources_[done - 1]);
  }
  copy_until(text_.size());
  text_ = std::move(text);
  sources_ = std::move(sources);
}

void AlignedText::prepend(std::string_view prefix) {
  if (text_.empty() || prefix.empty()) return;
  sources_.insert(sources_.begin(), prefix.size(), sources_.front());
  text_.insert(0, prefix);
}

void AlignedText::crop(size_t first, size_t last) {
  text_ = text_.substr(first, last - first);
  sources_.erase(sources_.begin() + static_cast<int64_t>(last), sources_.end());
  sources_.erase(sources_.begin(), sources_.begin() + static_cast<int64_t>(first));
}

}  // namespace palimpsest::text
