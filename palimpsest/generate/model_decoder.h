// SPDX-License-Identifier: Apache-2.0
// Every family of models as a Decoder.
#pragma once

#include <memory>

#include "palimpsest/generate/decoder.h"
#include "palimpsest/models/bart.h"
#include "palimpsest/models/gpt2.h"

namespace palimpsest::generate {

/// An encoder-decoder that writes from what was encoded. start_ids [B, T] int64: the decoder's start token, perhaps
/// with a forced beginning. Keys of the source are computed once a source and never repeated for its beams. `model`
/// must outlive the decoder.
std::unique_ptr<Decoder> make_decoder(const models::BartModel& model, models::EncoderOutput encoded,
                                      const at::Tensor& start_ids);

/// A decoder that goes on from prompts: ids [B, T] int64, padded on the left; mask [B, T] bool (true = real), or
/// undefined where nothing is padded. A row without a real token is a usage error.
std::unique_ptr<Decoder> make_decoder(const models::Gpt2Model& model, const at::Tensor& ids, const at::Tensor& mask);

/// Either of the two: writes from what a model has read. start_ids [B, T] int64 come after it.
std::unique_ptr<Decoder> make_decoder(const models::Model& model, models::EncoderOutput encoded,
                                      const at::Tensor& start_ids);

}  // namespace palimpsest::generate
