// SPDX-License-Identifier: Apache-2.0
// The project's JSON type: keys keep the order in which they were written.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace palimpsest {

using Json = nlohmann::ordered_json;

/// Parses `text`; an error names `source` (a file, for example) and the byte where parsing stopped.
/// Nesting deeper than 128 levels and duplicate keys of one object are refused.
Json parse_json(const std::string& text, const std::string& source);
/// Reads and parses a file.
Json read_json(const std::string& path);
/// Writes `json` atomically, indented by two spaces, with a final newline.
void write_json(const std::string& path, const Json& json);

/// A typed look-up with an error that names the key and the source.
/// Throws where the key is missing or of another type.
int64_t json_int(const Json& object, const std::string& key, const std::string& source);
std::string json_string(const Json& object, const std::string& key, const std::string& source);

}  // namespace palimpsest
