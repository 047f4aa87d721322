// SPDX-License-Identifier: Apache-2.0
// Every logits rule and chains of them against transformers 5.24 on 200 random rows, and against plain sorts.
#include "palimpsest/generate/logits_rules.h"

#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "palimpsest/checkpoint/safetensors.h"
#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"
#include "palimpsest/generate/select.h"
#include "tests/support/paths.h"
#include "tests/support/tensors.h"

namespace palimpsest::generate {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

std::map<std::string, at::Tensor> read_tensors(const std::string& path) {
  const auto file = checkpoint::Safetensors::open(path);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& info : file.tensors()) tensors[info.name] = file.tensor(info.name);
  return tensors;
}

struct Fixture {
  Json cases = read_json(test::fixture("generation/logits_rules.json")).at("cases");
  std::map<std::string, at::Tensor> tensors = read_tensors(test::fixture("generation/logits_rules.safetensors"));

  at::Tensor scores() const { return tensors.at("scores").to(at::kFloat); }  // [200, 40]
  std::vector<std::vector<int64_t>> lists(const std::string& name) const {
    const at::Tensor& t = tensors.at(name);
    std::vector<std::vector<int64_t>> rows;
    for (int64_t r = 0; r < t.size(0); ++r) {
      const int64_t* row = t.data_ptr<int64_t>() + r * t.size(1);
      rows.emplace_back(row, row + t.size(1));
    }
    return rows;
  }
  std::vector<int64_t> padding() const {
    const at::Tensor& t = tensors.at("padding");
    return {t.data_ptr<int64_t>(), t.data_ptr<int64_t>() + t.numel()};
  }
  /// What the reference makes of the scores in this case.
  at::Tensor expected(const std::string& name) const {
    at::Tensor values = scores();
    const at::Tensor& bits = tensors.at("keep/" + name);  // [200, 5] bytes, least bit first
    const auto changed = tensors.find("value/" + name);
    int64_t next = 0;
    for (int64_t r = 0; r < values.size(0); ++r) {
      for (int64_t v = 0; v < values.size(1); ++v) {
        float& value = values.data_ptr<float>()[r * values.size(1) + v];
        const uint8_t byte = bits.data_ptr<uint8_t>()[r * bits.size(1) + v / 8];
        if (((byte >> (v % 8)) & 1) == 0) {
          value = static_cast<float>(kNever);
        } else if (changed != tensors.end()) {
          value = changed->second.data_ptr<float>()[next++];
        }
      }
    }
    return values;
  }
};

// Calls body with rows over `scores` whose ids are the first `length` of the fixture's.
void with_rows(const Fixture& fixture, at::Tensor scores, int64_t length,
               const std::function<void(ScoredRows&)>& body) {
  const auto ids = fixture.lists("ids");
  ScoredRows rows{.scores = std::move(scores), .ids = {}, .items = {}};
  for (size_t r = 0; r < ids.size(); ++r) {
    rows.ids.emplace_back(ids[r].data(), static_cast<size_t>(length));
    rows.items.push_back(static_cast<int64_t>(r / 2));
  }
  body(rows);
}

// The same tokens kept and their probabilities equal.
void expect_same(const at::Tensor& actual, const at::Tensor& expected, const std::string& name) {
  const at::Tensor kept = actual > kNever, wanted = expected > kNever;
  EXPECT_TRUE(at::equal(kept, wanted)) << name << ": " << (kept != wanted).any(1).sum().item<int64_t>()
                                       << " rows keep other tokens";
  const at::Tensor off = (at::softmax(actual.to(at::kDouble), -1) - at::softmax(expected.to(at::kDouble), -1)).abs();
  EXPECT_LE(off.max().item<double>(), 1e-6) << name;
  // The scores themselves too, for beam search adds them up.
  const at::Tensor score_off = (actual.to(at::kDouble) - expected.to(at::kDouble)).masked_select(wanted & kept).abs();
  if (score_off.numel() > 0) EXPECT_LE(score_off.max().item<double>(), 1e-5) << name;
}

