// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/serve/chat.h"

#include <algorithm>
#include <chrono>
#include <sstream>

#include "palimpsest/core/error.h"
#include "palimpsest/data/dialogue_steps.h"
#include "palimpsest/generate/model_decoder.h"

namespace palimpsest::serve {

namespace {

constexpr int64_t kReplyTokens = 64;  // of an answer, where nobody says

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
  // Rows are read as they were in training: turns of a dialogue between bos and eos, segments of a text alone.
  framed_ = folder.training.tasks.empty() || folder.training.has("respond");
  window_ = options_.window > 0           ? options_.window
            : folder.training.segment > 0 ? folder.training.segment
                                          : config.max_position_embeddings;
  if (window_ < 3 || window_ > config.max_position_embeddings) {
    throw usage_error(fmt::format("a window of {} tokens cannot be read: the position table ends at {}", window_,
                                  config.max_position_embeddings),
                      "--window", fmt::format("give a number from 3 to {}", config.max_position_embeddings));
  }
  auto& generation = options_.generation;
  if (generation.max_new_tokens < 0 && generation.max_length < 0)
    generation.max_new_tokens = std::min<int64_t>(kReplyTokens, config.max_position_embeddings - 1);
  if (generation.eos_token_id.empty()) generation.eos_token_id = {config.eos_token_id};
  if (generation.pad_token_id < 0) generation.pad_token_id = config.pad_token_id;
  generation.validate(model_->vocab_size());
}

std::vector<int32_t> Chat::encode(const std::string& role, const std::string& text) const {
  // What a person typed is plain text, whatever it looks like.
  return folder_.tokenizer()->encode_ids(data::turn_text(role, text), {.add_special = false, .parse_special = false});
}

size_t Chat::hear(Moment& moment, const std::string& text) const {
  const auto spoken = encode(kOther, text);
  append(moment.context, spoken, room());
  moment.read = moment.context;
  return spoken.size();
}

Reply Chat::answer(Session& session, const std::string& text,
                   const std::function<bool(const std::string& piece)>& on_text) const {
  const at::NoGradGuard no_grad;
  const auto tokenizer = folder_.tokenizer();
  Moment moment = session.now();
  const size_t spoken = hear(moment, text);
  Reply reply;
  auto start = Clock::now();
  models::EncoderOutput encoded = read_row(moment, moment.memory, &reply.gate);
  moment.memory = {encoded.memory.slots.defined() ? encoded.memory.slots.cpu() : at::Tensor()};
  if (moment.memory.slots.defined() && !moment.memory.slots.isfinite().all().item<bool>())
    throw internal_error("the memory is not finite after this turn", "",
                         "try --dtype float32; the session is as before");
  reply.read_seconds = seconds_since(start);

  start = Clock::now();
  const auto decoder = generate::make_decoder(*model_, std::move(encoded), at::full({1, 1}, start_id_, at::kLong));
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

  append(moment.context, encode(kSelf, reply.text), room());
  moment.turns += 2;
  moment.tokens += static_cast<int64_t>(spoken) + reply.tokens;
  session.advance(std::move(moment));
  return reply;
}

std::vector<std::string> Chat::recall_tasks() const {
  std::vector<checkpoint::Task> tasks;
  for (const auto& task : folder_.training.tasks) {
    if (task.name == "current" || task.name == "recall") tasks.push_back(task);
  }
  std::stable_sort(tasks.begin(), tasks.end(), [](const auto& a, const auto& b) { return a.distance < b.distance; });
  std::vector<std::string> names;
  for (const auto& task : tasks) names.push_back(task.text());
  return names;
}

models::EncoderOutput Chat::read_row(const Moment& moment, memory::Memory before, double* gate) const {
  const auto& config = model_->config();
  std::vector<int64_t> row(moment.read.begin(), moment.read.end());
  if (framed_) {
    row.insert(row.begin(), config.bos_token_id);
    row.push_back(config.eos_token_id);
  }
  models::EncodeInput input;
  input.ids = at::tensor(row, at::kLong).unsqueeze(0).to(model_->shared->weight.device());
  if (before.slots.defined()) input.memory = {before.slots.to(input.ids.device())};
  input.observe = [&](const std::string& name, const at::Tensor& value) {
    if (name == "gate" && gate != nullptr) *gate = value.mean().item<double>();
  };
  return model_->encode(input);
}

Recalled Chat::recall(const Session& session, const RecallOptions& options) const {
  const at::NoGradGuard no_grad;
  if (!session.now().memory.slots.defined())
    throw usage_error("the session holds no memory", "", "the model has none, or nothing was said yet");
  Recalled recalled;
  const auto known = recall_tasks();
  recalled.task = options.task.empty() && !known.empty() ? known.front() : options.task;
  int64_t start = start_id_;
  if (!recalled.task.empty()) {
    const checkpoint::Task& asked = folder_.training.task(recalled.task);
    start = asked.start_id;
    if (asked.name == "current" || asked.name == "recall") recalled.back = asked.distance;
  }
  models::EncoderOutput seen;
  if (options.beside_row) {
    const Moment* before = session.before(1);
    if (before == nullptr || session.now().read.empty())
      throw usage_error("the session does not hold the memory before what was read last", "--beside-row",
                        "leave it out, or chat with --rewinds 1 or more");
    seen = read_row(session.now(), before->memory, nullptr);
  } else {
    seen.memory = {session.now().memory.slots.to(model_->shared->weight.device(), model_->dtype())};
    seen.context = seen.hidden = seen.memory.slots;
  }
  const auto decoder = generate::make_decoder(*model_, std::move(seen), at::full({1, 1}, start, at::kLong));
  generate::GenerationOptions generation;
  generation.max_new_tokens = std::min(options.max_new_tokens > 0 ? options.max_new_tokens : window_,
                                       model_->config().max_position_embeddings - 1);
  generation.eos_token_id = {model_->config().eos_token_id};
  generation.suppress_tokens = {model_->config().pad_token_id};
  const auto result = generate::generate(*decoder, generation, {.tokenizer = folder_.tokenizer()});
  recalled.text = result.items.front().front().text;
  recalled.ids = result.items.front().front().ids;
  return recalled;
}

std::vector<Moment> Chat::replay(const std::vector<Exchange>& exchanges) const {
  std::vector<Moment> moments;
  const bool told = std::all_of(exchanges.begin(), exchanges.end(), [](const auto& e) { return e.reply.has_value(); });
  Session session = begin(0);
  for (const Exchange& exchange : exchanges) {
    if (told) {
      Moment moment = session.now();
      hear(moment, exchange.said);
      append(moment.context, encode(kSelf, *exchange.reply), room());
      moment.turns += 2;
      session.advance(std::move(moment));
    } else {
      answer(session, exchange.said);
    }
    moments.push_back(session.now());
  }
  return moments;
}

namespace {

/// Lines without their ends; empty ones are left out.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream all(text);
  for (std::string line; std::getline(all, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

/// As `chat` takes a line: "//x" says "/x", one slash is a command.
bool is_command(const std::string& line) { return line.starts_with("/") && !line.starts_with("//"); }
std::string unslashed(const std::string& line) { return line.starts_with("//") ? line.substr(1) : line; }

/// Lines that say who speaks: `said` begins what the person says, `reply` what the model does; others go on.
std::vector<Exchange> marked_exchanges(const std::vector<std::string>& lines, const std::string& said,
                                       const std::string& reply) {
  std::vector<Exchange> exchanges;
  bool passing = true;  // what stands before the first turn, and what a command printed
  for (const std::string& line : lines) {
    if (line.starts_with(said)) {
      passing = is_command(line.substr(said.size()));
      if (!passing) exchanges.push_back({unslashed(line.substr(said.size()))});
    } else if (!passing && !exchanges.back().reply && line.starts_with(reply)) {
      exchanges.back().reply = line.substr(reply.size());
    } else if (!passing) {
      std::string& text = exchanges.back().reply ? *exchanges.back().reply : exchanges.back().said;
      text += "\n" + line;
    }
  }
  return exchanges;
}

}  // namespace

std::vector<Exchange> parse_conversation(const std::string& text, int64_t turns, const std::string& source) {
  const std::vector<std::string> lines = lines_of(text);
  const std::string other = std::string(kOther) + ": ", self = std::string(kSelf) + ": ", prompt = "> ";
  // The first line that is no command tells the forms apart: what was said may look like any of them later on.
  const auto first = std::find_if_not(lines.begin(), lines.end(), is_command);
  const auto begins = [&](const std::string& mark) { return first != lines.end() && first->starts_with(mark); };
  std::vector<Exchange> exchanges;
  if (begins(other)) {
    exchanges = marked_exchanges(lines, other, self);
  } else if (begins(prompt)) {
    exchanges = marked_exchanges(lines, prompt, "");
  } else if (static_cast<int64_t>(lines.size()) == turns) {
    for (size_t i = 0; i + 1 < lines.size(); i += 2) exchanges.push_back({lines[i], lines[i + 1]});
  } else {
    for (const std::string& line : lines) {
      if (!is_command(line)) exchanges.push_back({unslashed(line)});
    }
  }
  const auto count = static_cast<int64_t>(exchanges.size());
  if (2 * count != turns) {
    throw input_error(fmt::format("the text has {} exchanges, the session {}", count, turns / 2), source,
                      "give the whole conversation since its beginning or its last /reset, without what a /rewind "
                      "took back: a line a turn, or \"A: …\" and \"B: …\"");
  }
  return exchanges;
}

}  // namespace palimpsest::serve
