// SPDX-License-Identifier: Apache-2.0
// Measuring: independent of batch size and order, M10, targets counted, tasks' targets.
#include "palimpsest/train/evaluate.h"

#include <cmath>
#include <map>
#include <set>

#include "palimpsest/core/error.h"
#include "palimpsest/data/synthetic.h"
#include "palimpsest/nn/loss.h"
#include "tests/support/paths.h"
#include "tests/support/tensors.h"

namespace palimpsest::train {
namespace {

constexpr int64_t kSymbols = 20, kFirst = 8, kVocabulary = kFirst + kSymbols;

std::shared_ptr<models::BartModel> make_model(int64_t slots = 4, at::ScalarType dtype = at::kFloat) {
  models::BartConfig config;
  config.vocab_size = kVocabulary;
  config.d_model = 16;
  config.encoder_layers = config.decoder_layers = 2;
  config.encoder_attention_heads = config.decoder_attention_heads = 2;
  config.encoder_ffn_dim = config.decoder_ffn_dim = 24;
  config.max_position_embeddings = 20;
  config.memory = {.kind = "membart", .slots = slots};
  auto model = std::make_shared<models::BartModel>(config, dtype);
  model->initialize({.std = 0.3, .slot_std = 1, .seed = 3});
  model->eval();
  return model;
}

const SpecialIds kIds{0, 1, 2, 4};
const std::vector<checkpoint::Task> kTasks = {{"recall", 5, 1}, {"recall", 6, 2}, {"next", 7, 0}, {"denoise", 3, 0}};

const data::SegmentOptions kSegments{.segment = 6, .overlap = 0};

/// Documents of unequal lengths.
EvalData make_data(int64_t documents = 7) {
  std::vector<std::vector<int32_t>> texts;
  for (int64_t d = 0; d < documents; ++d) {
    Random random(random_key(5, d));
    std::vector<int32_t> text;
    for (int64_t i = 0; i < 7 + 9 * d; ++i) text.push_back(static_cast<int32_t>(kFirst + random.below(kSymbols)));
    texts.push_back(text);
  }
  EvalData data{data::corpus_of(texts), {}, data::segment_plan(kSegments)};
  data.spans = data::whole_documents(*data.corpus);
  return data;
}

BatchMaker make_maker(const EvalData& data) {
  return {data.corpus, data.spans, data.plan, {.tasks = {}}, kTasks, kIds, 1};
}

TEST(Evaluate, DoesNotDependOnTheBatchSize) {  // FR-97, M10
  const auto model = make_model();
  const EvalData data = make_data();
  const BatchMaker maker = make_maker(data);
  for (const Carry carry : {Carry::kKeep, Carry::kReset, Carry::kOther, Carry::kOff}) {
    for (const auto& task : kTasks) {
      LossReport first;
      RecallReport first_recall;
      for (const int64_t batch : {1, 3, 16}) {
        const WalkOptions walk{.carry = carry, .batch = batch};
        const LossReport report = evaluate_loss(*model, data, maker, task, nullptr, walk);
        const RecallReport recall = evaluate_recall(*model, data, maker, task, kIds, nullptr, walk);
        if (batch == 1) first = report, first_recall = recall;
        EXPECT_EQ(report.total.targets, first.total.targets);
        EXPECT_NEAR(report.total.nll, first.total.nll, 1e-5 * first.total.nll);
        EXPECT_EQ(recall.recovered, first_recall.recovered);
        ASSERT_EQ(report.steps.size(), first.steps.size());
        for (size_t i = 0; i < report.steps.size(); ++i) {
          EXPECT_EQ(report.steps[i].span, first.steps[i].span);
          EXPECT_EQ(report.steps[i].place, first.steps[i].place);
          EXPECT_EQ(report.steps[i].sum.targets, first.steps[i].sum.targets);
        }
        for (const auto& [segment, sum] : first.by_segment)
          EXPECT_NEAR(report.by_segment.at(segment).nll, sum.nll, 1e-4 * sum.nll);
      }
    }
  }
}

TEST(Evaluate, DoesNotDependOnTheOrderOfDocuments) {
  const auto model = make_model();
  EvalData data = make_data();
  const double forward = evaluate_loss(*model, data, make_maker(data), kTasks[0], nullptr, {.batch = 3}).total.nll;
  std::reverse(data.spans.begin(), data.spans.end());
  EXPECT_NEAR(evaluate_loss(*model, data, make_maker(data), kTasks[0], nullptr, {.batch = 3}).total.nll, forward,
              1e-5 * forward);
}

TEST(Evaluate, CountsEachTargetOnce) {  // FR-96
  const auto model = make_model();
  const EvalData data = make_data();
  int64_t recall = 0, next = 0, denoise = 0;
  for (const auto& span : data.spans) {
    const int64_t segments = data::segment_count(span.size(), kSegments), last = span.size() - 6 * (segments - 1);
    recall += 7 * (segments - 1);                              // whole segments and their eos
    next += segments > 1 ? 6 * (segments - 2) + last + 1 : 0;  // the document's own end is a target, a segment's is not
    denoise += span.size() + segments;
  }
  const auto targets = [&](const checkpoint::Task& task) {
    return evaluate_loss(*model, data, make_maker(data), task, nullptr, {.batch = 4}).total.targets;
  };
  EXPECT_EQ(targets(kTasks[0]), recall);
  EXPECT_EQ(targets(kTasks[2]), next);
  EXPECT_EQ(targets(kTasks[3]), denoise);
}

TEST(Evaluate, AModelThatKnowsNothingHasThePerplexityOfItsVocabulary) {  // FR-96
  const auto model = make_model();
  {
    const at::NoGradGuard no_grad;
    model->shared->weight.zero_();
  }
  const EvalData data = make_data();
  for (const int64_t batch : {1, 5})
    EXPECT_NEAR(evaluate_loss(*model, data, make_maker(data), kTasks[2], nullptr, {.batch = batch}).total.perplexity(),
                kVocabulary, 1e-3);
}

TEST(Evaluate, WithoutMemoryEveryCarryIsTheSame) {
  const auto model = make_model(0);
  const EvalData data = make_data();
  const double kept = evaluate_loss(*model, data, make_maker(data), kTasks[2], nullptr, {}).total.nll;
  for (const Carry carry : {Carry::kReset, Carry::kOff})
    EXPECT_DOUBLE_EQ(evaluate_loss(*model, data, make_maker(data), kTasks[2], nullptr, {.carry = carry}).total.nll,
                     kept);
}

TEST(Evaluate, ResetEqualsEveryDocumentCutIntoItsSegments) {
  const auto model = make_model(4, at::kDouble);
  const EvalData data = make_data();
  // Denoising needs nothing but the segment: a memory that is reset before each is the same as documents of one
  // segment.
  EvalData cut = data;
  cut.spans.clear();
  for (const auto& span : data.spans) {
    for (const auto& window : data::segments_of(span, kSegments)) cut.spans.push_back(window);
  }
  const double reset =
      evaluate_loss(*model, data, make_maker(data), kTasks[3], nullptr, {.carry = Carry::kReset}).total.nll;
  EXPECT_NEAR(evaluate_loss(*model, cut, make_maker(cut), kTasks[3], nullptr, {}).total.nll, reset, 1e-9 * reset);
}

TEST(Evaluate, AnothersMemoryNeedsAnother) {
  const auto model = make_model();
  EvalData data = make_data();
  data.spans.resize(1);
  EXPECT_THROW(evaluate_loss(*model, data, make_maker(data), kTasks[0], nullptr, {.carry = Carry::kOther}), Error);
}

TEST(Evaluate, ABrokenMemoryIsNamed) {
  const auto model = make_model();
  {
    const at::NoGradGuard no_grad;
    model->memory->memory_bias[0][1].fill_(std::nan(""));
  }
  const EvalData data = make_data();
  try {
    evaluate_loss(*model, data, make_maker(data), kTasks[0], nullptr, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("the memory is not finite"), std::string::npos) << e.what();
  }
}

data::LaneItem item_of(const EvalData& data, int64_t span, int64_t segment) {
  const auto window = data::segment_of(data.spans[static_cast<size_t>(span)], segment, kSegments);
  return {.idle = false,
          .reset = segment == 0,
          .document = window.document,
          .segment = segment,
          .tokens = data.corpus->tokens(window.document)
                        .subspan(static_cast<size_t>(window.begin), static_cast<size_t>(window.size())),
          .last = segment + 1 == data::segment_count(data.spans[static_cast<size_t>(span)].size(), kSegments),
          .span = span,
          .begin = window.begin};
}

TEST(Evaluate, M10LanesOfUnequalDocumentsEqualOneDocumentAtATime) {
  const auto model = make_model(4, at::kDouble);
  const EvalData data = make_data();
  const BatchMaker maker = make_maker(data);
  const auto memories = [&](int64_t batch) {
    std::map<std::pair<int64_t, int64_t>, at::Tensor> seen;
    walk(
        *model, data, {.batch = batch}, [&](auto items) { return maker.evaluation(std::move(items), kTasks[0]); },
        [&](const SegmentBatch& read, const models::EncoderOutput& encoded) {
          for (size_t lane = 0; lane < read.items.size(); ++lane) {
            const auto& item = read.items[lane];
            if (!item.idle) seen[{item.span, item.segment}] = encoded.memory.slots[static_cast<int64_t>(lane)].clone();
          }
        });
    return seen;
  };
  const auto alone = memories(1), side_by_side = memories(3);
  ASSERT_EQ(side_by_side.size(), alone.size());
  for (const auto& [place, memory] : alone)
    test::expect_close(side_by_side.at(place), memory, 1e-10, fmt::format("{}.{}", place.first, place.second));
}

TEST(Evaluate, WritesExactlyTheRepliesThatWereAskedForWhateverTheBatch) {
  const auto model = make_model();
  const auto tokenizer = text::Tokenizer::load(test::fixture("tokenizer_small.json"));
  std::vector<std::vector<int32_t>> texts;
  std::vector<std::vector<data::Step>> steps;
  for (int64_t d = 0; d < 5; ++d) {  // 2, 3, 4, 5, 6 turns to write
    texts.emplace_back(12, static_cast<int32_t>(kFirst + d));
    steps.emplace_back();
    for (int64_t turn = 0; turn < d + 2; ++turn)
      steps.back().push_back({.read = {d, 0, turn + 1}, .write = {d, turn + 1, turn + 4}, .place = 2 * turn + 1});
  }
  EvalData data{data::corpus_of(texts), {}, data::given_plan(steps, 12)};
  data.spans = data::whole_documents(*data.corpus);
  const checkpoint::Task task{"respond", 2, 0};
  const BatchMaker maker(data.corpus, data.spans, data.plan, {.tasks = {}}, {task}, kIds, 1);
  generate::GenerationOptions generation;
  generation.max_new_tokens = 3;
  const auto replies = [&](int64_t most, int64_t batch, int64_t max_segments = 0) {
    return evaluate_replies(*model, data, maker, task, *tokenizer, generation,
                            {.batch = batch, .max_segments = max_segments}, most);
  };
  for (const int64_t most : {1, 4, 7, 20, 50}) {
    for (const int64_t batch : {1, 3, 16}) {
      const ReplyReport report = replies(most, batch);
      EXPECT_EQ(report.count, std::min<int64_t>(most, 20)) << "batch " << batch;
      EXPECT_EQ(static_cast<int64_t>(report.replies.size()), report.count);
      // The first in the order of documents: 7 replies are those of the documents of 2 and 3, and 2 of the next.
      EXPECT_EQ(report.f1.size(), most == 1 ? 1U : most == 4 ? 2U : most == 7 ? 3U : 5U);
      EXPECT_EQ(report.f1.back().weight, most == 1 ? 1 : most < 20 ? 2 : 6);
    }
  }
  EXPECT_EQ(replies(50, 3, 2).count, 10) << "two steps of each document";
  const LossReport loss = evaluate_loss(*model, data, maker, task, nullptr, {.batch = 3});
  EXPECT_EQ(loss.steps.at(1).place, 3) << "a dialogue's steps are counted by their turns";
}

TEST(Evaluate, TheCurrentSegmentIsAskedOfTheMemoryAlone) {
  const auto model = make_model(4, at::kDouble);
  EvalData data = make_data(1);
  data.spans[0].end = 6;  // one segment
  const checkpoint::Task current{"current", 3, 0};
  const BatchMaker maker = make_maker(data);
  const auto loss = [&](Carry carry) {
    return evaluate_loss(*model, data, maker, current, nullptr, {.carry = carry}).total.nll;
  };
  const at::NoGradGuard no_grad;
  data::Lanes lanes(data.corpus, data.spans, data.plan, {.lanes = 1});
  const SegmentBatch batch = maker.evaluation(lanes.next(), current);
  models::EncodeInput input;
  input.ids = batch.ids;
  const auto encoded = model->encode(input);
  models::EncoderOutput alone;
  alone.context = alone.hidden = encoded.memory.slots;
  const auto expected = [&](const models::EncoderOutput& seen) {
    return nn::target_loss(model->logits(model->decode(batch.main.decoder_ids, {}, seen)), batch.main.labels)
        .nll.item<double>();
  };
  EXPECT_NEAR(loss(Carry::kKeep), expected(alone), 1e-9);
  EXPECT_GT(std::abs(loss(Carry::kKeep) - expected(encoded)), 1e-6) << "else this test says nothing";
  EXPECT_GT(std::abs(loss(Carry::kOff) - expected(alone)), 1e-6) << "without a memory there is only the row";
}

TEST(Evaluate, StepsAndDocumentsAddUpToTheWhole) {
  const auto model = make_model();
  const EvalData data = make_data();
  const BatchMaker maker = make_maker(data);
  const LossReport report = evaluate_loss(*model, data, maker, kTasks[0], nullptr, {.batch = 3});
  LossSum all;
  for (const StepLoss& step : report.steps) all.targets += step.sum.targets, all.nll += step.sum.nll;
  EXPECT_EQ(all.targets, report.total.targets);
  EXPECT_NEAR(all.nll, report.total.nll, 1e-10 * report.total.nll);
  EXPECT_EQ(static_cast<int64_t>(report.steps.size()), report.segments);
  const RecallReport recall = evaluate_recall(*model, data, maker, kTasks[0], kIds, nullptr, {.batch = 3});
  double given = 0, tokens = 0;
  for (const DocumentScore& document : recall.documents) given += document.sum, tokens += document.weight;
  EXPECT_EQ(given, static_cast<double>(recall.recovered));
  EXPECT_EQ(tokens, static_cast<double>(recall.tokens));
}

TEST(Tasks, AskForTheRightSegments) {
  const EvalData data = make_data();
  const BatchMaker maker = make_maker(data);
  const auto segment = [&](int64_t index) {
    const auto tokens = item_of(data, 3, index).tokens;
    return std::vector<int32_t>(tokens.begin(), tokens.end());
  };
  EXPECT_EQ(maker.reference(item_of(data, 3, 0), kTasks[0]), std::nullopt);
  EXPECT_EQ(maker.reference(item_of(data, 3, 1), kTasks[1]), std::nullopt);
  EXPECT_EQ(maker.reference(item_of(data, 3, 3), kTasks[0]), segment(2));
  EXPECT_EQ(maker.reference(item_of(data, 3, 3), kTasks[1]), segment(1));
  EXPECT_EQ(maker.reference(item_of(data, 3, 3), kTasks[2]), segment(4));
  EXPECT_EQ(maker.reference(item_of(data, 3, 3), kTasks[3]), segment(3));
  const int64_t count = data::segment_count(data.spans[3].size(), kSegments);
  EXPECT_EQ(maker.reference(item_of(data, 3, count - 1), kTasks[2]), std::nullopt);
}

TEST(Tasks, IdleLanesCostNothing) {  // M18
  const EvalData data = make_data();
  const SegmentBatch batch = make_maker(data).evaluation({item_of(data, 3, 1), data::LaneItem{}}, kTasks[0]);
  EXPECT_EQ(batch.main.count, 7);
  EXPECT_TRUE(batch.main.labels[1].eq(nn::kIgnore).all().item<bool>());
  EXPECT_FALSE(batch.mask[1].any().item<bool>());
  EXPECT_TRUE(batch.reset[1].item<bool>());
}

TEST(Tasks, DecoderInputsAreMaskedAtTheGivenRateAndTargetsAreNot) {
  const EvalData data = make_data(40);
  const BatchMaker maker(data.corpus, data.spans, data.plan, {.tasks = {{"recall", 1.0}}, .decoder_mask_rate = 0.5},
                         {{"recall", 2, 1}}, kIds, 1);
  int64_t masked = 0, all = 0;
  for (int64_t span = 5; span < 40; ++span) {
    for (int64_t segment = 1; segment < data::segment_count(data.spans[static_cast<size_t>(span)].size(), kSegments);
         ++segment) {
      const SegmentBatch batch = maker.training({item_of(data, span, segment)});
      masked += batch.main.decoder_ids.eq(kIds.mask).sum().item<int64_t>();
      all += batch.main.decoder_ids.size(1) - 1;
      EXPECT_FALSE(batch.main.labels.eq(kIds.mask).any().item<bool>());
      EXPECT_EQ(batch.main.decoder_ids[0][0].item<int64_t>(), 2);
    }
  }
  EXPECT_NEAR(static_cast<double>(masked) / static_cast<double>(all), 0.5, 0.03);
}

TEST(Tasks, ARespondingModelReadsAFramedHistoryAndWritesTheTurn) {
  // History 10 11 12, then the answer 20 21; the next step reads more and has an answer of its own.
  const auto corpus = data::corpus_of({{10, 11, 12, 13, 14, 20, 21, 22}});
  const std::vector<data::Step> steps = {{.read = {0, 0, 3}, .write = {0, 5, 7}, .place = 1},
                                         {.read = {0, 1, 5}, .write = {0, 7, 8}, .place = 3}};
  const EvalData data{corpus, data::whole_documents(*corpus), data::given_plan({steps}, 8)};
  const BatchMaker maker(data.corpus, data.spans, data.plan, {.tasks = {{"respond", 1.0}}}, {{"respond", 2, 0}}, kIds,
                         1);
  data::Lanes lanes(data.corpus, data.spans, data.plan, {.lanes = 1});
  SegmentBatch batch = maker.training(lanes.next());
  EXPECT_TRUE(batch.ids.equal(at::tensor({0, 10, 11, 12, 2}, at::kLong).view({1, 5})));
  EXPECT_TRUE(batch.main.labels.equal(at::tensor({20, 21, 2}, at::kLong).view({1, 3})));
  EXPECT_TRUE(batch.main.decoder_ids.equal(at::tensor({2, 20, 21}, at::kLong).view({1, 3})));
  EXPECT_TRUE(batch.reset[0].item<bool>());
  batch = maker.training(lanes.next());
  EXPECT_TRUE(batch.ids.equal(at::tensor({0, 11, 12, 13, 14, 2}, at::kLong).view({1, 6})));
  EXPECT_FALSE(batch.reset[0].item<bool>());
  EXPECT_TRUE(lanes.next().empty());
}

TEST(Tasks, ADecoderAloneReadsOnIntoWhatItWrites) {
  const auto corpus = data::corpus_of({{10, 11, 12, 20, 21}});
  const EvalData data{corpus, data::whole_documents(*corpus),
                      data::given_plan({{{.read = {0, 0, 3}, .write = {0, 3, 5}, .place = 1}}}, 8)};
  SpecialIds ids = kIds;
  ids.continues = true;
  const BatchMaker maker(data.corpus, data.spans, data.plan, {.tasks = {{"respond", 1.0}}}, {{"respond", 2, 0}}, ids,
                         1);
  const SegmentBatch batch = maker.training(data::Lanes(data.corpus, data.spans, data.plan, {.lanes = 1}).next());
  EXPECT_TRUE(batch.ids.equal(at::tensor({0, 10, 11, 12}, at::kLong).view({1, 4}))) << "no eos before the start token";
  EXPECT_TRUE(batch.main.decoder_ids.equal(at::tensor({2, 20, 21}, at::kLong).view({1, 3})));
}

TEST(Tasks, NoiseDrawsFromTheVocabularysOrdinaryTokens) {  // FR-90
  const auto tokenizer = text::Tokenizer::load(test::fixture("tokenizer_small.json"));
  models::BartConfig config;
  config.vocab_size = tokenizer->vocab_size() + 40;  // rows that a table was rounded up by
  const models::BartModel model(config, at::TensorOptions().device(at::kMeta));
  const SpecialIds ids = SpecialIds::of(model, tokenizer.get());
  ASSERT_FALSE(ids.ordinary.empty());
  for (const int32_t id : ids.ordinary) {
    EXPECT_LT(id, tokenizer->vocab_size());
    EXPECT_FALSE(tokenizer->is_special(id)) << id;
  }
  const EvalData data = make_data(40);
  const BatchMaker maker(data.corpus, data.spans, data.plan, {.tasks = {{"recall", 1.0}}, .noise_share = 1},
                         {{"recall", 2, 1}}, ids, 1);
  std::set<int64_t> drawn;
  for (int64_t span = 5; span < 40; ++span) {
    const at::Tensor read = maker.training({item_of(data, span, 1)}).ids.flatten();
    for (int64_t i = 0; i < read.numel(); ++i) drawn.insert(read[i].item<int64_t>());
  }
  const std::set<int32_t> ordinary(ids.ordinary.begin(), ids.ordinary.end());
  EXPECT_GT(drawn.size(), static_cast<size_t>(kSymbols)) << "more than the text itself holds";
  for (const int64_t id : drawn) EXPECT_TRUE(ordinary.contains(static_cast<int32_t>(id))) << id;
}

TEST(Tasks, AreDrawnByTheirWeights) {
  const EvalData data = make_data(60);
  const BatchMaker maker(data.corpus, data.spans, data.plan, {.tasks = {{"recall", 3.0}, {"denoise", 1.0}}},
                         {kTasks[3], kTasks[0]}, kIds, 1);
  int64_t recalls = 0, all = 0;
  for (int64_t span = 5; span < 60; ++span) {
    for (int64_t segment = 1; segment < data::segment_count(data.spans[static_cast<size_t>(span)].size(), kSegments);
         ++segment, ++all) {
      recalls +=
          maker.training({item_of(data, span, segment)}).main.decoder_ids[0][0].item<int64_t>() == kTasks[0].start_id;
    }
  }
  EXPECT_NEAR(static_cast<double>(recalls) / static_cast<double>(all), 0.75, 0.03);
}

}  // namespace
}  // namespace palimpsest::train
