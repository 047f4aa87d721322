// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/generate/greedy.h"

#include "palimpsest/core/error.h"
#include "palimpsest/generate/model_decoder.h"
#include "palimpsest/generate/search.h"

namespace palimpsest::generate {

Generated greedy(const models::Model& model, const models::EncoderOutput& encoded, const GreedyOptions& options) {
  if (options.max_new_tokens < 0) throw usage_error(fmt::format("{} new tokens asked for", options.max_new_tokens));
  const auto decoder = make_decoder(model, encoded, at::full({encoded.rows(), 1}, options.start_id, at::kLong));
  GenerationOptions search;
  search.max_new_tokens = options.max_new_tokens;
  search.min_new_tokens = options.min_new_tokens;
  search.eos_token_id = {options.eos_id};
  search.suppress_tokens = options.never;
  auto found = generate(*decoder, search);
  Generated result;
  for (auto& item : found.items) {
    result.sequences.push_back(std::move(item.front().ids));
    result.scores.push_back(item.front().score);
  }
  result.state_bytes = found.state_bytes;
  return result;
}

}  // namespace palimpsest::generate
