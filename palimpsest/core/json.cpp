// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/core/json.h"

#include <cstdint>
#include <set>
#include <vector>

#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"

namespace palimpsest {

Json parse_json(const std::string& text, const std::string& source) {
  constexpr int kMaxDepth = 128;
  std::vector<std::set<std::string>> keys;
  // The callback sees each object before it is complete: the place to refuse what the parser accepts.
  auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) {
      throw input_error(fmt::format("JSON is nested deeper than {} levels", kMaxDepth), source);
    }
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw input_error(fmt::format("duplicate key \"{}\"", printable(parsed.get<std::string>())), source,
                        "keep one of the two");
    }
    return true;
  };
  // The parser takes a NUL byte for the end of the text and would not see what stands behind it.
  if (const size_t nul = text.find('\0'); nul != std::string::npos) {
    throw input_error(fmt::format("not valid JSON: a NUL byte at byte {}", nul + 1), source);
  }
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& e) {  // a parse error, or a number out of range
    const std::string message = e.what();
    const size_t colon = message.find("] ");
    throw input_error(
        "not valid JSON: " + printable(colon == std::string::npos ? message : message.substr(colon + 2), 400), source);
  }
}

Json read_json(const std::string& path) { return parse_json(read_file(path), path); }

void write_json(const std::string& path, const Json& json) { write_file_atomically(path, json.dump(2) + "\n"); }

namespace {
const Json& member(const Json& object, const std::string& key, const std::string& source) {
  if (!object.is_object() || !object.contains(key)) {
    throw input_error(fmt::format("key \"{}\" is missing", key), source);
  }
  return object.at(key);
}
}  // namespace

int64_t json_int(const Json& object, const std::string& key, const std::string& source) {
  const Json& value = member(object, key, source);
  const bool too_big = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (!value.is_number_integer() || too_big) {
    throw input_error(fmt::format("\"{}\" must be an integer", key), source);
  }
  return value.get<int64_t>();
}

std::string json_string(const Json& object, const std::string& key, const std::string& source) {
  const Json& value = member(object, key, source);
  if (!value.is_string()) throw input_error(fmt::format("\"{}\" must be a string", key), source);
  return value.get<std::string>();
}

}  // namespace palimpsest
