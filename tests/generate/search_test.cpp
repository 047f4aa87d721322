// SPDX-License-Identifier: Apache-2.0
// Greedy, beams and sampling over models that are tables: against counting by hand, exhaustive search and statistics.
#include "palimpsest/generate/search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"
#include "tests/generate/row_decoder.h"
#include "tests/support/tensors.h"

namespace palimpsest::generate {
namespace {

using test::RowDecoder;
using Ids = std::vector<int64_t>;

/// Logits that follow from the item's seed and the ids alone; token 0 ends.
RowDecoder::Logits table(int64_t vocabulary, std::vector<uint64_t> seeds, double spread = 1.5,
                         at::ScalarType type = at::kFloat) {
  return [=](int64_t item, const Ids& ids) {
    uint64_t key = random_key(seeds[static_cast<size_t>(item)]);
    for (const int64_t id : ids) key = random_key(key, id);
    Random random(key);
    at::Tensor logits = at::empty({vocabulary}, at::kDouble);
    for (int64_t v = 0; v < vocabulary; ++v) logits.data_ptr<double>()[v] = spread * random.normal();
    return logits.to(type);
  };
}

RowDecoder table_decoder(int64_t vocabulary, const std::vector<uint64_t>& seeds, double spread = 1.5,
                         at::ScalarType type = at::kFloat) {
  return {std::vector<Ids>(seeds.size(), {1}), vocabulary, table(vocabulary, seeds, spread, type)};
}

/// A decoder of one item with the same logits at every step.
RowDecoder constant_decoder(const at::Tensor& logits, int64_t items = 1) {
  return {std::vector<Ids>(static_cast<size_t>(items), {0}), logits.size(0),
          [logits](int64_t, const Ids&) { return logits; }};
}

/// FR-80's model: start S; then A, B or the end with given probabilities.
constexpr int64_t kS = 0, kA = 1, kB = 2, kEnd = 3;
RowDecoder toy_decoder(int64_t prompt = 1) {
  return {{Ids(static_cast<size_t>(prompt), kS)}, 4, [prompt](int64_t, const Ids& ids) {
            const size_t step = ids.size() - static_cast<size_t>(prompt);
            const double never = 1e-30;
            std::vector<double> p = {never, never, never, 1};
            if (step == 0) p = {never, .6, .4, never};
            if (step == 1 && ids.back() == kA) p = {never, .37, .33, .30};
            if (step == 1 && ids.back() == kB) p = {never, .05, .05, .90};
            return at::tensor(p, at::kDouble).log();
          }};
}

TEST(BeamSearch, FindsWhatTheLengthPenaltyMakesBest) {  // FR-80
  struct Expected {
    double penalty;
    std::vector<std::pair<Ids, double>> best;
  };
  const double bend = std::log(.4 * .9), aaend = std::log(.6 * .37), abend = std::log(.6 * .33);
  const std::vector<Expected> table = {
      {0, {{{kB, kEnd}, bend}, {{kA, kA, kEnd}, aaend}}},
      {1, {{{kA, kA, kEnd}, aaend / 3}, {{kB, kEnd}, bend / 2}}},
      {2, {{{kA, kA, kEnd}, aaend / 9}, {{kA, kB, kEnd}, abend / 9}}},
  };
  EXPECT_NEAR(bend, -1.0217, 5e-5);
  EXPECT_NEAR(aaend / 3, -.5017, 5e-5);
  EXPECT_NEAR(aaend / 9, -.1672, 5e-5);
  EXPECT_NEAR(abend / 9, -.1799, 5e-5);
  for (const int64_t prompt : {1, 5}) {  // the prompt does not count
    for (const auto& expected : table) {
      SCOPED_TRACE(expected.penalty);
      RowDecoder decoder = toy_decoder(prompt);
      const auto result = generate(decoder, {.max_new_tokens = 6,
                                             .num_beams = 2,
                                             .num_return_sequences = 2,
                                             .length_penalty = expected.penalty,
                                             .early_stopping = "never",
                                             .eos_token_id = {kEnd}});
      ASSERT_EQ(result.items[0].size(), 2u);
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(result.items[0][i].ids, expected.best[i].first);
        EXPECT_NEAR(result.items[0][i].score, expected.best[i].second, 1e-9);
        EXPECT_EQ(result.items[0][i].finish, Finish::kEos);
      }
    }
  }
  RowDecoder decoder = toy_decoder();
  const auto greedy = generate(decoder, {.max_new_tokens = 6, .eos_token_id = {kEnd}});
  EXPECT_EQ(greedy.items[0][0].ids, Ids({kA, kA, kEnd}));
  EXPECT_NEAR(greedy.items[0][0].score, aaend, 1e-9);
}

/// Every complete hypothesis of a table model with its score, best first.
std::vector<std::pair<double, Ids>> exhaustive(const RowDecoder::Logits& logits, int64_t item, const Ids& start,
                                               int64_t max_new, double penalty) {
  std::vector<std::pair<double, Ids>> all;
  const std::function<void(const Ids&, double)> grow = [&](const Ids& fresh, double sum) {
    Ids ids = start;
    ids.insert(ids.end(), fresh.begin(), fresh.end());
    const at::Tensor log_p = at::log_softmax(logits(item, ids).to(at::kDouble), -1);
    for (int64_t v = 0; v < log_p.size(0); ++v) {
      Ids next = fresh;
      next.push_back(v);
      const double total = sum + log_p[v].item<double>();
      const auto length = static_cast<int64_t>(next.size());
      if (v == 0 || length == max_new) {
        all.emplace_back(total / std::pow(length, penalty), next);
      } else {
        grow(next, total);
      }
    }
  };
  grow({}, 0);
  std::sort(all.begin(), all.end(), std::greater<>());
  return all;
}

TEST(BeamSearch, WithBeamsForAllIsExhaustiveSearch) {
  const std::vector<uint64_t> seeds = {3, 4, 5, 6};
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (const double penalty : {-1.0, 0.0, 0.7, 1.0, 2.0}) {
      RowDecoder decoder = table_decoder(4, seeds, 1.5, type);
      const int64_t beams = 3 * 3 * 3 * 4;  // no more hypotheses run at once
      const auto result = generate(decoder, {.max_new_tokens = 4,
                                             .num_beams = beams,
                                             .num_return_sequences = beams,
                                             .length_penalty = penalty,
                                             .early_stopping = "never",
                                             .eos_token_id = {0}});
      for (int64_t item = 0; item < 4; ++item) {
        const auto all = exhaustive(table(4, seeds, 1.5, type), item, {1}, 4, penalty);
        const auto& found = result.items[static_cast<size_t>(item)];
        ASSERT_EQ(found.size(), std::min(all.size(), static_cast<size_t>(beams)));
        for (size_t i = 0; i < found.size(); ++i) {
          EXPECT_NEAR(found[i].score, all[i].first, 1e-5) << penalty << " " << i;
          if (type == at::kDouble) EXPECT_EQ(found[i].ids, all[i].second);
          EXPECT_EQ(found[i].finish, found[i].ids.back() == 0 ? Finish::kEos : Finish::kLength);
        }
      }
    }
  }
}

