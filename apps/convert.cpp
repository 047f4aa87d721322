// SPDX-License-Identifier: Apache-2.0
// `palimpsest convert`: a stock folder, or one with the names of MemBART's authors, to a model with a memory or with
// other attention, and back.
#include <filesystem>

#include "apps/command.h"
#include "apps/model_flags.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/log.h"

namespace fs = std::filesystem;

namespace palimpsest::app {

namespace {

struct ConvertFlags {
  std::string input, out, memory, memory_init = "random", dtype, max_shard_size;
  int64_t seed = 0, vocab_size = 0;
  models::AttentionTexts texts;
  bool allow_missing = false, json = false;
  static void fields(auto& o, auto&& field) {
    field("out", o.out, "folder to write; it must not be there yet");
    field("memory", o.memory,
          "none | membart:M[,shared][,l2] | memformer:M[,rezero][,gate][,l2]; empty: as the folder says");
    field(
        "memory_init", o.memory_init,
        "how a memory starts that the folder lacks: random (N(0, 0.01), as its authors do; 0.001 from a width of 1024 "
        "on) | copy (slot weights are the layer's own)");
    models::AttentionTexts::fields(o.texts, field);
    field("dtype", o.dtype, "of the weights: float32 | float64 | bfloat16 | float16; empty: as stored");
    field("vocab_size", o.vocab_size, "rows that the vocabulary shall have at least; new ones are N(0, 0.02)");
    field("max_shard_size", o.max_shard_size, "cut weights into files of at most that size, like 500MB or 5GB");
    field("allow_missing", o.allow_missing, "initialise missing tensors and drop unexpected ones");
    field("seed", o.seed, "of what is initialised");
    field("json", o.json, "say what was done as JSON");
  }
};

int64_t parse_size(const std::string& text) {
  if (text.empty()) return 0;
  size_t end = 0;
  double number = 0;
  try {
    number = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  const std::string unit = text.substr(end);
  const double scale = unit == "GB" ? 1e9 : unit == "MB" ? 1e6 : unit == "KB" ? 1e3 : unit.empty() ? 1 : 0;
  if (end == 0 || scale == 0 || !(number * scale >= 1) || number * scale > 1e15)
    throw usage_error(fmt::format("\"{}\" is no size", text), "--max-shard-size", "give for example 500MB or 5GB");
  return static_cast<int64_t>(number * scale);
}

/// What a folder holds beside config and weights and stays as it is.
void copy_other_files(const fs::path& from, const fs::path& to) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                           "vocab.json", "merges.txt", "encoder.json", "vocab.bpe", "vocab.txt", "split.json"}) {
    if (fs::exists(from / name)) fs::copy_file(from / name, to / name, fs::copy_options::overwrite_existing);
  }
}

int convert(const ConvertFlags& flags) {
  require("--out", flags.out);
  if (fs::exists(flags.out) && !(fs::is_directory(flags.out) && fs::is_empty(flags.out)))
    throw usage_error("is there already", flags.out, "give the name of a new folder: nothing is overwritten");
  checkpoint::LoadOptions load{.allow_missing = flags.allow_missing,
                               .seed = static_cast<uint64_t>(flags.seed),
                               .memory_init = checkpoint::memory_init_named(flags.memory_init),
                               .attention = flags.texts.given(),
                               .vocab_size = flags.vocab_size};
  if (!flags.memory.empty()) load.memory = memory::MemoryOptions::parse(flags.memory);
  if (!flags.dtype.empty()) load.dtype = nn::dtype_of(flags.dtype);
  const auto folder = checkpoint::load_model(flags.input, load);
  checkpoint::SaveOptions save{.base_config = folder.config, .max_shard_bytes = parse_size(flags.max_shard_size)};
  const fs::path generation = fs::path(flags.input) / "generation_config.json";
  if (fs::exists(generation)) save.generation_config = read_json(generation.string());
  write_folder_atomically(flags.out, [&](const std::string& temporary) {
    const auto tokenizer = folder.training.tasks.empty() ? nullptr : folder.tokenizer();
    checkpoint::save_model(temporary, *folder.model, folder.training, tokenizer.get(), save);
    copy_other_files(flags.input, temporary);
  });

  const auto& report = folder.report;
  const Json own = folder.model->config_json().value("palimpsest", Json::object());
  if (flags.json) {
    Json renamed = Json::object();
    for (const auto& [from, to] : report.renamed) renamed[from] = to;
    print_json({{"out", flags.out},
                {"family", folder.model->family()},
                {"memory", own.value("memory", "none")},
                {"attention", own.value("attention", "dense")},
                {"decoder_attention", own.value("decoder_attention", "dense")},
                {"cross_attention", own.value("cross_attention", "dense")},
                {"positions", own.value("positions", "absolute")},
                {"dtype", nn::dtype_name(folder.model->dtype())},
                {"parameters", nn::parameter_count(*folder.model)},
                {"initialised", report.initialised},
                {"dropped", report.dropped},
                {"renamed", renamed},
                {"resized", report.resized}});
    return 0;
  }
  const auto list = [](const char* what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    print_line(fmt::format("{} ({}):", what, names.size()));
    for (const auto& name : names) print_line("  " + printable(name));
  };
  list(fmt::format("initialised, {}, seed {}", flags.memory_init, flags.seed).c_str(), report.initialised);
  list("dropped", report.dropped);
  list("given more rows", report.resized);
  if (!report.renamed.empty()) print_line(fmt::format("renamed ({}):", report.renamed.size()));
  for (const auto& [from, to] : report.renamed) print_line(fmt::format("  {} -> {}", printable(from), to));
  print_line(fmt::format("{}: {}, {} parameters in {}", flags.out, description(*folder.model),
                         format_count(nn::parameter_count(*folder.model)), nn::dtype_name(folder.model->dtype())));
  return 0;
}

}  // namespace

Command convert_command() {
  return {"convert", "a stock folder to a model with a memory or with other attention, and back",
          "palimpsest convert bart-base --out bart-base-64 --memory membart:64", [](CLI::App& app) {
            auto flags = std::make_shared<ConvertFlags>();
            app.add_option("IN", flags->input, "a Hugging Face folder, or one of MemBART's authors")->required();
            options_to_flags(*flags, app);
            return [flags] { return convert(*flags); };
          }};
}

}  // namespace palimpsest::app
