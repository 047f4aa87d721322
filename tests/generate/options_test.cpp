// SPDX-License-Identifier: Apache-2.0
// Generation options: Hugging Face's file read in, and one clear error for each thing that cannot be.
#include "palimpsest/generate/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "palimpsest/core/error.h"
#include "palimpsest/core/options.h"

namespace palimpsest::generate {
namespace {

using ::testing::HasSubstr;

GenerationOptions read(const char* text, std::vector<std::string>* warnings = nullptr) {
  return GenerationOptions::from_generation_config(parse_json(text, "test"), "generation_config.json", warnings);
}

/// The error's whole text; "" where there is none.
template <class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  return "";
}

TEST(GenerationOptions, ReadAHuggingFaceFile) {
  std::vector<std::string> warnings;
  const auto options = read(R"({"_from_model_config": true, "bos_token_id": 0, "decoder_start_token_id": 2,
    "early_stopping": true, "eos_token_id": 2, "forced_bos_token_id": 0, "forced_eos_token_id": 2, "length_penalty": 2,
    "max_length": 142, "min_length": 56, "no_repeat_ngram_size": 3, "num_beams": 4, "pad_token_id": 1, "top_k": null,
    "bad_words_ids": [[5], [6, 7]], "suppress_tokens": [], "temperature": 0.7, "stop_strings": "END",
    "num_beam_groups": 1, "diversity_penalty": 0.0, "use_cache": true, "transformers_version": "5.24.0"})",
                            &warnings);
  EXPECT_TRUE(warnings.empty());
  EXPECT_EQ(options.early_stopping, "true");
  EXPECT_EQ(options.eos_token_id, std::vector<int64_t>({2}));
  EXPECT_EQ(options.forced_bos_token_id, 0);
  EXPECT_EQ(options.forced_eos_token_id, std::vector<int64_t>({2}));
  EXPECT_EQ(options.length_penalty, 2.0);
  EXPECT_EQ(options.max_length, 142);
  EXPECT_EQ(options.max_new_tokens, -1);
  EXPECT_EQ(options.min_length, 56);
  EXPECT_EQ(options.no_repeat_ngram_size, 3);
  EXPECT_EQ(options.num_beams, 4);
  EXPECT_EQ(options.pad_token_id, 1);
  EXPECT_EQ(options.decoder_start_token_id, 2);
  EXPECT_EQ(options.top_k, 50);
  EXPECT_EQ(options.bad_words(), std::vector<std::vector<int64_t>>({{5}, {6, 7}}));
  EXPECT_EQ(options.stop_strings, std::vector<std::string>({"END"}));
  EXPECT_EQ(read(R"({"early_stopping": "never"})").early_stopping, "never");
  EXPECT_EQ(read(R"({"eos_token_id": [2, 5]})").eos_token_id, std::vector<int64_t>({2, 5}));
}

TEST(GenerationOptions, NameWhatHasNoEffectHere) {
  std::vector<std::string> warnings;
  read(R"({"num_beam_groups": 2, "guidance_scale": 1.5, "top_kk": 3, "use_cache": false, "seed": 4})", &warnings);
  ASSERT_EQ(warnings.size(), 4u);
  EXPECT_THAT(warnings[0], HasSubstr("num_beam_groups"));
  EXPECT_THAT(warnings[1], HasSubstr("guidance_scale"));
  EXPECT_THAT(warnings[2], HasSubstr("did you mean \"top_k\"?"));
  EXPECT_THAT(warnings[3], HasSubstr("unknown key \"seed\""));  // no key of the reference
}

TEST(GenerationOptions, NameWrongTypesOfAFile) {
  for (const char* text :
       {R"({"num_beams": "four"})", R"({"num_beams": 2.5})", R"({"do_sample": 1})", R"({"temperature": "hot"})",
        R"({"eos_token_id": ["a"]})", R"({"early_stopping": 3})", R"({"early_stopping": "sometimes"})",
        R"({"bad_words_ids": [5]})", R"({"bad_words_ids": [[]]})", R"({"bad_words_ids": [[-1]]})",
        R"({"bad_words_ids": [[1.5]]})", R"({"suppress_tokens": "1,2"})",
        R"({"max_new_tokens": 99999999999999999999})"}) {
    const std::string message = message_of([&] { read(text); });
    EXPECT_THAT(message, HasSubstr("generation_config.json")) << text;
    const std::string key = std::string(text).substr(2, std::string(text).find('"', 2) - 2);
    EXPECT_THAT(message, HasSubstr(key)) << text;
  }
  EXPECT_THAT(message_of([] { read("[1]"); }), HasSubstr("generation_config.json"));
}

TEST(GenerationOptions, HaveOneFlagEach) {
  GenerationOptions options;
  CLI::App app;
  options_to_flags(options, app);
  app.parse(
      "--max-new-tokens 7 --num_beams 4 --do-sample --top-p 0.9 --eos-token-id 2,5 --bad-words-ids [[5],[6,7]] "
      "--early-stopping never");
  EXPECT_EQ(options.max_new_tokens, 7);
  EXPECT_EQ(options.num_beams, 4);
  EXPECT_TRUE(options.do_sample);
  EXPECT_EQ(options.top_p, 0.9);
  EXPECT_EQ(options.eos_token_id, std::vector<int64_t>({2, 5}));
  EXPECT_EQ(options.bad_words().size(), 2u);
  GenerationOptions again;
  options_from_json(again, options_to_json(options), "test");
  EXPECT_EQ(options_to_json(again), options_to_json(options));
}