TEST(BeamSearch, NeverGivesAHypothesisTwiceNorGoesOnBehindAnEnd) {  // FR-81
  // Fewer tokens than beams: dead rows fill up the items.
  for (const int64_t beams : {2, 3, 5, 8}) {
    for (const int64_t vocabulary : {2, 3, 9}) {
      const std::vector<uint64_t> seeds = {1, 2, 3, 4, 5};
      RowDecoder decoder = table_decoder(vocabulary, seeds, 1, at::kDouble);
      const auto result = generate(
          decoder, {.max_new_tokens = 6, .num_beams = beams, .num_return_sequences = beams, .eos_token_id = {0}});
      for (size_t item = 0; item < seeds.size(); ++item) {
        std::set<Ids> different;
        double before = 1e9;
        for (const auto& hypothesis : result.items[item]) {
          EXPECT_TRUE(different.insert(hypothesis.ids).second);
          const auto ends = std::count(hypothesis.ids.begin(), hypothesis.ids.end(), 0);
          EXPECT_EQ(ends, hypothesis.finish == Finish::kEos ? 1 : 0);
          EXPECT_EQ(hypothesis.ids.back() == 0, hypothesis.finish == Finish::kEos);
          EXPECT_LE(hypothesis.score, before);
          before = hypothesis.score;
          // The state followed the beams: the score is that of the ids, read anew.
          Ids ids = {1};
          double sum = 0;
          for (const int64_t id : hypothesis.ids) {
            const at::Tensor logits = table(vocabulary, seeds, 1, at::kDouble)(static_cast<int64_t>(item), ids);
            sum += at::log_softmax(logits, -1)[id].item<double>();
            ids.push_back(id);
          }
          EXPECT_NEAR(hypothesis.score, sum / static_cast<double>(hypothesis.ids.size()), 1e-9);
        }
        EXPECT_GE(result.items[item].size(), static_cast<size_t>(std::min<int64_t>(beams, 2)));
      }
    }
  }
}

