// SPDX-License-Identifier: Apache-2.0
// A language model's loss: every token but a document's first once, whatever windows, strides and carried state
// (FR-96, FR-97).
#include <cmath>
#include <map>

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"
#include "palimpsest/models/gpt2.h"
#include "palimpsest/nn/loss.h"
#include "palimpsest/train/evaluate.h"
#include "tests/support/tensors.h"

namespace palimpsest::train {
namespace {

constexpr int64_t kVocabulary = 30;

std::shared_ptr<models::Gpt2Model> make_model(const std::string& attention = "dense",
                                              const std::string& positions = "absolute", int64_t rows = 64) {
  models::Gpt2Config config;
  config.vocab_size = kVocabulary;
  config.n_positions = rows;
  config.n_embd = 16;
  config.n_layer = config.n_head = 2;
  config.bos_token_id = config.eos_token_id = 2;
  config.attention = attention;
  config.positions = models::Positions::parse(positions);
  auto model = std::make_shared<models::Gpt2Model>(config, at::kDouble);
  model->initialize({.std = 0.4, .seed = 3});
  model->eval();
  return model;
}

std::vector<std::vector<int32_t>> texts(std::vector<int64_t> lengths) {
  std::vector<std::vector<int32_t>> made;
  for (size_t d = 0; d < lengths.size(); ++d) {
    Random random(random_key(5, d));
    made.emplace_back();
    for (int64_t i = 0; i < lengths[d]; ++i) made.back().push_back(static_cast<int32_t>(4 + random.below(26)));
  }
  return made;
}

EvalData data_of(const std::vector<std::vector<int32_t>>& documents, int64_t segment, int64_t overlap) {
  EvalData data{data::corpus_of(documents), {}, data::segment_plan({.segment = segment, .overlap = overlap})};
  data.spans = data::whole_documents(*data.corpus);
  return data;
}

const checkpoint::Task kLm{"lm", 2, 0};

LossReport measured(const models::Model& model, const std::vector<std::vector<int32_t>>& documents, int64_t segment,
                    int64_t overlap, Carry carry, int64_t batch = 4) {
  const EvalData data = data_of(documents, segment, overlap);
  const BatchMaker maker(data.corpus, data.spans, data.plan, {.tasks = {}}, {kLm}, {2, 1, 2}, 1);
  return evaluate_loss(model, data, maker, kLm, nullptr, {.carry = carry, .batch = batch});
}

/// The loss of token `at` out of the tokens from `first` on.
double loss_at(const models::Gpt2Model& model, const std::vector<int32_t>& text, int64_t first, int64_t at) {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> ids(text.begin() + first, text.begin() + at);
  const at::Tensor logits = model.logits(model.forward(at::tensor(ids, at::kLong).unsqueeze(0), {}).select(1, -1));
  return -at::log_softmax(logits, -1)[0][text[static_cast<size_t>(at)]].item<double>();
}

TEST(LanguageModel, EveryTokenIsScoredOnceWithTheContextOfItsWindow) {
  const auto model = make_model();
  const auto text = texts({10});
  struct Case {
    int64_t window, stride;
    std::vector<int64_t> counts, firsts;  ///< of each window: targets, and where its context begins
  };
  for (const Case& c :
       {Case{4, 2, {3, 2, 2, 2}, {0, 2, 4, 6}}, Case{4, 4, {3, 4, 2}, {0, 3, 7}}, Case{10, 10, {9}, {0}},
        Case{30, 10, {9}, {0}}, Case{3, 1, {2, 1, 1, 1, 1, 1, 1, 1}, {0, 1, 2, 3, 4, 5, 6, 7}}}) {
    const LossReport report = measured(*model, text, c.window, c.window - c.stride, Carry::kReset);
    EXPECT_EQ(report.total.targets, 9);
    ASSERT_EQ(report.steps.size(), c.counts.size());
    double expected = 0;
    int64_t at = 1;
    for (size_t i = 0; i < c.counts.size(); ++i) {
      EXPECT_EQ(report.steps[i].sum.targets, c.counts[i]);
      for (int64_t j = 0; j < c.counts[i]; ++j) expected += loss_at(*model, text[0], c.firsts[i], at++);
    }
    EXPECT_NEAR(report.total.nll, expected, 1e-9) << c.window << " " << c.stride;
  }
}

TEST(LanguageModel, CarriedStateGivesTheLossOfTheWholeText) {
  const auto documents = texts({50, 1, 7, 33, 2});
  for (const char* attention : {"dense", "window:5", "abc:3", "random:4", "compressive:window=4,slots=3,rate=2",
                                "linformer:4", "abc:3,normalizer=frozen", "strided:4", "global:first=2,window=4"}) {
    const auto model = make_model(attention);
    double expected = 0;
    int64_t targets = 0;
    for (const auto& text : documents) {
      for (int64_t at = 1; at < static_cast<int64_t>(text.size()); ++at, ++targets)
        expected += loss_at(*model, text, 0, at);
    }
    for (const int64_t segment : {5, 16, 50}) {
      for (const int64_t batch : {1, 3, 8}) {
        const LossReport report = measured(*model, documents, segment, 0, Carry::kKeep, batch);
        EXPECT_EQ(report.total.targets, targets);
        EXPECT_NEAR(report.total.nll, expected, 1e-8) << attention << ", segments of " << segment;
        EXPECT_EQ(report.documents.size(), 4U);
      }
    }
  }
}

TEST(LanguageModel, AModelThatKnowsNothingHasThePerplexityOfItsVocabulary) {
  const auto model = make_model();
  {
    const at::NoGradGuard no_grad;
    model->wte->weight.zero_();
  }
  for (const auto& [window, overlap] : {std::pair<int64_t, int64_t>{4, 2}, {7, 0}, {20, 19}}) {
    for (const int64_t batch : {1, 5})
      EXPECT_NEAR(measured(*model, texts({40, 9}), window, overlap, Carry::kReset, batch).total.perplexity(),
                  kVocabulary, 1e-9);
  }
}

TEST(LanguageModel, ATextPastThePositionsIsAnErrorThatNamesTheWaysOut) {
  const auto documents = texts({40});
  const auto ends = make_model("window:5", "absolute", 16);
  try {
    measured(*ends, documents, 8, 0, Carry::kKeep);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.fix().find("--carry reset"), std::string::npos);
    EXPECT_NE(error.fix().find("--positions segment:16"), std::string::npos);
  }
  EXPECT_EQ(measured(*ends, documents, 8, 0, Carry::kReset).total.targets, 39);
  EXPECT_EQ(measured(*make_model("window:5", "segment:16", 16), documents, 8, 0, Carry::kKeep).total.targets, 39);
  EXPECT_THROW(measured(*make_model("lsh:bucket=4,rounds=1"), documents, 8, 0, Carry::kKeep), Error);
  EXPECT_THROW(measured(*ends, documents, 8, 0, Carry::kOther), Error);
}

TEST(LanguageModel, TrainingAsksForEveryTokenAndTheEnd) {
  const auto documents = texts({11, 6, 8});
  for (const int64_t overlap : {0, 2}) {
    const EvalData data = data_of(documents, 4, overlap);
    TaskOptions options;
    options.tasks = {{"lm", 1.0}};
    const BatchMaker maker(data.corpus, data.spans, data.plan, options, {kLm}, {2, 1, 2}, 1);
    data::Lanes lanes(data.corpus, data.spans, data.plan, {.lanes = 2});
    std::map<int64_t, std::vector<int64_t>> asked;
    for (auto items = lanes.next(); !items.empty(); items = lanes.next()) {
      const SegmentBatch batch = maker.training(items);
      EXPECT_EQ(batch.ids.size(1), 0);
      EXPECT_EQ(batch.tokens, batch.main.count);
      EXPECT_LE(batch.main.labels.size(1), 4);
      for (size_t lane = 0; lane < items.size(); ++lane) {
        for (int64_t t = 0; t < batch.main.labels.size(1); ++t) {
          const auto label = batch.main.labels[static_cast<int64_t>(lane)][t].item<int64_t>();
          if (label != nn::kIgnore) asked[items[lane].document].push_back(label);
        }
      }
    }
    for (size_t d = 0; d < documents.size(); ++d) {
      std::vector<int64_t> expected(documents[d].begin() + 1, documents[d].end());
      if (overlap > 0 || documents[d].size() % 4 != 0) expected.push_back(2);  // a full window has no room for the end
      EXPECT_EQ(asked[static_cast<int64_t>(d)], expected);
    }
  }
}

}  // namespace
}  // namespace palimpsest::train
