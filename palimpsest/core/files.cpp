// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/core/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "palimpsest/core/error.h"

namespace fs = std::filesystem;

namespace palimpsest {

namespace {

Error file_error(const std::string& what, const std::string& path, int code) {
  return input_error(fmt::format("{}: {}", what, std::strerror(code)), path);
}

std::string temporary_name(const std::string& path) {
  static std::atomic<int> counter{0};
  return fmt::format("{}.tmp-{}-{}", path, ::getpid(), counter++);
}

/// Flushes a file or folder entry to disk.
void flush(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags);
  if (fd < 0) throw file_error("cannot open for flushing", path, errno);
  const int rc = ::fsync(fd);
  const int code = errno;
  ::close(fd);
  if (rc != 0 && code != EINVAL && code != EROFS) throw file_error("cannot flush to disk", path, code);
}

std::string parent_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

/// A new file that is closed at the end of the scope; finish() says whether all of it reached the disk.
/// Errors name `target`, the path that the file is meant for.
class NewFile {
 public:
  NewFile(const std::string& path, const std::string& target)
      : target_(target), fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (fd_ < 0) throw file_error("cannot create", target_, errno);
  }
  ~NewFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void append(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw file_error("cannot write", target_, errno);
      bytes.remove_prefix(static_cast<size_t>(written));
    }
  }

  void finish() {
    if (::fsync(fd_) != 0 && errno != EINVAL && errno != EROFS)
      throw file_error("cannot flush to disk", target_, errno);
    if (::close(std::exchange(fd_, -1)) != 0) throw file_error("cannot close", target_, errno);
  }

 private:
  std::string target_;
  int fd_;
};

/// Makes `path` name what `temporary` named, and the other way round where `path` existed.
void put_in_place(const std::string& temporary, const std::string& path) {
  if (!fs::exists(path)) return fs::rename(temporary, path);
  // One step: a process killed at any moment leaves the old folder or the new one at `path`.
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) throw file_error("cannot rename to", path, errno);
  // rename() cannot replace a folder that has something in it: move the old one aside first.
  const std::string old = path + ".old";
  fs::remove_all(old);
  fs::rename(path, old);
  try {
    fs::rename(temporary, path);
  } catch (const fs::filesystem_error&) {
    fs::rename(old, path);
    throw;
  }
  fs::rename(old, temporary);
}

}  // namespace

std::string read_file(const std::string& path) {
  std::error_code code;
  if (fs::is_directory(path, code)) throw input_error("is a folder, a file was expected", path);
  std::ifstream in(path, std::ios::binary);
  if (!in) throw file_error("cannot read", path, errno ? errno : EIO);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (in.bad()) throw file_error("cannot read", path, errno ? errno : EIO);
  return bytes;
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  write_file_atomically(path, [&](const AppendBytes& append) { append(bytes); });
}

void write_file_atomically(const std::string& path, const std::function<void(const AppendBytes&)>& fill) {
  const std::string temporary = temporary_name(path);
  try {
    NewFile file(temporary, path);
    fill([&](std::string_view bytes) { file.append(bytes); });
    file.finish();
    if (::rename(temporary.c_str(), path.c_str()) != 0) throw file_error("cannot rename to", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  flush(parent_of(path), O_RDONLY | O_DIRECTORY);
}

void write_folder_atomically(const std::string& given_path, const std::function<void(const std::string&)>& fill) {
  // "out/" means "out": the temporary must lie beside the folder, not in it.
  const std::string path = given_path.substr(0, given_path.find_last_not_of('/') + 1);
  if (path.empty()) throw usage_error("a folder to write is expected", given_path);
  const std::string temporary = temporary_name(path);
  std::error_code ignored;
  try {
    fs::create_directories(temporary);
    fill(temporary);
    for (const auto& entry : fs::recursive_directory_iterator(temporary)) {
      flush(entry.path().string(), O_RDONLY | (entry.is_directory() ? O_DIRECTORY : 0));
    }
    flush(temporary, O_RDONLY | O_DIRECTORY);
    put_in_place(temporary, path);
    flush(parent_of(path), O_RDONLY | O_DIRECTORY);
  } catch (const fs::filesystem_error& e) {
    fs::remove_all(temporary, ignored);
    throw input_error(fmt::format("cannot write the folder: {}", e.code().message()), path);
  } catch (...) {
    fs::remove_all(temporary, ignored);
    throw;
  }
  fs::remove_all(temporary, ignored);  // what `path` was before
}

void remove_stale_temporaries(const std::string& folder) {
  std::error_code code;
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (entry.path().filename().string().find(".tmp-") != std::string::npos) stale.push_back(entry.path());
  }
  for (const auto& path : stale) fs::remove_all(path, code);
}

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw file_error("cannot open", path, errno);
  struct stat info{};
  if (::fstat(fd, &info) != 0 || S_ISDIR(info.st_mode)) {
    ::close(fd);
    throw input_error("is a folder, a file was expected", path);
  }
  std::shared_ptr<MappedFile> file(new MappedFile());
  file->path_ = path;
  file->size_ = static_cast<size_t>(info.st_size);
  if (file->size_ > 0) {
    // Private and writable: a tensor that is changed in place copies its page, the file stays as it is.
    void* map = ::mmap(nullptr, file->size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    const int code = errno;
    ::close(fd);
    if (map == MAP_FAILED) throw file_error("cannot map", path, code);
    file->data_ = static_cast<const std::byte*>(map);
  } else {
    ::close(fd);
  }
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

ResidentBytes resident_bytes() {
  ResidentBytes bytes;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    const auto kilobytes = [&] { return std::atoll(line.c_str() + line.find(':') + 1) * 1024; };
    if (line.rfind("VmRSS:", 0) == 0) bytes.now = kilobytes();
    if (line.rfind("VmHWM:", 0) == 0) bytes.peak = kilobytes();
  }
  return bytes;
}

std::string shared_folder() {
  std::vector<std::string> candidates;
  if (const char* named = std::getenv("PALIMPSEST_SHARED"); named != nullptr && *named != '\0') {
    candidates = {named};
  } else {
    candidates = {"../shared", "../../shared", "../../../shared"};
  }
  for (const auto& candidate : candidates) {
    if (fs::exists(fs::path(candidate) / "DESIGN.md")) return fs::absolute(candidate).lexically_normal().string();
  }
  return "";
}

}  // namespace palimpsest
