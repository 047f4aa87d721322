// SPDX-License-Identifier: Apache-2.0
// Rules that change the scores of the next token, each equal to the processor or warper of transformers 5.24, and the
// list of those that some options ask for, in the reference's order.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "palimpsest/generate/options.h"

namespace palimpsest::generate {

/// Rows to score: what a rule reads and changes.
struct ScoredRows {
  at::Tensor scores;                          ///< [R, V] float32 or float64 on the CPU, contiguous; changed in place
  std::vector<std::span<const int64_t>> ids;  ///< [R]: each row so far, start or prompt (with its padding) included
  std::vector<int64_t> items;                 ///< [R]: which item each row belongs to
};

/// One rule. Scores are logits, or log-probabilities in beam search; -inf is what cannot come. Rows do not influence
/// each other. Never changes after it is made.
class LogitsRule {
 public:
  virtual ~LogitsRule() = default;
  virtual std::string name() const = 0;
  /// False where the rule leaves rows of that many ids alone.
  virtual bool acts_at(int64_t length) const {
    (void)length;
    return true;
  }
  virtual void apply(ScoredRows& rows) const = 0;
};
using RulePointer = std::unique_ptr<const LogitsRule>;

/// Scores of tokens in the row: those above 0 are divided by `penalty`, others multiplied. The first
/// left_padding[item] ids of a row do not count.
RulePointer repetition_penalty_rule(double penalty, std::vector<int64_t> left_padding);
/// -inf for a token that would repeat a run of `size` ids of the row.
RulePointer no_repeat_ngram_rule(int64_t size);
/// -inf for a token that would complete a run of `size` ids that encoder_ids[item] holds.
RulePointer encoder_no_repeat_ngram_rule(int64_t size, std::vector<std::vector<int64_t>> encoder_ids);
/// -inf for the last token of a word whose other tokens end the row; words that are one end token alone do not count.
RulePointer bad_words_rule(std::vector<std::vector<int64_t>> words, const std::vector<int64_t>& eos);
/// -inf for `tokens` in rows shorter than `length` (min_length, min_new_tokens).
RulePointer ban_before_rule(std::string name, std::vector<int64_t> tokens, int64_t length);
/// 0 for `tokens` and -inf for the rest in rows of `length` ids (forced_bos_token_id, forced_eos_token_id).
RulePointer force_at_rule(std::string name, std::vector<int64_t> tokens, int64_t length);
/// -inf for `tokens`.
RulePointer suppress_rule(std::vector<int64_t> tokens);
/// -inf for `tokens` in rows of `length` ids.
RulePointer begin_suppress_rule(std::vector<int64_t> tokens, int64_t length);

/// Scores divided by `temperature` > 0.
RulePointer temperature_rule(double temperature);
/// The others leave the most probable tokens and set the rest to -inf, but never all: `keep` tokens stay at least.
/// Ties are as in the reference: top_k keeps all that equal the k-th; top_p keeps those of higher id.
RulePointer top_k_rule(int64_t k, int64_t keep = 1);
RulePointer top_p_rule(double p, int64_t keep = 1);
RulePointer min_p_rule(double p, int64_t keep = 1);
RulePointer typical_p_rule(double mass, int64_t keep = 1);
RulePointer epsilon_rule(double epsilon, int64_t keep = 1);
RulePointer eta_rule(double epsilon, int64_t keep = 1);
/// Log-probabilities of the scores.
RulePointer renormalize_rule();

/// Rules in the order in which they act.
class RuleList {
 public:
  void add(RulePointer rule) { rules_.push_back(std::move(rule)); }
  bool empty() const { return rules_.empty(); }
  /// True where some rule may change rows of that many ids; else there is no work, and no copy to make.
  bool acts_at(int64_t length) const;
  /// `rows.ids` have one length. Changes rows.scores in place.
  void apply(ScoredRows& rows) const;
  std::vector<std::string> names() const;

 private:
  std::vector<RulePointer> rules_;
};

/// What the rules know of a call beside its options.
struct RuleSetting {
  Lengths lengths;
  std::vector<int64_t> left_padding = {};              ///< per item; empty: none
  std::vector<std::vector<int64_t>> encoder_ids = {};  ///< per item; of encoder_no_repeat_ngram_size alone
};
/// A usage error where encoder_no_repeat_ngram_size is asked for and no encoder ids are given.
RuleList make_rules(const GenerationOptions& options, const RuleSetting& setting);

}  // namespace palimpsest::generate
