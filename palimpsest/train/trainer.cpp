// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/train/trainer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "palimpsest/checkpoint/safetensors.h"
#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/log.h"
#include "palimpsest/core/random.h"
#include "palimpsest/core/threads.h"
#include "palimpsest/core/version.h"
#include "palimpsest/models/bart.h"
#include "palimpsest/models/gpt2.h"
#include "palimpsest/nn/loss.h"
#include "palimpsest/train/rollout.h"

namespace fs = std::filesystem;

namespace palimpsest::train {

namespace {

const char* const kState = "trainer_state.json";
const char* const kOptimizer = "optimizer.safetensors";
const char* const kBest = "checkpoint-best";

void check_positive(const char* name, int64_t value) {
  if (value < 1) throw usage_error(fmt::format("{} is {}", name, value), "", "give 1 or more");
}

int64_t step_of(const fs::path& checkpoint) { return std::atoll(checkpoint.filename().string().substr(11).c_str()); }

std::vector<fs::path> checkpoints_of(const std::string& folder) {
  std::vector<fs::path> found;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("checkpoint-", 0) == 0 && name.size() > 11 &&
        name.find_first_not_of("0123456789", 11) == std::string::npos && fs::exists(entry.path() / kState))
      found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) { return step_of(a) < step_of(b); });
  return found;
}

/// Weights of the steps that have targets, summing to 1 over them.
std::vector<double> step_weights(const std::string& kind, const std::vector<int64_t>& targets) {
  std::vector<double> weights;
  double total = 0;
  for (size_t t = 0; t < targets.size(); ++t) {
    double weight = kind == "uniform" ? 1
                    : kind == "pow2"  ? std::ldexp(1.0, static_cast<int>(t))
                                      : static_cast<double>(targets[t]);
    if (targets[t] == 0) weight = 0;
    weights.push_back(weight);
    total += weight;
  }
  for (double& weight : weights) weight = total > 0 ? weight / total : 0;
  return weights;
}

