// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/checkpoint/tensor_names.h"

#include <algorithm>

#include "palimpsest/core/error.h"

namespace palimpsest::checkpoint {

namespace {

using Names = std::vector<std::pair<std::regex, std::string>>;

/// Hugging Face's names for BART, and those of MemBART's authors for what a memory adds.
NameTable bart_table() {
  return {.family = "bart",
          .prefix = "model.",
          .names = Names{{std::regex(R"(shared\.weight)"), "model.shared.weight"},
                         {std::regex(R"((encoder|decoder)_words\.weight)"), "model.$1.embed_tokens.weight"},
                         {std::regex(R"((encoder|decoder)_embeddings\.(.*))"), "model.$1.$2"},
                         {std::regex(R"((encoder|decoder)_layers_(\d+)\.(.*))"), "model.$1.layers.$2.$3"},
                         {std::regex(R"((encoder|decoder|cross)_attention\.layers_(\d+)\.(.*))"),
                          "model.$1_attention.layers.$2.$3"},
                         {std::regex(R"((encoder|decoder|cross)_attention\.shared_(.*))"), "model.$1_attention.$2"},
                         {std::regex(R"(memory\.layers_(\d+)\.self_attn\.(.*))"),
                          "model.encoder.layers.$1.self_attn.mem_$2"},
                         {std::regex(R"(memory\.layers_(\d+)\.(.*))"), "model.encoder.layers.$1.mem_$2"},
                         {std::regex(R"(memory\.readers_(\d+)\.(.*))"), "model.encoder.layers.$1.memory_$2"},
                         {std::regex(R"(memory\.(.*))"), "model.encoder.$1"}},
          .tied = {"model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight",
                   "lm_head.weight"},
          .ignored = std::regex(R"(model\.(encoder|decoder)\.version)"),
          .optional = {"final_logits_bias"}};
}

NameTable gpt2_table() {
  return {.family = "gpt2",
          .prefix = "transformer.",
          .names = Names{{std::regex(R"(h_(\d+)\.(.*))"), "transformer.h.$1.$2"},
                         {std::regex(R"(attention\.layers_(\d+)\.(.*))"), "transformer.attention.layers.$1.$2"},
                         {std::regex(R"(attention\.shared_(.*))"), "transformer.attention.$1"},
                         {std::regex(R"((wte|wpe|ln_f)\.(.*))"), "transformer.$1.$2"}},
          .tied = {"transformer.wte.weight", "lm_head.weight"},
          .ignored = std::regex(R"(transformer\.h\.\d+\.attn\.(masked_)?bias)"),
          .optional = {}};
}

}  // namespace

std::string NameTable::file_name_of(const std::string& module_name) const {
  for (const auto& [pattern, replacement] : names) {
    if (std::regex_match(module_name, pattern)) return std::regex_replace(module_name, pattern, replacement);
  }
  return module_name;
}

bool NameTable::of_memory(const std::string& name) {
  return name.find(".mem_") != std::string::npos || name.find(".memory_") != std::string::npos;
}

bool NameTable::of_mechanism(const std::string& name) {
  static const std::regex pattern(R"((model\.|transformer\.|^)((encoder|decoder|cross)_)?attention\..*)");
  return std::regex_match(name, pattern);
}

std::string NameTable::full_name_of(const std::string& name) const {
  const bool of_head =
      name.starts_with("lm_head.") || std::find(optional.begin(), optional.end(), name) != optional.end();
  return name.starts_with(prefix) || of_head ? name : prefix + name;
}

const NameTable& name_table(const std::string& family) {
  static const std::vector<NameTable> tables = {bart_table(), gpt2_table()};
  for (const NameTable& table : tables) {
    if (table.family == family) return table;
  }
  throw internal_error(fmt::format("no tensor names for the family {}", family));
}

std::vector<std::pair<std::string, at::Tensor>> named_tensors(const models::Model& model) {
  const NameTable& table = name_table(model.family());
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& entry : model.named_parameters())
    tensors.emplace_back(table.file_name_of(entry.key()), entry.value());
  for (const auto& entry : model.named_buffers()) tensors.emplace_back(table.file_name_of(entry.key()), entry.value());
  return tensors;
}

}  // namespace palimpsest::checkpoint
