// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/train/tasks.h"

#include <algorithm>
#include <charconv>

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"
#include "palimpsest/nn/loss.h"

namespace palimpsest::train {

namespace {
enum Purpose { kDrawTask, kDenoise, kMaskInputs, kMaskAuxiliary, kNoisy };
const char* const kAuxiliary = "current";

/// "." or "!\"" or " ?)" but not "..a".
bool ends_sentence(std::string_view token) {
  while (!token.empty() && token.front() == ' ') token.remove_prefix(1);
  for (bool shorter = true; shorter;) {
    shorter = false;
    for (const std::string_view closing : {"\"", "'", ")", "]", "\u201d", "\u2019", "\u00bb"}) {
      if (!token.ends_with(closing)) continue;
      token.remove_suffix(closing.size());
      shorter = true;
    }
  }
  return !token.empty() && token.find_first_not_of(".!?") == std::string_view::npos;
}
}  // namespace

SpecialIds SpecialIds::of(const models::Model& model, const text::Tokenizer* tokenizer) {
  const models::FamilyIds family = model.ids();
  SpecialIds ids{.bos = family.bos, .pad = family.pad, .eos = family.eos, .continues = model.decoder_only()};
  if (tokenizer != nullptr) {
    ids.mask = tokenizer->id_of("<mask>").value_or(-1);
    for (int32_t id = 0; id < static_cast<int32_t>(tokenizer->vocab_size()); ++id) {
      if (tokenizer->is_special(id) || tokenizer->token_of(id).empty()) continue;
      ids.ordinary.push_back(id);
      if (ends_sentence(tokenizer->decode_bytes(std::vector<int32_t>{id}))) ids.sentence_ends.push_back(id);
    }
  }
  return ids;
}

TaskName TaskName::parse(const std::string& text) {
  const Error unknown =
      usage_error(fmt::format("unknown task \"{}\"", text), "tasks",
                  "choose among recall, recall:N (N segments back), next, denoise, respond, seq2seq, lm");
  if (text == "recall") return {"recall", 1};
  if (text == "next" || text == "denoise" || text == "respond" || text == "seq2seq" || text == "lm") return {text, 0};
  if (text.rfind("recall:", 0) != 0) throw unknown;
  TaskName name{"recall", 0};
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data() + 7, end, name.distance);
  if (code != std::errc() || stop != end || name.distance < 1 || name.distance > 1000) throw unknown;
  return name;
}

std::pair<std::shared_ptr<const text::Tokenizer>, std::vector<checkpoint::Task>> assign_start_tokens(
    std::shared_ptr<const text::Tokenizer> tokenizer, const Weights& weights, bool auxiliary, int64_t family_start) {
  if (weights.empty()) throw usage_error("no task is given", "tasks", "for example tasks = {recall = 1}");
  std::vector<checkpoint::Task> tasks;
  for (const auto& [name, weight] : weights) {
    const TaskName parsed = TaskName::parse(name);
    if (!(weight > 0))
      throw usage_error(fmt::format("the weight of the task {} is {}", name, weight), "tasks",
                        "weights must be positive; leave the task out instead");
    tasks.push_back({parsed.kind, family_start, parsed.distance});
  }
  const bool several = tasks.size() > 1;
  for (const auto& task : tasks) {
    if (task.name == "lm" && (several || auxiliary))
      throw usage_error("lm has no other tasks beside it", "tasks", "set tasks = {lm = 1} and no auxiliary_weight");
  }
  if (auxiliary) tasks.push_back({kAuxiliary, family_start, 0});
  std::vector<std::string> added;
  for (const auto& task : tasks) {
    if (several || task.name == kAuxiliary) added.push_back("<" + task.text() + ">");
  }
  if (added.empty()) return {tokenizer, tasks};
  if (!tokenizer) throw usage_error("several tasks need a tokenizer to add start tokens to", "tasks");
  tokenizer = tokenizer->with_added_tokens(added);
  for (auto& task : tasks) {
    if (several || task.name == kAuxiliary) task.start_id = tokenizer->id_of("<" + task.text() + ">").value();
  }
  return {tokenizer, tasks};
}