/// Matrix products in bfloat16 within the scope.
class Autocast {
 public:
  Autocast(bool on, at::DeviceType device) : on_(on), device_(device) {
    if (!on_) return;
    at::autocast::set_autocast_dtype(device_, at::kBFloat16);
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (!on_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool on_;
  at::DeviceType device_;
};

/// "loss", "recall.loss", "eval_recall:2.recovered" -> task ("" for all) and value.
std::pair<std::string, std::string> parse_metric(std::string text) {
  if (text.rfind("eval_", 0) == 0) text = text.substr(5);
  const size_t dot = text.rfind('.');
  std::pair<std::string, std::string> parts{dot == std::string::npos ? "" : text.substr(0, dot),
                                            dot == std::string::npos ? text : text.substr(dot + 1)};
  check_choice("metric_for_best_model", parts.second, {"loss", "recovered"});
  return parts;
}

}  // namespace

std::string newest_checkpoint(const std::string& run_folder) {
  const auto found = checkpoints_of(run_folder);
  return found.empty() ? "" : found.back().string();
}

Trainer::Trainer(TrainOptions options, TrainHooks hooks, std::shared_ptr<Communicator> communicator)
    : options_(std::move(options)), hooks_(std::move(hooks)), communicator_(std::move(communicator)) {
  for (const auto& [name, value] : {std::pair{"lanes", options_.lanes},
                                    {"accumulation", options_.accumulation},
                                    {"time_horizon", options_.time_horizon},
                                    {"max_steps", options_.max_steps},
                                    {"loss_table_mib", options_.loss_table_mib},
                                    {"logging_steps", options_.logging_steps}}) {
    check_positive(name, value);
  }
  if (options_.time_overlap < 0 || options_.time_overlap >= options_.time_horizon) {
    throw usage_error(
        fmt::format("time_overlap is {} at a time_horizon of {}", options_.time_overlap, options_.time_horizon), "",
        "give 0 or more, but less than time_horizon");
  }
  if (!(options_.label_smoothing_factor >= 0 && options_.label_smoothing_factor < 1)) {
    throw usage_error(fmt::format("label_smoothing_factor is {}", options_.label_smoothing_factor), "",
                      "give 0 or more, but less than 1; 0.1 is usual");
  }
  check_choice("dtype", options_.dtype, {"float32", "float64"});
  if (options_.bf16 && options_.dtype != "float32") throw usage_error("bf16 goes with dtype = float32 only");
  parse_metric(options_.metric_for_best_model);
  if (options_.early_stopping_patience < 0)
    throw usage_error(fmt::format("early_stopping_patience is {}", options_.early_stopping_patience), "",
                      "give a number of evaluations, or 0 to never stop early");
  if (seeks_best() && options_.eval_steps < 1) {
    throw usage_error("early_stopping_patience, stop_at_metric and load_best_model_at_end need evaluations",
                      "eval_steps", "set eval_steps to 1 or more");
  }
  if (options_.lanes % communicator_->size() != 0) {
    throw usage_error(fmt::format("{} lanes do not divide among {} processes", options_.lanes, communicator_->size()),
                      "lanes", "choose a multiple of the number of processes");
  }
  check_choice("carry", options_.carry, {"keep", "reset"});
  check_choice("decoder_sees_memory", options_.model.decoder_sees_memory, {"auto", "yes", "no"});
  check_choice("step_weights", options_.step_weights, {"uniform", "pow2", "token"});
  nn::dtype_of(options_.export_dtype);
  checkpoint::device_named(options_.device);
  check_choice("family", options_.model.family, {"bart", "gpt2"});
  check_choice("init", options_.model.init, {"normal", "scaled", "structured"});
  if (!(options_.model.embedding_scale > 0))
    throw usage_error(fmt::format("embedding_scale is {}", options_.model.embedding_scale), "",
                      "give a number above 0");
  data::check_segments(options_.segments);
  if (options_.corpus.data.empty())
    throw usage_error("no data is given", "data",
                      "name files or folders of text: data = [\"book.txt\"] or --data book.txt");
  if (options_.auxiliary_steps > 0 && !(options_.tasks.auxiliary_weight > 0))
    throw usage_error("auxiliary_steps needs auxiliary_weight > 0");
  // Other processes read what the first one made: the vocabulary, the cached tokens.
  std::string checkpoint;
  if (communicator_->leads()) {
    std::error_code code;
    fs::create_directories(options_.output_dir, code);
    if (code) throw input_error(fmt::format("cannot make the folder: {}", code.message()), options_.output_dir);
    remove_stale_temporaries(options_.output_dir);
    checkpoint = options_.resume ? newest_checkpoint(options_.output_dir) : "";
    prepare_tokenizer_and_corpus();
  }
  checkpoint = communicator_->broadcast(checkpoint);
  if (!communicator_->leads()) prepare_tokenizer_and_corpus();
  prepare_model();
  if (!checkpoint.empty()) {
    resume_from(checkpoint);
  } else if (communicator_->leads()) {
    std::error_code ignored;
    fs::remove(fs::path(options_.output_dir) / "metrics.jsonl", ignored);  // of an earlier run that left no checkpoint
    fs::remove(fs::path(options_.output_dir) / kBest, ignored);
  }
  if (communicator_->size() > 1) {
    gradients_ = std::make_unique<GradientSum>(model_->parameters(), communicator_);
    check_weights_agree();
  }
}

Trainer::~Trainer() = default;

void Trainer::prepare_tokenizer_and_corpus() {
  const std::string own = (fs::path(options_.output_dir) / "tokenizer").string();
  const bool has_own = fs::exists(fs::path(own) / "tokenizer.json") && (options_.resume || !communicator_->leads());
  const std::string source = !options_.tokenizer.empty() ? options_.tokenizer : has_own ? own : options_.model.model;
  if (!source.empty()) {
    tokenizer_ = text::Tokenizer::load(source);
  } else {
    train_tokenizer();
  }
  const int64_t family_start = tokenizer_->id_of("</s>").value_or(2);
  std::tie(tokenizer_, training_.tasks) =
      assign_start_tokens(tokenizer_, options_.tasks.tasks, options_.tasks.auxiliary_weight > 0, family_start);
  training_.segment = options_.segments.segment;
  if (communicator_->leads()) tokenizer_->save(own);
  has_given_steps() ? prepare_given_steps() : prepare_texts();
  std::string said;
  // A dialogue is never cut: its steps are given, not made by the lanes.
  const auto spans = has_given_steps()
                         ? split_.train
                         : data::cut_for_lanes(split_.train, options_.lanes * options_.accumulation, &said);
  if (!said.empty() && communicator_->leads()) spdlog::info("{}", said);
  lanes_.emplace(corpus_, spans, plan_,
                 data::LaneOptions{.lanes = options_.lanes * options_.accumulation,
                                   .shuffle = true,
                                   .seed = random_key(static_cast<uint64_t>(options_.seed), 1),
                                   .repeat = true});
}

bool Trainer::reads_aligned() const { return options_.tasks.tasks.count("seq2seq") != 0; }

bool Trainer::has_given_steps() const { return reads_aligned() || options_.tasks.tasks.count("respond") != 0; }

data::AlignedDocumentReader Trainer::aligned_side(const std::string& side) const {
  data::DialogueOptions sides = options_.dialogue;
  sides.side = side;
  sides.split_seed = options_.split.split_seed;
  return {options_.corpus, options_.aligned, sides};
}

/// The vocabulary may only be learnt from what is trained on.
void Trainer::train_tokenizer() {
  if (communicator_->leads()) spdlog::info("training a vocabulary of {} tokens", options_.new_tokenizer.vocab_size);
  if (reads_aligned()) {
    auto reader = aligned_side("train");
    data::AlignedDocument document;
    size_t next = 0;  // line: the source of each unit, then its target
    tokenizer_ = text::train_tokenizer(
        [&](std::string& line) {
          if (next >= 2 * document.units.size()) {
            if (!reader.next(document)) return false;
            next = 0;
          }
          const data::AlignedUnit& unit = document.units[next / 2];
          line = (next++ % 2 == 0 ? unit.source : unit.target) + "\n";
          return true;
        },
        options_.new_tokenizer);
    return;
  }
  if (has_given_steps()) {
    data::DialogueOptions train_side = options_.dialogue;
    train_side.side = "train";
    train_side.split_seed = options_.split.split_seed;
    data::DialogueReader reader(options_.corpus, train_side);
    data::Dialogue dialogue;
    size_t turn = 0;
    tokenizer_ = text::train_tokenizer(
        [&](std::string& line) {
          while (turn >= dialogue.turns.size()) {
            if (!reader.next(dialogue)) return false;
            turn = 0;
          }
          const data::Turn& one = dialogue.turns[turn++];
          line = data::turn_text(one.role, one.text);
          return true;
        },
        options_.new_tokenizer);
    return;
  }
  // Texts are split first, on bytes.
  const data::TokenizeFunction bytes{
      [](std::string_view text) { return std::vector<int32_t>(text.begin(), text.end()); }, "bytes"};
  const auto raw = data::prepare_corpus(options_.corpus, bytes, "");
  const data::Split split = data::split_corpus(*raw, options_.split);
  size_t span = 0;
  int64_t position = 0;
  tokenizer_ = text::train_tokenizer(
      [&](std::string& line) {
        line.clear();
        while (span < split.train.size() && position >= split.train[span].size()) ++span, position = 0;
        if (span == split.train.size()) return false;
        const auto tokens =
            raw->tokens(split.train[span].document)
                .subspan(static_cast<size_t>(split.train[span].begin), static_cast<size_t>(split.train[span].size()));
        while (position < static_cast<int64_t>(tokens.size())) {
          line += static_cast<char>(tokens[static_cast<size_t>(position++)]);
          if (line.back() == '\n') break;
        }
        return true;
      },
      options_.new_tokenizer);
}

void Trainer::prepare_texts() {
  plan_ = data::segment_plan(options_.segments);
  corpus_ = data::prepare_corpus(
      options_.corpus, *tokenizer_,
      options_.cache_dir.empty() ? (fs::path(options_.output_dir) / "cache").string() : options_.cache_dir);
  split_ = data::split_corpus(*corpus_, options_.split);
  drop_short_documents();
  held_out_ = {corpus_, split_.held_out.empty() ? split_.train : split_.held_out, plan_};
  if (!communicator_->leads()) return;
  spdlog::info("{}", split_.description);
  write_json((fs::path(options_.output_dir) / "split.json").string(), split_names());
}

void Trainer::drop_short_documents() {
  if (options_.min_document_tokens <= 0) return;
  const bool held_out = !split_.held_out.empty();
  for (const auto& [name, spans] : {std::pair{"train", &split_.train}, {"held out", &split_.held_out}}) {
    std::string said;
    *spans = data::drop_short(std::move(*spans), options_.min_document_tokens, &said);
    if (!said.empty() && communicator_->leads()) spdlog::info("{}: {}", name, said);
  }
  if (split_.train.empty())
    throw usage_error(fmt::format("no document to train on has {} tokens", options_.min_document_tokens),
                      "min_document_tokens", "set it lower, or give longer documents");
  if (held_out && split_.held_out.empty() && communicator_->leads())
    spdlog::warn("warning: no held-out document has {} tokens: evaluation reads what is trained on",
                 options_.min_document_tokens);
}

void Trainer::prepare_given_steps() {
  const auto& tasks = options_.tasks.tasks;
  if (tasks.contains("respond") && tasks.contains("seq2seq")) {
    throw usage_error("respond reads dialogues, seq2seq aligned lines", "tasks",
                      "train them one after another: model = the first one's folder");
  }
  if (options_.min_document_tokens > 0)
    throw usage_error("min_document_tokens is for texts", "min_document_tokens", "leave it out");
  const data::DialogueStepOptions steps{.window = options_.segments.segment,
                                        .authors_window = options_.authors_window,
                                        .longest_write = longest_target(),
                                        .answers = options_.answers};
  const auto read = [&](const char* side) {
    if (reads_aligned()) {
      auto reader = aligned_side(side);
      return data::prepare_aligned(reader, data::tokenize_with(*tokenizer_),
                                   {.window = steps.window, .longest_write = steps.longest_write});
    }
    data::DialogueOptions dialogue = options_.dialogue;
    dialogue.side = side;
    dialogue.split_seed = options_.split.split_seed;
    data::DialogueReader reader(options_.corpus, dialogue);
    return data::prepare_dialogues(reader, data::tokenize_with(*tokenizer_), steps);
  };
  data::StepCorpus train = read("train"), valid = read("valid");
  if (communicator_->leads()) {
    spdlog::info("{} {} to train on ({} tokens), {} held out", train.corpus->documents(),
                 reads_aligned() ? "documents" : "dialogues", format_count(train.corpus->total_tokens()),
                 valid.corpus->documents());
    for (const auto& [name, side] : {std::pair{"train", &train}, {"held out", &valid}}) {
      if (reads_aligned() && side->left_out > 0)
        spdlog::info("{}: {} documents left out: they have no target, or say what a held-out side says (keep_apart)",
                     name, format_count(side->left_out));
      if (const std::string said = side->said_of_cuts(); !said.empty()) spdlog::warn("warning: {}: {}", name, said);
    }
    write_json((fs::path(options_.output_dir) / "split.json").string(),
               {{"train", train.names}, {"held_out", valid.names}});
  }
  corpus_ = train.corpus;
  plan_ = data::given_plan(std::move(train.steps), steps.window);
  split_.train = data::whole_documents(*corpus_);
  held_out_ = {valid.corpus, data::whole_documents(*valid.corpus),
               data::given_plan(std::move(valid.steps), steps.window)};
}

Json Trainer::split_names() const {
  Json names = Json::object();
  for (const auto& [side, spans] : {std::pair{"train", &split_.train}, {"held_out", &split_.held_out}}) {
    names[side] = Json::array();
    for (const data::Span& span : *spans) {
      const bool whole = span.begin == 0 && span.end == static_cast<int64_t>(corpus_->tokens(span.document).size());
      names[side].push_back(corpus_->name(span.document) +
                            (whole ? "" : fmt::format(" tokens {}-{}", span.begin, span.end)));
    }
  }
  return names;
}

int64_t Trainer::positions() const {
  const auto& sizes = options_.model;
  return sizes.max_position_embeddings > 0 ? sizes.max_position_embeddings : 2 * options_.segments.segment;
}

int64_t Trainer::longest_target() const {
  const int64_t window = options_.segments.segment;
  const std::string& folder = options_.model.model;
  int64_t room = 0;
  if (folder.empty()) {
    room = (options_.model.family == "gpt2" ? positions() - window : positions()) - 1;
  } else {
    const std::string path = (fs::path(folder) / "config.json").string();
    room = models::make_model(read_json(path), path, at::TensorOptions().device(at::kMeta))->room_for_target(window);
  }
  if (room < 1) {
    throw usage_error(fmt::format("a window of {} tokens leaves no position to write at", window), "segment",
                      "give a smaller segment, or from scratch a larger max_position_embeddings");
  }
  return room;
}

std::shared_ptr<models::Model> Trainer::new_bart() const {
  const auto& sizes = options_.model;
  models::BartConfig config;
  config.vocab_size = tokenizer_->vocab_size();
  config.d_model = sizes.d_model;
  config.encoder_layers = sizes.encoder_layers;
  config.decoder_layers = sizes.decoder_layers;
  config.encoder_attention_heads = config.decoder_attention_heads = sizes.heads;
  config.encoder_ffn_dim = config.decoder_ffn_dim = sizes.ffn_dim;
  config.max_position_embeddings = positions();
  config.dropout = sizes.dropout;
  config.bos_token_id = tokenizer_->id_of("<s>").value_or(0);
  config.pad_token_id = tokenizer_->id_of("<pad>").value_or(1);
  config.eos_token_id = tokenizer_->id_of("</s>").value_or(2);
  config.decoder_start_token_id = training_.tasks.front().start_id;
  config.memory = memory::MemoryOptions::parse(sizes.memory.empty() ? "membart:16" : sizes.memory);
  config.decoder_sees_memory =
      sizes.decoder_sees_memory == "auto" ? !config.memory.is_memformer() : sizes.decoder_sees_memory == "yes";
  const auto or_dense = [](const std::string& text) { return text.empty() ? "dense" : text; };
  config.encoder_attention = or_dense(sizes.texts.attention);
  config.decoder_attention = or_dense(sizes.texts.decoder_attention);
  config.cross_attention = or_dense(sizes.texts.cross_attention);
  config.positions = models::Positions::parse(sizes.texts.positions);
  config.positions.check(config.max_position_embeddings);
  return std::make_shared<models::BartModel>(config);
}

std::shared_ptr<models::Model> Trainer::new_gpt2() const {
  const auto& sizes = options_.model;
  if (!sizes.memory.empty() && sizes.memory != "none") {
    throw usage_error(fmt::format("a gpt2 model cannot have the memory {}", sizes.memory), "memory",
                      "set memory = \"none\"; history that shall be seen must lie in its window (segment)");
  }
  models::Gpt2Config config;
  config.vocab_size = tokenizer_->vocab_size();
  config.n_embd = sizes.d_model;
  config.n_layer = sizes.decoder_layers;
  config.n_head = sizes.heads;
  config.n_inner = sizes.ffn_dim;
  config.n_positions = positions();
  config.resid_pdrop = config.embd_pdrop = sizes.dropout;
  config.attn_pdrop = 0;  // as in the BART beside it
  config.bos_token_id = tokenizer_->id_of("<s>").value_or(0);
  config.pad_token_id = tokenizer_->id_of("<pad>").value_or(1);
  config.eos_token_id = tokenizer_->id_of("</s>").value_or(2);
  if (!sizes.texts.attention.empty()) config.attention = sizes.texts.attention;
  config.positions = models::Positions::parse(sizes.texts.positions);
  config.positions.check(config.n_positions);
  return std::make_shared<models::Gpt2Model>(config);
}

void Trainer::prepare_model() {
  const auto& sizes = options_.model;
  const bool lm = options_.tasks.tasks.contains("lm");
  if (!sizes.model.empty()) {
    checkpoint::LoadOptions load{.dtype = at::kFloat,
                                 .device = checkpoint::device_named(options_.device),
                                 .seed = random_key(static_cast<uint64_t>(options_.seed), 5),
                                 .memory_init = checkpoint::memory_init_named(sizes.memory_init),
                                 .vocab_size = tokenizer_->vocab_size()};
    if (!sizes.memory.empty()) load.memory = memory::MemoryOptions::parse(sizes.memory);
    load.attention = sizes.texts.given();
    auto folder = checkpoint::load_model(sizes.model, load);
    model_ = folder.model;
    if (communicator_->leads()) {
      for (const auto& name : folder.report.initialised) spdlog::info("initialised: {}", name);
      for (const auto& name : folder.report.dropped) spdlog::info("dropped: {}", name);
      if (!folder.report.resized.empty())
        spdlog::info("the vocabulary has {} rows now, for the tasks' start tokens", model_->vocab_size());
    }
    // Parameters are views of a file map: training needs memory of its own.
    for (auto& parameter : model_->parameters()) parameter.set_data(parameter.detach().clone());
  } else {
    model_ = sizes.family == "gpt2" ? new_gpt2() : new_bart();
    models::Init init{.segment = options_.segments.segment,
                      .embedding_scale = sizes.embedding_scale,
                      .seed = random_key(static_cast<uint64_t>(options_.seed), 2)};
    init.style = sizes.init == "normal"   ? models::Init::kNormal
                 : sizes.init == "scaled" ? models::Init::kScaled
                                          : models::Init::kStructured;
    model_->initialize(init);
    model_->to(checkpoint::device_named(options_.device));
  }
  if (lm && !model_->decoder_only()) {
    throw usage_error(fmt::format("lm trains a decoder alone, not a {}", model_->family()), "tasks",
                      "set family = \"gpt2\"; an encoder-decoder's task is next");
  }
  if (lm && options_.segments.segment > model_->positions() &&
      !dynamic_cast<const models::Gpt2Model&>(*model_).config().positions.endless()) {
    throw usage_error(fmt::format("segments of {} tokens, but the position table ends at {}", options_.segments.segment,
                                  model_->positions()),
                      "segment", "give shorter segments, or positions = \"segment:S\"");
  }
  if (options_.dtype == "float64") model_->to(at::kDouble);
  model_->train();
  if (const auto [task, kind] = parse_metric(options_.metric_for_best_model); seeks_best()) {
    bool found = false;
    std::string names;
    for (const auto& one : training_.tasks) {
      if (one.name == "current" || (kind == "recovered" && one.name != "recall")) continue;
      names += (names.empty() ? "" : ", ") + one.text() + "." + kind;
      found |= task.empty() || task == one.text();
    }
    if (!found)
      throw usage_error(fmt::format("no evaluation gives {}", options_.metric_for_best_model), "metric_for_best_model",
                        names.empty() ? "choose loss" : "choose " + kind + " or one of " + names);
  }
  for (auto& parameter : model_->parameters()) parameter.requires_grad_(true);
  if (options_.freeze_embeddings) {
    for (at::Tensor table : model_->embedding_tables()) table.requires_grad_(false);
  }
  ids_ = SpecialIds::of(*model_, tokenizer_.get());
  maker_.emplace(corpus_, lanes_->spans(), plan_, options_.tasks, training_.tasks, ids_,
                 random_key(static_cast<uint64_t>(options_.seed), 3));
  optimizer_.emplace(parameter_groups(*model_), options_.optimizer);
  memory_ = model_->fresh_memory(own_lanes() * options_.accumulation);
}

EvalData Trainer::held_out() const {
  EvalData data = held_out_;
  if (data.spans.size() > static_cast<size_t>(options_.eval_documents))
    data.spans.resize(static_cast<size_t>(options_.eval_documents));
  return data;
}

BatchMaker Trainer::eval_maker(const EvalData& data) const {
  return {data.corpus,
          data.spans,
          data.plan,
          options_.tasks,
          training_.tasks,
          ids_,
          random_key(static_cast<uint64_t>(options_.seed), 4)};
}

at::Tensor Trainer::own_rows(const at::Tensor& rows) const {
  if (communicator_->size() == 1) return rows;
  const auto sizes = rows.sizes().slice(1).vec();
  std::vector<int64_t> parted = {options_.accumulation, communicator_->size(), own_lanes()};
  parted.insert(parted.end(), sizes.begin(), sizes.end());
  return rows.view(parted).select(1, communicator_->rank()).flatten(0, 1).contiguous();
}

at::Tensor Trainer::all_rows(const at::Tensor& rows) const {
  if (communicator_->size() == 1) return rows;
  const at::Tensor all = communicator_->gather(rows.detach().cpu().contiguous());  // [P, A * own, ..]
  std::vector<int64_t> parted = {communicator_->size(), options_.accumulation, own_lanes()};
  parted.insert(parted.end(), all.sizes().begin() + 2, all.sizes().end());
  return all.view(parted).transpose(0, 1).flatten(0, 2).contiguous().to(rows.device());
}

void Trainer::check_weights_agree() {
  if (communicator_->size() == 1) return;
  const at::NoGradGuard no_grad;
  at::Tensor sums = at::zeros({1}, at::kDouble);
  for (const at::Tensor& parameter : model_->parameters()) sums += parameter.sum(at::kDouble).cpu();
  const at::Tensor all = communicator_->gather(sums);
  if (!all.eq(all[0]).all().item<bool>()) {
    throw internal_error("the weights of the processes are not the same", fmt::format("step {}", step_),
                         "start them with the same program, options, files and number of threads");
  }
}

double Trainer::step() {
  const auto started = std::chrono::steady_clock::now();
  const bool auxiliary_only = this->auxiliary_only();
  const int64_t horizon = auxiliary_only ? 1 : options_.time_horizon;
  const int64_t advance = auxiliary_only ? 1 : horizon - options_.time_overlap;  // segments until the next step begins
  const double auxiliary_weight = auxiliary_only ? 1 : options_.tasks.auxiliary_weight;
  const int64_t lanes = own_lanes(), processes = communicator_->size(), rank = communicator_->rank();

  // All targets of the optimiser step are counted before anything is computed: losses are averaged over them, whatever
  // the number of micro-batches and processes (FR-91).
  std::vector<std::vector<SegmentBatch>> rollouts(static_cast<size_t>(options_.accumulation));
  std::vector<int64_t> main_targets, auxiliary_targets;
  int64_t tokens = 0;
  std::optional<data::Lanes> next_step;  // where the lanes stand when the next step begins, if it reads some again
  for (int64_t t = 0; t < horizon; ++t) {
    if (t == advance) next_step = *lanes_;
    const auto items = lanes_->next();
    main_targets.push_back(0);
    auxiliary_targets.push_back(0);
    for (int64_t a = 0; a < options_.accumulation; ++a) {
      const auto first = items.begin() + a * options_.lanes + rank * lanes;
      std::vector<data::LaneItem> own(first, first + lanes);
      SegmentBatch batch = auxiliary_only ? maker_->auxiliary_only(std::move(own)) : maker_->training(std::move(own));
      main_targets.back() += batch.main.count;
      auxiliary_targets.back() += batch.auxiliary.count;
      tokens += batch.tokens;
      rollouts[static_cast<size_t>(a)].push_back(std::move(batch));
    }
  }
  if (next_step) lanes_ = std::move(next_step);
  if (processes > 1) {
    std::vector<int64_t> counts = {tokens};
    counts.insert(counts.end(), main_targets.begin(), main_targets.end());
    counts.insert(counts.end(), auxiliary_targets.begin(), auxiliary_targets.end());
    communicator_->sum(at::from_blob(counts.data(), {static_cast<int64_t>(counts.size())}, at::kLong));
    tokens = counts[0];
    std::copy_n(counts.begin() + 1, horizon, main_targets.begin());
    std::copy_n(counts.begin() + 1 + horizon, horizon, auxiliary_targets.begin());
  }
  const auto main_weights = step_weights(options_.step_weights, main_targets),
             auxiliary_weights = step_weights(options_.step_weights, auxiliary_targets);

  optimizer_->zero_grad();
  double main_loss = 0, auxiliary_loss = 0;
  std::vector<at::Tensor> carried, memory_gradients;
  const auto device = model_->device();
  const auto type = model_->dtype();
  const bool forgets = options_.carry == "reset";
  const nn::ProjectedLossOptions projected{.label_smoothing = options_.label_smoothing_factor,
                                           .table_bytes = options_.loss_table_mib << 20};
  for (int64_t a = 0; a < options_.accumulation; ++a) {
    const auto& batches = rollouts[static_cast<size_t>(a)];
    // Dropout follows from the segment's place in the run: the same after a resume, and when a segment is replayed.
    const auto seed_dropout = [&](int64_t t) {
      uint64_t key = random_key(static_cast<uint64_t>(options_.seed), 5, step_, a);
      if (t > 0 || rank > 0) key = random_key(key, t, rank);
      at::manual_seed(key);
    };
    const auto encode = [&](int64_t t, const memory::Memory& memory) {
      const SegmentBatch& batch = batches[static_cast<size_t>(t)];
      seed_dropout(t);
      models::EncoderOutput encoded =
          model_->encode({.ids = batch.ids.to(device),
                          .mask = batch.mask.defined() ? batch.mask.to(device) : batch.mask,
                          .memory = memory,
                          .reset = (forgets ? at::ones_like(batch.reset) : batch.reset).to(device)});
      if (encoded.memory.slots.defined()) encoded.memory.slots = encoded.memory.slots.to(type);
      return encoded;
    };
    Rollout rollout{.steps = horizon, .replay = options_.memory_replay, .carry = advance};
    if (memory_.slots.defined()) rollout.start.slots = memory_.slots.narrow(0, a * lanes, lanes).detach();
    rollout.write = [&](int64_t t, const memory::Memory& memory) {
      const Autocast autocast(options_.bf16, device.type());
      return encode(t, memory).memory;
    };
    rollout.step = [&](int64_t t, const memory::Memory& memory) {
      const Autocast autocast(options_.bf16, device.type());
      const auto place = static_cast<size_t>(t);
      const SegmentBatch& batch = batches[place];
      const models::EncoderOutput encoded = encode(t, memory);
      const models::OutputTable table = model_->output_table();
      StepOutput output{.loss = {}, .memory = encoded.memory};
      const auto loss_of = [&](const Targets& targets, const models::EncoderOutput& context, double weight, int64_t all,
                               double* sum) {
        if (targets.count == 0) return;
        const auto loss = nn::projected_loss(model_->decode(targets.decoder_ids.to(device), {}, context), table.weight,
                                             table.bias, targets.labels.to(device), projected);
        const at::Tensor part = loss.nll * (weight / static_cast<double>(all));
        *sum += part.item<double>();
        output.loss = output.loss.defined() ? output.loss + part : part;
      };
      loss_of(batch.main, encoded, main_weights[place], main_targets[place], &main_loss);
      if (auxiliary_weight > 0 && encoded.memory.slots.defined()) {
        models::EncoderOutput alone;
        alone.context = encoded.memory.slots;
        double sum = 0;
        loss_of(batch.auxiliary, alone, auxiliary_weight * auxiliary_weights[place], auxiliary_targets[place], &sum);
        auxiliary_loss += sum / auxiliary_weight;
      }
      return output;
    };
    if (gradients_ && a + 1 == options_.accumulation) {
      rollout.before_last_backward = [&] { gradients_->begin(); };
    }
    const RolloutResult result = backpropagate(rollout);
    if (memory_.slots.defined()) {
      carried.push_back(result.carried.slots);
      memory_gradients.push_back(result.memory_gradient.defined() ? result.memory_gradient
                                                                  : at::zeros_like(rollout.start.slots));
    }
  }
  if (gradients_) gradients_->finish();
  if (!carried.empty()) memory_.slots = at::cat(carried);
  const double rate = learning_rate_at(options_.optimizer, step_, options_.max_steps);
  const double norm = processes > 1 ? optimizer_->step(rate, [&](double own) { return communicator_->broadcast(own); })
                                    : optimizer_->step(rate);
  ++step_;
  tokens_seen_ += tokens;
  if (processes > 1) {
    double sums[] = {main_loss, auxiliary_loss};
    communicator_->sum(at::from_blob(sums, {2}, at::kDouble));
    main_loss = sums[0];
    auxiliary_loss = sums[1];
  }

  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  metrics_ = {{"step", step_},         {"epoch", lanes_->progress()},
              {"loss", main_loss},     {"auxiliary_loss", auxiliary_loss},
              {"learning_rate", rate}, {"grad_norm", norm}};
  if (!memory_gradients.empty()) {  // ALGORITHMS 3.5: small while the memory is not used, rising when it starts to be
    const at::Tensor gradient = all_rows(at::cat(memory_gradients));
    metrics_["memory_gradient"] = {{"log_std", std::log(std::max(1e-300, gradient.std().item<double>()))},
                                   {"max", gradient.max().item<double>()},
                                   {"norm", gradient.norm().item<double>()}};
  }
  metrics_["tokens_seen"] = tokens_seen_;
  metrics_["tokens_per_second"] = static_cast<double>(tokens) / seconds;
  metrics_["step_seconds"] = seconds;
  return auxiliary_only ? auxiliary_loss : main_loss;
}

Json Trainer::evaluate() {
  model_->eval();
  const EvalData data = held_out();
  const BatchMaker maker = eval_maker(data);
  Json line = {{"step", step_}};
  for (const auto& task : training_.tasks) {
    if (task.name == "current") continue;
    const WalkOptions walk{.carry = task.name == "lm" ? Carry::kReset : Carry::kKeep,
                           .batch = 64,
                           .max_segments = options_.eval_segments + task.distance,
                           .stop = hooks_.interrupted};
    const LossReport loss = evaluate_loss(*model_, data, maker, task, nullptr, walk);
    Json entry = {{"loss", loss.total.targets > 0 ? loss.total.nll / static_cast<double>(loss.total.targets) : 0},
                  {"targets", loss.total.targets}};
    if (task.name == "recall")
      entry["recovered"] = evaluate_recall(*model_, data, maker, task, ids_, nullptr, walk).share();
    line["eval"][task.text()] = entry;
  }
  model_->train();
  return line;
}

void Trainer::write_metrics(const Json& line) {
  std::ofstream out(fs::path(options_.output_dir) / "metrics.jsonl", std::ios::app);
  out << line.dump() << '\n';
  if (!out) throw input_error("cannot write the metrics", options_.output_dir + "/metrics.jsonl");
}

bool Trainer::seeks_best() const {
  return options_.load_best_model_at_end || options_.early_stopping_patience > 0 || options_.stop_at_metric > 0;
}

bool Trainer::metric_is_reached() const {
  if (!(options_.stop_at_metric > 0) || best_.step == 0) return false;
  const bool lower = parse_metric(options_.metric_for_best_model).second == "loss";
  return lower ? best_.value <= options_.stop_at_metric : best_.value >= options_.stop_at_metric;
}

bool Trainer::patience_is_over() const {
  return options_.early_stopping_patience > 0 && best_.since >= options_.early_stopping_patience;
}

std::string Trainer::best_checkpoint() const {
  if (best_.step == 0) return "";
  const fs::path path = fs::path(options_.output_dir) / fmt::format("checkpoint-{}", best_.step);
  return fs::exists(path / kState) ? path.string() : "";
}

/// Takes one evaluation into account; true where it is the best so far.
bool Trainer::note_evaluation(const Json& evaluation) {
  const auto [task, kind] = parse_metric(options_.metric_for_best_model);
  double value = std::nan("");
  if (communicator_->leads()) {
    double total = 0, count = 0;
    for (const auto& [name, values] : evaluation.at("eval").items()) {
      if ((!task.empty() && task != name) || !values.contains(kind)) continue;
      const double targets = values.at("targets").get<double>();
      total += targets * values.at(kind).get<double>();
      count += targets;
    }
    if (count == 0) {
      throw usage_error(fmt::format("the held-out documents have no target of {}", options_.metric_for_best_model),
                        "metric_for_best_model", "raise eval_documents or eval_segments, or hold more out");
    }
    value = total / count;
  }
  value = communicator_->broadcast(value);
  const double gain = kind == "loss" ? best_.value - value : value - best_.value;
  if (best_.step == 0 || gain > options_.early_stopping_threshold) {
    best_ = {.step = step_, .value = value, .since = 0};
    return true;
  }
  ++best_.since;
  return false;
}

/// checkpoint-best: a link that moves in one step.
void Trainer::point_to_best() const {
  const fs::path folder = options_.output_dir, fresh = folder / fmt::format("{}.tmp-{}", kBest, step_);
  std::error_code code;
  fs::remove(fresh, code);
  fs::create_directory_symlink(fmt::format("checkpoint-{}", best_.step), fresh, code);
  if (!code) fs::rename(fresh, folder / kBest, code);
  if (code) spdlog::warn("warning: cannot link {}: {}", (folder / kBest).string(), code.message());
}

Json Trainer::run() {
  const auto started = std::chrono::steady_clock::now();
  const int64_t first = step_;
  const bool leads = communicator_->leads();
  if (leads) {
    write_file_atomically((fs::path(options_.output_dir) / "options.toml").string(), options_to_toml(options_));
    for (const auto& group : parameter_groups(*model_))
      spdlog::info("{:<36} {:>12} parameters", group.name, format_count(group.count()));
    spdlog::info("{:<36} {:>12} parameters in all", "", format_count(nn::parameter_count(*model_)));
    int64_t learned = 0;
    for (const auto& child : model_->named_children())
      if (child.key().ends_with("attention")) learned += nn::parameter_count(*child.value());
    if (learned > 0) {
      spdlog::info("{:<36} {:>12} of these are what the attention mechanisms learn ({:.1f} %)", "",
                   format_count(learned),
                   100 * static_cast<double>(learned) / static_cast<double>(nn::parameter_count(*model_)));
    }
    if (communicator_->size() > 1)
      spdlog::info("{} processes, {} of {} lanes each", communicator_->size(), own_lanes(), options_.lanes);
  }
  bool stopped = false;
  {
    std::optional<Progress> progress;
    if (leads) progress.emplace("training", options_.max_steps, "steps", first);
    double shown_loss = 0;
    while (step_ < options_.max_steps && !patience_is_over() && !metric_is_reached()) {
      const bool auxiliary = auxiliary_only();
      const double loss = step();
      shown_loss = shown_loss == 0 ? loss : 0.95 * shown_loss + 0.05 * loss;
      const bool log = step_ % options_.logging_steps == 0 || step_ == options_.max_steps;
      if (leads) {
        if (log) {
          metrics_["resident_bytes"] = resident_bytes().now;
          write_metrics(metrics_);
        }
        if (hooks_.on_step) hooks_.on_step(step_, log ? metrics_ : Json());
        progress->update(step_, fmt::format("{} {:.3f}, {:.0f} tokens/s", auxiliary ? "auxiliary loss" : "loss",
                                            shown_loss, metrics_["tokens_per_second"].get<double>()));
      }
      if (step_ == options_.auxiliary_steps) shown_loss = 0;
      if (options_.eval_steps > 0 && step_ % options_.eval_steps == 0 && step_ > options_.auxiliary_steps) {
        Json line;
        if (leads) {
          line = evaluate();
          write_metrics(line);
          progress->clear();
          if (hooks_.on_evaluation) hooks_.on_evaluation(step_, line);
        }
        // One cut short by an interrupt says nothing.
        if (seeks_best() && !communicator_->any(hooks_.interrupted()) && note_evaluation(line)) save();
      }
      if (communicator_->any(hooks_.interrupted())) {
        stopped = true;
        break;
      }
      if (options_.save_steps > 0 && step_ % options_.save_steps == 0 && step_ < options_.max_steps) save();
    }
  }
  const std::string path = save();
  const bool early = !stopped && (patience_is_over() || metric_is_reached()) && step_ < options_.max_steps;
  if (early && leads && metric_is_reached()) {
    spdlog::info("stopped at step {}: {} is {:.4f}", step_, options_.metric_for_best_model, best_.value);
  } else if (early && leads) {
    spdlog::info("stopped early: no better {} since step {}", options_.metric_for_best_model, best_.step);
  }
  if (!stopped && options_.load_best_model_at_end && !best_checkpoint().empty() && best_.step != step_) {
    if (leads) spdlog::info("ends with the weights of {}", best_checkpoint());
    load_weights(best_checkpoint());
  }
  if (!stopped && !options_.export_dir.empty() && leads) export_model();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  const ResidentBytes resident = resident_bytes();
  Json summary = {{"checkpoint", path},
                  {"steps", step_},
                  {"interrupted", stopped},
                  {"stopped_early", early},
                  {"train_runtime", seconds},
                  {"train_steps_per_second", seconds > 0 ? static_cast<double>(step_ - first) / seconds : 0},
                  {"tokens_seen", tokens_seen_},
                  {"train_loss", metrics_.contains("loss") ? metrics_["loss"] : Json(0)},
                  {"peak_bytes", resident.peak},
                  {"processes", communicator_->size()},
                  {"parameters", nn::parameter_count(*model_)},
                  {"state_bytes_per_lane", memory_.slots.defined() ? memory_.bytes() / memory_.slots.size(0) : 0}};
  if (best_.step > 0)
    summary.update(
        {{"best_model_checkpoint", best_checkpoint()}, {"best_step", best_.step}, {"best_metric", best_.value}});
  return summary;
}

void Trainer::export_model() const {
  write_folder_atomically(options_.export_dir, [&](const std::string& folder) {
    checkpoint::save_model(folder, *model_, training_, tokenizer_.get(),
                           {.dtype = nn::dtype_of(options_.export_dtype)});
    write_json((fs::path(folder) / "split.json").string(), split_names());
  });
  spdlog::info("exported to {}", options_.export_dir);
}

std::string Trainer::save() {
  const std::string path = (fs::path(options_.output_dir) / fmt::format("checkpoint-{}", step_)).string();
  if (saved_step_ == step_ && fs::exists(fs::path(path) / kState)) return path;  // at an evaluation, just now
  check_weights_agree();
  const at::Tensor memory = memory_.slots.defined() ? all_rows(memory_.slots) : at::Tensor();
  saved_step_ = step_;
  if (!communicator_->leads()) return path;
  write_folder_atomically(path, [&](const std::string& folder) {
    checkpoint::save_model(folder, *model_, training_, tokenizer_.get());
    auto tensors = optimizer_->state();
    if (memory.defined()) tensors.emplace_back("memory", memory);
    checkpoint::save_safetensors((fs::path(folder) / kOptimizer).string(), tensors);
    Json state = {{"format", 1},
                  {"version", version()},
                  {"global_step", step_},
                  {"max_steps", options_.max_steps},
                  {"tokens_seen", tokens_seen_},
                  {"threads", thread_count()},
                  {"lanes", lanes_->state()},
                  {"options", options_to_json(options_)}};
    if (communicator_->size() > 1) state["processes"] = communicator_->size();
    if (best_.step > 0) state["best"] = {{"step", best_.step}, {"value", best_.value}, {"since", best_.since}};
    write_json((fs::path(folder) / kState).string(), state);
  });
  if (best_.step == step_) point_to_best();
  auto found = checkpoints_of(options_.output_dir);
  std::erase_if(found, [&](const fs::path& one) { return step_of(one) == best_.step; });
  while (options_.save_total_limit > 0 && found.size() > static_cast<size_t>(options_.save_total_limit)) {
    std::error_code ignored;
    fs::remove_all(found.front(), ignored);
    found.erase(found.begin());
  }
  return path;
}

void Trainer::load_weights(const std::string& path) {
  const at::NoGradGuard no_grad;
  const auto tensors = checkpoint::TensorSet::open(path);
  std::map<std::string, at::Tensor> given;
  for (const auto& name : tensors.names()) given[name] = tensors.tensor(name).clone();
  checkpoint::fill_model(*model_, given, path,
                         {.dtype = model_->dtype(), .device = checkpoint::device_named(options_.device)});
}

void Trainer::resume_from(const std::string& path) {
  const std::string state_path = (fs::path(path) / kState).string();
  const Json state = read_json(state_path);
  const Json now = options_to_json(options_);
  static const std::vector<std::string> kFree = {"max_steps",
                                                 "output_dir",
                                                 "cache_dir",
                                                 "export_dir",
                                                 "export_dtype",
                                                 "resume",
                                                 "logging_steps",
                                                 "eval_steps",
                                                 "eval_segments",
                                                 "eval_documents",
                                                 "save_steps",
                                                 "save_total_limit",
                                                 "tokenizer",
                                                 "model",
                                                 "load_best_model_at_end",
                                                 "metric_for_best_model",
                                                 "early_stopping_patience",
                                                 "early_stopping_threshold",
                                                 "stop_at_metric",
                                                 "peer_timeout",
                                                 "loss_table_mib"};
  if (state.contains("options") && communicator_->leads()) {
    for (const auto& [key, value] : state.at("options").items()) {
      if (std::find(kFree.begin(), kFree.end(), key) != kFree.end() || !now.contains(key) || now.at(key) == value)
        continue;
      spdlog::warn("warning: {} was {} when the run was started and is {} now", key, value.dump(), now.at(key).dump());
    }
  }
  if (const int64_t threads = json_int(state, "threads", state_path);
      threads != thread_count() && communicator_->leads()) {
    spdlog::warn(
        "warning: the checkpoint was made with {} threads, now there are {}: the run goes on, but not bit for bit",
        threads, thread_count());
  }
  if (const int64_t processes = state.value("processes", int64_t{1});
      processes != communicator_->size() && communicator_->leads()) {
    spdlog::warn(
        "warning: the checkpoint was made by {} processes, now there are {}: the run goes on, but not bit for bit",
        processes, communicator_->size());
  }
  load_weights(path);
  const auto file = checkpoint::Safetensors::open((fs::path(path) / kOptimizer).string());
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& info : file.tensors()) tensors.emplace_back(info.name, file.tensor(info.name));
  optimizer_->load(tensors, file.path());
  if (memory_.slots.defined()) memory_.slots = own_rows(file.tensor("memory").clone()).to(model_->device());
  lanes_->restore(state.at("lanes"));
  step_ = json_int(state, "global_step", state_path);
  tokens_seen_ = json_int(state, "tokens_seen", state_path);
  saved_step_ = step_;
  if (state.contains("best")) {
    const Json& best = state.at("best");
    best_ = {.step = json_int(best, "step", state_path),
             .value = best.value("value", 0.0),
             .since = json_int(best, "since", state_path)};
  }
  if (!communicator_->leads()) return;
  // Lines written after the checkpoint belong to steps that are done again.
  const fs::path metrics = fs::path(options_.output_dir) / "metrics.jsonl";
  if (fs::exists(metrics)) {
    std::ifstream in(metrics);
    std::string kept;
    for (std::string line; std::getline(in, line);) {
      const Json json = Json::parse(line, nullptr, false);
      if (!json.is_discarded() && json.is_object() && json.value("step", int64_t{0}) <= step_) kept += line + "\n";
    }
    in.close();
    write_file_atomically(metrics.string(), kept);
  }
  spdlog::info("resumed from {} (step {})", path, step_);
}