TEST(BeamSearch, ExpandsOneBeamAtTheStartAndLetsNoEndInFromBehind) {  // FR-82
  // At the start the end token is the sixth best of ten; later it is sure.
  RowDecoder decoder({{1}}, 10, [](int64_t, const Ids& ids) {
    at::Tensor logits = at::tensor({.5, 2.0, 1.8, 1.6, 1.4, 1.2, -1.0, -1.1, -1.2, -1.3}, at::kDouble);
    if (ids.size() > 1) logits[0] = 20;
    return logits;
  });
  const auto result =
      generate(decoder, {.max_new_tokens = 5, .num_beams = 5, .num_return_sequences = 5, .eos_token_id = {0}});
  std::set<int64_t> first;
  for (const auto& hypothesis : result.items[0]) {
    ASSERT_EQ(hypothesis.ids.size(), 2u);  // no empty one
    first.insert(hypothesis.ids[0]);
  }
  EXPECT_EQ(first, std::set<int64_t>({1, 2, 3, 4, 5}));
}

TEST(BeamSearch, ReordersOnlyWhereTheOrderChanges) {
  // One beam far ahead of the other at every step: after the first step rows stay as they are.
  RowDecoder decoder({{1}}, 6, [](int64_t, const Ids& ids) {
    at::Tensor logits = at::full({6}, -50.0, at::kDouble);
    logits[ids.size() == 1 || ids[1] == 2 ? 2 : 3] = 0;
    if (ids.size() == 1) logits[3] = -1;
    return logits;
  });
  generate(decoder, {.max_new_tokens = 8, .num_beams = 2, .eos_token_id = {0}});
  EXPECT_EQ(decoder.reorders, 1);
  EXPECT_EQ(decoder.steps, 7);
}

TEST(Greedy, DropsFinishedItemsAndReadsEachTokenOnce) {
  // Item i ends after i + 1 tokens.
  RowDecoder decoder(std::vector<Ids>(5, {1}), 8, [](int64_t item, const Ids& ids) {
    at::Tensor logits = at::zeros({8});
    logits[static_cast<int64_t>(ids.size()) > item ? 0 : 3] = 5;
    return logits;
  });
  const auto result = generate(decoder, {.max_new_tokens = 9, .eos_token_id = {0}});
  for (size_t item = 0; item < 5; ++item) {
    EXPECT_EQ(result.items[item][0].ids.size(), item + 1);
    EXPECT_EQ(result.items[item][0].finish, Finish::kEos);
  }
  EXPECT_EQ(decoder.steps, 4);
  EXPECT_EQ(decoder.rows_read, 4 + 3 + 2 + 1);
  EXPECT_EQ(decoder.reorders, 4);
  EXPECT_EQ(result.steps, 5);
  EXPECT_EQ(result.state_bytes, 8 * 3 * 3);  // the most at any time: three rows of three ids
  EXPECT_EQ(result.padded(7)[1], Ids({1, 3, 0, 7, 7, 7}));
}

