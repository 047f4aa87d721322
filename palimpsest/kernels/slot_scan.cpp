// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/kernels/slot_scan.h"

#include <algorithm>
#include <mutex>

#include "palimpsest/core/threads.h"

namespace palimpsest::kernels {

namespace {

SlotScanKernels kernels_of(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return slot_scan_avx2();
    case Isa::kAvx512:
      return slot_scan_avx512();
#endif
    default:
      return slot_scan_plain();
  }
}

at::Tensor readable(const at::Tensor& x) { return x.stride(-1) == 1 || x.size(-1) == 1 ? x : x.contiguous(); }

/// [B, H, L, X]: row `head` of batch and heads, and how far apart its tokens lie.
template <class Number>
Number* at_head(Number* data, const at::Tensor& x, int64_t head) {
  return data + head / x.size(1) * x.stride(0) + head % x.size(1) * x.stride(1);
}
const float* read(const at::Tensor& x, int64_t head) { return at_head(x.const_data_ptr<float>(), x, head); }
float* write(const at::Tensor& x, int64_t head) { return at_head(x.mutable_data_ptr<float>(), x, head); }

/// Scratch for as many heads as are under way at once, allocated by the caller's thread, where allocations are counted.
class ScratchPool {
 public:
  ScratchPool(int64_t floats, int64_t heads)
      : all_(at::empty({std::min<int64_t>(heads, thread_count()), floats}, at::kFloat)) {
    for (int64_t i = 0; i < all_.size(0); ++i) free_.push_back(all_.mutable_data_ptr<float>() + i * floats);
  }
  float* take() {
    const std::lock_guard lock(mutex_);
    float* piece = free_.back();
    free_.pop_back();
    return piece;
  }
  void give_back(float* piece) {
    const std::lock_guard lock(mutex_);
    free_.push_back(piece);
  }

 private:
  at::Tensor all_;
  std::vector<float*> free_;
  std::mutex mutex_;
};

struct Prepared {
  SlotScanJob job;
  int64_t heads, length, slots, width;

  explicit Prepared(const SlotScanJob& given) : job(given) {
    for (at::Tensor* x : {&job.query, &job.key, &job.value, &job.control}) *x = readable(*x);
    for (at::Tensor* x : {&job.mass, &job.start_key, &job.start_value}) *x = x->contiguous();
    heads = job.query.size(0) * job.query.size(1);
    length = job.query.size(2);
    slots = job.control.size(3);
    width = job.query.size(3);
  }

  SlotScanHead head(int64_t index) const {
    return {length,
            slots,
            width,
            job.writing,
            static_cast<float>(job.scale),
            read(job.query, index),
            read(job.key, index),
            read(job.value, index),
            read(job.control, index),
            job.query.stride(2),
            job.key.stride(2),
            job.value.stride(2),
            job.control.stride(2),
            read(job.mass, index),
            read(job.start_key, index),
            read(job.start_value, index)};
  }
};

}  // namespace

bool slot_scan_fits(const SlotScanJob& job) {
  for (const at::Tensor* x : {&job.query, &job.key, &job.value, &job.control})
    if (x->scalar_type() != at::kFloat || !x->is_cpu()) return false;
  return true;
}

SlotScanResult slot_scan(const SlotScanJob& given, Isa isa) {
  const Prepared p(given);
  const auto& q = p.job.query;
  const int64_t batch = q.size(0), heads = q.size(1);
  // Rows of one token side by side over heads: what joins heads next then copies nothing.
  SlotScanResult result{at::empty({batch, p.length, heads, p.width}, q.options()).transpose(1, 2),
                        at::empty({batch, heads, p.length}, q.options()), at::empty_like(p.job.mass),
                        at::empty_like(p.job.start_key), at::empty_like(p.job.start_value)};
  const SlotScanKernels kernels = kernels_of(isa);
  ScratchPool pool(kernels.floats_forward(p.slots, p.width), p.heads);
  parallel_for(p.heads, 1, [&](int64_t first, int64_t last) {
    float* scratch = pool.take();
    for (int64_t i = first; i < last; ++i) {
      kernels.forward(p.head(i),
                      {write(result.out, i), result.out.stride(2), write(result.lse, i), write(result.mass, i),
                       write(result.end_key, i), write(result.end_value, i), scratch});
    }
    pool.give_back(scratch);
  });
  return result;
}

std::vector<at::Tensor> slot_scan_backward(const SlotScanJob& given, const at::Tensor& out, const at::Tensor& lse,
                                           const at::Tensor& grad, Isa isa) {
  const Prepared p(given);
  const at::Tensor merged = readable(out), own_lse = lse.contiguous(), g = readable(grad);
  std::vector<at::Tensor> grads;
  for (const at::Tensor& x : {p.job.query, p.job.key, p.job.value, p.job.control})
    grads.push_back(at::empty(x.sizes(), x.options()));
  const SlotScanKernels kernels = kernels_of(isa);
  ScratchPool pool(kernels.floats_backward(p.length, p.slots, p.width), p.heads);
  parallel_for(p.heads, 1, [&](int64_t first, int64_t last) {
    float* scratch = pool.take();
    for (int64_t i = first; i < last; ++i) {
      kernels.backward(
          p.head(i), {read(merged, i), read(g, i), merged.stride(2), g.stride(2), read(own_lse, i), write(grads[0], i),
                      write(grads[1], i), write(grads[2], i), write(grads[3], i), scratch});
    }
    pool.give_back(scratch);
  });
  return grads;
}

}  // namespace palimpsest::kernels
