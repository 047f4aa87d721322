// SPDX-License-Identifier: Apache-2.0
// `palimpsest plot` from outside: pictures of runs and of a memory, and what it says where there is nothing to draw.
#include <filesystem>

#include "palimpsest/core/files.h"
#include "tests/support/paths.h"

namespace palimpsest {
namespace {

namespace fs = std::filesystem;

class Plot : public testing::Test {
 protected:
  void SetUp() override {
    if (test::run_command("command -v gnuplot").exit_code != 0) GTEST_SKIP() << "no gnuplot (Debian: gnuplot-nox)";
  }
  void expect_picture(const std::string& name) const {
    for (const char* ending : {".svg", ".png"}) {
      const std::string path = folder_.path(name + ending);
      ASSERT_TRUE(fs::exists(path)) << path;
      EXPECT_GT(fs::file_size(path), 500U) << path;
    }
    EXPECT_FALSE(fs::exists(folder_.path(name + ".gnuplot")));
  }
  test::TemporaryFolder folder_;
};

TEST_F(Plot, DrawsTheCurvesOfRunsOverEachOther) {
  for (const std::string run : {"one", "it's two"}) {
    fs::create_directories(folder_.path(run));
    std::string lines;
    for (int step = 1; step <= 5; ++step)
      lines += R"({"step":)" + std::to_string(step) +
               R"(,"loss":2.5,"learning_rate":0.001,"grad_norm":1.5,"memory_gradient":{"norm":0.1}})" + "\n";
    lines += R"({"step":5,"eval":{"recall":{"loss":1.0,"targets":10,"recovered":0.5}}})"
             "\n"
             R"({"step":6,"lo)";  // a run that writes at this moment
    write_file_atomically(folder_.path(run + "/metrics.jsonl"), lines);
  }
  const auto result = test::run_command(test::program() + " plot " + folder_.path("one") + " \"" +
                                        folder_.path("it's two") + "\" --out " + folder_.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* name : {"loss", "perplexity", "recovered", "learning_rate", "gradient_norm", "memory_gradient"})
    expect_picture(name);
}

TEST_F(Plot, ShowsAMemoryAtWork) {
  write_file_atomically(
      folder_.path("text.txt"),
      "In the beginning God created the heaven and the earth. And the earth was without form, and void; and "
      "darkness was upon the face of the deep. And the Spirit of God moved upon the face of the waters. And "
      "God said, Let there be light: and there was light. And God saw the light, that it was good.\n");
  const auto result =
      test::run_command(test::program() + " plot --model " + test::source_folder() + "/models/recall-small --file " +
                        folder_.path("text.txt") + " --out " + folder_.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* name : {"gate", "written", "read_0", "wrote_1"}) expect_picture(name);
}

TEST_F(Plot, SaysWhatIsMissing) {
  const std::pair<std::string, const char*> cases[] = {{folder_.path(), "no metrics.jsonl"},
                                                       {"", "run folders"},
                                                       {"--model " + test::fixture("folders/bart_plain"), "--file"}};
  for (const auto& [flags, part] : cases) {
    const auto result = test::run_command(test::program() + " plot " + flags);
    EXPECT_EQ(result.exit_code, 2) << flags << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  }
}

}  // namespace
}  // namespace palimpsest
