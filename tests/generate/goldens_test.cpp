// SPDX-License-Identifier: Apache-2.0
// The 39 generation goldens of transformers 5.24: ids equal, scores within 1e-5, whatever the batch.
#include "tests/generate/goldens.h"

#include "palimpsest/checkpoint/model_folder.h"
#include "palimpsest/generate/prompts.h"

namespace palimpsest::test {
namespace {

/// A decoder with caches that keeps its model.
class OwningDecoder : public generate::Decoder {
 public:
  OwningDecoder(std::shared_ptr<models::Model> model, const GoldenModel& golden)
      : model_(std::move(model)),
        decoder_(generate::make_decoder(*model_, golden.input_ids,
                                        {.pad_id = golden.pad, .decoder_start_id = golden.decoder_start})) {}
  int64_t items() const override { return decoder_->items(); }
  int64_t vocab_size() const override { return decoder_->vocab_size(); }
  std::optional<int64_t> longest() const override { return decoder_->longest(); }
  at::Tensor start_ids() const override { return decoder_->start_ids(); }
  at::Tensor left_padding() const override { return decoder_->left_padding(); }
  at::Tensor start() override { return decoder_->start(); }
  at::Tensor step(const at::Tensor& ids) override { return decoder_->step(ids); }
  void reorder(const std::vector<int64_t>& rows) override { decoder_->reorder(rows); }
  int64_t state_bytes() const override { return decoder_->state_bytes(); }

 private:
  std::shared_ptr<models::Model> model_;
  std::unique_ptr<generate::Decoder> decoder_;
};

std::unique_ptr<generate::Decoder> model_decoder(const GoldenModel& golden) {
  return std::make_unique<OwningDecoder>(checkpoint::load_model(golden.folder).model, golden);
}

TEST(GenerationGoldens, AreAllRead) {
  SKIP_WITHOUT_SHARED("fixtures/generation_goldens_a.json");
  const auto models = load_goldens(shared("fixtures"));
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[0].family, "bart");
  EXPECT_EQ(models[1].family, "gpt2");
  EXPECT_EQ(models[0].cases.size() + models[1].cases.size(), 39u);
  int beams = 0, never = 0, forced = 0;
  for (const auto& model : models) {
    EXPECT_EQ(model.vocab_size, 128);
    EXPECT_EQ(model.input_ids.size(), 3u);
    for (const auto& golden : model.cases) {
      EXPECT_EQ(golden.options.max_new_tokens, 14);
      beams += golden.options.num_beams > 1;
      never += golden.options.early_stopping == "never";
      forced += golden.options.forced_bos_token_id == 7;
      EXPECT_EQ(golden.new_tokens.size(), 3u * static_cast<size_t>(golden.options.num_return_sequences));
    }
  }
  EXPECT_EQ(beams, 32);
  EXPECT_EQ(never, 8);
  EXPECT_EQ(forced, 3);
}

TEST(GenerationGoldens, TheSearchesGiveThem) {  // FR-85
  SKIP_WITHOUT_SHARED("fixtures/generation_goldens_a.json");
  GoldenCounts total;
  for (const auto& model : load_goldens(shared("fixtures"))) {
    const GoldenCounts counts = expect_goldens(model, model_decoder, 1e-5);
    total.cases += counts.cases;
    total.sequences += counts.sequences;
    total.ids += counts.ids;
    total.worst_score = std::max(total.worst_score, counts.worst_score);
  }
  EXPECT_EQ(total.cases, 39);
  EXPECT_EQ(total.sequences, 132);
  RecordProperty("ids", std::to_string(total.ids));
  printf("%ld cases, %ld sequences, %ld ids, worst score error %.2g\n", total.cases, total.sequences, total.ids,
         total.worst_score);
}

TEST(GenerationGoldens, DoNotDependOnTheBatch) {  // FR-84
  SKIP_WITHOUT_SHARED("fixtures/generation_goldens_a.json");
  for (const auto& model : load_goldens(shared("fixtures")))
    for (const auto& rows : {std::vector<size_t>{0}, {1}, {2}, {2, 0}, {1, 2, 0, 1}})
      expect_goldens(model.rows(rows), model_decoder, 1e-5, false);
}

TEST(GenerationGoldens, RandomCombinationsOfOptionsGiveWhatTheReferenceGives) {  // FR-85
  SKIP_WITHOUT_SHARED("fixtures/generation_goldens_a.json");
  const Json cases = read_json(fixture("generation/options.json"));
  int64_t count = 0, sequences = 0, beams = 0;
  double worst = 0;
  for (const auto& model : load_goldens(shared("fixtures"))) {
    for (const auto& one : cases.at(model.family)) {
      SCOPED_TRACE(model.family + " " + one.at("options").dump());
      const auto options = generate::GenerationOptions::from_generation_config(one.at("options"), "options.json");
      const auto decoder = model_decoder(model);
      const auto result = generate::generate(*decoder, options, {.encoder_ids = model.input_ids});
      std::vector<std::vector<int64_t>> rows;
      std::vector<double> scores;
      for (const auto& item : result.items) {
        for (const auto& hypothesis : item) {
          rows.push_back(hypothesis.ids);
          scores.push_back(hypothesis.score);
        }
      }
      ASSERT_EQ(rows, one.at("new_tokens").get<std::vector<std::vector<int64_t>>>());
      for (size_t i = 0; i < scores.size(); ++i) {
        const auto expected = one.at("scores")[i].get<double>();
        const double error = std::abs(scores[i] - expected) / std::max(1.0, std::abs(expected));
        EXPECT_LE(error, 1e-5) << scores[i] << " where the reference has " << expected;
        worst = std::max(worst, error);
      }
      ++count;
      sequences += static_cast<int64_t>(rows.size());
      beams += options.num_beams > 1;
    }
  }
  EXPECT_EQ(count, 120);
  printf("%ld cases, %ld with beams, %ld sequences, worst score error %.2g\n", count, beams, sequences, worst);
}

}  // namespace
}  // namespace palimpsest::test
