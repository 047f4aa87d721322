// SPDX-License-Identifier: Apache-2.0
// States are values: appends, copies and selections never disturb each other.
#include "palimpsest/attention/state.h"

#include "palimpsest/core/error.h"
#include "tests/support/tensors.h"

namespace palimpsest::attention {
namespace {

using test::expect_identical;
using test::randn;

TEST(State, AppendsEqualConcatenation) {
  State state;
  at::Tensor whole;
  uint64_t seed = 1;
  for (const int64_t count : {3, 1, 1, 40, 1, 100, 7}) {
    const at::Tensor more = randn({2, 4, count, 5}, seed++);
    whole = whole.defined() ? at::cat({whole, more}, 2) : more;
    expect_identical(state.append("key", more, 2), whole, "the whole");
    EXPECT_EQ(state.length("key"), whole.size(2));
    expect_identical(state.get("key"), whole, "get");
  }
  EXPECT_EQ(state.length("nothing"), 0);
  EXPECT_THROW(state.get("nothing"), Error);
}

TEST(State, ACopyGoesItsOwnWay) {
  State one;
  const at::Tensor start = randn({1, 2, 3, 4}, 1), left = randn({1, 2, 1, 4}, 2), right = randn({1, 2, 1, 4}, 3);
  one.append("key", start, 2);
  State other = one;
  one.append("key", left, 2);
  other.append("key", right, 2);
  expect_identical(one.get("key"), at::cat({start, left}, 2), "the first");
  expect_identical(other.get("key"), at::cat({start, right}, 2), "its copy");
}

TEST(State, SelectsRowsOfEverything) {
  State state;
  const at::Tensor grown = randn({3, 2, 5, 4}, 1), fixed = randn({3, 7}, 2), more = randn({4, 2, 1, 4}, 3);
  state.append("key", grown, 2);
  state.set("fixed", fixed);
  const at::Tensor rows = at::tensor({2, 0, 0, 1}, at::kLong);
  State chosen = state.select({2, 0, 0, 1});
  expect_identical(chosen.get("key"), grown.index_select(0, rows), "grown");
  expect_identical(chosen.get("fixed"), fixed.index_select(0, rows), "fixed");
  expect_identical(chosen.append("key", more, 2), at::cat({grown.index_select(0, rows), more}, 2), "goes on");
  expect_identical(state.get("key"), grown, "the old one stays");
}

TEST(State, KeepsItsBuffersWhereTheOrderStays) {
  State state;
  state.append("key", randn({2, 2, 5, 4}, 1), 2);
  state.set("fixed", randn({2, 3}, 2));
  const State same = state.select({0, 1});
  EXPECT_EQ(same.get("key").data_ptr(), state.get("key").data_ptr());
  EXPECT_EQ(same.get("fixed").data_ptr(), state.get("fixed").data_ptr());
  EXPECT_NE(state.select({1, 0}).get("fixed").data_ptr(), state.get("fixed").data_ptr());
}

}  // namespace
}  // namespace palimpsest::attention
