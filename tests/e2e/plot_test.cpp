// SPDX-License-Identifier: Apache-2.0
// `palimpsest plot` from outside: pictures of runs and of a memory, and what it says where there is nothing to draw.
#include <filesystem>

#include "palimpsest/core/files.h"
#include "palimpsest/core/json.h"
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

TEST_F(Plot, DrawsEvaluationsOverEachOther) {
  const auto group = [](int first, int last, double ppl, bool difference) {
    Json json = {{"first", first}, {"last", last}, {"targets", 1000 / last}, {"ppl", ppl}, {"documents", 5}};
    json["interval"] = {{"ppl", {ppl * 0.9, ppl * 1.1}}};
    if (difference)
      json["difference"] = {{"nll_per_target", 0.1 * first},
                            {"interval", {{"nll_per_target", {0.05 * first, 0.2 * first}}}}};
    return json;
  };
  const auto result_of = [&](const std::string& task, int distance) {
    Json json = {{"model", "runs/one"}, {"task", task}, {"distance", distance}, {"carry", "keep"}, {"place", "turn"}};
    json["by_place"] = {group(1, 1, 40, false), group(2, 3, 35, false), group(4, 7, 30, false)};
    json["by_session"] = {group(1, 1, 40, false), group(2, 2, 30, false)};
    json["recall"] = {{"share", 0.9 / distance}, {"interval", {{"share", {0.8 / distance, 0.95 / distance}}}}};
    json["compare"] = {{{"carry", "reset"}, {"recall", {{"share", 0.02}}}}};
    json["compare"][0]["by_place"] = {group(1, 1, 40, true), group(2, 3, 39, true), group(4, 7, 38, true)};
    json["compare"][0]["by_session"] = {group(1, 1, 40, true), group(2, 2, 39, true)};
    return json;
  };
  write_file_atomically(folder_.path("a.json"), result_of("recall", 1).dump() + "\n" + result_of("recall:2", 2).dump());
  Json plain = result_of("next", 1);  // without recall, sessions or comparison
  for (const char* key : {"recall", "by_session", "compare", "distance"}) plain.erase(key);
  write_file_atomically(folder_.path("it's b.json"), plain.dump(2));
  const auto result = test::run_command(test::program() + " plot --eval " + folder_.path("a.json") + " \"" +
                                        folder_.path("it's b.json") + "\" --out " + folder_.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* name : {"perplexity_by_place_recall", "gap_by_place_recall-2", "perplexity_by_session_recall",
                           "gap_by_session_recall", "perplexity_by_place_next", "given_back"})
    expect_picture(name);
  EXPECT_FALSE(fs::exists(folder_.path("gap_by_place_next.svg")));
  const std::string svg = read_file(folder_.path("perplexity_by_place_recall-2.svg"));
  for (const char* part : {"recall:2: perplexity by turn", "keep (a.json)", "reset (a.json)", "4–7"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  EXPECT_NE(read_file(folder_.path("given_back.svg")).find("runs/one, reset"), std::string::npos);
  // One task alone has its picture under its plain name; files lie over each other.
  write_file_atomically(folder_.path("d.json"), plain.dump());
  ASSERT_EQ(test::run_command(test::program() + " plot --eval " + folder_.path("d.json") + " \"" +
                              folder_.path("it's b.json") + "\" --out " + folder_.path())
                .exit_code,
            0);
  expect_picture("perplexity_by_place");
  EXPECT_NE(read_file(folder_.path("perplexity_by_place.svg")).find("keep (d.json)"), std::string::npos);
  write_file_atomically(folder_.path("c.json"), "{\"loss\": 1}");
  const auto refused = test::run_command(test::program() + " plot --eval " + folder_.path("c.json"));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("is not what eval --json prints"), std::string::npos) << refused.err;
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