TEST(GenerationOptions, RefuseWhatCannotBe) {
  const auto refused = [](const GenerationOptions& options, const char* says) {
    EXPECT_THAT(message_of([&] { options.validate(10); }), HasSubstr(says));
  };
  EXPECT_EQ(message_of([] { GenerationOptions().validate(10); }), "");
  refused({.max_new_tokens = -2}, "max_new_tokens is -2");
  refused({.max_new_tokens = 3, .min_new_tokens = 4}, "min_new_tokens 4 is more than max_new_tokens 3");
  refused({.stop_strings = {""}}, "empty stop string");
  refused({.stop_strings = {"\xFF"}}, "not UTF-8");
  refused({.num_beams = 0}, "num_beams is 0");
  refused({.num_beams = 2, .num_return_sequences = 3}, "num_return_sequences 3 is more than num_beams 2");
  refused({.num_return_sequences = 2}, "one answer only");
  refused({.num_return_sequences = 2, .do_sample = true, .temperature = 0}, "one answer only");
  refused({.length_penalty = std::nan("")}, "length_penalty");
  refused({.early_stopping = "yes"}, "choose one of: false, true, never");
  refused({.temperature = -1}, "temperature is -1");
  refused({.temperature = std::nan("")}, "temperature is nan");
  refused({.top_k = -1}, "top_k is -1");
  refused({.top_p = 1.1}, "top_p is 1.1");
  refused({.min_p = -0.1}, "min_p is -0.1");
  refused({.typical_p = 0}, "typical_p is 0");
  refused({.epsilon_cutoff = 1}, "epsilon_cutoff is 1");
  refused({.eta_cutoff = -1}, "eta_cutoff is -1");
  refused({.repetition_penalty = 0}, "repetition_penalty is 0");
  refused({.no_repeat_ngram_size = -1}, "no_repeat_ngram_size is -1");
  refused({.bad_words_ids = "[[3],[10]]"}, "bad_words_ids names the token 10");
  refused({.bad_words_ids = "5"}, "a list of lists");
  refused({.bad_words_ids = "[["}, "not valid JSON");
  refused({.suppress_tokens = {10}}, "suppress_tokens names the token 10, but the model's vocabulary has 10");
  refused({.suppress_tokens = {3, 7}, .forced_bos_token_id = 7}, "both name the token 7");
  refused({.suppress_tokens = {3, 7}, .forced_eos_token_id = {3, 7}}, "both name the token 3");
  refused({.forced_bos_token_id = -3}, "forced_bos_token_id names the token -3");
  refused({.eos_token_id = {12}}, "eos_token_id names the token 12");
}

TEST(GenerationOptions, SettleLengthsOrSayWhatIsInTheWay) {
  const auto settle = [](const GenerationOptions& options, int64_t prompt, std::optional<int64_t> longest) {
    return message_of([&] { options.lengths(prompt, longest); });
  };
  // FR-41: limit, prompt and asked length.
  const std::string far = settle({.max_new_tokens = 20}, 3, 16);
  EXPECT_THAT(far, HasSubstr("max_new_tokens 20 after 3 tokens"));
  EXPECT_THAT(far, HasSubstr("ends at 16"));
  EXPECT_THAT(far, HasSubstr("give max_new_tokens 13 or less"));
  EXPECT_THAT(settle({}, 17, 16), HasSubstr("start with 17 tokens"));
  EXPECT_THAT(settle({.max_length = 4}, 5, 16), HasSubstr("max_length 4 is less than the 5 tokens"));
  // FR-72: the default that nobody gave is named.
  EXPECT_THAT(settle({.min_new_tokens = 50}, 1, 100), HasSubstr("the default of 20 new tokens"));
  EXPECT_THAT(settle({.min_length = 50}, 1, 100), HasSubstr("min_length 50 is more than the default of 20"));
  EXPECT_THAT(settle({.max_length = 9, .min_length = 10}, 1, 100), HasSubstr("max_length 9"));

  const auto lengths = [](const GenerationOptions& options) { return options.lengths(5, 16); };
  EXPECT_EQ(lengths({}).max_new, 11);  // the default gives way to the table
  EXPECT_FALSE(lengths({}).max_is_given);
  EXPECT_EQ(GenerationOptions().lengths(5, std::nullopt).max_new, 20);
  EXPECT_EQ(lengths({.max_length = 12}).max_new, 7);
  EXPECT_EQ(lengths({.max_new_tokens = 2, .max_length = 12}).max_new, 2);
  EXPECT_EQ(lengths({.max_new_tokens = 0}).max_total, 5);
  EXPECT_EQ(lengths({.max_new_tokens = 9, .min_new_tokens = 3, .min_length = 12}).min_total, 8);
  EXPECT_EQ(lengths({.max_new_tokens = 9, .min_length = 12}).min_total, 12);
}

TEST(GenerationOptions, SayWhatHasNoEffect) {
  EXPECT_TRUE(GenerationOptions().without_effect().empty());
  const auto list =
      GenerationOptions{
          .max_new_tokens = 3, .max_length = 9, .min_new_tokens = 1, .length_penalty = 2, .temperature = 0.5}
          .without_effect();
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(list[0], "temperature has no effect without do_sample");
  EXPECT_EQ(list[1], "length_penalty has no effect without num_beams above 1");
}

}  // namespace
}  // namespace palimpsest::generate
