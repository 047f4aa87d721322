// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/core/options.h"

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <set>
#include <sstream>

#include "palimpsest/core/files.h"

namespace palimpsest {

std::string flag_name(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

void check_choice(const std::string& name, const std::string& value, const std::vector<std::string>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
  std::string list;
  for (const auto& choice : allowed) list += (list.empty() ? "" : ", ") + choice;
  throw usage_error(fmt::format("{} is \"{}\"", name, value), "", "choose one of: " + list);
}

namespace options_detail {

namespace {
Error wrong_type(const char* expected, const Json& json) {
  return usage_error(fmt::format("expected {}, got {}", expected, json.dump()));
}
}  // namespace

void set_field(bool& value, const Json& json) {
  if (!json.is_boolean()) throw wrong_type("true or false", json);
  value = json.get<bool>();
}
void set_field(int64_t& value, const Json& json) {
  if (json.is_number_float() && json.get<double>() == std::floor(json.get<double>()) &&
      std::abs(json.get<double>()) < 9e15) {
    value = static_cast<int64_t>(json.get<double>());  // 1e6 is a whole number
    return;
  }
  const bool too_big = json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (!json.is_number_integer() || too_big) throw wrong_type("a whole number", json);
  value = json.get<int64_t>();
}
void set_field(double& value, const Json& json) {
  if (!json.is_number()) throw wrong_type("a number", json);
  value = json.get<double>();
}
void set_field(std::string& value, const Json& json) {
  if (!json.is_string()) throw wrong_type("text", json);
  value = json.get<std::string>();
}
void set_field(std::vector<std::string>& value, const Json& json) {
  if (json.is_string()) {
    value = {json.get<std::string>()};
    return;
  }
  if (!json.is_array()) throw wrong_type("a list of texts", json);
  std::vector<std::string> list;
  for (const auto& item : json) set_field(list.emplace_back(), item);
  value = std::move(list);
}
void set_field(std::vector<int64_t>& value, const Json& json) {
  if (json.is_number()) {
    value.assign(1, 0);
    set_field(value.front(), json);
    return;
  }
  if (!json.is_array()) throw wrong_type("a list of whole numbers", json);
  std::vector<int64_t> list;
  for (const auto& item : json) set_field(list.emplace_back(), item);
  value = std::move(list);
}
void set_field(Weights& value, const Json& json) {
  Weights weights;
  if (json.is_string()) {  // one name alone
    weights[json.get<std::string>()] = 1.0;
  } else if (json.is_object()) {
    for (const auto& [name, weight] : json.items()) set_field(weights[name], weight);
  } else {
    throw wrong_type("names with weights", json);
  }
  value = std::move(weights);
}

namespace {
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

Json parse_number(const std::string& text) {
  int64_t whole = 0;
  const char* end = text.data() + text.size();
  if (auto [stop, code] = std::from_chars(text.data(), end, whole); code == std::errc() && stop == end) return whole;
  double real = 0;
  if (auto [stop, code] = std::from_chars(text.data(), end, real); code == std::errc() && stop == end) return real;
  return text;  // stays text: the field's own check then names what was expected
}
}  // namespace

Json parse_flag(const std::string& text, const std::string& type) {
  if (type == "BOOL") {
    if (text == "true" || text == "1" || text == "yes" || text == "on") return true;
    if (text == "false" || text == "0" || text == "no" || text == "off") return false;
    return text;
  }
  if (type == "INT" || type == "FLOAT") return parse_number(text);
  if (type == "INT,…") {
    Json list = Json::array();
    for (const auto& part : split(text, ',')) list.push_back(parse_number(part));
    return list;
  }
  if (type == "TEXT,…") {
    Json list = Json::array();
    for (const auto& part : split(text, ',')) list.push_back(part);
    return list;
  }
  if (type == "NAME=W,…") {
    Json weights = Json::object();
    for (const auto& part : split(text, ',')) {
      const size_t equals = part.find('=');
      if (equals == std::string::npos) {
        weights[part] = 1.0;
      } else {
        weights[part.substr(0, equals)] = parse_number(part.substr(equals + 1));
      }
    }
    return weights;
  }
  return text;
}

Json to_json(const std::vector<Field>& fields) {
  Json json = Json::object();
  for (const auto& field : fields) json[field.name] = field.get();
  return json;
}

void from_json(const std::vector<Field>& fields, const Json& json, const std::string& source) {
  if (!json.is_object()) throw usage_error("expected a table of options", source);
  for (const auto& [key, value] : json.items()) {
    const auto match = std::find_if(fields.begin(), fields.end(), [&, wanted = flag_name(key)](const Field& f) {
      return flag_name(f.name) == wanted;
    });
    if (match == fields.end()) {
      std::vector<std::string> names;
      for (const auto& field : fields) names.push_back(field.name);
      const std::string nearest = nearest_name(key, names);
      throw usage_error(fmt::format("unknown option \"{}\"", key), source,
                        nearest.empty() ? "see --help for the options" : fmt::format("did you mean \"{}\"?", nearest));
    }
    match->set(value, source);
  }
}

namespace {
std::string toml_value(const Json& json) {
  if (json.is_object()) {
    std::string text = "{";
    for (const auto& [name, value] : json.items())
      text += fmt::format("{}\"{}\" = {}", text.size() > 1 ? ", " : "", name, value.dump());
    return text + "}";
  }
  if (json.is_array()) {
    std::string text = "[";
    for (const auto& value : json) text += (text.size() > 1 ? ", " : "") + toml_value(value);
    return text + "]";
  }
  return json.dump();  // numbers, booleans and escaped strings are written alike in both languages
}
}  // namespace

std::string to_toml(const std::vector<Field>& fields) {
  std::string text;
  for (const auto& field : fields)
    text += fmt::format("{} = {}  # {}\n", field.name, toml_value(field.get()), field.help);
  return text;
}

void add_flags(std::vector<Field> fields, CLI::App& app) {
  for (auto& field : fields) {
    const std::string dashes = "--" + flag_name(field.name);
    std::string names = dashes;
    if (dashes != "--" + field.name) names += ",--" + field.name;
    const std::string default_text = field.get().is_string() ? field.get().get<std::string>() : field.get().dump();
    const std::string help = field.help + (default_text.empty() ? "" : "  [" + default_text + "]");
    CLI::callback_t apply = [set_text = field.set_text, dashes](const CLI::results_t& results) {
      set_text(results.back(), dashes);
      return true;
    };
    CLI::Option* option = app.add_option(names, apply, help);
    option->type_name(field.type)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    // Never takes the next word for its value: in `--json FILE` FILE stays the file. `--shuffle=false` is read.
    if (field.is_flag) option->expected(0);
  }
}

}  // namespace options_detail

namespace {
Json from_toml_node(const toml::node& node) {
  if (const auto* table = node.as_table()) {
    Json json = Json::object();
    for (const auto& [key, value] : *table) json[std::string(key.str())] = from_toml_node(value);
    return json;
  }
  if (const auto* array = node.as_array()) {
    Json json = Json::array();
    for (const auto& value : *array) json.push_back(from_toml_node(value));
    return json;
  }
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* whole = node.as_integer()) return whole->get();
  if (const auto* real = node.as_floating_point()) return real->get();
  if (const auto* truth = node.as_boolean()) return truth->get();
  return nullptr;
}
}  // namespace

Json parse_toml(const std::string& text, const std::string& source) {
  try {
    return from_toml_node(toml::parse(text, source));
  } catch (const toml::parse_error& e) {
    throw input_error(fmt::format("not valid TOML: {}", e.description()),
                      fmt::format("{}, line {}, column {}", source, e.source().begin.line, e.source().begin.column));
  }
}

Json read_toml(const std::string& path) {
  Json merged = Json::object();
  std::set<std::filesystem::path> seen;
  for (std::filesystem::path next = path; !next.empty();) {
    if (!seen.insert(std::filesystem::weakly_canonical(next)).second)
      throw input_error("the recipes are each other's base", next.string(), "take the key \"base\" out of one of them");
    const Json one = parse_toml(read_file(next.string()), next.string());
    merged.insert(one.begin(), one.end());  // what stands there already stays
    std::string base;
    if (one.contains("base")) {
      options_detail::make_field("base", base, "").set(one.at("base"), next.string());
    }
    next = base.empty() ? std::filesystem::path() : next.parent_path() / base;
  }
  merged.erase("base");
  return merged;
}

}  // namespace palimpsest
