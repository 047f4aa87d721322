// SPDX-License-Identifier: Apache-2.0
// `palimpsest eval`: perplexity and recall over documents, with the memory kept, reset, another document's, or off.
#include <algorithm>
#include <cmath>

#include "apps/command.h"
#include "apps/model_flags.h"
#include "palimpsest/core/log.h"
#include "palimpsest/data/aligned_steps.h"
#include "palimpsest/data/dialogue_steps.h"
#include "palimpsest/models/gpt2.h"
#include "palimpsest/train/evaluate.h"
#include "palimpsest/train/groups.h"

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
  std::vector<std::string> task = {}, compare = {};
  std::string carry, cache_dir;
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
    field("task", o.task, "the model's tasks to measure, or all; the default is its first");
    field("carry", o.carry,
          "what happens to the memory between segments: keep | reset | other | off; of a language model to what its "
          "attention keeps: keep | reset; empty: keep, but reset where a language model's positions end");
    field("compare", o.compare,
          "the same targets again with these carries, side by side, with paired intervals of the difference");
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

/// What is measured, and what measures it.
struct Evaluation {
  const EvalFlags& flags;
  const checkpoint::ModelFolder& folder;
  const models::Model& model;
  checkpoint::Training training;
  bool dialogues = false, aligned = false;
  int64_t segment = 0;
  train::EvalData data = {};
  train::SpecialIds ids = {};
};

std::vector<std::string> tasks_of(const EvalFlags& flags, const checkpoint::Training& training) {
  if (flags.task.empty()) return {training.tasks.front().text()};
  if (flags.task != std::vector<std::string>{"all"}) return flags.task;
  std::vector<std::string> all;
  for (const auto& task : training.tasks) all.push_back(task.text());
  return all;
}

/// The memory as asked for, then what it is compared with.
std::vector<std::string> carries_of(const EvalFlags& flags, const std::string& fallback) {
  std::vector<std::string> carries = {flags.carry.empty() ? fallback : flags.carry};
  train::parse_carry(carries.front());
  for (const std::string& carry : flags.compare) {
    check_choice("--compare", carry, {"keep", "reset", "other", "off"});
    if (std::find(carries.begin(), carries.end(), carry) != carries.end())
      throw usage_error(fmt::format("{} would be compared with itself", carry), "--compare", "name another carry");
    carries.push_back(carry);
  }
  return carries;
}

train::EvalData read_data(const Evaluation& eval) {
  const EvalFlags& flags = eval.flags;
  train::EvalData data;
  if (eval.dialogues || eval.aligned) {
    const auto tokenize = data::tokenize_with(eval.folder.need_tokenizer());
    const int64_t longest_write = eval.model.room_for_target(eval.segment);
    data::StepCorpus steps;
    if (eval.dialogues) {
      data::DialogueReader reader(flags.corpus, flags.dialogue);
      steps = data::prepare_dialogues(
          reader, tokenize, {.window = eval.segment, .longest_write = longest_write, .answers = flags.answers});
    } else {
      data::AlignedDocumentReader reader(flags.corpus, flags.aligned, flags.dialogue);
      steps = data::prepare_aligned(reader, tokenize, {.window = eval.segment, .longest_write = longest_write});
    }
    if (const std::string said = steps.said_of_cuts(); !said.empty()) spdlog::warn("warning: {}", said);
    data = {steps.corpus, {}, data::given_plan(std::move(steps.steps), eval.segment)};
  } else {
    data = {data::prepare_corpus(flags.corpus, eval.folder.need_tokenizer(), flags.cache_dir),
            {},
            data::segment_plan({.segment = eval.segment, .overlap = flags.overlap})};
  }
  data.spans = data::whole_documents(*data.corpus);
  if (flags.max_documents > 0 && static_cast<int64_t>(data.spans.size()) > flags.max_documents)
    data.spans.resize(static_cast<size_t>(flags.max_documents));
  return data;
}

/// One task under one carry.
struct Reading {
  train::LossReport loss;
  std::vector<train::DocumentScore> f1 = {};
  Json json = {};
};

