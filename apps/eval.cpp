// SPDX-License-Identifier: Apache-2.0
// `palimpsest eval`: perplexity and recall over documents, with the memory kept, reset, another document's, or off.
#include "apps/command.h"
#include "apps/model_flags.h"
#include "palimpsest/core/log.h"
#include "palimpsest/data/aligned_steps.h"
#include "palimpsest/data/dialogue_steps.h"
#include "palimpsest/train/evaluate.h"

namespace palimpsest::app {

namespace {

struct EvalFlags {
  ModelFlags model;
  data::CorpusOptions corpus;
  data::DialogueOptions dialogue;
  data::AlignedOptions aligned;
  data::DenoiseOptions denoise = {};
  generate::GenerationOptions generation;
  std::string answers = "B";
  int64_t replies = 0;
  std::string task, carry = "keep", cache_dir;
  int64_t batch = 16, segment = 0, overlap = 0, max_documents = 0, max_segments = 0;
  bool recall = false, json = false;
  static void fields(auto& o, auto&& field) {
    field("model", o.model, "");
    field("corpus", o.corpus, "");
    field("dialogue", o.dialogue, "");
    field("split_seed", o.dialogue.split_seed, "another number puts other dialogues and documents on each side");
    field("aligned", o.aligned, "");
    field("denoise", o.denoise, "");
    field("answers", o.answers, "of dialogues: whose turns are measured: B | A | both");
    field("replies", o.replies,
          "of dialogues and aligned lines: also write that many replies or targets (0: none) and compare them with the "
          "real ones: word F1, distinct-n; corpus BLEU, length");
    field("generation", o.generation, "");
    field("task", o.task, "one of the model's tasks; the default is its first");
    field("carry", o.carry, "what happens to the memory between segments: keep | reset | other | off");
    field("batch", o.batch, "documents read side by side; does not change the results");
    field("segment", o.segment, "tokens of a segment; 0: as trained");
    field("overlap", o.overlap, "tokens that a segment shares with the one before");
    field("max_documents", o.max_documents, "first documents only; 0: all");
    field("max_segments", o.max_segments, "first segments of each document only; 0: all");
    field("recall", o.recall, "also decode freely and count what is given back at the exact position (slower)");
    field("cache_dir", o.cache_dir, "keep token ids there for the next time");
    field("json", o.json, "results as JSON");
  }
};

int run(const EvalFlags& flags) {
  const train::Carry carry = train::parse_carry(flags.carry);
  const auto folder = load(flags.model);
  const models::Model& model = *folder.model;
  if (flags.corpus.data.empty())
    throw usage_error("no text is given", "command line", "name files or folders: --data book.txt");
  checkpoint::Training training = folder.training;
  if (training.tasks.empty()) {
    // A stock model has no task of its own: it is measured on the target lines or the next segment, from its family's
    // start token.
    training.tasks.push_back({flags.aligned.target.empty() ? "next" : "seq2seq", model.ids().start, 0});
  }
  const checkpoint::Task& task = flags.task.empty() ? training.tasks.front() : training.task(flags.task);
  const int64_t segment = flags.segment > 0      ? flags.segment
                          : training.segment > 0 ? training.segment
                                                 : model.positions() / 2;
  train::EvalData data;
  if (task.name == "respond" || task.name == "seq2seq") {
    const auto tokenize = data::tokenize_with(folder.need_tokenizer());
    const int64_t longest_write = model.room_for_target(segment);
    data::StepCorpus steps;
    if (task.name == "respond") {
      data::DialogueReader reader(flags.corpus, flags.dialogue);
      steps = data::prepare_dialogues(reader, tokenize,
                                      {.window = segment, .longest_write = longest_write, .answers = flags.answers});
    } else {
      data::AlignedDocumentReader reader(flags.corpus, flags.aligned, flags.dialogue);
      steps = data::prepare_aligned(reader, tokenize, {.window = segment, .longest_write = longest_write});
    }
    if (const std::string said = steps.said_of_cuts(); !said.empty()) spdlog::warn("warning: {}", said);
    data = {steps.corpus, {}, data::given_plan(std::move(steps.steps), segment)};
  } else {
    if (flags.replies > 0)
      throw usage_error(fmt::format("the task {} writes no replies", task.text()), "--replies", "leave it out");
    data = {data::prepare_corpus(flags.corpus, folder.need_tokenizer(), flags.cache_dir),
            {},
            data::segment_plan({.segment = segment, .overlap = flags.overlap})};
  }
  data.spans = data::whole_documents(*data.corpus);
  if (flags.max_documents > 0 && static_cast<int64_t>(data.spans.size()) > flags.max_documents)
    data.spans.resize(static_cast<size_t>(flags.max_documents));

  const auto ids = train::SpecialIds::of(model, folder.tokenizer().get());
  train::TaskOptions options;
  options.tasks = {};
  options.denoise = flags.denoise;
  const train::BatchMaker maker(data.corpus, data.spans, data.plan, options, training.tasks, ids, 0);
  watch_interrupts();
  const train::WalkOptions walk{
      .carry = carry, .batch = flags.batch, .max_segments = flags.max_segments, .stop = interrupted};
  const train::LossReport loss = evaluate_loss(model, data, maker, task, folder.tokenizer().get(), walk);
  if (loss.total.targets == 0) {
    throw input_error(
        fmt::format("the text holds nothing to measure for the task {}", task.text()), flags.corpus.data.front(),
        fmt::format("a document needs at least two segments of {} tokens; give a longer text or a smaller --segment",
                    segment));
  }
  Json json = loss.to_json();
  json["task"] = task.text();
  json["carry"] = flags.carry;
  json["documents"] = data.spans.size();
  json["segment"] = segment;
  if (flags.recall)
    json["recall"] = evaluate_recall(model, data, maker, task, ids, folder.tokenizer().get(), walk).to_json();
  if (flags.replies > 0) {
    auto generation = flags.generation;
    if (generation.max_new_tokens < 0 && generation.max_length < 0)
      generation.max_new_tokens = task.name == "respond" ? 40 : model.room_for_target(segment);
    json["replies"] =
        train::evaluate_replies(model, data, maker, task, folder.need_tokenizer(), generation, walk, flags.replies)
            .to_json();
  }
  if (flags.json) {
    print_json(json);
    return interrupted() ? 1 : 0;
  }
  print_line(fmt::format("task {}, memory {}, {} documents, {} segments of {} tokens", task.text(), flags.carry,
                         data.spans.size(), loss.segments, segment));
  print_line(fmt::format("  targets        {:>12}   total nll {:.3f} (summed over documents, each from its own start)",
                         loss.total.targets, loss.total.nll));
  print_line(fmt::format("  perplexity     {:>12.4f} per token, {:.4f} per word, {:.4f} per byte ({:.4f} bits)",
                         loss.total.perplexity(), std::exp(loss.total.nll / static_cast<double>(loss.words)),
                         std::exp(loss.total.nll / static_cast<double>(loss.bytes)),
                         json["bits_per_byte"].get<double>()));
  if (flags.recall) {
    const Json& recall = json["recall"];
    print_line(fmt::format("  given back     {:>11.2f} % of {} tokens, {} of {} segments whole",
                           100 * recall["share"].get<double>(), recall["tokens"].get<int64_t>(),
                           recall["exact_segments"].get<int64_t>(), recall["segments"].get<int64_t>()));
  }
  if (json.contains("interval")) {
    print_line(fmt::format("  perplexity     {:>12.4f} to {:.4f}, 95 % of bootstrap draws of {} documents",
                           json["interval"]["ppl"][0].get<double>(), json["interval"]["ppl"][1].get<double>(),
                           json["interval"]["documents"].get<int64_t>()));
  }
  if (json.contains("replies")) {
    const Json& replies = json["replies"];
    print_line(
        fmt::format("  replies        {:>12}   word F1 {:.4f} ({:.4f} to {:.4f}), distinct-1 {:.4f}, distinct-2 {:.4f}",
                    replies["count"].get<int64_t>(), replies["f1"].get<double>(),
                    replies["f1_interval"][0].get<double>(), replies["f1_interval"][1].get<double>(),
                    replies["distinct_1"].get<double>(), replies["distinct_2"].get<double>()));
    print_line(fmt::format("  BLEU           {:>12.2f}   of {} tokens, {} in the references ({}), {:.1f} ids each",
                           replies["bleu"]["score"].get<double>(), replies["bleu"]["length"].get<int64_t>(),
                           replies["bleu"]["reference_length"].get<int64_t>(), train::Bleu::kSignature,
                           replies["generated_length"].get<double>()));
    for (const Json& example : replies["examples"])
      print_line(fmt::format("    said {}, wanted {}", example["reply"].dump(), example["reference"].dump()));
  }
  print_line("  by the step's place in its document:");
  // Places are grouped in powers of two: 0, 1, 2-3, 4-7, …
  for (int64_t first = 0, last = 0; !loss.by_segment.empty() && first <= loss.by_segment.rbegin()->first;
       first = last + 1, last = 2 * first - 1) {
    train::LossSum sum;
    for (const auto& [segment, part] : loss.by_segment) {
      if (segment >= first && segment <= last) sum.targets += part.targets, sum.nll += part.nll;
    }
    if (sum.targets > 0)
      print_line(fmt::format("    {:>6} - {:<6} perplexity {:>10.4f}  ({} targets)", first, last, sum.perplexity(),
                             sum.targets));
  }
  return interrupted() ? 1 : 0;
}

}  // namespace

Command eval_command() {
  return {"eval", "perplexity and recall over documents",
          "palimpsest eval --model runs/latest/checkpoint-2000 --data book.txt --carry reset --json",
          [](CLI::App& app) {
            auto flags = std::make_shared<EvalFlags>();
            options_to_flags(*flags, app);
            return [flags] { return run(*flags); };
          }};
}

}  // namespace palimpsest::app
