// SPDX-License-Identifier: Apache-2.0
// The generation goldens of transformers 5.24 (shared folder, fixtures/README section 5) and what runs them on any
// decoder.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "palimpsest/core/json.h"
#include "palimpsest/generate/search.h"
#include "tests/support/paths.h"

namespace palimpsest::test {

struct GoldenCase {
  std::string name;
  generate::GenerationOptions options;
  std::vector<std::vector<int64_t>> sequences, new_tokens;  ///< [rows * num_return_sequences]
  std::vector<double> scores, scores_f64;
};

struct GoldenModel {
  std::string family;  ///< bart | gpt2
  std::string folder;  ///< the model's
  std::vector<std::vector<int64_t>> input_ids, attention_mask;
  int64_t vocab_size = 0, decoder_start = 2, pad = 1;
  std::vector<GoldenCase> cases;

  /// The same with the given rows alone, padding kept.
  GoldenModel rows(const std::vector<size_t>& picked) const {
    GoldenModel some = *this;
    some.input_ids.clear(), some.attention_mask.clear();
    for (const size_t row : picked) {
      some.input_ids.push_back(input_ids[row]);
      some.attention_mask.push_back(attention_mask[row]);
    }
    for (auto& one : some.cases) {
      const GoldenCase all = one;
      const auto n = static_cast<size_t>(one.options.num_return_sequences);
      one.sequences.clear(), one.new_tokens.clear(), one.scores.clear(), one.scores_f64.clear();
      for (const size_t row : picked) {
        for (size_t i = row * n; i < (row + 1) * n; ++i) {
          one.new_tokens.push_back(all.new_tokens[i]);
          one.scores.push_back(all.scores[i]);
          one.scores_f64.push_back(all.scores_f64[i]);
        }
      }
    }
    return some;
  }
};

/// All models of fixtures/generation_goldens_a.json; `folder` is the shared fixtures folder.
inline std::vector<GoldenModel> load_goldens(const std::string& folder) {
  const std::string path = folder + "/generation_goldens_a.json";
  const Json json = read_json(path);
  std::vector<GoldenModel> models;
  for (const auto& [family, entry] : json.at("models").items()) {
    GoldenModel& model = models.emplace_back();
    model.family = family;
    model.folder = folder + "/" + entry.at("directory").get<std::string>();
    model.input_ids = entry.at("input_ids").get<std::vector<std::vector<int64_t>>>();
    model.attention_mask = entry.at("attention_mask").get<std::vector<std::vector<int64_t>>>();
    const Json config = read_json(model.folder + "/config.json");
    model.vocab_size = config.at("vocab_size").get<int64_t>();
    model.pad = json.at("common").at("pad").get<int64_t>();
    for (const auto& one : entry.at("cases")) {
      GoldenCase& golden = model.cases.emplace_back();
      golden.name = family + "/" + one.at("name").get<std::string>();
      golden.options = generate::GenerationOptions::from_generation_config(one.at("options"), path);
      golden.options.eos_token_id = {json.at("common").at("eos").get<int64_t>()};
      golden.options.pad_token_id = model.pad;
      golden.sequences = one.at("sequences").get<std::vector<std::vector<int64_t>>>();
      golden.new_tokens = one.at("new_tokens").get<std::vector<std::vector<int64_t>>>();
      golden.scores = one.at("scores").get<std::vector<double>>();
      golden.scores_f64 = one.at("scores_f64").get<std::vector<double>>();
    }
  }
  return models;
}

/// Makes a decoder of all rows of the model's input (input_ids, attention_mask; padding as they stand).
using DecoderFactory = std::function<std::unique_ptr<generate::Decoder>(const GoldenModel& model)>;

struct GoldenCounts {
  int64_t cases = 0, sequences = 0, ids = 0;
  double worst_score = 0;  ///< largest |score - golden| / max(1, |golden|)
};

/// Runs every case; sequences must be equal, scores within `tolerance` of scores_f64. `whole`: the rows are all of the
/// golden's, so that padded sequences can be compared too.
inline GoldenCounts expect_goldens(const GoldenModel& model, const DecoderFactory& make, double tolerance,
                                   bool whole = true) {
  GoldenCounts counts;
  for (const auto& golden : model.cases) {
    SCOPED_TRACE(golden.name);
    const auto decoder = make(model);
    const auto result = generate::generate(*decoder, golden.options);
    if (whole) EXPECT_EQ(result.padded(model.pad), golden.sequences);
    size_t at = 0;
    for (const auto& item : result.items) {
      for (const auto& hypothesis : item) {
        if (at == golden.new_tokens.size()) break;
        std::vector<int64_t> expected = golden.new_tokens[at];  // padded to the longest row
        while (!expected.empty() && expected.back() == model.pad) expected.pop_back();
        EXPECT_EQ(hypothesis.ids, expected);
        const double off = std::abs(hypothesis.score - golden.scores_f64[at]);
        const double error = off / std::max(1.0, std::abs(golden.scores_f64[at]));
        EXPECT_LE(error, tolerance) << hypothesis.score << " where the golden has " << golden.scores_f64[at];
        counts.worst_score = std::max(counts.worst_score, error);
        counts.ids += static_cast<int64_t>(hypothesis.ids.size());
        ++counts.sequences;
        ++at;
      }
    }
    EXPECT_EQ(at, golden.new_tokens.size()) << "fewer sequences than the golden has";
    ++counts.cases;
  }
  return counts;
}

}  // namespace palimpsest::test