BatchMaker::BatchMaker(std::shared_ptr<const data::Corpus> corpus, std::vector<data::Span> spans,
                       std::shared_ptr<const data::StepPlan> plan, TaskOptions options,
                       std::vector<checkpoint::Task> tasks, SpecialIds ids, uint64_t seed)
    : corpus_(std::move(corpus)),
      spans_(std::move(spans)),
      plan_(std::move(plan)),
      options_(std::move(options)),
      tasks_(std::move(tasks)),
      ids_(std::move(ids)),
      denoise_ids_{.mask = static_cast<int32_t>(ids_.mask),
                   .keep = {static_cast<int32_t>(ids_.bos), static_cast<int32_t>(ids_.eos)},
                   .sentence_ends = ids_.sentence_ends},
      seed_(seed) {
  double total = 0;
  for (const auto& task : tasks_) {
    double weight = 0;
    for (const auto& [name, given] : options_.tasks) {
      const TaskName parsed = TaskName::parse(name);
      if (parsed.kind == task.name && parsed.distance == task.distance) weight = given;
    }
    weights_.push_back(weight);
    total += weight;
    if (task.name == "denoise") {
      if (ids_.mask < 0) throw usage_error("denoising needs a <mask> token, which the tokenizer lacks", "tasks");
      data::check_denoise(options_.denoise, denoise_ids_);
    }
  }
  for (double& weight : weights_) weight = total > 0 ? weight / total : 0;
  if (options_.decoder_mask_rate > 0 && ids_.mask < 0)
    throw usage_error("masking decoder inputs needs a <mask> token, which the tokenizer lacks", "decoder_mask_rate");
  if (options_.decoder_mask_rate < 0 || options_.decoder_mask_rate > 1)
    throw usage_error(fmt::format("decoder_mask_rate is {}, not between 0 and 1", options_.decoder_mask_rate));
}

uint64_t BatchMaker::key(const data::LaneItem& item, int64_t segment, int purpose) const {
  // The segment's place in its document, not in its span: the same however the document is cut for the lanes.
  const int64_t place = plan_->step(spans_[static_cast<size_t>(item.span)], segment).place;
  return random_key(seed_, purpose, item.epoch, item.document, place);
}

std::vector<int32_t> BatchMaker::segment_tokens(const data::LaneItem& item, int64_t segment, Noise noise) const {
  const data::Span& span = spans_[static_cast<size_t>(item.span)];
  const data::Span window = plan_->step(span, segment).read;
  const auto all =
      corpus_->tokens(span.document).subspan(static_cast<size_t>(window.begin), static_cast<size_t>(window.size()));
  std::vector<int32_t> tokens(all.begin(), all.end());
  if (noise == Noise::kTraining && options_.noise_share > 0) {
    // A function of the segment alone: whoever asks for it later asks for what was read.
    Random random(key(item, segment, kNoisy));
    if (random.uniform() < options_.noise_share) {
      const double rate = random.uniform();
      for (int32_t& token : tokens) {
        if (random.uniform() < rate)
          token = ids_.ordinary[static_cast<size_t>(random.below(static_cast<int64_t>(ids_.ordinary.size())))];
      }
    }
  }
  return tokens;
}

/// Every token of a document but its first is asked for once, out of those before it in its window: a window goes on
/// from the last token of the one before, or shares `overlap` tokens with it, which are then context alone. In training
/// eos follows the document's last token where its window has room for one more.
BatchMaker::Asked BatchMaker::every_token(const data::LaneItem& item, Noise noise) const {
  const data::Span& span = spans_[static_cast<size_t>(item.span)];
  const data::Span window = plan_->step(span, item.segment).read;
  Asked asked{segment_tokens(item, item.segment, noise), false, 0};
  const auto document = corpus_->tokens(span.document);
  const bool ends = noise == Noise::kTraining && window.end == static_cast<int64_t>(document.size());
  const int64_t shared = item.segment > 0 ? plan_->step(span, item.segment - 1).read.end - window.begin : 0;
  if (shared == 0 && window.begin > 0) {
    asked.start = document[static_cast<size_t>(window.begin) - 1];
  } else {
    asked.start = asked.tokens.front();
    asked.tokens.erase(asked.tokens.begin());
    asked.skip = std::max<int64_t>(0, shared - 1);
  }
  asked.eos = ends && static_cast<int64_t>(asked.tokens.size()) < plan_->window();
  return asked;
}

