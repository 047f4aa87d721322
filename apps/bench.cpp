// SPDX-License-Identifier: Apache-2.0
// `palimpsest bench`: how long things take here, in process, with medians of several runs.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "apps/command.h"
#include "apps/model_flags.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/log.h"
#include "palimpsest/core/random.h"
#include "palimpsest/core/threads.h"
#include "palimpsest/generate/prompts.h"
#include "palimpsest/generate/search.h"
#include "palimpsest/kernels/isa.h"
#include "palimpsest/models/gpt2.h"

namespace palimpsest::app {

namespace {

struct BenchFlags {
  ModelFlags model;
  std::string memory;
  int64_t batch = 1, length = 64, repeats = 7, warm_up = 1, seed = 0, max_new_tokens = 20, num_beams = 1;
  bool json = false;
  static void fields(auto& o, auto&& field) {
    field("model", o.model, "");
    field("memory", o.memory, "another memory than the folder's, as in convert");
    field("batch", o.batch, "rows");
    field("length", o.length, "tokens of a row: of source and target in forward, of the source in generate");
    field("max_new_tokens", o.max_new_tokens, "generate: tokens that are written, no more and no fewer");
    field("num_beams", o.num_beams, "generate: beams");
    field("repeats", o.repeats, "measured runs");
    field("warm_up", o.warm_up, "runs before them");
    field("seed", o.seed, "of the random ids and, without --model, of the weights");
    field("json", o.json, "results as JSON");
  }
};

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The folder's model, or one of BART-base's sizes with random weights.
checkpoint::ModelFolder model_of(const BenchFlags& flags) {
  if (!flags.model.model.empty()) {
    if (flags.memory.empty()) return load(flags.model);
    return load(flags.model, memory::MemoryOptions::parse(flags.memory));
  }
  auto config = models::BartConfig::base();
  if (!flags.memory.empty()) config.memory = memory::MemoryOptions::parse(flags.memory);
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

std::vector<generate::IdRow> random_rows(const BenchFlags& flags, int64_t vocabulary) {
  std::vector<generate::IdRow> rows(static_cast<size_t>(flags.batch));
  Random random(random_key(static_cast<uint64_t>(flags.seed), 1));
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

/// Times of the runs, and what else is worth telling.
struct Measured {
  std::vector<double> seconds;
  Json more = Json::object();
};

Measured repeat(const BenchFlags& flags, const std::function<void()>& work) {
  Measured measured;
  for (int64_t i = 0; i < flags.warm_up; ++i) work();
  for (int64_t i = 0; i < flags.repeats; ++i) {
    const auto start = Clock::now();
    work();
    measured.seconds.push_back(seconds_since(start));
  }
  return measured;
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
  std::sort(first.begin(), first.end());
  const double to_first = first[first.size() / 2];
  auto all = measured.seconds;
  std::sort(all.begin(), all.end());
  measured.more["first_token_s"] = to_first;
  measured.more["seconds_per_token"] =
      flags.max_new_tokens > 1 ? (all[all.size() / 2] - to_first) / static_cast<double>(flags.max_new_tokens - 1) : 0;
  measured.more["state_bytes"] = state_bytes;
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
  std::sort(to_logits.begin(), to_logits.end());
  measured.more["first_logits_s"] = to_logits[to_logits.size() / 2];
  measured.more["resident_bytes"] = resident;
  return measured;
}

int bench(const std::string& what, const BenchFlags& flags) {
  check_choice("what to measure", what, {"generate", "forward", "encode", "load"});
  if (flags.repeats < 1 || flags.batch < 1 || flags.length < 1 || flags.warm_up < 0 || flags.max_new_tokens < 1)
    throw usage_error("--repeats, --batch, --length and --max-new-tokens are 1 or more", "command line");
  const at::NoGradGuard no_grad;
  Measured measured = what == "generate"  ? bench_generate(flags)
                      : what == "forward" ? bench_forward(flags)
                      : what == "encode"  ? bench_encode(flags)
                                          : bench_load(flags);
  auto sorted = measured.seconds;
  std::sort(sorted.begin(), sorted.end());
  Json json = {{"what", what},
               {"median_s", sorted[sorted.size() / 2]},
               {"min_s", sorted.front()},
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
                         1000 * json["median_s"].get<double>(), 1000 * sorted.front(), flags.repeats));
  for (const auto& [key, value] : measured.more.items())
    print_line(key.ends_with("_s") || key.starts_with("seconds")
                   ? fmt::format("  {}: {:.2f} ms", key, 1000 * value.get<double>())
                   : fmt::format("  {}: {}", key, format_bytes(value.get<int64_t>())));
  return 0;
}

}  // namespace

Command bench_command() {
  return {"bench", "how long things take here: generate, forward, encode, load",
          "palimpsest bench generate --model DIR --length 64 --num-beams 4", [](CLI::App& app) {
            auto flags = std::make_shared<BenchFlags>();
            auto what = std::make_shared<std::string>();
            app.add_option("WHAT", *what, "generate | forward | encode | load")->required();
            options_to_flags(*flags, app);
            return [flags, what] { return bench(*what, *flags); };
          }};
}

}  // namespace palimpsest::app
