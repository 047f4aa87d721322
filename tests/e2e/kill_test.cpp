// SPDX-License-Identifier: Apache-2.0
// A training and a conversation that are killed at random moments lose nothing: tools/kill_test.py in small.
#include <gtest/gtest.h>

#include "tests/support/paths.h"

namespace palimpsest {
namespace {

test::CommandResult kill(const std::string& part) {
  return test::run_command("python3 -B " + test::source_folder() + "/tools/kill_test.py --kills 5 --minutes 3 --only " +
                           part + " --program " + test::program());
}

TEST(Kill, ATrainingGoesOnFromItsLastCheckpoint) {
  const auto result = kill("train");
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

TEST(Kill, AConversationGoesOnFromItsLastFinishedTurn) {
  const auto result = kill("chat");
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

}  // namespace
}  // namespace palimpsest
