// SPDX-License-Identifier: Apache-2.0
// Training on aligned lines and on corrupted segments: what is learnt from, what rows look like, what is said.
#include <gmock/gmock.h>

#include "palimpsest/core/error.h"
#include "palimpsest/nn/loss.h"
#include "tests/train/small_run.h"

namespace palimpsest::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Lines of invented words and, as their target, the same words in upper case. Every third line ends a document.
void write_aligned(const test::TemporaryFolder& folder, int lines = 240) {
  Random random(11);
  std::string source, target;
  for (int i = 0; i < lines; ++i) {
    for (int64_t word = 1 + random.below(3); word >= 0; --word) {
      for (int64_t letters = 1 + random.below(3); letters >= 0; --letters) {
        const char letter = static_cast<char>('a' + random.below(10));
        source += letter;
        target += static_cast<char>(letter - 'a' + 'A');
      }
      source += word > 0 ? " " : "\n";
      target += word > 0 ? " " : "\n";
    }
    if (i % 3 == 2) source += "\n", target += "\n";
  }
  write_file_atomically(folder.path("source.txt"), source);
  write_file_atomically(folder.path("target.txt"), target);
}

TrainOptions aligned_options(const test::TemporaryFolder& folder, const std::string& run) {
  write_aligned(folder);
  TrainOptions options = small_options(folder, run);
  options.corpus.data = {folder.path("source.txt")};
  options.corpus.document = "file";
  options.aligned.target = folder.path("target.txt");
  options.tasks = {.tasks = {{"seq2seq", 1.0}}};
  options.auxiliary_steps = 0;
  options.model.dropout = 0;
  options.segments.segment = 24;
  return options;
}

TEST(Seq2Seq, TrainsOnUnitsOfDocumentsInOrder) {
  const test::TemporaryFolder folder;
  TrainOptions options = aligned_options(folder, "run");
  Trainer trainer(options);
  const Json split = read_json(options.output_dir + "/split.json");
  EXPECT_GT(split["train"].size(), 50u);
  EXPECT_GE(split["held_out"].size(), 1u);
  EXPECT_EQ(trainer.corpus().documents(), static_cast<int64_t>(split["train"].size()));
  const std::string shown = trainer.describe(3);
  EXPECT_THAT(shown, AllOf(HasSubstr("encoder reads \"<s>"), HasSubstr("segment 2\n")));
  EXPECT_EQ(trainer.training().tasks.front().text(), "seq2seq");
  EXPECT_EQ(trainer.model().ids().start, 2) << "one task keeps the family's start token";
}

TEST(Seq2Seq, LearnsAndIsMeasured) {
  const test::TemporaryFolder folder;
  TrainOptions options = aligned_options(folder, "run");
  options.max_steps = 60;
  options.eval_steps = 60;
  options.optimizer.learning_rate = 5e-3;
  Trainer trainer(options);
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    last = trainer.step();
    if (step == 0) first = last;
  }
  EXPECT_LT(last, 0.8 * first);
  trainer.model().eval();
  const EvalData data = trainer.held_out();
  const BatchMaker maker = trainer.eval_maker(data);
  const auto& task = trainer.training().tasks.front();
  const auto tokenizer = trainer.tokenizer();
  const LossReport loss = evaluate_loss(trainer.model(), data, maker, task, tokenizer.get(), {});
  EXPECT_GT(loss.total.targets, 0);
  EXPECT_GT(loss.by_segment.size(), 1u) << "several units of a document";
  const ReplyReport report = evaluate_replies(trainer.model(), data, maker, task, *tokenizer,
                                              {.max_new_tokens = 12, .min_new_tokens = 2}, {}, 1000);
  EXPECT_EQ(report.count, loss.segments);
  EXPECT_EQ(report.references.size(), report.replies.size());
  const Json json = report.to_json();
  EXPECT_EQ(json["bleu"]["score"].get<double>(), corpus_bleu(report.replies, report.references).score);
  EXPECT_THAT(json["bleu"]["signature"].get<std::string>(), HasSubstr("tok:13a"));
  EXPECT_GE(json["generated_length"].get<double>(), 3) << "two tokens and the end";
  EXPECT_LE(json["generated_length"].get<double>(), 12);
}

// The vocabulary is learnt from both languages of the train side, and from nothing else.
TEST(Seq2Seq, TheVocabularyIsLearntFromTheTrainSideOfBothLanguages) {
  const test::TemporaryFolder folder;
  std::string source, target;
  for (int i = 0; i < 300; ++i) {
    const std::string line = fmt::format("line {}", i);
    const bool train = data::split_of(data::split_key_of(line)) == data::Side::kTrain;
    source += line + "\n";
    target += train ? "zzqzzq\n" : "yyxyyx\n";
  }
  TrainOptions options = aligned_options(folder, "run");
  write_file_atomically(folder.path("source.txt"), source);
  write_file_atomically(folder.path("target.txt"), target);
  options.corpus.document = "line";
  options.new_tokenizer.vocab_size = 300;
  const Trainer trainer(options);
  const auto pieces = [&](const std::string& text) { return trainer.tokenizer()->encode(text).ids.size(); };
  EXPECT_EQ(pieces("zzqzzq"), 1u);
  EXPECT_EQ(pieces("line"), 1u);
  EXPECT_EQ(pieces("yyxyyx"), 6u) << "only held-out lines have this word";
}

