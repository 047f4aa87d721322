// SPDX-License-Identifier: Apache-2.0
// Losses by how much came before: steps of a document put together by place or session, with intervals over documents,
// of one reading or of the difference between two.
#pragma once

#include <vector>

#include "palimpsest/train/evaluate.h"

namespace palimpsest::train {

/// Steps of one range of places or of one session, each document's put together.
struct LossGroup {
  int64_t first = 0, last = 0;  ///< places, or the session's number twice
  LossSum sum = {};
  std::vector<int64_t> spans = {};            ///< documents that have such a step
  std::vector<DocumentScore> documents = {};  ///< nll and targets of each of them
};

/// Places in powers of two (0, 1, 2-3, 4-7, …): far ones are thin. Groups without a target are left out.
std::vector<LossGroup> groups_by_place(const std::vector<StepLoss>& steps);
std::vector<LossGroup> groups_by_session(const std::vector<StepLoss>& steps);

/// `targets`, `nll`, `ppl`, and with two documents or more `interval`, a 95 % bootstrap interval over documents as in
/// LossReport::to_json.
Json group_json(const LossGroup& group);

/// Loss per target of `other` above that of `base`, both of the same targets (an internal error where they are not):
/// `nll_per_target`, and with two documents or more `interval` of drawing both sides' documents together.
Json difference_json(const std::vector<DocumentScore>& base, const std::vector<DocumentScore>& other);

/// Everything about one reading by history: `place` ("turn" or "segment"), `by_place` and, where there is more than one
/// session, `by_session`.
Json history_json(const LossReport& report, bool dialogues);

/// What reading the same targets otherwise changes: `difference` in total, and `by_place` and `by_session` as above for
/// `other`, each with its `difference` from `base`.
Json comparison_json(const LossReport& base, const LossReport& other, bool dialogues);

}  // namespace palimpsest::train
