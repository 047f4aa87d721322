// SPDX-License-Identifier: Apache-2.0
// The one place where data meets a tokenizer.
#include "palimpsest/data/corpus.h"
#include "palimpsest/text/tokenizer.h"

namespace palimpsest::data {

TokenizeFunction tokenize_with(const text::Tokenizer& tokenizer) {
  TokenizeFunction function;
  function.encode = [&tokenizer](std::string_view text) {
    return tokenizer.encode_ids(text, {.add_special = false, .parse_special = false});
  };
  function.fingerprint = tokenizer.fingerprint();
  // A tokenizer that adds a space in front of a text may do so before a line end, too.
  function.cut_at_spaces_only = tokenizer.decode_bytes(function.encode("a")) != "a";
  return function;
}

std::shared_ptr<const Corpus> prepare_corpus(const CorpusOptions& options, const text::Tokenizer& tokenizer,
                                             const std::string& cache_folder) {
  return prepare_corpus(options, tokenize_with(tokenizer), cache_folder);
}

}  // namespace palimpsest::data
