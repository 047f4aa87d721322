// SPDX-License-Identifier: Apache-2.0
// `palimpsest convert` from outside: a memory put beside a stock model and taken away, the authors' names, shards.
#include <filesystem>

#include "palimpsest/checkpoint/model_folder.h"
#include "palimpsest/checkpoint/safetensors.h"
#include "palimpsest/core/files.h"
#include "tests/support/paths.h"
#include "tests/support/tensors.h"

namespace palimpsest {
namespace {

using checkpoint::load_model;

const std::string kStock = test::fixture("folders/bart_plain");

Json convert(const std::string& flags) {
  const auto result = test::run_command(test::program() + " convert --json " + flags);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.exit_code == 0 ? Json::parse(result.out) : Json();
}

void expect_equal_logits(const std::string& left, const std::string& right) {
  const at::Tensor ids = at::tensor({3, 7, 9, 4}, at::kLong).view({1, 4});
  const at::NoGradGuard no_grad;
  at::Tensor logits[2];
  for (const int i : {0, 1}) {
    const auto model = load_model(i == 0 ? left : right).bart();
    logits[i] = model->logits(model->decode(ids, {}, model->encode({.ids = ids})));
  }
  test::expect_identical(logits[0], logits[1], left + " and " + right);
}

TEST(Convert, AMemoryComesAndGoes) {
  const test::TemporaryFolder folder;
  const Json there = convert(kStock + " --memory membart:4 --out " + folder.path("with"));
  EXPECT_EQ(there["memory"], "membart:4");
  EXPECT_EQ(there["initialised"].size(), 2 * 16 + 7u);  // slot weights of two layers; v_b, its norm and the gate
  EXPECT_TRUE(there["dropped"].empty());
  const Json back = convert(folder.path("with") + " --memory none --out " + folder.path("without"));
  EXPECT_EQ(back["dropped"].size(), there["initialised"].size());
  expect_equal_logits(kStock, folder.path("without"));
  EXPECT_FALSE(read_json(folder.path("without/config.json")).contains("palimpsest"));
  // What the stock config said and we do not know is still there.
  EXPECT_EQ(read_json(folder.path("without/config.json"))["classifier_dropout"],
            read_json(kStock + "/config.json")["classifier_dropout"]);
}

TEST(Convert, NoSlotsEqualTheStockModel) {  // FR-69
  const test::TemporaryFolder folder;
  convert(kStock + " --memory membart:0 --out " + folder.path("zero"));
  expect_equal_logits(kStock, folder.path("zero"));
}

TEST(Convert, AMemoryStartsAtRandomOrAsACopy) {
  const test::TemporaryFolder folder;
  convert(kStock + " --memory membart:4 --seed 3 --out " + folder.path("random"));
  convert(kStock + " --memory membart:4 --seed 3 --memory-init copy --out " + folder.path("copy"));
  const auto random = load_model(folder.path("random")).bart(), copy = load_model(folder.path("copy")).bart();
  const auto &layer = *copy->encoder_layers[1]->self_attn, &slots = *copy->memory->layers[1]->self_attn;
  test::expect_identical(slots.q_proj->weight, layer.q_proj->weight, "copied");
  const auto& drawn = random->memory->layers[1]->self_attn->q_proj->weight;
  EXPECT_NEAR(drawn.std().item<double>(), 0.01, 0.004);
  test::expect_identical(random->memory->memory_bias, copy->memory->memory_bias, "v_b is drawn in both");
  convert(kStock + " --memory membart:4 --seed 3 --out " + folder.path("again"));
  EXPECT_EQ(read_file(folder.path("again/model.safetensors")), read_file(folder.path("random/model.safetensors")));
}

TEST(Convert, AnotherNumberOfSlotsKeepsTheWeights) {
  const test::TemporaryFolder folder;
  convert(kStock + " --memory membart:4 --out " + folder.path("four"));
  const Json six = convert(folder.path("four") + " --memory membart:6 --out " + folder.path("six"));
  EXPECT_EQ(six["initialised"], Json::array({"model.encoder.memory_bias"}));
  const Json shared = convert(folder.path("four") + " --memory membart:4,shared --out " + folder.path("shared"));
  EXPECT_EQ(shared["dropped"].size(), 32u);
  EXPECT_TRUE(shared["initialised"].empty());
}

TEST(Convert, TrainingPutsAMemoryBesideAStockFolderItself) {
  const test::TemporaryFolder folder;
  // The shipped model without its memory is a stock BART with a tokenizer.
  convert(test::source_folder() + "/models/recall-small --memory none --out " + folder.path("stock"));
  std::string text;
  for (int i = 0; i < 400; ++i) text += "In the beginning was the word, and the word was with us. ";
  write_file_atomically(folder.path("text.txt"), text);
  const auto result = test::run_command(
      test::program() + " train " + test::source_folder() + "/recipes/recall.toml --model " + folder.path("stock") +
      " --memory membart:4 --memory-init copy --data " + folder.path("text.txt") + " --output-dir " +
      folder.path("run") + " --lanes 2 --max-steps 2 --auxiliary-steps 0 --eval-steps 0 --no-progress-bar");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("initialised: model.encoder.memory_bias"), std::string::npos) << result.err;
  EXPECT_EQ(load_model(folder.path("run/checkpoint-2")).bart()->config().memory.text(), "membart:4");
}

TEST(Convert, TheAuthorsNamesBecomeOurs) {
  const test::TemporaryFolder folder;
  const Json report = convert(test::fixture("membart_official_a") + " --out " + folder.path("ours"));
  EXPECT_EQ(report["renamed"]["encoder.memory_bias"], "model.encoder.memory_bias");
  EXPECT_EQ(report["memory"], "membart:8");
  expect_equal_logits(test::fixture("membart_official_a"), folder.path("ours"));
}

TEST(Convert, CutsIntoShardsAndReadsThem) {
  const test::TemporaryFolder folder;
  convert(kStock + " --max-shard-size 5KB --out " + folder.path("shards"));
  EXPECT_TRUE(std::filesystem::exists(folder.path("shards/model.safetensors.index.json")));
  EXPECT_FALSE(std::filesystem::exists(folder.path("shards/model.safetensors")));
  expect_equal_logits(kStock, folder.path("shards"));
}

TEST(Convert, HalfFloatsAreWrittenAndWidened) {  // FR-34
  const test::TemporaryFolder folder;
  for (const std::string dtype : {"bfloat16", "float16"}) {
    convert(kStock + " --dtype " + dtype + " --out " + folder.path(dtype));
    EXPECT_EQ(read_json(folder.path(dtype + "/config.json"))["dtype"], dtype);
    EXPECT_EQ(load_model(folder.path(dtype), {.widen = true}).model->dtype(), at::kFloat);
    const auto file = checkpoint::Safetensors::open(folder.path(dtype + "/model.safetensors"));
    EXPECT_EQ(file.info("model.shared.weight").dtype, dtype == "float16" ? "F16" : "BF16");
  }
}

TEST(Convert, RefusesWithoutTouchingAnything) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directories(folder.path("there"));
  write_file_atomically(folder.path("there/x"), "x");
  std::filesystem::create_directories(folder.path("pickled"));
  std::filesystem::copy_file(kStock + "/config.json", folder.path("pickled/config.json"));
  write_file_atomically(folder.path("pickled/pytorch_model.bin"), "x");
  const std::pair<std::string, const char*> cases[] = {
      {kStock + " --out " + folder.path("there"), "is there already"},
      {kStock, "--out is required"},
      {kStock + " --memory membart:x --out " + folder.path("a"), "not a number of slots"},
      {kStock + " --memory-init zero --out " + folder.path("a"), "random, copy"},
      {kStock + " --max-shard-size many --out " + folder.path("a"), "is no size"},
      {folder.path("pickled") + " --out " + folder.path("a"), "python3 -c"},
      {folder.path("nowhere") + " --out " + folder.path("a"), "is not a model folder"},
  };
  for (const auto& [flags, part] : cases) {
    const auto result = test::run_command(test::program() + " convert " + flags);
    EXPECT_EQ(result.exit_code, 2) << flags << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << flags << "\n" << result.err;
    EXPECT_FALSE(std::filesystem::exists(folder.path("a")));
  }
  EXPECT_EQ(read_file(folder.path("there/x")), "x");
}

}  // namespace
}  // namespace palimpsest
