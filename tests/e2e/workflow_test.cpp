// SPDX-License-Identifier: Apache-2.0
// The program from outside: train, resume, evaluate, stream, generate, and what it says to bad input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "palimpsest/checkpoint/tensor_names.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/json.h"
#include "palimpsest/core/random.h"
#include "palimpsest/models/bart.h"
#include "tests/support/paths.h"

namespace palimpsest {
namespace {

using test::run_program;
using ::testing::AllOf;
using ::testing::HasSubstr;

Json last_json(const std::string& out) {
  std::stringstream lines(out);
  Json json;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) json = Json::parse(line);
  }
  return json;
}

/// A text of invented words, one document a line.
void write_text(const std::string& path, int documents, uint64_t seed) {
  Random random(seed);
  std::string text;
  for (int d = 0; d < documents; ++d) {
    for (int64_t w = 30 + random.below(30); w > 0; --w) {
      for (int64_t c = 1 + random.below(5); c >= 0; --c) text += static_cast<char>('a' + random.below(12));
      text += w > 1 ? ' ' : '\n';
    }
  }
  write_file_atomically(path, text);
}

/// One small run for all tests of this file.
class Workflow : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TemporaryFolder();
    write_text(folder_->path("text.txt"), 40, 1);
    write_file_atomically(
        folder_->path("recipe.toml"),
        "vocab_size = 300\nmemory = \"membart:4\"\nd_model = 16\nheads = 2\nffn_dim = 24\nencoder_layers = "
        "1\ndecoder_layers = 1\n"
        "segment = 8\nlanes = 4\ntime_horizon = 2\nmax_steps = 6\neval_steps = 3\ndocument = \"line\"\n"
        "tasks = {recall = 0.5, next = 0.5}\nauxiliary_weight = 0.5\ndecoder_mask_rate = 0.3\n");
    trained_ = new test::CommandResult(train(""));
  }
  static void TearDownTestSuite() {
    delete folder_;
    delete trained_;
  }
  static test::CommandResult train(const std::string& more) {
    return run_program("train " + path("recipe.toml") + " --data " + path("text.txt") + " --output-dir " + path("run") +
                       " " + more);
  }
  static std::string path(const std::string& name) { return folder_->path(name); }
  static std::string model() { return path("run/checkpoint-6"); }

  static test::TemporaryFolder* folder_;
  static test::CommandResult* trained_;
};
test::TemporaryFolder* Workflow::folder_ = nullptr;
test::CommandResult* Workflow::trained_ = nullptr;

TEST_F(Workflow, TrainingLeavesARunFolder) {
  ASSERT_EQ(trained_->exit_code, 0) << trained_->err;
  for (const char* name : {"run/options.toml", "run/metrics.jsonl", "run/split.json", "run/tokenizer/tokenizer.json",
                           "run/checkpoint-6/config.json", "run/checkpoint-6/model.safetensors",
                           "run/checkpoint-6/trainer_state.json", "run/checkpoint-6/tokenizer.json"}) {
    EXPECT_TRUE(std::filesystem::exists(path(name))) << name;
  }
  EXPECT_THAT(trained_->err, HasSubstr("parameters in all"));
  EXPECT_THAT(trained_->out, HasSubstr("checkpoint: "));
  const Json split = read_json(path("run/split.json"));
  EXPECT_GE(split["held_out"].size(), 1u);
  EXPECT_EQ(split["held_out"].size() + split["train"].size(), 40u);
}

TEST_F(Workflow, TheSavedRecipeTrainsTheSameModel) {
  const auto again = run_program("train " + path("run/options.toml") + " --output-dir " + path("again"));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(read_file(path("again/checkpoint-6/model.safetensors")),
            read_file(path("run/checkpoint-6/model.safetensors")));
}

TEST_F(Workflow, PrintConfigShowsFlagsOverTheRecipe) {
  const auto config = train("--print-config --segment 16 --learning_rate 5e-4 --tasks recall=0.7,next=0.3");
  EXPECT_EQ(config.exit_code, 0);
  EXPECT_THAT(config.out, HasSubstr("segment = 16"));
  EXPECT_THAT(config.out, HasSubstr("learning_rate = 0.0005"));
  EXPECT_THAT(config.out, HasSubstr("\"recall\" = 0.7"));
  EXPECT_THAT(config.out, HasSubstr("d_model = 16"));
}

