// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/generate/logits_rules.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "palimpsest/core/error.h"
#include "palimpsest/core/threads.h"
#include "palimpsest/generate/select.h"

namespace palimpsest::generate {

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// Calls body(row of T, number) for each row, on all threads.
template <class T, class Body>
void each_row(const at::Tensor& scores, const Body& body) {
  const int64_t width = scores.size(1);
  T* data = scores.data_ptr<T>();
  parallel_for(scores.size(0), 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) body(std::span<T>(data + r * width, static_cast<size_t>(width)), r);
  });
}
// The same for whichever type the scores have.
template <class Body>
void each_row(const at::Tensor& scores, const Body& body) {
  if (scores.scalar_type() == at::kDouble) {
    each_row<double>(scores, body);
  } else {
    each_row<float>(scores, body);
  }
}

template <class T>
void ban(std::span<T> row, int64_t token) {
  if (token >= 0 && token < static_cast<int64_t>(row.size())) row[static_cast<size_t>(token)] = static_cast<T>(kNever);
}

class RepetitionPenalty : public LogitsRule {
 public:
  RepetitionPenalty(double penalty, std::vector<int64_t> left_padding)
      : penalty_(penalty), left_padding_(std::move(left_padding)) {}
  std::string name() const override { return "repetition_penalty"; }
  void apply(ScoredRows& rows) const override {
    each_row(rows.scores, [&](auto row, int64_t r) {
      using T = typename decltype(row)::value_type;
      const T penalty = static_cast<T>(penalty_);
      const auto item = static_cast<size_t>(rows.items[static_cast<size_t>(r)]);
      const auto padding = left_padding_.empty() ? 0 : static_cast<size_t>(left_padding_[item]);
      const auto& ids = rows.ids[static_cast<size_t>(r)];
      std::vector<int64_t> seen(ids.begin() + static_cast<ptrdiff_t>(std::min(padding, ids.size())), ids.end());
      std::sort(seen.begin(), seen.end());
      seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
      for (const int64_t id : seen) {
        if (id < 0 || id >= static_cast<int64_t>(row.size())) continue;
        T& score = row[static_cast<size_t>(id)];
        score = score < 0 ? score * penalty : score / penalty;
      }
    });
  }

 private:
  double penalty_;
  std::vector<int64_t> left_padding_;
};

class NoRepeatNgram : public LogitsRule {
 public:
  explicit NoRepeatNgram(int64_t size) : size_(static_cast<size_t>(size)) {}
  std::string name() const override { return "no_repeat_ngram_size"; }
  bool acts_at(int64_t length) const override { return length >= static_cast<int64_t>(size_); }
  void apply(ScoredRows& rows) const override {
    each_row(rows.scores, [&](auto row, int64_t r) {
      const auto& ids = rows.ids[static_cast<size_t>(r)];
      if (ids.size() < size_) return;
      const auto suffix = ids.subspan(ids.size() + 1 - size_);  // what a run of `size_` would begin with
      for (size_t at = 0; at + size_ <= ids.size(); ++at)
        if (std::equal(suffix.begin(), suffix.end(), ids.begin() + static_cast<ptrdiff_t>(at)))
          ban(row, ids[at + size_ - 1]);
    });
  }

 private:
  size_t size_;
};

class EncoderNoRepeatNgram : public LogitsRule {
 public:
  EncoderNoRepeatNgram(int64_t size, const std::vector<std::vector<int64_t>>& encoder_ids)
      : size_(static_cast<size_t>(size)), next_(encoder_ids.size()) {
    for (size_t item = 0; item < encoder_ids.size(); ++item) {
      const auto& ids = encoder_ids[item];
      for (size_t at = 0; at + size_ <= ids.size(); ++at) {
        const auto begin = ids.begin() + static_cast<ptrdiff_t>(at);
        const auto end = begin + static_cast<ptrdiff_t>(size_ - 1);
        next_[item][std::vector<int64_t>(begin, end)].push_back(*end);
      }
    }
  }
  std::string name() const override { return "encoder_no_repeat_ngram_size"; }
  bool acts_at(int64_t length) const override { return length + 1 >= static_cast<int64_t>(size_); }
  void apply(ScoredRows& rows) const override {
    each_row(rows.scores, [&](auto row, int64_t r) {
      const auto& ids = rows.ids[static_cast<size_t>(r)];
      if (ids.size() + 1 < size_) return;
      const auto& table = next_[static_cast<size_t>(rows.items[static_cast<size_t>(r)])];
      const auto suffix = ids.subspan(ids.size() + 1 - size_);
      if (const auto found = table.find({suffix.begin(), suffix.end()}); found != table.end())
        for (const int64_t id : found->second) ban(row, id);
    });
  }

