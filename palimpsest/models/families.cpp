// SPDX-License-Identifier: Apache-2.0
// Every family of models, one line each.
#include <functional>
#include <map>

#include "palimpsest/core/error.h"
#include "palimpsest/models/bart.h"
#include "palimpsest/models/gpt2.h"

namespace palimpsest::models {

namespace {

template <class ModelType, class Config>
std::shared_ptr<Model> make(const Json& config, const std::string& source, const at::TensorOptions& options) {
  return std::make_shared<ModelType>(Config::from_json(config, source), options);
}

using Maker = std::function<std::shared_ptr<Model>(const Json&, const std::string&, const at::TensorOptions&)>;
const std::map<std::string, Maker>& families() {
  static const std::map<std::string, Maker> table = {
      {"bart", make<BartModel, BartConfig>},
      {"gpt2", make<Gpt2Model, Gpt2Config>},
  };
  return table;
}

}  // namespace

std::shared_ptr<Model> make_model(const Json& config, const std::string& source, const at::TensorOptions& options) {
  if (!config.is_object()) throw input_error("a config must be a JSON object", source);
  std::string known;
  for (const auto& [name, maker] : families()) known += (known.empty() ? "" : ", ") + name;
  if (!config.contains("model_type") || !config.at("model_type").is_string()) {
    throw input_error("\"model_type\" is missing", source, "it names the family of the model: " + known);
  }
  const auto family = config.at("model_type").get<std::string>();
  const auto found = families().find(family);
  if (found == families().end()) {
    throw input_error(fmt::format("the model_type \"{}\" is not supported", printable(family)), source,
                      "this version reads " + known);
  }
  return found->second(config, source, options);
}

}  // namespace palimpsest::models
