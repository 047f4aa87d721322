// SPDX-License-Identifier: Apache-2.0
// The flags and recipe keys that choose mechanisms and positions.
#pragma once

#include <map>
#include <string>

namespace palimpsest::models {

/// Values of the `palimpsest` object's keys of the same names; empty: as the folder says, or dense and absolute.
struct AttentionTexts {
  std::string attention, decoder_attention, cross_attention, positions;
  static void fields(auto& o, auto&& field) {
    field(
        "attention", o.attention,
        "attention mechanism of an encoder's layers, or of a GPT-2's: dense, chunk:512, window:256, abc:32, …, for all "
        "layers or by ranges as in 0-5=window:256,6-11=abc:32 (docs/attention.md has all)");
    field("decoder_attention", o.decoder_attention, "the same for the decoder of an encoder-decoder");
    field("cross_attention", o.cross_attention, "the same for the decoder's look at its source");
    field("positions", o.positions,
          "absolute | segment:S (place p is row p mod S of the table, so that a text may go on past it) | none");
  }
  std::map<std::string, std::string> given() const {
    std::map<std::string, std::string> texts;
    for (const auto& [key, text] :
         {std::pair("attention", &attention), std::pair("decoder_attention", &decoder_attention),
          std::pair("cross_attention", &cross_attention), std::pair("positions", &positions)})
      if (!text->empty()) texts[key] = *text;
    return texts;
  }
};

}  // namespace palimpsest::models
