// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/noise.h"

#include <algorithm>
#include <cmath>

#include "palimpsest/core/error.h"
#include "palimpsest/core/options.h"

namespace palimpsest::data {

namespace {

void check_share(const char* what, double share) {
  if (!(share >= 0 && share <= 1)) throw usage_error(fmt::format("{} is {}", what, share), "", "a share from 0 to 1");
}

void check_infill(const InfillOptions& options) {
  check_share("noise rate", options.rate);
  if (!(options.span_mean >= 0.1 && options.span_mean <= 500)) {
    throw usage_error(fmt::format("mean span length is {}", options.span_mean), "",
                      "from 0.1 to 500; BART: 3, Memformer: 3.5");
  }
  if (options.mask_id < 0)
    throw usage_error("infilling needs the id of the mask token", "", "use a tokenizer with <mask>");
}

/// Span lengths, in the order drawn, whose sum is `budget`.
std::vector<int64_t> draw_spans(int64_t budget, double mean, Random& random) {
  std::vector<int64_t> spans;
  while (budget > 0) {
    spans.push_back(std::min(random.poisson(mean), budget));
    budget -= spans.back();
  }
  return spans;
}

/// Gives up spans of length 0 until the result has room for all masks.
void fit_spans(std::vector<int64_t>& spans, int64_t room) {
  auto excess = static_cast<int64_t>(spans.size()) - room;
  std::erase_if(spans, [&](int64_t span) { return span == 0 && excess-- > 0; });
}

bool contains(std::span<const int32_t> ids, int32_t id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

/// Where each sentence of tokens [begin, end) ends.
std::vector<size_t> sentence_ends(std::span<const int32_t> tokens, size_t begin, size_t end,
                                  std::span<const int32_t> marks) {
  const auto is_mark = [&](size_t i) { return std::binary_search(marks.begin(), marks.end(), tokens[i]); };
  std::vector<size_t> ends;
  for (size_t i = begin; i < end; ++i) {
    if (i + 1 == end || (is_mark(i) && !is_mark(i + 1))) ends.push_back(i + 1);
  }
  return ends;
}

void shuffle(std::vector<size_t>& items, Random& random) {
  for (size_t i = items.size(); i > 1; --i)
    std::swap(items[i - 1], items[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
}

}  // namespace

std::vector<int32_t> infill(std::span<const int32_t> tokens, const InfillOptions& options, Random& random) {
  check_infill(options);
  const auto is_kept = [&](int32_t id) { return contains(options.keep, id); };
  const auto size = static_cast<int64_t>(tokens.size());
  const int64_t free = size - std::count_if(tokens.begin(), tokens.end(), is_kept);
  const int64_t budget = std::llround(options.rate * static_cast<double>(free));
  const int64_t limit = options.max_length > 0 ? options.max_length : size;

  // The result is a row of elements: free tokens that stay, and spans. All orders of the two kinds are equally likely.
  std::vector<int64_t> spans = draw_spans(budget, options.span_mean, random);
  fit_spans(spans, std::max<int64_t>(limit - (size - budget), 0));
  const int64_t stay = free - budget;
  int64_t spans_left = static_cast<int64_t>(spans.size()), elements_left = stay + spans_left;

  std::vector<int32_t> out;
  out.reserve(tokens.size() + spans.size());
  size_t next = 0;
  const auto copy_kept = [&] {
    while (next < tokens.size() && is_kept(tokens[next])) out.push_back(tokens[next++]);
  };
  for (int64_t free_left = free; elements_left > 0; --elements_left) {
    if (free_left > 0) copy_kept();  // those at the end stay there: masks are inserted before them
    if (random.below(elements_left) < spans_left) {
      out.push_back(options.mask_id);
      // Any of those left: the one that was shortened to fit must not always come last.
      std::swap(spans[static_cast<size_t>(random.below(spans_left))], spans[static_cast<size_t>(spans_left - 1)]);
      const int64_t length = spans[static_cast<size_t>(--spans_left)];
      for (int64_t i = 0; i < length; ++i, ++next) copy_kept();
      free_left -= length;
    } else {
      out.push_back(tokens[next++]);
      --free_left;
    }
  }
  copy_kept();
  if (static_cast<int64_t>(out.size()) > limit) {
    throw usage_error(fmt::format("{} tokens cannot be shortened to {} by infilling", size, limit), "",
                      "use shorter segments");
  }
  return out;
}

std::vector<int32_t> mask_tokens(std::span<const int32_t> tokens, double rate, int32_t mask_id, Random& random,
                                 std::span<const int32_t> keep) {
  check_share("mask rate", rate);
  std::vector<int32_t> out(tokens.begin(), tokens.end());
  for (int32_t& id : out) {
    if (random.uniform() < rate && !contains(keep, id)) id = mask_id;
  }
  return out;
}

std::vector<int32_t> permute_sentences(std::span<const int32_t> tokens, double share, std::span<const int32_t> ends,
                                       std::span<const int32_t> keep, Random& random) {
  check_share("permute_sentences", share);
  size_t begin = 0, end = tokens.size();
  while (begin < end && contains(keep, tokens[begin])) ++begin;
  while (end > begin && contains(keep, tokens[end - 1])) --end;
  const std::vector<size_t> borders = sentence_ends(tokens, begin, end, ends);
  const size_t count = borders.size();
  std::vector<size_t> chosen(count);
  for (size_t i = 0; i < count; ++i) chosen[i] = i;
  shuffle(chosen, random);
  chosen.resize(static_cast<size_t>(std::ceil(share * static_cast<double>(count))));
  std::vector<int32_t> out(tokens.begin(), tokens.end());
  if (chosen.size() < 2) return out;
  auto placed = chosen;
  while (placed == chosen) shuffle(placed, random);
  std::vector<size_t> order(count);  // by place: the sentence that stands there
  for (size_t i = 0; i < count; ++i) order[i] = i;
  for (size_t i = 0; i < chosen.size(); ++i) order[chosen[i]] = placed[i];
  size_t at = begin;
  for (const size_t sentence : order) {
    const size_t from = sentence == 0 ? begin : borders[sentence - 1];
    for (size_t i = from; i < borders[sentence]; ++i) out[at++] = tokens[i];
  }
  return out;
}

void check_denoise(const DenoiseOptions& options, const DenoiseIds& ids) {
  check_choice("denoise_kind", options.kind, {"infill", "token_mask"});
  check_share("permute_sentences", options.permute);
  check_infill({.rate = options.rate, .span_mean = options.span_mean, .mask_id = ids.mask});
  if (options.permute > 0 && ids.sentence_ends.empty()) {
    throw usage_error("no token of the vocabulary ends a sentence", "permute_sentences",
                      "set it to 0, or use a tokenizer that has \".\", \"!\" or \"?\"");
  }
}

std::vector<int32_t> corrupt(std::span<const int32_t> tokens, const DenoiseOptions& options, const DenoiseIds& ids,
                             int64_t max_length, Random& random) {
  std::vector<int32_t> moved;
  if (options.permute > 0) {
    moved = permute_sentences(tokens, options.permute, ids.sentence_ends, ids.keep, random);
    tokens = moved;
  }
  if (options.kind == "token_mask") return mask_tokens(tokens, options.rate, ids.mask, random, ids.keep);
  return infill(tokens,
                {.rate = options.rate,
                 .span_mean = options.span_mean,
                 .mask_id = ids.mask,
                 .keep = ids.keep,
                 .max_length = max_length},
                random);
}

void NoiseCounts::add(std::span<const int32_t> clean, std::span<const int32_t> noisy, int32_t mask_id) {
  std::vector<int32_t> stayed(noisy.begin(), noisy.end());
  std::erase(stayed, mask_id);
  const auto size = static_cast<int64_t>(clean.size()), left = static_cast<int64_t>(stayed.size());
  ++segments;
  tokens += size;
  removed += size - left;
  masks += static_cast<int64_t>(noisy.size()) - left;
  longest = std::max(longest, size);
  longest_noisy = std::max(longest_noisy, static_cast<int64_t>(noisy.size()));
  size_t found = 0;  // of what stayed, in the order of the clean segment
  for (size_t i = 0; i < clean.size() && found < stayed.size(); ++i) found += clean[i] == stayed[found] ? 1 : 0;
  reordered += found < stayed.size() ? 1 : 0;
}

}  // namespace palimpsest::data
