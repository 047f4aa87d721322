// SPDX-License-Identifier: Apache-2.0
// Windows of a span: length S, stride S - overlap, the last one shorter where it must be (ALGORITHMS 3.4, M19).
#pragma once

#include <cstdint>
#include <vector>

#include "palimpsest/data/split.h"

namespace palimpsest::data {

struct SegmentOptions {
  int64_t segment = 512;  // S: tokens of a window
  int64_t overlap = 0;    // tokens a window shares with the one before
  static void fields(auto& o, auto&& field) {
    field("segment", o.segment, "tokens of a segment");
    field("overlap", o.overlap, "tokens that a segment shares with the one before");
  }
};

/// Usage error unless segment >= 1 and 0 <= overlap < segment.
void check_segments(const SegmentOptions& options);

/// How many windows cover `tokens` tokens: 0 for 0, else the fewest whose union is everything. So every window brings
/// at least one token that the one before does not hold.
int64_t segment_count(int64_t tokens, const SegmentOptions& options);

/// Window `index` of a span.
Span segment_of(const Span& span, int64_t index, const SegmentOptions& options);

/// All windows of a span, in order.
std::vector<Span> segments_of(const Span& span, const SegmentOptions& options);

}  // namespace palimpsest::data
