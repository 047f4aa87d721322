// SPDX-License-Identifier: Apache-2.0
// Several processes, here played by threads: gradients in buckets, and the trainer's steps. tests/e2e runs real ones.
#include "palimpsest/train/parallel.h"

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <thread>

#include "palimpsest/checkpoint/model_folder.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/random.h"
#include "palimpsest/train/trainer.h"
#include "tests/support/paths.h"
#include "tests/support/tensors.h"
#include "tests/train/small_run.h"

namespace palimpsest::train {
namespace {

using test::expect_close;
using test::expect_identical;

/// What the threads of one group share.
struct Meeting {
  explicit Meeting(int64_t size) : given(static_cast<size_t>(size)), door(size) {}
  std::vector<at::Tensor> given;
  std::barrier<> door;
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Meeting> meeting, int64_t rank) : meeting_(std::move(meeting)), rank_(rank) {}
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return static_cast<int64_t>(meeting_->given.size()); }
  std::unique_ptr<Pending> start_sum(const at::Tensor& tensor) override {
    struct Sum : Pending {
      ThreadCommunicator* own;
      at::Tensor tensor;
      void wait() override {
        const at::NoGradGuard no_grad;
        tensor.copy_(own->gather(tensor).sum(0));
      }
    };
    auto sum = std::make_unique<Sum>();
    sum->own = this;
    sum->tensor = tensor;
    return sum;
  }
  at::Tensor gather(const at::Tensor& tensor) override {
    const at::NoGradGuard no_grad;
    meeting_->given[static_cast<size_t>(rank_)] = tensor.clone();
    meeting_->door.arrive_and_wait();
    const at::Tensor all = at::stack(meeting_->given);
    meeting_->door.arrive_and_wait();
    return all;
  }
  void broadcast(const at::Tensor& tensor, int64_t root) override { tensor.copy_(gather(tensor)[root]); }
  void barrier() override { meeting_->door.arrive_and_wait(); }

 private:
  std::shared_ptr<Meeting> meeting_;
  int64_t rank_;
};

/// Runs `work` on so many threads at once.
void in_parallel(int64_t size, const std::function<void(std::shared_ptr<Communicator>)>& work) {
  const auto meeting = std::make_shared<Meeting>(size);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] { work(std::make_shared<ThreadCommunicator>(meeting, rank)); });
  for (auto& thread : threads) thread.join();
}

/// Lanes that two and four processes can share, in float64 and without dropout: its draws are each process's own.
TrainOptions shared_options(const test::TemporaryFolder& folder, const std::string& run) {
  TrainOptions options = small_options(folder, run);
  options.model.dropout = 0;
  options.tasks.tasks = {{"recall", 0.5}, {"next", 0.5}};
  options.tasks.decoder_mask_rate = 0;
  options.lanes = 4;
  options.max_steps = 6;
  options.auxiliary_steps = 0;
  options.dtype = "float64";
  return options;
}

std::map<std::string, at::Tensor> gradients_of(const Trainer& trainer) {
  std::map<std::string, at::Tensor> all;
  for (const auto& entry : trainer.model().named_parameters())
    if (entry.value().grad().defined()) all[entry.key()] = entry.value().grad().detach().clone();
  return all;
}

TEST(Parallel, AnyNumberOfProcessesHasTheGradientsOfOne) {
  const test::TemporaryFolder folder;
  for (const bool replay : {false, true}) {
    for (const auto& [type, tolerance] : {std::pair{"float64", 1e-10}, {"float32", 3e-5}}) {
      std::map<std::string, at::Tensor> expected;
      std::map<int64_t, double> losses, norms;
      at::Tensor carried;
      for (const int64_t size : {1, 2, 4}) {
        TrainOptions options = shared_options(folder, fmt::format("run-{}-{}-{}", type, replay, size));
        options.dtype = type;
        options.memory_replay = replay;
        options.optimizer.max_grad_norm = 0;
        std::vector<std::map<std::string, at::Tensor>> found(static_cast<size_t>(size));
        in_parallel(size, [&](std::shared_ptr<Communicator> communicator) {
          Trainer trainer(options, {}, communicator);
          trainer.step();
          found[static_cast<size_t>(communicator->rank())] = gradients_of(trainer);
          if (communicator->leads()) {
            losses[size] = trainer.metrics()["loss"].get<double>();
            norms[size] = trainer.metrics()["memory_gradient"]["norm"].get<double>();
          }
          for (int more = 0; more < 2; ++more) trainer.step();
          trainer.save();
        });
        if (size == 1) expected = found[0];
        EXPECT_NEAR(losses[size], losses[1], tolerance);
        EXPECT_NEAR(norms[size], norms[1], tolerance);
        for (const auto& gradients : found) {
          ASSERT_EQ(gradients.size(), expected.size());
          for (const auto& [name, gradient] : expected)
            expect_close(gradients.at(name), gradient, tolerance, fmt::format("{} processes, {}", size, name));
        }
      }
    }
  }
}