 private:
  size_t size_;
  std::vector<std::map<std::vector<int64_t>, std::vector<int64_t>>> next_;  // per item: what follows each run
};

class BadWords : public LogitsRule {
 public:
  BadWords(std::vector<std::vector<int64_t>> words, const std::vector<int64_t>& eos) : words_(std::move(words)) {
    std::erase_if(words_, [&](const auto& word) {
      return word.size() == 1 && std::find(eos.begin(), eos.end(), word[0]) != eos.end();
    });
  }
  std::string name() const override { return "bad_words_ids"; }
  void apply(ScoredRows& rows) const override {
    each_row(rows.scores, [&](auto row, int64_t r) {
      const auto& ids = rows.ids[static_cast<size_t>(r)];
      for (const auto& word : words_) {
        if (word.size() - 1 > ids.size()) continue;
        if (std::equal(word.begin(), word.end() - 1, ids.end() - static_cast<ptrdiff_t>(word.size() - 1)))
          ban(row, word.back());
      }
    });
  }

 private:
  std::vector<std::vector<int64_t>> words_;
};

// -inf for some tokens, at the lengths that `when` accepts.
class Ban : public LogitsRule {
 public:
  Ban(std::string name, std::vector<int64_t> tokens, std::function<bool(int64_t length)> when)
      : name_(std::move(name)), tokens_(std::move(tokens)), when_(std::move(when)) {}
  std::string name() const override { return name_; }
  bool acts_at(int64_t length) const override { return when_(length); }
  void apply(ScoredRows& rows) const override {
    each_row(rows.scores, [&](auto row, int64_t r) {
      if (!when_(static_cast<int64_t>(rows.ids[static_cast<size_t>(r)].size()))) return;
      for (const int64_t token : tokens_) ban(row, token);
    });
  }

 private:
  std::string name_;
  std::vector<int64_t> tokens_;
  std::function<bool(int64_t)> when_;
};

class ForceAt : public LogitsRule {
 public:
  ForceAt(std::string name, std::vector<int64_t> tokens, int64_t length)
      : name_(std::move(name)), tokens_(std::move(tokens)), length_(length) {}
  std::string name() const override { return name_; }
  bool acts_at(int64_t length) const override { return length == length_; }
  void apply(ScoredRows& rows) const override {
    each_row(rows.scores, [&](auto row, int64_t r) {
      using T = typename decltype(row)::value_type;
      if (!acts_at(static_cast<int64_t>(rows.ids[static_cast<size_t>(r)].size()))) return;
      std::fill(row.begin(), row.end(), static_cast<T>(kNever));
      for (const int64_t token : tokens_) row[static_cast<size_t>(token)] = 0;
    });
  }

 private:
  std::string name_;
  std::vector<int64_t> tokens_;
  int64_t length_;
};

// The rules of sampling: functions of the scores alone.

// A rule that is one function of the scores [R, V].
class ScoresRule : public LogitsRule {
 public:
  ScoresRule(std::string name, std::function<void(at::Tensor& scores)> change)
      : name_(std::move(name)), change_(std::move(change)) {}
  std::string name() const override { return name_; }
  void apply(ScoredRows& rows) const override { change_(rows.scores); }

 private:
  std::string name_;
  std::function<void(at::Tensor&)> change_;
};
template <class Change>
RulePointer scores_rule(const char* name, Change change) {
  return std::make_unique<ScoresRule>(name, std::move(change));
}

