// SPDX-License-Identifier: Apache-2.0
// The trainer: exact resume, accumulation, decay groups, schedules, metrics.
#include "palimpsest/train/trainer.h"

#include <cmath>
#include <fstream>

#include "palimpsest/checkpoint/safetensors.h"
#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "tests/support/paths.h"
#include "tests/support/tensors.h"
#include "tests/train/small_run.h"

namespace palimpsest::train {
namespace {

using test::expect_close;
using test::expect_identical;

void expect_same_weights(const Trainer& a, const Trainer& b) {
  const auto left = checkpoint::named_tensors(a.model()), right = checkpoint::named_tensors(b.model());
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) expect_identical(left[i].second, right[i].second, left[i].first);
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// The columns that do not depend on the clock.
std::vector<std::string> steps_of(const std::string& path) {
  std::vector<std::string> steps;
  for (const std::string& line : lines_of(path)) {
    const Json json = Json::parse(line);
    steps.push_back(Json({json["step"], json["loss"], json["auxiliary_loss"], json["learning_rate"], json["grad_norm"],
                          json["epoch"]})
                        .dump());
  }
  return steps;
}

TEST(Trainer, StoppingAndResumingEqualsNeverStopping) {  // FR-92
  const test::TemporaryFolder folder;
  TrainOptions whole = small_options(folder, "whole");
  Trainer unbroken(whole);
  unbroken.run();

  TrainOptions parts = small_options(folder, "parts");
  int done = 0;
  {
    Trainer first(parts, {.interrupted = [&] { return done >= 5; },
                          .on_step = [&](int64_t step, const Json&) { done = static_cast<int>(step); }});
    const Json summary = first.run();
    EXPECT_TRUE(summary["interrupted"].get<bool>());
    EXPECT_EQ(first.steps_done(), 5);
  }
  Trainer second(parts);
  EXPECT_EQ(second.steps_done(), 5);
  second.run();
  expect_same_weights(unbroken, second);
  EXPECT_EQ(steps_of(whole.output_dir + "/metrics.jsonl"), steps_of(parts.output_dir + "/metrics.jsonl"));
  EXPECT_EQ(read_file(whole.output_dir + "/checkpoint-10/optimizer.safetensors"),
            read_file(parts.output_dir + "/checkpoint-10/optimizer.safetensors"));
}

TEST(Trainer, AccumulationEqualsTheBigBatch) {  // FR-91
  const test::TemporaryFolder folder;
  for (const auto& [type, tolerance] : {std::pair{"float64", 1e-9}, {"float32", 1e-4}}) {
    std::vector<std::unique_ptr<Trainer>> trainers;
    for (const auto& [lanes, accumulation] : {std::pair{6, 1}, {3, 2}, {1, 6}}) {
      TrainOptions options = small_options(folder, fmt::format("run-{}-{}-{}", type, lanes, accumulation));
      options.lanes = lanes;
      options.accumulation = accumulation;
      options.model.dropout = 0;
      options.dtype = type;
      trainers.push_back(std::make_unique<Trainer>(options));
      for (int step = 0; step < 4; ++step) trainers.back()->step();
    }
    for (size_t i = 1; i < trainers.size(); ++i) {
      for (const char* key : {"loss", "grad_norm"})
        EXPECT_NEAR(trainers[i]->metrics()[key].get<double>(), trainers[0]->metrics()[key].get<double>(), tolerance);
      const auto left = checkpoint::named_tensors(trainers[0]->model()),
                 right = checkpoint::named_tensors(trainers[i]->model());
      // Adam's first steps divide by tiny numbers: where a gradient is 0 up to rounding, its sign is noise.
      for (size_t j = 0; j < left.size(); ++j) {
        if (left[j].first.find("k_proj.bias") == std::string::npos)
          expect_close(right[j].second, left[j].second, 2 * tolerance, fmt::format("{} {}", type, left[j].first));
      }
    }
  }
}

TEST(Trainer, StepWeightsSumToOneWhateverTheirKindAndWhoeverIsIdle) {  // M18
  const test::TemporaryFolder folder;
  for (const char* kind : {"uniform", "pow2", "token"}) {
    TrainOptions options = small_options(folder, kind);
    options.step_weights = kind;
    options.auxiliary_steps = 0;
    options.tasks.tasks = {{"recall:2", 1.0}};  // nothing is asked of the first two segments of a document
    options.lanes = 1;
    options.accumulation = 1;
    options.dtype = "float64";
    Trainer trainer(options);
    for (int step = 0; step < 6; ++step) {
      {
        const at::NoGradGuard no_grad;
        trainer.model().words().zero_();  // it knows nothing: the loss of every step is log V
      }
      trainer.step();
      const double loss = trainer.metrics()["loss"].get<double>();
      EXPECT_NEAR(loss, std::log(static_cast<double>(trainer.model().vocab_size())), 1e-9) << kind << " " << step;
    }
  }
}

TEST(Trainer, LearnsSomethingAndSaysWhatItSeesOfTheMemory) {
  const test::TemporaryFolder folder;
  TrainOptions options = small_options(folder, "run");
  options.model.dropout = 0;
  options.max_steps = 60;
  options.tasks.tasks = {{"denoise", 1.0}};
  options.tasks.auxiliary_weight = 0;
  options.auxiliary_steps = 0;
  options.optimizer.learning_rate = 5e-3;
  Trainer trainer(options);
  trainer.run();
  const auto lines = lines_of(options.output_dir + "/metrics.jsonl");
  ASSERT_EQ(lines.size(), 60u);
  const Json first = Json::parse(lines.front()), last = Json::parse(lines.back());
  EXPECT_LT(last["loss"].get<double>(), 0.8 * first["loss"].get<double>());
  EXPECT_TRUE(last["memory_gradient"]["norm"].is_number());
  EXPECT_TRUE(std::filesystem::exists(options.output_dir + "/options.toml"));
}

TEST(Trainer, AKilledSaveLosesNothing) {
  const test::TemporaryFolder folder;
  TrainOptions options = small_options(folder, "run");
  options.max_steps = 3;
  {
    Trainer trainer(options);
    trainer.run();
  }
  // What a kill in the middle of a save leaves: a temporary folder, and a checkpoint folder without its last file.
  std::filesystem::create_directories(options.output_dir + "/checkpoint-4.tmp-1-0");
  std::filesystem::create_directories(options.output_dir + "/checkpoint-5");
  EXPECT_EQ(newest_checkpoint(options.output_dir), options.output_dir + "/checkpoint-3");
  Trainer resumed(options);
  EXPECT_EQ(resumed.steps_done(), 3);
  EXPECT_FALSE(std::filesystem::exists(options.output_dir + "/checkpoint-4.tmp-1-0"));
}

TEST(Trainer, KeepsTheNewestCheckpoints) {
  const test::TemporaryFolder folder;
  TrainOptions options = small_options(folder, "run");
  options.max_steps = 6;
  options.save_steps = 2;
  options.save_total_limit = 2;
  Trainer(options).run();
  EXPECT_FALSE(std::filesystem::exists(options.output_dir + "/checkpoint-2"));
  EXPECT_TRUE(std::filesystem::exists(options.output_dir + "/checkpoint-4"));
  EXPECT_TRUE(std::filesystem::exists(options.output_dir + "/checkpoint-6"));
}

TEST(Trainer, ItsCheckpointIsAModelFolder) {
  const test::TemporaryFolder folder;
  const TrainOptions options = small_options(folder, "run");
  Trainer trainer(options);
  trainer.step();
  const auto loaded = checkpoint::load_model(trainer.save());
  EXPECT_EQ(loaded.bart()->config().memory.text(), "membart:4");
  EXPECT_EQ(loaded.training.segment, 8);
  EXPECT_TRUE(loaded.training.has("recall"));
  EXPECT_TRUE(loaded.training.has("recall:2"));
  EXPECT_TRUE(loaded.training.has("next"));
  EXPECT_NE(loaded.training.task("recall").start_id, loaded.training.task("next").start_id);
  EXPECT_EQ(loaded.tokenizer()->token_of(static_cast<int32_t>(loaded.training.task("recall:2").start_id)),
            "<recall:2>");
  EXPECT_THROW(loaded.training.task("respond"), Error);
  const auto left = checkpoint::named_tensors(trainer.model()), right = checkpoint::named_tensors(*loaded.model);
  for (size_t i = 0; i < left.size(); ++i) expect_identical(right[i].second, left[i].second, left[i].first);
}

TEST(Trainer, SaysWhatIsWrongWithARecipe) {
  const test::TemporaryFolder folder;
  const auto message = [&](const std::function<void(TrainOptions&)>& spoil) -> std::string {
    TrainOptions options = small_options(folder, "bad");
    spoil(options);
    try {
      Trainer trainer(options);
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 2);
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message([](auto& o) { o.tasks.tasks = {{"recal", 1.0}}; }).find("unknown task \"recal\""),
            std::string::npos);
  EXPECT_NE(message([](auto& o) { o.lanes = 0; }).find("lanes is 0"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.corpus.data = {}; }).find("no data is given"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.corpus.data = {"/nowhere.txt"}; }).find("/nowhere.txt"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.step_weights = "linear"; }).find("step_weights is \"linear\""), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.model.heads = 3; }).find("3 heads do not divide the width 16"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.time_overlap = 3; }).find("time_overlap is 3 at a time_horizon of 3"),
            std::string::npos);
  EXPECT_NE(message([](auto& o) { o.label_smoothing_factor = 1; }).find("label_smoothing_factor is 1"),
            std::string::npos);
  EXPECT_NE(message([](auto& o) { o.early_stopping_patience = 2; }).find("need evaluations"), std::string::npos);
  EXPECT_NE(message([](auto& o) {
              o.early_stopping_patience = 2;
              o.eval_steps = 1;
              o.metric_for_best_model = "recal.loss";
            }).find("no evaluation gives recal.loss"),
            std::string::npos);
  EXPECT_NE(message([](auto& o) { o.optimizer.lr_scheduler_type = "step"; }).find("lr_scheduler_type is \"step\""),
            std::string::npos);
}

