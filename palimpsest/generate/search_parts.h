// SPDX-License-Identifier: Apache-2.0
// What the searches share. Not for users: see search.h.
#pragma once

#include <string>
#include <vector>

#include "palimpsest/generate/logits_rules.h"
#include "palimpsest/generate/search.h"
#include "palimpsest/generate/stop.h"

namespace palimpsest::generate {

/// A checked call.
class Search {
 public:
  /// Everything that can be refused is refused here.
  Search(Decoder& decoder, const GenerationOptions& options, const Request& request);

  Decoder& decoder;
  const GenerationOptions& options;
  const Request& request;
  Lengths lengths;
  RuleList rules;

  int64_t number(int64_t item) const;
  bool ends(int64_t token) const;
  StoppingDecoder new_text() const;
  bool call_back(const std::vector<NewToken>& tokens) const { return !request.on_step || request.on_step(tokens); }

  /// Logits as every search needs them: contiguous on the CPU, float32 or float64.
  at::Tensor start();
  at::Tensor step(const std::vector<int64_t>& tokens);
  /// log(sum(exp(logits))) of each row, [R] double; -inf where nothing is possible. An internal error for a row with
  /// NaN or +infinity.
  std::vector<double> log_sums(const at::Tensor& logits, int64_t step, const std::vector<int64_t>& items) const;
  /// Applies the rules to `scores` in place.
  void apply_rules(at::Tensor& scores, const std::vector<const std::vector<int64_t>*>& ids,
                   const std::vector<int64_t>& items) const;

  Generations result;

 private:
  at::Tensor checked(at::Tensor logits, int64_t rows);
  StopStrings stops_;
};

void search_tokens(Search& search);  ///< greedy and sampling: fills search.result.items
void search_beams(Search& search);

}  // namespace palimpsest::generate
