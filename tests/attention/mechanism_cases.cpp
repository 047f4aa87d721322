// SPDX-License-Identifier: Apache-2.0
#include "tests/attention/mechanism_cases.h"

#include <algorithm>

#include "palimpsest/core/error.h"
#include "tests/support/tensors.h"

namespace palimpsest::test {

using namespace attention;

std::shared_ptr<Mechanism> made(const std::string& text, Use use, at::ScalarType dtype) {
  const MechanismPlace place{
      .use = use, .width = kWidth, .heads = kHeads, .layer = 1, .options = at::TensorOptions(dtype)};
  auto mechanism = make_mechanism(text, place);
  mechanism->initialize(7, text);
  return mechanism;
}

std::vector<Subject> subjects(at::ScalarType dtype) {
  std::vector<Subject> all;
  for (const MechanismKind& kind : mechanism_kinds()) {
    for (const std::string& text : kind.examples) {
      for (const Use use : {Use::kEncoder, Use::kCross, Use::kCausal}) {
        try {
          all.push_back({text, use, made(text, use, dtype)});
        } catch (const Error&) {
          // Which are refused is tested by MechanismRegistry.RefusesWhatDesignListsAndNothingElse.
        }
      }
    }
  }
  return all;
}

Sample::Sample(int64_t batch, int64_t length, uint64_t seed, at::ScalarType dtype, double spread) {
  const auto leaf = [&](at::IntArrayRef shape, uint64_t which) {
    return randn(shape, seed * 8 + which, dtype).mul_(spread).requires_grad_(true);
  };
  query = leaf({batch, kHeads, length, kHeadWidth}, 0);
  key = leaf({batch, kHeads, length, kHeadWidth}, 1);
  value = leaf({batch, kHeads, length, kHeadWidth}, 2);
  tokens = leaf({batch, length, kWidth}, 3);
}

Parts parts_of(const Subject& subject, const AttentionInput& input) {
  if (subject.use != Use::kCross) return subject.mechanism->parts(input);
  const Source source = subject.mechanism->source(input);
  return {dense_part(input.query, source.key, source.value, {.key_mask = source.key_mask})};
}

AttentionInput columns(const AttentionInput& input, int64_t first, int64_t count) {
  AttentionInput cut = input;
  for (at::Tensor* rows : {&cut.query, &cut.key, &cut.value}) *rows = rows->narrow(2, first, count);
  for (at::Tensor* rows : {&cut.tokens, &cut.key_mask, &cut.global_mask})
    if (rows->defined()) *rows = rows->narrow(1, first, count);
  return cut;
}

at::Tensor streamed(const Mechanism& mechanism, const AttentionInput& input, const std::vector<int64_t>& steps,
                    State& state) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> outs;
  const int64_t length = input.query.size(2);
  size_t index = 0;
  for (int64_t first = 0; first < length;) {
    const int64_t count = std::min(steps[std::min(index++, steps.size() - 1)], length - first);
    outs.push_back(attend(mechanism.step(columns(input, first, count), state, "layer")));
    first += count;
  }
  return at::cat(outs, 2);
}

}  // namespace palimpsest::test
