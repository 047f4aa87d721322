// SPDX-License-Identifier: Apache-2.0
// `palimpsest stream`: reads a text of any length segment by segment at constant memory and measures as it goes.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "apps/command.h"
#include "apps/model_flags.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/log.h"
#include "palimpsest/data/token_stream.h"
#include "palimpsest/generate/greedy.h"
#include "palimpsest/models/gpt2.h"
#include "palimpsest/nn/loss.h"
#include "palimpsest/train/tasks.h"

namespace palimpsest::app {

namespace {

struct StreamFlags {
  ModelFlags model;
  data::CorpusOptions corpus{.document = "file"};
  std::string task;
  int64_t segment = 0, max_tokens = 0, report_every = 0;
  bool recall = false, json = false;
  static void fields(auto& o, auto&& field) {
    field("model", o.model, "");
    field("corpus", o.corpus, "");
    field("task", o.task, "what is measured on the way: one of the model's tasks; the default is its first");
    field("segment", o.segment, "tokens of a segment; 0: as trained");
    field("max_tokens", o.max_tokens, "stop after that many tokens; 0: read everything");
    field("report_every", o.report_every,
          "tokens between two lines of the report; 0: a tenth of the text, or 10,000 tokens from stdin");
    field("recall", o.recall, "decode each segment's predecessor freely too and count what is given back (slower)");
    field("json", o.json, "one JSON object a line");
  }
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// What one segment, or many, came to.
struct Meter {
  int64_t tokens = 0, targets = 0, recovered = 0, asked = 0;
  double nll = 0;
  std::vector<double> seconds;  ///< per whole segment; a window's worth, cleared at each line
  void add(const Meter& one) {
    tokens += one.tokens, targets += one.targets, recovered += one.recovered, asked += one.asked, nll += one.nll;
  }
};

at::Tensor row_of(std::vector<int64_t> ids, const at::Device& device) {
  return at::tensor(ids, at::kLong).unsqueeze(0).to(device);
}

/// A model that reads on and on.
class Reader {
 public:
  virtual ~Reader() = default;
  /// The next segment; `first` of a document, before which all is forgotten.
  virtual Meter read(const std::vector<int32_t>& ids, bool first) = 0;
  /// What is carried from segment to segment.
  virtual int64_t state_bytes() const = 0;
};

/// Of an encoder-decoder the memory is carried, and the task measured on it.
class MemoryReader : public Reader {
 public:
  MemoryReader(const models::BartModel& model, const checkpoint::Task& task, bool recall)
      : model_(model), task_(task), recall_(recall), memory_(model.fresh_memory(1)) {}

  Meter read(const std::vector<int32_t>& ids, bool first) override {
    Meter meter;
    meter.tokens = static_cast<int64_t>(ids.size());
    models::EncodeInput input;
    input.ids = row_of({ids.begin(), ids.end()}, model_.device());
    input.memory = memory_;
    input.reset = at::full({1}, first, at::kBool).to(input.ids.device());
    // "next": the segment that was just read is what the one before had to foretell.
    if (task_.name == "next" && !first && previous_output_.context.defined()) measure(previous_output_, ids, meter);
    models::EncoderOutput encoded = model_.encode(input);
    memory_ = encoded.memory;
    read_ += meter.tokens;
    if (memory_.slots.defined() && !memory_.slots.isfinite().all().item<bool>()) {
      throw internal_error("the memory is not finite", fmt::format("after {} tokens", read_), "try --dtype float32");
    }
    if (first) history_.clear();
    if (task_.name == "recall" && static_cast<int64_t>(history_.size()) >= task_.distance)
      measure(encoded, history_[history_.size() - static_cast<size_t>(task_.distance)], meter);
    if (task_.name == "recall") {
      history_.push_back(ids);
      if (static_cast<int64_t>(history_.size()) > task_.distance) history_.erase(history_.begin());
    }
    previous_output_ = std::move(encoded);
    return meter;
  }

  int64_t state_bytes() const override { return memory_.bytes(); }

 private:
  void measure(const models::EncoderOutput& encoded, const std::vector<int32_t>& target, Meter& meter) {
    std::vector<int64_t> labels(target.begin(), target.end());
    if (task_.name == "recall") labels.push_back(model_.config().eos_token_id);
    const at::Tensor wanted = row_of(labels, encoded.context.device());
    const at::Tensor inputs = nn::shift_right(wanted, task_.start_id, model_.config().pad_token_id);
    const auto loss = nn::target_loss(model_.logits(model_.decode(inputs, {}, encoded)), wanted);
    meter.targets += loss.targets;
    meter.nll += loss.nll.item<double>();
    if (!recall_ || task_.name != "recall") return;
    const auto given = generate::greedy(model_, encoded,
                                        {.start_id = task_.start_id,
                                         .max_new_tokens = static_cast<int64_t>(target.size()),
                                         .eos_id = model_.config().eos_token_id,
                                         .never = {model_.config().pad_token_id}});
    for (size_t j = 0; j < target.size() && j < given.sequences[0].size(); ++j)
      meter.recovered += given.sequences[0][j] == target[j];
    meter.asked += static_cast<int64_t>(target.size());
  }