TEST(Trainer, MemoryReplayTrainsTheSameModel) {  // FR-68, with dropout
  const test::TemporaryFolder folder;
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (const bool replay : {false, true}) {
    TrainOptions options = small_options(folder, fmt::format("run-{}", replay));
    options.memory_replay = replay;
    options.dtype = "float64";
    trainers.push_back(std::make_unique<Trainer>(options));
    for (int step = 0; step < 5; ++step) trainers.back()->step();
  }
  const auto left = checkpoint::named_tensors(trainers[0]->model()),
             right = checkpoint::named_tensors(trainers[1]->model());
  for (size_t i = 0; i < left.size(); ++i) expect_close(right[i].second, left[i].second, 1e-10, left[i].first);
  EXPECT_NEAR(trainers[1]->metrics()["loss"].get<double>(), trainers[0]->metrics()["loss"].get<double>(), 1e-10);
}

TEST(Trainer, OverlappingHorizonsReadSegmentsAgainAndResumeExactly) {
  const test::TemporaryFolder folder;
  TrainOptions whole = small_options(folder, "whole");
  whole.time_overlap = 2;  // of 3
  whole.auxiliary_steps = 0;
  Trainer unbroken(whole);
  double before = 0;
  for (int step = 0; step < 6; ++step) {
    unbroken.step();
    const double progress = unbroken.metrics()["epoch"].get<double>();
    if (step > 0) EXPECT_GT(progress, before);
    before = progress;
  }
  TrainOptions plain = small_options(folder, "plain");
  plain.auxiliary_steps = 0;
  plain.time_horizon = 1;
  Trainer one_at_a_time(plain);
  for (int step = 0; step < 6; ++step) one_at_a_time.step();
  EXPECT_DOUBLE_EQ(before, one_at_a_time.metrics()["epoch"].get<double>());  // each step goes one segment on

  TrainOptions parts = whole;
  parts.output_dir = folder.path("parts");
  {
    Trainer first(parts);
    for (int step = 0; step < 3; ++step) first.step();
    first.save();
  }
  Trainer second(parts);
  for (int step = 0; step < 3; ++step) second.step();
  expect_same_weights(unbroken, second);
}

