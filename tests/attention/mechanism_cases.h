// SPDX-License-Identifier: Apache-2.0
// Every mechanism of the registry in every use, for tests that hold all of them to the same.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "palimpsest/attention/mechanism.h"

namespace palimpsest::test {

constexpr int64_t kHeads = 2, kHeadWidth = 6, kWidth = kHeads * kHeadWidth;

/// One mechanism in one use, filled.
struct Subject {
  std::string text;
  attention::Use use;
  std::shared_ptr<attention::Mechanism> mechanism;
  std::string name() const { return text + " as " + attention::use_name(use); }
  bool causal() const { return use == attention::Use::kCausal; }
};

/// All examples of the registry in all uses that are not refused.
std::vector<Subject> subjects(at::ScalarType dtype = at::kDouble);
std::shared_ptr<attention::Mechanism> made(const std::string& text, attention::Use use,
                                           at::ScalarType dtype = at::kDouble);

/// What a mechanism reads, random; the tensors are leaves of the graph.
struct Sample {
  at::Tensor query, key, value, tokens;  ///< [B, H, L, D] three times; [B, L, E]
  Sample(int64_t batch, int64_t length, uint64_t seed, at::ScalarType dtype = at::kDouble, double spread = 1);
  attention::AttentionInput input(const at::Tensor& key_mask = {}) const {
    return {.query = query, .key = key, .value = value, .tokens = tokens, .key_mask = key_mask};
  }
  std::vector<at::Tensor> leaves() const { return {query, key, value, tokens}; }
};

/// The parts that queries read: of the sequence, or of its source.
attention::Parts parts_of(const Subject& subject, const attention::AttentionInput& input);
/// Columns first to first + count of an input.
attention::AttentionInput columns(const attention::AttentionInput& input, int64_t first, int64_t count);
/// `input` through a stream in steps of these sizes, the last one repeated.
at::Tensor streamed(const attention::Mechanism& mechanism, const attention::AttentionInput& input,
                    const std::vector<int64_t>& steps, attention::State& state);

}  // namespace palimpsest::test
