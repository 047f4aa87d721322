// SPDX-License-Identifier: Apache-2.0
// The model on given tensors, several segments in a row: what `palimpsest run` does, so that anyone can check parity.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "palimpsest/models/model.h"

namespace palimpsest::train {

using TensorMap = std::map<std::string, at::Tensor>;

/// Inputs (a leading step axis T where several segments follow each other; without it T is 1 and outputs have none
/// either):
///   input_ids [T, B, L]; attention_mask [T, B, L] (1 = real); labels [T, B, S] (-100 = none); step_weights [T] (1 each
///   where absent); of an encoder-decoder also reset [T, B]; memory [B, M, E] (before the first step; fresh where
///   absent); global_attention_mask [T, B, L] (1 = what the mechanism global:mask opens to all); decoder_input_ids,
///   decoder_attention_mask [T, B, S] (made of the labels where absent). A decoder's labels
///   are those of its input_ids: column j is what column j - 1 foretells (as in the reference).
/// Outputs: hidden [T, B, L, E], logits [T, B, S, V] (of a decoder [T, B, L, V]), step_losses [T] (mean over the step's
/// targets), memory [T, B, M, E] (after each step), and of `also`: hidden_states.N, decoder_hidden_states.N, slots.N,
/// gate, attentions.N, grad.NAME (of sum w_t loss_t, through all steps; NAME as in the file, or * for all),
/// grad.memory. Rows whose mask is 0 are set to 0. Unknown input names, wrong shapes and unknown names in `also` are
/// input errors.
TensorMap run_model(models::Model& model, const TensorMap& inputs, const std::vector<std::string>& also = {});

}  // namespace palimpsest::train
