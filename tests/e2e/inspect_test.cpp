// SPDX-License-Identifier: Apache-2.0
// `palimpsest inspect` as scripts call it: exit codes, JSON, messages, for files and folders.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "palimpsest/checkpoint/safetensors.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/json.h"
#include "palimpsest/text/tokenizer.h"
#include "tests/support/paths.h"

namespace palimpsest {
namespace {

using checkpoint::save_safetensors;
using test::CommandResult;
using test::run_program;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Inspect, PrintsTheTensorsOfAFileAsJson) {
  const TemporaryFolder folder;
  const std::string path = folder.path("x.safetensors");
  save_safetensors(path, {{"b", at::ones({2, 3})}, {"a", at::ones({}, at::kBFloat16)}}, {{"format", "pt"}});
  const CommandResult result = run_program("inspect " + path + " --json");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(
      result.out,
      R"({"tensors":[{"name":"b","dtype":"F32","shape":[2,3],"bytes":24},{"name":"a","dtype":"BF16","shape":[],"bytes":2}],)"
      R"("metadata":{"format":"pt"}})"
      "\n");
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(run_program("inspect --json " + path).out, result.out) << "in any order";
}

TEST(Inspect, PrintsATableForPeople) {
  const TemporaryFolder folder;
  const std::string path = folder.path("x.safetensors");
  save_safetensors(path, {{"long.name.of.a.weight", at::ones({20, 300})}, {"a", at::ones({}, at::kBFloat16)}},
                   {{"format", "pt"}});
  const CommandResult result = run_program("inspect " + path);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, path +
                            "\n"
                            "name                   dtype  shape       bytes\n"
                            "long.name.of.a.weight  F32    [20, 300]  24,000\n"
                            "a                      BF16   []              2\n"
                            "2 tensors, 6,001 values, 24,002 bytes (23.4 KiB)\n"
                            "metadata format: pt\n");
}

TEST(Inspect, NamesFileTensorAndReasonWhereAFileIsBroken) {
  const TemporaryFolder folder;
  const std::string path = folder.path("x.safetensors");
  const std::string header = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})";
  write_file_atomically(path, std::string("\x36\0\0\0\0\0\0\0", 8) + header + "1234");
  for (const char* flags : {"", " --json"}) {
    const CommandResult result = run_program("inspect " + path + flags);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err, "error: shape [2] of F32 takes 8 bytes, but \"data_offsets\" [0, 4] give 4\n  at:  " + path +
                              ", tensor \"w\"\n");
  }
}

TEST(Inspect, AgreesWithEveryVerdictOfTheReference) {
  SKIP_WITHOUT_SHARED("field/golden_safetensors.json");
  const Json golden = read_json(test::shared("field/golden_safetensors.json"));
  const TemporaryFolder folder;
  const std::string path = folder.path("golden.safetensors");
  for (const auto& item : golden["cases"]) {
    SCOPED_TRACE(item["case"].get<std::string>());
    const std::string file = item["file_base64"].get<std::string>();
    ASSERT_EQ(test::run_command("printf %s '" + file + "' | base64 -d > " + path).exit_code, 0);
    const CommandResult result = run_program("inspect " + path + " --json");
    if (item["reference_verdict"] == "accept") {
      EXPECT_EQ(result.exit_code, 0) << result.err;
      EXPECT_EQ(parse_json(result.out, "stdout")["tensors"].size(), item["reference_info"].size());
    } else {
      EXPECT_EQ(result.exit_code, 2) << result.out;
      EXPECT_THAT(result.err, AllOf(HasSubstr("error: "), HasSubstr(path)));
    }
  }
}

TEST(Inspect, SaysThatAPathIsMissingOrUnknown) {
  const CommandResult absent = run_program("inspect /nowhere/x.safetensors");
  EXPECT_EQ(absent.exit_code, 2);
  EXPECT_THAT(absent.err, AllOf(HasSubstr("No such file"), HasSubstr("/nowhere/x.safetensors")));
  const TemporaryFolder folder;
  const CommandResult empty = run_program("inspect " + folder.path());
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_THAT(empty.err, AllOf(HasSubstr("nothing in this folder is known"), HasSubstr("fix: give a model folder")));
  const CommandResult none = run_program("inspect");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("PATH"));
}