Reading measure(const Evaluation& eval, const train::BatchMaker& maker, const checkpoint::Task& task,
                const std::string& carry) {
  const EvalFlags& flags = eval.flags;
  const auto tokenizer = eval.folder.tokenizer();
  const train::WalkOptions walk{.carry = train::parse_carry(carry),
                                .batch = flags.batch,
                                .max_segments = flags.max_segments,
                                .stop = interrupted};
  Reading reading{evaluate_loss(eval.model, eval.data, maker, task, tokenizer.get(), walk)};
  if (reading.loss.total.targets == 0) {
    throw input_error(
        fmt::format("the text holds nothing to measure for the task {}", task.text()), flags.corpus.data.front(),
        fmt::format("a document needs at least two segments of {} tokens; give a longer text or a smaller --segment",
                    eval.segment));
  }
  Json& json = reading.json;
  json = reading.loss.to_json();
  json["carry"] = carry;
  if (flags.recall)
    json["recall"] = evaluate_recall(eval.model, eval.data, maker, task, eval.ids, tokenizer.get(), walk).to_json();
  if (flags.replies > 0) {
    auto generation = flags.generation;
    if (generation.max_new_tokens < 0 && generation.max_length < 0)
      generation.max_new_tokens = task.name == "respond" ? 40 : eval.model.room_for_target(eval.segment);
    const auto replies = train::evaluate_replies(eval.model, eval.data, maker, task, eval.folder.need_tokenizer(),
                                                 generation, walk, flags.replies);
    json["replies"] = replies.to_json();
    reading.f1 = replies.f1;
  }
  return reading;
}

/// The whole result of a task: its first carry's, and `compare` with the others'.
Json evaluate_task(const Evaluation& eval, const std::string& name, const std::vector<std::string>& carries) {
  const checkpoint::Task& task = eval.training.task(name);
  if (eval.flags.replies > 0 && task.name != "respond" && task.name != "seq2seq")
    throw usage_error(fmt::format("the task {} writes no replies", task.text()), "--replies", "leave it out");
  train::TaskOptions options;
  options.tasks = {};
  options.denoise = eval.flags.denoise;
  const train::BatchMaker maker(eval.data.corpus, eval.data.spans, eval.data.plan, options, eval.training.tasks,
                                eval.ids, 0);
  const Reading base = measure(eval, maker, task, carries.front());
  Json json = base.json;
  json["model"] = eval.folder.path;
  json["task"] = task.text();
  if (task.name == "recall" || task.name == "current") json["distance"] = task.distance;
  json["documents"] = eval.data.spans.size();
  json["segment"] = eval.segment;
  json.update(history_json(base.loss, eval.dialogues));
  for (size_t i = 1; i < carries.size() && !interrupted(); ++i) {
    Reading other = measure(eval, maker, task, carries[i]);
    if (interrupted()) break;  // a part of the targets is no comparison
    other.json.update(comparison_json(base.loss, other.loss, eval.dialogues));
    if (!base.f1.empty()) {
      const auto difference = train::bootstrap_difference(other.f1, base.f1);
      other.json["f1_difference"] = {{"value", difference.value}, {"interval", {difference.low, difference.high}}};
    }
    json["compare"].push_back(std::move(other.json));
  }
  return json;
}

std::string share_text(const Json& recall) {
  return fmt::format("{:.2f} % of {} tokens, {} of {} segments whole", 100 * recall["share"].get<double>(),
                     recall["tokens"].get<int64_t>(), recall["exact_segments"].get<int64_t>(),
                     recall["segments"].get<int64_t>());
}

std::string replies_text(const Json& replies) {
  return fmt::format("word F1 {:.4f} ({:.4f} to {:.4f}), distinct-1 {:.4f}, distinct-2 {:.4f}",
                     replies["f1"].get<double>(), replies["f1_interval"][0].get<double>(),
                     replies["f1_interval"][1].get<double>(), replies["distinct_1"].get<double>(),
                     replies["distinct_2"].get<double>());
}

