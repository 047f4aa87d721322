// SPDX-License-Identifier: Apache-2.0
// `mpirun -n 2 palimpsest train …` from outside: the numbers of one process, resuming, and a process that dies.
#include "palimpsest/train/parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "palimpsest/checkpoint/model_folder.h"
#include "palimpsest/checkpoint/safetensors.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/json.h"
#include "palimpsest/core/random.h"
#include "tests/support/paths.h"
#include "tests/support/tensors.h"

namespace palimpsest {
namespace {

using ::testing::HasSubstr;

class Mpirun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (train::mpi_version().empty()) GTEST_SKIP() << "built without MPI (Debian: libopenmpi-dev openmpi-bin)";
    if (test::run_command("command -v mpirun").exit_code != 0) GTEST_SKIP() << "no mpirun (Debian: openmpi-bin)";
    Random random(1);
    std::string text;
    for (int d = 0; d < 40; ++d) {
      for (int64_t w = 30 + random.below(30); w > 0; --w) {
        for (int64_t c = 1 + random.below(5); c >= 0; --c) text += static_cast<char>('a' + random.below(12));
        text += w > 1 ? ' ' : '\n';
      }
    }
    write_file_atomically(folder_.path("text.txt"), text);
    write_file_atomically(
        folder_.path("recipe.toml"),
        "vocab_size = 300\nmemory = \"membart:4\"\nd_model = 16\nheads = 2\nffn_dim = 24\nencoder_layers = 1\n"
        "decoder_layers = 1\nsegment = 8\nlanes = 4\ntime_horizon = 2\nmax_steps = 6\neval_steps = 0\n"
        "logging_steps = 1\ndocument = \"line\"\ntasks = {recall = 0.5, next = 0.5}\nauxiliary_weight = 0.5\n");
  }

  /// The command of a training run in so many processes.
  std::string command(int processes, const std::string& run, const std::string& more) const {
    const std::string launcher =
        processes == 1 ? "OMP_NUM_THREADS=1 "
                       : fmt::format(
                             "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 timeout 120 "
                             "mpirun --oversubscribe -n {} ",
                             processes);
    return fmt::format("{}{} train {} --data {} --output-dir {} {}", launcher, test::program(),
                       folder_.path("recipe.toml"), folder_.path("text.txt"), folder_.path(run), more);
  }

  std::vector<std::pair<std::string, at::Tensor>> weights(const std::string& checkpoint) const {
    const auto file = checkpoint::Safetensors::open(folder_.path(checkpoint + "/model.safetensors"));
    std::vector<std::pair<std::string, at::Tensor>> all;
    for (const auto& info : file.tensors()) all.emplace_back(info.name, file.tensor(info.name).clone());
    return all;
  }
  void expect_same(const std::string& a, const std::string& b, double tolerance) const {
    const auto left = weights(a), right = weights(b);
    ASSERT_EQ(left.size(), right.size());
    for (size_t i = 0; i < left.size(); ++i)
      test::expect_close(left[i].second, right[i].second, tolerance, left[i].first);
  }

  test::TemporaryFolder folder_;
};

TEST_F(Mpirun, TwoProcessesHaveTheGradientsOfOne) {
  // With a large epsilon Adam's first step is the gradient itself, up to a factor: weights compare gradients.
  for (const auto& [dtype, tolerance] : {std::pair{"float64", 1e-10}, {"float32", 3e-5}}) {
    const std::string flags = fmt::format(
        "--dtype {} --max-steps 1 --adam-epsilon 1000 --learning-rate 1000 --warmup-steps 0 "
        "--max-grad-norm 0 --weight-decay 0 --save-steps 0",
        dtype);
    const std::string one = fmt::format("one-{}", dtype), two = fmt::format("two-{}", dtype);
    ASSERT_EQ(test::run_command(command(1, one, flags)).exit_code, 0);
    const auto run = test::run_command(command(2, two, flags));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.err, HasSubstr("2 processes, 2 of 4 lanes each"));
    expect_same(two + "/checkpoint-1", one + "/checkpoint-1", tolerance);
  }
}

TEST_F(Mpirun, ARunGoesOnWithAnotherNumberOfProcesses) {
  const std::string flags = "--dtype float64 --adam-epsilon 1e-3";
  ASSERT_EQ(test::run_command(command(1, "whole", flags)).exit_code, 0);
  ASSERT_EQ(test::run_command(command(2, "parts", flags + " --max-steps 6 --save-steps 3")).exit_code, 0);
  std::filesystem::remove_all(folder_.path("parts/checkpoint-6"));
  const auto resumed = test::run_command(command(1, "parts", flags));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("the checkpoint was made by 2 processes, now there are 1"));
  expect_same("parts/checkpoint-6", "whole/checkpoint-6", 1e-10);
  std::ifstream lines(folder_.path("parts/metrics.jsonl"));
  int64_t step = 0;
  for (std::string line; std::getline(lines, line);) EXPECT_EQ(Json::parse(line)["step"].get<int64_t>(), ++step);
  EXPECT_EQ(step, 6);
}

TEST_F(Mpirun, ADeadProcessEndsTheRunAndLeavesTheLastCheckpointWhole) {
  // The victim is the process of rank 1, found by what mpirun writes into its environment.
  const std::string kill = "for i in $(seq 600); do sleep 0.1; ls -d " + folder_.path("run") +
                           "/checkpoint-* 2>/dev/null | grep -qvF .tmp- && break; done; "
                           "for p in /proc/[0-9]*; do if grep -qzx OMPI_COMM_WORLD_RANK=1 $p/environ 2>/dev/null && "
                           "grep -qzF " +
                           folder_.path("run") + " $p/cmdline 2>/dev/null; then kill -9 ${p#/proc/}; fi; done";
  const auto run = test::run_command("( " + kill + " ) & " + command(2, "run", "--max-steps 1000000 --save-steps 10") +
                                     "; code=$?; wait; exit $code");
  EXPECT_NE(run.exit_code, 0);
  EXPECT_NE(run.exit_code, 124) << "it hung";
  EXPECT_THAT(run.err, HasSubstr("error: process 1 of 2 is gone"));
  EXPECT_THAT(run.err, HasSubstr("the last checkpoint is whole"));
  const auto last =
      test::run_command("ls -d " + folder_.path("run") + "/checkpoint-* | grep -vF .tmp- | sort -V | tail -1");
  const std::string path = last.out.substr(0, last.out.find('\n'));
  EXPECT_NO_THROW(checkpoint::load_model(path));
  const int64_t step = read_json(path + "/trainer_state.json")["global_step"].get<int64_t>();
  const auto resumed = test::run_command(command(2, "run", fmt::format("--max-steps {}", step + 3)));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
}

TEST_F(Mpirun, AnErrorOfAllIsSaidOnce) {
  const auto run = test::run_command(command(2, "bad", "--lanes 3"));
  EXPECT_EQ(run.exit_code, 2);
  const std::string said = "error: 3 lanes do not divide among 2 processes";
  const size_t first = run.err.find(said);
  ASSERT_NE(first, std::string::npos) << run.err;
  EXPECT_EQ(run.err.find(said, first + 1), std::string::npos) << run.err;
}

}  // namespace
}  // namespace palimpsest
