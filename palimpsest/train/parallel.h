// SPDX-License-Identifier: Apache-2.0
// Training in several processes: what they say to each other, and the sum of their gradients on the way.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "palimpsest/core/error.h"

namespace palimpsest::train {

/// A group of processes that run the same program. All of them make the same calls in the same order. Tensors are
/// contiguous, on the CPU, and of the same shape everywhere; float32, float64 and int64.
/// A call that waits for a process that is gone throws an internal error that says so.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// The one process that writes files and talks.
  bool leads() const { return rank() == 0; }

  /// Begins to replace `tensor` by its sum over all processes, the same bits in each. It may be touched again once
  /// wait() of what is returned came back.
  class Pending {
   public:
    virtual ~Pending() = default;
    virtual void wait() = 0;
  };
  virtual std::unique_ptr<Pending> start_sum(const at::Tensor& tensor) = 0;
  /// [P, ..]: everybody's `tensor`, by rank.
  virtual at::Tensor gather(const at::Tensor& tensor) = 0;
  /// Replaces `tensor` by that of process `root`.
  virtual void broadcast(const at::Tensor& tensor, int64_t root) = 0;
  /// Returns once all have called it.
  virtual void barrier() = 0;
  /// From now on the end of other processes is no error: for one that is about to end with an error of its own.
  virtual void stop_watching() {}

  void sum(const at::Tensor& tensor) { start_sum(tensor)->wait(); }
  double broadcast(double value, int64_t root = 0);
  std::string broadcast(const std::string& text, int64_t root = 0);
  /// True everywhere where it is true somewhere.
  bool any(bool value);
};

/// One process: everything returns at once.
std::shared_ptr<Communicator> single_process();

struct ConnectOptions {
  double peer_timeout = 60;  ///< seconds without a sign of life after which a process counts as dead
  /// True once this process was asked to end. mpirun does that to all when one dies, so then a silence of 0.5 s is
  /// enough, and there is time to say what happened.
  std::function<bool()> asked_to_end = {};
  /// Called on the communicator's own thread as soon as another process is lost, whatever this one is doing. Empty:
  /// the next call that waits throws.
  std::function<void(const Error&)> on_loss = {};
};

/// The processes that mpirun started this program as; single_process() where there is but one. A usage error where
/// there are several and the program was built without MPI.
/// Open MPI moves data only inside its own calls, so one thread makes all of them: sums go on while the caller
/// computes, and signs of life are sent whatever it does.
std::shared_ptr<Communicator> connect(const ConnectOptions& options = {});
/// Whether connect() can join several processes, and what it was built with: "Open MPI 4.1.4" or "".
std::string mpi_version();

/// Sums gradients over processes, in buckets that leave as soon as the backward pass has filled them.
class GradientSum {
 public:
  /// Parameters that require no gradient are left out. Hooks stay in the parameters until the end of this object.
  GradientSum(const std::vector<at::Tensor>& parameters, std::shared_ptr<Communicator> communicator,
              int64_t bucket_bytes = int64_t{8} << 20);
  ~GradientSum();
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;

  /// The next backward pass is the step's last one: what it finishes may leave.
  void begin();
  /// Sends what is left and waits: .grad() of every parameter is then the sum over all processes; undefined where it
  /// is so in every process.
  void finish();
  int64_t buckets() const;
  /// Buckets of the last step that left before finish() was called.
  int64_t sent_early() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace palimpsest::train