  const models::BartModel& model_;
  const checkpoint::Task& task_;
  bool recall_;
  memory::Memory memory_;
  models::EncoderOutput previous_output_;
  std::vector<std::vector<int32_t>> history_;  ///< the last `distance` segments
  int64_t read_ = 0;
};

/// Of a decoder alone what its attention keeps is carried, and every token but a document's first is foretold.
class CausalReader : public Reader {
 public:
  explicit CausalReader(const models::Gpt2Model& model) : model_(model) {}

  Meter read(const std::vector<int32_t>& ids, bool first) override {
    Meter meter;
    meter.tokens = static_cast<int64_t>(ids.size());
    if (first) state_ = {};
    // The last token of the segment before is read now, to foretell this one's first.
    std::vector<int64_t> labels(ids.begin(), ids.end()), inputs(ids.begin(), ids.end() - 1);
    if (first) {
      labels.erase(labels.begin());
    } else {
      inputs.insert(inputs.begin(), last_);
    }
    last_ = ids.back();
    if (labels.empty()) return meter;
    const at::Tensor hidden = model_.forward(row_of(inputs, model_.device()), {}, &state_);
    const auto loss = nn::target_loss(model_.logits(hidden), row_of(labels, model_.device()));
    meter.targets = loss.targets;
    meter.nll = loss.nll.item<double>();
    return meter;
  }

  int64_t state_bytes() const override { return state_.bytes(); }

 private:
  const models::Gpt2Model& model_;
  models::CausalState state_;
  int64_t last_ = 0;
};

/// Reads segments, counts, and prints lines.
class Streamer {
 public:
  Streamer(const StreamFlags& flags, std::unique_ptr<Reader> reader, std::string task, int64_t segment)
      : flags_(flags), reader_(std::move(reader)), task_(std::move(task)), segment_(segment) {}

  void read(const std::vector<int32_t>& ids, bool first) {
    const auto started = std::chrono::steady_clock::now();
    const Meter one = reader_->read(ids, first);
    total_.add(one);
    window_.add(one);
    if (static_cast<int64_t>(ids.size()) == segment_)
      window_.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count());
  }

  int64_t tokens() const { return total_.tokens; }
  int64_t since_report() const { return window_.tokens; }

  void report() {
    const ResidentBytes resident = resident_bytes();
    const double segment_seconds = median(window_.seconds);
    const auto perplexity = [](const Meter& m) {
      return m.targets > 0 ? Json(std::exp(m.nll / static_cast<double>(m.targets))) : Json();
    };
    Json json = {{"tokens", total_.tokens},   {"task", task_},
                 {"targets", total_.targets}, {"nll", total_.nll},
                 {"ppl", perplexity(total_)}, {"window_ppl", perplexity(window_)}};
    if (flags_.recall)
      json["recovered"] = window_.asked > 0
                              ? Json(static_cast<double>(window_.recovered) / static_cast<double>(window_.asked))
                              : Json();
    json["segment_seconds"] = segment_seconds;
    json["tokens_per_second"] = segment_seconds > 0 ? static_cast<double>(segment_) / segment_seconds : 0;
    json["state_bytes"] = reader_->state_bytes();
    json["resident_bytes"] = resident.now;
    if (flags_.json) {
      print_json(json);
    } else {
      if (!header_) {
        print_line(fmt::format("{:>12} {:>12} {:>12} {}{:>12} {:>10} {:>9} {:>11}", "tokens", "perplexity", "lately",
                               flags_.recall ? "  given back " : "", "ms/segment", "tokens/s", "state", "resident"));
        header_ = true;
      }
      const auto number = [](const Json& value) {
        return value.is_null() ? std::string("-") : fmt::format("{:.4f}", value.get<double>());
      };
      print_line(fmt::format(
          "{:>12} {:>12} {:>12} {}{:>12.3f} {:>10.0f} {:>9} {:>11}", format_count(total_.tokens), number(json["ppl"]),
          number(json["window_ppl"]),
          flags_.recall
              ? fmt::format("{:>10.2f} % ", window_.asked > 0 ? 100.0 * static_cast<double>(window_.recovered) /
                                                                    static_cast<double>(window_.asked)
                                                              : 0.0)
              : "",
          1000 * segment_seconds, json["tokens_per_second"].get<double>(), format_bytes(reader_->state_bytes()),
          format_bytes(resident.now)));
    }
    window_ = {};
  }