// -inf wherever the score is below `bound`.
template <class T>
void cut_below(std::span<T> row, T bound) {
  for (T& score : row)
    if (score < bound) score = static_cast<T>(kNever);
}

void top_k(at::Tensor& scores, int64_t k) {
  if (k >= scores.size(1)) return;
  each_row(scores, [&](auto row, int64_t) {
    using T = typename decltype(row)::value_type;
    cut_below<T>(row, kth_largest<T>(row, k));
  });
}

// How many tokens, nearest first, belong to the front of a row: the token of rank n does where take(mass of the ranks
// before it) holds, which stays false once it is. Arranges `order` so that the front stands first. Nothing is sorted: a
// coarse count by distance says where the front ends, and that place alone is looked at by halves. Linear in the width.
template <class T>
class Front {
 public:
  std::vector<int32_t>& order;
  std::span<const T> mass;  // of each token
  std::function<bool(double mass_before)> take;

  // distance(token) >= 0, and before(a, b) orders by it and then by anything that tells all tokens apart.
  template <class Distance, class Before>
  size_t count(const Distance& distance, const Before& before) const {
    if (order.size() <= kBins) return halve(0, order.size(), 0, before);
    const auto bin_of = [&](int32_t token) {
      const auto bin = distance(token) * static_cast<T>(kBinsPerUnit);
      return bin < static_cast<T>(kBins - 1) ? static_cast<size_t>(bin) : kBins - 1;
    };
    std::vector<double> sums(kBins);
    std::vector<size_t> sizes(kBins);
    for (const int32_t token : order) {
      const size_t bin = bin_of(token);
      sums[bin] += static_cast<double>(mass[static_cast<size_t>(token)]);
      ++sizes[bin];
    }
    size_t last = kBins, first_rank = 0, rank = 0;  // the last bin with a token of the front
    double sum = 0, before_last = 0;
    for (size_t bin = 0; bin < kBins && take(sum); ++bin) {
      if (sizes[bin] == 0) continue;
      last = bin, first_rank = rank, before_last = sum;
      rank += sizes[bin];
      sum += sums[bin];
    }
    if (last == kBins) return 0;
    std::vector<int32_t> arranged(order.size());
    size_t nearer = 0, there = first_rank, farther = first_rank + sizes[last];
    for (const int32_t token : order) {
      const size_t bin = bin_of(token);
      arranged[bin < last ? nearer++ : bin == last ? there++ : farther++] = token;
    }
    order = std::move(arranged);
    return halve(first_rank, first_rank + sizes[last], before_last, before);
  }

 private:
  static constexpr size_t kBins = 1024;
  static constexpr int kBinsPerUnit = 32;

  // The same for ranks [first, last), where `sum` is the mass before them.
  template <class Before>
  size_t halve(size_t first, size_t last, double sum, const Before& before) const {
    const auto begin = order.begin();
    while (last - first > 1) {
      const size_t middle = first + (last - first) / 2;
      std::nth_element(begin + static_cast<ptrdiff_t>(first), begin + static_cast<ptrdiff_t>(middle),
                       begin + static_cast<ptrdiff_t>(last), before);
      double half = 0;
      for (size_t i = first; i < middle; ++i) half += static_cast<double>(mass[static_cast<size_t>(order[i])]);
      if (take(sum + half)) {
        sum += half;
        first = middle;
      } else {
        last = middle;
      }
    }
    return first + (last > first && take(sum) ? 1 : 0);
  }
};

