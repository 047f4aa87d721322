// SPDX-License-Identifier: Apache-2.0
// Options: one aggregate per thing, each field listed once in `fields`; JSON, TOML, flags, help, printing and
// the check for unknown keys all follow from that list.
//
//     struct SaveOptions {
//       std::string out = "runs/latest";  // where checkpoints go
//       static void fields(auto& o, auto&& field) { field("out", o.out, "folder of the run"); }
//     };
//
// A nested aggregate is listed like a field and shows its own fields beside the outer ones ("flat"): a recipe,
// a flag and a JSON key have the same name. Dashes and underscores are the same in names.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "palimpsest/core/error.h"
#include "palimpsest/core/json.h"

namespace palimpsest {

using Weights = std::map<std::string, double>;  ///< name -> weight, `{recall = 0.5, next = 0.5}` in TOML

namespace options_detail {

struct NoField {
  void operator()(const char*, auto&, const char*) const {}
};
template <class T>
concept Aggregate = requires(T& value) { T::fields(value, NoField{}); };

/// One field as the generic code sees it.
struct Field {
  std::string name, help, type;
  std::function<Json()> get;
  std::function<void(const Json&, const std::string& source)> set;  ///< throws a usage error for a wrong type
  std::function<void(const std::string& text, const std::string& source)> set_text;  ///< from a flag
  bool is_flag = false;  ///< a boolean: the flag needs no value
};

void set_field(bool& value, const Json& json);
void set_field(int64_t& value, const Json& json);
void set_field(double& value, const Json& json);
void set_field(std::string& value, const Json& json);
void set_field(std::vector<std::string>& value, const Json& json);
void set_field(std::vector<int64_t>& value, const Json& json);
void set_field(Weights& value, const Json& json);
/// The JSON that a flag's text stands for, given the type's name.
Json parse_flag(const std::string& text, const std::string& type);

template <class T>
std::string type_name() {
  if constexpr (std::is_same_v<T, bool>) return "BOOL";
  if constexpr (std::is_same_v<T, int64_t>) return "INT";
  if constexpr (std::is_same_v<T, double>) return "FLOAT";
  if constexpr (std::is_same_v<T, std::string>) return "TEXT";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "TEXT,…";
  if constexpr (std::is_same_v<T, std::vector<int64_t>>) return "INT,…";
  if constexpr (std::is_same_v<T, Weights>) return "NAME=W,…";
  return "";
}

template <class T>
Field make_field(const char* name, T& value, const char* help) {
  static_assert(!std::is_same_v<T, int>, "use int64_t");
  Field field;
  field.name = name;
  field.help = help;
  field.type = type_name<T>();
  field.is_flag = std::is_same_v<T, bool>;
  field.get = [&value] { return Json(value); };
  field.set = [&value, n = field.name](const Json& json, const std::string& source) {
    try {
      set_field(value, json);
    } catch (const Error& e) {
      throw usage_error(fmt::format("{}: {}", n, e.problem()), source);
    }
  };
  field.set_text = [set = field.set, type = field.type](const std::string& text, const std::string& source) {
    set(parse_flag(text, type), source);
  };
  return field;
}

template <Aggregate T>
void list_fields(T& options, std::vector<Field>& list) {
  T::fields(options, [&](const char* name, auto& value, const char* help) {
    if constexpr (Aggregate<std::remove_reference_t<decltype(value)>>) {
      list_fields(value, list);
    } else {
      list.push_back(make_field(name, value, help));
    }
  });
}

Json to_json(const std::vector<Field>& fields);
void from_json(const std::vector<Field>& fields, const Json& json, const std::string& source);
std::string to_toml(const std::vector<Field>& fields);
void add_flags(std::vector<Field> fields, CLI::App& app);

}  // namespace options_detail

/// All fields in their order. The result refers to `options`, which must outlive it.
template <class T>
std::vector<options_detail::Field> fields_of(T& options) {
  std::vector<options_detail::Field> list;
  options_detail::list_fields(options, list);
  return list;
}

template <class T>
Json options_to_json(const T& options) {
  return options_detail::to_json(fields_of(const_cast<T&>(options)));
}
/// Sets the named fields, leaves the others; unknown keys are usage errors that name the nearest one.
template <class T>
void options_from_json(T& options, const Json& json, const std::string& source) {
  options_detail::from_json(fields_of(options), json, source);
}
/// A complete TOML text, with each field's help as a comment.
template <class T>
std::string options_to_toml(const T& options) {
  return options_detail::to_toml(fields_of(const_cast<T&>(options)));
}
/// Reads a TOML file (a recipe). A key `base` names another one, from its own folder, whose keys stand where this one
/// has none; input errors: a base that is missing, or that leads back to itself.
Json read_toml(const std::string& path);
/// The same of a text; `source` stands in errors.
Json parse_toml(const std::string& text, const std::string& source);
template <class T>
void options_from_toml(T& options, const std::string& path) {
  options_from_json(options, read_toml(path), path);
}
/// Gives `app` one flag per field, with its help and default. Flags are applied as they are parsed.
/// `options` must outlive the parse.
template <class T>
void options_to_flags(T& options, CLI::App& app) {
  options_detail::add_flags(fields_of(options), app);
}
/// "learning_rate" and "learning-rate" are one name; this is the form with dashes.
std::string flag_name(std::string name);

/// A usage error where `value` is none of `allowed`; `name` is the flag or key.
void check_choice(const std::string& name, const std::string& value, const std::vector<std::string>& allowed);

}  // namespace palimpsest
