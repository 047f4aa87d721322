// SPDX-License-Identifier: Apache-2.0
// Ranges over torch's thread pool: every index once, on several threads, errors passed on.
#include "palimpsest/core/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "palimpsest/core/error.h"

namespace palimpsest {
namespace {

class Threads : public ::testing::Test {
 protected:
  void TearDown() override { set_thread_count(before_); }
  const int before_ = thread_count();
};

TEST_F(Threads, CoverEveryIndexOnce) {
  for (const int threads : {1, 2, 4}) {
    set_thread_count(threads);
    EXPECT_EQ(thread_count(), threads);
    for (const int64_t count : {0, 1, 2, 7, 64, 1001}) {
      for (const int64_t grain : {1, 3, 100, 5000}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
        parallel_for(count, grain, [&](int64_t first, int64_t last) {
          ASSERT_LT(first, last);
          for (int64_t i = first; i < last; ++i) ++seen[static_cast<size_t>(i)];
        });
        for (const auto& times : seen) EXPECT_EQ(times, 1);
      }
    }
  }
}

TEST_F(Threads, DoNotCallTheBodyForNothing) {
  parallel_for(0, 1, [](int64_t, int64_t) { FAIL(); });
  parallel_for(-5, 1, [](int64_t, int64_t) { FAIL(); });
}

TEST_F(Threads, AreMoreThanOne) {
  set_thread_count(2);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  parallel_for(8, 1, [&](int64_t, int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(ids.size(), 2U);
}

TEST_F(Threads, GiveRangesOfAtLeastTheGrain) {
  set_thread_count(4);
  parallel_for(1000, 100, [](int64_t first, int64_t last) { EXPECT_TRUE(last - first >= 100 || last == 1000); });
}

TEST_F(Threads, PassOnOneError) {
  for (const int threads : {1, 4}) {
    set_thread_count(threads);
    EXPECT_THROW(parallel_for(100, 1, [](int64_t, int64_t) { throw std::out_of_range("x"); }), std::out_of_range);
    std::atomic<int64_t> done{0};
    parallel_for(100, 1, [&](int64_t first, int64_t last) { done += last - first; });
    EXPECT_EQ(done, 100) << "usable after an error";
  }
}

TEST_F(Threads, AreRefusedWhereNegative) {
  try {
    set_thread_count(-1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.problem(), "--threads -1 is negative");
    EXPECT_EQ(error.exit_code(), 2);
  }
  set_thread_count(0);
  EXPECT_EQ(thread_count(), before_);
}

}  // namespace
}  // namespace palimpsest
