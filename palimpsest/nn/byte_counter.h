// SPDX-License-Identifier: Apache-2.0
// Bytes of tensors on the CPU that the calling thread allocates, now and at most, from its making to its end.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>

namespace palimpsest::nn {

class ByteCounter {
 public:
  ByteCounter() : counts_(std::make_shared<Counts>()), guard_(c10::DebugInfoKind::PROFILER_STATE, counts_) {}
  int64_t now() const { return counts_->now; }
  int64_t peak() const { return counts_->peak; }
  /// From here on the peak is that of what follows.
  void restart_peak() { counts_->peak = counts_->now; }

 private:
  struct Counts : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*pointer*/, int64_t bytes, size_t /*total*/, size_t /*reserved*/,
                           c10::Device device) override {
      if (!device.is_cpu()) return;
      now += bytes;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t now = 0, peak = 0;
  };
  std::shared_ptr<Counts> counts_;
  c10::DebugInfoGuard guard_;
};

}  // namespace palimpsest::nn