TEST(Trainer, FrozenEmbeddingsStayAsTheyAre) {
  const test::TemporaryFolder folder;
  TrainOptions options = small_options(folder, "run");
  options.freeze_embeddings = true;
  Trainer trainer(options);
  std::map<std::string, at::Tensor> before;
  for (const auto& entry : trainer.model().named_parameters()) before[entry.key()] = entry.value().detach().clone();
  for (int step = 0; step < 4; ++step) trainer.step();
  int frozen = 0;
  for (const auto& entry : trainer.model().named_parameters()) {
    const bool embedding = entry.key() == "shared.weight" || entry.key().find("embed_positions") != std::string::npos;
    frozen += embedding;
    if (embedding) expect_identical(entry.value(), before[entry.key()], entry.key());
    if (entry.key().find("fc1.weight") != std::string::npos) EXPECT_FALSE(entry.value().equal(before[entry.key()]));
  }
  EXPECT_EQ(frozen, 3);
  trainer.save();
  EXPECT_EQ(Trainer(options).steps_done(), 4);
}

TEST(Trainer, TheLossInPartsTrainsTheSameModel) {
  const test::TemporaryFolder folder;
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (const int64_t vocabulary : {290, 2000}) {  // rows of words that never occur make the table large
    for (const int64_t mib : {1, 64}) {
      TrainOptions options = small_options(folder, fmt::format("run-{}-{}", vocabulary, mib));
      options.label_smoothing_factor = 0.1;
      options.lanes = 24;
      options.segments.segment = 32;
      options.new_tokenizer.vocab_size = vocabulary;
      options.loss_table_mib = mib;
      options.dtype = "float64";
      trainers.push_back(std::make_unique<Trainer>(options));
      for (int step = 0; step < 3; ++step) trainers.back()->step();
    }
    const auto& parts = *trainers[trainers.size() - 2];
    EXPECT_NEAR(parts.metrics()["loss"].get<double>(), trainers.back()->metrics()["loss"].get<double>(), 1e-10);
    EXPECT_NEAR(parts.metrics()["grad_norm"].get<double>(), trainers.back()->metrics()["grad_norm"].get<double>(),
                1e-10);
  }
}

