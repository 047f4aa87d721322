// SPDX-License-Identifier: Apache-2.0
// `palimpsest generate`: text or ids in, greedy decoding, beam search or sampling, text or ids and scores out.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "apps/command.h"
#include "apps/model_flags.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/log.h"
#include "palimpsest/generate/model_decoder.h"
#include "palimpsest/generate/prompts.h"
#include "palimpsest/generate/search.h"

namespace fs = std::filesystem;

namespace palimpsest::app {

namespace {

using generate::GenerationOptions;
using generate::IdRow;

struct GenerateFlags {
  ModelFlags model;
  std::string input_ids, text, file, lines, output, task, stop;
  GenerationOptions generation;
  int64_t segment = 0, batch = 8;
  bool beam_search = false, parse_special = false, truncate = false, stream = false, json = false;
  static void fields(auto& o, auto&& field) {
    field("model", o.model, "");
    field("input_ids", o.input_ids, "source or prompt as JSON, a list of rows of ids");
    field("text", o.text, "source or prompt as text; a memory reads it segment by segment");
    field("file", o.file, "one text, the whole file; - is stdin");
    field("lines", o.lines, "many: a text (or a JSON list of ids) a line, one result a line; - is stdin");
    field("output", o.output, "of --lines: file for the results, gone on with where it stopped; empty: stdout");
    field("batch", o.batch, "lines that are worked on side by side");
    field("task", o.task, "what to ask a trained decoder for; the default is the model's first task");
    field("segment", o.segment, "tokens of a segment that a memory reads at a time; 0: as trained");
    field("truncate", o.truncate, "cut what is longer than the position table instead of refusing it");
    field("parse_special", o.parse_special, "special tokens written in a text are those tokens, not plain text");
    field("beam_search", o.beam_search, "beam search with 4 beams, or as many as --num-beams says");
    field("generation", o.generation, "");
    field("stop", o.stop, "a text that ends a sequence and is left out of it, or a JSON list of such texts");
    field("stream", o.stream, "print text as it is written (one text, no beams)");
    field("json", o.json, "sequences (with start or prompt, padded), new_tokens, scores and texts as JSON");
  }
};

IdRow parse_row(const Json& row, const std::string& place) {
  const Error wrong = usage_error("must be a list of ids, like [0, 5, 2]", place);
  if (!row.is_array() || row.empty()) throw wrong;
  IdRow ids;
  for (const Json& id : row) {
    if (!id.is_number_integer() || id.get<double>() < 0 || id.get<double>() > INT32_MAX) throw wrong;
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

std::vector<IdRow> parse_ids(const std::string& text) {
  const Json json = parse_json(text, "--input-ids");
  if (!json.is_array() || json.empty() || !json.front().is_array())
    throw usage_error("must be a list of lists of ids, like [[0, 5, 2]]", "--input-ids");
  std::vector<IdRow> rows;
  for (const Json& row : json) rows.push_back(parse_row(row, "--input-ids"));
  return rows;
}

/// What the folder says about generation, with the flags that were given put on top.
GenerationOptions effective_options(const GenerateFlags& flags, const checkpoint::ModelFolder& folder,
                                    const CLI::App& app) {
  const fs::path path = fs::path(folder.path) / "generation_config.json";
  GenerationOptions options;
  std::vector<std::string> warnings, from_folder;
  if (fs::exists(path)) {
    const Json json = read_json(path.string());
    options = GenerationOptions::from_generation_config(json, path.string(), &warnings);
  } else {
    // Older folders keep these keys in config.json.
    Json json = Json::object();
    GenerationOptions defaults;
    for (const auto& field : fields_of(defaults)) {
      if (folder.config.contains(field.name)) json[field.name] = folder.config.at(field.name);
    }
    options = GenerationOptions::from_generation_config(json, folder.path + "/config.json", &warnings);
  }
  for (const auto& warning : warnings) spdlog::warn("{}", warning);
  if (folder.config.contains("task_specific_params") && folder.config.at("task_specific_params").is_object())
    spdlog::info("task_specific_params of config.json are not applied: give what you want of them as flags");
  GenerationOptions plain, given = flags.generation;
  const auto defaults = fields_of(plain), flags_given = fields_of(given), result = fields_of(options);
  for (size_t i = 0; i < result.size(); ++i) {
    const std::string name = "--" + flag_name(result[i].name);
    if (app.get_option(name)->count() > 0) {
      result[i].set(flags_given[i].get(), name);
    } else if (result[i].get() != defaults[i].get() && result[i].name.find("token_id") == std::string::npos) {
      from_folder.push_back(fmt::format("{} {}", result[i].name, result[i].get().dump()));
    }
  }
  if (!from_folder.empty()) spdlog::info("the folder's own: {}", fmt::join(from_folder, ", "));
  if (flags.beam_search && app.get_option("--num-beams")->count() == 0) options.num_beams = 4;
  const auto id_of = [&](const char* key, int64_t fallback) {
    return folder.config.contains(key) && folder.config.at(key).is_number_integer()
               ? folder.config.at(key).get<int64_t>()
               : fallback;
  };
  if (options.eos_token_id.empty() && app.get_option("--eos-token-id")->count() == 0) {
    const int64_t eos = id_of("eos_token_id", -1);
    if (eos >= 0) options.eos_token_id = {eos};
  }
  if (options.pad_token_id < 0) options.pad_token_id = id_of("pad_token_id", -1);
  if (options.bos_token_id < 0) options.bos_token_id = id_of("bos_token_id", -1);
  if (!flags.stop.empty()) {
    const bool is_list = flags.stop.starts_with('[') && Json::accept(flags.stop);
    for (const Json& one : is_list ? Json::parse(flags.stop) : Json::array({flags.stop})) {
      if (!one.is_string()) throw usage_error("must be a text or a JSON list of texts", "--stop");
      options.stop_strings.push_back(one.get<std::string>());
    }
  }
  for (const auto& sentence : options.without_effect()) spdlog::info("{}", sentence);
  return options;
}

/// A model, ready to go on from texts and rows of ids.
class Generator {
 public:
  Generator(const GenerateFlags& flags, const CLI::App& app)
      : flags_(flags), folder_(load(flags.model)), options_(effective_options(flags, folder_, app)) {
    bart_ = dynamic_cast<const models::BartModel*>(folder_.model.get());
    if (bart_ != nullptr) {
      const auto& config = bart_->config();
      checkpoint::Task task{"", config.decoder_start_token_id, 0};
      if (!flags.task.empty()) {
        task = folder_.training.task(flags.task);
      } else if (!folder_.training.tasks.empty()) {
        task = folder_.training.tasks.front();
      }
      if (options_.decoder_start_token_id < 0 || (app.get_option("--decoder-start-token-id")->count() == 0 &&
                                                  (!flags.task.empty() || !folder_.training.tasks.empty())))
        options_.decoder_start_token_id = task.start_id;
      segment_ = flags.segment > 0              ? flags.segment
                 : folder_.training.segment > 0 ? folder_.training.segment
                                                : config.max_position_embeddings;
      if (segment_ > config.max_position_embeddings && !config.positions.endless())
        throw usage_error(fmt::format("--segment {} is longer than the position table of {}", segment_,
                                      config.max_position_embeddings));
      limit_ = config.positions.endless() ? models::kNoEnd : config.max_position_embeddings;
      // What was learnt from segments is asked for a segment; else the reference's own default stands.
      if (options_.max_new_tokens < 0 && options_.max_length < 0 && folder_.training.segment > 0)
        options_.max_new_tokens = std::min(limit_, segment_ + 1);
    } else {
      if (!flags.task.empty()) folder_.training.task(flags.task);  // says that there are none
      const auto& config = dynamic_cast<const models::Gpt2Model&>(*folder_.model).config();
      limit_ = config.positions.endless() ? models::kNoEnd : config.n_positions;
    }
    if (options_.max_new_tokens < 0 && options_.max_length < 0)
      spdlog::info("at most {} new tokens: give --max-new-tokens for more", GenerationOptions::kDefaultNewTokens);
    options_.validate(folder_.model->vocab_size());
    if (options_.decoder_start_token_id >= folder_.model->vocab_size())
      throw usage_error(fmt::format("id {} is outside the vocabulary of {}", options_.decoder_start_token_id,
                                    folder_.model->vocab_size()),
                        "--decoder-start-token-id");
  }

  const GenerationOptions& options() const { return options_; }
  std::shared_ptr<const text::Tokenizer> tokenizer() const { return folder_.tokenizer(); }

  /// A text as a row of ids: with the special tokens that a stock encoder-decoder was trained with.
  IdRow row_of(const std::string& text, const std::string& place) const {
    const bool stock = bart_ != nullptr && folder_.training.tasks.empty();
    const auto ids =
        folder_.need_tokenizer().encode_ids(text, {.add_special = stock, .parse_special = flags_.parse_special});
    IdRow row(ids.begin(), ids.end());
    if (row.empty() && bart_ == nullptr && options_.bos_token_id >= 0) row = {options_.bos_token_id};
    if (row.empty()) throw input_error("the text is empty", place);
    return row;
  }

  bool reads_segments() const { return bart_ != nullptr && bart_->memory != nullptr; }

  std::unique_ptr<generate::Decoder> decoder(std::vector<IdRow> rows, const std::string& place) const {
    if (reads_segments() && rows.size() == 1 && static_cast<int64_t>(rows[0].size()) > segment_)
      return from_segments(rows[0]);
    for (IdRow& row : rows) {
      const auto length = static_cast<int64_t>(row.size());
      if (length <= limit_) continue;
      if (!flags_.truncate) {
        throw input_error(fmt::format("{} tokens, but the position table ends at {}", length, limit_), place,
                          "give --truncate to cut it, or a model with a memory, which reads any length");
      }
      // The end of a source carries its closing token; of a prompt the end is what is gone on from.
      const int64_t room = bart_ != nullptr ? limit_ : std::max<int64_t>(1, limit_ - wanted_new());
      if (bart_ != nullptr) {
        row.erase(row.begin() + room - 1, row.end() - 1);
      } else {
        row.erase(row.begin(), row.end() - room);
      }
    }
    generate::PromptOptions prompts{.decoder_start_id = options_.decoder_start_token_id};
    if (options_.pad_token_id >= 0) prompts.pad_id = options_.pad_token_id;
    return generate::make_decoder(*folder_.model, rows, prompts);
  }

  /// Rows that one batch may hold: a memory reads a text of several segments alone.
  bool fits_batch(const IdRow& row) const { return !reads_segments() || static_cast<int64_t>(row.size()) <= segment_; }

 private:
  int64_t wanted_new() const {
    return options_.max_new_tokens >= 0 ? options_.max_new_tokens : GenerationOptions::kDefaultNewTokens;
  }

  std::unique_ptr<generate::Decoder> from_segments(const IdRow& row) const {
    const auto device = bart_->shared->weight.device();
    models::EncoderOutput encoded;
    for (size_t first = 0; first < row.size(); first += static_cast<size_t>(segment_)) {
      const size_t last = std::min(row.size(), first + static_cast<size_t>(segment_));
      const IdRow part(row.begin() + static_cast<std::ptrdiff_t>(first),
                       row.begin() + static_cast<std::ptrdiff_t>(last));
      models::EncodeInput input;
      input.ids = at::tensor(part, at::kLong).unsqueeze(0).to(device);
      input.memory = encoded.memory;
      encoded = bart_->encode(input);
    }
    return generate::make_decoder(*bart_, std::move(encoded),
                                  at::full({1, 1}, options_.decoder_start_token_id, at::kLong));
  }

  const GenerateFlags& flags_;
  checkpoint::ModelFolder folder_;
  GenerationOptions options_;
  const models::BartModel* bart_ = nullptr;
  int64_t segment_ = 0, limit_ = 0;
};

Json to_json(const generate::Generations& result, int64_t pad, bool with_text) {
  Json json = {{"sequences", result.padded(pad)},
               {"new_tokens", Json::array()},
               {"scores", Json::array()},
               {"finish_reasons", Json::array()}};
  if (with_text) json["texts"] = Json::array();
  for (const auto& item : result.items) {
    for (const auto& hypothesis : item) {
      json["new_tokens"].push_back(hypothesis.ids);
      json["scores"].push_back(hypothesis.score);
      json["finish_reasons"].push_back(generate::finish_name(hypothesis.finish));
      if (with_text) json["texts"].push_back(hypothesis.text);
    }
  }
  return json;
}

int run_one(const GenerateFlags& flags, const Generator& generator) {
  std::vector<IdRow> rows;
  if (!flags.input_ids.empty()) {
    rows = parse_ids(flags.input_ids);
  } else {
    const std::string text = !flags.text.empty() ? flags.text
                             : flags.file == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {})
                                                 : read_file(flags.file);
    rows = {generator.row_of(text, flags.file.empty() ? "--text" : flags.file)};
  }
  const auto decoder = generator.decoder(rows, flags.input_ids.empty() ? "the text" : "--input-ids");
  generate::Request request{.encoder_ids = rows, .tokenizer = generator.tokenizer()};
  const bool stream = flags.stream && !flags.json;
  if (stream) {
    if (!request.tokenizer || decoder->items() != 1 || generator.options().num_beams > 1 ||
        generator.options().num_return_sequences > 1)
      throw usage_error("--stream needs a tokenizer, one text and one sequence without beams", "command line");
    watch_interrupts();
    request.on_step = [](const std::vector<generate::NewToken>& tokens) {
      for (const auto& token : tokens) std::cout << token.text << std::flush;
      return !interrupted();
    };
  }
  const auto result = generate::generate(*decoder, generator.options(), request);
  if (flags.json) {
    print_json(to_json(result, generator.options().filler(), request.tokenizer != nullptr));
  } else if (stream) {
    print_line("");
  } else {
    for (const auto& item : result.items) {
      for (const auto& hypothesis : item) print_line(request.tokenizer ? hypothesis.text : Json(hypothesis.ids).dump());
    }
  }
  return 0;
}

/// A text on one line: line breaks are written \n, a backslash \\.
std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : text) line += c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\\' ? "\\\\" : std::string(1, c);
  return line;
}

/// Results of --lines, one line each, in a file that a stopped run goes on with.
class LineWriter {
 public:
  /// `settings` decide the results: a file that was begun with others is not gone on with.
  /// Goes on at the beginning of a batch of `batch` lines, so that every byte is as if it had never stopped.
  LineWriter(const std::string& path, const Json& settings, int64_t batch) : path_(path) {
    if (path.empty()) return;
    const std::string beside = path + ".settings.json";
    if (fs::exists(path)) {
      if (!fs::exists(beside) || read_json(beside) != settings) {
        throw usage_error("was begun with other settings, or is something else", path,
                          "give another --output, or remove the file");
      }
      const std::string text = read_file(path);
      done_ = std::count(text.begin(), text.end(), '\n') / batch * batch;
      size_t whole = 0;
      for (int64_t line = 0; line < done_; ++line) whole = text.find('\n', whole) + 1;
      fs::resize_file(path, whole);
      if (done_ > 0) spdlog::info("{} has {} lines: going on with the next", path, format_count(done_));
    } else {
      write_json(beside, settings);
    }
    out_.open(path, std::ios::app | std::ios::binary);
    if (!out_) throw input_error("cannot be written", path);
  }
  int64_t done() const { return done_; }
  void write(const std::string& line) {
    if (path_.empty()) {
      print_line(line);
      return;
    }
    out_ << line << '\n';
    out_.flush();
    if (!out_) throw internal_error("cannot be written", path_, "is the disk full?");
  }

