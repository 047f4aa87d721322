// SPDX-License-Identifier: Apache-2.0
// The short text that chooses a mechanism: "window:256", "abc:32,normalizer=frozen", "0-5=window:256,6-11=abc:32".
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::attention {

/// "name:value,key=value,flag", read piece by piece; what nobody asked for is an error.
class MechanismArguments {
 public:
  explicit MechanismArguments(const std::string& text);
  const std::string& name() const { return name_; }

  /// Whole numbers from `least` to `most`. The empty key is the value right after the colon.
  int64_t size(const std::string& key, int64_t least, int64_t most = int64_t{1} << 31);
  int64_t size_or(const std::string& key, int64_t fallback, int64_t least, int64_t most = int64_t{1} << 31);
  bool has(const std::string& key) const;
  /// A word without a value.
  bool flag(const std::string& key);
  /// One of `known`, the first of which is the default.
  std::string choice(const std::string& key, const std::vector<std::string>& known);
  /// Numbers between semicolons, at least one, each 0 or more.
  std::vector<int64_t> list(const std::string& key);
  /// A usage error where something was given that nobody read; `form` says what can be.
  void finish(const std::string& form) const;
  /// A usage error about this text.
  [[noreturn]] void fail(const std::string& what, const std::string& fix = "") const;

 private:
  struct Piece {
    std::string key, value;
    bool has_value = false;
  };
  const Piece* take(const std::string& key);
  std::string text_, name_;
  std::vector<Piece> pieces_;
  std::vector<std::string> asked_;
};

/// The mechanism of each of `layers` layers: one text for all, or ranges that name each layer once. A usage error names
/// a layer that is missing, named twice or not there.
std::vector<std::string> mechanism_texts(const std::string& text, int64_t layers);

}  // namespace palimpsest::attention
