// SPDX-License-Identifier: Apache-2.0
// What single mechanisms are: identities of ALGORITHMS A1 to A6, A9, A11, A17, A18, A22 and G13, the texts that choose
// them, and which uses are refused.
#include <deque>
#include <limits>
#include <set>

#include "palimpsest/core/error.h"
#include "tests/attention/mechanism_cases.h"
#include "tests/support/tensors.h"

namespace palimpsest::attention {
namespace {

using namespace test;

/// Softmax attention under a mask [L, S] or broader.
at::Tensor masked(const Sample& s, const at::Tensor& mask) {
  return attend_plain({dense_part(s.query, s.key, s.value, {.mask = mask.view({1, 1, mask.size(-2), mask.size(-1)})})});
}

at::Tensor run(const std::string& text, Use use, const Sample& sample, const at::Tensor& mask = {}) {
  return attend(parts_of({text, use, made(text, use)}, sample.input(mask)));
}

at::Tensor position(int64_t length) { return at::arange(length, at::kLong); }

TEST(Mechanism, ExactAndWideOnesEqualDense) {
  for (const int64_t length : {1, 9, 40}) {
    const Sample sample(2, length, 1);
    const at::Tensor both = run("dense", Use::kEncoder, sample), causal = run("dense", Use::kCausal, sample);
    for (const char* text :
         {"exact", "chunk:40", "window:100", "global:first=40", "compressive:rate=1", "cluster:40"}) {
      if (std::string(text) == "cluster:40" && length != 40) continue;
      expect_close(run(text, Use::kEncoder, sample), both, 1e-10, text);
    }
    for (const char* text :
         {"exact", "chunk:40", "window:40", "global:first=40", "dilated:window=40,gap=1", "strided:1", "strided:40",
          "compressive:window=40,slots=1,rate=2", "compressive:window=1,slots=40,rate=1"})
      expect_close(run(text, Use::kCausal, sample), causal, 1e-10, text);
    expect_close(run("exact", Use::kCross, sample), run("dense", Use::kCross, sample), 1e-10, "cross");
  }
}

/// A first-in first-out memory of n slots, as the papers write a window, and read with occupancy.
TEST(Mechanism, AWindowIsAFirstInFirstOutMemory) {
  constexpr int64_t kLength = 50, kSlots = 7;
  for (const int64_t gap : {1, 3}) {
    const Sample sample(2, kLength, 2);
    std::vector<at::Tensor> outs;
    std::vector<std::deque<int64_t>> held(static_cast<size_t>(gap));  // a memory for each place modulo the gap
    for (int64_t t = 0; t < kLength; ++t) {
      auto& slots = held[static_cast<size_t>(t % gap)];
      slots.push_back(t);
      if (static_cast<int64_t>(slots.size()) > kSlots) slots.pop_front();
      const at::Tensor index = at::tensor(std::vector<int64_t>(slots.begin(), slots.end()), at::kLong);
      outs.push_back(attend_plain({dense_part(sample.query.narrow(2, t, 1), sample.key.index_select(2, index),
                                              sample.value.index_select(2, index))}));
    }
    const std::string text = gap == 1 ? "window:7" : "dilated:window=7,gap=3";
    expect_close(run(text, Use::kCausal, sample), at::cat(outs, 2), 1e-10, text);
  }
}

TEST(Mechanism, PatternsEqualTheirMasks) {
  constexpr int64_t kLength = 150;
  const Sample sample(2, kLength, 3);
  const at::Tensor i = position(kLength).view({-1, 1}), j = position(kLength).view({1, -1}), back = i - j;
  const at::Tensor past = back.ge(0);
  expect_close(run("window:20", Use::kEncoder, sample), masked(sample, back.abs().le(10)), 1e-10, "window");
  expect_close(run("window:20", Use::kCausal, sample), masked(sample, past.logical_and(back.lt(20))), 1e-10, "causal");
  expect_close(run("dilated:window=5,gap=4", Use::kCausal, sample),
               masked(sample, past.logical_and(back.lt(20)).logical_and(back.remainder(4).eq(0))), 1e-10, "dilated");
  const at::Tensor same = at::div(i, 16, "floor").eq(at::div(j, 16, "floor"));
  expect_close(run("chunk:16", Use::kEncoder, sample), masked(sample, same), 1e-10, "chunk");
  expect_close(run("chunk:16", Use::kCausal, sample), masked(sample, same.logical_and(past)), 1e-10, "causal chunk");
  const at::Tensor global = j.lt(3).logical_or(i.lt(3));
  expect_close(run("global:first=3,window=20", Use::kEncoder, sample),
               masked(sample, back.abs().le(10).logical_or(global)), 1e-10, "global and window");
  expect_close(run("global:first=3,window=20", Use::kCausal, sample),
               masked(sample, past.logical_and(back.lt(20).logical_or(j.lt(3)))), 1e-10, "causal global and window");
  const at::Tensor some = j.eq(5).logical_or(j.eq(77)).logical_or(i.eq(5)).logical_or(i.eq(77));
  expect_close(run("global:at=5;77", Use::kEncoder, sample), masked(sample, some), 1e-10, "places");
}

TEST(Mechanism, AGlobalMaskIsOfEachRowAndCountsNoKeyTwice) {
  constexpr int64_t kLength = 60;
  const Sample sample(2, kLength, 4);
  at::Tensor global = at::zeros({2, kLength}, at::kBool);
  global[0][3] = global[0][40] = global[1][0] = true;
  AttentionInput input = sample.input();
  input.global_mask = global;
  const at::Tensor got = attend(made("global:mask,window=8", Use::kEncoder)->parts(input));
  const at::Tensor near = (position(kLength).view({-1, 1}) - position(kLength).view({1, -1})).abs().le(4);
  const at::Tensor shown =
      near.unsqueeze(0).logical_or(global.unsqueeze(1)).logical_or(global.unsqueeze(2)).unsqueeze(1);
  expect_close(got, attend_plain({dense_part(sample.query, sample.key, sample.value, {.mask = shown})}), 1e-10);
}

TEST(Mechanism, LearnedSlotsPoolTheTokens) {
  const Sample sample(2, 30, 5);
  const auto mechanism = made("abc:4", Use::kEncoder);
  const at::Tensor weight = mechanism->parameters().at(0);  // [H n, E]
  const at::Tensor s = at::matmul(sample.tokens, weight.t()).view({2, 30, kHeads, 4}).permute({0, 2, 3, 1});
  const at::Tensor phi = at::softmax(s, -1);  // [B, H, n, S]
  expect_close(phi.sum(-1), at::ones({2, kHeads, 4}, at::kDouble), 1e-12);
  const at::Tensor expected =
      attend_plain({dense_part(sample.query, at::matmul(phi, sample.key), at::matmul(phi, sample.value))});
  const at::Tensor out = attend(mechanism->parts(sample.input()));
  expect_close(out, expected, 1e-10);

  // The causal slots of the last token are those of the encoder.
  const auto causal = made("abc:4", Use::kCausal);
  {
    const at::NoGradGuard no_grad;
    causal->parameters().at(0).copy_(weight);
  }
  expect_close(attend(causal->parts(sample.input())).select(2, 29), out.select(2, 29), 1e-10);

  // The order of the slots, and that of the tokens, is no matter.
  {
    const at::NoGradGuard no_grad;
    causal->parameters().at(0).copy_(weight.view({kHeads, 4, kWidth}).flip(1).reshape({kHeads * 4, kWidth}));
  }
  expect_close(attend(causal->parts(sample.input())).select(2, 29), out.select(2, 29), 1e-10, "slots in another order");
  AttentionInput turned = sample.input();
  for (at::Tensor* rows : {&turned.query, &turned.key, &turned.value}) *rows = rows->flip(2);
  turned.tokens = turned.tokens.flip(1);
  expect_close(attend(mechanism->parts(turned)).flip(2), out, 1e-10, "tokens in another order");
  const auto linformer = made("linformer:4", Use::kEncoder);
  EXPECT_GT(
      (attend(linformer->parts(turned)).flip(2) - attend(linformer->parts(sample.input()))).abs().max().item<double>(),
      1e-3);
}

TEST(Mechanism, LinformerWithTheIdentityIsDense) {
  const Sample sample(2, 12, 6);
  const auto identity = [&](const std::string& text, Use use) {
    auto mechanism = made(text, use);
    const at::NoGradGuard no_grad;
    mechanism->parameters().at(0).copy_(at::eye(12, at::kDouble).unsqueeze(0).expand({kHeads, 12, 12}));
    return attend(parts_of({text, use, mechanism}, sample.input()));
  };
  expect_close(identity("linformer:12,max=12", Use::kEncoder), run("dense", Use::kEncoder, sample), 1e-10);
  const at::Tensor causal = run("dense", Use::kCausal, sample);
  expect_close(identity("linformer:12,max=12,occupancy", Use::kCausal), causal, 1e-10);
  EXPECT_GT((identity("linformer:12,max=12", Use::kCausal) - causal).abs().max().item<double>(), 1e-3);
}

TEST(Mechanism, RandomSlotsAreDrawnAnewInTrainingAlone) {
  const Sample sample(2, 40, 8);
  const auto mechanism = made("random:5", Use::kEncoder);
  AttentionInput input = sample.input();
  const at::Tensor once = attend(mechanism->parts(input));
  expect_identical(attend(mechanism->parts(input)), once);
  input.training = true;
  EXPECT_GT((attend(mechanism->parts(input)) - attend(mechanism->parts(input))).abs().max().item<double>(), 1e-3);
  expect_identical(attend(made("random:5,seed=0", Use::kEncoder)->parts(sample.input())), once);
  EXPECT_GT((attend(made("random:5,seed=1", Use::kEncoder)->parts(sample.input())) - once).abs().max().item<double>(),
            1e-3);
}

TEST(MechanismRegistry, RefusesWhatDesignListsAndNothingElse) {
  const auto listed = [](const std::string& text, Use use) {
    const std::string name = text.substr(0, text.find(':'));
    const std::set<std::string> not_cross = {"chunk", "window", "dilated", "strided", "lsh"};
    const std::set<std::string> not_encoder = {"dilated", "strided"}, not_causal = {"cluster", "workspace"};
    switch (use) {
      case Use::kCross:
        return not_cross.contains(name) || text.find("window=8") != std::string::npos ||
               (name == "global" && text.find("window") != std::string::npos);
      case Use::kEncoder:
        return not_encoder.contains(name);
      case Use::kCausal:
        return not_causal.contains(name) || text.find("permute") != std::string::npos ||
               (name == "global" && text.find("first") == std::string::npos);
    }
    return false;
  };
  for (const MechanismKind& kind : mechanism_kinds()) {
    EXPECT_FALSE(kind.examples.empty()) << kind.name << " has no example, so nothing tests it";
    for (const std::string& text : kind.examples) {
      for (const Use use : {Use::kEncoder, Use::kCross, Use::kCausal}) {
        std::string why;
        try {
          made(text, use);
        } catch (const Error& error) {
          why = error.what();
        }
        EXPECT_EQ(!why.empty(), listed(text, use)) << text << " as " << use_name(use) << ": " << why;
      }
    }
  }
}

TEST(MechanismRegistry, AWrongTextIsNamedWithWhatIsMeant) {
  const auto said = [](const std::string& text, Use use = Use::kEncoder) {
    try {
      made(text, use);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2) << text;
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(said("windw:4").find("window"), std::string::npos);
  for (const char* text : {"window",
                           "window:0",
                           "window:-3",
                           "window:4.5",
                           "window:x",
                           "window:4,4",
                           "window:4,colour=red",
                           "window:",
                           "abc:4,normalizer=x",
                           "abc:4,untied=1",
                           "chunk:99999999999999999999",
                           "dense:4",
                           "global:window=4",
                           "global:at=",
                           "global:at=1;x",
                           "global:first=2,mask",
                           "dilated:4",
                           "",
                           "compressive:rate=0",
                           "abc:4,abc:4",
                           "random:4,mean,mean"})
    EXPECT_FALSE(said(text).empty()) << "\"" << text << "\" was taken";
  EXPECT_NE(said("cluster:4", Use::kCausal).find("whole text"), std::string::npos);
}

TEST(MechanismRegistry, TextsOfLayers) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(mechanism_texts("window:4", 3), Texts({"window:4", "window:4", "window:4"}));
  EXPECT_EQ(mechanism_texts("", 2), Texts({"dense", "dense"}));
  EXPECT_EQ(mechanism_texts("0-1=window:4,2=abc:8,normalizer=frozen", 3),
            Texts({"window:4", "window:4", "abc:8,normalizer=frozen"}));
  EXPECT_EQ(mechanism_texts("2=dense,0-1=global:first=2,window=8", 3),
            Texts({"global:first=2,window=8", "global:first=2,window=8", "dense"}));
  for (const char* text :
       {"0=dense", "0-3=dense", "0-2=dense,1=abc:4", "1-0=dense,2=dense", "0-=dense", "0-2=", "9", "0-2"})
    EXPECT_THROW(mechanism_texts(text, 3), Error) << text;
}

TEST(Mechanism, LinformerNamesItsEnd) {
  const Sample sample(1, 13, 9);
  try {
    run("linformer:4,max=12", Use::kEncoder, sample);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("12"), std::string::npos);
  }
}

}  // namespace
}  // namespace palimpsest::attention
