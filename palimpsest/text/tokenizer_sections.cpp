// SPDX-License-Identifier: Apache-2.0
// The sections of tokenizer.json that come after the model: post-processor, decoder, truncation, padding.
#include <algorithm>

#include "palimpsest/core/error.h"
#include "palimpsest/text/tokenizer_json.h"

namespace palimpsest::text {

namespace {

constexpr const char* kSupported =
    "ByteLevel, RobertaProcessing, BertProcessing, TemplateProcessing, a Sequence of them in which one adds tokens";

int32_t special_id(const Node& pair, const std::vector<std::string>& tokens) {
  if (pair.array().size() != 2) throw pair.error("a token and its id are expected here");
  const std::string token = pair.entry(size_t{0}).string();
  const int64_t id = pair.entry(size_t{1}).integer();
  if (id < 0 || id >= static_cast<int64_t>(tokens.size()) || tokens[static_cast<size_t>(id)] != token) {
    throw pair.error(fmt::format("the vocabulary has no \"{}\" with the id {}", token, id));
  }
  return static_cast<int32_t>(id);
}

/// One of the two templates; `texts` is how many texts it must have a place for.
Template read_template(const Node& node, const char* key, size_t texts, const std::vector<std::string>& tokens) {
  const Node list = node.at(key).array();
  Template pieces;
  size_t places[2] = {0, 0};
  const auto type_of = [](const Node& piece) {
    return piece.is_null("type_id") ? 0 : static_cast<int32_t>(piece.at("type_id").integer_in(0, INT32_MAX));
  };
  for (size_t i = 0; i < list.size(); ++i) {
    const Node piece = list.entry(i).object();
    if (piece.find("Sequence") != nullptr) {
      const Node text = piece.at("Sequence").object();
      const std::string name = text.at("id").string();
      const int32_t sequence = name == "A" ? 0 : 1;
      if ((name != "A" && name != "B") || static_cast<size_t>(sequence) >= texts || ++places[sequence] > 1) {
        throw not_supported(piece, fmt::format("a template \"{}\" that uses ${} here", key, name),
                            texts == 1 ? "$A once" : "$A once and $B once");
      }
      pieces.push_back({.sequence = sequence, .type_id = type_of(text)});
      continue;
    }
    const Node token = piece.at("SpecialToken").object();
    const std::string name = token.at("id").string();
    const Node ids = node.at("special_tokens").object().entry(name).object().at("ids").array();
    for (size_t k = 0; k < ids.size(); ++k) {
      const int64_t id = ids.entry(k).integer();
      if (id < 0 || id >= static_cast<int64_t>(tokens.size()) || tokens[static_cast<size_t>(id)].empty()) {
        throw ids.entry(k).error(fmt::format("no token has the id {}", id));
      }
      pieces.push_back({.id = static_cast<int32_t>(id), .type_id = type_of(token)});
    }
  }
  for (size_t text = 0; text < texts; ++text) {
    if (places[text] == 0)
      throw list.error(fmt::format("the template has no place for the {} text (${})", text == 0 ? "first" : "second",
                                   text == 0 ? "A" : "B"));
  }
  return pieces;
}

/// Reads one post-processor into `post`; `adds` says whether one that adds tokens was there before.
void read_post_processor(const Node& node, const std::vector<std::string>& tokens, bool& adds, PostProcessing& post,
                         int depth) {
  const std::string type = node.type();
  if (type == "Sequence" && depth < 4) {
    const Node list = node.at("processors").array();
    for (size_t i = 0; i < list.size(); ++i) read_post_processor(list.entry(i), tokens, adds, post, depth + 1);
    return;
  }
  if (type == "ByteLevel" || type == "RobertaProcessing") {
    if (node.flag("trim_offsets", true)) post.trims.push_back(node.flag("add_prefix_space", true));
  }
  if (type == "ByteLevel") return;
  PostProcessing read;
  if (type == "RobertaProcessing") {
    read = roberta_post_processing(special_id(node.at("cls"), tokens), special_id(node.at("sep"), tokens));
  } else if (type == "BertProcessing") {
    read = bert_post_processing(special_id(node.at("cls"), tokens), special_id(node.at("sep"), tokens));
  } else if (type == "TemplateProcessing") {
    read.single = read_template(node, "single", 1, tokens);
    read.pair = read_template(node, "pair", 2, tokens);
  } else {
    throw not_supported(node, fmt::format("the post-processor {}", type), kSupported);
  }
  if (std::exchange(adds, true)) throw not_supported(node, "a second post-processor that adds tokens", kSupported);
  post.single = std::move(read.single);
  post.pair = std::move(read.pair);
}

Side read_side(const Node& node) {
  const std::string name = node.text("direction", "Right");
  if (name != "Right" && name != "Left")
    throw not_supported(node, fmt::format("the direction {}", name), "Right, Left");
  return name == "Right" ? Side::kRight : Side::kLeft;
}

}  // namespace

PostProcessing roberta_post_processing(int32_t cls, int32_t sep) {
  PostProcessing post;
  post.single = {{.id = cls}, {.sequence = 0}, {.id = sep}};
  post.pair = {{.id = cls}, {.sequence = 0}, {.id = sep}, {.id = sep}, {.sequence = 1}, {.id = sep}};
  return post;
}

PostProcessing bert_post_processing(int32_t cls, int32_t sep) {
  PostProcessing post;
  post.single = {{.id = cls}, {.sequence = 0}, {.id = sep}};
  post.pair = {{.id = cls}, {.sequence = 0}, {.id = sep}, {.sequence = 1, .type_id = 1}, {.id = sep, .type_id = 1}};
  return post;
}

PostProcessing read_post_processing(const Node& node, const std::vector<std::string>& tokens) {
  PostProcessing post;
  bool adds = false;
  read_post_processor(node, tokens, adds, post, 0);
  post.json = node.json;
  return post;
}

Decoding read_decoding(const Node& root, bool is_word_piece) {
  Decoding decoding;
  decoding.kind = is_word_piece ? Decoding::Kind::kSpaces : Decoding::Kind::kByteLevel;
  if (root.is_null("decoder")) return decoding;
  const char* supported = is_word_piece ? "WordPiece, or null" : "ByteLevel, or null";
  const Node whole = root.at("decoder");
  const std::string type = whole.type();
  if (type == "Sequence" && whole.at("decoders").array().size() != 1)
    throw not_supported(whole, "a Sequence of several decoders", supported);
  const Node node = type == "Sequence" ? whole.at("decoders").entry(size_t{0}) : whole;
  if (node.type() != (is_word_piece ? "WordPiece" : "ByteLevel"))
    throw not_supported(node, fmt::format("the decoder {} for this model", node.type()), supported);
  decoding.json = whole.json;
  if (!is_word_piece) return decoding;
  decoding.kind = Decoding::Kind::kWordPiece;
  decoding.prefix = node.text("prefix", "##");
  decoding.clean_up = node.flag("cleanup", true);
  return decoding;
}

Truncation read_truncation(const Node& node) {
  Truncation truncation;
  truncation.max_length = node.object().at("max_length").integer_in(0, INT32_MAX);
  truncation.stride = node.is_null("stride") ? 0 : node.at("stride").integer_in(0, INT32_MAX);
  truncation.overflow = truncation.stride > 0;
  truncation.side = read_side(node);
  const std::string name = node.text("strategy", "LongestFirst");
  if (name == "OnlyFirst") {
    truncation.strategy = Truncation::Strategy::kOnlyFirst;
  } else if (name == "OnlySecond") {
    truncation.strategy = Truncation::Strategy::kOnlySecond;
  } else if (name != "LongestFirst") {
    throw not_supported(node, fmt::format("the truncation strategy {}", name), "LongestFirst, OnlyFirst, OnlySecond");
  }
  return truncation;
}

Padding read_padding(const Node& node) {
  Padding padding;
  const Node strategy = node.object().at("strategy");
  if (strategy.json.is_object()) {
    padding.length = strategy.at("Fixed").integer_in(0, INT32_MAX);
  } else if (strategy.string() != "BatchLongest") {
    throw not_supported(strategy, fmt::format("the padding strategy {}", strategy.string()), "BatchLongest, Fixed");
  }
  const auto number = [&](const char* key) {
    return node.is_null(key) ? int64_t{0} : node.at(key).integer_in(0, INT32_MAX);
  };
  padding.multiple_of = number("pad_to_multiple_of");
  padding.side = read_side(node);
  padding.id = static_cast<int32_t>(number("pad_id"));
  padding.type_id = static_cast<int32_t>(number("pad_type_id"));
  padding.token = node.text("pad_token", "[PAD]");
  return padding;
}

}  // namespace palimpsest::text