/// A checkpoint as the trainer writes it, made of the least.
class InspectFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    save_safetensors(folder_.path("model.safetensors"), {{"w", at::ones({4})}});
    save_safetensors(folder_.path("optimizer.safetensors"),
                     {{"w.exp_avg", at::ones({4})}, {"w.exp_avg_sq", at::ones({4})}});
    write_file_atomically(folder_.path("config.json"),
                          R"({"model_type":"bart","d_model":64,"palimpsest":{"memory":"membart:16"}})");
    write_file_atomically(folder_.path("trainer_state.json"), R"({"step":1000,"data":{"epoch":3}})");
  }
  TemporaryFolder folder_;
};

TEST_F(InspectFolder, IsSummarizedAsJson) {
  const CommandResult result = run_program("inspect " + folder_.path() + " --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = parse_json(result.out, "stdout");
  EXPECT_EQ(json["tensors"].size(), 1U);
  EXPECT_EQ(json["config"].dump(), R"({"model_type":"bart","palimpsest":{"memory":"membart:16"}})");
  EXPECT_EQ(json["trainer_state"]["data"]["epoch"], 3);
  EXPECT_EQ(json["other_tensor_files"].dump(), R"([{"file":"optimizer.safetensors","tensors":2,"bytes":32}])");
}

TEST_F(InspectFolder, IsSummarizedForPeople) {
  const CommandResult result = run_program("inspect " + folder_.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("model_type: bart\n"), HasSubstr("palimpsest.memory: membart:16\n"),
                                HasSubstr("step: 1000\n"), HasSubstr("data.epoch: 3\n"),
                                HasSubstr("optimizer.safetensors: 2 tensors, 32 B\n"),
                                HasSubstr("1 tensor, 4 values, 16 bytes (16 B)\n")));
  write_file_atomically(folder_.path("config.json"), R"({"model_type":"bart"})");
  EXPECT_THAT(run_program("inspect " + folder_.path()).out, HasSubstr("a stock model"));
}

TEST_F(InspectFolder, IsRefusedWhereAnyPartIsBroken) {
  write_file_atomically(folder_.path("optimizer.safetensors"), "short");
  CommandResult result = run_program("inspect " + folder_.path());
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("5 bytes are too few"), HasSubstr("optimizer.safetensors")));
  write_file_atomically(folder_.path("config.json"), "{");
  result = run_program("inspect " + folder_.path());
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("not valid JSON"), HasSubstr("config.json")));
}

TEST_F(InspectFolder, ListsTheCheckpointsOfARun) {
  const TemporaryFolder run;
  for (const char* name : {"checkpoint-900", "checkpoint-1000", "checkpoint-best"})
    std::filesystem::create_directory(run.path(name));
  const CommandResult result = run_program("inspect " + run.path() + " --json");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "{\"checkpoints\":[\"checkpoint-900\",\"checkpoint-1000\"]}\n");
}

TEST_F(InspectFolder, ReadsShardsThroughTheIndex) {
  const TemporaryFolder folder;
  save_safetensors(folder.path("model-00001-of-00002.safetensors"), {{"a", at::ones({1})}});
  save_safetensors(folder.path("model-00002-of-00002.safetensors"), {{"b", at::ones({2})}});
  write_json(folder.path("model.safetensors.index.json"),
             {{"weight_map", {{"a", "model-00001-of-00002.safetensors"}, {"b", "model-00002-of-00002.safetensors"}}}});
  const CommandResult result = run_program("inspect " + folder.path() + " --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(parse_json(result.out, "stdout")["tensors"].size(), 2U);
  EXPECT_THAT(result.out, Not(HasSubstr("other_tensor_files")));
  std::filesystem::remove(folder.path("model-00002-of-00002.safetensors"));
  const CommandResult missing = run_program("inspect " + folder.path() + "/model.safetensors.index.json");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("1 of 2 shards are missing: \"model-00002-of-00002.safetensors\""));
}

TEST_F(InspectFolder, ShowsTheSizeOfTheVocabulary) {
  bool more = true;
  text::TrainTokenizerOptions options;
  options.vocab_size = 270;
  const auto tokenizer = text::train_tokenizer(
      [&](std::string& chunk) {
        chunk = "the thin thing then thinks\n";
        return std::exchange(more, false);
      },
      options);
  tokenizer->save(folder_.path());
  const CommandResult result = run_program("inspect " + folder_.path() + " --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = parse_json(result.out, "stdout");
  EXPECT_EQ(json["tokenizer"]["vocab_size"], tokenizer->vocab_size());
  EXPECT_EQ(json["tokenizer"]["added_tokens"]["<mask>"], 4);
  EXPECT_THAT(run_program("inspect " + folder_.path("tokenizer.json")).out,
              HasSubstr(fmt::format("vocab_size: {}\n", tokenizer->vocab_size())));
}

}  // namespace
}  // namespace palimpsest
