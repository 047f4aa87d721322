// SPDX-License-Identifier: Apache-2.0
#include "tests/support/paths.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "palimpsest/core/files.h"

namespace palimpsest::test {

std::string fixture(const std::string& name) { return std::string(PALIMPSEST_SOURCE_DIR) + "/tests/fixtures/" + name; }

std::string shared(const std::string& name) {
  std::string folder = shared_folder();
  if (folder.empty() && std::getenv("PALIMPSEST_SHARED") == nullptr) {
    folder = std::string(PALIMPSEST_SOURCE_DIR) + "/../shared";
  }
  const std::string path = folder + "/" + name;
  return std::filesystem::exists(path) ? path : "";
}

TemporaryFolder::TemporaryFolder() {
  static std::atomic<int> counter{0};
  folder_ = std::filesystem::temp_directory_path() /
            ("palimpsest-test-" + std::to_string(::getpid()) + "-" + std::to_string(counter++));
  std::filesystem::create_directories(folder_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string program() { return PALIMPSEST_PROGRAM; }
std::string source_folder() { return PALIMPSEST_SOURCE_DIR; }

CommandResult run_command(const std::string& command) {
  const TemporaryFolder folder;
  const int status = std::system(("( " + command + " ) >" + folder.path("out") + " 2>" + folder.path("err")).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(folder.path("out")),
          read_file(folder.path("err"))};
}

CommandResult run_program(const std::string& arguments) {
  return run_command(std::string(PALIMPSEST_PROGRAM) + " " + arguments);
}

}  // namespace palimpsest::test