 private:
  std::string path_;
  std::ofstream out_;
  int64_t done_ = 0;
};

int run_lines(const GenerateFlags& flags, const Generator& generator) {
  if (flags.batch < 1) throw usage_error(fmt::format("--batch {} is not a number of lines", flags.batch));
  std::ifstream file;
  if (flags.lines != "-") {
    file.open(flags.lines, std::ios::binary);
    if (!file || fs::is_directory(flags.lines)) throw input_error("cannot be read", flags.lines);
  }
  std::istream& in = flags.lines == "-" ? std::cin : file;
  const Json settings = {{"model", fs::weakly_canonical(flags.model.model).string()},
                         {"lines", flags.lines == "-" ? flags.lines : fs::weakly_canonical(flags.lines).string()},
                         {"options", options_to_json(generator.options())},
                         {"segment", flags.segment},
                         {"task", flags.task},
                         {"dtype", flags.model.dtype},
                         {"parse_special", flags.parse_special},
                         {"truncate", flags.truncate},
                         {"json", flags.json}};
  LineWriter writer(flags.output, settings, flags.batch);
  watch_interrupts();
  int64_t total = 0;
  if (flags.lines != "-") {
    for (std::string line; std::getline(in, line);) ++total;
    in.clear();
    in.seekg(0);
  }
  Progress progress("generating", total, "lines", writer.done());
  int64_t number = 0;
  std::vector<IdRow> rows;
  std::vector<int64_t> numbers;
  const auto flush = [&] {
    if (rows.empty()) return;
    const std::string place = fmt::format("{}, line {}", flags.lines, numbers.front() + 1);
    const auto decoder = generator.decoder(rows, place);
    const auto result = generate::generate(
        *decoder, generator.options(), {.numbers = numbers, .encoder_ids = rows, .tokenizer = generator.tokenizer()});
    for (size_t i = 0; i < result.items.size(); ++i) {
      generate::Generations one;
      one.start = {result.start[i]};
      one.items = {result.items[i]};
      if (flags.json) {
        Json json = to_json(one, generator.options().filler(), generator.tokenizer() != nullptr);
        json["line"] = numbers[i] + 1;
        writer.write(json.dump(-1, ' ', false, Json::error_handler_t::replace));
        continue;
      }
      std::string line;  // several sequences are set apart by tabs
      for (const auto& hypothesis : one.items[0]) {
        if (!line.empty()) line += '\t';
        line += generator.tokenizer() ? one_line(hypothesis.text) : Json(hypothesis.ids).dump();
      }
      writer.write(line);
    }
    rows.clear();
    numbers.clear();
    progress.update(number);
  };
  for (std::string line; !interrupted() && std::getline(in, line); ++number) {
    if (number < writer.done()) continue;
    if (line.ends_with('\r')) line.pop_back();
    const std::string place = fmt::format("{}, line {}", flags.lines, number + 1);
    const bool is_ids = line.starts_with('[') && Json::accept(line);
    IdRow row = is_ids ? parse_row(Json::parse(line), place) : generator.row_of(line, place);
    if (!generator.fits_batch(row)) flush();
    rows.push_back(std::move(row));
    numbers.push_back(number);
    if ((number + 1) % flags.batch == 0 || !generator.fits_batch(rows.back())) {
      ++number;  // what is done now, for the progress line
      flush();
      --number;
    }
  }
  if (!interrupted()) flush();
  return interrupted() ? 1 : 0;
}

int run(const GenerateFlags& flags, const CLI::App& app) {
  const int given = !flags.input_ids.empty() + !flags.text.empty() + !flags.file.empty() + !flags.lines.empty();
  require("--model", flags.model.model);
  if (given != 1)
    throw usage_error("give exactly one of --input-ids, --text, --file and --lines", "command line",
                      "see palimpsest generate --help");
  if (!flags.output.empty() && flags.lines.empty()) throw usage_error("--output belongs to --lines", "command line");
  const at::NoGradGuard no_grad;
  const Generator generator(flags, app);
  return flags.lines.empty() ? run_one(flags, generator) : run_lines(flags, generator);
}

}  // namespace

Command generate_command() {
  return {"generate", "greedy decoding, beam search or sampling from text or ids",
          "palimpsest generate --model DIR --lines sources.txt --output results.txt --num-beams 4", [](CLI::App& app) {
            auto flags = std::make_shared<GenerateFlags>();
            options_to_flags(*flags, app);
            return [flags, &app] { return run(*flags, app); };
          }};
}

}  // namespace palimpsest::app