TEST_F(Workflow, DryRunShowsItemsAsTheModelSeesThem) {
  const auto shown = train("--dry-run");
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("encoder reads"));
  EXPECT_THAT(shown.out, HasSubstr("decoder writes"));
  EXPECT_THAT(shown.out, HasSubstr("<current>"));
}

TEST_F(Workflow, EvalGivesTheSameNumbersAtAnyBatchSize) {
  Json first;
  for (const int batch : {1, 5, 64}) {
    const auto result = run_program("eval --model " + model() + " --data " + path("text.txt") +
                                    " --document line --task next --json --batch " + std::to_string(batch));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const Json json = last_json(result.out);
    if (batch == 1) first = json;
    EXPECT_EQ(json["targets"], first["targets"]);
    EXPECT_NEAR(json["nll"].get<double>(), first["nll"].get<double>(), 1e-5 * first["nll"].get<double>());
    EXPECT_NEAR(json["ppl"].get<double>(), std::exp(json["nll"].get<double>() / json["targets"].get<double>()), 1e-9);
    EXPECT_NEAR(json["bits_per_byte"].get<double>(),
                json["nll"].get<double>() / json["bytes"].get<double>() / std::log(2.0), 1e-9);
  }
}

TEST_F(Workflow, EvalKnowsAllCarries) {
  for (const char* carry : {"keep", "reset", "other", "off"}) {
    const auto result = run_program("eval --model " + model() + " --data " + path("text.txt") +
                                    " --document line --recall --max-documents 5 --json --carry " + carry);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_GT(last_json(result.out)["targets"].get<int64_t>(), 0);
    EXPECT_TRUE(last_json(result.out)["recall"]["share"].is_number());
  }
}

TEST_F(Workflow, EvalSetsCarriesSideBySide) {
  const std::string command =
      "eval --model " + model() + " --data " + path("text.txt") + " --document line --max-documents 9 --batch 4 ";
  const auto result = run_program(command + "--task all --recall --compare reset,off --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::stringstream lines(result.out);
  std::vector<Json> all;
  for (std::string line; std::getline(lines, line);) all.push_back(Json::parse(line));
  ASSERT_EQ(all.size(), 3U) << "next, recall, current";
  for (const Json& json : all) {
    EXPECT_EQ(json["model"], model());
    EXPECT_EQ(json["place"], "segment");
    ASSERT_EQ(json["compare"].size(), 2U);
    const Json& reset = json["compare"][0];
    EXPECT_EQ(reset["carry"], "reset");
    EXPECT_EQ(reset["targets"], json["targets"]);
    EXPECT_TRUE(reset["recall"]["share"].is_number());
    const double targets = json["targets"].get<double>();
    EXPECT_NEAR(reset["difference"]["nll_per_target"].get<double>(),
                (reset["nll"].get<double>() - json["nll"].get<double>()) / targets, 1e-9);
    int64_t grouped = 0;
    for (size_t i = 0; i < json["by_place"].size(); ++i) {
      grouped += json["by_place"][i]["targets"].get<int64_t>();
      EXPECT_EQ(reset["by_place"][i]["targets"], json["by_place"][i]["targets"]);
    }
    EXPECT_EQ(grouped, json["targets"].get<int64_t>());
  }
  EXPECT_EQ(all[1]["task"], "recall");
  EXPECT_EQ(all[1]["distance"], 1);
  // The same as asked for one by one.
  const auto alone = run_program(command + "--task recall --carry reset --json");
  EXPECT_NEAR(last_json(alone.out)["nll"].get<double>(), all[1]["compare"][0]["nll"].get<double>(), 1e-9);
  const auto shown = run_program(command + "--compare reset");
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("memory keep"), HasSubstr("with reset"), HasSubstr("above keep"),
                               HasSubstr("perplexity by segment")));
  const auto itself = run_program(command + "--compare keep");
  EXPECT_EQ(itself.exit_code, 2);
  EXPECT_THAT(itself.err, HasSubstr("compared with itself"));
}