TEST(Trainer, StopsEarlyAndKeepsTheBestCheckpoint) {
  const test::TemporaryFolder folder;
  TrainOptions options = small_options(folder, "run");
  options.tasks.tasks = {{"denoise", 1.0}};
  options.auxiliary_steps = 0;
  options.max_steps = 60;
  options.eval_steps = 2;
  options.eval_documents = 4;
  options.save_steps = 1;
  options.save_total_limit = 2;
  options.optimizer.warmup_steps = 0;
  options.optimizer.learning_rate = 0.2;  // soon too much
  options.optimizer.lr_scheduler_type = "constant";
  options.early_stopping_patience = 3;
  options.load_best_model_at_end = true;
  std::map<int64_t, double> losses;
  Trainer trainer(options, {.on_evaluation = [&](int64_t step, const Json& line) {
                    losses[step] = line["eval"]["denoise"]["loss"].get<double>();
                  }});
  const Json summary = trainer.run();
  EXPECT_TRUE(summary["stopped_early"].get<bool>());
  const int64_t best = summary["best_step"].get<int64_t>();
  for (const auto& [step, loss] : losses) EXPECT_GE(loss, losses.at(best)) << step;
  EXPECT_EQ(summary["steps"].get<int64_t>(), best + 3 * options.eval_steps);
  const std::string path = fmt::format("{}/checkpoint-{}", options.output_dir, best);
  EXPECT_EQ(trainer.best_checkpoint(), path);
  // The best one outlived the limit, and is found under its own name too; the model ends with its weights.
  const auto loaded = checkpoint::load_model(options.output_dir + "/checkpoint-best");
  const auto left = checkpoint::named_tensors(trainer.model()), right = checkpoint::named_tensors(*loaded.model);
  for (size_t i = 0; i < left.size(); ++i) expect_identical(left[i].second, right[i].second, left[i].first);
  EXPECT_EQ(newest_checkpoint(options.output_dir), summary["checkpoint"].get<std::string>());
  // The same command has nothing more to do; with more patience it goes on.
  EXPECT_EQ(Trainer(options).run()["steps"], summary["steps"]);
  options.early_stopping_patience = 4;
  EXPECT_GT(Trainer(options).run()["steps"].get<int64_t>(), summary["steps"].get<int64_t>());
}

TEST(Trainer, StopsOnceAMetricIsReached) {
  const test::TemporaryFolder folder;
  TrainOptions options = small_options(folder, "run");
  options.max_steps = 20;
  options.eval_steps = 4;
  options.auxiliary_steps = 0;
  options.metric_for_best_model = "denoise.loss";
  options.stop_at_metric = 1000;  // any loss is that good
  Json summary = Trainer(options).run();
  EXPECT_EQ(summary["steps"], 4);
  EXPECT_TRUE(summary["stopped_early"].get<bool>());
  EXPECT_EQ(Trainer(options).run()["steps"], 4) << "the same command has nothing more to do";
  options.stop_at_metric = 1e-3;  // none is
  summary = Trainer(options).run();
  EXPECT_EQ(summary["steps"], 20);
  EXPECT_FALSE(summary["stopped_early"].get<bool>());
}