TEST(Sampling, OfSeveralSequencesDropsThemItemByItem) {
  const std::vector<uint64_t> seeds = {1, 2, 3, 4};
  RowDecoder decoder = table_decoder(5, seeds, 0.5);
  const auto result = generate(
      decoder, {.max_new_tokens = 30, .num_return_sequences = 6, .do_sample = true, .seed = 4, .eos_token_id = {0}});
  int64_t longest = 0, tokens = 0;
  for (const auto& item : result.items) {
    ASSERT_EQ(item.size(), 6u);
    for (const auto& one : item) {
      longest = std::max<int64_t>(longest, static_cast<int64_t>(one.ids.size()));
      tokens += static_cast<int64_t>(one.ids.size());
    }
  }
  EXPECT_EQ(result.steps, longest);
  EXPECT_LT(decoder.rows_read, 24 * longest / 2);  // most rows end early
  EXPECT_GT(decoder.rows_read, tokens - 24);
}

TEST(Sampling, GivesTheSameTextAtAnyBatchSizeAndOrder) {  // FR-84
  std::vector<uint64_t> seeds(50);
  std::iota(seeds.begin(), seeds.end(), 100);
  for (const int64_t beams : {1, 3}) {
    const GenerationOptions options{.max_new_tokens = 12,
                                    .num_beams = beams,
                                    .num_return_sequences = 2,
                                    .do_sample = true,
                                    .temperature = 0.9,
                                    .top_k = 8,
                                    .top_p = 0.95,
                                    .seed = 77,
                                    .no_repeat_ngram_size = 2,
                                    .eos_token_id = {0}};
    RowDecoder all = table_decoder(12, seeds);
    const auto together = generate(all, options);
    std::vector<int64_t> order = permutation(50, 5);
    for (const size_t size : {1, 2, 8, 50}) {
      for (size_t first = 0; first < order.size(); first += size) {
        Request request;
        std::vector<uint64_t> some;
        for (size_t i = first; i < std::min(order.size(), first + size); ++i) {
          request.numbers.push_back(order[i]);
          some.push_back(seeds[static_cast<size_t>(order[i])]);
        }
        RowDecoder decoder = table_decoder(12, some);
        const auto batch = generate(decoder, options, request);
        for (size_t i = 0; i < some.size(); ++i) {
          const auto& expected = together.items[static_cast<size_t>(request.numbers[i])];
          ASSERT_EQ(batch.items[i].size(), expected.size());
          for (size_t n = 0; n < expected.size(); ++n) ASSERT_EQ(batch.items[i][n].ids, expected[n].ids);
        }
      }
    }
    RowDecoder other = table_decoder(12, seeds);
    GenerationOptions another_seed = options;
    another_seed.seed = 78;
    const auto different = generate(other, another_seed);
    size_t same = 0;
    for (size_t i = 0; i < 50; ++i) same += different.items[i][0].ids == together.items[i][0].ids;
    EXPECT_LT(same, 20u);
  }
}

/// Pearson's statistic of counts against probabilities; cells that cannot occur must be empty.
double chi_square(const std::vector<int64_t>& counts, const std::vector<double>& probabilities) {
  const auto n = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = n * probabilities[i];
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0) << i;
      continue;
    }
    sum += (static_cast<double>(counts[i]) - expected) * (static_cast<double>(counts[i]) - expected) / expected;
  }
  return sum;
}

