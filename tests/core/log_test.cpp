// SPDX-License-Identifier: Apache-2.0
// Bytes, times and counts as people read them.
#include "palimpsest/core/log.h"

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

TEST(Format, WritesBytesWithThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(192 * 1024), "192 KiB");
  EXPECT_EQ(format_bytes(12 * 1024 * 1024 + 512 * 1024), "12.5 MiB");
  EXPECT_EQ(format_bytes(3LL << 40), "3.00 TiB");
}

TEST(Format, WritesSecondsInTheLargestFittingUnit) {
  EXPECT_EQ(format_seconds(0.04), "0.0s");
  EXPECT_EQ(format_seconds(4.24), "4.2s");
  EXPECT_EQ(format_seconds(185), "3m05s");
  EXPECT_EQ(format_seconds(3720), "1h02m");
}

TEST(Format, GroupsDigits) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(182589697), "182,589,697");
  EXPECT_EQ(format_count(-1234), "-1,234");
}

}  // namespace
}  // namespace palimpsest
