// SPDX-License-Identifier: Apache-2.0
// `palimpsest bench`: how long things take here, with medians of several runs.
#include "apps/bench.h"

#include <cmath>

#include "apps/command.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/log.h"
#include "palimpsest/core/random.h"
#include "palimpsest/core/threads.h"
#include "palimpsest/generate/prompts.h"
#include "palimpsest/generate/search.h"
#include "palimpsest/kernels/isa.h"
#include "palimpsest/models/gpt2.h"
#include "palimpsest/nn/loss.h"
#include "palimpsest/train/optimizer.h"
#include "palimpsest/train/parallel.h"
#include "palimpsest/train/rollout.h"

namespace palimpsest::app {

namespace {

/// The folder's model, or one of BART-base's sizes with random weights.
checkpoint::ModelFolder model_of(const BenchFlags& flags) {
  if (!flags.model.model.empty()) {
    if (flags.memory.empty()) return load(flags.model);
    return load(flags.model, memory::MemoryOptions::parse(flags.memory));
  }
  auto config = models::BartConfig::base();
  if (!flags.memory.empty()) config.memory = memory::MemoryOptions::parse(flags.memory);
  if (flags.dropout >= 0) config.dropout = flags.dropout;
  checkpoint::ModelFolder folder;
  folder.config = config.to_json();
  const auto model = std::make_shared<models::BartModel>(config);
  model->initialize({.seed = static_cast<uint64_t>(flags.seed)});
  model->eval();
  if (flags.model.dtype == "int8") {
    model->quantize();
  } else if (!flags.model.dtype.empty()) {
    model->to(nn::dtype_of(flags.model.dtype));
  }
  folder.model = model;
  return folder;
}

std::vector<generate::IdRow> random_rows(const BenchFlags& flags, int64_t vocabulary, uint64_t draw = 1) {
  std::vector<generate::IdRow> rows(static_cast<size_t>(flags.batch));
  Random random(random_key(static_cast<uint64_t>(flags.seed), draw));
  for (auto& row : rows) {
    for (int64_t i = 0; i < flags.length; ++i)
      row.push_back(4 + static_cast<int64_t>(random.below(static_cast<uint64_t>(vocabulary - 4))));
  }
  return rows;
}

at::Tensor tensor_of(const std::vector<generate::IdRow>& rows) {
  at::Tensor ids = at::empty({static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows[0].size())}, at::kLong);
  for (size_t i = 0; i < rows.size(); ++i)
    std::copy(rows[i].begin(), rows[i].end(), ids.mutable_data_ptr<int64_t>() + i * rows[0].size());
  return ids;
}

/// Hidden rows and logits for source and target of the same ids.
at::Tensor forward(const models::Model& model, const at::Tensor& ids) {
  if (const auto* bart = dynamic_cast<const models::BartModel*>(&model))
    return bart->logits(bart->decode(ids, {}, bart->encode({.ids = ids})));
  const auto& gpt2 = dynamic_cast<const models::Gpt2Model&>(model);
  return gpt2.logits(gpt2.forward(ids, {}));
}

Measured bench_forward(const BenchFlags& flags) {
  const auto folder = model_of(flags);
  const at::Tensor ids = tensor_of(random_rows(flags, folder.model->vocab_size()));
  return repeat(flags, [&] { forward(*folder.model, ids); });
}

Measured bench_encode(const BenchFlags& flags) {
  const auto folder = model_of(flags);
  const auto model = folder.bart();
  const at::Tensor ids = tensor_of(random_rows(flags, model->vocab_size()));
  models::EncoderOutput encoded;
  Measured measured = repeat(flags, [&] { encoded = model->encode({.ids = ids}); });
  measured.more["state_bytes"] = encoded.memory.bytes();
  return measured;
}

Measured bench_generate(const BenchFlags& flags) {
  const auto folder = model_of(flags);
  const auto rows = random_rows(flags, folder.model->vocab_size());
  const int64_t eos = folder.config.value("eos_token_id", int64_t{2});
  generate::GenerationOptions options;
  options.max_new_tokens = options.min_new_tokens = flags.max_new_tokens;
  options.num_beams = flags.num_beams;
  options.eos_token_id = {eos};
  options.validate(folder.model->vocab_size());
  int64_t state_bytes = 0;
  std::vector<double> first;
  Measured measured = repeat(flags, [&] {
    const auto start = Clock::now();
    generate::Request request;
    bool waiting = true;
    request.on_step = [&](const std::vector<generate::NewToken>&) {
      if (waiting) first.push_back(seconds_since(start));
      waiting = false;
      return true;
    };
    const auto decoder =
        generate::make_decoder(*folder.model, rows,
                               {.pad_id = folder.config.value("pad_token_id", int64_t{1}),
                                .decoder_start_id = folder.config.value("decoder_start_token_id", eos)});
    state_bytes = generate::generate(*decoder, options, request).state_bytes;
  });
  const double to_first = median(first);
  measured.more["first_token_s"] = to_first;
  measured.more["seconds_per_token"] =
      flags.max_new_tokens > 1 ? (median(measured.seconds) - to_first) / static_cast<double>(flags.max_new_tokens - 1)
                               : 0;
  measured.more["state_bytes"] = state_bytes;
  return measured;
}

/// The source and target of one segment, as many rows as this process has of the batch.
struct TrainSegment {
  at::Tensor source, decoder_ids, labels;  ///< [B, L] int64
};

/// An optimiser step of a training run (train/trainer.h) on random ids: every rollout, loss and update is the
/// trainer's.
Measured bench_train(const BenchFlags& flags) {
  if (!flags.model.dtype.empty() && flags.model.dtype != "float32" && flags.model.dtype != "float64")
    throw usage_error("training is measured in float32 or float64", "--dtype");
  if (flags.dropout >= 0 && !flags.model.model.empty())
    throw usage_error("a model folder has a dropout of its own", "--dropout", "leave --model or --dropout away");
  const auto processes = train::connect();
  if (flags.batch % processes->size() != 0)
    throw usage_error(fmt::format("{} rows do not divide among {} processes", flags.batch, processes->size()),
                      "--batch");
  const at::AutoGradMode with_graph(true);
  const auto folder = model_of(flags);
  const auto model = folder.bart();
  const auto& config = model->config();
  for (auto& parameter : model->parameters()) {
    parameter.set_data(parameter.detach().clone());  // a folder's are views of a file map
    parameter.requires_grad_(true);
  }
  model->train();
  const auto device = model->shared->weight.device();
  const int64_t rows = flags.batch / processes->size();
  std::vector<TrainSegment> segments;
  for (int64_t t = 0; t < flags.time_horizon; ++t) {
    const auto draw = [&](uint64_t side) {
      const at::Tensor all = tensor_of(random_rows(flags, config.vocab_size, 2 * static_cast<uint64_t>(t) + side));
      return all.narrow(0, processes->rank() * rows, rows).to(device);
    };
    segments.push_back({draw(1), {}, draw(2)});
    segments.back().decoder_ids =
        nn::shift_right(segments.back().labels, config.decoder_start_token_id, config.pad_token_id);
  }
  const nn::ProjectedLossOptions projected{.table_bytes = flags.loss_table_mib << 20};
  const double share = 1 / static_cast<double>(flags.time_horizon * flags.batch * flags.length);
  memory::Memory memory = model->fresh_memory(rows);
  const at::Tensor keep = at::zeros({rows}, at::TensorOptions(at::kBool).device(device));
  train::AdamW optimizer(train::parameter_groups(*model), {});
  std::unique_ptr<train::GradientSum> gradients;
  if (processes->size() > 1) gradients = std::make_unique<train::GradientSum>(model->parameters(), processes);
  double loss = 0;
  std::vector<double> optimizer_s;
  const auto encode = [&](int64_t t, const memory::Memory& before) {
    at::manual_seed(random_key(static_cast<uint64_t>(flags.seed), 3, t));
    return model->encode({.ids = segments[static_cast<size_t>(t)].source, .memory = before, .reset = keep});
  };
  train::Rollout rollout{.steps = flags.time_horizon, .replay = flags.replay};
  rollout.write = [&](int64_t t, const memory::Memory& before) { return encode(t, before).memory; };
  rollout.step = [&](int64_t t, const memory::Memory& before) {
    const auto encoded = encode(t, before);
    const TrainSegment& segment = segments[static_cast<size_t>(t)];
    const at::Tensor nll = nn::projected_loss(model->decode(segment.decoder_ids, {}, encoded), model->lm_head->weight,
                                              model->final_logits_bias.view({-1}), segment.labels, projected)
                               .nll;
    loss += nll.item<double>() * share;
    return train::StepOutput{.loss = nll * share, .memory = encoded.memory};
  };
  if (gradients) rollout.before_last_backward = [&] { gradients->begin(); };
  Measured measured = repeat(flags, [&] {
    loss = 0;
    optimizer.zero_grad();
    rollout.start = {memory.slots.defined() ? memory.slots.detach() : at::Tensor()};
    memory = train::backpropagate(rollout).carried;
    if (gradients) gradients->finish();
    const auto start = Clock::now();
    optimizer.step(
        1e-5, processes->size() == 1 ? std::function<double(double)>()
                                     : [&](double norm) { return processes->broadcast(norm); });
    optimizer_s.push_back(seconds_since(start));
  });
  processes->sum(at::from_blob(&loss, {1}, at::kDouble));
  const double seconds = median(measured.seconds);
  measured.more = {
      {"tokens_per_second", static_cast<double>(flags.batch * flags.length * flags.time_horizon) / seconds},
      {"optimizer_s", median(optimizer_s)},
      {"loss", loss},
      {"parameters", nn::parameter_count(*model)},
      {"time_horizon", flags.time_horizon},
      {"replay", flags.replay},
      {"memory", config.memory.text()},
      {"dropout", config.dropout},
      {"processes", processes->size()}};
  measured.silent = !processes->leads();
  return measured;
}

/// Opening the folder, and from there to the logits of an 8-token input.
Measured bench_load(const BenchFlags& flags) {
  require("--model", flags.model.model);
  const at::Tensor ids = at::tensor({0, 713, 16, 10, 1296, 6, 98, 2}, at::kLong).view({1, 8});
  std::vector<double> to_logits;
  int64_t resident = 0;
  Measured measured;
  for (int64_t i = 0; i < flags.warm_up + flags.repeats; ++i) {
    const int64_t before = resident_bytes().now;
    const auto start = Clock::now();
    const auto folder = load(flags.model);
    const double loaded = seconds_since(start);
    forward(*folder.model, ids.remainder(folder.model->vocab_size()));
    const double done = seconds_since(start);
    if (i < flags.warm_up) {
      resident = resident_bytes().now - before;
      continue;
    }
    measured.seconds.push_back(loaded);
    to_logits.push_back(done);
  }
  measured.more["first_logits_s"] = median(to_logits);
  measured.more["resident_bytes"] = resident;
  return measured;
}

int bench(const std::string& what, const BenchFlags& flags) {
  check_choice("what to measure", what, {"mechanisms", "attention", "generate", "forward", "encode", "train", "load"});
  if (flags.repeats < 1 || flags.batch < 1 || flags.length < 1 || flags.warm_up < 0 || flags.max_new_tokens < 1 ||
      flags.time_horizon < 1 || flags.loss_table_mib < 1 || flags.heads < 1 || flags.head_dim < 1 ||
      flags.source_length < 0) {
    throw usage_error(
        "--repeats, --heads, --head-dim, --batch, --length, --max-new-tokens, --time-horizon and --loss-table-mib are "
        "1 or more",
        "command line");
  }
  if (what == "mechanisms") {
    list_mechanisms(flags.json);
    return 0;
  }
  const at::NoGradGuard no_grad;
  Measured measured = what == "attention"  ? bench_attention(flags)
                      : what == "generate" ? bench_generate(flags)
                      : what == "forward"  ? bench_forward(flags)
                      : what == "encode"   ? bench_encode(flags)
                      : what == "train"    ? bench_train(flags)
                                           : bench_load(flags);
  if (measured.silent) return 0;
  const double best = *std::min_element(measured.seconds.begin(), measured.seconds.end());
  Json json = {{"what", what},
               {"median_s", median(measured.seconds)},
               {"min_s", best},
               {"runs_s", measured.seconds},
               {"batch", flags.batch},
               {"length", flags.length},
               {"threads", thread_count()},
               {"isa", kernels::isa_name(kernels::chosen_isa())},
               {"dtype", flags.model.dtype.empty() ? "float32" : flags.model.dtype},
               {"peak_bytes", resident_bytes().peak}};
  for (const auto& [key, value] : measured.more.items()) json[key] = value;
  if (flags.json) {
    print_json(json);
    return 0;
  }
  print_line(fmt::format("{}, batch {}, length {}, {} threads, {}: median {:.2f} ms, best {:.2f} ms of {} runs", what,
                         flags.batch, flags.length, thread_count(), json["isa"].get<std::string>(),
                         1000 * json["median_s"].get<double>(), 1000 * best, flags.repeats));
  for (const auto& [key, value] : measured.more.items()) {
    print_line(key.ends_with("_s") || key.starts_with("seconds")
                   ? fmt::format("  {}: {:.2f} ms", key, 1000 * value.get<double>())
               : key.ends_with("_bytes") ? fmt::format("  {}: {}", key, format_bytes(value.get<int64_t>()))
                                         : fmt::format("  {}: {}", key, value.dump()));
  }
  print_line(fmt::format("  peak_bytes: {}", format_bytes(json["peak_bytes"].get<int64_t>())));
  return 0;
}

}  // namespace

Command bench_command() {
  return {"bench", "how long things take here: attention, generate, forward, encode, train, load",
          "palimpsest bench attention --attention abc:32 --causal --length 8192 --backward", [](CLI::App& app) {
            auto flags = std::make_shared<BenchFlags>();
            auto what = std::make_shared<std::string>();
            app.add_option("WHAT", *what,
                           "mechanisms (a list of them) | attention | generate | forward | encode | train | load")
                ->required();
            options_to_flags(*flags, app);
            app.add_option("--mechanism", flags->model.texts.attention, "attention: another name of --attention");
            return [flags, what] { return bench(*what, *flags); };
          }};
}

}  // namespace palimpsest::app
