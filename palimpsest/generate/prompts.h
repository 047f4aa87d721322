// SPDX-License-Identifier: Apache-2.0
// From rows of ids to a Decoder, for any family.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "palimpsest/generate/decoder.h"
#include "palimpsest/models/model.h"

namespace palimpsest::generate {

using IdRow = std::vector<int64_t>;

/// Rows side by side, [B, L], with what is real among them.
struct PaddedRows {
  at::Tensor ids;   ///< [B, L] int64
  at::Tensor mask;  ///< [B, L] bool, true = real; undefined where nothing is padded
};
enum class Side { kLeft, kRight };
/// Fills shorter rows up with `pad`, or with 0 where there is none. Runs of `pad` at that end of a row count as padding
/// too, as in the reference.
PaddedRows pad_rows(const std::vector<IdRow>& rows, std::optional<int64_t> pad, Side side);

struct PromptOptions {
  std::optional<int64_t> pad_id = {};  ///< unset: every id of a row is a token
  int64_t decoder_start_id = 2;        ///< of an encoder-decoder
};

/// A decoder that goes on from `rows`: sources of an encoder-decoder (read with a fresh memory), or prompts. `model`
/// must outlive it. Ids outside the vocabulary are a usage error that names row and id.
std::unique_ptr<Decoder> make_decoder(const models::Model& model, const std::vector<IdRow>& rows,
                                      const PromptOptions& options);

}  // namespace palimpsest::generate