std::string Trainer::describe_noise() const {
  constexpr int64_t kTokens = 100'000;  // the share is then known to about 0.1 %
  data::NoiseCounts counts;
  data::Lanes lanes = *lanes_;
  while (counts.tokens < kTokens && lanes.progress() < 1) {
    for (const auto& item : lanes.next()) maker_->count_noise(item, counts);
  }
  return fmt::format(
      "denoising ({}): {:.2f} % of {} tokens in {} segments removed, {} mask tokens; the longest segment has {} "
      "tokens, "
      "the longest corrupted one {}; {:.1f} % of the segments in another order\n",
      options_.tasks.denoise.kind, 100 * counts.removed_share(), format_count(counts.tokens),
      format_count(counts.segments), format_count(counts.masks), counts.longest, counts.longest_noisy,
      counts.segments > 0 ? 100.0 * static_cast<double>(counts.reordered) / static_cast<double>(counts.segments) : 0);
}

std::string Trainer::describe(int64_t items) const {
  std::string text = fmt::format("vocabulary: {} tokens; corpus: {} documents, {} tokens\n", tokenizer_->vocab_size(),
                                 corpus_->documents(), format_count(corpus_->total_tokens()));
  for (const auto& group : parameter_groups(*model_))
    text += fmt::format("{}: {} parameters\n", group.name, format_count(group.count()));
  if (model_->memory_options().enabled())
    text += fmt::format("memory: {}, {} a lane\n", model_->memory_options().text(),
                        format_bytes(memory_.bytes() / memory_.slots.size(0)));
  if (training_.has("denoise")) text += describe_noise();
  const auto show = [&](const at::Tensor& row) {
    std::string line;
    for (int64_t i = 0; i < row.numel(); ++i) {
      const int64_t id = row[i].item<int64_t>();
      if (id == ids_.pad || id == nn::kIgnore) continue;
      line += tokenizer_->decode(std::vector<int32_t>{static_cast<int32_t>(id)});
    }
    return Json(line).dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  data::Lanes lanes = *lanes_;
  for (int64_t step = 0; step < items; ++step) {
    const SegmentBatch batch = maker_->training(lanes.next());
    text += fmt::format("step {}, lane 0: {}, segment {}{}\n  encoder reads {}\n", step,
                        corpus_->name(batch.items[0].document), batch.items[0].segment,
                        batch.items[0].reset ? ", reset" : "", show(batch.ids[0]));
    text += fmt::format("  decoder reads {}\n  decoder writes {}\n", show(batch.main.decoder_ids[0]),
                        show(batch.main.labels[0]));
    if (batch.auxiliary.labels.defined())
      text += fmt::format("  auxiliary reads {}\n  auxiliary writes {}\n", show(batch.auxiliary.decoder_ids[0]),
                          show(batch.auxiliary.labels[0]));
  }
  return text;
}

}  // namespace palimpsest::train
