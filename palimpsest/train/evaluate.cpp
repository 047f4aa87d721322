// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <tuple>

#include "palimpsest/core/error.h"
#include "palimpsest/generate/greedy.h"
#include "palimpsest/generate/model_decoder.h"
#include "palimpsest/generate/search.h"
#include "palimpsest/models/gpt2.h"
#include "palimpsest/nn/loss.h"

namespace palimpsest::train {

Carry parse_carry(const std::string& text) {
  check_choice("--carry", text, {"keep", "reset", "other", "off"});
  return text == "keep"    ? Carry::kKeep
         : text == "reset" ? Carry::kReset
         : text == "other" ? Carry::kOther
                           : Carry::kOff;
}

std::string carry_name(Carry carry) {
  switch (carry) {
    case Carry::kKeep:
      return "keep";
    case Carry::kReset:
      return "reset";
    case Carry::kOther:
      return "other";
    case Carry::kOff:
      return "off";
  }
  return "";
}

namespace {

void check_memory(const memory::Memory& memory, const SegmentBatch& batch) {
  if (!memory.slots.defined() || memory.slots.isfinite().all().item<bool>()) return;
  for (size_t lane = 0; lane < batch.items.size(); ++lane) {
    if (memory.slots[static_cast<int64_t>(lane)].isfinite().all().item<bool>()) continue;
    throw internal_error("the memory is not finite",
                         fmt::format("document {}, segment {}", batch.items[lane].document, batch.items[lane].segment),
                         "the weights are broken, or --dtype is too narrow: try --dtype float32");
  }
}

}  // namespace

void walk(const models::Model& model, const EvalData& data, const WalkOptions& options,
          const std::function<SegmentBatch(std::vector<data::LaneItem>)>& make,
          const std::function<void(const SegmentBatch&, const models::EncoderOutput&)>& each) {
  const at::NoGradGuard no_grad;
  const std::vector<data::Span>& spans = data.spans;
  const auto device = model.device();

  at::Tensor left_behind;  // [spans, M, E]: what each document's reading left at its end
  if (options.carry == Carry::kOther && model.memory_options().enabled()) {
    if (spans.size() < 2)
      throw usage_error("another document's memory needs at least two documents", "--carry other",
                        "give more documents, or cut this one: --document pieces=2");
    const at::Tensor fresh = model.fresh_memory(1).slots;
    left_behind = at::zeros({static_cast<int64_t>(spans.size()), fresh.size(1), fresh.size(2)}, fresh.options());
    WalkOptions keep = options;
    keep.carry = Carry::kKeep;
    walk(model, data, keep, make, [&](const SegmentBatch& batch, const models::EncoderOutput& encoded) {
      for (size_t lane = 0; lane < batch.items.size(); ++lane) {
        if (batch.items[lane].last)
          left_behind[batch.items[lane].span].copy_(encoded.memory.slots[static_cast<int64_t>(lane)]);
      }
    });
  }

  data::Lanes lanes(data.corpus, spans, data.plan,
                    {.lanes = std::min<int64_t>(options.batch, static_cast<int64_t>(spans.size())),
                     .max_steps = options.max_segments});
  memory::Memory memory;
  for (;;) {
    if (options.stop && options.stop()) return;
    std::vector<data::LaneItem> items = lanes.next();
    if (items.empty()) return;
    const SegmentBatch batch = make(std::move(items));
    models::EncodeInput input;
    input.ids = batch.ids.to(device);
    if (batch.mask.defined()) input.mask = batch.mask.to(device);
    input.memory = memory;
    input.reset = options.carry == Carry::kReset ? at::ones_like(batch.reset).to(device) : batch.reset.to(device);
    input.use_memory = options.carry != Carry::kOff;
    if (left_behind.defined()) {
      std::vector<int64_t> others;
      for (const auto& item : batch.items)
        others.push_back(item.idle ? 0 : (item.span + 1) % static_cast<int64_t>(spans.size()));
      input.memory = {left_behind.index_select(0, at::tensor(others, at::kLong).to(device))};
      input.reset = at::Tensor();
    }
    const models::EncoderOutput encoded = model.encode(input);
    check_memory(encoded.memory, batch);
    each(batch, encoded);
    memory = encoded.memory;
  }
}

double LossSum::perplexity() const { return targets > 0 ? std::exp(nll / static_cast<double>(targets)) : std::nan(""); }

Json LossReport::to_json() const {
  const auto per = [&](int64_t count) {
    return count > 0 ? Json(std::exp(total.nll / static_cast<double>(count))) : Json();
  };
  Json json = {
      {"targets", total.targets},
      {"nll", total.nll},
      {"ppl", per(total.targets)},
      {"segments", segments},
      {"words", words},
      {"word_ppl", per(words)},
      {"bytes", bytes},
      {"byte_ppl", per(bytes)},
      {"bits_per_byte", bytes > 0 ? Json(total.nll / static_cast<double>(bytes) / std::numbers::ln2) : Json()}};
  if (documents.size() > 1) {
    const Interval interval = bootstrap_mean(documents);
    json["interval"] = {{"level", 0.95},
                        {"documents", documents.size()},
                        {"nll_per_target", {interval.low, interval.high}},
                        {"ppl", {std::exp(interval.low), std::exp(interval.high)}}};
  }
  for (const auto& [segment, sum] : by_segment)
    json["by_segment"].push_back(
        {{"segment", segment}, {"targets", sum.targets}, {"nll", sum.nll}, {"ppl", sum.perplexity()}});
  return json;
}

namespace {

/// What the decoder sees when it is asked for `task`. "current" is trained from the memory alone: everything else would
/// be read off the row.
models::EncoderOutput seen_for(const checkpoint::Task& task, const models::EncoderOutput& encoded, Carry carry) {
  if (task.name != "current" || carry == Carry::kOff || !encoded.memory.slots.defined()) return encoded;
  models::EncoderOutput alone;
  alone.memory = encoded.memory;
  alone.context = alone.hidden = encoded.memory.slots;
  return alone;
}

/// A decoder that reads document after document in lanes, with what its attention keeps of each.
class CarriedDecoder {
 public:
  CarriedDecoder(const models::Model& model, const EvalData& data, const std::string& place)
      : model_(dynamic_cast<const models::Gpt2Model&>(model)) {
    if (const std::string why = model_.attention->no_stream(); !why.empty())
      throw usage_error("this model cannot be read token by token: " + why, place, "give --carry reset");
    for (const data::Span& span : data.spans) {
      if (model_.config().positions.endless() || span.size() <= model_.positions()) continue;
      throw usage_error(
          fmt::format("a document has {} tokens, but the position table ends at {}", span.size(), model_.positions()),
          place,
          fmt::format("give --carry reset (each segment alone; --overlap N: with N tokens before it), or "
                      "--positions segment:{}",
                      model_.positions()));
    }
  }

