// SPDX-License-Identifier: Apache-2.0
// The communicator over MPI. PALIMPSEST_WITH_MPI is set for this file alone, where CMake found MPI.
#include <cstdlib>

#include "palimpsest/train/parallel.h"

#ifdef PALIMPSEST_WITH_MPI
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <thread>
#endif

namespace palimpsest::train {

namespace {

/// How many processes the launcher's variables speak of.
int64_t launched() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"}) {
    if (const char* value = std::getenv(name)) return std::atoll(value);
  }
  return 1;
}

}  // namespace

#ifndef PALIMPSEST_WITH_MPI

std::string mpi_version() { return ""; }

std::shared_ptr<Communicator> connect(const ConnectOptions&) {
  if (const int64_t count = launched(); count > 1) {
    throw usage_error(fmt::format("started as {} processes, but this program was built without MPI", count), "mpirun",
                      "install Open MPI (Debian: apt-get install libopenmpi-dev openmpi-bin) and build again");
  }
  return single_process();
}

#else

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kBeat = std::chrono::milliseconds(50);
constexpr double kShortSilence = 0.5;  ///< seconds; mpirun kills a second after it has asked to end

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

MPI_Datatype type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return MPI_FLOAT;
    case at::kDouble:
      return MPI_DOUBLE;
    case at::kLong:
      return MPI_INT64_T;
    default:
      throw internal_error("processes exchange float32, float64 and int64 only");
  }
}

/// One thread makes all calls of MPI, its start and end included: MPI_THREAD_FUNNELED is enough, and collectives
/// advance while the caller computes.
class MpiCommunicator : public Communicator {
 public:
  explicit MpiCommunicator(ConnectOptions options) : options_(std::move(options)) {
    std::promise<void> started;
    auto is_started = started.get_future();
    thread_ = std::thread([this, &started] { serve(started); });
    try {
      is_started.get();
    } catch (...) {
      thread_.join();
      throw;
    }
  }

