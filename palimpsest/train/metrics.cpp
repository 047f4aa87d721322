// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/train/metrics.h"

#include <unicode/locid.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"
#include "palimpsest/text/unicode.h"

namespace palimpsest::train {

namespace {

std::string lower_case(std::string_view text) {
  std::string lower;
  icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<int32_t>(text.size())))
      .toLower(icu::Locale::getRoot())
      .toUTF8String(lower);
  return lower;
}

bool is_ascii_punctuation(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

/// White space as Python's split() sees it.
bool is_space(char32_t c) { return text::is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

bool is_letter_or_number(char32_t c) {
  const text::CharClass kind = text::char_class(c);
  return kind == text::CharClass::kLetter || kind == text::CharClass::kNumber;
}

/// Appends `word` without its articles: runs of letters and digits that are a, an or the become spaces.
void append_words(std::string_view word, std::vector<std::string>& words) {
  std::string rest, run;
  const auto flush = [&] {
    if (!rest.empty()) words.push_back(std::move(rest));
    rest.clear();
  };
  const auto end_run = [&] {
    if (run == "a" || run == "an" || run == "the") {
      flush();
    } else {
      rest += run;
    }
    run.clear();
  };
  for (size_t i = 0; i < word.size();) {
    const text::Utf8Step step = text::utf8_step(word, i);
    const std::string_view character = word.substr(i, step.length);
    i += step.length;
    if (is_letter_or_number(step.code_point)) {
      run += character;
    } else {
      end_run();
      rest += character;
    }
  }
  end_run();
  flush();
}

void replace_all(std::string& text, std::string_view what, std::string_view by) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_stop(char c) { return c == '.' || c == ','; }

/// Pairs of neighbours for which `parts` holds get spaces as `written` has them; a byte belongs to one pair at most.
template <class Parts, class Written>
std::string rewrite_pairs(const std::string& text, Parts parts, Written written) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (i + 1 < text.size() && parts(text[i], text[i + 1])) {
      out += written(text[i], text[i + 1]);
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

using NgramCounts = std::map<std::vector<std::string>, int64_t>;

NgramCounts ngrams_of(const std::vector<std::string>& tokens, size_t n) {
  NgramCounts counts;
  for (size_t i = 0; i + n <= tokens.size(); ++i) {
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(i);
    ++counts[{first, first + static_cast<std::ptrdiff_t>(n)}];
  }
  return counts;
}

double mean_of(std::span<const DocumentScore> scores, std::span<const int64_t> picks) {
  double sum = 0, weight = 0;
  for (const int64_t i : picks) {
    sum += scores[static_cast<size_t>(i)].sum;
    weight += scores[static_cast<size_t>(i)].weight;
  }
  return sum / weight;
}

double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

std::vector<std::string> normalized_words(std::string_view text) {
  const std::string lower = lower_case(text);
  std::vector<std::string> words;
  size_t begin = 0;
  for (size_t i = 0; i <= lower.size();) {
    const bool end = i == lower.size();
    const text::Utf8Step step = end ? text::Utf8Step{} : text::utf8_step(lower, i);
    if (end || is_space(step.code_point) || is_ascii_punctuation(step.code_point)) {
      if (i > begin) append_words(std::string_view(lower).substr(begin, i - begin), words);
      begin = i + step.length;
    }
    i += step.length;
  }
  return words;
}

double word_f1(std::string_view guess, std::string_view reference) {
  const std::vector<std::string> said = normalized_words(guess), wanted = normalized_words(reference);
  std::map<std::string, int64_t> left;
  for (const auto& word : wanted) ++left[word];
  int64_t same = 0;
  for (const auto& word : said) {
    const auto found = left.find(word);
    if (found != left.end() && found->second-- > 0) ++same;
  }
  if (same == 0) return 0;
  const double precision = static_cast<double>(same) / static_cast<double>(said.size());
  const double recall = static_cast<double>(same) / static_cast<double>(wanted.size());
  return 2 * precision * recall / (precision + recall);
}

double word_f1(std::string_view guess, std::span<const std::string> references) {
  double best = 0;
  for (const auto& reference : references) best = std::max(best, word_f1(guess, reference));
  return best;
}

double distinct_n(std::span<const std::string> replies, int64_t n) {
  if (n < 1) throw usage_error(fmt::format("distinct-{}", n), "", "n is at least 1");
  const auto length = static_cast<size_t>(n);
  std::set<std::vector<std::string>> different;
  int64_t all = 0;
  for (const auto& reply : replies) {
    const std::vector<std::string> words = normalized_words(reply);
    for (size_t i = 0; i + length <= words.size(); ++i) {
      const auto first = words.begin() + static_cast<std::ptrdiff_t>(i);
      different.emplace(first, first + n);
      ++all;
    }
  }
  return all == 0 ? 0 : static_cast<double>(different.size()) / static_cast<double>(all);
}

std::vector<std::string> bleu_tokens(std::string_view given) {
  std::string text(given);
  while (!text.empty()) {  // as Python's rstrip
    size_t last = text.size() - 1;
    while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    if (!is_space(text::utf8_step(text, last).code_point)) break;
    text.resize(last);
  }
  replace_all(text, "<skipped>", "");
  replace_all(text, "-\n", "");
  replace_all(text, "\n", " ");
  for (const auto& [name, character] : {std::pair{"&quot;", "\""}, {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}})
    replace_all(text, name, character);
  std::string spaced = " ";
  for (const char c : text + " ") {
    if (is_ascii_punctuation(static_cast<unsigned char>(c)) && c != '\'' && c != '-' && !is_stop(c)) {
      spaced.append(" ").append(1, c).append(" ");
    } else {
      spaced += c;
    }
  }
  // Bytes will do: no byte of a longer character is a digit, a stop or a dash.
  spaced = rewrite_pairs(
      spaced, [](char a, char b) { return !is_digit(a) && is_stop(b); },
      [](char a, char b) { return std::string{a, ' ', b, ' '}; });
  spaced = rewrite_pairs(
      spaced, [](char a, char b) { return is_stop(a) && !is_digit(b); },
      [](char a, char b) { return std::string{' ', a, ' ', b}; });
  spaced = rewrite_pairs(
      spaced, [](char a, char b) { return is_digit(a) && b == '-'; },
      [](char a, char b) { return std::string{a, ' ', b, ' '}; });
  std::vector<std::string> tokens;
  size_t begin = 0;
  for (size_t i = 0; i <= spaced.size();) {
    const bool end = i == spaced.size();
    const text::Utf8Step step = end ? text::Utf8Step{} : text::utf8_step(spaced, i);
    if (end || is_space(step.code_point)) {
      if (i > begin) tokens.push_back(spaced.substr(begin, i - begin));
      begin = i + step.length;
    }
    if (end) break;
    i += step.length;
  }
  return tokens;
}

Bleu corpus_bleu(std::span<const std::string> texts, std::span<const std::string> references) {
  if (texts.size() != references.size()) {
    throw usage_error(fmt::format("{} texts, {} references", texts.size(), references.size()), "bleu",
                      "each text needs its reference");
  }
  Bleu bleu;
  std::array<int64_t, 4> all = {}, same = {};
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<std::string> tokens = bleu_tokens(texts[i]), wanted = bleu_tokens(references[i]);
    bleu.length += static_cast<int64_t>(tokens.size());
    bleu.reference_length += static_cast<int64_t>(wanted.size());
    for (size_t n = 1; n <= all.size(); ++n) {
      const NgramCounts in_reference = ngrams_of(wanted, n);
      for (const auto& [ngram, count] : ngrams_of(tokens, n)) {
        all[n - 1] += count;
        if (const auto found = in_reference.find(ngram); found != in_reference.end())
          same[n - 1] += std::min(count, found->second);
      }
    }
  }
  if (bleu.length < bleu.reference_length) {
    bleu.brevity_penalty =
        bleu.length > 0 ? std::exp(1 - static_cast<double>(bleu.reference_length) / static_cast<double>(bleu.length))
                        : 0;
  }
  if (same[0] == 0) return bleu;
  double sum = 0, smoothed = 1;
  for (size_t n = 0; n < all.size() && all[n] > 0; ++n) {
    const double matches = same[n] > 0 ? static_cast<double>(same[n]) : 1 / (smoothed *= 2);
    bleu.precisions[n] = 100 * matches / static_cast<double>(all[n]);
  }
  for (const double precision : bleu.precisions) {
    if (precision == 0) return bleu;  // texts so short that an order is missing
    sum += std::log(precision);
  }
  bleu.score = bleu.brevity_penalty * std::exp(sum / static_cast<double>(all.size()));
  return bleu;
}

int64_t equal_places(std::span<const int32_t> wanted, std::span<const int64_t> given) {
  int64_t equal = 0;
  for (size_t i = 0; i < std::min(wanted.size(), given.size()); ++i) equal += given[i] == wanted[i];
  return equal;
}

Interval bootstrap(int64_t documents, const std::function<double(std::span<const int64_t>)>& statistic,
                   const BootstrapOptions& options) {
  if (documents < 1) throw usage_error("no documents to draw from", "bootstrap", "at least one is needed");
  if (options.resamples < 1) {
    throw usage_error(fmt::format("{} resamples", options.resamples), "bootstrap", "at least one is needed");
  }
  if (!(options.level > 0 && options.level < 1)) {
    throw usage_error(fmt::format("level is {}", options.level), "bootstrap", "it lies between 0 and 1: 0.95");
  }
  std::vector<int64_t> picks(static_cast<size_t>(documents));
  for (size_t i = 0; i < picks.size(); ++i) picks[i] = static_cast<int64_t>(i);
  Interval interval{.value = statistic(picks), .documents = documents};
  std::vector<double> values;
  for (int64_t resample = 0; resample < options.resamples; ++resample) {
    Random random(random_key(options.seed, resample));
    for (auto& pick : picks) pick = random.below(documents);
    if (const double value = statistic(picks); !std::isnan(value)) values.push_back(value);
  }
  if (values.empty()) values.push_back(interval.value);
  std::sort(values.begin(), values.end());
  interval.low = quantile(values, (1 - options.level) / 2);
  interval.high = quantile(values, (1 + options.level) / 2);
  return interval;
}

Interval bootstrap_mean(std::span<const DocumentScore> scores, const BootstrapOptions& options) {
  return bootstrap(
      static_cast<int64_t>(scores.size()), [&](std::span<const int64_t> picks) { return mean_of(scores, picks); },
      options);
}

Interval bootstrap_difference(std::span<const DocumentScore> a, std::span<const DocumentScore> b,
                              const BootstrapOptions& options) {
  if (a.size() != b.size()) {
    throw usage_error(fmt::format("{} documents on one side, {} on the other", a.size(), b.size()), "bootstrap",
                      "both sides must be of the same documents in the same order");
  }
  return bootstrap(
      static_cast<int64_t>(a.size()),
      [&](std::span<const int64_t> picks) { return mean_of(a, picks) - mean_of(b, picks); }, options);
}

}  // namespace palimpsest::train
