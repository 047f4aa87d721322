// SPDX-License-Identifier: Apache-2.0
// Mechanisms whose queries read n slots that a control wrote (ABC; ALGORITHMS 1.1 to 1.4). A control says what each
// token writes; encoder, cross and causal form follow from it.
#pragma once

#include "palimpsest/attention/mechanism.h"
#include "palimpsest/attention/slot_scan.h"

namespace palimpsest::attention {

class SlotMechanism : public Mechanism {
 public:
  Parts own_parts(const AttentionInput& input) const override;
  Parts step(const AttentionInput& next, State& state, const std::string& name) const override;
  Source source(const AttentionInput& input) const override;
  at::Tensor sees(int64_t length) const override;

 protected:
  using Mechanism::Mechanism;
  struct Control {
    at::Tensor weights;             ///< [B or 1, H or 1, S, n]
    at::Tensor value_weights = {};  ///< additive only: where values are written otherwise than keys
    SlotWriting writing = SlotWriting::kRunning;
  };
  /// What each token writes. position [B or 1, S] int64: its place in the text. Padding is taken out by the caller.
  virtual Control control(const AttentionInput& input, const at::Tensor& position) const = 0;
  /// Whether a slot into which nothing was written is hidden (ALGORITHMS 1.3).
  virtual bool hides_empty() const { return true; }
  /// Whether `control` depends on positions.
  virtual bool needs_positions() const { return true; }

 private:
  SlotScan scan(const AttentionInput& input, const at::Tensor& position, SlotState start) const;
};

}  // namespace palimpsest::attention
