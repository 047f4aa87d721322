// SPDX-License-Identifier: Apache-2.0
// Whole reads, maps, and writes that are complete or absent: also when the writer throws or is killed.
#include "palimpsest/core/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <stdexcept>
#include <thread>

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"
#include "tests/support/paths.h"

namespace fs = std::filesystem;

namespace palimpsest {
namespace {

using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error_of(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(ReadFile, GivesEveryByteOrSaysWhyNot) {
  const TemporaryFolder folder;
  const std::string bytes("a\0b\r\n\xFF", 6);
  write_file_atomically(folder.path("f"), bytes);
  EXPECT_EQ(read_file(folder.path("f")), bytes);
  write_file_atomically(folder.path("f"), "");
  EXPECT_EQ(read_file(folder.path("f")), "");
  EXPECT_THAT(error_of([&] { read_file(folder.path("absent")); }),
              AllOf(HasSubstr("No such file"), HasSubstr("absent")));
  EXPECT_THAT(error_of([&] { read_file(folder.path()); }), HasSubstr("is a folder, a file was expected"));
}

TEST(WriteFile, ReplacesTheOldOneAndLeavesNothingElse) {
  const TemporaryFolder folder;
  write_file_atomically(folder.path("f"), std::string(100000, 'x'));
  write_file_atomically(folder.path("f"), "new");
  EXPECT_EQ(read_file(folder.path("f")), "new");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("f"));
}

TEST(WriteFile, TakesPieces) {
  const TemporaryFolder folder;
  write_file_atomically(folder.path("f"), [](const AppendBytes& append) {
    append("one ");
    append("");
    append("two");
  });
  EXPECT_EQ(read_file(folder.path("f")), "one two");
}

TEST(WriteFile, KeepsTheOldFileWhereTheWriterThrows) {
  const TemporaryFolder folder;
  write_file_atomically(folder.path("f"), "old");
  EXPECT_THROW(write_file_atomically(folder.path("f"),
                                     [](const AppendBytes& append) {
                                       append("half of the ne");
                                       throw std::runtime_error("out of ideas");
                                     }),
               std::runtime_error);
  EXPECT_EQ(read_file(folder.path("f")), "old");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("f"));
}

TEST(WriteFile, NamesTheFileItWasAskedForInErrors) {
  const TemporaryFolder folder;
  const std::string message = error_of([&] { write_file_atomically(folder.path("absent/f"), "x"); });
  EXPECT_THAT(message, AllOf(HasSubstr("cannot create: No such file"), HasSubstr("at:  " + folder.path("absent/f"))));
  EXPECT_THAT(message, ::testing::Not(HasSubstr("tmp-")));
  fs::create_directory(folder.path("folder"));
  EXPECT_THAT(error_of([&] { write_file_atomically(folder.path("folder"), "x"); }), HasSubstr("Is a directory"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("folder"));
}

TEST(WriteFolder, ReplacesTheOldOneWhole) {
  const TemporaryFolder folder;
  for (const std::string name : {"a", "b"}) {
    write_folder_atomically(folder.path("out/"), [&](const std::string& temporary) {
      write_file_atomically(temporary + "/" + name, name);
      fs::create_directory(temporary + "/deeper");
      write_file_atomically(temporary + "/deeper/x", name);
    });
    EXPECT_THAT(names_in(folder.path()), ElementsAre("out"));
    EXPECT_THAT(names_in(folder.path("out")), ElementsAre(name, "deeper"));
    EXPECT_EQ(read_file(folder.path("out/deeper/x")), name);
  }
}

TEST(WriteFolder, KeepsTheOldOneWhereTheWriterThrows) {
  const TemporaryFolder folder;
  write_folder_atomically(folder.path("out"),
                          [](const std::string& path) { write_file_atomically(path + "/a", "old"); });
  EXPECT_THROW(write_folder_atomically(folder.path("out"),
                                       [](const std::string& path) {
                                         write_file_atomically(path + "/a", "new");
                                         throw std::runtime_error("out of ideas");
                                       }),
               std::runtime_error);
  EXPECT_EQ(read_file(folder.path("out/a")), "old");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("out"));
}

/// Runs `work` without end in a child process and kills it after some milliseconds.
void run_and_kill(const std::function<void(int)>& work, int64_t milliseconds) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      for (int i = 0;; ++i) work(i);
    } catch (...) {
    }
    ::_exit(3);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";
}

TEST(WriteFile, LeavesTheOldOrTheNewFileWhenKilled) {
  const TemporaryFolder folder;
  write_file_atomically(folder.path("f"), std::string(200000, 'a'));
  Random random(1);
  for (int round = 0; round < 20; ++round) {
    run_and_kill(
        [&](int i) { write_file_atomically(folder.path("f"), std::string(200000, static_cast<char>('a' + i % 26))); },
        1 + random.below(25));
    const std::string bytes = read_file(folder.path("f"));
    ASSERT_EQ(bytes.size(), 200000U);
    ASSERT_EQ(bytes, std::string(200000, bytes[0]));
  }
  remove_stale_temporaries(folder.path());
  EXPECT_THAT(names_in(folder.path()), ElementsAre("f"));
}

TEST(WriteFolder, LeavesTheOldOrTheNewFolderWhenKilled) {
  const TemporaryFolder folder;
  const auto write = [&](int i) {
    write_folder_atomically(folder.path("out"), [&](const std::string& path) {
      for (const char* name : {"/a", "/b", "/c"}) write_file_atomically(path + name, std::to_string(i));
    });
  };
  write(-1);
  Random random(2);
  for (int round = 0; round < 20; ++round) {
    run_and_kill(write, 1 + random.below(60));
    ASSERT_THAT(names_in(folder.path("out")), ElementsAre("a", "b", "c"));
    ASSERT_EQ(read_file(folder.path("out/a")), read_file(folder.path("out/b")));
    ASSERT_EQ(read_file(folder.path("out/a")), read_file(folder.path("out/c")));
  }
  remove_stale_temporaries(folder.path());
  EXPECT_THAT(names_in(folder.path()), ElementsAre("out"));
}

TEST(MappedFile, ShowsTheFileAndOutlivesIt) {
  const TemporaryFolder folder;
  write_file_atomically(folder.path("f"), "some bytes");
  const auto file = MappedFile::open(folder.path("f"));
  write_file_atomically(folder.path("f"), "others");
  fs::remove(folder.path("f"));
  EXPECT_EQ(file->text(), "some bytes");
  EXPECT_EQ(file->size(), 10U);
  EXPECT_EQ(file->path(), folder.path("f"));
}

TEST(MappedFile, TakesEmptyFilesAndRefusesFolders) {
  const TemporaryFolder folder;
  write_file_atomically(folder.path("f"), "");
  EXPECT_EQ(MappedFile::open(folder.path("f"))->text(), "");
  EXPECT_THAT(error_of([&] { MappedFile::open(folder.path()); }), HasSubstr("is a folder"));
  EXPECT_THAT(error_of([&] { MappedFile::open(folder.path("absent")); }), HasSubstr("No such file"));
}

TEST(ResidentBytes, AreThoseOfThisProcess) {
  const ResidentBytes before = resident_bytes();
  EXPECT_GT(before.now, 1 << 20);
  EXPECT_GE(before.peak, before.now);
}

}  // namespace
}  // namespace palimpsest