template <class T>
void top_p_row(std::span<T> row, std::span<const T> probabilities, double p, int64_t keep) {
  std::vector<int32_t> order;
  double total = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    total += static_cast<double>(probabilities[i]);
    if (row[i] != static_cast<T>(kNever)) order.push_back(static_cast<int32_t>(i));
  }
  // The reference sums from the least probable token on, in this type, and drops a token where the sum is still within
  // 1 - p: the same comparison, with the sum taken as the whole less what lies above.
  const T bound = static_cast<T>(1 - p);
  const auto before = [&](int32_t a, int32_t b) {
    const T x = row[static_cast<size_t>(a)], y = row[static_cast<size_t>(b)];
    return x != y ? x > y : a > b;
  };
  const Front<T> front{order, probabilities, [&](double above) { return static_cast<T>(total - above) > bound; }};
  const T most = *std::max_element(row.begin(), row.end());
  size_t kept = front.count([&](int32_t token) { return most - row[static_cast<size_t>(token)]; }, before);
  const size_t least = std::min(static_cast<size_t>(keep), order.size());
  if (kept < least) {
    kept = least;
    std::nth_element(order.begin(), order.begin() + static_cast<ptrdiff_t>(kept) - 1, order.end(), before);
  }
  for (size_t i = kept; i < order.size(); ++i) row[static_cast<size_t>(order[i])] = static_cast<T>(kNever);
}

void top_p(at::Tensor& scores, double p, int64_t keep) {
  const at::Tensor probabilities = at::softmax(scores, -1).contiguous();  // [R, V]
  each_row(scores, [&](auto row, int64_t r) {
    using T = typename decltype(row)::value_type;
    const T* mass = probabilities.data_ptr<T>() + r * probabilities.size(1);
    top_p_row<T>(row, std::span<const T>(mass, row.size()), p, keep);
  });
}

void min_p(at::Tensor& scores, double p, int64_t keep) {
  const at::Tensor probabilities = at::softmax(scores, -1);
  at::Tensor removed = probabilities < probabilities.amax(-1, true) * p;
  const int64_t least = std::min(keep, scores.size(1));
  if (least > 1) {  // the most probable token is never below its own share
    removed.scatter_(-1, std::get<1>(at::topk(probabilities, least)), false);
  }
  scores.masked_fill_(removed, kNever);
}

template <class T>
void typical_row(std::span<T> row, std::span<const T> shifted, std::span<const T> probabilities, double mass,
                 int64_t keep) {
  std::vector<int32_t> order(row.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const auto before = [&](int32_t a, int32_t b) {
    const T x = shifted[static_cast<size_t>(a)], y = shifted[static_cast<size_t>(b)];
    return x != y ? x < y : a < b;
  };
  // The last token is the first one with which the sum reaches the mass: as many ranks are in front of it as have sums
  // below. All that are as far from the expected surprise as it is stay too.
  const T bound = static_cast<T>(mass);
  const Front<T> front{order, probabilities, [&](double sum) { return static_cast<T>(sum) < bound; }};
  const size_t with_last = front.count([&](int32_t token) { return shifted[static_cast<size_t>(token)]; }, before);
  T farthest = 0;
  for (size_t i = 0; i < with_last; ++i) farthest = std::max(farthest, shifted[static_cast<size_t>(order[i])]);
  const size_t least = std::min(std::max(with_last, static_cast<size_t>(keep)), order.size());
  if (with_last < least)
    std::nth_element(order.begin(), order.begin() + static_cast<ptrdiff_t>(least) - 1, order.end(), before);
  for (size_t i = least; i < order.size(); ++i) {
    const auto token = static_cast<size_t>(order[i]);
    if (shifted[token] > farthest) row[token] = static_cast<T>(kNever);
  }
}

void typical_p(at::Tensor& scores, double mass, int64_t keep) {
  const at::Tensor log_p = at::log_softmax(scores, -1);
  const at::Tensor entropy = (log_p * log_p.exp()).nansum(-1, true).neg();
  const at::Tensor shifted = (log_p.neg() - entropy).abs().contiguous();
  const at::Tensor probabilities = at::softmax(scores, -1).contiguous();
  each_row(scores, [&](auto row, int64_t r) {
    using T = typename decltype(row)::value_type;
    const int64_t at = r * scores.size(1);
    typical_row<T>(row, {shifted.data_ptr<T>() + at, row.size()}, {probabilities.data_ptr<T>() + at, row.size()}, mass,
                   keep);
  });
}

// -inf for what is less probable than `bound` ([R, 1] or a number) and not among the `keep` best, ties included.
void cut_improbable(at::Tensor& scores, const at::Tensor& improbable, int64_t keep) {
  each_row(scores, [&](auto row, int64_t r) {
    using T = typename decltype(row)::value_type;
    const T best = kth_largest<T>(row, std::min(keep, static_cast<int64_t>(row.size())));
    const bool* drop = improbable.data_ptr<bool>() + r * improbable.size(1);
    for (size_t i = 0; i < row.size(); ++i)
      if (drop[i] && row[i] < best) row[i] = static_cast<T>(kNever);
  });
}

void epsilon(at::Tensor& scores, double epsilon, int64_t keep) {
  cut_improbable(scores, (at::softmax(scores, -1) < epsilon).contiguous(), keep);
}

void eta(at::Tensor& scores, double epsilon, int64_t keep) {
  const at::Tensor log_p = at::log_softmax(scores, -1), probabilities = at::softmax(scores, -1);
  const double lowest = scores.scalar_type() == at::kDouble ? std::numeric_limits<double>::lowest()
                                                            : static_cast<double>(std::numeric_limits<float>::lowest());
  const at::Tensor entropy = (log_p.clamp_min(lowest) * probabilities).sum(-1, true).neg();
  const at::Tensor bound = entropy.neg().exp().mul(std::sqrt(epsilon)).clamp_max(epsilon);
  cut_improbable(scores, (probabilities < bound).contiguous(), keep);
}

}  // namespace

