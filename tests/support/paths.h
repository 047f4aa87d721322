// SPDX-License-Identifier: Apache-2.0
// Where tests find their files, and a folder of their own to write in.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace palimpsest::test {

/// A file or folder below tests/fixtures of the source tree.
std::string fixture(const std::string& name);
/// A path below the shared folder, or "" where that is absent. Use SKIP_WITHOUT_SHARED first.
std::string shared(const std::string& name);

/// An empty folder that is removed at the end of the scope.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  std::string path(const std::string& name = "") const {
    return name.empty() ? folder_.string() : (folder_ / name).string();
  }

 private:
  std::filesystem::path folder_;
};

/// The program under test, and the root of the source tree.
std::string program();
std::string source_folder();

/// Runs a shell command; returns exit code, stdout and stderr.
struct CommandResult {
  int exit_code = 0;
  std::string out, err;
};
CommandResult run_command(const std::string& command);
/// The palimpsest program with these arguments.
CommandResult run_program(const std::string& arguments);

}  // namespace palimpsest::test

#define SKIP_WITHOUT_SHARED(name)               \
  if (::palimpsest::test::shared(name).empty()) \
  GTEST_SKIP() << "needs the shared folder (" << (name) << "); set PALIMPSEST_SHARED"
