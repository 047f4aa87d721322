// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/train/parallel.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace palimpsest::train {

namespace {

struct Done : Communicator::Pending {
  void wait() override {}
};

class SingleProcess : public Communicator {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  std::unique_ptr<Pending> start_sum(const at::Tensor&) override { return std::make_unique<Done>(); }
  at::Tensor gather(const at::Tensor& tensor) override { return tensor.unsqueeze(0); }
  void broadcast(const at::Tensor&, int64_t) override {}
  void barrier() override {}
};

}  // namespace

std::shared_ptr<Communicator> single_process() { return std::make_shared<SingleProcess>(); }

double Communicator::broadcast(double value, int64_t root) {
  if (size() == 1) return value;
  const at::Tensor tensor = at::full({}, value, at::kDouble);
  broadcast(tensor, root);
  return tensor.item<double>();
}

std::string Communicator::broadcast(const std::string& text, int64_t root) {
  if (size() == 1) return text;
  const auto length = static_cast<size_t>(broadcast(static_cast<double>(text.size()), root));
  at::Tensor letters = at::zeros({static_cast<int64_t>(length)}, at::kLong);
  if (rank() == root) std::copy(text.begin(), text.end(), letters.data_ptr<int64_t>());
  broadcast(letters, root);
  std::string result;
  for (size_t i = 0; i < length; ++i) result += static_cast<char>(letters.data_ptr<int64_t>()[i]);
  return result;
}

bool Communicator::any(bool value) {
  if (size() == 1) return value;
  const at::Tensor count = at::full({}, value ? 1 : 0, at::kLong);
  sum(count);
  return count.item<int64_t>() > 0;
}

struct GradientSum::State {
  struct Bucket {
    std::vector<size_t> parameters;
    at::Tensor flat;  ///< the gradients one after another, then one number a parameter: 1 where it has a gradient
    size_t waiting = 0;
    bool sent = false;
    std::unique_ptr<Communicator::Pending> pending;
  };
  std::vector<at::Tensor> parameters;
  std::vector<size_t> bucket_of;
  std::vector<Bucket> buckets;
  std::shared_ptr<Communicator> communicator;
  std::mutex mutex;  // a backward pass may run on a thread of its own
  bool begun = false;
  size_t next = 0;
  int64_t sent_early = 0;

  /// Every process must send in the same order: a full bucket waits for those before it.
  void send_full_ones() {
    for (; next < buckets.size() && buckets[next].waiting == 0; ++next) {
      send(buckets[next]);
      ++sent_early;
    }
  }

  void send(Bucket& bucket) {
    const at::NoGradGuard no_grad;
    int64_t at = 0, flag = bucket.flat.numel() - static_cast<int64_t>(bucket.parameters.size());
    for (const size_t index : bucket.parameters) {
      const at::Tensor& parameter = parameters[index];
      at::Tensor part = bucket.flat.narrow(0, at, parameter.numel());
      if (parameter.grad().defined()) {
        part.copy_(parameter.grad().reshape({-1}));
      } else {
        part.zero_();
      }
      bucket.flat[flag++] = parameter.grad().defined() ? 1 : 0;
      at += parameter.numel();
    }
    bucket.pending = communicator->start_sum(bucket.flat);
    bucket.sent = true;
  }

  void ready(size_t index) {
    const std::lock_guard lock(mutex);
    if (!begun) return;
    Bucket& bucket = buckets[bucket_of[index]];
    if (bucket.waiting > 0) --bucket.waiting;
    send_full_ones();
  }

  /// .grad() from the bucket's sums.
  void receive(Bucket& bucket) {
    bucket.pending->wait();
    bucket.pending.reset();
    int64_t at = 0, flag = bucket.flat.numel() - static_cast<int64_t>(bucket.parameters.size());
    for (const size_t index : bucket.parameters) {
      at::Tensor& parameter = parameters[index];
      const at::Tensor part = bucket.flat.narrow(0, at, parameter.numel()).view(parameter.sizes());
      if (bucket.flat[flag++].item<double>() > 0) parameter.mutable_grad() = part.to(parameter.device());
      at += parameter.numel();
    }
  }
};

namespace {

struct WhenAccumulated : torch::autograd::PostAccumulateGradHook {
  explicit WhenAccumulated(std::function<void()> f) : call(std::move(f)) {}
  void operator()(const at::Tensor&) override { call(); }
  std::function<void()> call;
};

}  // namespace

GradientSum::GradientSum(const std::vector<at::Tensor>& parameters, std::shared_ptr<Communicator> communicator,
                         int64_t bucket_bytes)
    : state_(std::make_shared<State>()) {
  state_->communicator = std::move(communicator);
  for (const at::Tensor& parameter : parameters) {
    if (parameter.requires_grad()) state_->parameters.push_back(parameter);
  }
  state_->bucket_of.resize(state_->parameters.size());
  // A backward pass comes to the parameters in about the reverse order of their registration.
  int64_t bytes = 0;
  for (size_t i = state_->parameters.size(); i-- > 0;) {
    const auto size = static_cast<int64_t>(state_->parameters[i].nbytes());
    if (state_->buckets.empty() || (bytes > 0 && bytes + size > bucket_bytes)) {
      state_->buckets.emplace_back();
      bytes = 0;
    }
    bytes += size;
    state_->buckets.back().parameters.push_back(i);
    state_->bucket_of[i] = state_->buckets.size() - 1;
  }
  for (auto& bucket : state_->buckets) {
    int64_t length = static_cast<int64_t>(bucket.parameters.size());
    for (const size_t i : bucket.parameters) length += state_->parameters[i].numel();
    bucket.flat = at::zeros({length}, at::TensorOptions(state_->parameters[bucket.parameters.front()].scalar_type()));
  }
  for (size_t i = 0; i < state_->parameters.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(
        state_->parameters[i], std::make_unique<WhenAccumulated>([state = state_.get(), i] { state->ready(i); }));
  }
}

GradientSum::~GradientSum() {
  for (at::Tensor& parameter : state_->parameters) torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
}

void GradientSum::begin() {
  const std::lock_guard lock(state_->mutex);
  state_->begun = true;
  state_->next = 0;
  state_->sent_early = 0;
  for (auto& bucket : state_->buckets) {
    bucket.waiting = bucket.parameters.size();
    bucket.sent = false;
  }
}

void GradientSum::finish() {
  if (!state_->begun) begin();  // nothing here had a target, elsewhere perhaps
  const std::lock_guard lock(state_->mutex);
  state_->begun = false;
  for (; state_->next < state_->buckets.size(); ++state_->next) state_->send(state_->buckets[state_->next]);
  for (auto& bucket : state_->buckets) state_->receive(bucket);
}

int64_t GradientSum::buckets() const { return static_cast<int64_t>(state_->buckets.size()); }
int64_t GradientSum::sent_early() const { return state_->sent_early; }

}  // namespace palimpsest::train
