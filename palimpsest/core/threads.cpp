// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/core/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

#include "palimpsest/core/error.h"

// Of the OpenMP runtime that torch loads; absent where torch was built without one.
extern "C" {
__attribute__((weak)) void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);
}

namespace palimpsest {

int thread_count() { return at::get_num_threads(); }

void set_thread_count(int threads) {
  if (threads < 0)
    throw usage_error(fmt::format("--threads {} is negative", threads), "", "give 1 or more, or 0 for the default");
  if (threads > 0) at::set_num_threads(threads);
}

namespace {
struct Work {
  int64_t count, chunk;
  const std::function<void(int64_t, int64_t)>* body;
  std::atomic<int64_t> next{0};
  std::mutex mutex{};
  std::exception_ptr error{};
};

void run_chunks(void* data) {
  Work& work = *static_cast<Work*>(data);
  for (;;) {
    const int64_t first = work.next.fetch_add(work.chunk);
    if (first >= work.count) return;
    try {
      (*work.body)(first, std::min(work.count, first + work.chunk));
    } catch (...) {
      const std::lock_guard lock(work.mutex);
      if (!work.error) work.error = std::current_exception();
    }
  }
}
}  // namespace

void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  const int64_t threads = thread_count();
  if (threads <= 1 || count <= grain || GOMP_parallel == nullptr) return body(0, count);
  Work work{.count = count, .chunk = std::max(grain, (count + 4 * threads - 1) / (4 * threads)), .body = &body};
  GOMP_parallel(run_chunks, &work, static_cast<unsigned>(threads), 0);
  if (work.error) std::rethrow_exception(work.error);
}

}  // namespace palimpsest