std::optional<BatchMaker::Asked> BatchMaker::ask(const data::LaneItem& item, const checkpoint::Task& task,
                                                 Noise noise) const {
  if (item.idle) return std::nullopt;
  if (task.name == "lm") {
    Asked asked = every_token(item, noise);
    if (static_cast<int64_t>(asked.tokens.size()) + asked.eos <= asked.skip) return std::nullopt;
    return asked;
  }
  if (task.name == "recall") {
    if (item.segment < task.distance) return std::nullopt;
    return Asked{segment_tokens(item, item.segment - task.distance, noise), true, task.start_id};
  }
  if (task.name == "respond" || task.name == "seq2seq") {
    const data::Span write = plan_->step(spans_[static_cast<size_t>(item.span)], item.segment).write;
    if (write.size() == 0) return std::nullopt;
    const auto reply =
        corpus_->tokens(write.document).subspan(static_cast<size_t>(write.begin), static_cast<size_t>(write.size()));
    return Asked{{reply.begin(), reply.end()}, true, task.start_id};
  }
  if (task.name == "next") {
    if (item.last) return std::nullopt;
    // Inside a document nothing ends with a segment: eos stands for the end of the document alone.
    const data::Span& span = spans_[static_cast<size_t>(item.span)];
    const bool ends = item.segment + 2 == plan_->count(span) &&
                      span.end == static_cast<int64_t>(corpus_->tokens(span.document).size());
    return Asked{segment_tokens(item, item.segment + 1, noise), ends, task.start_id};
  }
  return Asked{segment_tokens(item, item.segment, noise), true, task.start_id};  // denoise, current
}

std::optional<std::vector<int32_t>> BatchMaker::reference(const data::LaneItem& item,
                                                          const checkpoint::Task& task) const {
  auto asked = ask(item, task, Noise::kNone);
  if (!asked) return std::nullopt;
  asked->tokens.erase(asked->tokens.begin(), asked->tokens.begin() + asked->skip);
  return std::move(asked->tokens);
}

std::vector<int32_t> BatchMaker::encoder_tokens(const data::LaneItem& item, const checkpoint::Task* task,
                                                Noise noise) const {
  if (task != nullptr && task->name == "lm") return {};  // all is the decoder's
  std::vector<int32_t> tokens = segment_tokens(item, item.segment, noise);
  const auto framed = [&](std::vector<int32_t> row) {
    if (!plan_->framed()) return row;
    row.insert(row.begin(), static_cast<int32_t>(ids_.bos));
    if (!ids_.continues) row.push_back(static_cast<int32_t>(ids_.eos));
    return row;
  };
  if (task == nullptr || task->name != "denoise") return framed(std::move(tokens));
  return framed(corrupted(std::move(tokens), item));
}

std::vector<int32_t> BatchMaker::corrupted(std::vector<int32_t> tokens, const data::LaneItem& item) const {
  Random random(key(item, item.segment, kDenoise));
  return data::corrupt(tokens, options_.denoise, denoise_ids_, plan_->window(), random);
}

void BatchMaker::count_noise(const data::LaneItem& item, data::NoiseCounts& counts) const {
  if (item.idle) return;
  const std::vector<int32_t> clean = segment_tokens(item, item.segment, Noise::kTraining);
  counts.add(clean, corrupted(clean, item), denoise_ids_.mask);
}

SegmentBatch BatchMaker::encoder_side(std::vector<data::LaneItem> items,
                                      const std::vector<const checkpoint::Task*>& tasks, Noise noise) const {
  SegmentBatch batch;
  const int64_t lanes = static_cast<int64_t>(items.size());
  std::vector<std::vector<int32_t>> rows;
  const bool lm = std::any_of(tasks.begin(), tasks.end(),
                              [](const checkpoint::Task* task) { return task != nullptr && task->name == "lm"; });
  int64_t longest = lm ? 0 : 1;
  for (size_t i = 0; i < items.size(); ++i) {
    rows.push_back(items[i].idle ? std::vector<int32_t>{} : encoder_tokens(items[i], tasks[i], noise));
    longest = std::max(longest, static_cast<int64_t>(rows.back().size()));
  }
  batch.ids = at::full({lanes, longest}, ids_.pad, at::kLong);
  batch.reset = at::empty({lanes}, at::kBool);
  at::Tensor mask = at::zeros({lanes, longest}, at::kBool);
  for (int64_t i = 0; i < lanes; ++i) {
    const auto& row = rows[static_cast<size_t>(i)];
    std::copy(row.begin(), row.end(), batch.ids.data_ptr<int64_t>() + i * longest);
    std::fill_n(mask.data_ptr<bool>() + i * longest, row.size(), true);
    batch.reset.data_ptr<bool>()[i] = items[static_cast<size_t>(i)].reset;
    batch.tokens += static_cast<int64_t>(row.size());
  }
  if (batch.tokens < lanes * longest) batch.mask = mask;
  batch.items = std::move(items);
  return batch;
}