RulePointer make_rule(const Fixture& fixture, const Json& one) {
  const auto rule = one.at("rule").get<std::string>();
  const Json& with = one.at("arguments");
  const auto number = [&](const char* key) { return with.at(key).get<int64_t>(); };
  const auto tokens = [&] { return with.at("tokens").get<std::vector<int64_t>>(); };
  const auto value = [&] { return with.at("value").get<double>(); };
  if (rule == "repetition_penalty")
    return repetition_penalty_rule(with.at("penalty").get<double>(),
                                   with.at("padding").get<bool>() ? fixture.padding() : std::vector<int64_t>());
  if (rule == "no_repeat_ngram_size") return no_repeat_ngram_rule(number("size"));
  if (rule == "encoder_no_repeat_ngram_size")
    return encoder_no_repeat_ngram_rule(number("size"), fixture.lists("encoder_ids"));
  if (rule == "bad_words_ids")
    return bad_words_rule(with.at("words").get<std::vector<std::vector<int64_t>>>(),
                          with.at("eos").get<std::vector<int64_t>>());
  if (rule.starts_with("min_") && with.contains("tokens")) return ban_before_rule(rule, tokens(), number("length"));
  if (rule.starts_with("forced_")) return force_at_rule(rule, tokens(), number("length"));
  if (rule == "suppress_tokens") return suppress_rule(tokens());
  if (rule == "begin_suppress_tokens") return begin_suppress_rule(tokens(), number("length"));
  if (rule == "temperature") return temperature_rule(value());
  if (rule == "top_k") return top_k_rule(number("value"), number("keep"));
  if (rule == "top_p") return top_p_rule(value(), number("keep"));
  if (rule == "min_p") return min_p_rule(value(), number("keep"));
  if (rule == "typical_p") return typical_p_rule(value(), number("keep"));
  if (rule == "epsilon_cutoff") return epsilon_rule(value(), number("keep"));
  if (rule == "eta_cutoff") return eta_rule(value(), number("keep"));
  if (rule == "renormalize_logits") return renormalize_rule();
  return nullptr;
}

TEST(LogitsRules, EqualTheReferenceAlone) {
  const Fixture fixture;
  int count = 0;
  for (const auto& one : fixture.cases) {
    if (!one.contains("rule")) continue;
    const auto name = one.at("name").get<std::string>();
    const RulePointer rule = make_rule(fixture, one);
    ASSERT_NE(rule, nullptr) << name;
    EXPECT_EQ(rule->name(), one.at("rule").get<std::string>());
    for (const auto type : {at::kFloat, at::kDouble}) {
      with_rows(fixture, fixture.scores().to(type).clone(), one.at("length").get<int64_t>(), [&](ScoredRows& rows) {
        rule->apply(rows);
        expect_same(rows.scores, fixture.expected(name), name + (type == at::kFloat ? "" : " in float64"));
        if (!rule->acts_at(one.at("length").get<int64_t>()))
          EXPECT_TRUE(at::equal(rows.scores, fixture.scores().to(type))) << name;
      });
    }
    ++count;
  }
  EXPECT_EQ(count, 47);
}

TEST(LogitsRules, EqualTheReferenceInItsOrder) {
  const std::map<std::string, std::string> names = {
      {"RepetitionPenaltyLogitsProcessor", "repetition_penalty"},
      {"NoRepeatNGramLogitsProcessor", "no_repeat_ngram_size"},
      {"EncoderNoRepeatNGramLogitsProcessor", "encoder_no_repeat_ngram_size"},
      {"NoBadWordsLogitsProcessor", "bad_words_ids"},
      {"MinLengthLogitsProcessor", "min_length"},
      {"MinNewTokensLengthLogitsProcessor", "min_new_tokens"},
      {"ForcedBOSTokenLogitsProcessor", "forced_bos_token_id"},
      {"ForcedEOSTokenLogitsProcessor", "forced_eos_token_id"},
      {"SuppressTokensLogitsProcessor", "suppress_tokens"},
      {"SuppressTokensAtBeginLogitsProcessor", "begin_suppress_tokens"},
      {"TemperatureLogitsWarper", "temperature"},
      {"TopKLogitsWarper", "top_k"},
      {"TopPLogitsWarper", "top_p"},
      {"MinPLogitsWarper", "min_p"},
      {"TypicalLogitsWarper", "typical_p"},
      {"EpsilonLogitsWarper", "epsilon_cutoff"},
      {"EtaLogitsWarper", "eta_cutoff"},
      {"LogitNormalization", "renormalize_logits"}};
  const Fixture fixture;
  int count = 0;
  for (const auto& one : fixture.cases) {
    if (!one.contains("options")) continue;
    const auto name = one.at("name").get<std::string>();
    std::vector<std::string> warnings;
    GenerationOptions options = GenerationOptions::from_generation_config(one.at("options"), name, &warnings);
    EXPECT_TRUE(warnings.empty());
    if (!one.at("options").contains("top_k")) options.top_k = 50;
    RuleSetting setting{.lengths = options.lengths(one.at("prompt").get<int64_t>(), std::nullopt),
                        .encoder_ids = fixture.lists("encoder_ids")};
    const RuleList rules = make_rules(options, setting);
    std::vector<std::string> order;
    for (const auto& type : one.at("order")) order.push_back(names.at(type.get<std::string>()));
    EXPECT_EQ(rules.names(), order) << name;
    with_rows(fixture, fixture.scores().clone(), 12, [&](ScoredRows& rows) {
      rules.apply(rows);
      expect_same(rows.scores, fixture.expected(name), name);
    });
    ++count;
  }
  EXPECT_EQ(count, 9);
}