RulePointer repetition_penalty_rule(double penalty, std::vector<int64_t> left_padding) {
  return std::make_unique<RepetitionPenalty>(penalty, std::move(left_padding));
}
RulePointer no_repeat_ngram_rule(int64_t size) { return std::make_unique<NoRepeatNgram>(size); }
RulePointer encoder_no_repeat_ngram_rule(int64_t size, std::vector<std::vector<int64_t>> encoder_ids) {
  return std::make_unique<EncoderNoRepeatNgram>(size, encoder_ids);
}
RulePointer bad_words_rule(std::vector<std::vector<int64_t>> words, const std::vector<int64_t>& eos) {
  return std::make_unique<BadWords>(std::move(words), eos);
}
RulePointer ban_before_rule(std::string name, std::vector<int64_t> tokens, int64_t length) {
  return std::make_unique<Ban>(std::move(name), std::move(tokens), [length](int64_t at) { return at < length; });
}
RulePointer force_at_rule(std::string name, std::vector<int64_t> tokens, int64_t length) {
  return std::make_unique<ForceAt>(std::move(name), std::move(tokens), length);
}
RulePointer suppress_rule(std::vector<int64_t> tokens) {
  return std::make_unique<Ban>("suppress_tokens", std::move(tokens), [](int64_t) { return true; });
}
RulePointer begin_suppress_rule(std::vector<int64_t> tokens, int64_t length) {
  return std::make_unique<Ban>("begin_suppress_tokens", std::move(tokens),
                               [length](int64_t at) { return at == length; });
}

RulePointer temperature_rule(double temperature) {
  return scores_rule("temperature", [temperature](at::Tensor& scores) { scores.div_(temperature); });
}
RulePointer top_k_rule(int64_t k, int64_t keep) {
  return scores_rule("top_k", [k = std::max(k, keep)](at::Tensor& scores) { top_k(scores, k); });
}
RulePointer top_p_rule(double p, int64_t keep) {
  return scores_rule("top_p", [p, keep](at::Tensor& scores) { top_p(scores, p, keep); });
}
RulePointer min_p_rule(double p, int64_t keep) {
  return scores_rule("min_p", [p, keep](at::Tensor& scores) { min_p(scores, p, keep); });
}
RulePointer typical_p_rule(double mass, int64_t keep) {
  return scores_rule("typical_p", [mass, keep](at::Tensor& scores) { typical_p(scores, mass, keep); });
}
RulePointer epsilon_rule(double bound, int64_t keep) {
  return scores_rule("epsilon_cutoff", [bound, keep](at::Tensor& scores) { epsilon(scores, bound, keep); });
}
RulePointer eta_rule(double bound, int64_t keep) {
  return scores_rule("eta_cutoff", [bound, keep](at::Tensor& scores) { eta(scores, bound, keep); });
}
RulePointer renormalize_rule() {
  return scores_rule("renormalize_logits", [](at::Tensor& scores) { scores.copy_(at::log_softmax(scores, -1)); });
}