TEST(Trainer, TheControlForgetsBeforeEverySegment) {
  const test::TemporaryFolder folder;
  const auto gradient_of = [&](const std::string& carry) {
    TrainOptions options = small_options(folder, carry);
    options.carry = carry;
    options.auxiliary_steps = 0;
    Trainer trainer(options);
    for (int step = 0; step < 3; ++step) trainer.step();
    return trainer.metrics()["memory_gradient"]["norm"].get<double>();
  };
  EXPECT_GT(gradient_of("keep"), 0);
  EXPECT_EQ(gradient_of("reset"), 0);
}

/// Dialogues whose answers repeat what was said.
std::string write_dialogues(const std::string& path) {
  Random random(5);
  std::string text;
  for (int dialogue = 0; dialogue < 60; ++dialogue) {
    Json turns = Json::array();
    for (int turn = 0; turn < 6; ++turn)
      turns.push_back(
          {{"role", turn % 2 == 0 ? "A" : "B"}, {"text", fmt::format("word {} of {}", random.below(9), dialogue)}});
    text += Json({{"turns", turns}}).dump() + "\n";
  }
  write_file_atomically(path, text);
  return path;
}

TEST(Trainer, EveryFamilyLearnsToReplyAndResumesExactly) {
  const test::TemporaryFolder folder;
  for (const auto& [family, memory] : {std::pair{"bart", "membart:4"}, {"bart", "none"}, {"gpt2", "none"}}) {
    const bool remembers = std::string(memory) != "none";
    SCOPED_TRACE(std::string(family) + " " + memory);
    TrainOptions options = small_options(folder, fmt::format("{}-{}", family, memory));
    options.corpus = {.data = {write_dialogues(folder.path("dialogues.jsonl"))}};
    options.tasks = {.tasks = {{"respond", 0.8}}};
    if (remembers) options.tasks.tasks["recall"] = 0.2;  // the window before
    options.auxiliary_steps = 0;
    options.model.family = family;
    options.model.memory = memory;
    options.model.init = "normal";
    options.segments.segment = 24;
    options.model.max_position_embeddings = 64;
    options.optimizer.learning_rate = 5e-3;
    options.max_steps = 40;
    options.eval_steps = 20;
    std::vector<double> losses;
    const TrainHooks hooks{.on_evaluation = [&](int64_t, const Json& line) {
      losses.push_back(line["eval"]["respond"]["loss"].get<double>());
    }};
    Trainer whole(options, hooks);
    whole.run();
    ASSERT_EQ(losses.size(), 2u);
    EXPECT_LT(losses[1], 0.8 * std::log(290.0));
    EXPECT_LT(losses[1], losses[0]);

    TrainOptions parts = options;
    parts.output_dir += "-parts";
    parts.max_steps = 40;
    int done = 0;
    Trainer(parts, {.interrupted = [&] { return done >= 7; },
                    .on_step = [&](int64_t step, const Json&) { done = static_cast<int>(step); }})
        .run();
    Trainer second(parts);
    EXPECT_EQ(second.steps_done(), 7);
    second.run();
    expect_same_weights(whole, second);
    // What was saved is a model that replies as the trainer's does.
    const auto loaded = checkpoint::load_model(newest_checkpoint(options.output_dir));
    EXPECT_STREQ(loaded.model->family(), family);
    whole.model().eval();
    const EvalData data = whole.held_out();
    const auto& task = whole.training().task("respond");
    const auto loss = [&](const models::Model& model) {
      return evaluate_loss(model, data, whole.eval_maker(data), task, nullptr, {.batch = 3}).total.nll;
    };
    EXPECT_NEAR(loss(*loaded.model), loss(whole.model()), 1e-3);
    const ReplyReport replies = evaluate_replies(*loaded.model, data, whole.eval_maker(data), task, *whole.tokenizer(),
                                                 {.max_new_tokens = 8}, {.batch = 4}, 6);
    EXPECT_GE(replies.count, 6);
  }
}