void print_total(const Json& json, const train::EvalData& data) {
  const auto number = [&](const char* key) { return json[key].is_null() ? std::nan("") : json[key].get<double>(); };
  print_line(fmt::format("task {}, memory {}, {} documents, {} segments of {} tokens", json["task"].get<std::string>(),
                         json["carry"].get<std::string>(), data.spans.size(), json["segments"].get<int64_t>(),
                         json["segment"].get<int64_t>()));
  print_line(fmt::format("  targets        {:>12}   total nll {:.3f} (summed over documents, each from its own start)",
                         json["targets"].get<int64_t>(), number("nll")));
  print_line(fmt::format("  perplexity     {:>12.4f} per token, {:.4f} per word, {:.4f} per byte ({:.4f} bits)",
                         number("ppl"), number("word_ppl"), number("byte_ppl"), number("bits_per_byte")));
  if (json.contains("recall")) print_line(fmt::format("  given back     {:>12}", share_text(json["recall"])));
  if (json.contains("interval")) {
    print_line(fmt::format("  perplexity     {:>12.4f} to {:.4f}, 95 % of bootstrap draws of {} documents",
                           json["interval"]["ppl"][0].get<double>(), json["interval"]["ppl"][1].get<double>(),
                           json["interval"]["documents"].get<int64_t>()));
  }
  if (!json.contains("replies")) return;
  print_line(fmt::format("  replies        {:>12}   {}", json["replies"]["count"].get<int64_t>(),
                         replies_text(json["replies"])));
  const Json& bleu = json["replies"]["bleu"];
  print_line(fmt::format("  BLEU           {:>12.2f}   of {} tokens, {} in the references ({}), {:.1f} ids each",
                         bleu["score"].get<double>(), bleu["length"].get<int64_t>(),
                         bleu["reference_length"].get<int64_t>(), train::Bleu::kSignature,
                         json["replies"]["generated_length"].get<double>()));
  for (const Json& example : json["replies"]["examples"])
    print_line(fmt::format("    said {}, wanted {}", example["reply"].dump(), example["reference"].dump()));
}

/// Of a model that knows nothing it may be any size.
std::string perplexity_text(const Json& json) {
  const double value = json["ppl"].get<double>();
  return value < 1e5 ? fmt::format("{:.4f}", value) : fmt::format("{:.3e}", value);
}

std::string range_of(const Json& group) {
  const auto first = group["first"].get<int64_t>(), last = group["last"].get<int64_t>();
  return first == last ? std::to_string(first) : fmt::format("{} - {}", first, last);
}

std::string difference_text(const Json& difference) {
  const std::string value = fmt::format("{:+.4f}", difference["nll_per_target"].get<double>());
  if (!difference.contains("interval")) return value;
  const Json& ends = difference["interval"]["nll_per_target"];
  return fmt::format("{} ({:+.4f} to {:+.4f})", value, ends[0].get<double>(), ends[1].get<double>());
}

/// Perplexities of groups, a column a carry, and for all but the first what the loss is above the first's.
void print_groups(const Json& json, const char* key, const std::string& head) {
  if (!json.contains(key)) return;
  const Json others = json.value("compare", Json::array());
  std::string line =
      fmt::format("  {:<34} {:>9} {:>9} {:>10}", head, "targets", "documents", json["carry"].get<std::string>());
  for (const Json& other : others)
    line += fmt::format(" {:>10}  {:<30}", other["carry"].get<std::string>(), "loss above (95 %)");
  print_line(line);
  for (size_t i = 0; i < json[key].size(); ++i) {
    const Json& group = json[key][i];
    line = fmt::format("    {:<32} {:>9} {:>9} {:>10}", range_of(group), group["targets"].get<int64_t>(),
                       group["documents"].get<int64_t>(), perplexity_text(group));
    for (const Json& other : others) {
      line +=
          fmt::format(" {:>10}  {:<30}", perplexity_text(other[key][i]), difference_text(other[key][i]["difference"]));
    }
    print_line(line.substr(0, line.find_last_not_of(' ') + 1));
  }
}

