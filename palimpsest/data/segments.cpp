// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/segments.h"

#include <algorithm>

#include "palimpsest/core/error.h"

namespace palimpsest::data {

void check_segments(const SegmentOptions& options) {
  if (options.segment < 1) throw usage_error(fmt::format("segment is {}", options.segment), "", "at least 1 token");
  if (options.overlap < 0 || options.overlap >= options.segment) {
    throw usage_error(fmt::format("overlap is {}, segment is {}", options.overlap, options.segment), "",
                      "the overlap is at least 0 and shorter than the segment");
  }
}

int64_t segment_count(int64_t tokens, const SegmentOptions& options) {
  if (tokens <= 0) return 0;
  const int64_t stride = options.segment - options.overlap;
  return tokens <= options.segment ? 1 : 1 + (tokens - options.segment + stride - 1) / stride;
}

Span segment_of(const Span& span, int64_t index, const SegmentOptions& options) {
  const int64_t begin = span.begin + index * (options.segment - options.overlap);
  return {span.document, begin, std::min(begin + options.segment, span.end)};
}

std::vector<Span> segments_of(const Span& span, const SegmentOptions& options) {
  check_segments(options);
  std::vector<Span> segments;
  for (int64_t i = 0; i < segment_count(span.size(), options); ++i) segments.push_back(segment_of(span, i, options));
  return segments;
}

}  // namespace palimpsest::data
