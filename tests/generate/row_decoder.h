// SPDX-License-Identifier: Apache-2.0
// A Decoder for tests: its rows are plain lists of ids, any function of a list gives the logits, and every breach of
// the interface's contract fails the test.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "palimpsest/generate/decoder.h"

namespace palimpsest::test {

class RowDecoder : public generate::Decoder {
 public:
  /// Logits [V] of the token that follows `ids` (start or prompt, padding included) of an item.
  using Logits = std::function<at::Tensor(int64_t item, const std::vector<int64_t>& ids)>;

  RowDecoder(std::vector<std::vector<int64_t>> starts, int64_t vocab_size, Logits logits)
      : starts_(std::move(starts)), vocab_size_(vocab_size), logits_(std::move(logits)) {}

  int64_t items() const override { return static_cast<int64_t>(starts_.size()); }
  int64_t vocab_size() const override { return vocab_size_; }
  std::optional<int64_t> longest() const override { return limit; }
  at::Tensor start_ids() const override {
    std::vector<at::Tensor> rows;
    for (const auto& start : starts_) rows.push_back(at::tensor(start, at::kLong));
    return rows.empty() ? at::zeros({0, 1}, at::kLong) : at::stack(rows);
  }
  at::Tensor left_padding() const override {
    return padding.empty() ? at::zeros({items()}, at::kLong) : at::tensor(padding, at::kLong);
  }
  at::Tensor start() override {
    EXPECT_FALSE(started_) << "start() is called once";
    started_ = true;
    for (int64_t item = 0; item < items(); ++item) rows_.emplace_back(item, starts_[static_cast<size_t>(item)]);
    return all_logits();
  }
  at::Tensor step(const at::Tensor& ids) override {
    EXPECT_TRUE(started_);
    EXPECT_EQ(ids.sizes(), at::IntArrayRef({static_cast<int64_t>(rows_.size())}));
    EXPECT_EQ(ids.scalar_type(), at::kLong);
    for (size_t r = 0; r < rows_.size(); ++r) {
      const int64_t id = ids[static_cast<int64_t>(r)].item<int64_t>();
      EXPECT_GE(id, 0);
      EXPECT_LT(id, vocab_size_);
      rows_[r].second.push_back(id);
      if (limit) EXPECT_LE(static_cast<int64_t>(rows_[r].second.size()), *limit);
    }
    ++steps;
    rows_read += static_cast<int64_t>(rows_.size());
    return all_logits();
  }
  void reorder(const std::vector<int64_t>& rows) override {
    EXPECT_TRUE(started_);
    ++reorders;
    std::vector<std::pair<int64_t, std::vector<int64_t>>> next;
    std::map<int64_t, int64_t> count;
    std::set<int64_t> left;  // items that other rows have followed
    bool same = rows.size() == rows_.size();
    for (size_t r = 0; r < rows.size(); ++r) {
      ASSERT_GE(rows[r], 0);
      ASSERT_LT(rows[r], static_cast<int64_t>(rows_.size()));
      same = same && rows[r] == static_cast<int64_t>(r);
      next.push_back(rows_[static_cast<size_t>(rows[r])]);
      const int64_t item = next.back().first;
      EXPECT_FALSE(left.contains(item)) << "rows of one item lie together";
      if (r > 0 && next[r - 1].first != item) left.insert(next[r - 1].first);
      ++count[item];
    }
    EXPECT_FALSE(same) << "a reorder that changes nothing";
    for (const auto& [item, rows_of_it] : count)
      EXPECT_EQ(rows_of_it, count.begin()->second) << "every item has as many rows as the others";
    rows_ = std::move(next);
  }
  int64_t state_bytes() const override {
    int64_t bytes = 0;
    for (const auto& row : rows_) bytes += static_cast<int64_t>(8 * row.second.size());
    return bytes;
  }

  std::optional<int64_t> limit;
  std::vector<int64_t> padding;
  int64_t steps = 0, reorders = 0, rows_read = 0;

 private:
  at::Tensor all_logits() const {
    std::vector<at::Tensor> list;
    for (const auto& [item, ids] : rows_) list.push_back(logits_(item, ids));
    return at::stack(list);
  }

  std::vector<std::vector<int64_t>> starts_;
  int64_t vocab_size_;
  Logits logits_;
  bool started_ = false;
  std::vector<std::pair<int64_t, std::vector<int64_t>>> rows_;  // item, ids
};

}  // namespace palimpsest::test