Targets BatchMaker::make_targets(const std::vector<std::optional<Asked>>& asked,
                                 const std::vector<data::LaneItem>& items, double mask_rate) const {
  Targets targets;
  const int64_t lanes = static_cast<int64_t>(asked.size());
  int64_t longest = 1;
  for (const auto& one : asked)
    longest = std::max(longest, one ? static_cast<int64_t>(one->tokens.size()) + (one->eos ? 1 : 0) : 0);
  targets.labels = at::full({lanes, longest}, nn::kIgnore, at::kLong);
  targets.decoder_ids = at::full({lanes, longest}, ids_.pad, at::kLong);
  for (int64_t i = 0; i < lanes; ++i) {
    const auto& one = asked[static_cast<size_t>(i)];
    int64_t* inputs = targets.decoder_ids.data_ptr<int64_t>() + i * longest;
    inputs[0] = ids_.eos;
    if (!one) continue;
    int64_t* labels = targets.labels.data_ptr<int64_t>() + i * longest;
    int64_t* label = std::copy(one->tokens.begin(), one->tokens.end(), labels);
    if (one->eos) *label++ = ids_.eos;
    const int64_t length = label - labels;
    targets.count += length;
    inputs[0] = one->start;
    const auto& item = items[static_cast<size_t>(i)];
    Random random(
        key(item, item.segment,
            tasks_.back().name == kAuxiliary && one->start == tasks_.back().start_id ? kMaskAuxiliary : kMaskInputs));
    for (int64_t j = 1; j < length; ++j) inputs[j] = random.uniform() < mask_rate ? ids_.mask : labels[j - 1];
    std::fill_n(labels, one->skip, nn::kIgnore);
    targets.count -= one->skip;
  }
  return targets;
}

SegmentBatch BatchMaker::training(std::vector<data::LaneItem> items) const {
  std::vector<const checkpoint::Task*> chosen;
  std::vector<std::optional<Asked>> asked, again;
  for (const auto& item : items) {
    chosen.push_back(nullptr);
    if (!item.idle) {
      double draw = Random(key(item, item.segment, kDrawTask)).uniform();
      size_t index = 0;
      while (index + 1 < weights_.size() && (draw -= weights_[index]) >= 0) ++index;
      while (weights_[index] == 0 && index > 0) --index;  // rounding at the very end of the interval
      chosen.back() = &tasks_[index];
    }
    asked.push_back(chosen.back() == nullptr ? std::nullopt : ask(item, *chosen.back(), Noise::kTraining));
    if (options_.auxiliary_weight > 0) again.push_back(ask(item, tasks_.back(), Noise::kTraining));
  }
  SegmentBatch batch = encoder_side(std::move(items), chosen, Noise::kTraining);
  batch.main = make_targets(asked, batch.items, options_.decoder_mask_rate);
  if (batch.ids.size(1) == 0) batch.tokens = batch.main.count;
  if (options_.auxiliary_weight > 0) batch.auxiliary = make_targets(again, batch.items, options_.decoder_mask_rate);
  return batch;
}

SegmentBatch BatchMaker::auxiliary_only(std::vector<data::LaneItem> items) const {
  std::vector<std::optional<Asked>> asked;
  for (const auto& item : items) asked.push_back(ask(item, tasks_.back(), Noise::kTraining));
  const std::vector<const checkpoint::Task*> none(items.size(), nullptr);
  SegmentBatch batch = encoder_side(std::move(items), none, Noise::kTraining);
  batch.reset.fill_(true);
  batch.auxiliary = make_targets(asked, batch.items, ids_.mask >= 0 ? 1.0 : 0.0);
  return batch;
}

SegmentBatch BatchMaker::evaluation(std::vector<data::LaneItem> items, const checkpoint::Task& task) const {
  std::vector<std::optional<Asked>> asked;
  for (const auto& item : items) asked.push_back(ask(item, task, Noise::kNone));
  const std::vector<const checkpoint::Task*> tasks(items.size(), &task);
  SegmentBatch batch = encoder_side(std::move(items), tasks, Noise::kNone);
  batch.main = make_targets(asked, batch.items, 0);
  return batch;
}

}  // namespace palimpsest::train