TEST(Sampling, FrequenciesPassAChiSquareTest) {
  const at::Tensor logits = at::tensor({.9, .1, -.4, 1.3, -2.0, .3, .0, -1.0}, at::kDouble);
  struct Setting {
    GenerationOptions options;
    std::vector<double> weights;  // of the tokens that may come
    double critical;              // of 0.001 at one less degrees of freedom than there are tokens
  };
  std::vector<double> plain, warm, best3;
  for (int64_t v = 0; v < 8; ++v) {
    const double logit = logits[v].item<double>();
    plain.push_back(std::exp(logit));
    warm.push_back(std::exp(logit / 0.6));
    best3.push_back(v == 0 || v == 3 || v == 5 ? std::exp(logit) : 0);
  }
  const std::vector<Setting> settings = {
      {{.top_k = 0}, plain, 24.32}, {{.temperature = 0.6, .top_k = 0}, warm, 24.32}, {{.top_k = 3}, best3, 13.82}};
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (auto setting : settings) {
      setting.options.do_sample = true;
      setting.options.max_new_tokens = 2;
      setting.options.num_return_sequences = 5000;
      setting.options.seed = 3;
      RowDecoder decoder = constant_decoder(logits.to(type), 2);
      const auto result = generate(decoder, setting.options);
      const double total = std::accumulate(setting.weights.begin(), setting.weights.end(), 0.0);
      for (auto& weight : setting.weights) weight /= total;
      std::vector<int64_t> counts(8), second(8), pairs(64);
      for (const auto& item : result.items) {
        for (const auto& one : item) {
          ++counts[static_cast<size_t>(one.ids[0])];
          ++second[static_cast<size_t>(one.ids[1])];
          ++pairs[static_cast<size_t>(one.ids[0] * 8 + one.ids[1])];
        }
      }
      EXPECT_LT(chi_square(counts, setting.weights), setting.critical);
      EXPECT_LT(chi_square(second, setting.weights), setting.critical);
      // Steps are independent of each other.
      std::vector<double> product;
      size_t possible = 0;
      for (const double a : setting.weights)
        for (const double b : setting.weights) product.push_back(a * b), possible += a * b > 0;
      EXPECT_LT(chi_square(pairs, product), possible == 9 ? 26.12 : 103.44);
    }
  }
}

TEST(Sampling, OfBeamCandidatesIsWithoutPuttingBack) {
  // Two beams draw four of six candidates and keep the best two.
  const std::vector<double> p = {.3, .25, .2, .12, .08, .05};
  std::map<std::pair<int64_t, int64_t>, double> expected;
  std::vector<int64_t> order = {0, 1, 2, 3, 4, 5};
  do {
    double probability = 1, left = 1;
    for (size_t i = 0; i < 4; ++i) {
      probability *= p[static_cast<size_t>(order[i])] / left;
      left -= p[static_cast<size_t>(order[i])];
    }
    std::vector<int64_t> drawn(order.begin(), order.begin() + 4);
    std::sort(drawn.begin(), drawn.end());
    expected[{drawn[0], drawn[1]}] += probability / 2;  // each order of the last two comes twice
  } while (std::next_permutation(order.begin(), order.end()));
  std::vector<double> probabilities;
  std::map<std::pair<int64_t, int64_t>, size_t> cell;
  for (const auto& [pair, probability] : expected) {
    cell[pair] = probabilities.size();
    probabilities.push_back(probability);
  }
  EXPECT_NEAR(std::accumulate(probabilities.begin(), probabilities.end(), 0.0), 1, 1e-12);
  RowDecoder decoder = constant_decoder(at::tensor(p, at::kDouble).log(), 6000);
  const auto result = generate(
      decoder, {.max_new_tokens = 1, .num_beams = 2, .num_return_sequences = 2, .do_sample = true, .top_k = 0});
  std::vector<int64_t> counts(probabilities.size());
  for (const auto& item : result.items) ++counts[cell.at({item[0].ids[0], item[1].ids[0]})];
  EXPECT_EQ(probabilities.size(), 6u);  // the smaller of a pair is at most 2
  EXPECT_LT(chi_square(counts, probabilities), 20.52);
}

