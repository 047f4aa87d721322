// SPDX-License-Identifier: Apache-2.0
// Files: whole reads, memory maps, and writes that are either complete or absent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace palimpsest {

/// The whole file. Throws an input error where it cannot be read.
std::string read_file(const std::string& path);

/// Writes `bytes` under a temporary name in the same folder, flushes them to disk, then renames.
/// A reader sees the old file or the new one, never a part. Throws and removes the temporary on failure.
void write_file_atomically(const std::string& path, std::string_view bytes);

/// The same piece by piece, for what is too big to hold twice: `fill` is called once, with the function that
/// appends bytes. Where it throws, the old file stays.
using AppendBytes = std::function<void(std::string_view)>;
void write_file_atomically(const std::string& path, const std::function<void(const AppendBytes&)>& fill);

/// The same for a folder: `fill` writes into a temporary sibling, which is flushed and then renamed to
/// `path`. An existing `path` is replaced in one step (where the file system can exchange two names, as all
/// usual ones on Linux do). Throws and removes the temporary on failure.
void write_folder_atomically(const std::string& path, const std::function<void(const std::string&)>& fill);

/// Removes what a killed process left of write_*_atomically in `folder` (names with ".tmp-").
void remove_stale_temporaries(const std::string& folder);

/// A read-only memory map of a whole file; shared by whoever holds the pointer. The bytes stay valid
/// after the file is renamed or removed; a file that is truncated meanwhile is not protected against.
class MappedFile {
 public:
  /// Throws an input error where the file cannot be opened or is a folder.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

/// Resident bytes of this process now, and the most it ever had (Linux; 0 elsewhere).
struct ResidentBytes {
  int64_t now = 0, peak = 0;
};
ResidentBytes resident_bytes();

/// $PALIMPSEST_SHARED, else "../shared" beside the source tree or working directory; "" where absent.
std::string shared_folder();

}  // namespace palimpsest
