// SPDX-License-Identifier: Apache-2.0
// What a token's place is looked up as (DESIGN section 3).
#pragma once

#include <ATen/ATen.h>

#include <string>

namespace palimpsest::models {

/// "absolute": its own row of the table, which ends somewhere; "segment:S": row p mod S, so that a text may go on for
/// ever; "none": nothing is added, and order is seen by attention alone.
struct Positions {
  enum Kind { kAbsolute, kSegment, kNone } kind = kAbsolute;
  int64_t segment = 0;

  /// A usage error names what there is.
  static Positions parse(const std::string& text);
  std::string text() const;
  /// Whether a text may be longer than the table.
  bool endless() const { return kind != kAbsolute; }
  /// A usage error where `segment` is longer than the table of `rows`.
  void check(int64_t rows) const;
  /// Rows of the table for positions int64; not for "none".
  at::Tensor rows_of(const at::Tensor& position) const {
    return kind == kSegment ? position.remainder(segment) : position;
  }
};

/// Room for tokens where nothing sets an end.
constexpr int64_t kNoEnd = int64_t{1} << 30;

}  // namespace palimpsest::models
