// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/generate/options.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "palimpsest/core/error.h"
#include "palimpsest/core/log.h"
#include "palimpsest/core/options.h"

namespace palimpsest::generate {

namespace {

// What a key outside of GenerationOptions means to us.
struct Neutral {
  const char* key;
  Json value;  // the value, besides null, with which the reference does nothing
};

const std::vector<Neutral>& unsupported() {
  static const std::vector<Neutral> list = {{"encoder_repetition_penalty", 1.0},
                                            {"num_beam_groups", 1},
                                            {"diversity_penalty", 0.0},
                                            {"penalty_alpha", 0.0},
                                            {"guidance_scale", 1.0},
                                            {"top_h", nullptr},
                                            {"sequence_bias", nullptr},
                                            {"exponential_decay_length_penalty", nullptr},
                                            {"remove_invalid_values", false},
                                            {"watermarking_config", nullptr},
                                            {"token_healing", false},
                                            {"force_words_ids", nullptr},
                                            {"constraints", nullptr},
                                            {"dola_layers", nullptr},
                                            {"max_time", nullptr},
                                            {"force_bos_token_to_be_generated", false}};
  return list;
}

// Caches, speed, outputs beside the tokens, book-keeping.
bool changes_no_output(const std::string& key) {
  static const std::set<std::string> names = {"use_cache",
                                              "cache_implementation",
                                              "cache_config",
                                              "max_cache_len",
                                              "return_legacy_cache",
                                              "output_attentions",
                                              "output_hidden_states",
                                              "output_scores",
                                              "output_logits",
                                              "return_dict_in_generate",
                                              "use_mtp",
                                              "is_assistant",
                                              "num_assistant_tokens",
                                              "num_assistant_tokens_schedule",
                                              "assistant_confidence_threshold",
                                              "prompt_lookup_num_tokens",
                                              "max_matching_ngram_size",
                                              "assistant_early_exit",
                                              "assistant_lookbehind",
                                              "target_lookbehind",
                                              "assistant_ensemble_weight",
                                              "speculation_type",
                                              "compile_config",
                                              "disable_compile",
                                              "continuous_batching_config",
                                              "low_memory",
                                              "prefill_chunk_size",
                                              "transformers_version",
                                              "_from_model_config",
                                              "_commit_hash"};
  return names.contains(key);
}

// The value as its field takes it: the reference allows more types than one field has.
Json as_field(const std::string& key, const Json& value) {
  if (key == "early_stopping" && value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (key == "bad_words_ids" && value.is_array()) return value.dump();
  return value;
}

Error out_of_range(const char* name, double value, const char* range) {
  return usage_error(fmt::format("{} is {}", name, value), "", fmt::format("give {}", range));
}
void at_least(const char* name, int64_t value, int64_t least) {
  if (value < least) throw usage_error(fmt::format("{} is {}", name, value), "", fmt::format("give {} or more", least));
}
void in_vocabulary(const char* name, int64_t id, int64_t vocab_size) {
  if (id >= 0 && id < vocab_size) return;
  throw usage_error(fmt::format("{} names the token {}, but the model's vocabulary has {}", name, id, vocab_size), "",
                    fmt::format("give ids from 0 to {}", vocab_size - 1));
}
void in_vocabulary(const char* name, const std::vector<int64_t>& ids, int64_t vocab_size) {
  for (const int64_t id : ids) in_vocabulary(name, id, vocab_size);
}
bool holds(const std::vector<int64_t>& list, int64_t id) {
  return std::find(list.begin(), list.end(), id) != list.end();
}

void check_forced(const char* name, const std::vector<int64_t>& forced, const char* list_name,
                  const std::vector<int64_t>& suppressed) {
  if (forced.empty()) return;
  const bool all = std::all_of(forced.begin(), forced.end(), [&](int64_t id) { return holds(suppressed, id); });
  if (!all) return;
  throw usage_error(fmt::format("{} and {} both name the token {}: nothing could come", name, list_name, forced[0]), "",
                    "take it out of one of them");
}

}  // namespace

GenerationOptions GenerationOptions::from_generation_config(const Json& json, const std::string& source,
                                                            std::vector<std::string>* warnings) {
  if (!json.is_object()) throw input_error("expected an object of generation options", source);
  GenerationOptions options;
  const auto fields = fields_of(options);
  auto warn = [&](const std::string& text) {
    if (warnings) {
      warnings->push_back(text);
    } else {
      spdlog::warn("{}", text);
    }
  };
  std::vector<std::string> known;
  for (const auto& field : fields) known.push_back(field.name);
  for (const auto& [key, value] : json.items()) {
    if (value.is_null() || changes_no_output(key)) continue;
    const auto field = std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return f.name == key; });
    if (field != fields.end() && key != "seed") {
      try {
        field->set(as_field(key, value), source);
      } catch (const Error& e) {
        throw input_error(e.problem(), source);
      }
      continue;
    }
    const auto other = std::find_if(unsupported().begin(), unsupported().end(),
                                    [&](const Neutral& candidate) { return candidate.key == key; });
    if (other != unsupported().end()) {
      if (value != other->value) {
        warn(fmt::format("{}: \"{}\" is {}, which is not supported and has no effect here", source, key,
                         printable(value.dump())));
      }
      continue;
    }
    const std::string nearest = nearest_name(key, known);
    warn(fmt::format("{}: unknown key \"{}\" has no effect{}", source, printable(key),
                     nearest.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", nearest)));
  }
  try {  // ranges are checked by validate(), which knows the vocabulary
    check_choice("early_stopping", options.early_stopping, {"false", "true", "never"});
    options.bad_words();
  } catch (const Error& e) {
    throw input_error(e.problem(), source, e.fix());
  }
  return options;
}

std::vector<std::vector<int64_t>> GenerationOptions::bad_words() const {
  if (bad_words_ids.empty()) return {};
  const Json json = parse_json(bad_words_ids, "bad_words_ids");
  const auto wrong = [&](const Json& at) {
    return usage_error(fmt::format("bad_words_ids holds {}", printable(at.dump())), "",
                       "give a list of lists of token ids, none of them empty: [[5],[6,7]]");
  };
  if (!json.is_array()) throw wrong(json);
  std::vector<std::vector<int64_t>> words;
  for (const auto& word : json) {
    if (!word.is_array() || word.empty()) throw wrong(word);
    auto& ids = words.emplace_back();
    for (const auto& id : word) {
      const bool whole =
          id.is_number_integer() && !(id.is_number_unsigned() && id.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
      if (!whole || id.get<int64_t>() < 0) throw wrong(word);
      ids.push_back(id.get<int64_t>());
    }
  }
  return words;
}

int64_t GenerationOptions::filler() const {
  if (pad_token_id >= 0) return pad_token_id;
  return eos_token_id.empty() ? 0 : eos_token_id.front();
}

void GenerationOptions::validate(int64_t vocab_size) const {
  at_least("max_new_tokens", max_new_tokens, -1);
  at_least("max_length", max_length, -1);
  at_least("min_new_tokens", min_new_tokens, 0);
  at_least("min_length", min_length, 0);
  at_least("num_beams", num_beams, 1);
  at_least("num_return_sequences", num_return_sequences, 1);
  at_least("top_k", top_k, 0);
  at_least("no_repeat_ngram_size", no_repeat_ngram_size, 0);
  at_least("encoder_no_repeat_ngram_size", encoder_no_repeat_ngram_size, 0);
  at_least("pad_token_id", pad_token_id, -1);
  check_choice("early_stopping", early_stopping, {"false", "true", "never"});
  // Written so that NaN fails too.
  if (!(temperature >= 0) || std::isinf(temperature)) throw out_of_range("temperature", temperature, "0 or more");
  if (!(top_p >= 0 && top_p <= 1)) throw out_of_range("top_p", top_p, "a share from 0 to 1");
  if (!(min_p >= 0 && min_p <= 1)) throw out_of_range("min_p", min_p, "a share from 0 to 1");
  if (!(typical_p > 0 && typical_p <= 1)) throw out_of_range("typical_p", typical_p, "a share above 0, up to 1");
  if (!(epsilon_cutoff >= 0 && epsilon_cutoff < 1))
    throw out_of_range("epsilon_cutoff", epsilon_cutoff, "a probability from 0 to below 1");
  if (!(eta_cutoff >= 0 && eta_cutoff < 1))
    throw out_of_range("eta_cutoff", eta_cutoff, "a probability from 0 to below 1");
  if (!(repetition_penalty > 0) || std::isinf(repetition_penalty))
    throw out_of_range("repetition_penalty", repetition_penalty, "a number above 0 (1: no penalty)");
  if (!std::isfinite(length_penalty)) throw out_of_range("length_penalty", length_penalty, "a finite number");

  if (num_beams > 1 && num_return_sequences > num_beams) {
    throw usage_error(fmt::format("num_return_sequences {} is more than num_beams {}", num_return_sequences, num_beams),
                      "", "give as many beams, or ask for fewer sequences");
  }
  if (num_beams == 1 && num_return_sequences > 1 && !samples()) {
    throw usage_error(
        fmt::format("num_return_sequences is {}, but without beams and without sampling there is one answer only",
                    num_return_sequences),
        "", "give num_beams, or do_sample with a temperature above 0");
  }
  if (max_new_tokens >= 0 && min_new_tokens > max_new_tokens) {
    throw usage_error(fmt::format("min_new_tokens {} is more than max_new_tokens {}", min_new_tokens, max_new_tokens));
  }
  for (const auto& stop : stop_strings) {
    if (stop.empty()) throw usage_error("an empty stop string would end everything at once", "", "leave it out");
    if (const auto byte = invalid_utf8(stop))
      throw usage_error(fmt::format("the stop string \"{}\" is not UTF-8 at byte {}", printable(stop), *byte));
  }

  if (forced_bos_token_id != -1) in_vocabulary("forced_bos_token_id", forced_bos_token_id, vocab_size);
  in_vocabulary("forced_eos_token_id", forced_eos_token_id, vocab_size);
  in_vocabulary("suppress_tokens", suppress_tokens, vocab_size);
  in_vocabulary("begin_suppress_tokens", begin_suppress_tokens, vocab_size);
  in_vocabulary("eos_token_id", eos_token_id, vocab_size);
  for (const auto& word : bad_words()) in_vocabulary("bad_words_ids", word, vocab_size);
  if (forced_bos_token_id != -1)
    check_forced("forced_bos_token_id", {forced_bos_token_id}, "suppress_tokens", suppress_tokens);
  check_forced("forced_eos_token_id", forced_eos_token_id, "suppress_tokens", suppress_tokens);
}

Lengths GenerationOptions::lengths(int64_t prompt, std::optional<int64_t> longest) const {
  Lengths lengths{.prompt = prompt, .min_total = min_length, .min_new = min_new_tokens};
  std::string asked;
  if (max_new_tokens >= 0) {
    lengths.max_new = max_new_tokens;
    asked = fmt::format("max_new_tokens {}", max_new_tokens);
  } else if (max_length >= 0) {
    if (max_length < prompt) {
      throw usage_error(
          fmt::format("max_length {} is less than the {} tokens that each row starts with", max_length, prompt), "",
          "give max_new_tokens, which counts new tokens alone, or a shorter prompt");
    }
    lengths.max_new = max_length - prompt;
    asked = fmt::format("max_length {}", max_length);
  } else {
    lengths.max_new = kDefaultNewTokens;
    if (longest) lengths.max_new = std::max<int64_t>(0, std::min(lengths.max_new, *longest - prompt));
    lengths.max_is_given = false;
    asked = fmt::format("the default of {} new tokens", lengths.max_new);
  }
  // As in the reference, min_new_tokens takes the place of min_length.
  if (min_new_tokens > 0) lengths.min_total = prompt + min_new_tokens;
  lengths.max_total = prompt + lengths.max_new;
  if (longest && prompt > *longest) {
    throw usage_error(
        fmt::format("the rows start with {} tokens, but the model's position table ends at {}", prompt, *longest), "",
        fmt::format("give a prompt of {} tokens or less", *longest));
  }
  if (longest && lengths.max_total > *longest) {
    throw usage_error(fmt::format("{} after {} {} makes rows of {} tokens, but the model's position table ends at {}",
                                  asked, prompt, prompt == 1 ? "token" : "tokens", lengths.max_total, *longest),
                      "", fmt::format("give max_new_tokens {} or less, or a shorter prompt", *longest - prompt));
  }
  if (lengths.min_new > lengths.max_new) {
    throw usage_error(
        fmt::format("min_new_tokens {} is more than {} allows: {}", min_new_tokens, asked, lengths.max_new), "",
        fmt::format("give max_new_tokens {} or more", min_new_tokens));
  }
  if (lengths.min_total > lengths.max_total) {
    throw usage_error(fmt::format("min_length {} is more than {} allows: {} tokens in all", lengths.min_total, asked,
                                  lengths.max_total),
                      "", fmt::format("give max_new_tokens {} or more", lengths.min_total - prompt));
  }
  return lengths;
}

std::vector<std::string> GenerationOptions::without_effect() const {
  std::vector<std::string> list;
  const GenerationOptions plain;
  auto add = [&](bool given, const char* name, const char* without) {
    if (given) list.push_back(fmt::format("{} has no effect without {}", name, without));
  };
  if (!do_sample) {
    add(temperature != plain.temperature && temperature != 0, "temperature", "do_sample");
    add(top_k != plain.top_k, "top_k", "do_sample");
    add(top_p != plain.top_p, "top_p", "do_sample");
    add(min_p != plain.min_p, "min_p", "do_sample");
    add(typical_p != plain.typical_p, "typical_p", "do_sample");
    add(epsilon_cutoff != plain.epsilon_cutoff, "epsilon_cutoff", "do_sample");
    add(eta_cutoff != plain.eta_cutoff, "eta_cutoff", "do_sample");
  }
  if (num_beams == 1) {
    add(length_penalty != plain.length_penalty, "length_penalty", "num_beams above 1");
    add(early_stopping != plain.early_stopping, "early_stopping", "num_beams above 1");
  }
  if (eos_token_id.empty()) {
    add(min_new_tokens > 0, "min_new_tokens", "eos_token_id");
    add(min_length > 0, "min_length", "eos_token_id");
  }
  if (max_new_tokens >= 0 && max_length >= 0) list.emplace_back("max_length has no effect beside max_new_tokens");
  if (min_new_tokens > 0 && min_length > 0) list.emplace_back("min_length has no effect beside min_new_tokens");
  return list;
}

}  // namespace palimpsest::generate
