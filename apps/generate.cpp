// SPDX-License-Identifier: Apache-2.0
// `palimpsest generate`: text or ids in, greedy decoding, text or ids and scores out.
#include <iostream>
#include <iterator>

#include "apps/command.h"
#include "apps/model_flags.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/log.h"
#include "palimpsest/generate/greedy.h"
#include "palimpsest/train/evaluate.h"

namespace palimpsest::app {

namespace {

struct GenerateFlags {
  ModelFlags model;
  std::string input_ids, text, file, task;
  int64_t max_new_tokens = 0, min_new_tokens = 0, segment = 0, decoder_start_token_id = -1;
  bool stream = false, json = false;
  static void fields(auto& o, auto&& field) {
    field("model", o.model, "");
    field("input_ids", o.input_ids,
          "encoder input as JSON, a list of rows of ids; each row starts with a fresh memory");
    field("text", o.text, "encoder input as text, read segment by segment through the memory");
    field("file", o.file, "the same from a file; - is stdin");
    field("task", o.task, "what to ask the decoder for; the default is the model's first task");
    field("max_new_tokens", o.max_new_tokens,
          "most tokens to write; 0: a segment, or as many as the position table holds");
    field("min_new_tokens", o.min_new_tokens, "fewest tokens to write");
    field("segment", o.segment, "tokens of a segment; 0: as trained");
    field("decoder_start_token_id", o.decoder_start_token_id, "first decoder token; -1: of the task, or the model's");
    field("stream", o.stream, "print text as it is written");
    field("json", o.json, "sequences (ids), scores and text as JSON");
  }
};

std::vector<std::vector<int64_t>> parse_ids(const std::string& text, int64_t vocabulary) {
  const Json json = parse_json(text, "--input-ids");
  const Error wrong = usage_error("must be a list of lists of ids, like [[0, 5, 2]]", "--input-ids");
  if (!json.is_array() || json.empty()) throw wrong;
  std::vector<std::vector<int64_t>> rows;
  for (const Json& row : json) {
    if (!row.is_array() || row.empty()) throw wrong;
    rows.emplace_back();
    for (const Json& id : row) {
      if (!id.is_number_integer()) throw wrong;
      rows.back().push_back(id.get<int64_t>());
      if (rows.back().back() < 0 || rows.back().back() >= vocabulary) {
        throw usage_error(fmt::format("id {} is outside the vocabulary of {}", rows.back().back(), vocabulary),
                          "--input-ids");
      }
    }
  }
  return rows;
}

/// Rows of ids, padded on the right, as encoder input.
models::EncodeInput padded(const std::vector<std::vector<int64_t>>& rows, int64_t pad) {
  size_t longest = 0, shortest = rows.front().size();
  for (const auto& row : rows) longest = std::max(longest, row.size()), shortest = std::min(shortest, row.size());
  models::EncodeInput input;
  input.ids = at::full({static_cast<int64_t>(rows.size()), static_cast<int64_t>(longest)}, pad, at::kLong);
  for (size_t i = 0; i < rows.size(); ++i)
    std::copy(rows[i].begin(), rows[i].end(), input.ids.data_ptr<int64_t>() + i * longest);
  // Padding written into the ids is padding too, as in the reference.
  if (shortest < longest || input.ids.eq(pad).any().item<bool>()) input.mask = input.ids.ne(pad);
  return input;
}

int run(const GenerateFlags& flags) {
  const auto folder = load(flags.model);
  const at::NoGradGuard no_grad;
  const auto device = device_of(flags.model);
  const int given = !flags.input_ids.empty() + !flags.text.empty() + !flags.file.empty();
  if (given != 1)
    throw usage_error("give exactly one of --input-ids, --text and --file", "command line",
                      "see palimpsest generate --help");
  const models::BartModel& model = *folder.bart();
  const auto& config = model.config();
  checkpoint::Task task{"", config.decoder_start_token_id, 0};
  if (!flags.task.empty()) {
    task = folder.training.task(flags.task);
  } else if (!folder.training.tasks.empty()) {
    task = folder.training.tasks.front();
  }
  generate::GreedyOptions options{
      .start_id = flags.decoder_start_token_id >= 0 ? flags.decoder_start_token_id : task.start_id,
      .max_new_tokens = flags.max_new_tokens,
      .min_new_tokens = flags.min_new_tokens,
      .eos_id = config.eos_token_id};
  if (options.start_id >= config.vocab_size)
    throw usage_error(fmt::format("id {} is outside the vocabulary of {}", options.start_id, config.vocab_size),
                      "--decoder-start-token-id");
  const int64_t segment = flags.segment > 0             ? flags.segment
                          : folder.training.segment > 0 ? folder.training.segment
                                                        : config.max_position_embeddings;
  if (options.max_new_tokens == 0)
    options.max_new_tokens =
        std::min(config.max_position_embeddings,
                 folder.training.segment > 0 ? segment + 1 : std::max<int64_t>(64, options.min_new_tokens));

  models::EncoderOutput encoded;
  if (!flags.input_ids.empty()) {
    models::EncodeInput input = padded(parse_ids(flags.input_ids, config.vocab_size), config.pad_token_id);
    input.ids = input.ids.to(device);
    if (input.mask.defined()) input.mask = input.mask.to(device);
    encoded = model.encode(input);
  } else {
    if (!folder.tokenizer())
      throw input_error("the model folder has no tokenizer", flags.model.model,
                        "put tokenizer.json into it, or give --input-ids");
    const std::string text = !flags.text.empty() ? flags.text
                             : flags.file == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {})
                                                 : read_file(flags.file);
    const auto ids = folder.tokenizer()->encode_ids(text);
    if (ids.empty()) throw input_error("the text is empty", flags.file.empty() ? "--text" : flags.file);
    memory::Memory memory;
    for (size_t first = 0; first < ids.size(); first += static_cast<size_t>(segment)) {
      const std::vector<int64_t> row(
          ids.begin() + static_cast<std::ptrdiff_t>(first),
          ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), first + static_cast<size_t>(segment))));
      models::EncodeInput input;
      input.ids = at::tensor(row, at::kLong).unsqueeze(0).to(device);
      input.memory = memory;
      encoded = model.encode(input);
      memory = encoded.memory;
    }
  }
  std::optional<text::StreamingDecoder> decoder;
  generate::OnTokens on_tokens;
  if (flags.stream && !flags.json) {
    if (!folder.tokenizer() || encoded.context.size(0) != 1)
      throw usage_error("--stream needs a tokenizer and one row", "command line");
    decoder.emplace(folder.tokenizer(), true);
    on_tokens = [&](const std::vector<int64_t>& tokens) {
      std::cout << decoder->push(static_cast<int32_t>(tokens.front())) << std::flush;
      return !interrupted();
    };
    watch_interrupts();
  }
  const auto result = generate::greedy(model, encoded, options, on_tokens);
  const auto text_of = [&](const std::vector<int64_t>& sequence) {
    return folder.tokenizer()->decode(std::vector<int32_t>(sequence.begin(), sequence.end()), true);
  };
  if (flags.json) {
    Json json = {{"sequences", result.sequences}, {"scores", result.scores}};
    if (folder.tokenizer()) {
      for (const auto& sequence : result.sequences) json["texts"].push_back(text_of(sequence));
    }
    print_json(json);
  } else if (decoder) {
    print_line(decoder->finish());
  } else {
    for (const auto& sequence : result.sequences)
      print_line(folder.tokenizer() ? text_of(sequence) : Json(sequence).dump());
  }
  return 0;
}

}  // namespace

Command generate_command() {
  return {"generate", "greedy decoding from text or ids",
          "palimpsest generate --model DIR --file letter.txt --task recall", [](CLI::App& app) {
            auto flags = std::make_shared<GenerateFlags>();
            options_to_flags(*flags, app);
            return [flags] { return run(*flags); };
          }};
}

}  // namespace palimpsest::app