TEST(Parallel, ACheckpointResumesWithAnotherNumberOfProcesses) {
  const test::TemporaryFolder folder;
  std::map<std::string, at::Tensor> expected;
  for (const auto& [first, second] : {std::pair{1, 1}, {1, 2}, {2, 4}, {4, 1}}) {
    TrainOptions options = shared_options(folder, fmt::format("run-{}-{}", first, second));
    for (const int64_t size : {first, second}) {
      in_parallel(size, [&](std::shared_ptr<Communicator> communicator) {
        Trainer trainer(options, {}, communicator);
        for (int i = 0; i < 3; ++i) trainer.step();
        trainer.save();
      });
    }
    const auto loaded = checkpoint::load_model(newest_checkpoint(options.output_dir));
    for (const auto& [name, tensor] : checkpoint::named_tensors(*loaded.model)) {
      if (first == 1 && second == 1) {
        expected[name] = tensor.clone();
      } else {
        expect_close(tensor, expected.at(name), 1e-10, fmt::format("{} then {}, {}", first, second, name));
      }
    }
  }
}

TEST(Parallel, LanesMustDivide) {
  const test::TemporaryFolder folder;
  TrainOptions options = shared_options(folder, "run");
  options.lanes = 3;
  in_parallel(2, [&](std::shared_ptr<Communicator> communicator) {
    try {
      Trainer trainer(options, {}, communicator);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("3 lanes do not divide among 2 processes"), std::string::npos);
    }
  });
}

TEST(Parallel, BucketsLeaveDuringTheBackwardPass) {
  in_parallel(2, [](std::shared_ptr<Communicator> communicator) {
    std::vector<at::Tensor> layers;
    for (uint64_t i = 0; i < 6; ++i) layers.push_back(test::randn({8, 8}, i).requires_grad_(true));
    at::Tensor unused = test::randn({3}, 9).requires_grad_(true), one_sided = test::randn({8}, 10).requires_grad_(true);
    std::vector<at::Tensor> all = {unused, one_sided};
    all.insert(all.end(), layers.begin(), layers.end());
    GradientSum sum(all, communicator, 2 * 64 * 8);
    const auto loss = [&](int64_t rank) {
      at::Tensor x = test::randn({4, 8}, 20 + static_cast<uint64_t>(rank));
      for (const auto& layer : layers) x = at::tanh(x.mm(layer));
      return rank == 1 ? (x * one_sided).sum() : x.sum();
    };
    for (int repeat = 0; repeat < 2; ++repeat) {
      for (auto& tensor : all) tensor.mutable_grad() = at::Tensor();
      sum.begin();
      loss(communicator->rank()).backward();
      EXPECT_GE(sum.sent_early(), 2);
      sum.finish();
      EXPECT_FALSE(unused.grad().defined());  // nowhere
      ASSERT_TRUE(one_sided.grad().defined());
      std::vector<at::Tensor> inputs = layers;
      inputs.push_back(one_sided);
      const auto expected = torch::autograd::grad({loss(0) + loss(1)}, inputs);
      for (size_t i = 0; i < inputs.size(); ++i) expect_close(inputs[i].grad(), expected[i], 1e-12);
    }
    // A process in which nothing has a target takes part all the same.
    for (auto& tensor : all) tensor.mutable_grad() = at::Tensor();
    if (communicator->leads()) {
      sum.begin();
      loss(0).backward();
    }
    sum.finish();
    const auto expected = torch::autograd::grad({loss(0)}, layers);
    for (size_t i = 0; i < layers.size(); ++i) expect_close(layers[i].grad(), expected[i], 1e-12);
    EXPECT_FALSE(one_sided.grad().defined());
  });
}

TEST(Parallel, WordsAndNumbersAreTheFirstProcesss) {
  in_parallel(3, [](std::shared_ptr<Communicator> communicator) {
    EXPECT_EQ(communicator->broadcast(std::string(communicator->leads() ? "runs/näher" : "other")), "runs/näher");
    EXPECT_EQ(communicator->broadcast(std::string()), "");
    EXPECT_EQ(communicator->broadcast(static_cast<double>(communicator->rank()) + 0.5, 2), 2.5);
    EXPECT_TRUE(communicator->any(communicator->rank() == 1));
    EXPECT_FALSE(communicator->any(false));
  });
}

TEST(Parallel, WithoutALauncherThereIsOneProcess) {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) GTEST_SKIP() << "runs under mpirun";
  EXPECT_EQ(connect()->size(), 1);
  EXPECT_TRUE(single_process()->leads());
}

TEST(Parallel, ALauncherWithoutMpiIsAnErrorThatNamesThePackage) {
  if (!mpi_version().empty()) GTEST_SKIP() << "built with " << mpi_version();
  ::setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  EXPECT_THROW(
      {
        try {
          connect();
        } catch (const Error& error) {
          EXPECT_EQ(error.exit_code(), 2);
          EXPECT_NE(std::string(error.what()).find("libopenmpi-dev"), std::string::npos);
          throw;
        }
      },
      Error);
  ::unsetenv("OMPI_COMM_WORLD_SIZE");
}

}  // namespace
}  // namespace palimpsest::train