  ~MpiCommunicator() override {
    // An orderly end is one that all reach: then MPI may be ended too. Else the launcher sees a process that went away.
    bool orderly = std::uncaught_exceptions() == 0;
    try {
      if (orderly && watching_) barrier();
    } catch (const Error&) {
      orderly = false;
    }
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      orderly_ = orderly && watching_;
    }
    wake_.notify_all();
    thread_.join();
  }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }

  std::unique_ptr<Pending> start_sum(const at::Tensor& tensor) override {
    check(tensor);
    return start([tensor](MPI_Comm group, MPI_Request* request) {
      return MPI_Iallreduce(MPI_IN_PLACE, tensor.data_ptr(), static_cast<int>(tensor.numel()), type_of(tensor), MPI_SUM,
                            group, request);
    });
  }

  at::Tensor gather(const at::Tensor& tensor) override {
    check(tensor);
    std::vector<int64_t> sizes = tensor.sizes().vec();
    sizes.insert(sizes.begin(), size_);
    const at::Tensor all = at::empty(sizes, tensor.options());
    start([tensor, all](MPI_Comm group, MPI_Request* request) {
      const int count = static_cast<int>(tensor.numel());
      return MPI_Iallgather(tensor.data_ptr(), count, type_of(tensor), all.data_ptr(), count, type_of(tensor), group,
                            request);
    })->wait();
    return all;
  }

  void broadcast(const at::Tensor& tensor, int64_t root) override {
    check(tensor);
    start([tensor, root](MPI_Comm group, MPI_Request* request) {
      return MPI_Ibcast(tensor.data_ptr(), static_cast<int>(tensor.numel()), type_of(tensor), static_cast<int>(root),
                        group, request);
    })->wait();
  }

  void barrier() override {
    start([](MPI_Comm group, MPI_Request* request) { return MPI_Ibarrier(group, request); })->wait();
  }

  void stop_watching() override { watching_ = false; }

 private:
  using Start = std::function<int(MPI_Comm, MPI_Request*)>;
  struct Job {
    Start start;
    MPI_Request request = MPI_REQUEST_NULL;
    std::promise<void> done;
  };
  struct Waiting : Pending {
    explicit Waiting(std::future<void> f) : future(std::move(f)) {}
    void wait() override { future.get(); }
    std::future<void> future;
  };

  static void check(const at::Tensor& tensor) {
    if (!tensor.is_contiguous() || !tensor.device().is_cpu() || tensor.numel() > (int64_t{1} << 31) - 1)
      throw internal_error("processes exchange contiguous tensors on the CPU of fewer than 2^31 numbers");
  }

  std::unique_ptr<Pending> start(Start what) {
    auto job = std::make_unique<Job>();
    job->start = std::move(what);
    auto waiting = std::make_unique<Waiting>(job->done.get_future());
    {
      const std::lock_guard lock(mutex_);
      if (failure_) throw *failure_;
      jobs_.push_back(std::move(job));
    }
    wake_.notify_all();
    return waiting;
  }

  void serve(std::promise<void>& started) {
    int provided = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
      started.set_exception(std::make_exception_ptr(internal_error("MPI could not start", "mpirun")));
      return;
    }
    int rank = 0, size = 0;
    MPI_Comm_dup(MPI_COMM_WORLD, &group_);
    MPI_Comm_dup(MPI_COMM_WORLD, &beats_);
    MPI_Comm_set_errhandler(group_, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(beats_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(group_, &rank);
    MPI_Comm_size(group_, &size);
    rank_ = rank;
    size_ = size;
    heard_ = sent_ = Clock::now();
    listen();
    started.set_value();

    std::deque<std::unique_ptr<Job> > running;
    auto busy_since = Clock::now();
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        if (jobs_.empty() && running.empty() && !ending_) wake_.wait_for(lock, std::chrono::milliseconds(10));
        if (ending_ && (!orderly_ || (jobs_.empty() && running.empty()))) break;
        while (!jobs_.empty()) {
          if (running.empty()) busy_since = Clock::now();
          running.push_back(std::move(jobs_.front()));
          jobs_.pop_front();
          if (running.back()->start(group_, &running.back()->request) != MPI_SUCCESS) fail("MPI could not begin");
        }
      }
      if (size_ > 1) beat();
      bool any_done = false;
      for (auto job = running.begin(); job != running.end() && !failed_;) {
        int done = 0;
        if (MPI_Test(&(*job)->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) fail("MPI lost the connection");
        if (failed_ || !done) {
          ++job;
          continue;
        }
        (*job)->done.set_value();
        job = running.erase(job);
        any_done = true;
      }
      if (failed_) {
        const std::lock_guard lock(mutex_);
        for (auto& job : jobs_) running.push_back(std::move(job));
        jobs_.clear();
        for (auto& job : running) job->done.set_exception(std::make_exception_ptr(*failure_));
        running.clear();
        if (ending_) break;
        continue;
      }
      if (any_done) busy_since = Clock::now();
      if (!running.empty()) {
        // Spinning would take a core from the computation; sleeping at once would cost small sums their speed.
        if (seconds_since(busy_since) < 100e-6) {
          std::this_thread::yield();
        } else {
          std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
      }
    }
    if (orderly_) {
      MPI_Cancel(&ear_);
      MPI_Request_free(&ear_);
      MPI_Finalize();
    }
  }

  void listen() {
    if (size_ == 1) return;
    const int before = static_cast<int>((rank_ + size_ - 1) % size_);
    if (MPI_Irecv(&heard_byte_, 1, MPI_CHAR, before, 0, beats_, &ear_) != MPI_SUCCESS) fail("MPI lost the connection");
  }

  /// Signs of life go round in a ring: each process tells the next and listens to the one before.
  void beat() {
    if (failed_ || !watching_) return;
    int done = 0;
    while (!failed_ && MPI_Test(&ear_, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done) {
      heard_ = Clock::now();
      listen();
    }
    if (Clock::now() - sent_ >= kBeat) {
      MPI_Test(&mouth_, &done, MPI_STATUS_IGNORE);
      if (done) MPI_Isend(&said_byte_, 1, MPI_CHAR, static_cast<int>((rank_ + 1) % size_), 0, beats_, &mouth_);
      // A thread that itself did not run for long heard nothing either.
      if (seconds_since(sent_) > 0.2) heard_ = std::max(heard_, Clock::now() - kBeat);
      sent_ = Clock::now();
    }
    const bool asked = options_.asked_to_end && options_.asked_to_end();
    if (seconds_since(heard_) > (asked ? std::min(kShortSilence, options_.peer_timeout) : options_.peer_timeout))
      fail(fmt::format("process {} of {} is gone", (rank_ + size_ - 1) % size_, size_));
  }

  void fail(const std::string& problem) {
    if (failed_.exchange(true)) return;
    failure_ =
        std::make_unique<Error>(internal_error(problem, fmt::format("process {} of {}", rank_, size_),
                                               "the last checkpoint is whole: the same command goes on from it"));
    if (options_.on_loss && watching_) options_.on_loss(*failure_);
  }

  ConnectOptions options_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::unique_ptr<Job> > jobs_;
  bool ending_ = false, orderly_ = false;
  std::atomic<bool> watching_ = true, failed_ = false;
  std::unique_ptr<Error> failure_;
  MPI_Comm group_ = MPI_COMM_NULL, beats_ = MPI_COMM_NULL;
  MPI_Request ear_ = MPI_REQUEST_NULL, mouth_ = MPI_REQUEST_NULL;
  char heard_byte_ = 0, said_byte_ = 0;
  Clock::time_point heard_, sent_;
  int64_t rank_ = 0, size_ = 1;
};

}  // namespace

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<size_t>(length));
  return all.substr(0, all.find(','));
}

std::shared_ptr<Communicator> connect(const ConnectOptions& options) {
  if (!(options.peer_timeout > 0))
    throw usage_error(fmt::format("peer_timeout is {}", options.peer_timeout), "", "give a number of seconds above 0");
  if (launched() <= 1) return single_process();
  return std::make_shared<MpiCommunicator>(options);
}

#endif

}  // namespace palimpsest::train