TEST(LogitsRules, DoNothingAndCopyNothingWhereNoneIsAskedFor) {
  const RuleList none = make_rules({}, {.lengths = {.prompt = 3, .max_new = 5, .max_total = 8}});
  EXPECT_TRUE(none.empty());
  EXPECT_FALSE(none.acts_at(4));
  GenerationOptions options;
  options.eos_token_id = {2};
  options.min_new_tokens = 2;
  options.max_new_tokens = 5;
  options.forced_eos_token_id = {2};
  const RuleList some = make_rules(options, {.lengths = options.lengths(3, std::nullopt)});
  EXPECT_TRUE(some.acts_at(3));
  EXPECT_TRUE(some.acts_at(4));
  EXPECT_FALSE(some.acts_at(5));
  EXPECT_FALSE(some.acts_at(6));
  EXPECT_TRUE(some.acts_at(7));
}

// The tokens left of one row of scores.
std::vector<int64_t> kept(const RulePointer& rule, at::Tensor scores, const std::vector<int64_t>& ids = {}) {
  ScoredRows rows{.scores = scores.unsqueeze(0).clone(), .ids = {ids}, .items = {0}};
  rule->apply(rows);
  std::vector<int64_t> tokens;
  for (int64_t v = 0; v < rows.scores.size(1); ++v)
    if (rows.scores[0][v].item<double>() > kNever) tokens.push_back(v);
  return tokens;
}

TEST(LogitsRules, KeepAtLeastOneTokenHoweverSmallTheShare) {  // FR-76
  using List = std::vector<int64_t>;
  for (const auto type : {at::kFloat, at::kDouble}) {
    const at::Tensor scores = at::tensor({0.5, 0.3, 0.15, 0.05}, at::kDouble).log().to(type);
    EXPECT_EQ(kept(top_p_rule(0), scores), List({0}));
    EXPECT_EQ(kept(top_p_rule(1e-4), scores), List({0}));
    EXPECT_EQ(kept(top_p_rule(0.5), scores), List({0}));
    EXPECT_EQ(kept(top_p_rule(0.7), scores), List({0, 1}));
    EXPECT_EQ(kept(top_p_rule(0.9), scores), List({0, 1, 2}));
    EXPECT_EQ(kept(top_p_rule(1), scores), List({0, 1, 2, 3}));
    EXPECT_EQ(kept(top_k_rule(1000), scores), List({0, 1, 2, 3}));
    EXPECT_EQ(kept(top_k_rule(2), scores), List({0, 1}));
    EXPECT_EQ(kept(min_p_rule(1), scores), List({0}));
    EXPECT_EQ(kept(typical_p_rule(1e-6), scores).size(), 1u);
    EXPECT_EQ(kept(epsilon_rule(0.99), scores), List({0}));
  }
  // A temperature so small that the softmax of all but one token underflows.
  at::Tensor scores = at::tensor({0.5, 0.3, 0.15, 0.05}).log().unsqueeze(0);
  ScoredRows rows{.scores = scores, .ids = {{}}, .items = {0}};
  temperature_rule(1e-4)->apply(rows);
  top_p_rule(1e-4)->apply(rows);
  test::expect_close(at::softmax(rows.scores, -1), at::tensor({1.0F, 0.0F, 0.0F, 0.0F}).unsqueeze(0), 0);
}

TEST(LogitsRules, BanRepeatedRunsAsCounted) {  // FR-77
  using List = std::vector<int64_t>;
  const at::Tensor scores = at::zeros({3});
  EXPECT_EQ(kept(no_repeat_ngram_rule(2), scores, {0, 1, 0, 1, 0}), List({0, 2}));
  EXPECT_EQ(kept(no_repeat_ngram_rule(1), scores, {0, 1}), List({2}));
  EXPECT_EQ(kept(no_repeat_ngram_rule(3), scores, {0}), List({0, 1, 2}));
  EXPECT_EQ(kept(no_repeat_ngram_rule(1), scores, {0, 1, 2}), List({}));
}

// Against plain sorts, at widths where rows are only partly looked at.

