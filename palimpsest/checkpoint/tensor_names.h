// SPDX-License-Identifier: Apache-2.0
// The names of tensors in files, one table per family.
#pragma once

#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "palimpsest/models/model.h"

namespace palimpsest::checkpoint {

struct NameTable {
  std::string family;
  /// What all names but those of the head start with; files may leave it out.
  std::string prefix;
  /// Module names and the file's; the first that matches the whole name counts, others stay as they are.
  std::vector<std::pair<std::regex, std::string>> names;
  /// Names under which one tied table may stand in a file, the one it is saved under first.
  std::vector<std::string> tied;
  /// Buffers of other programs that hold no weights: passed over without a word.
  std::regex ignored;
  /// Starts at 0 where a file lacks it.
  std::vector<std::string> optional;

  /// "memory.layers_0.fc1.weight" -> "model.encoder.layers.0.mem_fc1.weight".
  std::string file_name_of(const std::string& module_name) const;
  /// Whether a name in a file is of a memory, or of a learned attention mechanism.
  static bool of_memory(const std::string& name);
  static bool of_mechanism(const std::string& name);
  /// The full name of what a file calls `name`: with the prefix, where leaving it out is the only difference.
  std::string full_name_of(const std::string& name) const;
};

/// An internal error for a family without a table.
const NameTable& name_table(const std::string& family);

/// Every tensor of a model under its name in the file: parameters first, then buffers.
std::vector<std::pair<std::string, at::Tensor>> named_tensors(const models::Model& model);

}  // namespace palimpsest::checkpoint
