// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/serve/chat.h"

#include <algorithm>
#include <chrono>

#include "palimpsest/core/error.h"
#include "palimpsest/data/dialogue_steps.h"
#include "palimpsest/generate/model_decoder.h"

namespace palimpsest::serve {

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Adds to the end and keeps the last `room`.
void append(std::vector<int32_t>& ids, const std::vector<int32_t>& more, size_t room) {
  ids.insert(ids.end(), more.begin(), more.end());
  if (ids.size() > room) ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(room));
}

}  // namespace

Chat::Chat(const checkpoint::ModelFolder& folder, ChatOptions options)
    : folder_(folder), options_(std::move(options)), model_(folder.bart()), fingerprint_(model_fingerprint(*model_)) {
  folder.need_tokenizer();
  const auto& config = model_->config();
  start_id_ = config.decoder_start_token_id;
  if (!options_.task.empty()) {
    start_id_ = folder.training.task(options_.task).start_id;
  } else if (!folder.training.tasks.empty()) {
    start_id_ = folder.training.has("respond") ? folder.training.task("respond").start_id
                                               : folder.training.tasks.front().start_id;
  }
  window_ = options_.window > 0           ? options_.window
            : folder.training.segment > 0 ? folder.training.segment
                                          : config.max_position_embeddings;
  if (window_ < 3 || window_ > config.max_position_embeddings) {
    throw usage_error(fmt::format("a window of {} tokens cannot be read: the position table ends at {}", window_,
                                  config.max_position_embeddings),
                      "--window", fmt::format("give a number from 3 to {}", config.max_position_embeddings));
  }
  if (options_.generation.eos_token_id.empty()) options_.generation.eos_token_id = {config.eos_token_id};
  if (options_.generation.pad_token_id < 0) options_.generation.pad_token_id = config.pad_token_id;
  options_.generation.validate(model_->vocab_size());
}

Reply Chat::answer(Session& session, const std::string& text,
                   const std::function<bool(const std::string& piece)>& on_text) const {
  const at::NoGradGuard no_grad;
  const auto tokenizer = folder_.tokenizer();
  const auto& config = model_->config();
  // What a person typed is plain text, whatever it looks like.
  const auto encode = [&](const std::string& piece) {
    return tokenizer->encode_ids(piece, {.add_special = false, .parse_special = false});
  };
  Moment moment = session.now();
  const auto spoken = encode(data::turn_text(kOther, text));
  const auto room = static_cast<size_t>(window_ - 2);
  append(moment.context, spoken, room);
  std::vector<int64_t> row = {config.bos_token_id};
  row.insert(row.end(), moment.context.begin(), moment.context.end());
  row.push_back(config.eos_token_id);

  Reply reply;
  auto start = Clock::now();
  models::EncodeInput input;
  input.ids = at::tensor(row, at::kLong).unsqueeze(0).to(model_->shared->weight.device());
  if (moment.memory.slots.defined()) input.memory = {moment.memory.slots.to(input.ids.device())};
  input.observe = [&](const std::string& name, const at::Tensor& value) {
    if (name == "gate") reply.gate = value.mean().item<double>();
  };
  models::EncoderOutput encoded = model_->encode(input);
  moment.memory = {encoded.memory.slots.defined() ? encoded.memory.slots.cpu() : at::Tensor()};
  if (moment.memory.slots.defined() && !moment.memory.slots.isfinite().all().item<bool>())
    throw internal_error("the memory is not finite after this turn", "",
                         "try --dtype float32; the session is as before");
  reply.read_seconds = seconds_since(start);

  start = Clock::now();
  const auto decoder = generate::make_decoder(*model_, std::move(encoded), at::full({1, 1}, start_id_, at::kLong));
  std::string written;
  generate::Request request{.numbers = {moment.turns}, .tokenizer = tokenizer};
  request.on_step = [&](const std::vector<generate::NewToken>& tokens) {
    bool go_on = true;
    for (const auto& token : tokens) {
      if (!token.text.empty() && on_text) go_on = on_text(token.text) && go_on;
    }
    if (tokens.empty() && on_text) go_on = on_text("");
    return go_on;
  };
  const auto result = generate::generate(*decoder, options_.generation, request);
  const auto& best = result.items.front().front();
  reply.text = best.text;
  reply.finish = best.finish;
  reply.tokens = static_cast<int64_t>(best.ids.size());
  reply.write_seconds = seconds_since(start);
  if (options_.generation.num_beams > 1 && on_text) on_text(best.text);

  append(moment.context, encode(data::turn_text(kSelf, reply.text)), room);
  moment.turns += 2;
  moment.tokens += static_cast<int64_t>(spoken.size()) + reply.tokens;
  session.advance(std::move(moment));
  return reply;
}

std::string Chat::recall(const Session& session, const std::string& task, int64_t max_new_tokens) const {
  const at::NoGradGuard no_grad;
  if (!session.now().memory.slots.defined())
    throw usage_error("the session holds no memory", "", "the model has none, or nothing was said yet");
  int64_t start = start_id_;
  if (!task.empty()) {
    start = folder_.training.task(task).start_id;
  } else {
    for (const char* name : {"current", "recall"}) {
      if (!folder_.training.has(name)) continue;
      start = folder_.training.task(name).start_id;
      break;
    }
  }
  models::EncoderOutput alone;
  alone.memory = {session.now().memory.slots.to(model_->shared->weight.device(), model_->dtype())};
  alone.context = alone.hidden = alone.memory.slots;
  const auto decoder = generate::make_decoder(*model_, std::move(alone), at::full({1, 1}, start, at::kLong));
  generate::GenerationOptions options;
  options.max_new_tokens = std::min(max_new_tokens, model_->config().max_position_embeddings - 1);
  options.eos_token_id = {model_->config().eos_token_id};
  options.suppress_tokens = {model_->config().pad_token_id};
  const auto result = generate::generate(*decoder, options, {.tokenizer = folder_.tokenizer()});
  return result.items.front().front().text;
}

}  // namespace palimpsest::serve