TEST(Trainer, Bfloat16ProductsTrainToo) {
  const test::TemporaryFolder folder;
  std::vector<double> losses;
  for (const auto& [bf16, replay] : {std::pair{false, false}, {true, false}, {true, true}}) {
    TrainOptions options = small_options(folder, fmt::format("run-{}-{}", bf16, replay));
    options.model.dropout = 0;
    options.bf16 = bf16;
    options.memory_replay = replay;
    Trainer trainer(options);
    for (int step = 0; step < 4; ++step) trainer.step();
    losses.push_back(trainer.metrics()["loss"].get<double>());
    EXPECT_EQ(trainer.model().dtype(), at::kFloat);
  }
  EXPECT_NEAR(losses[1], losses[0], 0.02 * losses[0]);
  EXPECT_NEAR(losses[2], losses[0], 0.02 * losses[0]);
}

TEST(Trainer, M16WithoutItsMemoryNothingIsRecalledAndWithItSomethingIs) {
  // Independent uniform symbols: no neighbour tells anything about a segment, only the memory can carry it.
  constexpr int64_t kSymbols = 16;
  const test::TemporaryFolder folder;
  Random random(3);
  std::string text;
  for (int document = 0; document < 400; ++document) {
    for (int i = 0; i < 64; ++i) text += static_cast<char>('a' + random.below(kSymbols));
    text += '\n';
  }
  write_file_atomically(folder.path("symbols.txt"), text);
  TrainOptions options = small_options(folder, "run");
  options.corpus.data = {folder.path("symbols.txt")};
  options.new_tokenizer.vocab_size = 261;  // the bytes and the special tokens: one symbol is one token
  options.split.held_out_share = 0.3;
  options.model.d_model = 32;
  options.model.ffn_dim = 32;
  options.model.dropout = 0;
  options.tasks.tasks = {{"recall", 1.0}};
  options.tasks.auxiliary_weight = 1;
  options.auxiliary_steps = 60;
  options.max_steps = 200;
  options.optimizer.learning_rate = 5e-3;
  options.lanes = 16;
  options.accumulation = 1;
  options.eval_documents = 1000;
  Trainer trainer(options);
  trainer.run();
  trainer.model().eval();
  const EvalData data = trainer.held_out();
  const BatchMaker maker = trainer.eval_maker(data);
  const auto& task = trainer.training().task("recall");
  const auto per_symbol = [&](Carry carry) {
    const LossReport report = evaluate_loss(trainer.model(), data, maker, task, nullptr, {.carry = carry, .batch = 64});
    // The end of a segment is a target too, and can be known: its loss is at least 0, so all is left to the symbols.
    return report.total.nll / static_cast<double>(report.total.targets - report.segments);
  };
  const auto share = [&](Carry carry) {
    return evaluate_recall(trainer.model(), data, maker, task, trainer.special_ids(), nullptr,
                           {.carry = carry, .batch = 64})
        .share();
  };
  const double blind = std::log(static_cast<double>(kSymbols));
  for (const Carry carry : {Carry::kReset, Carry::kOther}) {
    EXPECT_GE(per_symbol(carry), blind - 0.02) << carry_name(carry);
    EXPECT_LE(share(carry), 1.0 / kSymbols + 0.01) << carry_name(carry);
  }
  EXPECT_LT(per_symbol(Carry::kKeep), blind - 0.2);
  EXPECT_GT(share(Carry::kKeep), 1.0 / kSymbols + 0.05);
}

TEST(Optimizer, DecaysWeightsOnly) {  // FR-93
  models::BartConfig config;
  config.vocab_size = 30;
  config.d_model = 8;
  config.encoder_layers = config.decoder_layers = 1;
  config.encoder_attention_heads = config.decoder_attention_heads = 2;
  config.encoder_ffn_dim = config.decoder_ffn_dim = 8;
  config.memory = {.kind = "membart", .slots = 2};
  models::BartModel model(config);
  model.initialize({.slot_std = 1, .seed = 1});
  const auto groups = parameter_groups(model);
  int64_t total = 0;
  for (const auto& group : groups) total += group.count();
  EXPECT_EQ(total, nn::parameter_count(model));  // the tied embedding once
  std::map<std::string, at::Tensor> before;
  for (const auto& entry : model.named_parameters()) {
    before[entry.key()] = entry.value().detach().clone();
    entry.value().mutable_grad() = at::zeros_like(entry.value());
  }
  AdamW optimizer(groups, {.weight_decay = 0.1});
  optimizer.step(1.0);
  for (const auto& entry : model.named_parameters()) {
    const bool decays = entry.value().dim() == 2 && entry.key().find("embed_positions") == std::string::npos;
    expect_close(entry.value(), before[entry.key()] * (decays ? 0.9 : 1.0), 1e-6, entry.key());
  }
}

