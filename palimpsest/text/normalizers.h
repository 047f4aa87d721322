// SPDX-License-Identifier: Apache-2.0
// The normalizers of a tokenizer.json: what happens to a text before it is cut into words.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "palimpsest/text/aligned_text.h"
#include "palimpsest/text/json_node.h"

namespace palimpsest::text {

/// BertNormalizer: its four steps in this order.
struct BertNormalizer {
  bool clean_text = true;            ///< removes controls, makes all white space ' '
  bool handle_chinese_chars = true;  ///< puts spaces around CJK ideographs
  bool strip_accents = true;         ///< decomposes, removes nonspacing marks; where null in the file: as lowercase
  bool lowercase = true;
};

class Normalizer {
 public:
  Normalizer() = default;
  /// Reads the form of a tokenizer.json; null is no normalizer. A kind that is not known is refused by name.
  explicit Normalizer(const Node& node);

  bool empty() const { return steps_.empty(); }
  /// Set where BertNormalizer is all there is: the words of such a text can be had faster (bert_words.h).
  std::optional<BertNormalizer> only_bert() const;
  void normalize(AlignedText& text) const;
  const Json& json() const { return json_; }  ///< as it was read

 private:
  enum class Kind { kBert, kLowercase, kStripAccents, kDecompose, kCompose, kStrip, kReplace, kPrepend };
  struct Step {
    Kind kind{};
    BertNormalizer bert;
    bool compatibility = false;        ///< of kDecompose, kCompose
    bool left = false, right = false;  ///< of kStrip
    std::string pattern, content;      ///< of kReplace, kPrepend
  };
  void read(const Node& node, int depth);

  std::vector<Step> steps_;
  Json json_;
};

}  // namespace palimpsest::text
