// SPDX-License-Identifier: Apache-2.0
// Model folders: names, aliases, errors that list everything at once, round trips.
#include "palimpsest/checkpoint/model_folder.h"

#include <filesystem>

#include "palimpsest/checkpoint/safetensors.h"
#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "tests/support/paths.h"
#include "tests/support/tensors.h"

namespace palimpsest::checkpoint {
namespace {

models::BartConfig small(const std::string& memory) {
  models::BartConfig config;
  config.vocab_size = 20;
  config.d_model = 8;
  config.encoder_layers = config.decoder_layers = 2;
  config.encoder_attention_heads = config.decoder_attention_heads = 2;
  config.encoder_ffn_dim = config.decoder_ffn_dim = 12;
  config.max_position_embeddings = 16;
  config.memory = memory::MemoryOptions::parse(memory);
  return config;
}

std::shared_ptr<models::BartModel> make_model(const std::string& memory, at::ScalarType dtype = at::kFloat) {
  auto model = std::make_shared<models::BartModel>(small(memory), dtype);
  model->initialize({.std = 0.3, .slot_std = 1, .seed = 5});
  return model;
}

using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

Tensors tensors_of(const std::string& folder) {
  const auto file = Safetensors::open(folder + "/model.safetensors");
  Tensors tensors;
  for (const auto& info : file.tensors()) tensors.emplace_back(info.name, file.tensor(info.name).clone());
  return tensors;
}

std::string error_of(const std::string& folder, const LoadOptions& options = {}) {
  try {
    load_model(folder, options);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  return "";
}

TEST(ModelFolder, RoundTripsEveryTensorAndTheConfig) {
  for (const char* memory : {"none", "membart:3", "membart:3,shared"}) {
    const test::TemporaryFolder folder;
    const auto model = make_model(memory);
    save_model(folder.path(), *model, {.segment = 8, .tasks = {{"recall", 4, 1}, {"recall", 5, 2}}}, nullptr);
    const auto loaded = load_model(folder.path());
    EXPECT_EQ(loaded.bart()->config().memory.text(), memory);
    EXPECT_EQ(loaded.training.task("recall:2").start_id, 5);
    const auto left = named_tensors(*model), right = named_tensors(*loaded.model);
    ASSERT_EQ(left.size(), right.size());
    for (size_t i = 0; i < left.size(); ++i) test::expect_identical(right[i].second, left[i].second, left[i].first);
  }
}

TEST(ModelFolder, UsesTheNamesOfHuggingFaceAndOfTheAuthors) {
  EXPECT_EQ(name_table("bart").file_name_of("shared.weight"), "model.shared.weight");
  EXPECT_EQ(name_table("bart").file_name_of("encoder_embeddings.embed_positions.weight"),
            "model.encoder.embed_positions.weight");
  EXPECT_EQ(name_table("bart").file_name_of("decoder_embeddings.layernorm_embedding.bias"),
            "model.decoder.layernorm_embedding.bias");
  EXPECT_EQ(name_table("bart").file_name_of("encoder_layers_11.self_attn.q_proj.weight"),
            "model.encoder.layers.11.self_attn.q_proj.weight");
  EXPECT_EQ(name_table("bart").file_name_of("decoder_layers_0.encoder_attn.out_proj.bias"),
            "model.decoder.layers.0.encoder_attn.out_proj.bias");
  EXPECT_EQ(name_table("bart").file_name_of("memory.layers_1.self_attn.k_proj.weight"),
            "model.encoder.layers.1.self_attn.mem_k_proj.weight");
  EXPECT_EQ(name_table("bart").file_name_of("memory.layers_1.self_attn_layer_norm.weight"),
            "model.encoder.layers.1.mem_self_attn_layer_norm.weight");
  EXPECT_EQ(name_table("bart").file_name_of("memory.layers_0.fc2.bias"), "model.encoder.layers.0.mem_fc2.bias");
  EXPECT_EQ(name_table("bart").file_name_of("memory.memory_gate_net.dense2.bias"),
            "model.encoder.memory_gate_net.dense2.bias");
  EXPECT_EQ(name_table("bart").file_name_of("memory.memory_bias"), "model.encoder.memory_bias");
  EXPECT_EQ(name_table("bart").file_name_of("final_logits_bias"), "final_logits_bias");
}

TEST(ModelFolder, ListsAllThatIsMissingUnexpectedAndMisshapen) {  // FR-30
  const test::TemporaryFolder folder;
  save_model(folder.path(), *make_model("membart:3"), {}, nullptr);
  Tensors tensors = tensors_of(folder.path());
  std::erase_if(tensors, [](const auto& entry) {
    return entry.first == "model.encoder.memory_bias" || entry.first == "model.decoder.layers.1.fc1.bias";
  });
  tensors.emplace_back("model.encoder.extra", at::zeros({2}));
  save_safetensors(folder.path("model.safetensors"), tensors);
  const std::string message = error_of(folder.path());
  for (const char* part : {"2 missing tensors", "model.encoder.memory_bias", "model.decoder.layers.1.fc1.bias",
                           "1 unexpected tensor", "model.encoder.extra", "--allow-missing"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
  }
  EXPECT_EQ(error_of(folder.path(), {.allow_missing = true, .seed = 3}), "");
  for (auto& [name, tensor] : tensors) {
    if (name == "model.encoder.layers.0.fc1.weight") tensor = at::zeros({12, 9});
  }
  save_safetensors(folder.path("model.safetensors"), tensors);
  EXPECT_NE(error_of(folder.path(), {.allow_missing = true})
                .find("model.encoder.layers.0.fc1.weight is [12, 9], expected [12, 8]"),
            std::string::npos);
}

TEST(ModelFolder, FindsTheTiedEmbeddingUnderAnyOfItsNames) {  // FR-27
  const test::TemporaryFolder folder;
  const auto model = make_model("none");
  save_model(folder.path(), *model, {}, nullptr);
  const Tensors tensors = tensors_of(folder.path());
  for (const std::vector<std::string>& names : {std::vector<std::string>{"model.shared.weight"},
                                                {"model.encoder.embed_tokens.weight"},
                                                {"model.decoder.embed_tokens.weight"},
                                                {"lm_head.weight", "model.decoder.embed_tokens.weight",
                                                 "model.encoder.embed_tokens.weight", "model.shared.weight"}}) {
    Tensors variant;
    for (const auto& [name, tensor] : tensors) {
      if (name != "model.shared.weight") variant.emplace_back(name, tensor);
    }
    for (const auto& name : names) variant.emplace_back(name, model->shared->weight.detach());
    save_safetensors(folder.path("model.safetensors"), variant);
    test::expect_identical(load_model(folder.path()).bart()->shared->weight, model->shared->weight, names.front());
  }
}

TEST(ModelFolder, FindsTheTiedEmbeddingThroughTheMetadatasAliases) {  // FR-27
  const test::TemporaryFolder folder;
  const auto model = make_model("none");
  save_model(folder.path(), *model, {}, nullptr);
  Tensors variant;
  for (const auto& [name, tensor] : tensors_of(folder.path()))
    variant.emplace_back(name == "model.shared.weight" ? "model.decoder.embed_tokens.weight" : name, tensor);
  save_safetensors(folder.path("model.safetensors"), variant,
                   {{"format", "pt"},
                    {"model.shared.weight", "model.decoder.embed_tokens.weight"},
                    {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"}});
  test::expect_identical(load_model(folder.path()).bart()->shared->weight, model->shared->weight, "shared");
}

TEST(ModelFolder, CopiesOfATiedTableThatDifferAreNotTied) {  // FR-28, as the reference does
  const test::TemporaryFolder folder;
  const auto model = make_model("none");
  save_model(folder.path(), *model, {}, nullptr);
  Tensors variant = tensors_of(folder.path());
  const at::Tensor other = test::randn({20, 8}, 3).to(at::kFloat);
  variant.emplace_back("lm_head.weight", other);
  save_safetensors(folder.path("model.safetensors"), variant);
  const auto loaded = load_model(folder.path()).bart();
  EXPECT_FALSE(loaded->config().tie_word_embeddings);
  test::expect_identical(loaded->lm_head->weight, other, "its own");
  test::expect_identical(loaded->encoder_words->weight, model->shared->weight, "the encoder's");
}

TEST(ModelFolder, AVocabularyCanBeGivenMoreRows) {
  const test::TemporaryFolder folder;
  const auto model = make_model("none");
  save_model(folder.path(), *model, {}, nullptr);
  const auto loaded = load_model(folder.path(), {.seed = 4, .vocab_size = 23});
  const auto bart = loaded.bart();
  EXPECT_EQ(bart->vocab_size(), 23);
  EXPECT_EQ(bart->final_logits_bias.size(1), 23);
  test::expect_identical(bart->shared->weight.narrow(0, 0, 20), model->shared->weight, "old rows");
  EXPECT_GT(bart->shared->weight.narrow(0, 20, 3).abs().min().item<double>(), 0);
  EXPECT_EQ(loaded.report.resized.size(), 2U);
}

TEST(ModelFolder, ReadsNamesWithoutThePrefix) {
  const test::TemporaryFolder folder;
  const auto model = make_model("membart:2");
  save_model(folder.path(), *model, {}, nullptr);
  Tensors bare;
  for (const auto& [name, tensor] : tensors_of(folder.path()))
    bare.emplace_back(name.rfind("model.", 0) == 0 ? name.substr(6) : name, tensor);
  save_safetensors(folder.path("model.safetensors"), bare);
  test::expect_identical(load_model(folder.path()).bart()->memory->memory_bias, model->memory->memory_bias, "v_b");
}

TEST(ModelFolder, HalfFloatsWidenToWhatTheyHold) {  // FR-34
  const test::TemporaryFolder folder;
  const auto model = make_model("membart:2");
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    save_model(folder.path(), *model, {}, nullptr, {.dtype = dtype});
    EXPECT_EQ(load_model(folder.path()).bart()->shared->weight.scalar_type(), dtype);
    const auto wide = load_model(folder.path(), {.dtype = at::kFloat});
    test::expect_identical(wide.bart()->shared->weight, model->shared->weight.to(dtype).to(at::kFloat), "widened");
  }
}

TEST(ModelFolder, TheWeightsAreTheFilesOwnBytes) {
  const test::TemporaryFolder folder;
  save_model(folder.path(), *make_model("membart:2"), {}, nullptr);
  const auto loaded = load_model(folder.path());
  std::filesystem::remove(folder.path("model.safetensors"));  // the map outlives the name
  EXPECT_TRUE(loaded.bart()->shared->weight.isfinite().all().item<bool>());
}

TEST(ModelFolder, SaysWhatIsNotAModel) {
  const test::TemporaryFolder folder;
  EXPECT_NE(error_of(folder.path("nothing")).find("is not a model folder"), std::string::npos);
  EXPECT_NE(error_of(folder.path()).find("has no config.json"), std::string::npos);
  write_file_atomically(folder.path("config.json"), "{\"model_type\": \"bart\"");
  EXPECT_NE(error_of(folder.path()).find("not valid JSON"), std::string::npos);
  save_model(folder.path(), *make_model("membart:2"), {.segment = 4, .tasks = {{"recall", 99, 1}}}, nullptr);
  EXPECT_NE(error_of(folder.path()).find("outside the vocabulary"), std::string::npos);
}

}  // namespace
}  // namespace palimpsest::checkpoint
