// SPDX-License-Identifier: Apache-2.0
// A value of a JSON file together with the path to it, so that every error names its place.
#pragma once

#include <cstdint>
#include <string>

#include "palimpsest/core/error.h"
#include "palimpsest/core/json.h"

namespace palimpsest::text {

/// As parse_json, but in time that is linear in the number of an object's keys.
Json parse_large_json(const std::string& text, const std::string& source);

struct Node {
  const Json& json;
  std::string place;

  Error error(const std::string& problem, const std::string& fix = "") const;
  const Json* find(const char* key) const;   ///< null where missing
  bool is_null(const char* key) const;       ///< missing or null
  Node at(const char* key) const;            ///< an error where missing
  Node entry(size_t index) const;            ///< of a list
  Node entry(const std::string& key) const;  ///< of an object whose keys are data
  size_t size() const { return json.size(); }

  /// These check the type.
  const Node& object() const;
  const Node& array() const;
  std::string string() const;
  int64_t integer() const;
  /// A whole number in [least, most].
  int64_t integer_in(int64_t least, int64_t most) const;
  bool boolean() const;

  bool flag(const char* key, bool otherwise) const;                       ///< `otherwise` where missing or null
  std::string text(const char* key, const std::string& otherwise) const;  ///< likewise
  std::string type() const;                                               ///< the member "type" of an object
};

/// The error for whatever would change results and is not implemented.
Error not_supported(const Node& node, const std::string& what, const std::string& supported);

}  // namespace palimpsest::text
