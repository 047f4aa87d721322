// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/sides.h"

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"
#include "palimpsest/data/text_lines.h"
#include "palimpsest/text/unicode.h"

namespace palimpsest::data {

namespace {

constexpr double kTrainShare = 0.8, kValidShare = 0.1;

uint64_t hash_of(std::string_view bytes) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3ULL;
  return hash;
}

bool is_ascii_word(char byte) {
  return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
}

bool is_left_out(char32_t c) { return (c >= 0x80 && c <= 0xBF) || (c >= 0x2000 && c <= 0x206F); }

}  // namespace

const char* side_name(Side side) { return side == Side::kTrain ? "train" : side == Side::kValid ? "valid" : "test"; }

Side split_of(std::string_view key, int64_t seed) {
  const double place = Random(random_key(static_cast<uint64_t>(seed), hash_of(key))).uniform();
  return place < kTrainShare ? Side::kTrain : place < kTrainShare + kValidShare ? Side::kValid : Side::kTest;
}

std::string split_key_of(std::string_view text) {
  std::string key;
  key.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const text::Utf8Step step = text::utf8_step(text, i);
    if (step.length == 1 && static_cast<unsigned char>(text[i]) < 0x80) {
      if (is_ascii_word(text[i])) key += text[i] >= 'A' && text[i] <= 'Z' ? static_cast<char>(text[i] + 32) : text[i];
    } else if (!is_left_out(step.code_point)) {
      key += text.substr(i, step.length);
    }
    i += step.length;
  }
  return key.empty() ? std::string(text) : key;
}

int64_t count_words(std::string_view text) {
  int64_t words = 0;
  bool in_word = false;
  for (size_t i = 0; i < text.size();) {
    const text::Utf8Step step = text::utf8_step(text, i);
    const bool ascii = step.code_point < 0x80;
    if (step.code_point >= 0x2E80 && step.code_point != 0xFFFD) {
      ++words;
      in_word = false;
    } else if (white_space_at(text.substr(i)) > 0) {
      in_word = false;
    } else if (!in_word && (ascii ? is_ascii_word(text[i]) : !is_left_out(step.code_point))) {
      ++words;
      in_word = true;
    }
    i += step.length;
  }
  return words;
}

SharedUtterances::SharedUtterances(int64_t least_words) : least_words_(least_words) {
  if (least_words < 1) {
    throw usage_error(fmt::format("utterances of {} words", least_words), "", "a long one has at least 1");
  }
}

void SharedUtterances::add(std::string_view utterance, const std::string& place, Side side) {
  if (count_words(utterance) < least_words_) return;
  if (places_.empty() || places_.back() != place) places_.push_back(place);
  Seen& seen = seen_[hash_of(split_key_of(utterance))];
  int32_t& here = seen.place[static_cast<size_t>(side)];
  if (here >= 0) return;  // the pairs of this side are listed
  here = static_cast<int32_t>(places_.size()) - 1;
  for (const Side other : {Side::kTrain, Side::kValid, Side::kTest}) {
    const int32_t there = seen.place[static_cast<size_t>(other)];
    if (other == side || there < 0) continue;
    list_.push_back({std::string(utterance), places_[static_cast<size_t>(there)], place, other, side});
  }
}

void HeldOutUtterances::add(std::string_view utterance, Side side) {
  if (side == Side::kTrain || count_words(utterance) < least_words_) return;
  (side == Side::kValid ? valid_ : test_).insert(hash_of(split_key_of(utterance)));
}

bool HeldOutUtterances::meets(std::string_view utterance, Side side) const {
  if (side == Side::kTest || count_words(utterance) < least_words_) return false;
  const uint64_t hash = hash_of(split_key_of(utterance));
  return test_.contains(hash) || (side == Side::kTrain && valid_.contains(hash));
}

}  // namespace palimpsest::data