at::Tensor wide_rows(int64_t rows, int64_t width, uint64_t seed, bool ties) {
  at::Tensor scores = test::randn({rows, width}, seed, at::kDouble) * 2;
  if (ties) scores = (scores * 4).round() / 4;
  scores = scores.masked_fill(test::randn({rows, width}, seed + 1) > 1.5, kNever);
  return scores.contiguous();
}

TEST(LogitsRules, SelectAsAFullSortDoes) {
  for (const bool ties : {false, true}) {
    const at::Tensor scores = wide_rows(12, 5000, 3, ties);
    for (int64_t r = 0; r < scores.size(0); ++r) {
      const std::span<const double> row(scores.data_ptr<double>() + r * 5000, 5000);
      std::vector<Choice<double>> sorted;
      for (size_t i = 0; i < row.size(); ++i) sorted.push_back({row[i], static_cast<int64_t>(i)});
      std::sort(sorted.begin(), sorted.end());
      for (const int64_t k : {1, 2, 3, 8, 50, 63, 64, 65, 255, 256, 257, 1000, 4999, 5000, 6000}) {
        EXPECT_EQ(kth_largest(row, k), sorted[static_cast<size_t>(std::min<int64_t>(k, 5000)) - 1].score) << k;
        const auto best = best_choices(row, k);
        size_t finite = 0;
        while (finite < sorted.size() && finite < static_cast<size_t>(k) && sorted[finite].score > kNever) ++finite;
        ASSERT_EQ(best.size(), finite) << k;
        for (size_t i = 0; i < best.size(); ++i) {
          ASSERT_EQ(best[i].token, sorted[i].token) << k << " at " << i;
          ASSERT_EQ(best[i].score, sorted[i].score);
        }
      }
    }
  }
}

// The reference's definition with whole sorts, in float64.
at::Tensor sorted_top_p(const at::Tensor& scores, double p, int64_t keep) {
  const auto [sorted, places] = at::sort(scores, true, -1, false);
  at::Tensor removed = sorted.softmax(-1).cumsum(-1) <= 1 - p;
  removed.narrow(-1, removed.size(-1) - keep, keep).fill_(false);
  return scores.masked_fill(removed.scatter(1, places, removed), kNever);
}
at::Tensor sorted_typical(const at::Tensor& scores, double mass) {
  const at::Tensor log_p = at::log_softmax(scores, -1);
  const at::Tensor shifted = (-log_p + (log_p * log_p.exp()).nansum(-1, true)).abs();
  const auto [sorted, places] = at::sort(shifted, true, -1, false);
  const at::Tensor sums = scores.gather(-1, places).softmax(-1).cumsum(-1);
  const at::Tensor last = (sums < mass).sum(1, true).clamp_max(scores.size(1) - 1);
  return scores.masked_fill(shifted > sorted.gather(1, last), kNever);
}

TEST(LogitsRules, CutMassAsAFullSortDoes) {
  for (const auto& [ties, scale] : {std::pair{false, 1.0}, {true, 1.0}, {false, 60.0}, {true, 0.01}}) {
    const at::Tensor scores = wide_rows(12, 3000, 8, ties) * scale;
    for (const double p : {0.0, 0.1, 0.5, 0.9, 0.99, 0.9999}) {
      ScoredRows rows{.scores = scores.clone(), .ids = std::vector<std::span<const int64_t>>(12), .items = {}};
      top_p_rule(p, 2)->apply(rows);
      test::expect_identical(rows.scores, sorted_top_p(scores, p, 2), "top_p");
      if (p == 0) continue;
      rows.scores = scores.clone();
      typical_p_rule(p)->apply(rows);
      test::expect_identical(rows.scores, sorted_typical(scores, p), "typical_p");
    }
  }
}

TEST(LogitsRules, ARowWithoutAnyTokenStaysSo) {
  for (const auto& rule : {top_k_rule(3), top_p_rule(0.5), min_p_rule(0.5), typical_p_rule(0.5), epsilon_rule(0.1),
                           eta_rule(0.1), temperature_rule(2), repetition_penalty_rule(2, {})}) {
    ScoredRows rows{.scores = at::full({1, 9}, kNever), .ids = {{}}, .items = {0}};
    rule->apply(rows);
    EXPECT_TRUE((rows.scores == kNever).all().item<bool>()) << rule->name();
  }
}

TEST(LogitsRules, AskForEncoderIdsWhereTheyNeedThem) {
  GenerationOptions options;
  options.encoder_no_repeat_ngram_size = 2;
  EXPECT_THROW(make_rules(options, {}), Error);
}

}  // namespace
}  // namespace palimpsest::generate