TEST(Sampling, AtTemperatureZeroIsGreedy) {  // FR-76
  const std::vector<uint64_t> seeds = {8, 9};
  RowDecoder one = table_decoder(9, seeds), other = table_decoder(9, seeds), cold = table_decoder(9, seeds);
  GenerationOptions options{.max_new_tokens = 10, .eos_token_id = {0}};
  const auto greedy = generate(one, options);
  options.do_sample = true;
  options.temperature = 0;
  const auto zero = generate(other, options);
  options.temperature = 1e-4;
  options.top_p = 1e-4;
  const auto nearly = generate(cold, options);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(zero.items[i][0].ids, greedy.items[i][0].ids);
    EXPECT_EQ(nearly.items[i][0].ids, greedy.items[i][0].ids);
    EXPECT_EQ(nearly.items[i][0].score, greedy.items[i][0].score);  // that of the model, before the rules
  }
}

TEST(Generate, OfNoTokensGivesNothingAndReadsNothing) {  // FR-78
  for (const int64_t beams : {1, 4}) {
    RowDecoder decoder = constant_decoder(at::zeros({5}), 2);
    const auto result = generate(decoder, {.max_new_tokens = 0, .num_beams = beams});
    ASSERT_EQ(result.items.size(), 2u);
    ASSERT_EQ(result.items[0].size(), 1u);
    EXPECT_TRUE(result.items[0][0].ids.empty());
    EXPECT_EQ(result.items[0][0].score, 0);
    EXPECT_EQ(result.items[0][0].finish, Finish::kLength);
    EXPECT_EQ(result.padded(1)[0], Ids({0}));
    EXPECT_EQ(decoder.state_bytes(), 0);
  }
  RowDecoder nobody({}, 5, {});
  EXPECT_TRUE(generate(nobody, {}).items.empty());
}

TEST(Generate, StopsWhereEverythingIsBanned) {  // FR-77
  GenerationOptions options{.max_new_tokens = 20, .no_repeat_ngram_size = 1, .eos_token_id = {}};
  for (const int64_t beams : {1, 3}) {
    for (const bool sample : {false, true}) {
      options.num_beams = beams;
      options.do_sample = sample;
      RowDecoder decoder = table_decoder(6, {1, 2}, 1.5, at::kDouble);  // the start is one of six tokens
      const auto result = generate(decoder, options);
      for (const auto& item : result.items) {
        ASSERT_GE(item.size(), 1u);
        EXPECT_EQ(item[0].finish, Finish::kStop);
        EXPECT_EQ(std::set<int64_t>(item[0].ids.begin(), item[0].ids.end()), std::set<int64_t>({0, 2, 3, 4, 5}));
        EXPECT_EQ(item[0].ids.size(), 5u);
        EXPECT_TRUE(std::isfinite(item[0].score));
      }
    }
  }
  // The callback hears of the end too.
  RowDecoder told = table_decoder(3, {1});
  std::vector<NewToken> last;
  options.num_beams = 1;
  generate(told, options, {.on_step = [&](const std::vector<NewToken>& tokens) {
             last = tokens;
             return true;
           }});
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].id, -1);
  EXPECT_TRUE(last[0].finished);
  // From the start on.
  options.suppress_tokens = {0, 1, 2, 3};
  options.no_repeat_ngram_size = 0;
  for (const int64_t beams : {1, 3}) {
    options.num_beams = beams;
    RowDecoder decoder = constant_decoder(at::zeros({4}));
    const auto result = generate(decoder, options);
    ASSERT_EQ(result.items[0].size(), 1u);
    EXPECT_TRUE(result.items[0][0].ids.empty());
    EXPECT_EQ(result.items[0][0].finish, Finish::kStop);
  }
}

TEST(Generate, NamesRowAndStepOfBrokenLogits) {
  for (const double broken : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    for (const int64_t beams : {1, 2}) {
      RowDecoder decoder(std::vector<Ids>(3, {1}), 4, [broken](int64_t item, const Ids& ids) {
        at::Tensor logits = at::zeros({4});
        if (item == 2 && ids.size() == 4) logits[1] = broken;
        return logits;
      });
      try {
        generate(decoder, {.max_new_tokens = 9, .num_beams = beams}, {.numbers = {10, 11, 12}});
        FAIL() << "no error";
      } catch (const Error& e) {
        EXPECT_EQ(e.fault(), Fault::kInternal);
        EXPECT_NE(std::string(e.what()).find(beams == 1 ? "row 2 at step 3" : "row 4 at step 3"), std::string::npos)
            << e.what();
        EXPECT_NE(std::string(e.what()).find("item 12"), std::string::npos);
      }
    }
  }
}

