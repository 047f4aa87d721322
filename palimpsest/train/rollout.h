// SPDX-License-Identifier: Apache-2.0
// Back-propagation through a few segments of a memory: plain, or by replay at the memory cost of one segment.
#pragma once

#include <functional>

#include "palimpsest/memory/memory_stream.h"

namespace palimpsest::train {

/// What one step of a rollout gives.
struct StepOutput {
  at::Tensor loss;        ///< scalar, weighted; undefined where the step has no target
  memory::Memory memory;  ///< [B, M, E]: M_{t+1}
};

/// `steps` consecutive segments of the same lanes, between two cuts of the graph (ALGORITHMS 3.5).
struct Rollout {
  int64_t steps = 1;
  memory::Memory start = {};  ///< M_0, values only; undefined slots for a model without a memory
  /// Reads M_t and computes step t with its graph. Everything random in it must follow from t: replay calls it for
  /// another t in between, and again for one whose memory was already computed.
  std::function<StepOutput(int64_t t, const memory::Memory& memory)> step = {};
  /// M_{t+1} of M_t alone, with the same random numbers; only called for replay, without a graph.
  std::function<memory::Memory(int64_t t, const memory::Memory& memory)> write = {};
  bool replay = false;
  int64_t carry = 0;  ///< how many steps the carried memory has read; 0: all
  /// Called before the backward pass after which gradients are whole (never where nothing has a target).
  std::function<void()> before_last_backward = {};
};

struct RolloutResult {
  memory::Memory carried;      ///< M_carry, values only
  at::Tensor memory_gradient;  ///< of the losses with respect to M_0 [B, M, E]; undefined where nothing depends on it
};

/// Adds the gradients of sum_t loss_t to the parameters.
/// Plain: one graph over all steps. Replay (memory replay back-propagation, ALGORITHMS 3.6): the memories M_0..M_{T-1}
/// are computed without a graph; then, from the last step to the first, each is computed again from its stored memory
/// and back-propagated together with the gradient of the memory that it wrote. The same gradients (M11), with the
/// activations of one step instead of T, for T - 1 more forward passes of the encoder.
RolloutResult backpropagate(const Rollout& rollout);

}  // namespace palimpsest::train
