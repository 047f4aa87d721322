// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/generate/greedy.h"

#include <limits>

#include "palimpsest/core/error.h"

namespace palimpsest::generate {

Generated greedy(const models::BartModel& model, const models::EncoderOutput& encoded, const GreedyOptions& options,
                 const OnTokens& on_tokens) {
  const at::NoGradGuard no_grad;
  if (options.max_new_tokens < 0)
    throw usage_error(fmt::format("--max-new-tokens {} is negative", options.max_new_tokens));
  if (options.min_new_tokens > options.max_new_tokens) {
    throw usage_error(fmt::format("--min-new-tokens {} is more than --max-new-tokens {}", options.min_new_tokens,
                                  options.max_new_tokens));
  }
  const int64_t limit = model.config().max_position_embeddings;
  if (options.max_new_tokens > limit) {
    throw usage_error(fmt::format("{} new tokens asked for, but the decoder's position table ends at {}",
                                  options.max_new_tokens, limit),
                      "", fmt::format("give --max-new-tokens {} or less", limit));
  }
  const int64_t batch = encoded.context.size(0);
  Generated result;
  result.sequences.resize(static_cast<size_t>(batch));
  result.scores.assign(static_cast<size_t>(batch), 0.0);
  std::vector<bool> done(static_cast<size_t>(batch), false);
  at::Tensor banned;  // [V] bool
  if (!options.never.empty()) {
    banned = at::zeros({model.config().vocab_size}, at::kBool);
    for (const int64_t id : options.never) banned[id] = true;
    banned = banned.to(encoded.context.device());
  }
  models::DecoderState state;
  at::Tensor ids =
      at::full({batch, 1}, options.start_id, at::TensorOptions(at::kLong).device(encoded.context.device()));
  for (int64_t step = 0; step < options.max_new_tokens; ++step) {
    const at::Tensor hidden = model.decode(ids, {}, encoded, &state);
    at::Tensor scores = at::log_softmax(model.logits(hidden.select(1, -1)).to(at::kFloat), -1);  // [B, V]
    at::Tensor allowed = scores;
    if (banned.defined()) allowed = allowed.masked_fill(banned, -std::numeric_limits<double>::infinity());
    if (step < options.min_new_tokens) {
      allowed = allowed.clone();
      allowed.select(1, options.eos_id).fill_(-std::numeric_limits<double>::infinity());
    }
    const at::Tensor chosen = allowed.argmax(-1, true);  // [B, 1]
    const at::Tensor gained = scores.gather(1, chosen).to(at::kDouble).cpu().contiguous();
    const at::Tensor on_cpu = chosen.cpu().contiguous();
    std::vector<int64_t> tokens(static_cast<size_t>(batch), -1);
    bool all_done = true;
    for (size_t b = 0; b < tokens.size(); ++b) {
      if (done[b]) continue;
      tokens[b] = on_cpu.data_ptr<int64_t>()[b];
      result.sequences[b].push_back(tokens[b]);
      result.scores[b] += gained.data_ptr<double>()[b];
      done[b] = tokens[b] == options.eos_id;
      all_done = all_done && done[b];
    }
    if (on_tokens && !on_tokens(tokens)) break;
    if (all_done) break;
    ids = chosen;
  }
  result.state_bytes = state.bytes();
  return result;
}

}  // namespace palimpsest::generate
