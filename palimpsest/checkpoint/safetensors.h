// SPDX-License-Identifier: Apache-2.0
// Tensors on disk: the safetensors format (a JSON header and a memory map), read strictly and written atomically.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "palimpsest/core/files.h"

namespace palimpsest::checkpoint {

/// One entry of the header.
struct TensorInfo {
  std::string name, dtype;      ///< the dtype as the format spells it: "F32", "BF16", …
  std::vector<int64_t> shape;   ///< as in the file; empty for a scalar
  uint64_t begin = 0, end = 0;  ///< bytes within the data section

  uint64_t bytes() const { return end - begin; }
};

/// A safetensors file, memory-mapped and immutable. Copies share the map.
/// Everything is checked at the door: once opened, every entry lies within the file and has the size that its
/// shape and dtype say. What the reference reader (version 0.8) refuses is refused; what it takes is taken, but for
/// two entries of one name that differ (it keeps the last), dimensions of 2^63 and more, and entries that are lists.
class Safetensors {
 public:
  /// Throws an input error that names the file, the tensor and the reason.
  static Safetensors open(const std::string& path);
  static Safetensors parse(std::shared_ptr<const MappedFile> file);
  /// The same for bytes that are in memory; `name` stands for the file in messages and as path().
  static Safetensors parse(std::string bytes, const std::string& name);

  /// In the order of their data.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(const std::string& name) const { return index_.count(name) != 0; }
  /// Throws an input error that names the nearest tensor where there is none of this name.
  const TensorInfo& info(const std::string& name) const;
  /// A view of the map wherever the data is aligned to its element (the map lives as long as the view; writing
  /// to it changes neither the file nor what others see of it), else a copy. Throws an input error for a dtype
  /// that tensors do not have (F6_E2M3, F6_E3M2).
  at::Tensor tensor(const std::string& name) const;
  const std::string& path() const { return path_; }

 private:
  Safetensors() = default;
  void read(std::string_view file);

  std::shared_ptr<const void> owner_;  // keeps the bytes of data_ alive
  std::string_view data_;              // the data section
  std::string path_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

/// Writes a file that this and the reference reader take, atomically: under a temporary name, then renamed.
/// Tensors are moved to the CPU and made contiguous one at a time as they are written. Larger elements come first
/// (the given order among equal ones), so that every tensor can be viewed without a copy.
void save_safetensors(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

/// The dtype's name in the format, "" where it has none, and back (nullopt where tensors lack it).
std::string safetensors_dtype(at::ScalarType type);

/// The tensors of a model: one file, or the shards that an index names.
class TensorSet {
 public:
  /// A .safetensors file, a .safetensors.index.json, or a folder that holds model.safetensors or
  /// model.safetensors.index.json. Throws an input error that lists all missing shards, all tensors that two
  /// shards hold, or all entries of the index that their shard lacks.
  static TensorSet open(const std::string& folder_or_file);

  /// File by file, in the order of their data.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return file_of_.count(name) != 0; }
  const TensorInfo& info(const std::string& name) const { return file_with(name).info(name); }
  at::Tensor tensor(const std::string& name) const { return file_with(name).tensor(name); }
  /// Of all tensors together.
  uint64_t bytes() const;
  const std::vector<Safetensors>& files() const { return files_; }
  /// Of all files together; of equal keys the first file's.
  std::map<std::string, std::string> metadata() const;
  /// The path given to open().
  const std::string& path() const { return path_; }

 private:
  TensorSet() = default;
  const Safetensors& file_with(const std::string& name) const;
  void add(Safetensors file);
  void open_index(const std::string& path);

  std::string path_;
  std::vector<Safetensors> files_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, size_t> file_of_;
};

}  // namespace palimpsest::checkpoint