TEST(Generate, TellsTokensStepByStepAndStopsWhenTold) {
  const std::vector<uint64_t> seeds = {1, 2, 3};
  const GenerationOptions options{.max_new_tokens = 9, .eos_token_id = {0}};
  RowDecoder decoder = table_decoder(7, seeds);
  std::vector<Ids> seen(3);
  std::vector<bool> ended(3);
  const auto all = generate(decoder, options, {.on_step = [&](const std::vector<NewToken>& tokens) {
                              for (const auto& token : tokens) {
                                EXPECT_FALSE(ended[static_cast<size_t>(token.item)]);
                                seen[static_cast<size_t>(token.item)].push_back(token.id);
                                ended[static_cast<size_t>(token.item)] = token.finished;
                              }
                              return true;
                            }});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(seen[i], all.items[i][0].ids);
    EXPECT_TRUE(ended[i]);
  }
  for (const int64_t beams : {1, 3}) {
    RowDecoder stopped = table_decoder(7, seeds);
    int calls = 0;
    GenerationOptions some = options;
    some.num_beams = beams;
    some.min_new_tokens = 5;
    const auto result = generate(stopped, some, {.on_step = [&](const std::vector<NewToken>&) { return ++calls < 3; }});
    EXPECT_EQ(calls, 3);
    EXPECT_EQ(stopped.steps, 2);
    for (const auto& item : result.items) {
      ASSERT_EQ(item.size(), 1u);
      EXPECT_EQ(item[0].ids.size(), 3u);
      EXPECT_EQ(item[0].finish, Finish::kCancelled);
    }
  }
}

TEST(Generate, RefusesBeforeAnyWork) {  // FR-41
  RowDecoder decoder(std::vector<Ids>(2, {1, 2, 3}), 5, [](int64_t, const Ids&) -> at::Tensor {
    ADD_FAILURE() << "the model was read";
    return at::zeros({5});
  });
  decoder.limit = 16;
  EXPECT_THROW(generate(decoder, {.max_new_tokens = 20}), Error);
  EXPECT_THROW(generate(decoder, {.max_new_tokens = 3, .stop_strings = {"x"}}), Error);
  EXPECT_THROW(generate(decoder, {.max_new_tokens = 3}, {.numbers = {1}}), Error);
  EXPECT_THROW(generate(decoder, {.max_new_tokens = 3}, {.encoder_ids = {{1}}}), Error);
  EXPECT_THROW(generate(decoder, {.max_new_tokens = 3, .suppress_tokens = {5}}), Error);
}

TEST(Generate, FillsTheLastPlaceOfThePositionTable) {
  RowDecoder decoder = constant_decoder(at::tensor({0., 1., 2.}));
  decoder.limit = 16;
  EXPECT_EQ(generate(decoder, {.max_new_tokens = 15}).items[0][0].ids.size(), 15u);
  RowDecoder unasked = constant_decoder(at::tensor({0., 1., 2.}));
  unasked.limit = 16;
  EXPECT_EQ(generate(unasked, {}).items[0][0].ids.size(), 15u);  // the default of 20 gives way
  RowDecoder endless = constant_decoder(at::tensor({0., 1., 2.}));
  EXPECT_EQ(generate(endless, {}).items[0][0].ids.size(), 20u);
}

TEST(Generate, KeepsNoGraph) {  // FR-118
  at::Tensor weights = at::tensor({0., 1., 2.});
  weights.requires_grad_(true);
  RowDecoder decoder({{0}}, 3, [&](int64_t, const Ids&) {
    at::Tensor logits = weights * 2;
    EXPECT_FALSE(logits.requires_grad());
    return logits;
  });
  generate(decoder, {.max_new_tokens = 3});
  EXPECT_TRUE(at::GradMode::is_enabled());
}

}  // namespace
}  // namespace palimpsest::generate
