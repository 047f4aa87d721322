// SPDX-License-Identifier: Apache-2.0
// Parsing of large JSON files, and checked access to their values.
#include "palimpsest/text/json_node.h"

#include <unordered_set>
#include <utility>
#include <vector>

namespace palimpsest::text {

namespace {

constexpr int kMaxDepth = 128;

/// Builds a Json value from parser events, appending to objects without looking their keys up one by one.
class JsonBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit JsonBuilder(std::string source) : source_(std::move(source)) {}
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(Json::binary(std::move(value))); }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    if (!levels_.back().keys.insert(value).second) {
      throw input_error(fmt::format("duplicate key \"{}\"", value), source_, "keep one of the two");
    }
    key_ = std::move(value);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    const std::string message = error.what();
    const size_t prefix = message.find("] ");
    throw input_error("not valid JSON: " + (prefix == std::string::npos ? message : message.substr(prefix + 2)),
                      source_);
  }

 private:
  struct Level {
    Json* value;
    std::unordered_set<std::string> keys;
  };

  Json* place(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *levels_.back().value;
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    auto& members = parent.get_ref<Json::object_t&>();
    members.emplace_back(key_, std::move(value));
    return &members.back().second;
  }
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (levels_.size() >= kMaxDepth) {
      throw input_error(fmt::format("JSON is nested deeper than {} levels", kMaxDepth), source_);
    }
    levels_.push_back({place(std::move(value)), {}});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  std::string source_, key_;
  Json root_;
  std::vector<Level> levels_;
};

}  // namespace

Json parse_large_json(const std::string& text, const std::string& source) {
  JsonBuilder builder(source);
  Json::sax_parse(text, &builder);
  return builder.take();
}

Error Node::error(const std::string& problem, const std::string& fix) const { return input_error(problem, place, fix); }

const Json* Node::find(const char* key) const {
  const auto member = json.find(key);
  return member == json.end() ? nullptr : &*member;
}

bool Node::is_null(const char* key) const {
  const Json* member = find(key);
  return member == nullptr || member->is_null();
}

Node Node::at(const char* key) const {
  const Json* member = find(key);
  if (member == nullptr) throw error(fmt::format("\"{}\" is missing", key));
  return {*member, fmt::format("{}, {}", place, key)};
}

Node Node::entry(size_t index) const { return {json.at(index), fmt::format("{}[{}]", place, index)}; }

Node Node::entry(const std::string& key) const {
  if (!json.contains(key)) throw error(fmt::format("\"{}\" is missing", key));
  return {json.at(key), fmt::format("{}, \"{}\"", place, key)};
}

const Node& Node::object() const {
  if (!json.is_object()) throw error("an object is expected here");
  return *this;
}

const Node& Node::array() const {
  if (!json.is_array()) throw error("a list is expected here");
  return *this;
}

std::string Node::string() const {
  if (!json.is_string()) throw error("a text is expected here");
  return json.get<std::string>();
}

int64_t Node::integer() const {
  if (!json.is_number_integer()) throw error("a whole number is expected here");
  return json.get<int64_t>();
}

int64_t Node::integer_in(int64_t least, int64_t most) const {
  const int64_t value = integer();
  if (value < least || value > most || (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX))
    throw error(fmt::format("a number from {} to {} is expected here, got {}", least, most, json.dump()));
  return value;
}

bool Node::boolean() const {
  if (!json.is_boolean()) throw error("true or false is expected here");
  return json.get<bool>();
}

bool Node::flag(const char* key, bool otherwise) const { return is_null(key) ? otherwise : at(key).boolean(); }

std::string Node::text(const char* key, const std::string& otherwise) const {
  return is_null(key) ? otherwise : at(key).string();
}

std::string Node::type() const { return object().at("type").string(); }

Error not_supported(const Node& node, const std::string& what, const std::string& supported) {
  return node.error(fmt::format("{} is not supported, and leaving it out would change the result", what),
                    "supported here: " + supported);
}

}  // namespace palimpsest::text
