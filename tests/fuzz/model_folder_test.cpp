// SPDX-License-Identifier: Apache-2.0
// Mutated config.json, index and generation_config files: an error of ours or a model, never anything else.
#include "palimpsest/checkpoint/model_folder.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <fstream>

#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/random.h"
#include "palimpsest/generate/options.h"
#include "tests/support/paths.h"

namespace palimpsest {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kInputs = 10000;

/// A byte changed, cut or doubled, or a value put in a key's place.
std::string mutated(const std::string& text, Random& random) {
  std::string changed = text;
  const auto place = [&] { return static_cast<size_t>(random.below(static_cast<int64_t>(changed.size()))); };
  const int64_t times = 1 + random.below(3);
  for (int64_t i = 0; i < times && !changed.empty(); ++i) {
    switch (random.below(6)) {
      case 0:
        changed[place()] = static_cast<char>(random.below(256));
        break;
      case 1:
        changed.erase(place(), static_cast<size_t>(1 + random.below(9)));
        break;
      case 2:
        changed.insert(place(), changed.substr(place(), static_cast<size_t>(random.below(30))));
        break;
      case 3:
        changed.resize(place());
        break;
      default: {
        Json json = Json::parse(changed, nullptr, false);
        if (json.is_discarded() || !json.is_object() || json.empty()) break;
        Json* object = &json;
        if (json.contains("weight_map") && json["weight_map"].is_object() && !json["weight_map"].empty())
          object = &json["weight_map"];
        auto entry = object->begin();
        std::advance(entry, random.below(static_cast<int64_t>(object->size())));
        static const Json values[] = {nullptr,
                                      true,
                                      -1,
                                      0,
                                      1,
                                      2,
                                      3,
                                      1e300,
                                      INT64_MAX,
                                      INT64_MIN,
                                      17000000,
                                      "",
                                      "x",
                                      "gelu_new",
                                      Json::array(),
                                      Json::object(),
                                      0.5,
                                      "../x",
                                      "model.safetensors",
                                      65536,
                                      1024};
        if (random.below(4) == 0) {
          object->erase(entry.key());
        } else {
          *entry = values[random.below(static_cast<int64_t>(std::size(values)))];
        }
        changed = json.dump(-1, ' ', false, Json::error_handler_t::replace);
      }
    }
  }
  return changed;
}

struct Counts {
  int64_t refused = 0, taken = 0;
};

template <class Work>
void expect_ours(Counts& counts, const std::string& input, Work work) {
  try {
    work();
    ++counts.taken;
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2) << error.what() << "\n" << input;
    ++counts.refused;
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what() << "\n" << input;
  }
}

TEST(ModelFolderFuzz, ConfigsAreRefusedOrRun) {
  spdlog::set_level(spdlog::level::err);  // what is warned of is not what is tested
  Counts counts;
  const std::string folders[] = {"bart_plain", "gpt2_scaled_untied"};
  for (const std::string& name : folders) {
    const test::TemporaryFolder folder;
    const std::string path = folder.path("model");
    fs::copy(test::fixture("folders/" + name), path);
    Json config = read_json(path + "/config.json");
    if (name == "bart_plain") config["palimpsest"] = {{"format", 1}, {"memory", "none"}, {"decoder_sees_memory", true}};
    const std::string good = config.dump();
    Random random(random_key(1, name.size()));
    for (int64_t i = 0; i < kInputs / 2; ++i) {
      const std::string text = mutated(good, random);
      std::ofstream(path + "/config.json", std::ios::trunc) << text;
      expect_ours(counts, text, [&] { checkpoint::load_model(path); });
    }
  }
  EXPECT_EQ(counts.refused + counts.taken, kInputs);
  EXPECT_GT(counts.refused, kInputs / 10);
  EXPECT_GT(counts.taken, kInputs / 100);
}

TEST(ModelFolderFuzz, IndexesOfShardsAreRefusedOrRead) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path("model");
  const auto source = checkpoint::load_model(test::fixture("folders/bart_plain"));
  fs::create_directories(path);
  checkpoint::save_model(path, *source.model, {}, nullptr, {.max_shard_bytes = 8000});
  const std::string index = path + "/model.safetensors.index.json", good = read_file(index);
  Random random(random_key(2));
  Counts counts;
  for (int64_t i = 0; i < kInputs; ++i) {
    const std::string text = mutated(good, random);
    std::ofstream(index, std::ios::trunc) << text;
    expect_ours(counts, text, [&] { checkpoint::load_model(path); });
  }
  EXPECT_GT(counts.refused, kInputs / 2);
  EXPECT_GT(counts.taken, 0);
}

TEST(ModelFolderFuzz, GenerationConfigsAreRefusedOrRead) {
  const std::string good =
      R"({"num_beams": 4, "max_length": 20, "min_length": 2, "no_repeat_ngram_size": 3, "early_stopping": true, )"
      R"("length_penalty": 2.0, "forced_eos_token_id": 2, "eos_token_id": [2, 3], "bad_words_ids": [[3, 4]], )"
      R"("temperature": 0.7, "top_p": 0.9, "do_sample": false, "suppress_tokens": [1], "stop_strings": ["a"]})";
  Random random(random_key(3));
  Counts counts;
  std::vector<std::string> warnings;
  for (int64_t i = 0; i < kInputs; ++i) {
    const std::string text = mutated(good, random);
    expect_ours(counts, text, [&] {
      generate::GenerationOptions::from_generation_config(parse_json(text, "x"), "x", &warnings).validate(100);
    });
  }
  EXPECT_GT(counts.refused, kInputs / 10);
  EXPECT_GT(counts.taken, kInputs / 10);
}

}  // namespace
}  // namespace palimpsest