TEST_F(Workflow, StreamReadsAtConstantState) {
  const auto result = run_program("stream --model " + model() + " " + path("text.txt") +
                                  " --task recall --recall --json --report-every 200");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::stringstream lines(result.out);
  int64_t count = 0, tokens = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const Json json = Json::parse(line);
    EXPECT_EQ(json["state_bytes"].get<int64_t>(), 4 * 16 * 4);
    EXPECT_GT(json["tokens"].get<int64_t>(), tokens);
    tokens = json["tokens"];
  }
  EXPECT_GT(count, 3);
  const auto from_stdin = test::run_command(std::string("cat ") + path("text.txt") + " | " + test::program() +
                                            " stream --model " + model() + " - --task recall --json");
  ASSERT_EQ(from_stdin.exit_code, 0) << from_stdin.err;
  EXPECT_EQ(last_json(from_stdin.out)["tokens"].get<int64_t>(), tokens);
  EXPECT_NEAR(last_json(from_stdin.out)["nll"].get<double>(), last_json(result.out)["nll"].get<double>(), 1e-3);
}

TEST_F(Workflow, GenerateTakesIdsAndText) {
  const auto ids = run_program("generate --model " + model() +
                               " --input-ids '[[10,11,12],[13,14,15,16]]' --max-new-tokens 5 --json");
  ASSERT_EQ(ids.exit_code, 0) << ids.err;
  const Json json = last_json(ids.out);
  EXPECT_EQ(json["sequences"].size(), 2u);
  EXPECT_EQ(json["scores"].size(), 2u);
  const auto alone =
      run_program("generate --model " + model() + " --input-ids '[[10,11,12]]' --max-new-tokens 5 --json");
  EXPECT_EQ(last_json(alone.out)["new_tokens"][0], json["new_tokens"][0]);
  const auto text = run_program("generate --model " + model() + " --file " + path("text.txt") + " --task recall");
  EXPECT_EQ(text.exit_code, 0) << text.err;
}

TEST_F(Workflow, AnotherThreadCountIsSaidOnResume) {
  std::filesystem::copy(path("run"), path("threads"), std::filesystem::copy_options::recursive);
  const Json state = read_json(path("threads/checkpoint-6/trainer_state.json"));
  const auto result =
      run_program("train " + path("recipe.toml") + " --data " + path("text.txt") + " --output-dir " + path("threads") +
                  " --max-steps 7 --threads " + std::to_string(state["threads"].get<int>() == 1 ? 2 : 1));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("not bit for bit"));
  EXPECT_THAT(result.err, HasSubstr("resumed from"));
}

TEST_F(Workflow, CtrlCSavesACheckpoint) {
  const auto result =
      test::run_command(std::string("timeout --foreground --preserve-status -s INT 8 ") + test::program() + " train " +
                        path("recipe.toml") + " --data " + path("text.txt") + " --output-dir " + path("stopped") +
                        " --max-steps 1000000 --eval-steps 0");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("interrupted"));
  EXPECT_THAT(result.out, HasSubstr("checkpoint-"));
}

TEST_F(Workflow, BadInputGetsOneClearErrorAndExitCodeTwo) {
  const struct {
    std::string arguments, said;
  } cases[] = {
      {"train " + path("recipe.toml") + " --data " + path("text.txt") + " --lern-rate 1", "unknown flag --lern-rate"},
      {"trian", "did you mean train"},
      {"train " + path("recipe.toml") + " --data " + path("text.txt") + " --lanes many", "expected a whole number"},
      {"train " + path("missing.toml"), "missing.toml"},
      {"train " + path("recipe.toml") + " --data " + path("nothing.txt"), "nothing.txt"},
      {"eval --data " + path("text.txt"), "--model is required"},
      {"eval --model " + path("nowhere") + " --data " + path("text.txt"), "is not a model folder"},
      {"eval --model " + model() + " --data " + path("text.txt") + " --carry kept",
       "choose one of: keep, reset, other, off"},
      {"eval --model " + model() + " --data " + path("text.txt") + " --task respond",
       "its tasks: next, recall, current"},
      {"eval --model " + model() + " --data " + path("text.txt") + " --segment 500", "position table"},
      {"generate --model " + model() + " --input-ids '[[5,900]]'", "id 900 is outside the vocabulary"},
      {"generate --model " + model() + " --input-ids '[5'", "not valid JSON"},
      {"generate --model " + model(), "exactly one of"},
      {"generate --model " + model() + " --input-ids '[[5]]' --max-new-tokens 400", "position table ends at 16"},
      {"stream --model " + model(), "no text is given"},
      {"run --model " + model() + " --inputs " + path("none.safetensors") + " --outputs " + path("x.safetensors"),
       "none.safetensors"},
      {"eval --model " + model() + " --data " + path("text.txt") + " --device cuda", "no CUDA device"},
      {"eval --model " + model() + " --data " + path("text.txt") + " --dtype int4", "unknown dtype"},
  };
  for (const auto& [arguments, said] : cases) {
    const auto result = run_program(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments << "\n" << result.err;
    EXPECT_THAT(result.err, HasSubstr(said)) << arguments;
    EXPECT_THAT(result.err, HasSubstr("error: ")) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
  }
}

TEST_F(Workflow, ARecipeWithAnUnknownKeyNamesTheNearest) {
  write_file_atomically(path("typo.toml"), "vocab_sise = 300\n");
  const auto result = run_program("train " + path("typo.toml") + " --data " + path("text.txt"));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("did you mean \"vocab_size\"?"));
}