  /// Hidden rows [B, T, E] of decoder_ids [B, T]; what follows a document's last token is of no matter.
  at::Tensor read(const SegmentBatch& batch) {
    states_.resize(batch.items.size());
    std::vector<at::Tensor> rows;
    for (size_t lane = 0; lane < batch.items.size(); ++lane) {
      if (batch.items[lane].reset) states_[lane] = {};
      const at::Tensor ids = batch.main.decoder_ids.narrow(0, static_cast<int64_t>(lane), 1).to(model_.device());
      // Idle lanes and padding must not run into the end of the position table.
      const int64_t count = batch.items[lane].idle ? 0 : row_length(batch, static_cast<int64_t>(lane));
      at::Tensor hidden = at::zeros({1, ids.size(1), model_.config().n_embd}, model_.words().options());
      if (count > 0) hidden.narrow(1, 0, count).copy_(model_.forward(ids.narrow(1, 0, count), {}, &states_[lane]));
      rows.push_back(hidden);
    }
    return at::cat(rows);
  }

 private:
  static int64_t row_length(const SegmentBatch& batch, int64_t lane) {
    const at::Tensor asked = batch.main.labels[lane].ne(nn::kIgnore).nonzero();
    return asked.numel() > 0 ? asked.max().item<int64_t>() + 1 : 0;
  }
  const models::Gpt2Model& model_;
  std::vector<models::CausalState> states_;
};

}  // namespace

LossReport evaluate_loss(const models::Model& model, const EvalData& data, const BatchMaker& maker,
                         const checkpoint::Task& task, const text::Tokenizer* tokenizer, const WalkOptions& options) {
  LossReport report;
  std::map<int64_t, LossSum> by_span;  // summed in the order of documents at the end: the batch must not matter
  std::map<int64_t, std::map<int64_t, LossSum>> by_segment;
  std::optional<CarriedDecoder> carried;
  if (task.name == "lm") {
    if (options.carry != Carry::kKeep && options.carry != Carry::kReset)
      throw usage_error("a language model carries its own attention, or begins anew", "--carry",
                        "give --carry keep or reset");
    if (options.carry == Carry::kKeep) carried.emplace(model, data, "--carry keep");
  }
  walk(
      model, data, options, [&](auto items) { return maker.evaluation(std::move(items), task); },
      [&](const SegmentBatch& batch, const models::EncoderOutput& encoded) {
        if (batch.main.count == 0) return;
        const auto device = model.device();
        const auto seen = seen_for(task, encoded, options.carry);
        const at::Tensor hidden =
            carried ? carried->read(batch) : model.decode(batch.main.decoder_ids.to(device), {}, seen);
        const at::Tensor losses = nn::each_loss_in_parts(hidden, batch.main.labels.to(device), model.vocab_size(),
                                                         [&](const at::Tensor& hidden) { return model.logits(hidden); })
                                      .to(at::kDouble)
                                      .sum(1)
                                      .cpu();
        const at::Tensor counts = batch.main.labels.ne(nn::kIgnore).sum(1);
        for (size_t lane = 0; lane < batch.items.size(); ++lane) {
          const auto& item = batch.items[lane];
          const int64_t targets = counts[static_cast<int64_t>(lane)].item<int64_t>();
          if (targets == 0) continue;
          const double nll = losses[static_cast<int64_t>(lane)].item<double>();
          for (LossSum* sum : {&by_span[item.span], &by_segment[item.segment][item.span]})
            sum->targets += targets, sum->nll += nll;
          const data::Step step = data.plan->step(data.spans[static_cast<size_t>(item.span)], item.segment);
          report.steps.push_back({.span = item.span,
                                  .place = data.plan->framed() ? step.place : item.segment,
                                  .session = step.session,
                                  .sum = {targets, nll}});
          ++report.segments;
          if (tokenizer == nullptr) continue;
          const auto reference = maker.reference(item, task);
          const std::string text = tokenizer->decode_bytes(*reference);
          report.bytes += static_cast<int64_t>(text.size());
          const auto white = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
          for (size_t i = 0; i < text.size(); ++i)
            report.words += !white(text[i]) && (i > 0 ? white(text[i - 1]) : item.segment == 0 || data.plan->framed());
        }
      });
  std::sort(report.steps.begin(), report.steps.end(),
            [](const StepLoss& a, const StepLoss& b) { return std::tie(a.span, a.place) < std::tie(b.span, b.place); });
  for (const auto& [span, sum] : by_span) {
    report.total.targets += sum.targets, report.total.nll += sum.nll;
    report.documents.push_back({sum.nll, static_cast<double>(sum.targets)});
  }
  for (const auto& [segment, spans] : by_segment) {
    for (const auto& [span, sum] : spans)
      report.by_segment[segment].targets += sum.targets, report.by_segment[segment].nll += sum.nll;
  }
  return report;
}

Json RecallReport::to_json() const {
  Json json = {{"tokens", tokens},
               {"recovered", recovered},
               {"share", share()},
               {"segments", segments},
               {"exact_segments", exact}};
  if (documents.size() > 1) {
    const Interval interval = bootstrap_mean(documents);
    json["interval"] = {{"level", 0.95}, {"documents", documents.size()}, {"share", {interval.low, interval.high}}};
  }
  return json;
}

models::EncoderOutput select_rows(const models::EncoderOutput& encoded, const at::Tensor& keep) {
  const auto rows = [&](const at::Tensor& all) { return all.defined() ? all.index_select(0, keep) : all; };
  models::EncoderOutput chosen;
  chosen.context = rows(encoded.context);
  chosen.context_mask = rows(encoded.context_mask);
  chosen.context_global = rows(encoded.context_global);
  chosen.prompt = rows(encoded.prompt);
  chosen.prompt_mask = rows(encoded.prompt_mask);
  return chosen;
}

RecallReport evaluate_recall(const models::Model& model, const EvalData& data, const BatchMaker& maker,
                             const checkpoint::Task& task, const SpecialIds& ids, const text::Tokenizer* tokenizer,
                             const WalkOptions& options, int64_t max_examples) {
  RecallReport report;
  std::map<int64_t, DocumentScore> by_span;
  walk(
      model, data, options, [&](auto items) { return maker.evaluation(std::move(items), task); },
      [&](const SegmentBatch& batch, const models::EncoderOutput& encoded) {
        std::vector<int64_t> rows;
        std::vector<std::vector<int32_t>> references;
        int64_t longest = 0;
        for (size_t lane = 0; lane < batch.items.size(); ++lane) {
          auto reference = maker.reference(batch.items[lane], task);
          if (!reference) continue;
          rows.push_back(static_cast<int64_t>(lane));
          longest = std::max(longest, static_cast<int64_t>(reference->size()));
          references.push_back(std::move(*reference));
        }
        if (rows.empty()) return;
        const auto seen = seen_for(task, encoded, options.carry);
        const auto generated = generate::greedy(
            model, select_rows(seen, at::tensor(rows, at::kLong).to(model.device())),
            {.start_id = task.start_id, .max_new_tokens = longest, .eos_id = ids.eos, .never = {ids.pad}});
        for (size_t i = 0; i < rows.size(); ++i) {
          const auto& given = generated.sequences[i];
          const int64_t right = equal_places(references[i], given);
          DocumentScore& document = by_span[batch.items[static_cast<size_t>(rows[i])].span];
          document.sum += static_cast<double>(right), document.weight += static_cast<double>(references[i].size());
          report.tokens += static_cast<int64_t>(references[i].size());
          report.recovered += right;
          ++report.segments;
          report.exact += right == static_cast<int64_t>(references[i].size());
          if (tokenizer != nullptr && static_cast<int64_t>(report.examples.size()) < max_examples) {
            const auto& item = batch.items[static_cast<size_t>(rows[i])];
            std::vector<int32_t> given32(given.begin(), given.end());
            std::erase(given32, static_cast<int32_t>(ids.eos));
            report.examples.push_back({data.corpus->name(item.document), tokenizer->decode(item.tokens),
                                       tokenizer->decode(references[i]), tokenizer->decode(given32), item.segment,
                                       static_cast<double>(right) / static_cast<double>(references[i].size())});
          }
        }
      });
  for (const auto& [span, score] : by_span) report.documents.push_back(score);
  return report;
}

Json ReplyReport::to_json() const {
  Json json = {{"count", count}, {"f1", Json()}, {"f1_interval", {Json(), Json()}}};
  if (!f1.empty()) {
    const Interval interval = bootstrap_mean(f1);
    json["f1"] = interval.value;
    json["f1_interval"] = {interval.low, interval.high};
  }
  json["documents"] = f1.size();
  json["distinct_1"] = distinct_n(replies, 1);
  json["distinct_2"] = distinct_n(replies, 2);
  const Bleu bleu = corpus_bleu(replies, references);
  json["bleu"] = {{"score", bleu.score},
                  {"precisions", bleu.precisions},
                  {"brevity_penalty", bleu.brevity_penalty},
                  {"length", bleu.length},
                  {"reference_length", bleu.reference_length},
                  {"signature", Bleu::kSignature}};
  json["generated_length"] = count > 0 ? Json(static_cast<double>(tokens) / static_cast<double>(count)) : Json();
  json["by_step"] = Json::array();
  for (const auto& [step, sum] : by_step)
    json["by_step"].push_back(
        {{"step", step}, {"replies", sum.second}, {"f1", sum.first / static_cast<double>(sum.second)}});
  json["examples"] = Json::array();
  for (const Example& example : examples)
    json["examples"].push_back({{"reference", example.reference}, {"reply", example.reply}});
  return json;
}

ReplyReport evaluate_replies(const models::Model& model, const EvalData& data, const BatchMaker& maker,
                             const checkpoint::Task& task, const text::Tokenizer& tokenizer,
                             generate::GenerationOptions generation, const WalkOptions& options, int64_t most) {
  constexpr size_t kExamples = 5;
  ReplyReport report;
  const models::FamilyIds ids = model.ids();
  if (generation.eos_token_id.empty()) generation.eos_token_id = {ids.eos};
  if (generation.pad_token_id < 0) generation.pad_token_id = ids.pad;
  if (ids.pad != ids.eos) generation.suppress_tokens.push_back(ids.pad);
  std::map<int64_t, DocumentScore> by_span;
  // Steps of each document that are among the first `most` replies.
  std::vector<int64_t> answered;
  int64_t left = most;
  for (const data::Span& span : data.spans) {
    const int64_t all = data.plan->count(span),
                  steps = options.max_segments > 0 ? std::min(all, options.max_segments) : all;
    int64_t step = 0;
    for (; step < steps && left > 0; ++step) left -= data.plan->step(span, step).write.size() > 0;
    answered.push_back(step);
  }
  const int64_t wanted = most - left;
  const auto text_of = [&](const std::vector<int32_t>& ids) { return tokenizer.decode(ids, true); };
  WalkOptions until = options;
  until.stop = [&] { return report.count >= wanted || (options.stop && options.stop()); };
  walk(
      model, data, until, [&](auto items) { return maker.evaluation(std::move(items), task); },
      [&](const SegmentBatch& batch, const models::EncoderOutput& encoded) {
        std::vector<int64_t> lanes;
        std::vector<std::string> references;
        for (size_t lane = 0; lane < batch.items.size(); ++lane) {
          const auto& item = batch.items[lane];
          if (item.idle || item.segment >= answered[static_cast<size_t>(item.span)]) continue;
          const auto reference = maker.reference(item, task);
          if (!reference) continue;
          lanes.push_back(static_cast<int64_t>(lane));
          references.push_back(text_of(*reference));
        }
        if (lanes.empty()) return;
        const auto count = static_cast<int64_t>(lanes.size());
        const auto decoder =
            generate::make_decoder(model, select_rows(encoded, at::tensor(lanes, at::kLong).to(model.device())),
                                   at::full({count, 1}, task.start_id, at::kLong));
        const auto result = generate::generate(*decoder, generation);
        for (int64_t i = 0; i < count; ++i) {
          const auto& ids = result.items[static_cast<size_t>(i)].front().ids;
          const std::string reply = text_of({ids.begin(), ids.end()});
          const double score = word_f1(reply, references[static_cast<size_t>(i)]);
          const auto& item = batch.items[static_cast<size_t>(lanes[static_cast<size_t>(i)])];
          by_span[item.span].sum += score, by_span[item.span].weight += 1;
          report.by_step[item.segment].first += score, ++report.by_step[item.segment].second;
          report.replies.push_back(reply);
          report.references.push_back(references[static_cast<size_t>(i)]);
          report.tokens += static_cast<int64_t>(ids.size());
          ++report.count;
          if (report.examples.size() < kExamples)
            report.examples.push_back({references[static_cast<size_t>(i)], reply});
        }
      });
  for (const auto& [span, score] : by_span) report.f1.push_back(score);
  return report;
}

}  // namespace palimpsest::train
