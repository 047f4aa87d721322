// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/noise.h"

#include <algorithm>
#include <cmath>

#include "palimpsest/core/error.h"

namespace palimpsest::data {

namespace {

void check_infill(const InfillOptions& options) {
  if (!(options.rate >= 0 && options.rate <= 1))
    throw usage_error(fmt::format("noise rate is {}", options.rate), "", "a share from 0 to 1");
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

}  // namespace

std::vector<int32_t> infill(std::span<const int32_t> tokens, const InfillOptions& options, Random& random) {
  check_infill(options);
  const auto is_kept = [&](int32_t id) {
    return std::find(options.keep.begin(), options.keep.end(), id) != options.keep.end();
  };
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

std::vector<int32_t> mask_tokens(std::span<const int32_t> tokens, double rate, int32_t mask_id, Random& random) {
  if (!(rate >= 0 && rate <= 1)) throw usage_error(fmt::format("mask rate is {}", rate), "", "a share from 0 to 1");
  std::vector<int32_t> out(tokens.begin(), tokens.end());
  for (int32_t& id : out) {
    if (random.uniform() < rate) id = mask_id;
  }
  return out;
}

}  // namespace palimpsest::data
