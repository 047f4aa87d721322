// SPDX-License-Identifier: Apache-2.0
// Just enough of the safetensors format to read a fixture: rooms below this one do not know the real reader.
#pragma once

#include <ATen/ATen.h>

#include <cstring>
#include <map>
#include <string>

#include "palimpsest/core/error.h"
#include "palimpsest/core/files.h"
#include "palimpsest/core/json.h"

namespace palimpsest::test {

inline std::map<std::string, at::Tensor> read_plain_safetensors(const std::string& path) {
  static const std::map<std::string, at::ScalarType> kTypes = {
      {"F32", at::kFloat}, {"F16", at::kHalf}, {"F64", at::kDouble}, {"I64", at::kLong}, {"U8", at::kByte}};
  const std::string bytes = read_file(path);
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), 8);
  const Json header = parse_json(bytes.substr(8, header_size), path);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    at::Tensor tensor =
        at::empty(entry.at("shape").get<std::vector<int64_t>>(), kTypes.at(entry.at("dtype").get<std::string>()));
    const auto first = entry.at("data_offsets").at(0).get<uint64_t>();
    std::memcpy(tensor.data_ptr(), bytes.data() + 8 + header_size + first, tensor.nbytes());
    tensors[name] = tensor;
  }
  return tensors;
}

}  // namespace palimpsest::test
