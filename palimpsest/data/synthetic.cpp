// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/data/synthetic.h"

#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"

namespace palimpsest::data {

std::shared_ptr<const Corpus> uniform_corpus(const UniformOptions& options) {
  if (options.documents < 1 || options.length < 1 || options.symbols < 1) {
    throw usage_error(
        fmt::format("{} documents of {} tokens over {} symbols", options.documents, options.length, options.symbols),
        "", "all three must be at least 1");
  }
  std::vector<std::vector<int32_t>> documents(static_cast<size_t>(options.documents));
  for (size_t document = 0; document < documents.size(); ++document) {
    Random random(random_key(options.seed, document));
    documents[document].resize(static_cast<size_t>(options.length));
    for (int32_t& id : documents[document]) id = options.first_id + static_cast<int32_t>(random.below(options.symbols));
  }
  return corpus_of(documents);
}

}  // namespace palimpsest::data