TEST(Seq2Seq, SaysWhatIsWrong) {
  const test::TemporaryFolder folder;
  const auto message = [&](const std::function<void(TrainOptions&)>& spoil) -> std::string {
    TrainOptions options = aligned_options(folder, "bad");
    spoil(options);
    try {
      Trainer trainer(options);
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 2);
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(message([](auto& o) { o.aligned.target = ""; }), HasSubstr("--target"));
  EXPECT_THAT(message([](auto& o) { o.tasks.tasks["respond"] = 1; }), HasSubstr("seq2seq aligned lines"));
  EXPECT_THAT(message([](auto& o) { o.min_document_tokens = 5; }), HasSubstr("min_document_tokens is for texts"));
}

TrainOptions denoising_options(const test::TemporaryFolder& folder, const std::string& run) {
  TrainOptions options = small_options(folder, run);
  options.tasks = {.tasks = {{"denoise", 1.0}}};
  options.auxiliary_steps = 0;
  return options;
}

TEST(Denoising, ADryRunTellsWhatIsRemoved) {  // FR-74
  const test::TemporaryFolder folder;
  TrainOptions options = denoising_options(folder, "run");
  options.segments = {.segment = 16, .overlap = 4};
  EXPECT_THAT(Trainer(options).describe(1), AllOf(HasSubstr("denoising (infill): 3"), HasSubstr(" segments removed, "),
                                                  HasSubstr("the longest segment has 16 tokens")));
  options.tasks.denoise.kind = "token_mask";
  options.tasks.denoise.rate = 1;
  options.output_dir = folder.path("all");
  EXPECT_THAT(Trainer(options).describe(1), HasSubstr("denoising (token_mask): 100.00 % of"));
}

TEST(Denoising, TheEncoderReadsWhatTheKindMakesAndTheTargetIsClean) {
  const auto corpus = data::corpus_of({{10, 11, 12, 13, 14, 15, 16, 17, 18, 19}});
  const EvalData data{corpus, data::whole_documents(*corpus), data::segment_plan({.segment = 10})};
  const SpecialIds ids{.bos = 0, .pad = 1, .eos = 2, .mask = 4, .ordinary = {}, .sentence_ends = {12, 15}};
  const auto row = [&](const data::DenoiseOptions& denoise) {
    const BatchMaker maker(data.corpus, data.spans, data.plan, {.tasks = {{"denoise", 1.0}}, .denoise = denoise},
                           {{"denoise", 2, 0}}, ids, 1);
    data::Lanes lanes(data.corpus, data.spans, data.plan, {.lanes = 1});
    const SegmentBatch batch = maker.training(lanes.next());
    EXPECT_TRUE(
        batch.main.labels.equal(at::tensor({10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 2}, at::kLong).view({1, 11})));
    const int64_t* first = batch.ids.const_data_ptr<int64_t>();
    return std::vector<int64_t>(first, first + batch.ids.size(1));
  };
  EXPECT_THAT(row({.kind = "token_mask", .rate = 1}), testing::AllOf(testing::SizeIs(10), testing::Each(4)));
  EXPECT_THAT(row({.rate = 1}), testing::Each(4));
  const auto moved = row({.rate = 0, .permute = 1});
  EXPECT_THAT(moved, testing::UnorderedElementsAre(10, 11, 12, 13, 14, 15, 16, 17, 18, 19));
  EXPECT_FALSE(std::is_sorted(moved.begin(), moved.end()));
}

TEST(Denoising, SentenceEndsAreFoundInTheVocabulary) {
  const test::TemporaryFolder folder;
  const Trainer trainer(denoising_options(folder, "run"));
  const auto& ends = trainer.special_ids().sentence_ends;
  ASSERT_GE(ends.size(), 3u);
  EXPECT_TRUE(std::is_sorted(ends.begin(), ends.end()));
  for (const char* stop : {".", "!", "?"})
    EXPECT_TRUE(std::binary_search(ends.begin(), ends.end(), trainer.tokenizer()->id_of(stop).value())) << stop;
  EXPECT_FALSE(std::binary_search(ends.begin(), ends.end(), trainer.tokenizer()->id_of("a").value()));
}

TEST(Denoising, ShortDocumentsAreLeftOutOfBothSides) {
  const test::TemporaryFolder folder;
  TrainOptions options = denoising_options(folder, "run");
  const Trainer all(options);
  options.min_document_tokens = 90;
  options.output_dir = folder.path("long");
  const Trainer some(options);
  EXPECT_LT(some.split().train.size(), all.split().train.size());
  for (const auto* spans : {&some.split().train, &some.split().held_out}) {
    for (const data::Span& span : *spans) EXPECT_GE(span.size(), 90);
  }
  options.min_document_tokens = 100'000;
  options.output_dir = folder.path("none");
  EXPECT_THROW(Trainer{options}, Error);
}

TEST(Denoising, RefusesAKindThatIsNone) {
  const test::TemporaryFolder folder;
  TrainOptions options = denoising_options(folder, "run");
  options.tasks.denoise.kind = "infil";
  try {
    Trainer trainer(options);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("denoise_kind is \"infil\""));
  }
}

}  // namespace
}  // namespace palimpsest::train
