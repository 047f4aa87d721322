// SPDX-License-Identifier: Apache-2.0
// What to generate and when to stop, under the names that Hugging Face's generation uses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "palimpsest/core/json.h"

namespace palimpsest::generate {

/// The lengths of one call, in tokens of a row of ids (its start or prompt, padding included, and what is new).
struct Lengths {
  int64_t prompt = 0;        ///< of start_ids
  int64_t max_new = 0;       ///< new tokens at most
  int64_t max_total = 0;     ///< prompt + max_new
  int64_t min_total = 0;     ///< no end token before the row is that long (min_length)
  int64_t min_new = 0;       ///< no end token before that many new ones
  bool max_is_given = true;  ///< false where nobody asked for a limit and the default stands
};

/// Defaults are those of transformers 5.24. A list of ids that is empty and an id of -1 stand for "none".
struct GenerationOptions {
  int64_t max_new_tokens = -1;  ///< -1: max_length, and without that kDefaultNewTokens
  int64_t max_length = -1;      ///< of the whole row; -1: none
  int64_t min_new_tokens = 0;
  int64_t min_length = 0;
  std::vector<std::string> stop_strings = {};

  int64_t num_beams = 1;
  int64_t num_return_sequences = 1;
  double length_penalty = 1.0;
  std::string early_stopping = "false";  ///< false | true | never

  bool do_sample = false;
  double temperature = 1.0;  ///< 0: the most probable token, as without do_sample
  int64_t top_k = 50;        ///< 0: no limit
  double top_p = 1.0;
  double min_p = 0.0;
  double typical_p = 1.0;
  double epsilon_cutoff = 0.0;
  double eta_cutoff = 0.0;
  int64_t seed = 0;

  double repetition_penalty = 1.0;
  int64_t no_repeat_ngram_size = 0;
  int64_t encoder_no_repeat_ngram_size = 0;
  std::string bad_words_ids = "";  ///< JSON: a list of lists of ids
  std::vector<int64_t> suppress_tokens = {};
  std::vector<int64_t> begin_suppress_tokens = {};
  int64_t forced_bos_token_id = -1;
  std::vector<int64_t> forced_eos_token_id = {};
  bool renormalize_logits = false;

  std::vector<int64_t> eos_token_id = {};  ///< any of them ends a sequence; none: only lengths and stop strings do
  int64_t pad_token_id = -1;               ///< fills the rows of Generations::padded; -1: the first end token, else 0
  int64_t bos_token_id = -1;               ///< read for whoever makes the prompt; the search does not use it
  int64_t decoder_start_token_id = -1;

  static constexpr int64_t kDefaultNewTokens = 20;

  static void fields(auto& o, auto&& field) {
    field("max_new_tokens", o.max_new_tokens, "new tokens at most (-1: what max_length leaves; neither given: 20)");
    field("max_length", o.max_length, "tokens of the whole row at most, start or prompt included (-1: no such limit)");
    field("min_new_tokens", o.min_new_tokens, "no end token before that many new tokens");
    field("min_length", o.min_length, "no end token before the whole row has that many tokens");
    field("stop_strings", o.stop_strings, "texts that end a sequence and are left out of it");
    field("num_beams", o.num_beams, "beams of beam search (1: none)");
    field("num_return_sequences", o.num_return_sequences, "sequences given for each input");
    field("length_penalty", o.length_penalty, "beam scores are divided by length to this power: above 0 favours long");
    field("early_stopping", o.early_stopping,
          "when beams stop: true: num_beams are done | false: likely | never: surely");
    field("do_sample", o.do_sample, "draw tokens instead of taking the most probable ones");
    field("temperature", o.temperature, "logits are divided by it before drawing (0: no drawing)");
    field("top_k", o.top_k, "draw from that many most probable tokens (0: all)");
    field("top_p", o.top_p, "draw from the fewest tokens that hold this share of the probability");
    field("min_p", o.min_p, "draw from tokens with at least this share of the highest probability");
    field("typical_p", o.typical_p, "draw from the tokens nearest to the expected surprise that hold this share");
    field("epsilon_cutoff", o.epsilon_cutoff, "draw from tokens at least that probable (0: off)");
    field("eta_cutoff", o.eta_cutoff, "the same with a bound that falls where the choice is open (0: off)");
    field("seed", o.seed, "of all draws: the same text at any batch size");
    field("repetition_penalty", o.repetition_penalty, "above 1: tokens already in the row become less probable");
    field("no_repeat_ngram_size", o.no_repeat_ngram_size, "no run of that many tokens comes twice (0: off)");
    field("encoder_no_repeat_ngram_size", o.encoder_no_repeat_ngram_size, "nor one that the input holds (0: off)");
    field("bad_words_ids", o.bad_words_ids, "token sequences that never come, as JSON: [[5],[6,7]]");
    field("suppress_tokens", o.suppress_tokens, "tokens that never come");
    field("begin_suppress_tokens", o.begin_suppress_tokens, "tokens that do not come first");
    field("forced_bos_token_id", o.forced_bos_token_id, "the token after a start of one token (-1: none)");
    field("forced_eos_token_id", o.forced_eos_token_id, "the last token where the length ends a sequence");
    field("renormalize_logits", o.renormalize_logits, "make probabilities sum to 1 again after all rules");
    field("eos_token_id", o.eos_token_id, "tokens that end a sequence");
    field("pad_token_id", o.pad_token_id, "fills up shorter rows (-1: the first end token)");
    field("bos_token_id", o.bos_token_id, "begins a prompt that would be empty (-1: the model's)");
    field("decoder_start_token_id", o.decoder_start_token_id, "begins the decoder's row (-1: the model's)");
  }

  /// Reads a Hugging Face generation_config.json; null is "not given". A wrong type or value is an input error that
  /// names key and source. Keys that can change the output and are not obeyed here, and keys that nobody knows, are
  /// named in `warnings` (a warning of the log where that is null); keys that change no output are passed over.
  static GenerationOptions from_generation_config(const Json& json, const std::string& source,
                                                  std::vector<std::string>* warnings = nullptr);

  /// What fills up shorter rows: pad_token_id, else the first end token, else 0.
  int64_t filler() const;
  /// True where tokens are drawn: do_sample with a temperature above 0.
  bool samples() const { return do_sample && temperature > 0; }
  /// The parsed bad_words_ids; a usage error where it is no list of lists of ids.
  std::vector<std::vector<int64_t>> bad_words() const;

  /// A usage error for the first value out of range or combination that cannot be met, before any work.
  /// `vocab_size`: ids named by the options must lie below it.
  void validate(int64_t vocab_size) const;
  /// The lengths for rows that start with `prompt` tokens of a model whose rows may grow to `longest` tokens. A usage
  /// error where they cannot be met: it gives limit, prompt and asked length.
  Lengths lengths(int64_t prompt, std::optional<int64_t> longest) const;
  /// What was given and has no effect beside the rest (a temperature without do_sample, …), one sentence each.
  std::vector<std::string> without_effect() const;
};

}  // namespace palimpsest::generate