void print_result(const Json& json, const train::EvalData& data) {
  print_total(json, data);
  for (const Json& other : json.value("compare", Json::array())) {
    print_line(fmt::format("  with {:<8}  {:>14} per token; loss per target above {}: {}",
                           other["carry"].get<std::string>(), perplexity_text(other), json["carry"].get<std::string>(),
                           difference_text(other["difference"])));
    if (other.contains("recall")) print_line(fmt::format("    given back   {}", share_text(other["recall"])));
    if (other.contains("f1_difference")) {
      const Json& f1 = other["f1_difference"];
      print_line(fmt::format("    replies      {}; F1 {:+.4f} ({:+.4f} to {:+.4f}) beside {}",
                             replies_text(other["replies"]), f1["value"].get<double>(), f1["interval"][0].get<double>(),
                             f1["interval"][1].get<double>(), json["carry"].get<std::string>()));
    }
  }
  print_groups(json, "by_place",
               json["place"] == "turn" ? "perplexity by turn, from 0:" : "perplexity by segment, from 0:");
  print_groups(json, "by_session", "perplexity by session:");
}

int run(const EvalFlags& flags) {
  carries_of(flags, "keep");  // refused before anything is loaded
  const auto folder = load(flags.model);
  const models::Model& model = *folder.model;
  if (flags.corpus.data.empty())
    throw usage_error("no text is given", "command line", "name files or folders: --data book.txt");
  checkpoint::Training training = folder.training;
  if (training.tasks.empty()) {
    // A stock model has no task of its own: it is measured on the target lines or the next segment, from its family's
    // start token.
    training.tasks.push_back({!flags.aligned.target.empty() ? "seq2seq"
                              : model.decoder_only()        ? "lm"
                                                            : "next",
                              model.ids().start, 0});
  }
  // To foretell the next token a decoder needs to have learnt nothing else.
  if (model.decoder_only() && !training.has("lm") && flags.task == std::vector<std::string>{"lm"})
    training.tasks.push_back({"lm", model.ids().start, 0});
  const std::vector<std::string> tasks = tasks_of(flags, training);
  for (const std::string& task : tasks) training.task(task);
  const bool lm = std::find(tasks.begin(), tasks.end(), "lm") != tasks.end();
  const auto* gpt2 = dynamic_cast<const models::Gpt2Model*>(&model);
  const bool ends = lm && gpt2 != nullptr && (!gpt2->config().positions.endless() || flags.overlap > 0);
  const std::vector<std::string> carries = carries_of(flags, ends ? "reset" : "keep");
  if (lm && flags.overlap > 0 && std::find(carries.begin(), carries.end(), "keep") != carries.end())
    throw usage_error("what is carried is not read again", "--overlap", "give --carry reset, or no --overlap");
  Evaluation eval{.flags = flags, .folder = folder, .model = model, .training = training};
  eval.dialogues = training.has("respond");
  eval.aligned = training.has("seq2seq");
  eval.segment = flags.segment > 0      ? flags.segment
                 : training.segment > 0 ? training.segment
                                        : model.positions() / (lm ? 1 : 2);
  eval.data = read_data(eval);
  eval.ids = train::SpecialIds::of(model, folder.tokenizer().get());
  watch_interrupts();
  for (const std::string& task : tasks) {
    if (interrupted()) break;
    const Json json = evaluate_task(eval, task, carries);
    flags.json ? print_json(json) : print_result(json, eval.data);
  }
  return interrupted() ? 1 : 0;
}

}  // namespace

Command eval_command() {
  return {"eval", "perplexity and recall over documents",
          "palimpsest eval --model runs/latest/checkpoint-2000 --data book.txt --compare reset --json",
          [](CLI::App& app) {
            auto flags = std::make_shared<EvalFlags>();
            options_to_flags(*flags, app);
            return [flags] { return run(*flags); };
          }};
}

}  // namespace palimpsest::app
