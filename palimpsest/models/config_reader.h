// SPDX-License-Identifier: Apache-2.0
// Typed reading of a config.json, with errors that name the key and the file.
#pragma once

#include <string>
#include <utility>

#include "palimpsest/core/json.h"
#include "palimpsest/nn/activation.h"

namespace palimpsest::models {

/// Reads typed keys of one JSON object; a key that is null is absent.
class ConfigReader {
 public:
  ConfigReader(const Json& json, std::string source);
  bool has(const std::string& key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  /// Between 1 and `most` (beyond which a size can only be an error); required.
  int64_t size(const std::string& key, int64_t most) const;
  int64_t size(const std::string& key, int64_t most, int64_t fallback) const;
  /// 0 or more; "null" and absent are the fallback.
  int64_t id(const std::string& key, int64_t fallback) const;
  /// From 0 to 1.
  double rate(const std::string& key, double fallback) const;
  /// Above 0.
  double positive(const std::string& key, double fallback) const;
  bool flag(const std::string& key, bool fallback) const;
  std::string text(const std::string& key, const std::string& fallback) const;
  nn::Activation activation(const std::string& key, const std::string& fallback) const;
  const Json& object(const std::string& key) const { return json_.at(key); }
  const std::string& source() const { return source_; }
  /// An input error where `heads` does not divide `width`; the texts are the keys.
  void check_heads(int64_t width, const char* width_key, int64_t heads, const char* heads_key) const;

 private:
  int64_t bounded(const std::string& key, int64_t value, int64_t least, int64_t most) const;
  const Json& json_;
  std::string source_;
};

/// The largest sizes that a config may have.
constexpr int64_t kMostRows = 1 << 24, kMostWidth = 1 << 16, kMostInner = 1 << 20, kMostLayers = 1024;

}  // namespace palimpsest::models
