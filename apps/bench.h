// SPDX-License-Identifier: Apache-2.0
// What `palimpsest bench` and its parts share.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "apps/model_flags.h"
#include "palimpsest/core/json.h"

namespace palimpsest::app {

struct BenchFlags {
  ModelFlags model;
  std::string memory;
  int64_t heads = 12, head_dim = 64, source_length = 0, after = -1;
  bool causal = false, backward = false;
  int64_t batch = 1, length = 64, repeats = 7, warm_up = 1, seed = 0, max_new_tokens = 20, num_beams = 1;
  int64_t time_horizon = 1, loss_table_mib = 64;
  double dropout = -1;
  bool replay = false, json = false;
  static void fields(auto& o, auto&& field) {
    field("model", o.model, "");
    field("memory", o.memory, "another memory than the folder's, as in convert");
    field("batch", o.batch, "rows; in train those of all processes together");
    field("length", o.length, "tokens of a row: of source and target in forward and train, of the source in generate");
    field("time_horizon", o.time_horizon, "train: segments that gradients flow back through, each of LENGTH tokens");
    field("replay", o.replay, "train: memory replay, as memory_replay in a recipe");
    field("dropout", o.dropout, "train: instead of the model's own; negative: the model's own");
    field("loss_table_mib", o.loss_table_mib, "train: as in a recipe");
    field("max_new_tokens", o.max_new_tokens, "generate: tokens that are written, no more and no fewer");
    field("num_beams", o.num_beams, "generate: beams");
    field("heads", o.heads, "attention: heads");
    field("head_dim", o.head_dim, "attention: width of a head");
    field("causal", o.causal, "attention: tokens do not see what follows");
    field("source_length", o.source_length,
          "attention: LENGTH queries look at a source of so many tokens, which is prepared once (source_s); 0: at "
          "themselves");
    field("after", o.after,
          "attention: with --causal, LENGTH steps of one token each once so many were read; negative: all at once");
    field("backward", o.backward, "attention: with the gradients");
    field("repeats", o.repeats, "measured runs");
    field("warm_up", o.warm_up, "runs before them");
    field("seed", o.seed, "of the random ids and, without --model, of the weights");
    field("json", o.json, "results as JSON");
  }
};

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Times of the runs, and what else is worth telling.
struct Measured {
  std::vector<double> seconds;
  Json more = Json::object();
  bool silent = false;  ///< another process tells
};

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

inline Measured repeat(const BenchFlags& flags, const std::function<void()>& work) {
  Measured measured;
  for (int64_t i = 0; i < flags.warm_up; ++i) work();
  for (int64_t i = 0; i < flags.repeats; ++i) {
    const auto start = Clock::now();
    work();
    measured.seconds.push_back(seconds_since(start));
  }
  return measured;
}

/// All mechanisms there are, a line each.
void list_mechanisms(bool json);

/// One layer's attention between random queries, keys and values (bench_attention.cpp).
Measured bench_attention(const BenchFlags& flags);

}  // namespace palimpsest::app
