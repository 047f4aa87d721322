// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/models/config_reader.h"

#include <cmath>

#include "palimpsest/core/error.h"

namespace palimpsest::models {

ConfigReader::ConfigReader(const Json& json, std::string source) : json_(json), source_(std::move(source)) {
  if (!json.is_object()) throw input_error("a config must be a JSON object", source_);
}

int64_t ConfigReader::bounded(const std::string& key, int64_t value, int64_t least, int64_t most) const {
  if (value < least || value > most)
    throw input_error(fmt::format("\"{}\" is {}, which is not from {} to {}", key, value, least, most), source_);
  return value;
}

int64_t ConfigReader::size(const std::string& key, int64_t most) const {
  return bounded(key, json_int(json_, key, source_), 1, most);
}
int64_t ConfigReader::size(const std::string& key, int64_t most, int64_t fallback) const {
  return has(key) ? size(key, most) : fallback;
}
int64_t ConfigReader::id(const std::string& key, int64_t fallback) const {
  return has(key) ? bounded(key, json_int(json_, key, source_), 0, (1LL << 31) - 1) : fallback;
}

double ConfigReader::rate(const std::string& key, double fallback) const {
  if (!has(key)) return fallback;
  const Json& value = json_.at(key);
  if (!value.is_number() || value.get<double>() < 0 || value.get<double>() > 1)
    throw input_error(fmt::format("\"{}\" must be a number from 0 to 1", key), source_);
  return value.get<double>();
}

double ConfigReader::positive(const std::string& key, double fallback) const {
  if (!has(key)) return fallback;
  const Json& value = json_.at(key);
  if (!value.is_number() || !(value.get<double>() > 0) || !std::isfinite(value.get<double>()))
    throw input_error(fmt::format("\"{}\" must be a number above 0", key), source_);
  return value.get<double>();
}

bool ConfigReader::flag(const std::string& key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!json_.at(key).is_boolean()) throw input_error(fmt::format("\"{}\" must be true or false", key), source_);
  return json_.at(key).get<bool>();
}

std::string ConfigReader::text(const std::string& key, const std::string& fallback) const {
  return has(key) ? json_string(json_, key, source_) : fallback;
}

nn::Activation ConfigReader::activation(const std::string& key, const std::string& fallback) const {
  return nn::activation_of(text(key, fallback), fmt::format("{}, \"{}\"", source_, key));
}

void ConfigReader::check_heads(int64_t width, const char* width_key, int64_t heads, const char* heads_key) const {
  if (width % heads != 0)
    throw input_error(fmt::format("\"{}\" {} does not divide \"{}\" {}", heads_key, heads, width_key, width), source_);
}

}  // namespace palimpsest::models