bool RuleList::acts_at(int64_t length) const {
  return std::any_of(rules_.begin(), rules_.end(), [&](const auto& rule) { return rule->acts_at(length); });
}

void RuleList::apply(ScoredRows& rows) const {
  if (rows.ids.empty()) return;
  const auto length = static_cast<int64_t>(rows.ids[0].size());
  for (const auto& rule : rules_)
    if (rule->acts_at(length)) rule->apply(rows);
}

std::vector<std::string> RuleList::names() const {
  std::vector<std::string> names;
  for (const auto& rule : rules_) names.push_back(rule->name());
  return names;
}

RuleList make_rules(const GenerationOptions& o, const RuleSetting& setting) {
  const Lengths& lengths = setting.lengths;
  RuleList rules;
  if (o.repetition_penalty != 1) rules.add(repetition_penalty_rule(o.repetition_penalty, setting.left_padding));
  if (o.no_repeat_ngram_size > 0) rules.add(no_repeat_ngram_rule(o.no_repeat_ngram_size));
  if (o.encoder_no_repeat_ngram_size > 0) {
    if (setting.encoder_ids.empty()) {
      throw usage_error("encoder_no_repeat_ngram_size needs the ids of the input, and none were given", "",
                        "pass encoder_ids (the prompt, for a model without an encoder), or leave the option out");
    }
    rules.add(encoder_no_repeat_ngram_rule(o.encoder_no_repeat_ngram_size, setting.encoder_ids));
  }
  if (const auto words = o.bad_words(); !words.empty()) rules.add(bad_words_rule(words, o.eos_token_id));
  if (!o.eos_token_id.empty()) {
    if (lengths.min_total > 0) rules.add(ban_before_rule("min_length", o.eos_token_id, lengths.min_total));
    if (lengths.min_new > 0)
      rules.add(ban_before_rule("min_new_tokens", o.eos_token_id, lengths.prompt + lengths.min_new));
  }
  if (o.forced_bos_token_id >= 0) rules.add(force_at_rule("forced_bos_token_id", {o.forced_bos_token_id}, 1));
  if (!o.forced_eos_token_id.empty())
    rules.add(force_at_rule("forced_eos_token_id", o.forced_eos_token_id, lengths.max_total - 1));
  if (!o.suppress_tokens.empty()) rules.add(suppress_rule(o.suppress_tokens));
  if (!o.begin_suppress_tokens.empty()) {
    const bool after_forced = lengths.prompt == 1 && o.forced_bos_token_id >= 0;
    rules.add(begin_suppress_rule(o.begin_suppress_tokens, lengths.prompt + (after_forced ? 1 : 0)));
  }
  if (o.samples()) {
    // Beams need a token beside the end tokens, or none could go on.
    const auto ends = static_cast<int64_t>(o.eos_token_id.size());
    const int64_t keep = o.num_beams > 1 ? std::max<int64_t>(1, ends) + 1 : 1;
    if (o.temperature != 1) rules.add(temperature_rule(o.temperature));
    if (o.top_k > 0) rules.add(top_k_rule(o.top_k, keep));
    if (o.top_p < 1) rules.add(top_p_rule(o.top_p, keep));
    if (o.min_p > 0) rules.add(min_p_rule(o.min_p, keep));
    if (o.typical_p < 1) rules.add(typical_p_rule(o.typical_p, keep));
    if (o.epsilon_cutoff > 0) rules.add(epsilon_rule(o.epsilon_cutoff, keep));
    if (o.eta_cutoff > 0) rules.add(eta_rule(o.eta_cutoff, keep));
  }
  if (o.renormalize_logits) rules.add(renormalize_rule());
  return rules;
}

}  // namespace palimpsest::generate
