// SPDX-License-Identifier: Apache-2.0
// Causal attention over n slots that every token writes before it reads (ALGORITHMS 1.1 and 1.5).
#pragma once

#include "palimpsest/attention/partial.h"

namespace palimpsest::attention {

/// How token i enters slot m, with s = control [B, H, L, n]:
///   running   K_t = sum_{i<=t} exp(s_i) k_i / A_t, A_t = sum_{i<=t} exp(s_i): a moving average (the default of
///   ABC_MLP) frozen    K_t = sum_{i<=t} (exp(s_i) / A_i) k_i: what was written stays (the paper's footnote, literally)
///   additive  K_t = sum_{i<=t} s_i k_i: s are the weights themselves
/// -inf (running, frozen) or 0 (additive) writes nothing; a slot into which nothing was written is not read.
enum class SlotWriting { kRunning, kFrozen, kAdditive };

/// What a stream carries: `mass` [B, H, n] is log A (additive: 0 once something was written, -inf before); key and
/// value [B, H, n, D].
struct SlotState {
  at::Tensor mass, key, value;
  bool defined() const { return mass.defined(); }
  /// Before anything was written; `readable`: slots count as written to from the start.
  static SlotState empty(int64_t batch, int64_t heads, int64_t slots, int64_t width, const at::TensorOptions& options,
                         bool readable = false);
};

struct SlotScan {
  at::Tensor query, key, value;   ///< [B, H, L, D]
  at::Tensor control;             ///< [B, H, L, n]
  at::Tensor value_control = {};  ///< additive only: values are written with weights of their own
  SlotWriting writing = SlotWriting::kRunning;
  SlotState start = {};  ///< a constant; undefined: empty
};

/// Query t reads what tokens up to t wrote: by the fused kernel (float32 on the CPU, keys and values written alike),
/// else as chunked_slot_scan_part.
std::shared_ptr<const Part> slot_scan_part(SlotScan scan);

/// The kernel's plain twin: chunk by chunk, forward and backward in closed form out of matrix products; no [L, n, D]
/// and no [L, L] tensor. Its own plain twin is the quadratic form.
std::shared_ptr<const Part> chunked_slot_scan_part(SlotScan scan);

/// The state after the last token. No graph.
SlotState slot_scan_end(const SlotScan& scan);

}  // namespace palimpsest::attention