TEST_F(Workflow, EveryCommandHasHelpThatEndsInAnExample) {
  for (const char* command :
       {"demo", "train", "eval", "stream", "generate", "tokenize", "detokenize", "inspect", "run", "data"}) {
    const auto help = run_program(std::string(command) + " --help");
    EXPECT_EQ(help.exit_code, 0) << command;
    EXPECT_THAT(help.out, AllOf(HasSubstr("\nexample: "), HasSubstr("palimpsest " + std::string(command) + " ")))
        << command;
  }
}

TEST_F(Workflow, TheFormatPageListsEveryKeyTensorAndFile) {
  const std::string page = read_file(test::source_folder() + "/docs/format.md");
  const Json config = read_json(model() + "/config.json");
  for (const auto& [key, value] : config.items()) EXPECT_THAT(page, HasSubstr("`" + key + "`"));
  for (const auto& [key, value] : config["palimpsest"].items()) EXPECT_THAT(page, HasSubstr("`" + key + "`"));
  for (const auto& task : config["palimpsest"]["tasks"]) {
    for (const auto& [key, value] : task.items()) EXPECT_THAT(page, HasSubstr("`" + key + "`"));
  }
  const Json state = read_json(model() + "/trainer_state.json");
  for (const auto& [key, value] : state.items()) EXPECT_THAT(page, HasSubstr("`" + key + "`"));
  std::vector<Json> tensors;
  for (const std::string& file :
       {model(), test::fixture("folders/bart_untied"), test::fixture("folders/gpt2_scaled_untied")}) {
    const auto inspected = run_program("inspect " + file + "/model.safetensors --json");
    ASSERT_EQ(inspected.exit_code, 0) << inspected.err;
    for (const auto& tensor : last_json(inspected.out)["tensors"]) tensors.push_back(tensor);
  }
  for (const char* family : {"bart", "gpt2"}) {
    const Json keys =
        models::make_model(read_json(test::fixture(std::string("folders/") + family + "_plain/config.json")), "",
                           at::TensorOptions().device(at::kMeta))
            ->config_json();
    for (const auto& [key, value] : keys.items()) EXPECT_THAT(page, HasSubstr("`" + key + "`"));
  }
  for (const char* memory : {"membart:2", "memformer:2,gate", "memformer:2,rezero"}) {
    models::BartConfig small;
    small.memory = memory::MemoryOptions::parse(memory);
    const models::BartModel with_memory(small, at::TensorOptions().device(at::kMeta));
    for (const auto& [name, tensor] : checkpoint::named_tensors(with_memory)) tensors.push_back({{"name", name}});
  }
  for (const auto& tensor : tensors) {
    // The page writes layers as N and groups names in braces: every part of the name stands there.
    std::stringstream parts(tensor["name"].get<std::string>());
    for (std::string part; std::getline(parts, part, '.');) {
      if (part.find_first_not_of("0123456789") == std::string::npos) continue;
      for (const char* projection : {"q_proj", "k_proj", "v_proj", "out_proj"}) {
        if (part == projection) part = "{q,k,v,out}_proj";
        if (part == std::string("mem_") + projection) part = "mem_{q,k,v,out}_proj";
      }
      EXPECT_THAT(page, HasSubstr(part)) << tensor["name"];
    }
  }
}

}  // namespace
}  // namespace palimpsest
