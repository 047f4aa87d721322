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

/// What is measured since the last line, and in all.
struct Meter {
  int64_t tokens = 0, targets = 0, recovered = 0, asked = 0;
  double nll = 0;
  std::vector<double> seconds;  ///< per segment; a window's worth, cleared at each line
};

class Streamer {
 public:
  Streamer(const StreamFlags& flags, const checkpoint::ModelFolder& folder, const checkpoint::Task& task,
           int64_t segment)
      : flags_(flags), model_(*folder.bart()), task_(task), segment_(segment), memory_(model_.fresh_memory(1)) {}

  /// Reads one segment, measures the task on it, and carries the memory on.
  void read(const std::vector<int32_t>& ids, bool first) {
    const auto started = std::chrono::steady_clock::now();
    models::EncodeInput input;
    input.ids = ids_tensor(ids);
    input.memory = memory_;
    input.reset = at::full({1}, first, at::kBool).to(input.ids.device());
    // "next": the segment that was just read is what the one before had to foretell.
    if (task_.name == "next" && !first && previous_output_.context.defined()) measure(previous_output_, ids);
    models::EncoderOutput encoded = model_.encode(input);
    memory_ = encoded.memory;
    if (memory_.slots.defined() && !memory_.slots.isfinite().all().item<bool>()) {
      throw internal_error("the memory is not finite", fmt::format("after {} tokens", total_.tokens),
                           "try --dtype float32");
    }
    if (first) history_.clear();
    if (task_.name == "recall" && static_cast<int64_t>(history_.size()) >= task_.distance) {
      measure(encoded, history_[history_.size() - static_cast<size_t>(task_.distance)]);
    }
    if (task_.name == "recall") {
      history_.push_back(ids);
      if (static_cast<int64_t>(history_.size()) > task_.distance) history_.erase(history_.begin());
    }
    previous_output_ = std::move(encoded);
    total_.tokens += static_cast<int64_t>(ids.size());
    window_.tokens += static_cast<int64_t>(ids.size());
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
    Json json = {{"tokens", total_.tokens}, {"task", task_.text()},      {"targets", total_.targets},
                 {"nll", total_.nll},       {"ppl", perplexity(total_)}, {"window_ppl", perplexity(window_)}};
    if (flags_.recall)
      json["recovered"] = window_.asked > 0
                              ? Json(static_cast<double>(window_.recovered) / static_cast<double>(window_.asked))
                              : Json();
    json["segment_seconds"] = segment_seconds;
    json["tokens_per_second"] = segment_seconds > 0 ? static_cast<double>(segment_) / segment_seconds : 0;
    json["state_bytes"] = memory_.bytes();
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
          1000 * segment_seconds, json["tokens_per_second"].get<double>(), format_bytes(memory_.bytes()),
          format_bytes(resident.now)));
    }
    window_ = {};
  }

 private:
  at::Tensor ids_tensor(const std::vector<int32_t>& ids) const {
    return at::tensor(std::vector<int64_t>(ids.begin(), ids.end()), at::kLong)
        .unsqueeze(0)
        .to(model_.shared->weight.device());
  }

  void measure(const models::EncoderOutput& encoded, const std::vector<int32_t>& target) {
    std::vector<int64_t> labels(target.begin(), target.end());
    if (task_.name == "recall") labels.push_back(model_.config().eos_token_id);
    const at::Tensor wanted = at::tensor(labels, at::kLong).unsqueeze(0).to(encoded.context.device());
    const at::Tensor inputs = nn::shift_right(wanted, task_.start_id, model_.config().pad_token_id);
    const auto loss = nn::target_loss(model_.logits(model_.decode(inputs, {}, encoded)), wanted);
    int64_t right = 0, asked = 0;
    if (flags_.recall && task_.name == "recall") {
      const auto given = generate::greedy(model_, encoded,
                                          {.start_id = task_.start_id,
                                           .max_new_tokens = static_cast<int64_t>(target.size()),
                                           .eos_id = model_.config().eos_token_id,
                                           .never = {model_.config().pad_token_id}});
      for (size_t j = 0; j < target.size() && j < given.sequences[0].size(); ++j)
        right += given.sequences[0][j] == target[j];
      asked = static_cast<int64_t>(target.size());
    }
    for (Meter* meter : {&total_, &window_}) {
      meter->targets += loss.targets;
      meter->nll += loss.nll.item<double>();
      meter->recovered += right;
      meter->asked += asked;
    }
  }

  const StreamFlags& flags_;
  const models::BartModel& model_;
  const checkpoint::Task& task_;
  int64_t segment_;
  memory::Memory memory_;
  models::EncoderOutput previous_output_;
  std::vector<std::vector<int32_t>> history_;  ///< the last `distance` segments
  Meter total_, window_;
  bool header_ = false;
};

int run(const StreamFlags& flags) {
  const at::NoGradGuard no_grad;
  const auto folder = load(flags.model);
  const models::BartConfig& config = folder.bart()->config();
  if (flags.corpus.data.empty()) throw usage_error("no text is given", "command line", "name a file, or - for stdin");
  checkpoint::Task task{"read", config.decoder_start_token_id, 0};  // a stock model reads without being asked anything
  if (!flags.task.empty()) {
    task = folder.training.task(flags.task);
  } else if (!folder.training.tasks.empty()) {
    task = folder.training.tasks.front();
  }
  const int64_t segment = flags.segment > 0             ? flags.segment
                          : folder.training.segment > 0 ? folder.training.segment
                                                        : config.max_position_embeddings;
  if (segment > config.max_position_embeddings) {
    throw usage_error(
        fmt::format("--segment {} is longer than the position table of {}", segment, config.max_position_embeddings),
        "", "give a shorter --segment");
  }
  watch_interrupts();
  data::TokenStream stream(flags.corpus, data::tokenize_with(folder.need_tokenizer()));
  Streamer streamer(flags, folder, task, segment);
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