TEST(Optimizer, EqualsItsFormula) {
  struct Two : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", test::randn({3, 4}, 1, at::kFloat));
  };
  const auto module = std::make_shared<Two>();
  const OptimizerOptions options{
      .adam_beta1 = 0.9, .adam_beta2 = 0.95, .adam_epsilon = 1e-6, .weight_decay = 0.01, .max_grad_norm = 0.5};
  AdamW optimizer(parameter_groups(*module), options);
  at::Tensor w = module->weight.detach().to(at::kDouble), m = at::zeros_like(w), v = at::zeros_like(w);
  for (int t = 1; t <= 5; ++t) {
    at::Tensor g = test::randn({3, 4}, 10 + static_cast<uint64_t>(t));
    module->weight.mutable_grad() = g.to(at::kFloat);
    const double norm = optimizer.step(0.02);
    EXPECT_NEAR(norm, g.norm().item<double>(), 1e-5);
    g = g * std::min(1.0, 0.5 / (g.norm().item<double>() + 1e-6));
    m = 0.9 * m + 0.1 * g;
    v = 0.95 * v + 0.05 * g * g;
    w = w * (1 - 0.02 * 0.01) - 0.02 * (m / (1 - std::pow(0.9, t))) / ((v / (1 - std::pow(0.95, t))).sqrt() + 1e-6);
    expect_close(module->weight, w, 1e-5, fmt::format("step {}", t));
  }
}

TEST(Optimizer, LoadingItsStateAgainAndAgainAddsNothing) {  // FR-94
  struct Two : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", test::randn({200, 500}, 1, at::kFloat));
    at::Tensor bias = register_parameter("bias", test::randn({500}, 2, at::kFloat));
  };
  const auto module = std::make_shared<Two>();
  AdamW optimizer(parameter_groups(*module), {});
  const auto step = [&] {
    for (auto& parameter : module->parameters())
      parameter.mutable_grad() = test::randn(parameter.sizes(), 3).to(at::kFloat);
    optimizer.step(0.01);
  };
  step();
  const test::TemporaryFolder folder;
  checkpoint::save_safetensors(folder.path("optimizer.safetensors"), optimizer.state(), {});
  const auto load = [&] {
    const auto file = checkpoint::Safetensors::open(folder.path("optimizer.safetensors"));
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const auto& [name, tensor] : optimizer.state()) tensors.emplace_back(name, file.tensor(name));
    optimizer.load(tensors, file.path());
  };
  load();
  const int64_t before = resident_bytes().now;
  for (int time = 0; time < 100; ++time) load();
  EXPECT_LT(resident_bytes().now - before, int64_t{8} << 20) << "a state is 0.8 MB";
  ASSERT_EQ(optimizer.state().size(), 2U * 3U) << "two moments and a count for each parameter";
  const auto loaded = optimizer.state();
  const auto file = checkpoint::Safetensors::open(folder.path("optimizer.safetensors"));
  for (const auto& [name, tensor] : loaded) test::expect_identical(tensor, file.tensor(name), name);
}

TEST(Optimizer, SchedulesRiseAndFall) {
  OptimizerOptions options{.learning_rate = 1.0, .warmup_steps = 10, .lr_scheduler_type = "linear"};
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 0, 110), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 9, 110), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 60, 110), 0.5);
  EXPECT_NEAR(learning_rate_at(options, 110, 110), 0.0, 1e-12);
  options.lr_scheduler_type = "cosine";
  EXPECT_NEAR(learning_rate_at(options, 60, 110), 0.5, 1e-12);
  options.min_learning_rate_ratio = 0.2;
  EXPECT_NEAR(learning_rate_at(options, 110, 110), 0.2, 1e-12);
  options.lr_scheduler_type = "constant";
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 100, 110), 1.0);
}

}  // namespace
}  // namespace palimpsest::train