 private:
  const StreamFlags& flags_;
  std::unique_ptr<Reader> reader_;
  std::string task_;
  int64_t segment_;
  Meter total_, window_;
  bool header_ = false;
};

/// What reads, the name of what is measured, and the tokens of a segment.
struct Plan {
  std::unique_ptr<Reader> reader;
  std::string task;
  int64_t segment = 0;
};

Plan plan_of(const StreamFlags& flags, const checkpoint::ModelFolder& folder, checkpoint::Task& task) {
  const int64_t asked = flags.segment > 0 ? flags.segment : folder.training.segment;
  if (const auto* gpt2 = dynamic_cast<const models::Gpt2Model*>(folder.model.get())) {
    if (!flags.task.empty() && flags.task != "lm")
      throw usage_error(fmt::format("a gpt2 model is not asked for the task \"{}\"", printable(flags.task)), "--task",
                        "leave it out: every token is foretold");
    if (flags.recall) throw usage_error("a gpt2 model has no memory to give back", "--recall", "leave it out");
    return {std::make_unique<CausalReader>(*gpt2), "lm", asked > 0 ? asked : std::min<int64_t>(256, gpt2->positions())};
  }
  const auto& model = *folder.bart();
  const models::BartConfig& config = model.config();
  task = {"read", config.decoder_start_token_id, 0};  // a stock model reads without being asked anything
  if (!flags.task.empty()) {
    task = folder.training.task(flags.task);
  } else if (!folder.training.tasks.empty()) {
    task = folder.training.tasks.front();
  }
  const int64_t segment = asked > 0 ? asked : config.max_position_embeddings;
  if (segment > config.max_position_embeddings && !config.positions.endless()) {
    throw usage_error(
        fmt::format("--segment {} is longer than the position table of {}", segment, config.max_position_embeddings),
        "", "give a shorter --segment");
  }
  return {std::make_unique<MemoryReader>(model, task, flags.recall), task.text(), segment};
}

int run(const StreamFlags& flags) {
  const at::NoGradGuard no_grad;
  const auto folder = load(flags.model);
  if (flags.corpus.data.empty()) throw usage_error("no text is given", "command line", "name a file, or - for stdin");
  checkpoint::Task task;
  Plan plan = plan_of(flags, folder, task);
  const int64_t segment = plan.segment;
  watch_interrupts();
  data::TokenStream stream(flags.corpus, data::tokenize_with(folder.need_tokenizer()));
  Streamer streamer(flags, std::move(plan.reader), plan.task, segment);
  const bool seekable = flags.corpus.data != std::vector<std::string>{"-"};
  double next_share = 0.01;  // the first line comes early: the end is compared with it
  Progress progress("reading", 0, "tokens");
  data::StreamedTokens tokens;
  const auto due = [&] {
    if (flags.report_every > 0) return streamer.since_report() >= flags.report_every;
    const double share = flags.max_tokens > 0
                             ? static_cast<double>(streamer.tokens()) / static_cast<double>(flags.max_tokens)
                             : stream.progress();
    if (!seekable && flags.max_tokens == 0) return streamer.since_report() >= 10000;
    if (share < next_share || streamer.since_report() < 10 * segment) return false;
    next_share = share < 0.1 ? 0.1 : std::floor(share * 10) / 10 + 0.1;
    return true;
  };
  while (stream.next(segment, tokens) && !interrupted()) {
    if (!tokens.ids.empty()) streamer.read(tokens.ids, tokens.first);
    progress.update(streamer.tokens());
    if (due()) {
      progress.clear();
      streamer.report();
    }
    if (flags.max_tokens > 0 && streamer.tokens() >= flags.max_tokens) break;
  }
  if (streamer.tokens() == 0) throw input_error("the text is empty", flags.corpus.data.front());
  progress.clear();
  if (streamer.since_report() > 0) streamer.report();
  return interrupted() ? 1 : 0;
}

}  // namespace

Command stream_command() {
  return {"stream", "read a text of any length at constant memory", "palimpsest stream --model DIR book.txt --recall",
          [](CLI::App& app) {
            auto flags = std::make_shared<StreamFlags>();
            app.add_option("file", flags->corpus.data, "text files; - is stdin");
            options_to_flags(*flags, app);
            return [flags] { return run(*flags); };
          }};
}

}  // namespace palimpsest::app
